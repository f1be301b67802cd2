import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence, Rows
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import cities
from tests.oracles.dense_hypergraph import dense, members_by_loop

quick = settings(deadline=None, derandomize=True, max_examples=60)


def city(ids: list[list[int]], regions: int = 3) -> Traces:
    """A city of one day; one row of ``ids`` for each person."""
    by_slot = np.array(ids, np.int32).T.copy()
    clock = Clock(24 / len(by_slot), 1)
    return Traces(by_slot, clock, Regions("area", np.zeros((regions, 2))))


def members(inc: Incidence) -> dict[int, list[int]]:
    parts = np.split(inc.by_edge.index, inc.by_edge.start[1:-1])
    keys = inc.edge_key.tolist()
    return dict(zip(keys, (part.tolist() for part in parts), strict=False))


@quick
@given(cities(), st.sampled_from([1, 3]), st.booleans())
def test_the_edges_are_those_of_the_loop(traces, window_slots, keep_alone):
    if traces.slots % window_slots:
        window_slots = 1
    choice = HypergraphSettings(window_slots=window_slots, keep_alone=keep_alone)
    inc = Incidence.of(traces, choice)
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
    rows = np.split(inc.by_person.index, inc.by_person.start[1:-1])
    assert [row.tolist() for row in rows] == [
        np.flatnonzero(row).tolist() for row in matrix
    ]


def test_a_person_counts_once_in_a_window_and_again_in_the_next():
    traces = city([[0, 0, 1, 0], [0, -1, 1, 1]])
    inc = Incidence.of(traces, HypergraphSettings(window_slots=2))
    assert members(inc) == {0: [0, 1], 3: [0], 4: [0, 1]}
    assert inc.edge_region.tolist() == [0, 0, 1]
    assert inc.edge_window.tolist() == [0, 1, 1]
    assert inc.degree.tolist() == [3, 2]


def test_a_place_left_and_entered_again_in_one_window_counts_once():
    traces = city([[0, 1, 0, 1], [-1, -1, -1, -1]])
    inc = Incidence.of(traces, HypergraphSettings(window_slots=4))
    assert members(inc) == {0: [0], 1: [0]}


def test_people_who_were_alone_can_be_left_out():
    traces = city([[0, 1], [0, 2], [-1, -1]])
    inc = Incidence.of(traces, HypergraphSettings(keep_alone=False))
    assert members(inc) == {0: [0, 1]}
    assert inc.degree.tolist() == [1, 1, 0]


def test_nobody_seen_gives_no_edges():
    inc = Incidence.of(city([[-1, -1], [-1, -1]]))
    assert (inc.edges, inc.pairs, inc.degree.tolist()) == (0, 0, [0, 0])
    assert inc.by_person.start.tolist() == [0, 0, 0]


@quick
@given(cities(), st.data())
def test_a_cohort_by_itself_has_the_pairs_and_keys_of_the_whole(traces, data):
    people = data.draw(st.permutations(range(traces.people)))
    people = people[: data.draw(st.integers(1, len(people)))]
    own = Traces(
        np.ascontiguousarray(traces.by_slot[:, people]), traces.clock, traces.regions
    )
    cohort, view = Incidence.of(own), Incidence.of(traces).restrict(people)
    assert members(cohort) == members(view)
    assert np.array_equal(cohort.edge_key, view.edge_key)
    assert view.people == len(people)
    assert np.array_equal(view.degree, Incidence.of(traces).degree[people])


@quick
@given(incidences())
def test_a_view_keeps_the_edges_that_are_shared_with_people_outside(inc):
    view = inc.restrict([0])
    assert view.degree.tolist() == [inc.degree[0]]
    assert view.size.tolist() == [1] * view.edges
    assert np.array_equal(inc.edge_key[view.places_in(inc.edge_key)], view.edge_key)


def test_memory_mapped_traces_give_the_same(tmp_path):
    traces = city([[0, 0, 1, 0], [0, -1, 1, 1]])
    np.save(tmp_path / "ids.npy", traces.by_slot)
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")
    again = Traces(mapped, traces.clock, traces.regions)
    assert members(Incidence.of(again)) == members(Incidence.of(traces))


def test_a_window_must_divide_the_trace():
    with pytest.raises(SettingsError, match=r"window_slots=3 .* 4 slots"):
        Incidence.of(city([[0, 0, 1, 0]]), HypergraphSettings(window_slots=3))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_window_has_whole_slots(wrong):
    with pytest.raises(SettingsError, match="window_slots"):
        HypergraphSettings(window_slots=wrong)


def test_keep_alone_is_true_or_false():
    with pytest.raises(SettingsError, match="keep_alone"):
        HypergraphSettings(keep_alone="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("people", "told"),
    [([], "at least one"), ([2], "0 to 1"), ([-1], "0 to 1"), ([0, 0], "twice")],
)
def test_a_cohort_is_made_of_people_there_are(people, told):
    with pytest.raises(DataError, match=told):
        by_hand(2, [[0, 1]]).restrict(people)


def test_a_mask_is_not_taken_for_ids():
    with pytest.raises(DataError, match="mask"):
        by_hand(2, [[0, 1]]).restrict(np.array([True, False]))
    with pytest.raises(DataError, match="whole numbers"):
        by_hand(2, [[0, 1]]).restrict(np.array([0.0, 1.0]))


def test_keys_that_are_not_listed_are_named():
    inc = by_hand(2, [[0, 1], [1]])
    with pytest.raises(DataError, match="1 edges are not listed, first 1"):
        inc.places_in(np.array([0], np.int64))


@pytest.mark.parametrize(
    ("start", "member", "key"),
    [
        ([0, 2], [1, 0], [0]),
        ([0, 2], [0, 0], [0]),
        ([0, 2], [0, 2], [0]),
        ([0, 2], [-1, 0], [0]),
        ([0, 1], [0, 1], [0]),
        ([0, 1, 1], [0], [0, 1]),
        ([0, 1, 2], [0, 1], [1, 0]),
        ([0, 1], [0], [9]),
        ([0, 1], [0], [-1]),
    ],
)
def test_a_record_that_is_not_a_hypergraph_is_refused(start, member, key):
    rows = Rows(np.array(start, np.int64), np.array(member, np.int32))
    with pytest.raises(DataError):
        Incidence(2, 3, 3, np.array(key, np.int64), rows)


def test_a_record_of_the_wrong_types_is_refused():
    rows = Rows(np.array([0, 1], np.int64), np.array([0], np.int64))
    with pytest.raises(DataError, match="index is int64"):
        Incidence(2, 3, 3, np.array([0], np.int64), rows)


def test_a_record_cannot_be_changed():
    inc = by_hand(2, [[0, 1]])
    for array in (inc.edge_key, inc.by_edge.index, inc.size, inc.degree):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
