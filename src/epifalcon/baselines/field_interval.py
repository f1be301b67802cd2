"""How sure a risk is: an interval from an ensemble of runs of the field.

Each run of the ensemble knows a random half of the tested people, whose spread is
that of a run with all of them (half-sampling), and takes rates of the disease that
differ from the published ones. Their odds are compared without their common level:
that one is fitted to held-out people, and its error is added, from the fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.models.field.calibrating import Bend, odds_of
from epifalcon.types import Floats, Mask, Probabilities

COVERED = 0.9
"""What an interval is to hold."""
_RATE_SPREAD = 0.2
"""Standard deviation of the logarithm of each rate."""
_LIKE_OTHERS = 4.0
"""The spread of all people counts like so many runs in that of each."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Between which risks a person's lies; (people,) each."""

    low: Probabilities
    high: Probabilities


def shaken(pathogen: Pathogen, rng: np.random.Generator) -> Pathogen:
    """The disease with other rates, near the published ones."""
    beta, alpha, mu = np.exp(_RATE_SPREAD * rng.standard_normal(3))
    return replace(
        pathogen,
        beta=pathogen.beta * float(beta),
        alpha=pathogen.alpha * float(alpha),
        mu=pathogen.mu * float(mu),
    )


def spread_of(risks: Sequence[Probabilities], untested: Mask) -> Floats:
    """(people,) variance of log odds over runs, their common level aside.

    ``untested`` are those whose mean is the level; everybody where there is none.
    """
    odds = np.stack([odds_of(risk) for risk in risks])
    level = odds[:, untested] if untested.any() else odds
    away = odds - level.mean(axis=1, keepdims=True)
    own = away.var(axis=0, ddof=1)
    runs = len(risks) - 1
    pooled = (runs * own + _LIKE_OTHERS * own.mean()) / (runs + _LIKE_OTHERS)
    return np.asarray(pooled)


def interval(
    told: Probabilities, spread: Floats, bend: Bend, unsure: Floats
) -> Interval:
    """Around ``told`` (people,), from the ``spread`` of the odds before bending.

    ``unsure`` (2, 2) is the covariance of the bend's slope and offset.
    """
    odds = odds_of(told)
    before = (odds - bend.offset - bend.middle) / bend.slope
    design = np.stack([before, np.ones_like(before)])
    level = np.einsum("ip,ij,jp->p", design, unsure, design)
    reach = norm.ppf((1 + COVERED) / 2) * np.sqrt(bend.slope**2 * spread + level)
    return Interval(
        np.asarray(np.minimum(expit(odds - reach), told)),
        np.asarray(np.maximum(expit(odds + reach), told)),
    )
