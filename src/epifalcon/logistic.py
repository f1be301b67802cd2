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
from scipy.optimize import minimize
from scipy.special import expit, logit

from epifalcon.types import Floats

LOG_LOSS_CLIP = 1e-7
"""Distance from 0 and 1 to which probabilities are clipped in the log loss."""

_TOLERANCE = 1e-15


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
    """Fit the maximum a posteriori curve.

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

    def loss(at: Floats) -> tuple[float, Floats]:
        line, away = at @ design, at - mean
        fit = (np.logaddexp(0, line) - y * line).sum()
        gradient = design @ (expit(line) - y) + precision * away
        return float(fit + (precision * away**2).sum() / 2), gradient

    free = math.isinf(offset_sd)
    offset = float(logit(np.clip(y.mean(), 1e-9, 1 - 1e-9))) if free else 0.0
    found = minimize(
        loss,
        [max(slope_mean, least_slope), offset],
        jac=True,
        method="L-BFGS-B",
        bounds=[(least_slope, math.inf), (-math.inf, math.inf)],
        options={"ftol": _TOLERANCE, "gtol": _TOLERANCE},
    ).x
    return LogisticCurve(float(found[0]), float(found[1]))
