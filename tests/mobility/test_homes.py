import numpy as np
from hypothesis import given, settings

from epifalcon.mobility import homes
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.homes import home_regions
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.oracles.cities import cities


def traces_of(by_person, days=1):
    by_slot = np.ascontiguousarray(np.array(by_person, np.int32).T)
    return Traces(
        by_slot, Clock(slot_hours=2, days=days), Regions("area", np.eye(9, 2))
    )


def test_the_night_decides_not_the_day():
    night, day = [4], [7]
    person = night * 3 + day * 9
    assert home_regions(traces_of([person])).tolist() == [4]


def test_without_a_night_any_hour_counts_and_nobody_seen_has_no_home():
    by_day_only = [-1] * 4 + [7] * 5 + [2] * 1 + [-1] * 2
    never = [-1] * 12
    assert home_regions(traces_of([by_day_only, never])).tolist() == [7, -1]


@settings(deadline=None, derandomize=True, max_examples=30)
@given(cities())
def test_blocks_change_nothing(traces):
    whole = home_regions(traces)
    before, homes._BLOCK_PEOPLE = homes._BLOCK_PEOPLE, 2
    try:
        np.testing.assert_array_equal(home_regions(traces), whole)
    finally:
        homes._BLOCK_PEOPLE = before
