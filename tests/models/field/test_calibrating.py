import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.models.field.calibrating import (
    AS_IT_IS,
    Bend,
    choose_bend,
    fit_bend,
    odds_of,
    result_chance,
    still,
    wins,
)

RIGHT = TestErrors()
WRONG = TestErrors(false_positive=0.05, false_negative=0.2)


def people(count, slope, offset, errors=RIGHT, seed=0):
    """Risks, and results of people whose true odds are bent from them."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1.2, 0.8, count)
    truth = expit(slope * (odds + 1.2) - 1.2 + offset)
    return expit(odds), rng.random(count) < result_chance(truth, errors)


@pytest.mark.parametrize("errors", [RIGHT, WRONG])
def test_what_was_bent_is_found_whether_tests_are_right_or_not(errors):
    found = fit_bend(*people(40_000, 1.4, -0.5, errors), errors)
    assert found.slope == pytest.approx(1.4, abs=0.08)
    assert found.offset == pytest.approx(-0.5, abs=0.05)


def test_the_fit_is_the_highest_posterior():
    risk, positive = people(200, 0.6, 0.8, WRONG, seed=3)
    found = fit_bend(risk, positive, WRONG)

    def lost(point):
        slope, offset = point
        odds = odds_of(risk)
        bent = expit(slope * (odds - odds.mean()) + odds.mean() + offset)
        chance = result_chance(bent, WRONG)
        told = np.log(np.where(positive, chance, 1 - chance)).sum()
        return -told + ((slope - 1) / 0.2) ** 2 / 2 + (offset / 0.5) ** 2 / 2

    best = minimize(lost, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7})
    np.testing.assert_allclose([found.slope, found.offset], best.x, atol=1e-4)


def test_risks_that_mean_what_they_say_are_left_alone_and_others_are_not():
    left = [
        choose_bend(*people(500, 1, 0, seed=k), RIGHT) == AS_IT_IS for k in range(9)
    ]
    assert sum(left) >= 7
    assert choose_bend(*people(500, 1, 0.7), RIGHT) != AS_IT_IS


def test_few_people_bend_nothing():
    risk, positive = people(149, 1, 3)
    assert fit_bend(risk[:19], positive[:19], RIGHT) == AS_IT_IS
    assert choose_bend(risk, positive, RIGHT) == AS_IT_IS
    assert not wins(np.ones(149))
    assert wins(np.ones(150))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=20, max_size=60),
    st.sampled_from([RIGHT, WRONG]),
)
def test_whatever_was_found_is_a_risk_and_the_order_stays(pairs, errors):
    risk = np.array([one for one, _ in pairs])
    positive = np.array([one for _, one in pairs])
    bend = fit_bend(risk, positive, errors)
    rising = bend(np.sort(risk))
    assert ((rising >= 0) & (rising <= 1)).all()
    assert (np.diff(rising) >= 0).all()


def test_a_mean_is_met_and_one_out_of_reach_is_not_run_after():
    risk, _ = people(300, 1, 0)
    bend = Bend(1.3, -0.2, -1.0)
    assert bend.with_mean(risk, 0.4)(risk).mean() == pytest.approx(0.4)
    assert bend.with_mean(risk, 1.0) == bend
    assert bend.with_mean(np.empty(0), 0.4) == bend


def test_who_is_infected_now_is_told_as_those_who_ever_were():
    now, risk = np.array([0.0, 0.1, 0.3, 0.0]), np.array([0.2, 0.2, 0.3, 0.0])
    told = np.array([0.4, 0.1, 0.9, 0.2])
    np.testing.assert_allclose(still(now, risk, told), [0.0, 0.05, 0.9, 0.0])
