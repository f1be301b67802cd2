import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from epifalcon.errors import DataError
from epifalcon.evaluation.calibration import LEAST, fit_isotonic, fit_platt, why_not

CASES = settings(max_examples=50, deadline=None, derandomize=True)


def town(seed, people=400, slope=2.5, offset=-0.8):
    """Risks that are too sure of themselves by ``slope``, and who is infected."""
    rng = np.random.default_rng(seed)
    true = rng.beta(1.2, 3.5, people)
    risk = expit(slope * logit(true) + offset)
    return risk, rng.random(people) < true


@st.composite
def masked(draw):
    seed = draw(st.integers(0, 10**6))
    people = draw(st.integers(80, 300))
    risk, infected = town(seed, people, draw(st.floats(0.2, 5)), draw(st.floats(-2, 2)))
    if draw(st.booleans()):
        risk = risk.round(1)
    infected[:LEAST], infected[LEAST : 2 * LEAST] = True, False
    return risk, infected


def targets(infected):
    positives = infected.sum()
    return (positives + 1) / (positives + 2), 1 / ((~infected).sum() + 2)


@CASES
@given(masked())
def test_platt_is_the_logistic_regression_of_sklearn(case):
    risk, infected = case
    # A soft target is a person who counts as infected in part and healthy in part.
    target = np.where(infected, *targets(infected))
    odds = logit(np.clip(risk, 1e-7, 1 - 1e-7))[:, None]
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        np.concatenate([odds, odds]),
        np.repeat([1, 0], len(risk)),
        np.concatenate([target, 1 - target]),
    )
    offset, above = logit(fit_platt(risk, infected)([0.5, expit(1)]))
    if theirs.coef_[0, 0] > 1e-6:
        slope = pytest.approx(theirs.coef_[0, 0], rel=1e-3, abs=1e-4)
        assert above - offset == slope
        assert offset == pytest.approx(theirs.intercept_[0], rel=1e-3, abs=1e-3)
    else:
        assert above - offset == pytest.approx(0, abs=1e-3)


@CASES
@given(masked())
def test_isotonic_is_that_of_sklearn_between_the_targets(case):
    risk, infected = case
    theirs = IsotonicRegression(out_of_bounds="clip").fit(risk, infected)
    risks, (high, low) = np.linspace(0, 1, 101), targets(infected)
    expected = low + (high - low) * theirs.predict(risks)
    found = fit_isotonic(risk, infected)(risks)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@CASES
@given(masked())
def test_no_map_turns_the_order_round_or_reaches_0_and_1(case):
    asked = np.linspace(0, 1, 1001)
    for fit in (fit_platt, fit_isotonic):
        found = fit(*case)(asked)
        # Between two points a straight line may round down by a last bit.
        assert (np.diff(found) >= -1e-12).all()
        assert ((found > 0) & (found < 1)).all()


@pytest.mark.parametrize("fit", [fit_platt, fit_isotonic])
def test_a_ranking_turned_round_becomes_one_risk_for_all(fit):
    risk, infected = town(6)
    found = fit(1 - risk, infected)(risk)
    if fit is fit_platt:
        assert np.ptp(found) == pytest.approx(0)
    assert np.ptp(found) < 0.15
    assert found.mean() == pytest.approx(infected.mean(), abs=0.05)


@pytest.mark.parametrize("fit", [fit_platt, fit_isotonic])
@pytest.mark.parametrize("risk", [np.zeros(60), np.full(60, 0.3), np.ones(60)])
def test_equal_risks_become_the_infected_share(fit, risk):
    infected = np.arange(60) < 15
    found = fit(risk, infected)(np.array([0.0, 0.3, 1.0]))
    np.testing.assert_allclose(found, 15 / 60, atol=0.02)


def test_a_risk_that_parts_all_infected_from_the_others_is_no_end():
    risk = np.repeat([0.0, 1.0], 30)
    found = fit_platt(risk, risk > 0)
    assert found(np.array([0.0, 1.0])) == pytest.approx([1 / 32, 31 / 32], abs=1e-6)


@pytest.mark.parametrize(
    ("infected", "reason"),
    [
        ([True] * 40, "0 healthy among the masked"),
        ([True] * 9 + [False] * 40, "9 infected among the masked people, 10 are"),
        ([], "0 infected"),
    ],
)
def test_too_few_people_are_reported(infected, reason):
    risk = np.full(len(infected), 0.2)
    assert reason in why_not(risk, infected)
    for fit in (fit_platt, fit_isotonic):
        with pytest.raises(DataError, match=reason):
            fit(risk, infected)


def test_what_is_no_probability_is_refused():
    infected = np.arange(60) < 30
    for wrong in (np.full(60, 1.2), np.full(60, np.nan)):
        with pytest.raises(DataError, match="probabilities"):
            fit_platt(wrong, infected)
    with pytest.raises(DataError):
        fit_platt(np.full(59, 0.5), infected)
    assert why_not(np.full(60, np.nan), infected) is not None
    assert why_not(np.full(60, 0.5), infected) is None
