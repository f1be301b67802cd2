"""Accuracy on tested people, by risks that do not use their own results.

On own data this is the only accuracy that can be measured. It is computed in the same
way for every method, against test results.
"""

from dataclasses import dataclass

import numpy as np

from epifalcon.evaluation.metrics import (
    MetricSettings,
    RankingCurve,
    calibration_error,
    curve,
)
from epifalcon.evaluation.uncertainty import (
    LEVEL,
    Interval,
    auc_interval,
    logit_interval,
)
from epifalcon.types import Mask, Probabilities

_RESAMPLES = 200
_LEAST = 5
_PEOPLE_PER_BIN = 20
"""Minimum mean number of people in a bin of the calibration error: with fewer, the
error of true probabilities by chance is above 0.1."""


@dataclass(frozen=True, kw_only=True)
class TestedAccuracy:
    """Accuracy of risks against the test results of the same people."""

    # Not a class of tests: pytest must not collect it.
    __test__ = False

    people: int
    positives: int
    auc: Interval
    """DeLong's interval."""
    average_precision: Interval
    """Bootstrap interval on the logit scale; None below five positive or negative."""
    calibration_error: float
    """In bins of equal size."""
    calibration_by_chance: float
    """True probabilities have an error up to this in 95 % of draws of the results.

    There is no bootstrap interval: the error of true probabilities is above 0 by
    chance, and such an interval almost never contains 0.
    """
    selected: bool
    """True if the results of these people also selected the model or its round."""


def accuracy_on_tested(
    risk: Probabilities, positive: Mask, rng: np.random.Generator, *, selected: bool
) -> TestedAccuracy:
    """Measure risks, (tested people,), that do not use these people's results."""
    ranked = curve(risk, positive)
    precision, chance = [], []
    for _ in range(_RESAMPLES):
        drawn = rng.random(ranked.people) < risk
        chance.append(_calibration_error(curve(risk, drawn)))
        if min(ranked.infected, ranked.healthy) >= _LEAST:
            people = rng.integers(ranked.people, size=ranked.people)
            precision.append(_average_precision(curve(risk[people], positive[people])))
    interval = Interval()
    if ranked.infected:
        interval = logit_interval(_average_precision(ranked), precision)
    return TestedAccuracy(
        people=ranked.people,
        positives=ranked.infected,
        auc=auc_interval(ranked),
        average_precision=interval,
        calibration_error=_calibration_error(ranked),
        calibration_by_chance=float(np.quantile(chance, LEVEL)),
        selected=selected,
    )


def _average_precision(ranked: RankingCurve) -> float:
    return float(ranked.positives @ ranked.precision) / max(ranked.infected, 1)


def _calibration_error(ranked: RankingCurve) -> float:
    bins = min(MetricSettings().bins, max(1, ranked.people // _PEOPLE_PER_BIN))
    return calibration_error(ranked, bins, "mass")
