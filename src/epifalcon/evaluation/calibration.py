"""Recalibration: two non-decreasing maps from risk to risk.

Fitted on masked people (tested, but their own result did not enter their risk) and
applied to everybody:

- **Platt** scaling (Platt 1999): a logistic curve over the log odds, two parameters.
- **Isotonic** regression (Zadrozny and Elkan 2002): the best non-decreasing step
  function, found by pooling adjacent violators.

Both fit Platt's targets instead of 0 and 1, ``(N+ + 1) / (N+ + 2)`` for the infected
and ``1 / (N- + 2)`` for the others, so that no risk becomes exactly 0 or 1.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression
from scipy.special import logit

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.logistic import LOG_LOSS_CLIP, LogisticCurve, fit_logistic
from epifalcon.types import Floats, Mask, Probabilities

Recalibration = Callable[[ArrayLike], Probabilities]
"""A map from risks (people,) to recalibrated risks."""

LEAST = 10
"""Minimum number of infected and of uninfected masked people for a fit."""


def why_not(risk: ArrayLike, infected: ArrayLike) -> str | None:
    """Return the reason why a fit is impossible, or None; both arrays (masked,)."""
    labels = np.asarray(infected, np.bool_)
    positives = int(labels.sum())
    for count, word in ((positives, "infected"), (len(labels) - positives, "healthy")):
        if count < LEAST:
            return f"{count} {word} among the masked people, {LEAST} are needed"
    if np.isnan(np.asarray(risk, np.float64)).any():
        return "a masked person has no risk"
    return None


def fit_platt(risk: ArrayLike, infected: ArrayLike) -> Recalibration:
    """Fit the logistic curve by maximum likelihood; both arrays (masked,).

    If the slope would be negative, the best non-decreasing curve is constant:
    everybody gets the infected share.
    """
    risks, labels = _masked(risk, infected)
    targets, odds = _targets(labels), _log_odds(risks)
    middle, spread = odds.mean(), odds.std() or 1.0
    curve = fit_logistic((odds - middle) / spread, targets)
    if curve.slope <= 0 or not odds.std():
        curve = LogisticCurve(0.0, float(logit(targets.mean())))

    def recalibrated(new: ArrayLike) -> Probabilities:
        found = curve((_log_odds(new) - middle) / spread)
        return np.asarray(np.clip(found, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP))

    return recalibrated


def fit_isotonic(risk: ArrayLike, infected: ArrayLike) -> Recalibration:
    """Fit an isotonic regression; both arrays (masked,)."""
    risks, labels = _masked(risk, infected)
    values, group = np.unique(risks, return_inverse=True)
    people = np.bincount(group)
    means = np.bincount(group, _targets(labels)) / people
    fitted = isotonic_regression(means, weights=people).x
    return lambda new: np.interp(_checked(new), values, fitted)


def _masked(risk: ArrayLike, infected: ArrayLike) -> tuple[Probabilities, Mask]:
    risks, labels = _checked(risk), np.asarray(infected, np.bool_)
    same_length(risk=risks, infected=labels)
    if (why := why_not(risks, labels)) is not None:
        raise DataError(why)
    return risks, labels


def _targets(infected: Mask) -> Floats:
    positives = int(infected.sum())
    high = (positives + 1) / (positives + 2)
    low = 1 / (len(infected) - positives + 2)
    return np.where(infected, high, low)


def _checked(risk: ArrayLike) -> Probabilities:
    risks = np.asarray(risk, np.float64)
    if not ((risks >= 0) & (risks <= 1)).all():
        raise DataError("only probabilities, between 0 and 1, can be recalibrated")
    return risks


def _log_odds(risk: ArrayLike) -> Floats:
    clipped = np.clip(_checked(risk), LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP)
    return np.asarray(logit(clipped))
