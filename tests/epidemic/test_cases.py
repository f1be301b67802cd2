import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.epidemic.cases import CaseSettings, all_cases, reported_cases
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError
from tests.epidemic.worlds import FAST, known_of, mixing_city, traces_of
from tests.oracles.cities import cities

CASES = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def cities_with_tests(draw):
    traces = draw(cities())
    test = st.tuples(
        st.integers(0, traces.people - 1),
        st.integers(0, traces.slots - 1),
        st.booleans(),
    )
    return traces, draw(st.lists(test, max_size=10)), draw(st.integers(1, 5))


def end_of(tests, person):
    """Slot of the first positive test, else of the last one; and if positive."""
    slots = [(slot, result) for who, slot, result in tests if who == person]
    positive = [slot for slot, result in slots if result]
    return (min(positive), True) if positive else (max(s for s, _ in slots), False)


def cases_by_loop(traces, tests, requested):
    """Cases, tested visits (both as slots or as people) and how many had no place."""
    clock, shape = traces.clock, (len(traces.regions), traces.clock.days)
    cases, visits, unplaced = np.zeros(shape), np.zeros(shape), 0
    for person in {who for who, _, _ in tests}:
        slot, positive = end_of(tests, person)
        day = clock.day_of_slot(slot)
        begin = max(0, day - requested.window_days + 1) * clock.slots_per_day
        seen = [s for s in range(begin, slot + 1) if traces.by_slot[s, person] >= 0]
        unplaced += positive and not seen
        weight = np.exp(requested.growth * np.array(seen) / clock.slots_per_day)
        for s, part in zip(seen, weight / weight.sum(), strict=True):
            cell = traces.by_slot[s, person], clock.day_of_slot(s)
            visits[cell] += 1
            if positive:
                cases[cell] += part * (len(seen) if requested.measure == "share" else 1)
    return cases, visits, unplaced


GROWTHS = st.sampled_from([0.0, 0.1, 3.0])


@CASES
@given(cities_with_tests(), GROWTHS)
def test_counts_equal_the_loop_and_add_up(drawn, growth):
    traces, tests, window_days = drawn
    requested = CaseSettings(measure="count", window_days=window_days, growth=growth)
    expected, _, unplaced = cases_by_loop(traces, tests, requested)
    cases = reported_cases(known_of(traces.people, tests), traces, requested)
    np.testing.assert_allclose(cases.by_region_and_day, expected, atol=1e-12)
    assert cases.unplaced == unplaced
    assert cases.measure == "count"
    total = cases.by_region_and_day.sum() + cases.unplaced
    assert total == pytest.approx(len({who for who, _, result in tests if result}))


@CASES
@given(cities_with_tests(), GROWTHS, st.sampled_from([0.01, 0.5, 4.0]))
def test_shares_equal_the_loop(drawn, growth, prior_people):
    traces, tests, window_days = drawn
    requested = CaseSettings(
        window_days=window_days, growth=growth, prior_people=prior_people
    )
    cases, visits, unplaced = cases_by_loop(traces, tests, requested)
    expected, prior = np.zeros_like(cases), prior_people * traces.clock.slots_per_day
    days = [day for day in range(traces.clock.days) if visits[:, day].any()]
    for day in range(traces.clock.days if days else 0):
        shares = [cases[:, each].sum() / visits[:, each].sum() for each in days]
        city = np.interp(day, days, shares)
        expected[:, day] = (cases[:, day] + prior * city) / (visits[:, day] + prior)
    made = reported_cases(known_of(traces.people, tests), traces, requested)
    np.testing.assert_allclose(made.by_region_and_day, 100 * expected, atol=1e-9)
    assert made.measure == "share"
    assert made.unplaced == unplaced
    if growth == 0:
        assert made.by_region_and_day.max() <= 100 + 1e-9


@pytest.mark.parametrize(("measure", "each"), [("count", 0.5), ("presence", 1.0)])
def test_a_worked_example(measure, each):
    traces = traces_of([[0, 1], [0, 1], [2, -1], [1, -1]], regions=3)
    known = known_of(2, [(0, 2, 1), (0, 3, 1), (1, 3, 0)])
    cases = reported_cases(known, traces, CaseSettings(measure=measure, window_days=2))
    expected = np.zeros((3, 4))
    expected[0, 1] = expected[2, 2] = each
    np.testing.assert_array_equal(cases.by_region_and_day, expected)
    assert (cases.measure, cases.source) == (measure, "reported")


def test_all_cases_are_marked_and_count_the_infectious():
    city, rule = mixing_city(), OutbreakSettings(seed_count=4)
    outbreak = simulate(city, FAST, rule, np.random.default_rng(0))
    slots = outbreak.infectious_by_region_and_day(city)
    visits = np.zeros(slots.shape)
    for slot, row in enumerate(city.by_slot):
        for region in row[row >= 0]:
            visits[region, slot // city.clock.slots_per_day] += 1
    for measure, expected in (
        ("presence", slots),
        ("count", slots / city.clock.slots_per_day),
        ("share", 100 * slots / np.maximum(visits, 1)),
    ):
        cases = all_cases(outbreak, city, measure)
        assert (cases.source, cases.measure) == ("all", measure)
        np.testing.assert_allclose(cases.by_region_and_day, expected)


def test_what_does_not_fit_is_refused():
    city = mixing_city()
    with pytest.raises(DataError, match="of 3 people, but the traces have 40"):
        reported_cases(known_of(3, [(0, 0, 1)]), city)
    with pytest.raises(DataError, match="a test is in slot 24"):
        reported_cases(known_of(40, [(0, 24, 0)]), city)
    assert reported_cases(known_of(40, []), city).by_region_and_day.sum() == 0
