"""Log loss, and the logistic curve of one variable with optional normal priors.

Used for recalibration by Platt scaling and for converting a single exposure score
to a probability.

>>> found = fit_logistic(np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0, 1, 0, 1]))
>>> round(found.slope, 3), round(found.offset, 3)
(0.908, -0.454)
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from epifalcon.types import Floats

LOG_LOSS_CLIP = 1e-7
"""Distance from 0 and 1 to which probabilities are clipped in the log loss."""

_MAX_STEPS = 100
_TOLERANCE = 1e-12


def log_losses(
    probability: ArrayLike, positive: ArrayLike, clip: float = LOG_LOSS_CLIP
) -> Floats:
    """Return the log loss of each prediction in nats, in the broadcast shape."""
    likelihood = np.where(positive, probability, 1 - np.asarray(probability))
    return np.asarray(-np.log(np.clip(likelihood, clip, 1.0)))


@dataclass(frozen=True)
class LogisticCurve:
    """x -> expit(slope * x + offset)."""

    slope: float
    offset: float

    def __call__(self, x: ArrayLike) -> Floats:
        """Return the probability at each ``x``, in the same shape."""
        return np.asarray(expit(self.slope * np.asarray(x) + self.offset))


def fit_logistic(
    x: Floats,
    target: ArrayLike,
    *,
    slope_mean: float = 0.0,
    slope_sd: float = math.inf,
    offset_sd: float = math.inf,
    least_slope: float = -math.inf,
) -> LogisticCurve:
    """Fit the maximum a posteriori curve by Newton's method.

    Args:
        x: (people,); best conditioned with mean 0 and variance 1.
        target: (people,) bool, or the probability with which each is positive.
        slope_mean: mean of the normal prior of the slope.
        slope_sd: its standard deviation; infinite for no prior.
        offset_sd: standard deviation of the normal prior of the offset, of mean 0.
        least_slope: lower limit of the slope.

    Without a prior, the targets must not be separable (soft targets never are).
    """
    y = np.asarray(target, np.float64)
    design = np.stack([x, np.ones(len(x))])
    mean = np.array([slope_mean, 0.0])
    precision = np.array([slope_sd, offset_sd]) ** -2.0

    def loss(at: Floats) -> float:
        line = at @ design
        prior = (precision * (at - mean) ** 2).sum() / 2
        return float(prior + (np.logaddexp(0, line) - y * line).sum())

    free = math.isinf(offset_sd)
    start = float(logit(np.clip(y.mean(), 1e-9, 1 - 1e-9))) if free else 0.0
    at = np.array([max(slope_mean, least_slope), start])
    lowest = loss(at)
    for _ in range(_MAX_STEPS):
        probability = expit(at @ design)
        gradient = design @ (probability - y) + precision * (at - mean)
        # The ridge makes the matrix invertible.
        ridge = np.diag(precision + 1e-12)
        curvature = (design * (probability * (1 - probability))) @ design.T + ridge
        step = np.linalg.solve(curvature, gradient)
        before, fraction = at, 1.0
        while fraction > _TOLERANCE:
            candidate = before - fraction * step
            candidate[0] = max(candidate[0], least_slope)
            if (current := loss(candidate)) <= lowest:
                at, lowest = candidate, current
                break
            fraction /= 2
        if np.abs(at - before).max() <= _TOLERANCE * (1 + np.abs(at).max()):
            break
    return LogisticCurve(float(at[0]), float(at[1]))
