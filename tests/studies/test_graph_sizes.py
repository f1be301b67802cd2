"""Sizes of the two graphs, counted person by person."""

from itertools import combinations

from epifalcon.progress import silent
from epifalcon.studies import graph_sizes


def counted(traces, window):
    """Edges, incidences, pairs who met and meetings, by looking at everybody."""
    edges, meetings = {}, []
    for slot, here in enumerate(traces.by_slot):
        for person, region in enumerate(here):
            if region >= 0:
                edges.setdefault((slot // window, region), set()).add(person)
        for one, other in combinations(range(traces.people), 2):
            if here[one] >= 0 and here[one] == here[other]:
                meetings.append((one, other))
    return edges, meetings


def test_sizes_are_those_of_a_plain_count(opened, monkeypatch):
    run = opened("off")
    edges, meetings = counted(run.traces, run.settings.model.window_slots)
    found = graph_sizes.graph_sizes(run, silent)
    assert found["people"] == run.traces.people
    assert found["contacts"] == len(set(meetings))
    assert found["meetings"] == len(meetings)
    kept = {len(people) for people in edges.values()}
    assert found["edges"] == len(edges)
    assert found["incidences"] == sum(len(people) for people in edges.values())
    assert kept
    monkeypatch.setattr(graph_sizes, "_MOST_MEETINGS", 1)
    assert graph_sizes.graph_sizes(run, silent)["contacts"] is None
