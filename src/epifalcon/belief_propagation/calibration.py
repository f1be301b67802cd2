"""Platt scaling with a Gaussian prior, model selection, and intervals of risks.

Log odds are moved by one increasing line,

    logit(q) = logit(p) + offset + (slope - 1) (logit(p) - middle)

where ``middle`` is the mean of the held-out people. Slope and offset are those of
highest posterior; both have a Gaussian prior around the identity, so few people have
little effect. The likelihood includes test errors, so q is the probability of
infection, not of a positive result.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit
from scipy.stats import norm

from epifalcon.belief_propagation.settings import TransmissionModel
from epifalcon.checks import same_length
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.test_results import TestErrors
from epifalcon.logistic import log_losses
from epifalcon.types import Floats, Mask, Probabilities

LEAST_PEOPLE = 20
"""People needed to fit a line at all."""
ENOUGH_PEOPLE = 150
"""Held-out people needed to use it. A line of two numbers fitted on n people loses
about 1 / n on others by chance."""
COVERED = 0.9
"""Nominal coverage of an interval."""
_PRIOR_SD = np.array([0.2, 0.5])
"""Standard deviations of slope and offset."""
_LEAST_SLOPE = 0.1
_LEAST_RISK = 1e-6
risk_losses = partial(log_losses, clip=_LEAST_RISK)
"""The log loss of each person."""
_PARTS = 5
_FARTHEST = 3.0
"""Largest change of log odds by ``with_mean``."""
_RATE_SD = 0.2
"""Standard deviation of the logarithm of each rate in an ensemble."""
_POOLED_RUNS = 4.0
"""Weight of the spread of all people in that of each, in runs."""


@dataclass(frozen=True)
class PlattScaling:
    """An increasing line over log odds."""

    slope: float = 1.0
    offset: float = 0.0
    middle: float = 0.0

    @property
    def is_identity(self) -> bool:
        """Return True if no risk changes."""
        return self.slope == 1 and self.offset == 0

    def __call__(self, risk: Probabilities) -> Probabilities:
        """Return the recalibrated risks, in the same shape."""
        if self.is_identity:
            return risk
        odds = log_odds(risk)
        moved = self.offset + (self.slope - 1) * (odds - self.middle)
        return np.asarray(expit(odds + moved))

    def with_mean(self, risk: Probabilities, mean: float) -> "PlattScaling":
        """Return the line with the offset at which ``risk`` gets this mean."""
        if not len(risk):
            return self
        odds = log_odds(self(risk))

        def difference(more: float) -> float:
            return float(expit(odds + more).mean()) - mean

        if difference(-_FARTHEST) >= 0 or difference(_FARTHEST) <= 0:
            return self
        more = float(brentq(difference, -_FARTHEST, _FARTHEST, xtol=1e-9))
        return replace(self, offset=self.offset + more)


IDENTITY = PlattScaling()


def log_odds(risk: Probabilities) -> Floats:
    """Return log odds; risks are clipped to [1e-6, 1 - 1e-6]."""
    return np.asarray(logit(np.clip(risk, _LEAST_RISK, 1 - _LEAST_RISK)))


def current_given_ever(
    now: Probabilities, risk: Probabilities, recalibrated: Probabilities
) -> Floats:
    """Rescale current risks so that they are the same share of the risk as before."""
    share = np.divide(now, risk, out=np.zeros_like(now), where=risk > 0)
    return np.asarray(np.clip(share, 0.0, 1.0) * recalibrated)


def chance_of_positive(risk: Probabilities, errors: TestErrors) -> Probabilities:
    """Return the probability of a positive result."""
    wrong = errors.false_positive
    return np.asarray(wrong + (1 - wrong - errors.false_negative) * risk)


class _Posterior(NamedTuple):
    """Minus the log posterior of a line, its gradient and Fisher information."""

    loss: float
    gradient: Floats
    information: Floats

    @classmethod
    def at(
        cls,
        line: Floats,
        risk: Probabilities,
        positive: Mask,
        errors: TestErrors,
        middle: float,
    ) -> "_Posterior":
        """Evaluate at ``line``: slope and offset."""
        centred = log_odds(risk) - middle
        design = np.stack([centred, np.ones_like(centred)])
        fitted = np.asarray(expit(middle + line @ design))
        chance = chance_of_positive(fitted, errors)
        chance = np.clip(chance, _LEAST_RISK, 1 - _LEAST_RISK)
        power = 1 - errors.false_positive - errors.false_negative
        slope, variance = power * fitted * (1 - fitted), chance * (1 - chance)
        away = (line - [1.0, 0.0]) / _PRIOR_SD
        return cls(
            float(risk_losses(chance, positive).sum() + (away**2).sum() / 2),
            design @ ((chance - positive) / variance * slope) + away / _PRIOR_SD,
            (design * slope**2 / variance) @ design.T + np.diag(_PRIOR_SD**-2.0),
        )


def fit_scaling(
    risk: Probabilities, positive: Mask, errors: TestErrors
) -> PlattScaling:
    """Fit the line of highest posterior to held-out people, both (people,)."""
    same_length(risk=risk, positive=positive)
    if len(risk) < LEAST_PEOPLE:
        return IDENTITY
    middle = float(log_odds(risk).mean())

    def posterior(line: Floats) -> tuple[float, Floats]:
        value = _Posterior.at(line, risk, positive, errors, middle)
        return value.loss, value.gradient

    result = minimize(
        posterior,
        np.array([1.0, 0.0]),
        jac=True,
        method="L-BFGS-B",
        bounds=[(_LEAST_SLOPE, None), (None, None)],
        options={"ftol": 1e-15, "gtol": 1e-8},
    )
    return PlattScaling(float(result.x[0]), float(result.x[1]), middle)


def choose_scaling(
    risk: Probabilities, positive: Mask, errors: TestErrors
) -> PlattScaling:
    """Fit a line if cross-fitted lines lower the log loss, else return the identity.

    The gain must exceed one standard error, on at least ``ENOUGH_PEOPLE``.
    """
    if len(risk) < ENOUGH_PEOPLE:
        return IDENTITY
    fitted, part = risk.copy(), np.arange(len(risk)) % _PARTS
    for number in range(_PARTS):
        out = part == number
        fitted[out] = fit_scaling(risk[~out], positive[~out], errors)(risk[out])
    before, after = (
        risk_losses(chance_of_positive(p, errors), positive) for p in (risk, fitted)
    )
    losses = ModelLosses.of(np.stack([before, after], axis=1))
    return fit_scaling(risk, positive, errors) if losses.is_better(1, 0) else IDENTITY


def covariance(
    line: PlattScaling, risk: Probabilities, positive: Mask, errors: TestErrors
) -> Floats:
    """Return the (2, 2) covariance of slope and offset; the prior's if few people."""
    if len(risk) < LEAST_PEOPLE:
        return np.diag(_PRIOR_SD**2)
    at = np.array([line.slope, line.offset])
    posterior = _Posterior.at(at, risk, positive, errors, line.middle)
    return np.asarray(np.linalg.inv(posterior.information))


@dataclass(frozen=True, eq=False)
class ModelLosses:
    """Sums of log losses under each model and of their products; sites' sums add."""

    people: int
    total: Floats
    """(models,)"""
    products: Floats
    """(models, models)"""

    @classmethod
    def of(cls, losses: Floats) -> "ModelLosses":
        """Sum ``losses`` (people, models)."""
        return cls(len(losses), losses.sum(axis=0), losses.T @ losses)

    def __add__(self, other: "ModelLosses") -> "ModelLosses":
        return ModelLosses(
            self.people + other.people,
            self.total + other.total,
            self.products + other.products,
        )

    def best(
        self,
        models: Sequence[TransmissionModel],
        alike: Collection[TransmissionModel] = (),
    ) -> TransmissionModel:
        """Select the model of least loss; ``models`` are sorted from simple to rich.

        A richer model must improve on the best simpler one by more than one standard
        error; models in ``alike`` are equally rich.
        """
        best = 0
        for number in range(1, len(models)):
            richer = not {models[best], models[number]} <= set(alike)
            if self.is_better(number, best, richer=richer):
                best = number
        return models[best]

    def is_better(self, model: int, other: int, *, richer: bool = True) -> bool:
        """Return True if the mean gain of ``model`` over ``other`` is large enough.

        For a richer model it must exceed its standard error.
        """
        if self.people < 2:
            return False
        gain = float(self.total[other] - self.total[model]) / self.people
        product = self.products
        squares = product[other, other] + product[model, model]
        squares -= 2 * product[other, model]
        spread = max(float(squares) - self.people * gain * gain, 0.0)
        error = float(np.sqrt(spread / (self.people - 1) / self.people))
        return gain > (error if richer else 0.0)


@dataclass(frozen=True, eq=False)
class RiskInterval:
    """Bounds of risks; (people,) each."""

    low: Probabilities
    high: Probabilities


def perturbed(pathogen: Pathogen, rng: np.random.Generator) -> Pathogen:
    """Return the pathogen with rates drawn near the published ones."""
    beta, alpha, mu = np.exp(_RATE_SD * rng.standard_normal(3))
    return replace(
        pathogen,
        beta=pathogen.beta * float(beta),
        alpha=pathogen.alpha * float(alpha),
        mu=pathogen.mu * float(mu),
    )


def ensemble_variance(risks: Sequence[Probabilities], untested: Mask) -> Floats:
    """(people,) variance of log odds over runs, without their common level.

    The level is the mean over ``untested`` people, or over everybody if there are
    none: it is fitted to held-out people, and its error is added from that fit.
    """
    odds = np.stack([log_odds(risk) for risk in risks])
    level = odds[:, untested] if untested.any() else odds
    own = (odds - level.mean(axis=1, keepdims=True)).var(axis=0, ddof=1)
    runs = len(risks) - 1
    return np.asarray((runs * own + _POOLED_RUNS * own.mean()) / (runs + _POOLED_RUNS))


def interval(
    risk: Probabilities, variance: Floats, line: PlattScaling, uncertainty: Floats
) -> RiskInterval:
    """Return intervals around recalibrated ``risk`` (people,).

    ``variance`` is of the log odds before recalibration, ``uncertainty`` (2, 2) the
    covariance of slope and offset.
    """
    odds = log_odds(risk)
    before = (odds - line.offset - line.middle) / line.slope
    design = np.stack([before, np.ones_like(before)])
    level = np.einsum("ip,ij,jp->p", design, uncertainty, design)
    reach = norm.ppf((1 + COVERED) / 2) * np.sqrt(line.slope**2 * variance + level)
    return RiskInterval(
        np.asarray(np.minimum(expit(odds - reach), risk)),
        np.asarray(np.maximum(expit(odds + reach), risk)),
    )


def line_from(figures: Mapping[str, float]) -> PlattScaling:
    """Return the line stored in a run's log; the identity if there is none."""
    if "slope" not in figures:
        return IDENTITY
    return PlattScaling(figures["slope"], figures["offset"], figures["middle"])
