import numpy as np
import pytest
from sklearn.metrics import log_loss as theirs

from epifalcon.baselines.out_of_fold import folds_of, log_loss, whole_of
from tests.baselines.small_cities import RESULTS, results_of


def seen_by(known, folds, seed=0):
    """Each fold, with the visible results themselves as inputs."""
    rng = np.random.default_rng(seed)
    return list(folds_of(known, lambda status: status[:, None] * 1.0, folds, rng))


@pytest.mark.parametrize("folds", [2, 3, 9, 20])
def test_everybody_tested_is_asked_once_and_unseen_then(folds):
    known = results_of(*RESULTS)
    found = seen_by(known, folds)
    asked = np.concatenate([fold.asked for fold in found])
    assert sorted(asked) == np.flatnonzero(known.tested).tolist()
    for fold in found:
        assert len(fold.asked)
        # An input of -1 is a result that is not shown.
        assert (fold.asked_x == -1).all()
        assert (fold.x >= 0).all()
        assert len(fold.x) == len(fold.infected) == 9 - len(fold.asked)
        np.testing.assert_array_equal(fold.x[:, 0], fold.infected)


def test_results_play_no_part_in_who_is_asked_when():
    known = results_of(*RESULTS)
    other = results_of(*(result if result < 0 else 1 - result for result in RESULTS))
    pairs = zip(seen_by(known, 4), seen_by(other, 4), strict=True)
    assert all(np.array_equal(one.asked, two.asked) for one, two in pairs)


def test_in_the_end_everything_is_shown_and_everybody_asked():
    known = results_of(*RESULTS)
    fold = whole_of(known, lambda status: status[:, None] * 1.0)
    assert len(fold.x) == 9
    np.testing.assert_array_equal(fold.asked, np.arange(12))
    np.testing.assert_array_equal(fold.asked_x[:, 0], RESULTS)


def test_log_loss_is_that_of_scikit_learn():
    risk, infected = np.array([0.2, 0.9, 0.5]), np.array([False, True, True])
    assert log_loss(risk, infected) == pytest.approx(theirs(infected, risk))
    assert np.isfinite(log_loss(np.array([0.0]), np.array([True])))
