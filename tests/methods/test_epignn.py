import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.epignn import Epignn, days_in_state
from epifalcon.mobility.clock import Clock
from tests.epidemic.worlds import known_of
from tests.methods import tiny

TEST = st.tuples(st.integers(0, 3), st.integers(0, 23), st.booleans())
TESTS = st.lists(TEST, max_size=12)


def day_by_day(tests, person, clock, recent_days):
    """The states of a person by day, one by one."""
    own = [
        (slot // clock.slots_per_day, positive)
        for who, slot, positive in tests
        if who == person
    ]
    counts = [0, 0]
    first = min((day for day, positive in own if positive), default=None)
    for day in range(max(clock.days - recent_days, 0), clock.days):
        negative_later = any(
            not positive and when >= day and (first is None or when < first)
            for when, positive in own
        )
        recovered = any(
            not positive and first is not None and first < when <= day
            for when, positive in own
        )
        counts[0] += negative_later
        counts[1] += first is not None and day >= first and not recovered
    return counts


@settings(deadline=None, derandomize=True)
@given(TESTS, st.integers(1, 9))
def test_days_in_each_state_are_counted_as_by_hand(tests, recent_days):
    clock = Clock(6.0, 6)
    found = days_in_state(known_of(4, tests), clock, recent_days)
    by_hand = [day_by_day(tests, person, clock, recent_days) for person in range(4)]
    assert found.tolist() == by_hand


def features(tests, days=6, **more):
    city = tiny.city(np.zeros((4 * days, 4)), Clock(6.0, days), 1)
    return Epignn(**more).features(city, known_of(4, tests))


def test_features_are_scaled_by_the_known_people():
    tests = [(0, 23, 0), (1, 11, 0), (2, 15, 1)]
    # Susceptible on 6, 3 and 0 days, infected on 0, 0 and 3; nobody knows the last.
    expected = [[1, 0], [0.5, 0], [0, 1], [0, 0]]
    assert features(tests)[:, 0].tolist() == expected


def test_equal_counts_of_all_known_people_differ_from_nothing_known():
    tests = [(0, 23, 0), (1, 23, 0)]
    assert features(tests)[:, 0].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    assert features([])[:, 0].tolist() == [[0, 0]] * 4
