"""Transmission factors of regions, estimated from tested people between sweeps.

A region r multiplies every hazard in it by an unknown factor b_r. Given the current
messages, a tested person contributes two numbers to each region: Q, the probability
of having been infected there, and X, the expected hazard there at b_r = 1 while still
susceptible. Summed over people, infections are approximately Poisson with mean b_r X.
With a gamma prior of shape a and mean g the posterior of b_r is a gamma distribution:

    mean             (Q_r + a) / (X_r + a / g)
    geometric mean   exp(digamma(Q_r + a)) / (X_r + a / g) = exp(E[log b_r])

Hazards use the mean. Infections are attributed to regions by the geometric mean, as in
variational inference, so that regions with little data get few. Untested people are
excluded, since their Q only reproduces the current b.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import digamma

from epifalcon.belief_propagation.settings import (
    TransmissionModel,
    TransmissionSettings,
)
from epifalcon.types import Floats

_LEAST, _MOST = 0.02, 50.0
_STEPS_TO_THE_MEAN = 30
_GLOBAL_STEP = 0.5
"""Step size of the log global factor. Messages follow with a delay of some sweeps, so a
full step would make the factor oscillate."""


class TransmissionFactor(NamedTuple):
    """Factors on transmission, (days, 1 + regions) each; column 0 is "not observed"."""

    mean: Floats
    geometric_ratio: Floats
    """Ratio of geometric to arithmetic mean: at most 1, smaller with less data."""
    expected: Floats
    """Prior mean of the factors."""

    def each(self, change: Callable[[Floats], Floats]) -> "TransmissionFactor":
        """Return the record with ``change`` applied to each of its three arrays."""
        return TransmissionFactor(*map(change, self))


@dataclass(frozen=True, eq=False)
class Transmission:
    """Transmission model with its settings."""

    model: TransmissionModel
    settings: TransmissionSettings

    def estimates_after(self, sweep: int) -> bool:
        """Return True if factors are estimated after sweep number ``sweep``."""
        return self.model != "fixed" and sweep >= self.settings.from_sweep

    def estimate(self, tally: Floats, factor: TransmissionFactor) -> TransmissionFactor:
        """Return new factors from expected infections and hazards under ``factor``."""
        infections, hazard = tally[0, :, 1:], (tally[1] / factor.mean)[:, 1:]
        expected = factor.expected[:, 1:]
        if self.model == "global":
            found = np.clip(self._global(infections, hazard), _LEAST, _MOST)
            common = expected * (found / expected) ** _GLOBAL_STEP
            return _with_unobserved(common, np.ones_like(common), common)
        settings, days = self.settings, (len(hazard), 1)
        is_strong = self.model == "regional-strong"
        weight = settings.strong_weight if is_strong else settings.weight
        infections, by_region = infections.sum(axis=0), hazard.sum(axis=0)
        prior = self._prior_mean(infections, by_region, weight)
        shape = infections + weight
        mean = np.clip(prior * shape / (prior * by_region + weight), _LEAST, _MOST)
        ratio = np.tile(np.exp(digamma(shape)) / shape, days)
        expected = np.full(hazard.shape, prior)
        return _with_unobserved(np.tile(mean, days), ratio, expected)

    def _global(self, infections: Floats, hazard: Floats) -> float:
        """Return the MAP global factor under a Laplace prior on its logarithm.

        It is 1 while infections differ from the expectation by less than
        ``common_doubt`` standard errors, and follows the excess beyond that.
        """
        seen, expected = float(infections.sum()), float(hazard.sum())
        doubt = self.settings.common_doubt * float(max(seen, 1.0) ** 0.5)
        nearest = min(max(expected, seen - doubt), seen + doubt)
        return 1.0 if nearest == expected else nearest / expected

    def _prior_mean(self, infections: Floats, hazard: Floats, weight: float) -> float:
        """Estimate the prior mean of the regional factors by EM, shrunk towards 1."""
        anchor, seen, mean = self.settings.common_weight, hazard > 0, 1.0
        # Regions with little data repeat the prior, so the mean needs some steps.
        for _ in range(_STEPS_TO_THE_MEAN):
            own = (infections[seen] + weight) / (hazard[seen] + weight / mean)
            mean = float((own.sum() + anchor) / (len(own) + anchor))
        return min(max(mean, _LEAST), _MOST)


def _with_unobserved(*arrays: Floats) -> TransmissionFactor:
    """Prepend the column "not observed", with a factor of 1."""
    pads = ((0, 0), (1, 0))
    padded = (np.pad(one, pads, constant_values=1.0) for one in arrays)
    return TransmissionFactor(*padded)
