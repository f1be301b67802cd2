"""The paper's five metrics and those the field expects beside them.

Each metric is a function of a ``Curve`` and returns (...,) values, one for each
row of a resampled curve, NaN where it is undefined. ``evaluate`` puts them all
into one record, with None for undefined. The page ``explanation-metrics`` of the
docs holds the reasons and a case worked by hand.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epifalcon.checks import unit_interval, whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation import calibration
from epifalcon.evaluation.curves import Curve, curve, ratio
from epifalcon.settings import as_plain
from epifalcon.types import Counts, Floats

Statistic = Callable[[Curve], Floats]
"""A number that a ranking earns, computed for every row of a resampled curve."""

CALIBRATION = ("brier", "log_loss", "ece", "ece_mass", "mean_risk")
"""The metrics that need probabilities."""

_SLACK = 1e-12


@dataclass(frozen=True, kw_only=True)
class MetricSettings:
    """What the metrics depend on besides the pathogen."""

    budget: float = 0.05
    """Share of the scored people for whom there are tests."""
    bins: int = 15
    """Bins of both calibration errors."""

    def __post_init__(self) -> None:
        unit_interval(budget=self.budget)
        if self.budget == 0:
            raise SettingsError("budget=0 must allow at least one test")
        whole(1, bins=self.bins)

    def tests(self, people: int) -> int:
        """Tests for ``people``: the share rounded down, at least one."""
        return max(1, math.floor(self.budget * people + 1e-9))


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All metrics of one ranking; None where a metric is undefined.

    Without an infected person these are None: ``auc``, ``dep``, ``dep_best``,
    ``f1``, ``f1_threshold``, ``accuracy_at_f1``, ``bep``, ``average_precision``
    and ``recall_at_budget``. Without a healthy one only ``auc`` is. Scores that
    only rank have no ``brier``, ``log_loss``, ``ece``, ``ece_mass``, ``mean_risk``.
    """

    people: int
    infected: int
    prevalence: float
    """Infected share: what ``dep`` is near for a ranking without any skill."""
    extinction_recall: float
    tests: int
    """People tested under the budget."""
    auc: float | None
    dep: float | None
    """Precision at the highest threshold whose recall reaches r_m."""
    dep_best: float | None
    """Best precision at any threshold whose recall reaches r_m."""
    f1: float | None
    """Best over thresholds, chosen on these people: an upper end."""
    f1_threshold: float | None
    accuracy: float
    """Best over thresholds, "nobody" among them: never below 1 - prevalence."""
    accuracy_at_f1: float | None
    """Accuracy at the threshold of ``f1``, likely what the paper's table shows."""
    bep: float | None
    """Precision, and recall, when as many are called as are infected."""
    average_precision: float | None
    precision_at_budget: float
    recall_at_budget: float | None
    brier: float | None
    log_loss: float | None
    ece: float | None
    ece_mass: float | None
    mean_risk: float | None

    def as_plain(self) -> dict[str, Any]:
        """The record as JSON can hold it; ``settings.build`` undoes it."""
        return as_plain(self)


@dataclass(frozen=True)
class OperatingPoint:
    """What one threshold, chosen beforehand, does; None where undefined."""

    threshold: float
    called: int
    precision: float | None
    recall: float | None
    f1: float | None
    accuracy: float


def evaluate(
    scores: ArrayLike,
    truth: ArrayLike,
    extinction_recall: float,
    settings: MetricSettings | None = None,
    probabilities: bool = True,
) -> Metrics:
    """Judge ``scores`` by ``truth``, both (people,); paper: Evaluation Protocol.

    ``extinction_recall`` is r_m of the pathogen. Pass ``probabilities=False`` for
    scores that only rank people, such as counts of contacts; otherwise a score
    outside [0, 1] is a ``DataError``, as are NaN, unequal lengths and no people.
    A truth of one kind only is no error: see ``Metrics``.
    """
    settings = settings or MetricSettings()
    ranked = curve(scores, truth)
    people, infected = int(ranked.people), int(ranked.infected)
    made = statistics(people, extinction_recall, settings, probabilities)
    values: dict[str, Any] = dict.fromkeys(CALIBRATION)
    values |= {name: _defined(statistic(ranked)) for name, statistic in made.items()}
    return Metrics(
        people=people,
        infected=infected,
        prevalence=infected / people,
        extinction_recall=extinction_recall,
        tests=settings.tests(people),
        f1_threshold=_defined(best_f1_threshold(ranked)),
        **values,
    )


def statistics(
    people: int,
    extinction_recall: float,
    settings: MetricSettings,
    probabilities: bool = True,
) -> dict[str, Statistic]:
    """Every metric by its name in ``Metrics``; also for ``uncertainty.bootstrap``."""
    unit_interval(extinction_recall=extinction_recall)
    tests = settings.tests(people)
    made: dict[str, Statistic] = {
        "auc": auc,
        "dep": partial(dep, extinction_recall=extinction_recall),
        "dep_best": partial(dep_best, extinction_recall=extinction_recall),
        "f1": best_f1,
        "accuracy": best_accuracy,
        "accuracy_at_f1": accuracy_at_best_f1,
        "bep": break_even,
        "average_precision": average_precision,
        "precision_at_budget": partial(precision_at, tests=tests),
        "recall_at_budget": partial(recall_at, tests=tests),
    }
    if probabilities:
        error = partial(calibration.calibration_error, bins=settings.bins)
        made |= {
            "brier": calibration.brier,
            "log_loss": calibration.log_loss,
            "ece": partial(error, binning="width"),
            "ece_mass": partial(error, binning="mass"),
            "mean_risk": calibration.mean_risk,
        }
    return made


def auc(ranked: Curve) -> Floats:
    """Chance that an infected person outranks a healthy one, a tie being half."""
    # Whole numbers up to the one division: exact up to billions of people.
    above = 2 * ranked.true_positives - ranked.positives
    won = (ranked.negatives * above).sum(-1)
    healthy = ranked.people - ranked.infected
    return ratio(won, 2 * ranked.infected * healthy)


def average_precision(ranked: Curve) -> Floats:
    """Mean precision over the infected, each at its own threshold.

    The sum of (R_k - R_(k-1)) P_k over thresholds, without interpolation.
    """
    return ratio((ranked.positives * ranked.precision).sum(-1), ranked.infected)


def dep(ranked: Curve, extinction_recall: float) -> Floats:
    """Disease extinction precision, DEP = pr(r_m).

    The precision at the highest threshold whose recall is r_m or more. A
    recall of 0 is reached by the highest score, not by calling nobody.
    """
    first = np.argmax(_reached(ranked, extinction_recall), axis=-1)
    return _at(ranked.precision, first, ranked.infected)


def dep_best(ranked: Curve, extinction_recall: float) -> Floats:
    """The largest precision over all thresholds with a recall of r_m or more.

    Never below ``dep``, since calling more people can raise precision.
    """
    reached = _reached(ranked, extinction_recall)
    best = np.where(reached, ranked.precision, 0).max(-1)
    return np.where(ranked.infected > 0, best, np.nan)


def best_f1(ranked: Curve) -> Floats:
    """The largest F1 over thresholds, the paper's F1."""
    f1 = _f1(ranked)
    return _at(f1, np.argmax(f1, axis=-1), ranked.infected)


def best_f1_threshold(ranked: Curve) -> Floats:
    """The score from which on ``best_f1`` calls people; the highest if several."""
    best = np.argmax(_f1(ranked), axis=-1)
    return np.where(ranked.infected > 0, ranked.score[best], np.nan)


def best_accuracy(ranked: Curve) -> Floats:
    """The largest accuracy over thresholds, calling nobody included."""
    healthy = ranked.people - ranked.infected
    return np.asarray(np.maximum(_accuracy(ranked).max(-1), healthy / ranked.people))


def accuracy_at_best_f1(ranked: Curve) -> Floats:
    """The accuracy at the threshold of ``best_f1``."""
    best = np.argmax(_f1(ranked), axis=-1)
    return _at(_accuracy(ranked), best, ranked.infected)


def break_even(ranked: Curve) -> Floats:
    """Precision and recall where they are equal, the paper's BEP.

    They are equal when as many people are called as are infected. Where that
    cuts through equal scores, the places left are drawn by lot, and the
    expectation is returned.
    """
    return recall_at(ranked, ranked.infected)


def precision_at(ranked: Curve, tests: int | Counts) -> Floats:
    """Expected infected share of the ``tests`` highest scores, ties drawn by lot."""
    return ratio(ranked.found(tests), np.minimum(tests, ranked.people))


def recall_at(ranked: Curve, tests: int | Counts) -> Floats:
    """Expected share of the infected among the ``tests`` highest scores."""
    return ratio(ranked.found(tests), ranked.infected)


def at_threshold(
    scores: ArrayLike, truth: ArrayLike, threshold: float
) -> OperatingPoint:
    """Call everybody whose score is ``threshold`` or more; both arrays (people,).

    For a threshold that was chosen on other people, so without the optimism of
    the best over thresholds.
    """
    if math.isnan(threshold):
        raise DataError("threshold=nan must be a number")
    ranked = curve(scores, truth)
    groups = int(np.count_nonzero(ranked.score >= threshold))
    hit = int(ranked.true_positives[groups - 1]) if groups else 0
    called = int(ranked.called[groups - 1]) if groups else 0
    infected, people = int(ranked.infected), int(ranked.people)
    return OperatingPoint(
        threshold=float(threshold),
        called=called,
        precision=_defined(ratio(hit, called)),
        recall=_defined(ratio(hit, infected)),
        f1=2 * hit / (called + infected) if infected else None,
        accuracy=(people - called - infected + 2 * hit) / people,
    )


def _reached(ranked: Curve, extinction_recall: float) -> np.ndarray[Any, Any]:
    unit_interval(extinction_recall=extinction_recall)
    # 1 - 1/3 is a little more than 2/3 in floating point, and must not ask more.
    needed = extinction_recall * (1 - _SLACK) * ranked.infected[..., None]
    return (ranked.true_positives >= needed) & (ranked.called > 0)


def _f1(ranked: Curve) -> Floats:
    return ratio(2 * ranked.true_positives, ranked.called + ranked.infected[..., None])


def _accuracy(ranked: Curve) -> Floats:
    people = ranked.people[..., None]
    wrong = ranked.called + ranked.infected[..., None] - 2 * ranked.true_positives
    return np.asarray((people - wrong) / people)


def _at(values: Floats, place: np.ndarray[Any, Any], infected: Counts) -> Floats:
    """The value at ``place`` of each row, NaN in rows without an infected."""
    taken = np.take_along_axis(values, place[..., None], axis=-1)[..., 0]
    return np.where(infected > 0, taken, np.nan)


def _defined(value: Floats) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
