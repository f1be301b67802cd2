"""Learners on daily exposure: logistic regression and boosting."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from epifalcon.epidemic.test_results import TestResults
from epifalcon.methods.contact_tracing import daily_exposure
from epifalcon.methods.exposure_models import ExposureBoosting, ExposureLogistic
from tests.methods.tiny import city_of
from tests.studies import town

BOTH = [
    ExposureLogistic(folds=3, strengths=(0.01,)),
    ExposureBoosting(folds=3, trees=8, least_people=3),
]


def fitted(method, known=None):
    return method.fit(town.traces(), town.known() if known is None else known).scores


def test_risk_is_the_regression_on_roots_of_daily_exposure():
    traces, known = town.traces(), town.known()
    x = daily_exposure(traces, known.status).astype(float)
    x[:, :, :2] **= 0.5
    x = x.reshape(len(x), -1)
    learnt = x[known.tested]
    spread = np.where(learnt.std(0) > 0, learnt.std(0), 1)
    scaled = (x - learnt.mean(0)) / spread
    theirs = LogisticRegression(C=0.03, solver="newton-cg", tol=1e-10)
    theirs.fit(scaled[known.tested], known.status[known.tested])
    wanted = theirs.predict_proba(scaled)[:, 1]
    found = fitted(ExposureLogistic(strengths=(0.03,))).risk
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_strength_with_the_least_out_of_fold_loss_is_chosen():
    strengths = (0.0001, 0.01, 100.0)
    models = [ExposureLogistic(strengths=(one,), folds=3) for one in strengths]
    each = [fitted(model).diagnostics for model in models]
    both = fitted(ExposureLogistic(strengths=strengths, folds=3)).diagnostics
    assert both == pytest.approx(min(each, key=lambda one: one["masked_log_loss"]))
    assert len({one["masked_log_loss"] for one in each}) == 3


@pytest.mark.parametrize("method", BOTH)
def test_no_own_result_moves_a_masked_risk(method, monkeypatch):
    # The same number of trees, whatever the out-of-fold loss.
    monkeypatch.setattr(
        "epifalcon.methods.exposure_models.log_losses",
        lambda risk, *_, **__: np.zeros_like(risk),
    )
    known = town.known()
    plain = fitted(method).masked_risk
    for place in range(0, len(plain), 9):
        person = np.flatnonzero(known.tested)[place]
        other = fitted(method, town.flipped(known, [person])).masked_risk
        assert plain[place] == other[place]
    if isinstance(method, ExposureLogistic):
        assert not np.array_equal(plain, other)


def two_kinds_of_places(people=480):
    """A city in which half of the places burn; who lives there, and tests."""
    rng = np.random.default_rng(0)
    region = np.arange(people) % 24
    by_slot = np.where(rng.random((6, people)) < 0.2, rng.integers(24), region)
    burning = region < 12
    infected = rng.random(people) < np.where(burning, 0.8, 0.1)
    person = np.flatnonzero(rng.random(people) < 0.6).astype(np.int32)
    slot = np.full(len(person), 5, np.int32)
    known = TestResults(people, person, infected[person], slot)
    return city_of(by_slot, days=3), known, burning


def test_boosting_learns_what_differs_and_stops_early():
    traces, known, burning = two_kinds_of_places()
    method = ExposureBoosting(trees=40, least_people=5, folds=4)
    found = method.fit(traces, known).scores
    assert 0 < found.steps == found.diagnostics["trees"] <= 40
    assert found.risk[burning].mean() > found.risk[~burning].mean() + 0.3
    masked = burning[found.masked]
    assert found.masked_risk[masked].mean() > found.masked_risk[~masked].mean() + 0.2
    # On shuffled results next to nothing grows.
    shuffled = np.random.default_rng(1).permutation(known.positive)
    noise = TestResults(known.people, known.person, shuffled, known.slot)
    found = method.fit(traces, noise).scores
    assert found.diagnostics["trees"] <= 5
    assert np.ptp(found.risk) < 0.2


def test_risk_never_falls_with_known_positives_met():
    traces, known, _ = two_kinds_of_places()
    x = ExposureBoosting().inputs(daily_exposure(traces, known.status))
    rows = np.tile(x[:1], (50, 1))
    # Known positives of the three days, and the summaries that rise with them.
    rising = [0, 4, 8, 12, 16, 17, 18, 19, 20]
    rows[:, rising] = np.linspace(0, x.max(0)[rising], 50)
    method, tested = ExposureBoosting(least_people=2, trees=30), known.tested
    *_, risk = method.risks(x[tested], known.status[tested] == 1, rows)
    assert np.ptp(risk) > 0.1
    assert (np.diff(risk) >= 0).all()


def test_summaries_of_a_case_worked_by_hand():
    # Two days, observed for the whole of the first and half of the second.
    days = np.array([[[0.2, 0.6, 1.0, 1.0], [0.5, 0.0, 4.0, 0.5]]], np.float32)
    found = ExposureBoosting().inputs(days)[0]
    np.testing.assert_allclose(found[:8], days.ravel())
    positive, negative = (0.2 + 0.25) / 1.5, 0.6 / 1.5
    expected = [
        positive,
        negative,
        (1 + 2) / 1.5,
        0.75,
        positive / (positive + negative),
        0.5,
        0.2 / 1.5,
        0.25 / 1.5,
        (0.25 + 0.5) / 1.5,
    ]
    np.testing.assert_allclose(found[8:], expected, rtol=1e-6)
    assert not ExposureBoosting().inputs(np.zeros((1, 3, 4), np.float32)).any()
