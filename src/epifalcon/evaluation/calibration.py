"""Calibration: does a risk of 20 % mean that 20 of 100 such people are infected?

The first half measures calibration on a ``Curve``; scores that only rank have none.
The second half improves it by two non-decreasing maps from risk to risk, fitted on
masked people (tested, but their own result did not enter their risk) and applied to
everybody:

- **Platt** scaling (Platt 1999): a logistic curve over the log odds, two numbers.
- **Isotonic** regression (Zadrozny and Elkan 2002): the best non-decreasing step
  function, found by pooling adjacent violators.

Both fit Platt's targets instead of 0 and 1, ``(N+ + 1) / (N+ + 2)`` for the infected
and ``1 / (N- + 2)`` for the others, so that few people cannot make a risk exactly 0
or 1.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from epifalcon.checks import one_of, same_length, whole
from epifalcon.errors import DataError
from epifalcon.evaluation.curves import Curve
from epifalcon.logistic import LOG_LOSS_CLIP, fit_logistic
from epifalcon.types import Counts, Floats, Mask, Probabilities

Binning = Literal["width", "mass"]
"""Bins of equal width on [0, 1], or of equally many people."""

LEAST = 10
"""Minimum number of infected, and of other, masked people for a fit."""

_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Reliability:
    """Points of the reliability curve, lowest risk first; empty bins left out.

    All arrays (non-empty bins,).
    """

    mean_risk: Floats
    infected_share: Floats
    low: Floats
    """Lower end of Wilson's interval of ``infected_share``."""
    high: Floats
    people: Counts


def brier(ranked: Curve) -> float:
    """Return the mean squared difference of risk and truth; lower is better."""
    risk = _risk(ranked)
    lost = ranked.positives * (1 - risk) ** 2 + ranked.negatives * risk**2
    return float(lost.sum() / ranked.people)


def log_loss(ranked: Curve) -> float:
    """Return the mean negative log likelihood in nats; lower is better.

    Risks are clipped to [1e-7, 1 - 1e-7]: single precision cannot come closer to 1
    without being 1, and one saturated mistake costs 16.1 nats, not infinity.
    """
    risk = np.clip(_risk(ranked), LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP)
    lost = ranked.positives * np.log(risk) + ranked.negatives * np.log1p(-risk)
    return float(-lost.sum() / ranked.people)


def mean_risk(ranked: Curve) -> float:
    """Return the mean risk; for calibrated risks it is the prevalence."""
    size = ranked.positives + ranked.negatives
    return float((size * _risk(ranked)).sum() / ranked.people)


def calibration_error(ranked: Curve, bins: int, binning: Binning) -> float:
    """Return the expected calibration error.

    The mean over people of the distance between the mean risk of their bin and its
    infected share. With ``"width"``, bins are [k/bins, (k+1)/bins) and the last is
    closed. With ``"mass"``, a person's bin follows from its rank; people with equal
    risks share a bin, so the bins may hold unequal numbers.
    """
    sums = _sum_by_bin(ranked, bins, binning)
    return float(np.abs(sums.risk - sums.positives).sum() / ranked.people)


def reliability(
    ranked: Curve, bins: int = 15, binning: Binning = "mass"
) -> Reliability:
    """Return the infected share against the mean risk by bin.

    With 95 % Wilson intervals.
    """
    sums = _sum_by_bin(ranked, bins, binning)
    held = sums.people > 0
    people, positives = sums.people[held], sums.positives[held]
    share = positives / people
    z = float(stats.norm.ppf(0.975))
    middle = (share + z**2 / (2 * people)) / (1 + z**2 / people)
    spread = np.sqrt(share * (1 - share) / people + z**2 / (4 * people**2))
    half = z * spread / (1 + z**2 / people)
    low, high = np.maximum(middle - half, 0), np.minimum(middle + half, 1)
    counted = people.astype(np.int64)
    return Reliability(sums.risk[held] / people, share, low, high, counted)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the people of each bin: (bins,)."""

    risk: Floats
    positives: Floats
    people: Floats


def _sum_by_bin(ranked: Curve, bins: int, binning: Binning) -> _Sums:
    whole(1, bins=bins)
    one_of(("width", "mass"), binning=binning)
    risk = _risk(ranked)
    size = ranked.positives + ranked.negatives
    if binning == "width":
        # k / bins is rounded as the decimal is read: 0.3 lies in the bin from 3/10.
        chosen = np.searchsorted(np.arange(1, bins) / bins, risk, "right")
    else:
        rank = (ranked.people - ranked.called + size / 2) / ranked.people
        chosen = np.minimum((rank * bins).astype(np.int64), bins - 1)
    summed = (size * risk, ranked.positives, size)
    made = (np.bincount(chosen, one, bins).astype(np.float64) for one in summed)
    return _Sums(*made)


def _risk(ranked: Curve) -> Probabilities:
    """Return the scores as probabilities, or raise ``DataError``.

    A softmax in single precision may end a rounding error outside of [0, 1].
    """
    high, low = float(ranked.score[0]), float(ranked.score[-1])
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        wrong = low if low < -_ROUNDING else high
        raise DataError(
            f"score {wrong:g} is no probability: scores that only rank people "
            "must be named so (probabilities=False)"
        )
    return np.clip(ranked.score, 0, 1)


@dataclass(frozen=True)
class Platt:
    """risk -> expit(slope * logit(risk) + offset), with a slope of 0 or more."""

    slope: float
    offset: float

    def __call__(self, risk: ArrayLike) -> Probabilities:
        """Return the recalibrated risks, in the same shape."""
        found = expit(self.slope * _log_odds(risk) + self.offset)
        return np.asarray(np.clip(found, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Linear between points that never fall, constant beyond the first and last."""

    at: Floats
    """(points,) risks, rising."""
    risk: Floats
    """(points,) recalibrated risks."""

    def __call__(self, risk: ArrayLike) -> Probabilities:
        """Return the recalibrated risks, in the same shape."""
        return np.asarray(np.interp(_checked(risk), self.at, self.risk))


def why_not(risk: ArrayLike, infected: ArrayLike) -> str | None:
    """Return why these masked people, both (masked,), cannot be fitted, or None."""
    held = np.asarray(infected, np.bool_)
    positives = int(held.sum())
    for count, word in ((positives, "infected"), (len(held) - positives, "healthy")):
        if count < LEAST:
            return f"{count} {word} among the masked people, {LEAST} are needed"
    if np.isnan(np.asarray(risk, np.float64)).any():
        return "a masked person has no risk"
    return None


def fit_platt(risk: ArrayLike, infected: ArrayLike) -> Platt:
    """Fit the logistic curve of highest likelihood; both arrays (masked,).

    Where higher risks go with fewer infected, the best non-decreasing curve is flat:
    everybody then gets the infected share.
    """
    given, held = _masked(risk, infected)
    targets, odds = _targets(held), _log_odds(given)
    middle, spread = float(odds.mean()), float(odds.std())
    if spread > 0:
        found = fit_logistic((odds - middle) / spread, targets)
        if found.slope > 0:
            slope = found.slope / spread
            return Platt(slope, found.offset - slope * middle)
    return Platt(0.0, float(logit(targets.mean())))


def fit_isotonic(risk: ArrayLike, infected: ArrayLike) -> Isotonic:
    """Fit the non-decreasing function of least squares; both arrays (masked,).

    scikit-learn's, which interpolates linearly between the ends of its steps.
    """
    given, held = _masked(risk, infected)
    fitted = IsotonicRegression(out_of_bounds="clip").fit(given, _targets(held))
    return Isotonic(
        np.asarray(fitted.X_thresholds_, np.float64),
        np.asarray(fitted.y_thresholds_, np.float64),
    )


def _masked(risk: ArrayLike, infected: ArrayLike) -> tuple[Probabilities, Mask]:
    given, held = _checked(risk), np.asarray(infected, np.bool_)
    same_length(risk=given, infected=held)
    if (why := why_not(given, held)) is not None:
        raise DataError(why)
    return given, held


def _targets(infected: Mask) -> Floats:
    positives = int(infected.sum())
    high = (positives + 1) / (positives + 2)
    low = 1 / (len(infected) - positives + 2)
    return np.where(infected, high, low)


def _checked(risk: ArrayLike) -> Probabilities:
    given = np.asarray(risk, np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        raise DataError("only probabilities, between 0 and 1, can be recalibrated")
    return given


def _log_odds(risk: ArrayLike) -> Floats:
    clipped = np.clip(_checked(risk), LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP)
    return np.asarray(logit(clipped))
