import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from epifalcon.logistic import fit_logistic, log_losses

PRIORS = [
    {},
    {"slope_sd": 10.0},
    {"slope_mean": 1.0, "slope_sd": 0.2, "offset_mean": -0.5, "offset_sd": 0.5},
]


def minus_log_posterior(at, x, y, prior, false_positive, false_negative):
    chance = expit(at[0] * x + at[1])
    chance = false_positive + (1 - false_positive - false_negative) * chance
    fit = -(y * np.log(chance) + (1 - y) * np.log1p(-chance)).sum()
    slope_sd, offset_sd = (prior.get(f"{one}_sd", math.inf) for one in PARTS)
    slope_mean, offset_mean = (prior.get(f"{one}_mean", 0.0) for one in PARTS)
    away = ((at[0] - slope_mean) / slope_sd) ** 2
    return fit + (away + ((at[1] - offset_mean) / offset_sd) ** 2) / 2


PARTS = ("slope", "offset")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from(PRIORS),
    st.sampled_from([(0.0, 0.0), (0.02, 0.2)]),
)
def test_no_other_curve_has_a_higher_posterior(seed, prior, errors):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(120)
    y = rng.random(120) < errors[0] + (1 - sum(errors)) * expit(0.9 * x - 0.4)
    found = fit_logistic(
        x, y, **prior, false_positive=errors[0], false_negative=errors[1]
    )
    at = np.array([found.slope, found.offset])
    theirs = minimize(
        minus_log_posterior,
        at + np.array([0.3, -0.2]),
        (x, y, prior, *errors),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
    )
    np.testing.assert_allclose(at, theirs.x, atol=1e-5)


def test_separable_people_have_a_finite_curve_by_a_prior_and_a_limit_holds():
    x = np.array([-2.0, -1.0, 1.0, 2.0])
    assert 1 < fit_logistic(x, x > 0, slope_sd=10.0).slope < 40
    assert fit_logistic(x, x < 0, slope_sd=10.0, least_slope=0.1).slope == 0.1


def test_the_covariance_is_that_of_repeated_fits():
    rng = np.random.default_rng(0)
    fits = []
    for _ in range(300):
        x = rng.standard_normal(500)
        fits.append(fit_logistic(x, rng.random(500) < expit(x - 1)))
    seen = np.std([[one.slope, one.offset] for one in fits], axis=0)
    told = np.mean([np.sqrt(np.diag(one.covariance)) for one in fits], axis=0)
    np.testing.assert_allclose(told, seen, rtol=0.12)


def test_log_losses_are_clipped():
    found = log_losses([0.25, 0.25, 0.0], [True, False, True])
    assert found == pytest.approx([-math.log(0.25), -math.log(0.75), 7 * math.log(10)])
