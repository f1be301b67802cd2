import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.methods.exposure import CHANNELS, daily_exposure, encounters
from tests.methods.small_cities import city_of
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import daily_exposure_by_loop, encounters_by_loop

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def statuses(people, seed):
    return np.random.default_rng(seed).choice([-1, 0, 1], people).astype(np.int8)


@CASES
@given(cities(), st.integers(0, 2**32))
def test_daily_exposure_is_what_loops_over_the_traces_find(traces, seed):
    status = statuses(traces.people, seed)
    found = daily_exposure(traces, status)
    assert found.shape == (traces.people, traces.clock.days, CHANNELS)
    assert found.dtype == np.float32
    expected = daily_exposure_by_loop(traces, status.tolist())
    np.testing.assert_allclose(found, expected, rtol=2e-7)


def test_daily_exposure_of_a_case_worked_by_hand():
    # 0 untested, 1 positive, 2 and 3 negative; 0 is with 1 and 2, then unseen.
    traces = city_of([[0, 0, 0, 1], [-1, 1, 1, 1]])
    found = daily_exposure(traces, np.array([-1, 1, 0, 0], np.int8))[:, 0]
    np.testing.assert_allclose(found[0], [1 / 2, 1 / 2, np.log(3), 1 / 2], rtol=1e-6)
    # 3 is alone first and then with 1 and 2; of its 3 others 2 are tested.
    expected = [3 / 2 / 4, 3 / 2 / 4, np.log(3) / 2, 1]
    np.testing.assert_allclose(found[3], expected, rtol=1e-6)


@CASES
@given(cities(), st.integers(0, 2**32), st.integers(0, 11))
def test_a_persons_own_test_moves_no_bit_of_its_row(traces, seed, person):
    status, person = statuses(traces.people, seed), person % traces.people
    found = set()
    for own in (-1, 0, 1):
        status[person] = own
        found.add(daily_exposure(traces, status)[person].tobytes())
    assert len(found) == 1


def test_the_results_of_others_do_move_it():
    traces = city_of([[0, 0, 0]])
    rows = [
        daily_exposure(traces, np.array([-1, 0, own], np.int8))[0, 0]
        for own in (-1, 0, 1)
    ]
    np.testing.assert_allclose([row[0] for row in rows], [0, 0, 0.5])
    np.testing.assert_allclose([row[1] for row in rows], [1, 1, 0.5])


def test_fewer_tests_do_not_look_like_less_disease():
    traces = city_of([[0] * 41])
    status = np.array([-1] + [1, 0, 0, 0] * 10, np.int8)
    fewer = status.copy()
    fewer[21:] = -1
    for shown in (status, fewer):
        row = daily_exposure(traces, shown)[0, 0]
        np.testing.assert_allclose(row[:2], [1 / 4, 3 / 4], rtol=1e-6)


@CASES
@given(cities(), st.integers(0, 2**32), st.integers(0, 5))
def test_encounters_are_what_loops_over_the_traces_find(traces, seed, first):
    rng = np.random.default_rng(seed)
    last = rng.integers(-1, traces.slots, traces.people).astype(np.int32)
    found = encounters(traces, last, first)
    slots, total = encounters_by_loop(traces, last.tolist(), first)
    assert found.slots.tolist() == slots
    assert found.total.tolist() == total


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c: daily_exposure(c, np.zeros(2, np.int8)), r"expected \(3,\)"),
        (lambda c: daily_exposure(c, np.full(3, 2, np.int8)), "1, 0 or -1"),
        (lambda c: encounters(c, np.zeros(2, np.int32)), r"expected \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(call, told):
    with pytest.raises(DataError, match=told):
        call(city_of([[0, 0, 1]]))
