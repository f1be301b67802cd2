"""Rank people by score against the truth, with exact handling of ties.

No threshold can separate people with equal scores, so they form one group. All
metrics are functions of these groups, and the order in which people are listed
cannot change a result.

>>> ranked = curve([0.9, 0.5, 0.5, 0.1], [True, True, False, False])
>>> precision_recall(ranked).precision.round(3).tolist()
[1.0, 0.667, 0.5]
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.types import Counts, Floats, Mask


@dataclass(frozen=True, eq=False)
class Curve:
    """Infected and other people at each distinct score, all arrays (thresholds,)."""

    score: Floats
    """Distinct scores in falling order."""
    positives: Counts
    """Infected people at each score."""
    negatives: Counts
    """Other people at each score."""

    def __post_init__(self) -> None:
        for array in (self.score, self.positives, self.negatives):
            array.setflags(write=False)

    @cached_property
    def true_positives(self) -> Counts:
        """Infected people at or above each score."""
        return np.cumsum(self.positives, dtype=np.int64)

    @cached_property
    def false_positives(self) -> Counts:
        """Other people at or above each score."""
        return np.cumsum(self.negatives, dtype=np.int64)

    @cached_property
    def called(self) -> Counts:
        """People at or above each score."""
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
        """Infected share of those called at each score."""
        return np.asarray(self.true_positives / self.called)

    @property
    def recall(self) -> Floats:
        """Share of the infected who are called at each score; NaN without any."""
        if not self.infected:
            return np.full(len(self.score), np.nan)
        return np.asarray(self.true_positives / self.infected)

    def found(self, tested: int) -> float:
        """Return the expected number of infected among the highest scores.

        Where the last of the ``tested`` places falls inside a group of equal
        scores, the people of the group are chosen at random.
        """
        tested = min(tested, self.people)
        last = int(np.argmax(self.called >= tested))
        size = self.positives[last] + self.negatives[last]
        excess = self.called[last] - tested
        missed = self.positives[last] * excess / size
        return float(self.true_positives[last] - missed)


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Points of the precision-recall curve, highest threshold first; (thresholds,).

    There is no artificial first point: nobody called has no precision.
    """

    threshold: Floats
    recall: Floats
    precision: Floats


@dataclass(frozen=True, eq=False)
class Roc:
    """Points of the ROC curve from (0, 0) to (1, 1); both (thresholds + 1,)."""

    false_positive_rate: Floats
    recall: Floats


def curve(scores: ArrayLike, truth: ArrayLike) -> Curve:
    """Rank people by ``scores`` against ``truth``; both (people,).

    A higher score means a higher risk. Scores may be any numbers, including
    infinite ones; ``truth`` is bool or 0 and 1. Raises ``DataError`` for NaN,
    unequal lengths and an empty list.
    """
    score, infected = _scores(scores), _truth(truth)
    same_length(scores=score, truth=infected)
    if not len(score):
        raise DataError("scores and truth are empty: there is nobody to evaluate")
    order = np.argsort(score)[::-1]
    ranked = score[order]
    # Not np.diff: the difference of two infinities is NaN.
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    positives = np.add.reduceat(infected[order].astype(np.int64), starts)
    sizes = np.diff(np.append(starts, len(score)))
    return Curve(ranked[starts], positives, sizes - positives)


def precision_recall(ranked: Curve) -> PrecisionRecall:
    """Return the precision-recall curve, pr(.) of the paper; needs an infected."""
    if not ranked.infected:
        raise DataError("no infected person among those scored: recall is undefined")
    return PrecisionRecall(ranked.score, ranked.recall, ranked.precision)


def roc(ranked: Curve) -> Roc:
    """Return the ROC curve; needs an infected and a healthy person."""
    need_both(ranked)
    return Roc(
        np.append(0.0, ranked.false_positives / ranked.healthy),
        np.append(0.0, ranked.recall),
    )


def need_both(ranked: Curve, who: str = "those scored") -> None:
    """Raise ``DataError`` unless ``who`` holds infected and other people."""
    if not ranked.infected:
        raise DataError(f"no infected person among {who} ({ranked.people} people)")
    if not ranked.healthy:
        raise DataError(f"all of {who} are infected ({ranked.people} people)")


def _scores(scores: ArrayLike) -> Floats:
    score = np.asarray(scores)
    if score.ndim != 1 or score.dtype.kind not in "biuf":
        raise DataError(
            f"scores of shape {score.shape} and kind {score.dtype} must be one "
            "number for each person"
        )
    score = score.astype(np.float64)
    if count := np.count_nonzero(np.isnan(score)):
        first = int(np.argmax(np.isnan(score)))
        raise DataError(f"scores hold {count} NaN, the first at position {first}")
    return score


def _truth(truth: ArrayLike) -> Mask:
    infected: NDArray[Any] = np.asarray(truth)
    if infected.ndim != 1 or infected.dtype.kind not in "biuf":
        raise DataError(
            f"truth of shape {infected.shape} and kind {infected.dtype} must be one "
            "bool for each person"
        )
    strange = (infected != 0) & (infected != 1)
    if strange.any():
        value = infected[np.argmax(strange)]
        raise DataError(f"truth holds {value}, expected only 0 and 1")
    return infected.astype(np.bool_)
