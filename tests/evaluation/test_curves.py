import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from epifalcon.errors import DataError
from epifalcon.evaluation.curves import curve, need_both, precision_recall, roc
from tests.evaluation.rankings import rankings
from tests.oracles import metrics_loop

CASES = settings(max_examples=100, deadline=None, derandomize=True)


def test_a_case_by_hand():
    # From high to low: .9 sick | .5 sick, healthy | .1 healthy, healthy
    ranked = curve([0.1, 0.5, 0.9, 0.5, 0.1], [0, 1, 1, 0, 0])
    assert ranked.score.tolist() == [0.9, 0.5, 0.1]
    assert ranked.positives.tolist() == [1, 1, 0]
    assert ranked.negatives.tolist() == [0, 1, 2]
    points = precision_recall(ranked)
    assert points.recall.tolist() == [1 / 2, 1, 1]
    assert points.precision.tolist() == [1, 2 / 3, 2 / 5]
    assert roc(ranked).false_positive_rate.tolist() == [0, 0, 1 / 3, 1]
    assert roc(ranked).recall.tolist() == [0, 1 / 2, 1, 1]


@CASES
@given(rankings())
def test_every_threshold_is_counted_as_the_loop_counts_it(case):
    ranked = curve(case.scores, case.truth)
    assert ranked.score.tolist() == metrics_loop.thresholds(case.scores)
    for place, threshold in enumerate(ranked.score):
        at = metrics_loop.counts(case.scores, case.truth, threshold)
        assert ranked.true_positives[place] == at["tp"]
        assert ranked.false_positives[place] == at["fp"]


@CASES
@given(rankings())
def test_the_points_are_those_of_sklearn(case):
    ranked = curve(case.scores, case.truth)
    precision, recall, threshold = sklearn_metrics.precision_recall_curve(
        case.truth, case.scores
    )
    points = precision_recall(ranked)
    # sklearn runs upwards and adds the made-up point (0, 1).
    np.testing.assert_array_equal(points.threshold, threshold[::-1])
    np.testing.assert_allclose(points.precision, precision[:-1][::-1])
    np.testing.assert_allclose(points.recall, recall[:-1][::-1])
    fpr, tpr, _ = sklearn_metrics.roc_curve(
        case.truth, case.scores, drop_intermediate=False
    )
    np.testing.assert_allclose(roc(ranked).false_positive_rate, fpr)
    np.testing.assert_allclose(roc(ranked).recall, tpr)


@CASES
@given(rankings(most=6), st.integers(0, 8))
def test_places_among_equals_are_drawn_by_lot(case, tested):
    places = min(tested, len(case.scores))
    expected = metrics_loop.found_by_lot(case.scores, case.truth, places)
    found = curve(case.scores, case.truth).found(tested)
    assert found == pytest.approx(expected, abs=1e-12)


def test_infinite_scores_and_other_kinds_of_numbers_rank():
    ranked = curve([-np.inf, np.inf, 0.0, np.inf, -0.0], [0, 1, 1, 0, 0])
    assert ranked.score.tolist() == [np.inf, 0, -np.inf]
    assert ranked.positives.tolist() == [1, 1, 0]
    same = curve(np.array([3, 1], np.uint8), np.array([True, False]))
    assert same.score.tolist() == [3, 1]
    assert curve(torch.tensor([0.5, 0.25]), torch.tensor([1, 0])).score[0] == 0.5
    assert curve([True, False, True], [1.0, 0.0, 0.0]).positives.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("scores", "truth", "told"),
    [
        ([], [], "nobody to evaluate"),
        ([0.1, 0.2], [1], "scores has 2, truth has 1"),
        ([0.1, np.nan, np.nan], [1, 0, 1], "2 NaN, the first at position 1"),
        ([[0.1, 0.2]], [1, 0], "one number for each person"),
        (["a", "b"], [1, 0], "one number for each person"),
        ([1j, 0], [1, 0], "one number for each person"),
        ([0.1, 0.2], [[1], [0]], "one bool for each person"),
        ([0.1, 0.2], ["1", "0"], "one bool for each person"),
        ([0.1, 0.2], [2, 0], "truth holds 2, expected only 0 and 1"),
        ([0.1, 0.2], [-1, 0], "truth holds -1"),
        ([0.1, 0.2], [np.nan, 0], "truth holds nan"),
    ],
)
def test_bad_input_is_refused(scores, truth, told):
    with pytest.raises(DataError, match=told):
        curve(scores, truth)


def test_one_kind_of_people_has_no_curve():
    none, all_ = curve([0.1, 0.2], [0, 0]), curve([0.1, 0.2], [1, 1])
    with pytest.raises(DataError, match="no infected person"):
        precision_recall(none)
    with pytest.raises(DataError, match="no infected person among the tested"):
        need_both(none, "the tested")
    with pytest.raises(DataError, match="all of those scored are infected"):
        roc(all_)
    assert precision_recall(all_).precision.tolist() == [1, 1]
    assert np.isnan(none.recall).all()
