import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.epidemic.cases import Cases, all_cases, reported_cases
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import simulate
from epifalcon.errors import DataError, SettingsError
from tests.epidemic.worlds import FAST, mixing_city, traces_of
from tests.oracles.cities import cities

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def known_of(people, tests):
    person, slot, positive = np.array(tests, int).reshape(-1, 3).T
    return Known.from_tests(people, person, positive.astype(bool), slot)


@st.composite
def cities_with_tests(draw):
    traces = draw(cities())
    test = st.tuples(
        st.integers(0, traces.people - 1),
        st.integers(0, traces.slots - 1),
        st.booleans(),
    )
    return traces, draw(st.lists(test, max_size=10)), draw(st.integers(1, 5))


@CASES
@given(cities_with_tests())
def test_reported_cases_equal_the_loop_and_add_up(drawn):
    traces, tests, window_days = drawn
    expected = np.zeros((len(traces.regions), traces.clock.days))
    unplaced = 0
    positive = {person for person, _, result in tests if result}
    for person in positive:
        slot = min(slot for who, slot, result in tests if who == person and result)
        day = traces.clock.day_of_slot(slot)
        begin = max(0, day - window_days + 1) * traces.clock.slots_per_day
        seen = [s for s in range(begin, slot + 1) if traces.by_slot[s, person] >= 0]
        unplaced += not seen
        for s in seen:
            region = traces.by_slot[s, person]
            expected[region, traces.clock.day_of_slot(s)] += 1 / len(seen)
    cases = reported_cases(known_of(traces.people, tests), traces, window_days)
    np.testing.assert_allclose(cases.by_region_and_day, expected, atol=1e-12)
    assert cases.unplaced == unplaced
    total = cases.by_region_and_day.sum() + cases.unplaced
    assert total == pytest.approx(len(positive))


def test_a_worked_example():
    traces = traces_of([[0, 1], [0, 1], [2, -1], [1, -1]], regions=3)
    known = known_of(2, [(0, 2, 1), (0, 3, 1), (1, 3, 0)])
    cases = reported_cases(known, traces, window_days=2)
    expected = np.zeros((3, 4))
    expected[0, 1] = expected[2, 2] = 0.5
    np.testing.assert_array_equal(cases.by_region_and_day, expected)


def test_all_cases_are_marked_and_count_the_infectious():
    city = mixing_city()
    rule = OutbreakSettings(seed_count=4)
    outbreak = simulate(city, FAST, rule, np.random.default_rng(0))
    cases = all_cases(outbreak, city)
    assert cases.source == "all"
    assert cases.label == "ALL CASES, hidden people included"
    slots = cases.by_region_and_day * city.clock.slots_per_day
    np.testing.assert_allclose(slots, outbreak.infectious_by_region_and_day(city))
    reported = reported_cases(known_of(city.people, [(0, 0, 1)]), city)
    assert reported.label == "reported cases, tested people only"


def test_what_does_not_fit_is_refused():
    city = mixing_city()
    with pytest.raises(DataError, match="tests of 3 people, traces of 40"):
        reported_cases(known_of(3, [(0, 0, 1)]), city)
    with pytest.raises(DataError, match="a test in slot 24, the traces end with 23"):
        reported_cases(known_of(40, [(0, 24, 1)]), city)
    with pytest.raises(SettingsError, match="window_days=0"):
        reported_cases(known_of(40, [(0, 0, 1)]), city, window_days=0)
    with pytest.raises(SettingsError, match="source='some'"):
        Cases(np.zeros((2, 2)), "some")
    with pytest.raises(DataError, match="0 or more"):
        Cases(-np.ones((2, 2)), "all")
    assert reported_cases(known_of(40, []), city).by_region_and_day.sum() == 0
