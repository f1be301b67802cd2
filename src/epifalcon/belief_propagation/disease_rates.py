"""Estimation of the rates of a disease from held-out people.

Published rates hold for other contacts than those in the traces. If tests have dates,
or if being tested is evidence, wrong rates change the size of the outbreak and not only
its time scale. The rates are then estimated before the inference: they minimise the
negative log likelihood of held-out people, in a run without these people's tests, plus
a Gaussian penalty on the logarithm of each rate. Interval limits come from a quadratic
function fitted to the evaluated losses, and from the error of the approximation.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import minimize

from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.types import Floats

_NAMES = ("r0", "seed_share", "latent_days", "infectious_days")
_PRIOR_SD = np.array([1.0, 1.5, 0.5, 0.5])
"""Prior standard deviations of the log rates."""
_FIRST_FACTORS = tuple(product((1.0, 0.5, 0.25, 0.125), (1.0, 0.2)))
"""Factors on R0 and the initial share that are evaluated first: the loss can have two
minima, an outbreak that grows and one that has passed."""
_STEPS = np.array([0.35, 0.7, 0.25, 0.25])
_EVALUATIONS_PER_RATE = 6
_TOLERANCE = 0.3
_NEAR = 8.0
"""Losses within this distance of the minimum enter the quadratic function."""
_QUANTILE = 1.645
_APPROXIMATION_SD = 0.2
"""Error of the log rates because belief propagation is approximate: in simulated
outbreaks the rates that fit best differ from the true ones by about this much."""
_MOST_SEEDS = 0.5


@dataclass(frozen=True)
class Disease:
    """Rates of a disease, and the share of people infected at the start."""

    pathogen: Pathogen
    seed_share: float


@dataclass(frozen=True)
class RateEstimate:
    """Estimated rates with 90 % intervals."""

    disease: Disease
    intervals: dict[str, tuple[float, float, float]]
    """Value, lower and upper limit of ``r0``, ``seed_share`` and, if the pathogen is
    unknown, ``latent_days`` and ``infectious_days``."""


def evaluations(pathogen: Pathogen) -> int:
    """Return the maximum number of evaluations of the loss."""
    return len(_FIRST_FACTORS) + _EVALUATIONS_PER_RATE * _dimensions(pathogen)


def estimate_rates(loss: Callable[[Disease], float], prior: Disease) -> RateEstimate:
    """Estimate the rates; ``loss`` is a negative log likelihood.

    R0 and the share infected at the start are estimated, and for an unknown pathogen
    also latent and infectious time. ``prior`` has the medians of the prior.
    """
    size = _dimensions(prior.pathogen)
    points: list[Floats] = []
    values: list[float] = []

    def penalised(logs: Floats) -> float:
        total = loss(_changed(prior, logs)) + ((logs / _PRIOR_SD[:size]) ** 2).sum() / 2
        points.append(logs.copy())
        values.append(float(total))
        return values[-1]

    for factors in _FIRST_FACTORS:
        penalised(np.pad(np.log(factors), (0, size - 2)))
    best = points[int(np.argmin(values))]
    minimize(
        penalised,
        best,
        method="Nelder-Mead",
        options={
            "initial_simplex": best
            + np.vstack([np.zeros(size), -np.diag(_STEPS[:size])]),
            "maxfev": _EVALUATIONS_PER_RATE * size,
            "xatol": 0.05,
            "fatol": _TOLERANCE,
        },
    )
    best = points[int(np.argmin(values))]
    deviations = _deviations(np.array(points), np.array(values))
    spread = _QUANTILE * np.hypot(deviations, _APPROXIMATION_SD)
    ends = [
        _rates(_changed(prior, logs)) for logs in (best, best - spread, best + spread)
    ]
    limits = dict(zip(_NAMES[:size], zip(*ends, strict=True), strict=False))
    return RateEstimate(_changed(prior, best), limits)


def _dimensions(pathogen: Pathogen) -> int:
    return 4 if pathogen.is_unknown else 2


def _changed(prior: Disease, logs: Floats) -> Disease:
    """Return the disease with its rates multiplied by ``exp(logs)``."""
    r0, seeds, latent, infectious = np.exp(np.pad(logs, (0, 4 - len(logs)))).tolist()
    old = prior.pathogen
    alpha, mu = old.alpha / latent, old.mu / infectious
    pathogen = replace(old, beta=old.r0 * r0 * mu, alpha=alpha, mu=mu)
    return Disease(pathogen, min(prior.seed_share * seeds, _MOST_SEEDS))


def _rates(disease: Disease) -> tuple[float, ...]:
    pathogen = disease.pathogen
    return pathogen.r0, disease.seed_share, 1 / pathogen.alpha, 1 / pathogen.mu


def _deviations(points: Floats, values: Floats) -> Floats:
    """Return standard deviations from a quadratic fit; the prior's if it fails."""
    size, near = points.shape[1], values <= values.min() + _NEAR
    row, column = np.triu_indices(size)
    offset = points[near] - points[values.argmin()]
    design = np.hstack(
        [np.ones((len(offset), 1)), offset, offset[:, row] * offset[:, column]]
    )
    fit = np.linalg.lstsq(design, values[near], rcond=None)[0][1 + size :]
    curvature = np.zeros((size, size))
    curvature[row, column] = fit
    curvature += curvature.T
    # The penalty is part of the loss, so no direction is flatter than the prior.
    prior = np.diag(_PRIOR_SD[:size] ** -2.0)
    excess, axes = np.linalg.eigh(curvature - prior)
    curvature = prior + (axes * np.maximum(excess, 0)) @ axes.T
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(curvature))))
