"""Make risks mean what they say, by people whose result the method did not see.

Two maps from risk to risk, each fitted on masked people (tested, but their own
result was no part of what made their risk) and then applied to everybody:

- **Platt** scaling (Platt 1999): a logistic curve over the log odds, two numbers.
- **Isotonic** regression (Zadrozny and Elkan 2002): the rising step function
  that fits best, found by pooling adjacent violators.

Both take Platt's targets instead of 0 and 1, ``(N+ + 1) / (N+ + 2)`` for the
infected and ``1 / (N- + 2)`` for the others: few people cannot make anybody's
risk exactly 0 or 1. Neither map ever turns the order of two people round.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.evaluation.calibration import CLIP
from epifalcon.types import Floats, Mask, Probabilities

LEAST = 10
"""Infected, and others, without whom a map would follow chance."""

_STEPS = 100
_ENOUGH = 1e-10


class RiskMap(Protocol):
    """A rising map from risk to risk."""

    def __call__(self, risk: ArrayLike) -> Probabilities:
        """The risks as the map tells them, in the same shape."""
        ...


@dataclass(frozen=True)
class Platt:
    """risk -> expit(slope * logit(risk) + offset), with a slope of 0 or more."""

    slope: float
    offset: float

    def __call__(self, risk: ArrayLike) -> Probabilities:
        """The recalibrated risks, in the same shape."""
        found = expit(self.slope * _log_odds(risk) + self.offset)
        return np.asarray(np.clip(found, CLIP, 1 - CLIP))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Straight between points that never fall, flat beyond the first and last."""

    at: Floats
    """(points,) risks, rising."""
    risk: Floats
    """(points,) what they become."""

    def __call__(self, risk: ArrayLike) -> Probabilities:
        """The recalibrated risks, in the same shape."""
        return np.asarray(np.interp(_risks(risk), self.at, self.risk))


def why_not(risk: ArrayLike, infected: ArrayLike) -> str | None:
    """Why these masked people, both (masked,), cannot be fitted; None if they can."""
    held = np.asarray(infected, np.bool_)
    positives = int(held.sum())
    for count, word in ((positives, "infected"), (len(held) - positives, "healthy")):
        if count < LEAST:
            return f"{count} {word} among the masked people, {LEAST} are needed"
    if np.isnan(np.asarray(risk, np.float64)).any():
        return "a masked person has no risk"
    return None


def fit_platt(risk: ArrayLike, infected: ArrayLike) -> Platt:
    """The logistic curve of highest likelihood for the masked people, both (masked,).

    Where higher risks go with fewer infected, the best curve that does not fall
    is flat: everybody then gets the infected share.
    """
    given, targets = _given(risk, infected)
    odds = _log_odds(given)
    spread = float(odds.std())
    flat = Platt(0.0, float(logit(targets.mean())))
    if spread == 0:
        return flat
    middle = float(odds.mean())
    slope, offset = _most_likely((odds - middle) / spread, targets)
    if slope <= 0:
        return flat
    return Platt(slope / spread, offset - slope / spread * middle)


def fit_isotonic(risk: ArrayLike, infected: ArrayLike) -> Isotonic:
    """The rising function of least squares for the masked people, both (masked,).

    scikit-learn's, which keeps the ends of each step and runs straight between.
    """
    given, targets = _given(risk, infected)
    fitted = IsotonicRegression(out_of_bounds="clip").fit(given, targets)
    return Isotonic(
        np.asarray(fitted.X_thresholds_, np.float64),
        np.asarray(fitted.y_thresholds_, np.float64),
    )


def _given(risk: ArrayLike, infected: ArrayLike) -> tuple[Probabilities, Floats]:
    """The masked people's risks and Platt's targets for them; both (masked,)."""
    given, held = _risks(risk), np.asarray(infected, np.bool_)
    same_length(risk=given, infected=held)
    if (why := why_not(given, held)) is not None:
        raise DataError(why)
    return given, _targets(held)


def _targets(infected: Mask) -> Floats:
    positives = int(infected.sum())
    high = (positives + 1) / (positives + 2)
    low = 1 / (len(infected) - positives + 2)
    return np.where(infected, high, low)


def _risks(risk: ArrayLike) -> Probabilities:
    given = np.asarray(risk, np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        raise DataError("only probabilities, between 0 and 1, can be recalibrated")
    return given


def _log_odds(risk: ArrayLike) -> Floats:
    return np.asarray(logit(np.clip(_risks(risk), CLIP, 1 - CLIP)))


def _most_likely(x: Floats, targets: Floats) -> tuple[float, float]:
    """Slope and offset that minimise the cross entropy, by Newton's method.

    The targets lie inside (0, 1), so the minimum is finite even where one risk
    parts all infected from all others. A step that overshoots is halved.
    """
    design = np.stack([x, np.ones_like(x)], axis=1)
    point = np.array([0.0, float(logit(targets.mean()))])
    loss = _cross_entropy(design @ point, targets)
    for _ in range(_STEPS):
        risk = expit(design @ point)
        slope = design.T @ (risk - targets)
        if np.abs(slope).max() <= _ENOUGH * len(x):
            break
        # The floor keeps the equations solvable where every risk is at an end.
        weight = np.maximum(risk * (1 - risk), 1e-12)
        step = np.linalg.solve(design.T @ (weight[:, None] * design), slope)
        share = 1.0
        while share > 1e-10:
            next_loss = _cross_entropy(design @ (point - share * step), targets)
            if next_loss <= loss:
                break
            share /= 2
        point, loss = point - share * step, next_loss
    return float(point[0]), float(point[1])


def _cross_entropy(odds: Floats, targets: Floats) -> float:
    return float((np.logaddexp(0, odds) - targets * odds).sum())
