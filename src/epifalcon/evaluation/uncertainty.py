"""Uncertainty of a metric: over seeds, within one run, and between two methods.

Each seed gives an outbreak and a split of labels. An interval over seeds covers other
outbreaks; an interval within one run covers only other people of the same outbreak and
is narrower. Conclusions need several seeds. All intervals are 95 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import expit, logit

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import RankingCurve
from epifalcon.types import Floats, Mask

LEVEL = 0.95
"""Confidence level of all intervals."""
EXACT_FLIPS = 20
"""Maximum number of pairs for the exact sign-flip test (``Paired.p_flip``)."""
_Z = float(stats.norm.ppf((1 + LEVEL) / 2))
_NO_VARIANCE = 1e-24


@dataclass(frozen=True)
class Summary:
    """Mean of one metric over seeds; the t interval is None below two values."""

    mean: float | None
    low: float | None
    high: float | None
    count: int
    """Number of seeds with a value."""


@dataclass(frozen=True)
class Interval:
    """Estimate from one run with its interval; None where undefined."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Paired:
    """Comparison of two methods on the same seeds: differences ours - theirs."""

    difference: Summary
    wins: int
    """Number of pairs in which ours is better."""
    losses: int
    p_t: float | None
    """Two-sided p value of the paired t test; None if all differences are equal."""
    p_flip: float | None
    """Two-sided p value of the exact sign-flip test, which assumes only that
    differences are symmetric around zero under the null hypothesis. With n pairs it
    is at least 2 / 2^n: 0.0625 for five, 0.002 for ten. None for more than 20 pairs."""


def over_seeds(values: Sequence[float | None]) -> Summary:
    """Return the mean and t interval of one metric over seeds.

    None and NaN (undefined in that seed) are ignored. The interval is not clipped at
    0 or 1.
    """
    known = _known(values)
    count = len(known)
    if count == 0:
        return Summary(None, None, None, 0)
    mean = float(known.mean())
    if count == 1:
        return Summary(mean, None, None, 1)
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * stats.sem(known))
    return Summary(mean, mean - half, mean + half, count)


def paired(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    *,
    lower_wins: bool = False,
) -> Paired:
    """Compare two methods on the same seeds, given in the same order.

    Pairs with an undefined value are ignored. Pairing removes the common effect of the
    outbreak. With ``lower_wins``, for a loss or an error, the lower value wins; the
    difference keeps its sign.
    """
    if len(ours) != len(theirs):
        raise DataError(
            f"pairs need the same seeds: ours has {len(ours)}, theirs {len(theirs)}"
        )
    pairs = list(zip(ours, theirs, strict=True))
    gaps = [None if a is None or b is None else a - b for a, b in pairs]
    known = _known(gaps)
    # Equal values may differ in the last bit; this is neither a win nor variance.
    rounding = 1e-12 * max((abs(a) for a in _known([*ours, *theirs])), default=0.0)
    known[np.abs(known) <= rounding] = 0.0
    better = -known if lower_wins else known
    p_t = None
    if len(known) > 1 and stats.sem(known) > rounding:
        p_t = float(stats.ttest_1samp(known, 0).pvalue)
    return Paired(
        difference=over_seeds(gaps),
        wins=int(np.count_nonzero(better > 0)),
        losses=int(np.count_nonzero(better < 0)),
        p_t=p_t,
        p_flip=_p_flip(known),
    )


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return p values adjusted by Holm's method; None stays None."""
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for place, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - place) * p))
        adjusted[name] = largest
    return adjusted


def auc_interval(ranked: RankingCurve) -> Interval:
    """Return DeLong's interval of the AUC within one run, on the logit scale.

    There is no interval if DeLong's variance is zero or undefined: for a perfect
    ranking, or for fewer than two infected or two healthy people.
    """
    infected, healthy = ranked.infected, ranked.healthy
    if not (infected and healthy):
        return Interval()
    wins = 1 - (ranked.false_positives - ranked.negatives / 2) / healthy
    losses = (ranked.true_positives - ranked.positives / 2) / infected
    auc = float((ranked.positives * wins).sum() / infected)
    wins = np.repeat(wins, ranked.positives)
    error = _standard_error(wins, np.repeat(losses, ranked.negatives))
    if error is None or not 0 < auc < 1:
        return Interval(auc)
    half = _Z * error / (auc * (1 - auc))
    low, high = expit(logit(auc) + np.array([-half, half])).tolist()
    return Interval(auc, low, high)


def logit_interval(estimate: float, draws: Sequence[float]) -> Interval:
    """Return a normal interval on the logit scale from bootstrap ``draws``.

    The standard error is carried over by the delta method, since a draw may be 0 or 1.
    There is no interval if the estimate is 0 or 1, or without draws.
    """
    if len(draws) < 2 or not 0 < estimate < 1:
        return Interval(estimate)
    half = _Z * float(np.std(draws, ddof=1)) / (estimate * (1 - estimate))
    low, high = expit(logit(estimate) + np.array([-half, half])).tolist()
    return Interval(estimate, low, high)


def auc_difference(ours: ArrayLike, theirs: ArrayLike, truth: ArrayLike) -> Interval:
    """Return the AUC of ``ours`` minus that of ``theirs``, all (people,), in one run.

    Uses DeLong's interval for two rankings of the same people, which does not cover the
    variation between outbreaks. There is no interval if fewer than two people are
    infected or healthy, or if both rankings are equal.
    """
    mine, other = np.asarray(ours), np.asarray(theirs)
    infected = np.asarray(truth, bool)
    same_length(ours=mine, theirs=other, truth=infected)
    if infected.all() or not infected.any():
        return Interval()
    wins = _placements(mine, infected) - _placements(other, infected)
    losses = _placements(other, ~infected) - _placements(mine, ~infected)
    gap = float(wins.mean())
    error = _standard_error(wins, losses)
    if error is None:
        return Interval(gap)
    return Interval(gap, gap - _Z * error, gap + _Z * error)


def _standard_error(wins: Floats, losses: Floats) -> float | None:
    """Return DeLong's standard error of an AUC; None if it is zero or undefined.

    ``wins`` (infected,) and ``losses`` (healthy,) are the placements of each person.
    """
    if min(len(wins), len(losses)) < 2:
        return None
    variance = wins.var(ddof=1) / len(wins) + losses.var(ddof=1) / len(losses)
    return math.sqrt(variance) if variance > _NO_VARIANCE else None


def _placements(scores: Floats, kind: Mask) -> Floats:
    """Return, for each person of ``kind``, the share of the other people ranked below.

    Ties count half.
    """
    below = stats.rankdata(scores)[kind] - stats.rankdata(scores[kind])
    return np.asarray(below / np.count_nonzero(~kind))


def _known(values: Sequence[float | None]) -> Floats:
    array = np.array([math.nan if value is None else value for value in values], float)
    if np.isinf(array).any():
        raise DataError("an infinite value cannot be averaged over seeds")
    return np.asarray(array[~np.isnan(array)])


def _p_flip(gaps: Floats) -> float | None:
    """Return the share of sign patterns whose sum is at least as far from 0."""
    if not 1 <= len(gaps) <= EXACT_FLIPS:
        return None
    sums = np.zeros(1)
    for gap in gaps:
        sums = np.concatenate([sums + gap, sums - gap])
    observed = abs(float(gaps.sum())) - 1e-12 * float(np.abs(gaps).sum())
    return float(np.mean(np.abs(sums) >= observed))
