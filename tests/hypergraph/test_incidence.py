import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph.incidence import Incidence, distinct_members
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.methods.tiny import city_of
from tests.oracles.cities import cities, random_traces
from tests.oracles.dense_hypergraph import dense, members_by_loop

quick = settings(deadline=None, derandomize=True, max_examples=60)


def members(inc: Incidence) -> dict[int, list[int]]:
    parts = np.split(inc.by_edge.index, inc.by_edge.start[1:-1])
    keys = inc.edge_key.tolist()
    return dict(zip(keys, (part.tolist() for part in parts), strict=False))


@quick
@given(cities(), st.sampled_from([1, 3]), st.booleans())
def test_the_edges_are_those_of_the_loop(traces, window_slots, keep_alone):
    if traces.slots % window_slots:
        window_slots = 1
    inc = Incidence.of(traces, window_slots=window_slots, keep_alone=keep_alone)
    wanted = members_by_loop(traces, window_slots, keep_alone)
    assert members(inc) == wanted
    assert inc.edge_key.tolist() == list(wanted)
    assert inc.windows * window_slots == traces.slots


@quick
@given(incidences())
def test_sizes_degrees_and_the_transposed_rows_are_those_of_the_matrix(inc):
    matrix = dense(inc).numpy()
    assert inc.size.tolist() == matrix.sum(0).tolist()
    assert inc.degree.tolist() == matrix.sum(1).tolist()
    assert np.array_equal(inc.by_person.toarray(), matrix)


@quick
@given(cities(), st.data())
def test_a_cohort_by_itself_has_the_pairs_and_keys_of_the_whole(traces, data):
    people = data.draw(st.permutations(range(traces.people)))
    people = people[: data.draw(st.integers(1, len(people)))]
    by_slot = np.ascontiguousarray(traces.by_slot[:, people])
    own = Traces(by_slot, traces.clock, traces.regions)
    cohort, view = Incidence.of(own), Incidence.of(traces).restrict(people)
    assert members(cohort) == members(view)
    assert np.array_equal(cohort.edge_key, view.edge_key)
    assert view.people == len(people)
    assert np.array_equal(view.degree, Incidence.of(traces).degree[people])


def test_a_window_must_divide_the_trace():
    with pytest.raises(SettingsError, match=r"window_slots=3 .* 4 slots"):
        Incidence.of(city_of([[0], [0], [1], [0]]), window_slots=3)


def test_keys_that_are_not_listed_are_named():
    inc = by_hand(2, [[0, 1], [1]])
    with pytest.raises(DataError, match="1 edges are not listed, first 1"):
        inc.places_in(np.array([0], np.int64))


def test_a_record_cannot_be_changed():
    inc = by_hand(2, [[0, 1]])
    for array in (inc.edge_key, inc.by_edge.index, inc.size, inc.degree):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def places(inc):
    """The (person, key) pairs as a set."""
    keys = np.repeat(inc.edge_key, inc.size)
    return set(zip(inc.by_edge.index.tolist(), keys.tolist(), strict=True))


@quick
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_everybody_is_counted_once_at_each_edge(seed, copies):
    true, *others = (
        Incidence.of(random_traces(seed + number, 8, 5, Clock(8.0, 2)))
        for number in range(1 + copies)
    )
    claimed = set().union(places(true), *(places(one) for one in others))
    wanted = [sum(key == k for _, k in claimed) for key in true.edge_key.tolist()]
    assert distinct_members(true, others).tolist() == wanted


def test_records_without_edges_count_for_nothing():
    inc = by_hand(3, [[0, 1], [2]])
    empty = by_hand(3, [])
    assert distinct_members(inc, [empty]).tolist() == [2, 1]
    assert distinct_members(empty, [inc]).tolist() == []
    assert distinct_members(inc).tolist() == [2, 1]
