"""Contact tracing and daily exposure against loops over the traces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from epifalcon.errors import DataError
from epifalcon.methods.contact_tracing import (
    CHANNELS,
    Dct,
    DurationDct,
    SoftDct,
    SoftDctRatio,
    daily_exposure,
    encounters,
    rising_scores,
)
from tests.methods.tiny import city_of, results_of
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import (
    contacts_by_loop,
    daily_exposure_by_loop,
    encounters_by_loop,
)
from tests.studies import town

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def fitted(traces, known, **hyperparameters):
    return Dct(**hyperparameters).fit(traces, known)


@pytest.mark.parametrize("days", [None, 1, 3, 9])
def test_contacts_are_who_met_a_known_case_in_the_window(days):
    traces, known = town.traces(), town.known()
    days_seen = range(traces.clock.days)[-(days or 99) :]
    met = sum(contacts_by_loop(traces, day) for day in days_seen)
    expected = met @ (known.status == 1) > 0
    risk = fitted(traces, known, window_days=days).predict_proba()
    assert len(set(risk[expected])) == 1
    assert len(set(risk[~expected])) <= 1
    if (~expected).any():
        assert risk[expected].min() >= risk[~expected].max()


@pytest.mark.parametrize(
    ("by_slot", "results", "expected"),
    [
        # 0 positive meets 1 to 4; 5 to 9 are by themselves.
        (
            [0] * 5 + [1, 2, 3, 4, 5],
            (1, 1, 1, 0, -1, 0, 0, 0, 0, -1),
            [3.5 / 5] * 5 + [0.5 / 5] * 5,
        ),
        # A case alone is no contact of itself.
        ([0, 0, 0, 1, 2, 3], (1, 1, 0, 1, 0, 0), [2.5 / 4] * 3 + [1.5 / 4] * 3),
        # Who met the case is negative, who met nobody positive: no alarm.
        ([0, 0, 0, 1, 2], (1, 0, 0, 1, 1), [3.5 / 6] * 5),
        # Without positives everybody has a small risk.
        ([0, 0, 0], (0, 0, 0), [0.5 / 4] * 3),
    ],
)
def test_risks_are_shares_of_tested_people(by_slot, results, expected):
    risk = fitted(city_of([by_slot]), results_of(*results)).predict_proba()
    np.testing.assert_allclose(risk, expected)


def test_without_tests_it_refuses():
    with pytest.raises(DataError, match="nobody was tested"):
        fitted(town.traces(), results_of(*[-1] * 80))


def statuses(people, seed):
    return np.random.default_rng(seed).choice([-1, 0, 1], people).astype(np.int8)


@CASES
@given(cities(), st.integers(0, 2**32), st.integers(0, 5))
def test_the_share_is_what_loops_over_the_traces_find(traces, seed, first):
    status = statuses(traces.people, seed)
    found = encounters(traces, status, first)
    slots, total, share = encounters_by_loop(traces, status.tolist(), first)
    assert found.slots.tolist() == slots
    assert found.total.tolist() == total
    np.testing.assert_allclose(found.share, share, rtol=1e-14)


@CASES
@given(cities(), st.integers(0, 2**32), st.integers(0, 11))
def test_a_persons_own_result_moves_no_bit_of_its_exposure(traces, seed, person):
    status, person = statuses(traces.people, seed), person % traces.people
    found = set()
    for own in (-1, 0, 1):
        status[person] = own
        share = encounters(traces, status).share[person]
        found.add((share.tobytes(), daily_exposure(traces, status)[person].tobytes()))
    assert len(found) == 1


def rising(score, *results):
    return rising_scores(np.asarray(score, float), results_of(*results)).risk


def test_risk_is_a_logistic_curve_over_the_score():
    rng = np.random.default_rng(1)
    score = rng.exponential(size=400)
    infected = rng.random(400) < 0.1 + 0.2 * score
    results = np.where(rng.random(400) < 0.5, infected, -1)
    tested = results >= 0
    scaled = ((score - score[tested].mean()) / score[tested].std())[:, None]
    theirs = LogisticRegression(C=100, tol=1e-10, solver="newton-cholesky")
    theirs.fit(scaled[tested], results[tested])
    found = rising(score, *results)
    np.testing.assert_allclose(found, theirs.predict_proba(scaled)[:, 1], atol=1e-6)
    # So the mean risk of the tested is their share of positive results.
    assert found[tested].mean() == pytest.approx(results[tested].mean(), abs=1e-9)


@pytest.mark.parametrize(
    ("score", "results", "expected"),
    [([1, 0, 1, 0], (0, 1, 0, 1), 1 / 2), ([2, 2, 2, 2], (1, 0, 0, -1), 1 / 3)],
    ids=["falling", "equal"],
)
def test_without_a_rising_risk_everybody_gets_the_share(score, results, expected):
    np.testing.assert_allclose(rising(score, *results), expected)


def test_scores_that_separate_results_give_probabilities():
    risk = rising([1] * 6 + [0] * 6, *[1] * 6 + [0] * 6)
    assert 0.9 < risk[0] < 1
    assert 0 < risk[6] < 0.1
    # The first step of a plain Newton's method leads far uphill here.
    risk = rising([1, 1] + [0] * 100, *[1] * 5 + [0] * 97)
    np.testing.assert_allclose(risk[2:], 0.03, atol=0.001)
    assert (risk[:2] > 0.99).all()


def test_graded_methods_rank_by_their_figure():
    traces, known = town.traces(), town.known()
    figures = encounters_by_loop(traces, known.status.tolist(), 0)
    for cls, figure in zip((DurationDct, SoftDct, SoftDctRatio), figures, strict=True):
        scores = cls().fit(traces, known).scores
        order = np.argsort(figure, kind="stable")
        step = np.diff(np.array(figure)[order]) > 1e-12
        assert (np.diff(scores.risk[order])[step] > 0).all()
        assert np.allclose(np.diff(scores.risk[order])[~step], 0)
        assert scores.masked.tolist() == np.flatnonzero(known.tested).tolist()
        np.testing.assert_array_equal(scores.masked_risk, scores.risk[scores.masked])


@CASES
@given(cities(), st.integers(0, 2**32))
def test_daily_exposure_is_what_loops_over_the_traces_find(traces, seed):
    status = statuses(traces.people, seed)
    found = daily_exposure(traces, status)
    assert found.shape == (traces.people, traces.clock.days, CHANNELS)
    assert found.dtype == np.float32
    expected = daily_exposure_by_loop(traces, status.tolist())
    np.testing.assert_allclose(found, expected, rtol=2e-7)
