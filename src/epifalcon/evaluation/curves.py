"""The ranking of people against the truth: what every threshold calls, exactly.

People with equal scores cannot be told apart by any threshold, so they stand in
one group and move together. All metrics are functions of these groups: the order
in which people are listed cannot change a result.

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
    """Infected and other people at each distinct score, from high to low.

    A curve of resampled people has a leading axis, one row a replicate; a score
    at which a replicate has nobody keeps its place with two zeros.
    """

    score: Floats
    """Distinct scores in falling order: (thresholds,)."""
    positives: Counts
    """Infected people at each score: (..., thresholds)."""
    negatives: Counts
    """Other people at each score: (..., thresholds)."""

    def __post_init__(self) -> None:
        shapes = {self.positives.shape, self.negatives.shape}
        if len(shapes) > 1 or self.positives.shape[-1:] != self.score.shape:
            raise DataError(
                f"positives {self.positives.shape} and negatives "
                f"{self.negatives.shape} must have one count for each of the "
                f"{self.score.shape} scores"
            )
        if not len(self.score):
            raise DataError("a curve needs at least one person")
        for array in (self.score, self.positives, self.negatives):
            array.setflags(write=False)

    @cached_property
    def true_positives(self) -> Counts:
        """Infected people at or above each score: (..., thresholds)."""
        return np.cumsum(self.positives, axis=-1, dtype=np.int64)

    @cached_property
    def false_positives(self) -> Counts:
        """Other people at or above each score: (..., thresholds)."""
        return np.cumsum(self.negatives, axis=-1, dtype=np.int64)

    @cached_property
    def called(self) -> Counts:
        """People at or above each score: (..., thresholds)."""
        return self.true_positives + self.false_positives

    @property
    def infected(self) -> Counts:
        """All infected people: (...,)."""
        return np.asarray(self.true_positives[..., -1])

    @property
    def people(self) -> Counts:
        """All people: (...,)."""
        return np.asarray(self.called[..., -1])

    @cached_property
    def precision(self) -> Floats:
        """Infected share of those called, 0 where nobody is: (..., thresholds)."""
        return np.asarray(self.true_positives / np.maximum(self.called, 1))

    @property
    def recall(self) -> Floats:
        """Share of the infected called, NaN without any: (..., thresholds)."""
        return ratio(self.true_positives, self.infected[..., None])

    def found(self, tested: ArrayLike) -> Floats:
        """Infected people expected among the ``tested`` highest scores: (...,).

        Where the last place falls inside a group of equal scores, the places
        are drawn by lot, and the expectation over the lot is returned.
        """
        wanted = np.minimum(np.asarray(tested), self.people)[..., None]
        last = np.argmax(self.called >= wanted, axis=-1, keepdims=True)

        def there(counts: Counts) -> Counts:
            return np.take_along_axis(counts, last, axis=-1)

        positives = there(self.positives)
        group = np.maximum(positives + there(self.negatives), 1)
        left_out = positives * (there(self.called) - wanted) / group
        return np.asarray((there(self.true_positives) - left_out)[..., 0])


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Points of the precision-recall curve, highest threshold first; (thresholds,).

    There is no made-up first point: nobody called has no precision.
    """

    threshold: Floats
    recall: Floats
    precision: Floats


@dataclass(frozen=True, eq=False)
class Roc:
    """Points of the ROC curve from (0, 0), nobody called, to (1, 1).

    Both arrays (thresholds + 1,).
    """

    false_positive_rate: Floats
    recall: Floats


def curve(scores: ArrayLike, truth: ArrayLike) -> Curve:
    """Rank people by ``scores`` against ``truth``; both (people,).

    A higher score means a higher risk. Scores may be any numbers, infinite too;
    ``truth`` is bool or 0 and 1. ``DataError`` for NaN, unequal lengths, no people.
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
    """The precision-recall curve, the paper's pr(.); needs an infected person."""
    if not ranked.infected.all():
        raise DataError("no infected person among those scored: recall is undefined")
    return PrecisionRecall(ranked.score, ranked.recall, ranked.precision)


def roc(ranked: Curve) -> Roc:
    """The ROC curve; needs an infected and a not infected person."""
    need_both(ranked)
    healthy = ranked.people - ranked.infected
    return Roc(
        _from_zero(ranked.false_positives / healthy),
        _from_zero(ranked.true_positives / ranked.infected),
    )


def need_both(ranked: Curve, who: str = "those scored") -> None:
    """Raise ``DataError`` unless ``who`` holds infected and other people."""
    if not ranked.infected.all():
        raise DataError(f"no infected person among {who} ({ranked.people} people)")
    if (ranked.infected == ranked.people).any():
        raise DataError(f"all of {who} are infected ({ranked.people} people)")


def ratio(part: ArrayLike, whole: ArrayLike) -> Floats:
    """``part / whole``, NaN where ``whole`` is 0; shapes broadcast."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    empty = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    return np.asarray(np.divide(part, whole, out=empty, where=whole != 0))


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


def _from_zero(values: Floats) -> Floats:
    return np.concatenate([[0.0], values])
