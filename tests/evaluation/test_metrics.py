import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import (
    Metrics,
    MetricSettings,
    calibration_error,
    curve,
    evaluate,
    sums_by_bin,
)
from tests.evaluation.rankings import rankings
from tests.oracles import metrics_loop

CASES = settings(max_examples=60, deadline=None, derandomize=True)
RECALLS = st.sampled_from([0.0, 0.1, 0.5, 2 / 3, 1 - 1 / 3, 0.825, 1.0])


@CASES
@given(rankings())
def test_the_points_are_those_of_sklearn(case):
    ranked = curve(case.scores, case.truth)
    precision, recall, threshold = sklearn_metrics.precision_recall_curve(
        case.truth, case.scores
    )
    # sklearn runs upwards and adds the made-up point (0, 1).
    np.testing.assert_array_equal(ranked.score, threshold[::-1])
    np.testing.assert_allclose(ranked.precision, precision[:-1][::-1])
    np.testing.assert_allclose(ranked.recall, recall[:-1][::-1])
    false_positives = np.cumsum(ranked.negatives)
    np.testing.assert_array_equal(ranked.false_positives, false_positives)


def test_infinite_scores_and_other_kinds_of_numbers_rank():
    ranked = curve([-np.inf, np.inf, 0.0, np.inf, -0.0], [0, 1, 1, 0, 0])
    assert ranked.score.tolist() == [np.inf, 0, -np.inf]
    assert ranked.positives.tolist() == [1, 1, 0]
    same = curve(np.array([3, 1], np.uint8), np.array([True, False]))
    assert same.score.tolist() == [3, 1]
    assert curve(torch.tensor([0.5, 0.25]), torch.tensor([1, 0])).score[0] == 0.5
    assert curve([True, False, True], [1.0, 0.0, 0.0]).positives.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        ([], [], "nobody to evaluate"),
        ([0.1, 0.2], [1], "scores has 2, truth has 1"),
        ([0.1, np.nan, np.nan], [1, 0, 1], "2 NaN, the first at position 1"),
        ([[0.1, 0.2]], [1, 0], "one number for each person"),
        ([1j, 0], [1, 0], "one number for each person"),
        ([0.1, 0.2], ["1", "0"], "one number for each person"),
        ([0.1, 0.2], [2, 0], "truth holds 2, expected only 0 and 1"),
        ([0.1, 0.2], [np.nan, 0], "truth holds nan"),
    ],
)
def test_bad_input_is_refused(scores, truth, message):
    with pytest.raises(DataError, match=message):
        curve(scores, truth)


def test_without_infected_people_there_is_no_recall():
    assert np.isnan(curve([0.1, 0.2], [0, 0]).recall).all()


@CASES
@given(rankings(), RECALLS)
def test_metrics_are_those_of_the_loop_over_thresholds(case, recall):
    scores, truth = case.scores, case.truth
    made = evaluate(scores, truth, recall)
    assert made.auc == pytest.approx(sklearn_metrics.roc_auc_score(truth, scores))
    threshold, called, found = np.array(metrics_loop.points(scores, truth)).T
    infected, people = sum(truth), len(truth)
    reached = (found / called)[found / infected >= recall - 1e-12]
    assert (made.dep, made.dep_best) == (reached[0], reached.max())
    f1 = 2 * found / (called + infected)
    assert made.f1 == f1.max()
    assert made.f1_threshold == threshold[f1.argmax()]
    accuracy = 1 - (called + infected - 2 * found) / people
    assert made.accuracy == pytest.approx(max(accuracy.max(), 1 - infected / people))
    assert made.accuracy_at_f1 == pytest.approx(accuracy[f1.argmax()])


@CASES
@given(rankings(most=6), st.sampled_from([0.2, 0.5, 1.0]))
def test_break_even_and_budget_are_means_over_all_orders(case, budget):
    made = evaluate(case.scores, case.truth, 0.5, MetricSettings(budget=budget))
    infected = sum(case.truth)
    found = metrics_loop.found_at_random(case.scores, case.truth, infected)
    assert made.bep == pytest.approx(found / infected)
    found = metrics_loop.found_at_random(case.scores, case.truth, made.tests)
    assert made.precision_at_budget == pytest.approx(found / made.tests)
    assert made.recall_at_budget == pytest.approx(found / infected)


@CASES
@given(rankings())
def test_the_other_metrics_are_those_of_sklearn(case):
    made = evaluate(case.scores, case.truth, 0.5)
    truth, scores = np.array(case.truth), np.array(case.scores)
    average = sklearn_metrics.average_precision_score(truth, scores)
    assert made.average_precision == pytest.approx(average)
    assert made.brier == pytest.approx(sklearn_metrics.brier_score_loss(truth, scores))
    assert made.mean_risk == pytest.approx(scores.mean())
    clipped = np.clip(scores, 1e-7, 1 - 1e-7)
    assert made.log_loss == pytest.approx(sklearn_metrics.log_loss(truth, clipped))


def test_a_rounded_recall_needs_no_extra_person():
    # 1 - 1/R0 with R0 = 3 is one bit above 2/3: times nine, more than six.
    recall = 1 - 1 / 3
    assert recall * 9 > 6
    truth = [1] * 6 + [0] * 4 + [1] * 3
    assert evaluate(np.linspace(1, 0, 13), truth, recall).dep == 1


def test_what_needs_people_of_both_kinds_is_undefined_without_them():
    needing = ["auc", "dep", "dep_best", "f1", "f1_threshold", "accuracy_at_f1", "bep"]
    needing += ["average_precision", "recall_at_budget", "calibration_slope"]
    always = ["auc", "calibration_slope"]
    for truth, undefined in (([0, 0, 0], needing), ([1, 1, 1], always)):
        made = evaluate([0.1, 0.4, 0.3], truth, 0.825)
        for field in dataclasses.fields(Metrics):
            missing = getattr(made, field.name) is None
            assert missing == (field.name in undefined), field.name
        assert (made.prevalence, made.accuracy) == (truth[0], 1)


def test_counts_have_no_calibration():
    made = evaluate([3, 0, 7], [1, 0, 1], 0.825, probabilities=False)
    needed = ("brier", "log_loss", "ece", "ece_mass", "mean_risk", "calibration_slope")
    assert all(getattr(made, name) is None for name in needed)
    assert made.auc == 1
    with pytest.raises(DataError, match="score 7 is not a probability"):
        evaluate([3, 0, 7], [1, 0, 1], 0.825)
    with pytest.raises(DataError, match=r"score -0\.5 is not a probability"):
        evaluate([0.5, -0.5], [1, 0], 0.825)


def test_the_budget_is_rounded_down_but_buys_a_test():
    assert MetricSettings(budget=0.29).tests(100) == 29
    assert MetricSettings(budget=0.05).tests(9443) == 472
    assert MetricSettings(budget=0.05).tests(3) == 1
    assert MetricSettings(budget=1.0).tests(7) == 7


@pytest.mark.parametrize("factor", [0.5, 1, 3])
def test_the_calibration_slope_is_that_of_sklearn(factor):
    rng = np.random.default_rng(1)
    odds = rng.normal(-1, 1, 3000).round(1)
    truth = rng.random(3000) < 1 / (1 + np.exp(-odds))
    risk = 1 / (1 + np.exp(-factor * odds))
    fitted = LogisticRegression(C=np.inf, tol=1e-8).fit(factor * odds[:, None], truth)
    slope = evaluate(risk, truth, 0.825).calibration_slope
    assert slope == pytest.approx(fitted.coef_[0, 0], rel=1e-4)
    assert slope == pytest.approx(1 / factor, rel=0.1)


@pytest.mark.parametrize(
    ("scores", "truth"),
    [
        ([0.1, 0.2, 0.7], [0, 0, 1]),
        ([0.1, 0.2, 0.2, 0.7], [0, 0, 1, 1]),
        ([0.9, 0.2, 0.2, 0.1], [0, 1, 0, 1]),
        ([0.3, 0.3, 0.3], [0, 1, 0]),
    ],
)
def test_separated_people_have_no_calibration_slope(scores, truth):
    assert evaluate(scores, truth, 0.825).calibration_slope is None


@CASES
@given(rankings(both=False), st.integers(1, 12))
def test_calibration_error_is_that_of_the_loop(case, bins):
    ranked = curve(case.scores, case.truth)
    for binning, bin_of in metrics_loop.BINS.items():
        wanted = metrics_loop.calibration_error(case.scores, case.truth, bin_of, bins)
        assert calibration_error(ranked, bins, binning) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("binning", "theirs"), [("width", "uniform"), ("mass", "quantile")]
)
def test_the_reliability_curve_is_sklearns(binning, theirs):
    rng = np.random.default_rng(0)
    risk = rng.random(1000) ** 2
    truth = rng.random(1000) < risk
    risks, infected, people = sums_by_bin(curve(risk, truth), 10, binning)
    share, mean = calibration_curve(truth, risk, n_bins=10, strategy=theirs)
    np.testing.assert_allclose(infected / people, share)
    np.testing.assert_allclose(risks / people, mean)
    assert people.sum() == 1000
    if binning == "mass":
        assert (people == 100).all()
