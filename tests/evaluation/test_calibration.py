import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.calibration import calibration_curve

from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.calibration import (
    brier,
    calibration_error,
    log_loss,
    mean_risk,
    reliability,
)
from epifalcon.evaluation.curves import Curve, curve
from tests.evaluation.rankings import rankings
from tests.oracles import metrics_loop

CASES = settings(max_examples=100, deadline=None, derandomize=True)


def test_a_case_by_hand():
    # Halves of [0, 1]: risks .1 .3 with none infected, .5 .9 with one.
    ranked = curve([0.1, 0.3, 0.5, 0.9], [0, 0, 0, 1])
    error = (abs(0.4 - 0) + abs(1.4 - 1)) / 4
    assert calibration_error(ranked, 2, "width") == pytest.approx(error)
    assert calibration_error(ranked, 2, "mass") == pytest.approx(error)
    # One bin: the whole, 1.8 against 1.
    assert calibration_error(ranked, 1, "mass") == pytest.approx(0.8 / 4)
    assert mean_risk(ranked) == pytest.approx(1.8 / 4)
    assert brier(ranked) == pytest.approx((0.01 + 0.09 + 0.25 + 0.01) / 4)


@CASES
@given(rankings(both=False), st.integers(1, 12))
def test_calibration_error_is_that_of_the_loop(case, bins):
    ranked = curve(case.scores, case.truth)
    by_width = metrics_loop.calibration_error(
        case.scores,
        case.truth,
        lambda person: metrics_loop.width_bin(case.scores[person], bins),
    )
    assert calibration_error(ranked, bins, "width") == pytest.approx(by_width)
    by_mass = metrics_loop.calibration_error(
        case.scores,
        case.truth,
        lambda person: metrics_loop.mass_bin(case.scores, person, bins),
    )
    assert calibration_error(ranked, bins, "mass") == pytest.approx(by_mass)


@pytest.mark.parametrize(
    ("binning", "theirs"), [("width", "uniform"), ("mass", "quantile")]
)
def test_the_reliability_curve_is_sklearns(binning, theirs):
    rng = np.random.default_rng(0)
    risk = rng.random(1000) ** 2
    truth = rng.random(1000) < risk
    points = reliability(curve(risk, truth), 10, binning)
    share, mean = calibration_curve(truth, risk, n_bins=10, strategy=theirs)
    np.testing.assert_allclose(points.infected_share, share)
    np.testing.assert_allclose(points.mean_risk, mean)
    assert points.people.sum() == 1000
    if binning == "mass":
        assert (points.people == 100).all()


def test_the_interval_is_wilsons_and_empty_bins_are_left_out():
    points = reliability(
        curve([0.1] * 20 + [0.9] * 4, [1] * 3 + [0] * 17 + [1] * 4), 10
    )
    assert points.people.tolist() == [20, 4]
    for place, (hits, people) in enumerate([(3, 20), (4, 4)]):
        wilson = stats.binomtest(hits, people).proportion_ci(method="wilson")
        assert points.low[place] == pytest.approx(wilson.low)
        assert points.high[place] == pytest.approx(wilson.high)


def test_the_error_of_true_risks_shrinks_with_people():
    rng = np.random.default_rng(1)
    errors = []
    for people in (1_000, 100_000):
        risk = rng.beta(1, 4, people)
        ranked = curve(risk, rng.random(people) < risk)
        errors.append(float(calibration_error(ranked, 15, "mass")))
    assert errors[1] < 0.01 < errors[0] < 0.06


def test_a_sure_mistake_costs_much_but_not_infinity():
    assert log_loss(curve([0.0, 0.0], [1, 0])) == pytest.approx(-np.log(1e-7) / 2)
    assert log_loss(curve([1.0], [0])) == pytest.approx(16.118, abs=1e-3)


def test_equal_risks_are_never_parted():
    # In any order of people; parted bins would depend on who is listed first.
    ranked = curve([0.5] * 10, [1] * 5 + [0] * 5)
    assert calibration_error(ranked, 2, "mass") == 0
    assert len(reliability(ranked, 5).people) == 1


def test_what_cannot_be_read_as_risk_is_refused():
    counts = curve([3, 1], [1, 0])
    for function in (brier, log_loss, mean_risk, reliability):
        with pytest.raises(DataError, match="probabilities=False"):
            function(counts)
    ranked = curve([0.3, 0.1], [1, 0])
    with pytest.raises(SettingsError, match="bins"):
        calibration_error(ranked, 0, "mass")
    with pytest.raises(SettingsError, match="binning"):
        calibration_error(ranked, 5, "size")
    rows = np.ones((2, 2), np.int64)
    with pytest.raises(DataError, match="one ranking"):
        reliability(Curve(np.array([0.3, 0.1]), rows, rows))
