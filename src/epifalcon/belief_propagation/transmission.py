"""Transmission factors of regions, estimated from tested people between sweeps.

A region r multiplies every hazard in it by an unknown factor b_r. Given the current
messages, a tested person contributes two numbers to each region: Q, the probability
of having been infected there, and X, the expected hazard there at b_r = 1 while still
susceptible. Summed over people, infections are approximately Poisson with mean b_r X.
With a gamma prior of shape a and mean g the posterior of b_r is a gamma distribution:

    mean             (Q_r + a) / (X_r + a / g)
    geometric mean   exp(digamma(Q_r + a)) / (X_r + a / g) = exp(E[log b_r])

Hazards use the mean; the geometric mean decides where a person was infected, so that
a region with little data is blamed for little: variational inference. Untested people
are left out, since their Q only repeats the current b.
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
"""Step size, in logarithms, of the global factor. Messages follow with a delay of
some sweeps, so that with a full step the factor would oscillate."""


class TransmissionFactor(NamedTuple):
    """Factor on transmission, (days, 1 + regions) each; column 0 is "not observed"."""

    mean: Floats
    geometric_ratio: Floats
    """Geometric over arithmetic mean: at most 1, less with little data."""
    expected: Floats
    """Prior mean."""

    def each(self, change: Callable[[Floats], Floats]) -> "TransmissionFactor":
        """Apply ``change`` to all three arrays."""
        return TransmissionFactor(*map(change, self))


@dataclass(frozen=True, eq=False)
class Transmission:
    """A model of transmission with its settings."""

    model: TransmissionModel
    settings: TransmissionSettings

    def estimates_after(self, sweep: int) -> bool:
        """Return True if factors are estimated from the sums of ``sweep``."""
        return self.model != "fixed" and sweep >= self.settings.from_sweep

    def estimate(self, tally: Floats, factor: TransmissionFactor) -> TransmissionFactor:
        """Estimate the factors from expected infections and hazard under ``factor``."""
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
        geometric_ratio = np.exp(digamma(shape)) / shape
        return _with_unobserved(
            np.tile(mean, days),
            np.tile(geometric_ratio, days),
            np.full(hazard.shape, prior),
        )

    def _global(self, infections: Floats, hazard: Floats) -> float:
        """Return the most likely global factor under a Laplace prior of its logarithm.

        It is 1 until infections differ from the expectation by ``common_doubt``
        standard errors, and follows the difference beyond that.
        """
        seen, expected = float(infections.sum()), float(hazard.sum())
        doubt = self.settings.common_doubt * float(max(seen, 1.0) ** 0.5)
        if seen - doubt > expected:
            return (seen - doubt) / expected
        if seen + doubt < expected:
            return (seen + doubt) / expected
        return 1.0

    def _prior_mean(self, infections: Floats, hazard: Floats, weight: float) -> float:
        """Return the prior mean of maximum likelihood over all regions."""
        anchor, seen, mean = self.settings.common_weight, hazard > 0, 1.0
        # Regions with little data repeat the prior, so the mean needs some steps.
        for _ in range(_STEPS_TO_THE_MEAN):
            own = (infections[seen] + weight) / (hazard[seen] + weight / mean)
            mean = float((own.sum() + anchor) / (len(own) + anchor))
        return min(max(mean, _LEAST), _MOST)


def _with_unobserved(
    mean: Floats, geometric_ratio: Floats, expected: Floats
) -> TransmissionFactor:
    """Put the column "not observed", where every factor is 1, in front."""
    return TransmissionFactor(mean, geometric_ratio, expected).each(
        lambda one: np.pad(one, ((0, 0), (1, 0)), constant_values=1.0)
    )
