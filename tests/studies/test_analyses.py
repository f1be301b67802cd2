"""Analyses of finished runs: attack errors and graph sizes."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from epifalcon.evaluation.attacks.repeated_claims import SetBelief
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.federation.training import public_mobility
from epifalcon.progress import silent
from epifalcon.studies import analyses, auditing
from epifalcon.studies.paper.noise import ATTACKS
from epifalcon.studies.paper.pseudo_tradeoff import PLACES
from epifalcon.studies.place_attacks import Learnt, Places
from tests.studies.finished_runs import make_run


def test_places_are_attacked_without_notes(opened):
    found = analyses.place_errors(opened("paper"), silent)
    assert set(found) == {*PLACES, "random"}
    assert all(0 <= one <= 1 for one in found.values())
    # Two pseudo places to a true one.
    assert found["random"] == pytest.approx(2 / 3, abs=0.05)


def test_attacks_are_told_by_their_names(monkeypatch):
    attacks = [SimpleNamespace(name=name, error=0.2, random=0.9) for name in ATTACKS]
    attacks[1].error = 0.1
    attacks[2].error = None
    attacks.append(SimpleNamespace(name="result", error=0.0, random=0.5))
    monkeypatch.setattr(analyses, "read_notes", lambda _place: None)
    monkeypatch.setattr(analyses, "attacks_on", lambda *_words: attacks)
    found = analyses.audit_errors(SimpleNamespace(place=None), silent)
    expected = {one.name: one.error for one in attacks}
    assert found == {**expected, "strongest": 0.1, "random": 0.9}


@pytest.mark.parametrize("kind", ["places", "audit"])
def test_attackers_have_the_public_mobility_model_of_the_run(
    kind, tmp_path, monkeypatch
):
    words = ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=2")
    begun = make_run(
        tmp_path / "run", *words, "view.people=10", "pseudo.people_share=0.4"
    )
    used = []

    class Spy(Places):
        def __init__(self, **parts):
            used.append(parts["model"])
            super().__init__(**parts)

    learnt = Learnt(passes=(), sets=SetBelief(), by_sets=False)
    for module in (analyses, auditing):
        monkeypatch.setattr(module, "Places", Spy)
        monkeypatch.setattr(module, "learn_attacks", lambda *_words: learnt)
    run = FinishedRun.open(begun.folder)
    analyses.ANALYSES[kind](run, silent)
    public = public_mobility(run.traces, run.settings.pseudo, run.seed)
    assert [one.people for one in used] == [public.people]
    assert 40 < public.people < 80
    assert (used[0].joint != public.joint).nnz == 0
    np.testing.assert_array_equal(used[0].visits, public.visits)


@pytest.mark.slow
def test_every_attack_of_the_tables_is_tried(tmp_path):
    words = ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=4")
    run = make_run(tmp_path / "run", *words, "view.people=20")
    found = analyses.audit_errors(FinishedRun.open(run.folder), silent)
    assert set(ATTACKS) <= set(found)


def counted(traces, window):
    """Edges, and meetings by pair of people, by looking at everybody."""
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
    expected = {
        "people": run.traces.people,
        "contacts": len(set(meetings)),
        "meetings": len(meetings),
        "edges": len(edges),
        "incidences": sum(len(people) for people in edges.values()),
    }
    assert analyses.graph_sizes(run, silent) == expected
    monkeypatch.setattr(analyses, "_MOST_MEETINGS", 1)
    assert analyses.graph_sizes(run, silent)["contacts"] is None
