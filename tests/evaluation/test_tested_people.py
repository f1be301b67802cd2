import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from epifalcon.evaluation.tested_people import accuracy_on_tested


def measured(people, seed, shift=0.0):
    """Accuracy of true probabilities, or of probabilities that are too high."""
    rng = np.random.default_rng(seed)
    risk = rng.uniform(0, 0.6, people)
    positive = rng.random(people) < risk
    shown = np.minimum(risk + shift, 1)
    return shown, positive, accuracy_on_tested(shown, positive, rng, selected=False)


def test_estimates_are_those_of_scikit_learn_and_of_plain_loops():
    risk, positive, found = measured(600, 1)
    assert (found.people, found.positives) == (600, positive.sum())
    assert found.auc.estimate == pytest.approx(roc_auc_score(positive, risk))
    precision = average_precision_score(positive, risk)
    assert found.average_precision.estimate == pytest.approx(precision)
    groups = np.array_split(np.argsort(risk), 15)
    gaps = [abs(risk[one].mean() - positive[one].mean()) for one in groups]
    assert found.calibration_error == pytest.approx(np.mean(gaps))


def test_the_intervals_cover_the_value_of_many_people():
    found = [measured(100, seed)[2] for seed in range(1000, 1300)]
    _, _, truth = measured(50_000, 2)
    for name in ("auc", "average_precision"):
        value, made = (
            getattr(truth, name).estimate,
            [getattr(one, name) for one in found],
        )
        covered = np.mean([one.low <= value <= one.high for one in made])
        # Three standard errors of 300 draws around 0.95.
        assert 0.90 <= covered <= 0.99, (name, covered)


def test_an_almost_perfect_ranking_has_a_narrow_interval():
    """Draws of a bootstrap are often exactly 1 there."""
    rng = np.random.default_rng(4)
    positive = np.arange(120) < 20
    risk = np.clip(0.2 + 0.6 * positive + 0.1 * rng.normal(size=120), 0, 1)
    risk[[0, 119]] = 0.65, 0.6
    risk[118] = 0.9
    found = accuracy_on_tested(risk, positive, rng, selected=False).average_precision
    assert 0.6 < found.low < found.estimate < found.high < 1


def test_the_error_of_true_probabilities_is_mostly_within_chance():
    def within(shift):
        found = [measured(150, seed, shift)[2] for seed in range(2000, 2300)]
        return np.mean([f.calibration_error <= f.calibration_by_chance for f in found])

    assert 0.91 <= within(0) <= 0.99
    assert within(0.2) < 0.05


def test_a_handful_of_positives_has_no_interval():
    risk, positive = np.linspace(0.1, 0.9, 13), np.arange(13) > 10
    rng = np.random.default_rng(0)
    found = accuracy_on_tested(risk, positive, rng, selected=True)
    assert (found.positives, found.auc.estimate, found.auc.low) == (2, 1.0, None)
    precision = found.average_precision
    assert (precision.estimate, precision.low) == (1, None)
    nobody = accuracy_on_tested(risk, np.zeros(13, bool), rng, selected=True)
    assert nobody.auc.estimate is nobody.average_precision.estimate is None
