"""Bounds from guesses: never too high, close with many canaries, and monotone."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

from epifalcon.attacks.audit.bounds import (
    Guesses,
    guess_extremes,
    one_run_epsilon,
    one_run_p_value,
    rates_mu,
)
from epifalcon.privacy.accounting import epsilon_of

CALM = settings(deadline=None, derandomize=True, max_examples=40)
DELTA = 1e-5


def p_value_by_sums(canaries, made, right, epsilon, delta):
    """The theorem term by term, without any library."""
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))

    def mass(k):
        return math.comb(made, k) * chance**k * (1 - chance) ** (made - k)

    tail = sum(mass(k) for k in range(right, made + 1))
    worst, below = 0.0, 0.0
    for i in range(1, right + 1):
        below += mass(right - i)
        worst = max(worst, below / i)
    return min(1.0, tail + 2 * canaries * delta * worst)


@st.composite
def all_guesses(draw):
    canaries = draw(st.integers(1, 60))
    made = draw(st.integers(0, canaries))
    return Guesses(canaries, made, draw(st.integers(0, made)))


@CALM
@given(all_guesses(), st.floats(0, 5), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_p_value_is_that_of_the_theorem(guesses, epsilon, delta):
    counts = guesses.canaries, guesses.made, guesses.correct
    expected = p_value_by_sums(*counts, epsilon, delta)
    assert one_run_p_value(guesses, epsilon, delta) == pytest.approx(expected, abs=1e-9)


@CALM
@given(all_guesses(), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_bound_is_the_last_epsilon_refuted(guesses, delta):
    found = one_run_epsilon(guesses, delta)
    if found > 0:
        assert one_run_p_value(guesses, found, delta) <= 0.05
    assert one_run_p_value(guesses, found + 1e-6, delta) >= 0.05


def calls(inside, hits, outside, alarms):
    """So many canaries called "in", of those in and of those out."""
    included = np.arange(inside + outside) < inside
    called = np.concatenate([np.arange(inside) < hits, np.arange(outside) < alarms])
    return called, included


def test_both_rates_have_half_of_the_error():
    hits, alarms = (binomtest(k, 100).proportion_ci(0.95) for k in (90, 20))
    found = rates_mu(*calls(100, 90, 100, 20))
    assert found == pytest.approx(ndtri(hits.low) - ndtri(alarms.high))
    assert rates_mu(*calls(100, 90, 100, 20), 0.99) < found
    assert rates_mu(*calls(100, 20, 100, 90)) == 0
    for nothing in ((0, 0, 9, 3), (9, 9, 0, 0), (9, 0, 9, 0), (9, 9, 9, 9)):
        assert rates_mu(*calls(*nothing)) == 0


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5])
def test_no_bound_is_above_the_truth_of_a_gaussian_too_often(mu):
    rng, repeats, canaries = np.random.default_rng(7), 1500, 300
    included = rng.random((repeats, canaries)) < 0.5
    scores = mu * included + rng.standard_normal((repeats, canaries))
    true = epsilon_of(mu, DELTA)
    # Few outcomes differ: each is computed once.
    one_run = cache(one_run_epsilon)
    wrong = np.zeros(2)
    for score, inside in zip(scores, included, strict=True):
        wrong += [
            rates_mu(score > mu / 2, inside) > mu,
            one_run(guess_extremes(score, inside, 0.2), DELTA) > true,
        ]
    # Three standard errors of a share of .05.
    assert (wrong / repeats <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)).all()


@pytest.mark.parametrize("mu", [0.4, 1.0, 2.0])
def test_the_bound_on_mu_is_close_with_many_canaries(mu):
    count = 1_000_000
    hits = round(count * ndtr(mu / 2))
    found = rates_mu(*calls(count, hits, count, count - hits))
    assert mu - 0.01 < found < mu


def test_the_one_run_bound_is_close_for_randomised_response():
    epsilon, made = 1.3, 1_000_000
    right = round(made / (1 + math.exp(-epsilon)))
    found = one_run_epsilon(Guesses(made, made, right), 0.0)
    assert epsilon - 0.01 < found < epsilon


def test_the_highest_are_called_in_and_the_lowest_out():
    scores = np.array([0.1, 5.0, -3.0, 0.2, 4.0])
    right = np.array([False, True, False, True, True])
    assert guess_extremes(scores, right, 0.8) == Guesses(5, 4, 4)
    assert guess_extremes(scores, ~right, 0.8) == Guesses(5, 4, 0)
    assert guess_extremes(scores, right, 0.01) == Guesses(5, 1, 1)
