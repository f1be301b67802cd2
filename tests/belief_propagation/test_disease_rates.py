"""Estimation of rates: known minima, the prior, two minima, and a known outbreak."""

import math

import numpy as np
import pytest

from epifalcon.belief_propagation.disease_rates import (
    Disease,
    estimate_rates,
    evaluations,
)
from epifalcon.epidemic.pathogen import SARS_COV_2, UNKNOWN_PATHOGEN

PRIOR = Disease(SARS_COV_2, 0.02)


def logs(disease, prior=PRIOR):
    """Return the log ratios of R0, seeds, latent and infectious time to ``prior``."""
    new, old = disease.pathogen, prior.pathogen
    ratios = (
        new.r0 / old.r0,
        disease.seed_share / prior.seed_share,
        old.alpha / new.alpha,
        old.mu / new.mu,
    )
    return np.log(ratios)


def bowl(at, curvature, prior=PRIOR, calls=None):
    def loss(disease):
        if calls is not None:
            calls.append(disease)
        away = logs(disease, prior)[: len(at)] - at
        return 100 + float(away @ curvature @ away) / 2

    return loss


def test_a_clear_minimum_is_found_with_its_interval():
    at, curvature, calls = np.log([0.6, 0.3]), np.array([[90.0, 20.0], [20, 30]]), []
    found = estimate_rates(bowl(at, curvature, calls=calls), PRIOR)
    assert len(calls) <= evaluations(SARS_COV_2)
    r0, low, high = found.intervals["r0"]
    assert r0 == pytest.approx(0.6 * SARS_COV_2.r0, rel=0.12)
    variance = np.linalg.inv(curvature + np.diag([1, 1.5**-2]))[0, 0]
    deviation = math.hypot(variance**0.5, 0.2)
    assert math.log(high / low) == pytest.approx(2 * 1.645 * deviation, rel=0.1)
    assert list(found.intervals) == ["r0", "seed_share"]
    assert found.disease.pathogen.alpha == SARS_COV_2.alpha
    assert found.disease.pathogen.mu == pytest.approx(SARS_COV_2.mu)


def test_without_information_the_prior_remains():
    found = estimate_rates(lambda _: 0.0, PRIOR)
    assert found.disease.pathogen.r0 == pytest.approx(SARS_COV_2.r0)
    assert found.disease.seed_share == pytest.approx(0.02)
    r0, low, high = found.intervals["r0"]
    assert low < r0 / 3 < 3 * r0 < high


def test_the_lower_of_two_minima_is_found():
    """The other one is nearer to the published rates."""

    def loss(disease):
        r0, seeds, *_ = logs(disease)
        passed = 20 + 30 * (r0**2 + seeds**2)
        growing = 30 * ((r0 - math.log(0.5)) ** 2 + (seeds - math.log(0.2)) ** 2)
        return min(passed, growing)

    found = estimate_rates(loss, PRIOR)
    assert found.disease.pathogen.r0 == pytest.approx(SARS_COV_2.r0 / 2, rel=0.15)


def test_all_rates_of_an_unknown_pathogen_are_estimated():
    prior = Disease(UNKNOWN_PATHOGEN, 0.02)
    at = np.log([0.7, 0.5, 1.4, 0.7])
    found = estimate_rates(bowl(at, 60 * np.eye(4), prior), prior)
    assert list(found.intervals) == [
        *("r0", "seed_share", "latent_days", "infectious_days")
    ]
    np.testing.assert_allclose(logs(found.disease, prior), at, 0, 0.25)
    pathogen = found.disease.pathogen
    assert pathogen.beta == pytest.approx(found.intervals["r0"][0] * pathogen.mu)
