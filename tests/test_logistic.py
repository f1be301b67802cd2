import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from epifalcon.logistic import fit_logistic, log_losses


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.2, 10.0, math.inf]),
    st.sampled_from([0.5, math.inf]),
)
def test_no_other_curve_has_a_higher_posterior(seed, slope_mean, slope_sd, offset_sd):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(120)
    y = rng.random(120) < expit(0.9 * x - 0.4)
    prior = {"slope_mean": slope_mean, "slope_sd": slope_sd, "offset_sd": offset_sd}
    found = fit_logistic(x, y, **prior)

    def minus_log_posterior(at):
        chance = expit(at[0] * x + at[1])
        fit = -(y * np.log(chance) + (1 - y) * np.log1p(-chance)).sum()
        away = ((at[0] - slope_mean) / slope_sd) ** 2 + (at[1] / offset_sd) ** 2
        return fit + away / 2

    theirs = minimize(
        minus_log_posterior,
        [found.slope + 0.3, found.offset - 0.2],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
    )
    np.testing.assert_allclose([found.slope, found.offset], theirs.x, atol=1e-5)


def test_separable_people_have_a_finite_curve_by_a_prior_and_a_limit_holds():
    x = np.array([-2.0, -1.0, 1.0, 2.0])
    assert 1 < fit_logistic(x, x > 0, slope_sd=10.0).slope < 40
    assert fit_logistic(x, x < 0, slope_sd=10.0, least_slope=0.1).slope == 0.1


def test_log_losses_are_clipped():
    found = log_losses([0.25, 0.25, 0.0], [True, False, True])
    assert found == pytest.approx([-math.log(0.25), -math.log(0.75), 7 * math.log(10)])
