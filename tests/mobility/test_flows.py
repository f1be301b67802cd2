import numpy as np
import pytest
from hypothesis import given, settings

from epifalcon.errors import DataError
from epifalcon.mobility import flows
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import Flows, count_flows
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.oracles import markov_loop
from tests.oracles.cities import cities, random_traces

CASES = settings(max_examples=80, deadline=None, derandomize=True)


@CASES
@given(cities())
def test_flows_and_visitors_equal_the_loop(traces):
    counted = count_flows(traces)
    expected = markov_loop.flows(traces)
    for day in range(traces.clock.days):
        stays = np.diag(expected[day])
        bare = expected[day] - np.diag(stays)
        np.testing.assert_array_equal(counted.stays[day], stays)
        np.testing.assert_array_equal(counted.moves(day).toarray(), bare)
        assert counted.moves(day).nnz == np.count_nonzero(bare)
    np.testing.assert_array_equal(counted.visitors, markov_loop.visitors(traces))


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
    monkeypatch.setattr(flows, "_POINTS_PER_BLOCK", 12)
    np.testing.assert_array_equal(count_flows(traces).visitors, whole.visitors)


def test_shapes_that_disagree_are_refused():
    good = count_flows(random_traces(3, 5, 6, Clock(4, 2)))
    with pytest.raises(DataError, match="visitors"):
        Flows(good.between, good.stays, good.visitors[:1])
    with pytest.raises(DataError, match="day=2"):
        good.moves(2)
    with pytest.raises(DataError, match="between"):
        Flows(good.between[:3], good.stays, good.visitors)
