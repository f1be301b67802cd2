"""Rankings of people against the truth, and the metrics of a ranking.

People with equal scores cannot be separated by a threshold, so they form one group
(``RankingCurve``), and results do not depend on the order of people.
``evaluate`` computes the paper's five metrics and other common ones; undefined metrics
are None. The page ``explanation-metrics`` of the docs gives the reasons and a worked
example.

>>> ranked = curve([0.9, 0.5, 0.5, 0.1], [True, True, False, False])
>>> ranked.precision.round(3).tolist()
[1.0, 0.667, 0.5]
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit

from epifalcon.checks import Checked, Count, PositiveShare, same_length, unit_interval
from epifalcon.errors import DataError
from epifalcon.logistic import LOG_LOSS_CLIP, fit_logistic
from epifalcon.settings import as_plain
from epifalcon.types import Counts, Floats, Probabilities

Binning = Literal["width", "mass"]
"""Kind of bins on [0, 1]: of equal width, or with equal numbers of people."""
_SLACK = 1e-12
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class RankingCurve:
    """Counts of infected and uninfected people at each distinct score (threshold)."""

    score: Floats
    """Distinct scores in descending order."""
    positives: Counts
    """Number of infected people at each score."""
    negatives: Counts
    """Number of uninfected people at each score."""

    def __post_init__(self) -> None:
        for array in (self.score, self.positives, self.negatives):
            array.setflags(write=False)

    @cached_property
    def true_positives(self) -> Counts:
        """Number of infected people at or above each score."""
        return np.cumsum(self.positives, dtype=np.int64)

    @cached_property
    def false_positives(self) -> Counts:
        """Number of uninfected people at or above each score."""
        return np.cumsum(self.negatives, dtype=np.int64)

    @cached_property
    def called(self) -> Counts:
        """Number of people at or above each score, who are predicted positive."""
        return self.true_positives + self.false_positives

    @property
    def infected(self) -> int:
        """Number of infected people."""
        return int(self.true_positives[-1])

    @property
    def people(self) -> int:
        """Number of people."""
        return int(self.called[-1])

    @property
    def healthy(self) -> int:
        """Number of people who are not infected."""
        return self.people - self.infected

    @cached_property
    def precision(self) -> Floats:
        """Infected share of the people at or above each score."""
        return np.asarray(self.true_positives / self.called)

    @property
    def recall(self) -> Floats:
        """Share of the infected at or above each score; NaN if nobody is infected."""
        if not self.infected:
            return np.full(len(self.score), np.nan)
        return np.asarray(self.true_positives / self.infected)

    @property
    def risk(self) -> Probabilities:
        """The scores as probabilities; raises ``DataError`` if outside [0, 1]."""
        high, low = float(self.score[0]), float(self.score[-1])
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            wrong = low if low < -_ROUNDING else high
            raise DataError(
                f"score {wrong:g} is not a probability: pass probabilities=False for "
                "scores that only rank people"
            )
        return np.clip(self.score, 0, 1)

    def found(self, tested: int) -> float:
        """Return the expected number of infected among the ``tested`` highest scores.

        Ties at the last position are broken at random.
        """
        tested = min(tested, self.people)
        last = int(np.argmax(self.called >= tested))
        size = self.positives[last] + self.negatives[last]
        excess = self.called[last] - tested
        missed = self.positives[last] * excess / size
        return float(self.true_positives[last] - missed)


def curve(scores: ArrayLike, truth: ArrayLike) -> RankingCurve:
    """Rank people by ``scores`` against ``truth``; both (people,).

    A higher score means a higher risk. Scores may be any numbers, including
    infinite ones; ``truth`` is bool or 0 and 1. Raises ``DataError`` for NaN,
    unequal lengths and an empty list.
    """
    score = _numbers("scores", scores).astype(np.float64)
    given = _numbers("truth", truth)
    if count := np.count_nonzero(np.isnan(score)):
        first = int(np.argmax(np.isnan(score)))
        raise DataError(f"scores hold {count} NaN, the first at position {first}")
    strange = (given != 0) & (given != 1)
    if strange.any():
        raise DataError(
            f"truth holds {given[np.argmax(strange)]}, expected only 0 and 1"
        )
    infected = given.astype(np.bool_)
    same_length(scores=score, truth=infected)
    if not len(score):
        raise DataError("scores and truth are empty: there is nobody to evaluate")
    order = np.argsort(score)[::-1]
    ranked = score[order]
    # Not np.diff: the difference of two infinities is NaN.
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    positives = np.add.reduceat(infected[order].astype(np.int64), starts)
    sizes = np.diff(np.append(starts, len(score)))
    return RankingCurve(ranked[starts], positives, sizes - positives)


def _numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    given: NDArray[Any] = np.asarray(values)
    if given.ndim != 1 or given.dtype.kind not in "biuf":
        raise DataError(
            f"{name} of shape {given.shape} and kind {given.dtype} must be one number "
            "for each person"
        )
    return given


@dataclass(frozen=True, kw_only=True)
class MetricSettings(Checked):
    """Settings of the metrics."""

    budget: PositiveShare = 0.05
    """Share of the scored people who can be tested."""
    bins: Count = 15
    """Number of bins of both calibration errors."""

    def tests(self, people: int) -> int:
        """Return the number of tests for ``people`` people, at least one."""
        return max(1, math.floor(self.budget * people + 1e-9))


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All metrics of one ranking; None where a metric is undefined.

    Without an infected person these are None: ``auc``, ``dep``, ``dep_best``,
    ``f1``, ``f1_threshold``, ``accuracy_at_f1``, ``bep``, ``average_precision``,
    ``recall_at_budget`` and ``calibration_slope``. Without an uninfected person only
    ``auc`` and ``calibration_slope`` are None; the latter also if a threshold separates
    infected and uninfected people. For
    scores that are not probabilities, ``brier``, ``log_loss``, ``ece``, ``ece_mass``,
    ``mean_risk`` and ``calibration_slope`` are None.
    """

    people: int
    infected: int
    prevalence: float
    """Infected share, approximately the ``dep`` of a random ranking."""
    extinction_recall: float
    tests: int
    """Number of people tested under the budget."""
    auc: float | None = None
    dep: float | None = None
    """Precision at the highest threshold whose recall reaches r_m."""
    dep_best: float | None = None
    """Highest precision at any threshold whose recall reaches r_m."""
    f1: float | None = None
    """Highest F1 over all thresholds, selected on these people: an upper bound."""
    f1_threshold: float | None = None
    accuracy: float
    """Highest accuracy over all thresholds, at least 1 - prevalence."""
    accuracy_at_f1: float | None = None
    """Accuracy at the threshold of ``f1``, probably the one in the paper's table."""
    bep: float | None = None
    """Break-even point: precision if as many people are called as are infected."""
    average_precision: float | None = None
    precision_at_budget: float
    recall_at_budget: float | None = None
    brier: float | None = None
    log_loss: float | None = None
    ece: float | None = None
    ece_mass: float | None = None
    mean_risk: float | None = None
    calibration_slope: float | None = None

    def as_plain(self) -> dict[str, Any]:
        """Return the record as plain values; ``settings.build`` is the inverse."""
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
    contacts; otherwise a score outside [0, 1] raises ``DataError``. NaN, unequal
    lengths and empty arrays always do. If all people are infected, or none, some
    metrics are None: see ``Metrics``.
    """
    settings = settings or MetricSettings()
    unit_interval(extinction_recall=extinction_recall)
    ranked = curve(scores, truth)
    tests = settings.tests(ranked.people)
    values: dict[str, Any] = {}
    if probabilities:
        values |= {
            "brier": brier(ranked),
            "log_loss": log_loss(ranked),
            "ece": calibration_error(ranked, settings.bins, "width"),
            "ece_mass": calibration_error(ranked, settings.bins, "mass"),
            "mean_risk": float(sums_by_bin(ranked, 1, "width")[0, 0] / ranked.people),
            "calibration_slope": calibration_slope(ranked),
        }
    found = ranked.found(tests)
    infected = ranked.infected
    if infected:
        f1 = 2 * ranked.true_positives / (ranked.called + infected)
        best = int(np.argmax(f1))
        values |= {
            "dep": dep(ranked, extinction_recall),
            "dep_best": float(_precision_from(ranked, extinction_recall).max()),
            "f1": float(f1[best]),
            "f1_threshold": float(ranked.score[best]),
            "accuracy_at_f1": float(_accuracy(ranked)[best]),
            "bep": ranked.found(infected) / infected,
            # The sum of (R_k - R_(k-1)) P_k over thresholds, without interpolation.
            "average_precision": float(ranked.positives @ ranked.precision / infected),
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


def auc(ranked: RankingCurve) -> float:
    """Return the probability that an infected person ranks above a healthy one.

    Ties count half.
    """
    if not (ranked.infected and ranked.healthy):
        return math.nan
    # Integers up to the final division: exact up to billions of people.
    above = 2 * ranked.true_positives - ranked.positives
    won = int((ranked.negatives * above).sum())
    return won / (2 * ranked.infected * ranked.healthy)


def dep(ranked: RankingCurve, extinction_recall: float) -> float:
    """Return the disease extinction precision, DEP = pr(r_m).

    The precision at the highest threshold whose recall is at least r_m; NaN if nobody
    is infected. For r_m = 0 this is the highest score.
    """
    precision = _precision_from(ranked, extinction_recall)
    return float(precision[0]) if ranked.infected else math.nan


def _precision_from(ranked: RankingCurve, recall: float) -> Floats:
    """Return the precision at all thresholds whose recall is ``recall`` or more."""
    # 1 - 1/3 is slightly more than 2/3 in floating point; without this slack, one
    # more person would be needed.
    needed = recall * (1 - _SLACK) * ranked.infected
    return np.asarray(ranked.precision[ranked.true_positives >= needed])


def _accuracy(ranked: RankingCurve) -> Floats:
    wrong = ranked.called + ranked.infected - 2 * ranked.true_positives
    return np.asarray((ranked.people - wrong) / ranked.people)


def brier(ranked: RankingCurve) -> float:
    """Return the mean squared difference of risk and truth; lower is better."""
    lost = ranked.positives * (1 - ranked.risk) ** 2 + ranked.negatives * ranked.risk**2
    return float(lost.sum() / ranked.people)


def log_loss(ranked: RankingCurve) -> float:
    """Return the mean negative log likelihood in nats; lower is better.

    Risks are clipped to [1e-7, 1 - 1e-7], about the resolution of single precision
    near 1: a saturated wrong risk costs 16.1 nats, not infinity.
    """
    risk = np.clip(ranked.risk, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP)
    lost = ranked.positives * np.log(risk) + ranked.negatives * np.log1p(-risk)
    return float(-lost.sum() / ranked.people)


def calibration_slope(ranked: RankingCurve) -> float | None:
    """Return the slope of a logistic regression of the truth on the log odds of risk.

    1 if calibrated, below 1 if risks are too extreme. Risks are clipped as in
    ``log_loss``. None without a finite slope: a threshold separates infected and
    uninfected people, or all risks are equal.
    """
    positive = ranked.score[ranked.positives > 0]
    negative = ranked.score[ranked.negatives > 0]
    if not (len(positive) and len(negative)):
        return None
    if positive.min() >= negative.max() or negative.min() >= positive.max():
        return None
    odds = logit(np.clip(ranked.risk, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP))
    size = ranked.positives + ranked.negatives
    infected = np.repeat(ranked.positives / size, size)
    by_person = np.repeat(odds, size)
    spread = by_person.std()
    centred = (by_person - by_person.mean()) / spread
    return float(fit_logistic(centred, infected).slope / spread)


def calibration_error(ranked: RankingCurve, bins: int, binning: Binning) -> float:
    """Return the expected calibration error.

    The mean over people of the absolute difference between the mean risk of their bin
    and its infected share. Bins are those of ``sums_by_bin``.
    """
    risk, infected, _ = sums_by_bin(ranked, bins, binning)
    return float(np.abs(risk - infected).sum() / ranked.people)


def sums_by_bin(ranked: RankingCurve, bins: int, binning: Binning) -> Floats:
    """Return the sum of risks, the infected and the people of each bin, (3, bins).

    With ``"width"``, bins are [k/bins, (k+1)/bins) and the last is closed. With
    ``"mass"``, the rank determines a person's bin; people with equal risks share a
    bin, so bins may have unequal numbers of people.
    """
    risk, size = ranked.risk, ranked.positives + ranked.negatives
    if binning == "width":
        # k / bins is rounded like the decimal literal: 0.3 lies in the bin from 3/10.
        chosen = np.searchsorted(np.arange(1, bins) / bins, risk, "right")
    else:
        rank = (ranked.people - ranked.called + size / 2) / ranked.people
        chosen = np.minimum((rank * bins).astype(np.int64), bins - 1)
    summed = (size * risk, ranked.positives, size)
    return np.stack([np.bincount(chosen, one, bins) for one in summed])
