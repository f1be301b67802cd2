"""Bounds from guesses: never too high, close with many canaries, and monotone."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.audit.bounds import (
    Guesses,
    Rates,
    clopper_pearson,
    guess_extremes,
    one_run_epsilon,
    one_run_p_value,
    rates_epsilon,
    rates_mu,
    shared_confidence,
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
    worst = max(
        (
            sum(mass(k) for k in range(right - i, right)) / i
            for i in range(1, right + 1)
        ),
        default=0.0,
    )
    return min(1.0, tail + 2 * canaries * delta * worst)


@st.composite
def all_guesses(draw):
    canaries = draw(st.integers(1, 60))
    made = draw(st.integers(0, canaries))
    return Guesses(canaries, made, draw(st.integers(0, made)))


@st.composite
def all_rates(draw):
    inside, outside = draw(st.integers(0, 60)), draw(st.integers(0, 60))
    called = draw(st.integers(0, inside)), draw(st.integers(0, outside))
    return Rates(inside, called[0], outside, called[1])


@CALM
@given(all_guesses(), st.floats(0, 5), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_p_value_is_that_of_the_theorem(guesses, epsilon, delta):
    expected = p_value_by_sums(
        guesses.canaries, guesses.made, guesses.correct, epsilon, delta
    )
    assert one_run_p_value(guesses, epsilon, delta) == pytest.approx(expected, abs=1e-9)


def test_the_value_that_the_authors_print():
    # Appendix D of the paper: 75 right of 100 guesses about 1,000 canaries.
    assert one_run_epsilon(Guesses(1000, 100, 75), 1e-4) == pytest.approx(
        0.673, abs=5e-4
    )


def test_all_right_shows_about_the_logarithm_of_the_guesses():
    for made in (100, 1000, 10_000):
        found = one_run_epsilon(Guesses(made, made, made), 0.0)
        assert found == pytest.approx(math.log(made / 3), abs=0.03)


@CALM
@given(all_guesses(), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_bound_is_the_last_epsilon_refuted(guesses, delta):
    found = one_run_epsilon(guesses, delta)
    if found > 0:
        assert one_run_p_value(guesses, found, delta) <= 0.05
    assert one_run_p_value(guesses, found + 1e-6, delta) >= 0.05


@CALM
@given(all_guesses())
def test_one_run_bounds_move_the_right_way(guesses):
    found = one_run_epsilon(guesses, 1e-6)
    assert one_run_epsilon(guesses, 1e-3) <= found
    assert one_run_epsilon(guesses, 1e-6, 0.99) <= found
    more = Guesses(guesses.canaries + 50, guesses.made, guesses.correct)
    assert one_run_epsilon(more, 1e-6) <= found
    if guesses.correct < guesses.made:
        better = Guesses(guesses.canaries, guesses.made, guesses.correct + 1)
        assert one_run_epsilon(better, 1e-6) >= found


@CALM
@given(all_rates())
def test_bounds_by_rates_move_the_right_way(rates):
    for bound in (rates_mu, lambda one, level=0.95: rates_epsilon(one, 1e-6, level)):
        found = bound(rates)
        assert found >= 0
        assert bound(rates, 0.99) <= found
        if rates.called_inside < rates.inside:
            better = Rates(
                rates.inside,
                rates.called_inside + 1,
                rates.outside,
                rates.called_outside,
            )
            # Epsilon also looks at the negatives, so only mu must rise at all times.
            assert rates_mu(better) >= rates_mu(rates)
    assert rates_epsilon(rates, 1e-2) <= rates_epsilon(rates, 1e-6)


@CALM
@given(all_rates())
def test_calling_in_out_and_out_in_changes_no_bound(rates):
    mirrored = Rates(
        rates.outside,
        rates.outside - rates.called_outside,
        rates.inside,
        rates.inside - rates.called_inside,
    )
    assert rates_mu(mirrored) == pytest.approx(rates_mu(rates), abs=1e-9)
    assert rates_epsilon(mirrored, 1e-6) == pytest.approx(
        rates_epsilon(rates, 1e-6), abs=1e-9
    )


@CALM
@given(st.integers(1, 200), st.data())
def test_limits_are_those_of_clopper_and_pearson(trials, data):
    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(0.9, method="exact")
    low, high = clopper_pearson(successes, trials, 0.05)
    assert low == pytest.approx(expected.low, abs=1e-9)
    assert high == pytest.approx(expected.high, abs=1e-9)


def test_both_rates_have_half_of_the_error():
    hits, alarms = (binomtest(k, 100).proportion_ci(0.95) for k in (90, 20))
    rates = Rates(100, 90, 100, 20)
    assert rates_mu(rates) == pytest.approx(ndtri(hits.low) - ndtri(alarms.high))
    expected = max(hits.low / alarms.high, (1 - alarms.high) / (1 - hits.low))
    assert rates_epsilon(rates, 0.0) == pytest.approx(math.log(expected))


def test_without_canaries_nothing_is_known():
    assert clopper_pearson(0, 0, 0.05) == (0.0, 1.0)
    assert rates_mu(Rates(0, 0, 0, 0)) == 0
    assert rates_epsilon(Rates(5, 5, 0, 0)) == 0
    assert one_run_epsilon(Guesses(0, 0, 0)) == 0


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5])
def test_no_bound_is_above_the_truth_of_a_gaussian_too_often(mu):
    rng, repeats, canaries = np.random.default_rng(7), 1500, 300
    included = rng.random((repeats, canaries)) < 0.5
    scores = mu * included + rng.standard_normal((repeats, canaries))
    true = epsilon_of(mu, DELTA)
    # Few outcomes differ: each is computed once.
    by_mu, by_rates, one_run = map(cache, (rates_mu, rates_epsilon, one_run_epsilon))
    wrong = np.zeros(3)
    for score, inside in zip(scores, included, strict=True):
        rates = Rates.of(score > mu / 2, inside)
        called, guessed = guess_extremes(score, 60)
        right = int(((called == inside) & guessed).sum())
        wrong += [
            by_mu(rates) > mu,
            by_rates(rates, DELTA) > true,
            one_run(Guesses(canaries, 60, right), DELTA) > true,
        ]
    # Three standard errors of a share of .05.
    assert (wrong / repeats <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)).all()


@pytest.mark.parametrize("mu", [0.4, 1.0, 2.0])
def test_the_bound_on_mu_is_close_with_many_canaries(mu):
    count = 1_000_000
    hits = round(count * ndtr(mu / 2))
    found = rates_mu(Rates(count, hits, count, count - hits))
    assert mu - 0.01 < found < mu
    # At a far threshold, the definition itself comes close with delta 0.
    loose = rates_epsilon(Rates(count, hits, count, count - hits), 0.0)
    assert 0 < loose < epsilon_of(mu, DELTA) + 1


def test_the_one_run_bound_is_close_for_randomised_response():
    epsilon, made = 1.3, 1_000_000
    right = round(made / (1 + math.exp(-epsilon)))
    found = one_run_epsilon(Guesses(made, made, right), 0.0)
    assert epsilon - 0.01 < found < epsilon


def test_the_highest_are_called_in_and_the_lowest_out():
    called, guessed = guess_extremes(np.array([0.1, 5.0, -3.0, 0.2, 4.0]), 4)
    assert called.tolist() == [False, True, False, False, True]
    assert guessed.tolist() == [True, True, True, False, True]
    assert not guess_extremes(np.zeros(3), 0)[1].any()


def test_the_best_of_many_tests_needs_its_share_of_the_error():
    assert shared_confidence(0.95, 1) == pytest.approx(0.95)
    assert shared_confidence(0.95, 10) == pytest.approx(0.995)


def test_what_cannot_be_is_refused():
    with pytest.raises(DataError, match="more guesses"):
        Guesses(10, 11, 3)
    with pytest.raises(DataError, match="more canaries called"):
        Rates(3, 4, 3, 0)
    with pytest.raises(DataError, match="calls about"):
        Rates.of(np.ones(3, bool), np.ones(4, bool))
    with pytest.raises(SettingsError, match="confidence"):
        rates_mu(Rates(3, 3, 3, 0), 1.0)
    with pytest.raises(SettingsError, match="delta"):
        one_run_epsilon(Guesses(10, 10, 5), 1.0)
    with pytest.raises(SettingsError, match="epsilon"):
        one_run_p_value(Guesses(10, 10, 5), -1.0, 0.0)
    with pytest.raises(DataError, match="guesses about"):
        guess_extremes(np.zeros(3), 4)
    with pytest.raises(DataError, match="successes"):
        clopper_pearson(4, 3, 0.05)
