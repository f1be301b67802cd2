import numpy as np
import pytest
from hypothesis import given, settings

from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility import flows
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import Flows, count_flows
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.store import Origin
from tests.oracles import markov_loop
from tests.oracles.cities import cities, random_traces

CASES = settings(max_examples=80, deadline=None, derandomize=True)


@CASES
@given(cities())
def test_flows_and_visitors_equal_the_loop(traces):
    counted = count_flows(traces)
    expected = markov_loop.flows(traces)
    for day in range(traces.clock.days):
        whole = counted.moves(day, stays=True)
        np.testing.assert_array_equal(whole.toarray(), expected[day])
        bare = expected[day] - np.diag(np.diag(expected[day]))
        np.testing.assert_array_equal(counted.moves(day).toarray(), bare)
        assert counted.moves(day).nnz == np.count_nonzero(bare)
    np.testing.assert_array_equal(counted.visitors, markov_loop.visitors(traces))


@CASES
@given(cities())
def test_every_pair_of_observed_slots_is_counted_once(traces):
    counted = count_flows(traces)
    seen = traces.by_slot >= 0
    pairs = np.count_nonzero(seen[1:] & seen[:-1])
    assert counted.between.sum() + counted.stays.sum() == pairs


@CASES
@given(cities())
def test_visitors_of_a_day_are_at_least_its_busiest_slot(traces):
    counted = count_flows(traces)
    for slot in range(traces.slots):
        day = traces.clock.day_of_slot(slot)
        assert (counted.visitors[day] >= traces.occupancy(slot)).all()


def test_a_move_over_midnight_belongs_to_the_day_of_arrival():
    ids = np.array([[0], [0], [1], [1]], dtype=np.int32)
    traces = Traces(ids, Clock(12, 2), Regions("poi", np.zeros((2, 2))))
    counted = count_flows(traces)
    assert counted.moves(0).sum() == 0
    assert counted.moves(1)[0, 1] == 1
    assert counted.stays.tolist() == [[1, 0], [0, 1]]
    assert (counted.days, counted.regions) == (2, 2)


def test_blocks_of_people_do_not_change_visitors(monkeypatch):
    traces = random_traces(3, 50, 6, Clock(4, 2))
    whole = count_flows(traces)
    monkeypatch.setattr(flows, "_POINTS_AT_ONCE", 12)
    np.testing.assert_array_equal(count_flows(traces).visitors, whole.visitors)


def test_progress_ends_at_the_last_day():
    told = []
    count_flows(
        random_traces(3, 5, 6, Clock(4, 3)), lambda *step: told.append(step[1:])
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("day", [-1, 2])
def test_a_day_that_is_not_there_is_refused(day):
    with pytest.raises(DataError, match=f"day={day}"):
        count_flows(random_traces(3, 5, 6, Clock(4, 2))).moves(day)


def test_shapes_that_disagree_are_refused():
    good = count_flows(random_traces(3, 5, 6, Clock(4, 2)))
    with pytest.raises(DataError, match="visitors"):
        Flows(good.between, good.stays, good.visitors[:1])
    with pytest.raises(DataError, match="between"):
        Flows(good.between[:3], good.stays, good.visitors)


def test_saved_and_loaded_they_are_the_same_flows(tmp_path):
    counted = count_flows(random_traces(8, 30, 9, Clock(4, 3)))
    counted.save(tmp_path / "flows", Origin.now({}, None))
    loaded = Flows.load(tmp_path / "flows")
    for day in range(3):
        np.testing.assert_array_equal(
            loaded.moves(day, stays=True).toarray(),
            counted.moves(day, stays=True).toarray(),
        )
    np.testing.assert_array_equal(loaded.visitors, counted.visitors)
    (tmp_path / "flows" / "stays.npy").unlink()
    with pytest.raises(CorruptFileError, match="stays"):
        Flows.load(tmp_path / "flows")
