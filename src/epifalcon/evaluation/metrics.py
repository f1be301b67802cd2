"""The paper's five metrics and the common ones beside them.

``evaluate`` computes all of them for one ranking, with None for undefined. The page
``explanation-metrics`` of the docs gives the reasons and a worked example.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epifalcon.checks import unit_interval, whole
from epifalcon.errors import SettingsError
from epifalcon.evaluation import calibration
from epifalcon.evaluation.curves import Curve, curve
from epifalcon.settings import as_plain
from epifalcon.types import Floats, Mask

CALIBRATION = ("brier", "log_loss", "ece", "ece_mass", "mean_risk")
"""The metrics that need probabilities."""
_NEED_INFECTED = (
    *("dep", "dep_best", "f1", "f1_threshold", "accuracy_at_f1", "bep"),
    *("average_precision", "recall_at_budget"),
)
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


def evaluate(
    scores: ArrayLike,
    truth: ArrayLike,
    extinction_recall: float,
    settings: MetricSettings | None = None,
    probabilities: bool = True,
) -> Metrics:
    """Compute all metrics of ``scores`` against ``truth``, both (people,).

    Paper: Evaluation Protocol. ``extinction_recall`` is r_m of the pathogen. Pass
    ``probabilities=False`` for scores that only rank people, such as counts of
    contacts; otherwise a score outside [0, 1] is a ``DataError``, as are NaN,
    unequal lengths and no people. A truth of one kind only is no error: see
    ``Metrics``.
    """
    settings = settings or MetricSettings()
    unit_interval(extinction_recall=extinction_recall)
    ranked = curve(scores, truth)
    tests = settings.tests(ranked.people)
    values: dict[str, Any] = dict.fromkeys(CALIBRATION + _NEED_INFECTED)
    if probabilities:
        values |= {
            "brier": calibration.brier(ranked),
            "log_loss": calibration.log_loss(ranked),
            "ece": calibration.calibration_error(ranked, settings.bins, "width"),
            "ece_mass": calibration.calibration_error(ranked, settings.bins, "mass"),
            "mean_risk": calibration.mean_risk(ranked),
        }
    found = ranked.found(tests)
    infected = ranked.infected
    if infected:
        f1 = 2 * ranked.true_positives / (ranked.called + infected)
        best = int(np.argmax(f1))
        values |= {
            "dep": dep(ranked, extinction_recall),
            "dep_best": dep_best(ranked, extinction_recall),
            "f1": float(f1[best]),
            "f1_threshold": float(ranked.score[best]),
            "accuracy_at_f1": float(_accuracy(ranked)[best]),
            "bep": ranked.found(infected) / infected,
            "average_precision": average_precision(ranked),
            "recall_at_budget": found / infected,
        }
    return Metrics(
        people=ranked.people,
        infected=infected,
        prevalence=infected / ranked.people,
        extinction_recall=extinction_recall,
        tests=tests,
        auc=auc(ranked) if infected and ranked.healthy else None,
        accuracy=max(float(_accuracy(ranked).max()), ranked.healthy / ranked.people),
        precision_at_budget=found / min(tests, ranked.people),
        **values,
    )


def auc(ranked: Curve) -> float:
    """Return the chance that an infected person outranks a healthy one.

    A tie counts one half; NaN unless there are people of both kinds.
    """
    if not (ranked.infected and ranked.healthy):
        return math.nan
    # Whole numbers up to the one division: exact up to billions of people.
    above = 2 * ranked.true_positives - ranked.positives
    won = int((ranked.negatives * above).sum())
    return won / (2 * ranked.infected * ranked.healthy)


def average_precision(ranked: Curve) -> float:
    """Return the mean precision over the infected, each at its own threshold.

    The sum of (R_k - R_(k-1)) P_k over thresholds, without interpolation.
    """
    return float((ranked.positives * ranked.precision).sum() / ranked.infected)


def dep(ranked: Curve, extinction_recall: float) -> float:
    """Return the disease extinction precision, DEP = pr(r_m).

    The precision at the highest threshold whose recall is r_m or more; NaN without
    an infected person. A recall of 0 is reached by the highest score, not by
    calling nobody.
    """
    reached = _reached(ranked, extinction_recall)
    return float(ranked.precision[np.argmax(reached)]) if ranked.infected else math.nan


def dep_best(ranked: Curve, extinction_recall: float) -> float:
    """Return the largest precision over all thresholds with a recall of r_m or more.

    Never below ``dep``, since calling more people can raise precision.
    """
    return float(ranked.precision[_reached(ranked, extinction_recall)].max())


def _reached(ranked: Curve, extinction_recall: float) -> Mask:
    unit_interval(extinction_recall=extinction_recall)
    # 1 - 1/3 is a little more than 2/3 in floating point; without this slack it
    # would ask for one person more.
    needed = extinction_recall * (1 - _SLACK) * ranked.infected
    return np.asarray(ranked.true_positives >= needed)


def _accuracy(ranked: Curve) -> Floats:
    wrong = ranked.called + ranked.infected - 2 * ranked.true_positives
    return np.asarray((ranked.people - wrong) / ranked.people)
