import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from epifalcon.baselines.exposure import daily_exposure
from epifalcon.baselines.exposure_boosting import (
    ExposureBoosting,
    ExposureBoostingSettings,
)
from epifalcon.baselines.exposure_logistic import (
    ExposureLogistic,
    ExposureLogisticSettings,
)
from epifalcon.baselines.method import Scene
from epifalcon.baselines.ordering import own_order
from epifalcon.errors import DataError, SettingsError
from tests.baselines.small_cities import ODD, RESULTS, results_of
from tests.studies import town

BOTH = [
    (ExposureLogistic, ExposureLogisticSettings(folds=3)),
    (ExposureBoosting, ExposureBoostingSettings(folds=3, trees=8, least_people=3)),
]


def fitted(method, settings, known=None, traces=None, seed=0):
    traces = town.traces() if traces is None else traces
    known = town.known() if known is None else known
    return method(Scene(traces, seed=seed), settings).fit(known)


def test_risk_is_the_regression_on_roots_of_daily_exposure():
    settings = ExposureLogisticSettings(strengths=(0.03,))
    order = own_order(town.traces())
    traces, known = order.traces(town.traces()), order.known(town.known())
    x = daily_exposure(traces, known.status).astype(float)
    x[:, :, :2] **= 0.5
    x = x.reshape(len(x), -1)
    learnt = x[known.tested]
    spread = np.where(learnt.std(0) > 0, learnt.std(0), 1)
    scaled = (x - learnt.mean(0)) / spread
    theirs = LogisticRegression(C=0.03, solver="newton-cg", tol=1e-10)
    theirs.fit(scaled[known.tested], known.status[known.tested])
    wanted = theirs.predict_proba(scaled)[:, 1]
    found = fitted(ExposureLogistic, settings).predict_proba()
    np.testing.assert_allclose(found[order.people], wanted, atol=1e-5)


def test_the_strength_with_the_least_loss_of_people_left_out_is_chosen():
    losses = {}
    for strength in (0.0001, 0.01, 100.0):
        settings = ExposureLogisticSettings(strengths=(strength,), folds=3)
        losses[strength] = fitted(ExposureLogistic, settings).found.told
    settings = ExposureLogisticSettings(strengths=tuple(losses), folds=3)
    told = fitted(ExposureLogistic, settings).found.told
    best = min(losses.values(), key=lambda one: one["masked_log_loss"])
    assert told == best
    assert len({one["masked_log_loss"] for one in losses.values()}) == 3


@pytest.mark.parametrize(("method", "settings"), BOTH)
def test_all_tested_people_have_a_risk_out_of_fold(method, settings):
    found = fitted(method, settings).found
    assert sorted(found.masked) == np.flatnonzero(town.known().tested).tolist()
    assert ((found.masked_risk > 0) & (found.masked_risk < 1)).all()
    result = town.known().status[found.masked] == 1
    given = np.where(result, found.masked_risk, 1 - found.masked_risk)
    assert found.told["masked_log_loss"] == pytest.approx(-np.log(given).mean())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (ExposureLogistic, ExposureLogisticSettings(strengths=(0.01,), folds=3)),
        (ExposureBoosting, ExposureBoostingSettings(folds=3, trees=8, least_people=3)),
    ],
)
def test_nobodys_own_result_moves_a_bit_of_its_masked_risk(
    method, settings, monkeypatch
):
    # The same number of trees, whatever people left out say of it.
    monkeypatch.setattr(
        "epifalcon.baselines.exposure_boosting.log_loss", lambda *_: 0.0
    )
    known = town.known()
    plain = fitted(method, settings, known).found
    for person in np.flatnonzero(known.tested)[:6]:
        other = fitted(method, settings, town.flipped(known, [person])).found
        (place,) = np.flatnonzero(plain.masked == person)
        (there,) = np.flatnonzero(other.masked == person)
        assert plain.masked_risk[place] == other.masked_risk[there]
    if method is ExposureLogistic:
        assert not np.array_equal(plain.masked_risk, other.masked_risk)


@pytest.mark.parametrize(("method", "settings"), BOTH)
def test_the_same_seed_gives_the_same_bits(method, settings):
    one, other = (fitted(method, settings, seed=4).found for _ in range(2))
    assert one.risk.tobytes() == other.risk.tobytes()
    assert one.masked_risk.tobytes() == other.masked_risk.tobytes()


@pytest.mark.parametrize(("method", "settings"), BOTH)
@pytest.mark.parametrize("name", ODD)
def test_odd_cities_have_probabilities(name, method, settings):
    known = results_of(*RESULTS)
    risk = fitted(method, settings, known, ODD[name]).predict_proba()
    assert ((risk > 0) & (risk < 1)).all()


@pytest.mark.parametrize(("method", "settings"), BOTH)
def test_one_result_of_a_kind_is_enough_and_none_is_refused(method, settings):
    few = results_of(*[1] + [0] * 5 + [-1] * 74)
    risk = fitted(method, settings, few).predict_proba()
    assert ((risk > 0) & (risk < 1)).all()
    for result in (0, 1):
        with pytest.raises(DataError, match="nobody tested"):
            fitted(method, settings, results_of(*[result] * 80))


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (ExposureLogisticSettings, {"strengths": ()}),
        (ExposureLogisticSettings, {"strengths": (0.1, 0.0)}),
        (ExposureLogisticSettings, {"folds": 1}),
        (ExposureBoostingSettings, {"trees": 0}),
        (ExposureBoostingSettings, {"learning_rate": 2.0}),
        (ExposureBoostingSettings, {"leaves": 1}),
        (ExposureBoostingSettings, {"l2": -1.0}),
    ],
)
def test_impossible_settings_are_refused(make, wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        make(**wrong)
