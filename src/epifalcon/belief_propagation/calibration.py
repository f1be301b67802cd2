"""Platt scaling with a Gaussian prior, model selection, and intervals of risks.

Risks are recalibrated by an increasing linear map of their log odds,

    logit(q) = logit(p) + offset + (slope - 1) (logit(p) - middle)

where ``middle`` is the mean log odds of the held-out people. Slope and offset are the
maximum a posteriori estimates under a Gaussian prior around the identity, so few people
have little effect. The likelihood is that of each person's test results, so q is the
probability of infection, not of a positive result.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit
from scipy.stats import norm

from epifalcon.belief_propagation.seir_chain import OwnTests
from epifalcon.belief_propagation.settings import TransmissionModel
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.types import Additive, Floats, Mask, Probabilities

LEAST_PEOPLE = 20
"""Minimum number of held-out people for fitting slope and offset."""
ENOUGH_PEOPLE = 150
"""Minimum number of held-out people for using the fit. Two parameters fitted on n
people raise the mean log loss of other people by about 1 / n."""
COVERED = 0.9
"""Nominal coverage of an interval."""
_PRIOR_SD = np.array([0.2, 0.5])
"""Prior standard deviations of slope and offset."""
_LEAST_SLOPE = 0.1
_LEAST_RISK = 1e-6
_PARTS = 5
_FARTHEST = 3.0
"""Largest change of the log odds that ``PlattScaling.with_mean`` may make."""
_RATE_SD = 0.2
"""Standard deviation of the log rates of the pathogen over the runs of an ensemble."""
_POOLED_RUNS = 4.0
"""Weight of the mean variance over people, as a number of additional runs."""


@dataclass(frozen=True)
class PlattScaling:
    """Platt scaling: an increasing linear map of log odds."""

    slope: float = 1.0
    offset: float = 0.0
    middle: float = 0.0

    @property
    def is_identity(self) -> bool:
        """True if the scaling leaves every risk unchanged."""
        return self.slope == 1 and self.offset == 0

    def __call__(self, risk: Probabilities) -> Probabilities:
        """Return the recalibrated risks, in the same shape."""
        if self.is_identity:
            return risk
        odds = log_odds(risk)
        moved = self.offset + (self.slope - 1) * (odds - self.middle)
        return np.asarray(expit(odds + moved))

    def with_mean(self, risk: Probabilities, mean: float) -> "PlattScaling":
        """Return the scaling with the offset that gives ``risk`` the mean ``mean``."""
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
    """Return the log odds of risks, clipped to [1e-6, 1 - 1e-6] before."""
    return np.asarray(logit(np.clip(risk, _LEAST_RISK, 1 - _LEAST_RISK)))


def current_given_ever(
    now: Probabilities, risk: Probabilities, recalibrated: Probabilities
) -> Floats:
    """Rescale current risks ``now`` by the factor ``recalibrated / risk``."""
    share = np.divide(now, risk, out=np.zeros_like(now), where=risk > 0)
    return np.asarray(np.clip(share, 0.0, 1.0) * recalibrated)


class _Posterior(NamedTuple):
    """Negative log posterior of a scaling, its gradient and Fisher information."""

    loss: float
    gradient: Floats
    information: Floats

    @classmethod
    def at(
        cls, line: Floats, risk: Probabilities, tests: OwnTests, middle: float
    ) -> "_Posterior":
        """Evaluate the posterior at ``line``, an array of slope and offset."""
        centred = log_odds(risk) - middle
        design = np.stack([centred, np.ones_like(centred)])
        fitted = np.asarray(expit(middle + line @ design))
        chance = np.clip(tests.likelihood(fitted), _LEAST_RISK, 1 - _LEAST_RISK)
        slope = (tests.infected - tests.healthy) * fitted * (1 - fitted)
        away = (line - [1.0, 0.0]) / _PRIOR_SD
        return cls(
            float(-np.log(chance).sum() + (away**2).sum() / 2),
            -design @ (slope / chance) + away / _PRIOR_SD,
            (design * slope**2 / (chance * (1 - chance))) @ design.T
            + np.diag(_PRIOR_SD**-2.0),
        )


def fit_scaling(risk: Probabilities, tests: OwnTests) -> PlattScaling:
    """Return the maximum a posteriori scaling, fitted to held-out people, (people,)."""
    if len(risk) < LEAST_PEOPLE:
        return IDENTITY
    middle = float(log_odds(risk).mean())

    def posterior(line: Floats) -> tuple[float, Floats]:
        value = _Posterior.at(line, risk, tests, middle)
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


def choose_scaling(risk: Probabilities, tests: OwnTests) -> PlattScaling:
    """Return a fitted scaling if cross-fitting lowers the log loss, else the identity.

    The improvement must exceed one standard error, on at least ``ENOUGH_PEOPLE``.
    """
    if len(risk) < ENOUGH_PEOPLE:
        return IDENTITY
    fitted, part = risk.copy(), np.arange(len(risk)) % _PARTS
    for number in range(_PARTS):
        out = part == number
        fitted[out] = fit_scaling(risk[~out], tests.of(~out))(risk[out])
    losses = ModelLosses.of(
        np.stack([tests.losses(risk), tests.losses(fitted)], axis=1)
    )
    return fit_scaling(risk, tests) if losses.is_better(1, 0) else IDENTITY


def covariance(line: PlattScaling, risk: Probabilities, tests: OwnTests) -> Floats:
    """Return the covariance of slope and offset, (2, 2); the prior's for few people."""
    if len(risk) < LEAST_PEOPLE:
        return np.diag(_PRIOR_SD**2)
    at = np.array([line.slope, line.offset])
    posterior = _Posterior.at(at, risk, tests, line.middle)
    return np.asarray(np.linalg.inv(posterior.information))


@dataclass(frozen=True, eq=False)
class ModelLosses(Additive):
    """Log losses of models and their products, summed over people; sites' sums add."""

    people: int
    total: Floats
    """Sum of the log losses of each model, (models,)."""
    products: Floats
    """Sum of the products of the log losses of two models, (models, models)."""

    @classmethod
    def of(cls, losses: Floats) -> "ModelLosses":
        """Return the sums of ``losses``, (people, models), over people."""
        return cls(len(losses), losses.sum(axis=0), losses.T @ losses)

    def best(
        self,
        models: Sequence[TransmissionModel],
        alike: Collection[TransmissionModel] = (),
    ) -> TransmissionModel:
        """Return the model with the lowest loss; ``models`` go from simple to complex.

        A more complex model must improve on the best simpler one by more than one
        standard error; models in ``alike`` are equally complex.
        """
        best = 0
        for number in range(1, len(models)):
            richer = not {models[best], models[number]} <= set(alike)
            if self.is_better(number, best, richer=richer):
                best = number
        return models[best]

    def is_better(self, model: int, other: int, *, richer: bool = True) -> bool:
        """Return True if ``model`` has a lower mean loss than ``other``.

        If ``richer``, the difference must also exceed its standard error.
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
    """Lower and upper bounds of risks, (people,) each."""

    low: Probabilities
    high: Probabilities


def perturbed(pathogen: Pathogen, rng: np.random.Generator) -> Pathogen:
    """Return the pathogen with log-normal random factors on its rates."""
    beta, alpha, mu = np.exp(_RATE_SD * rng.standard_normal(3)).tolist()
    p = pathogen
    return replace(p, beta=p.beta * beta, alpha=p.alpha * alpha, mu=p.mu * mu)


def ensemble_variance(risks: Sequence[Probabilities], untested: Mask) -> Floats:
    """Return the variance of each person's log odds over runs, (people,).

    The mean log odds of each run, over ``untested`` people or, if there are none, over
    everybody, is subtracted first: its error is part of the scaling's covariance.
    """
    odds = np.stack([log_odds(risk) for risk in risks])
    level = odds[:, untested] if untested.any() else odds
    own = (odds - level.mean(axis=1, keepdims=True)).var(axis=0, ddof=1)
    runs = len(risks) - 1
    return np.asarray((runs * own + _POOLED_RUNS * own.mean()) / (runs + _POOLED_RUNS))


def interval(
    risk: Probabilities, variance: Floats, line: PlattScaling, uncertainty: Floats
) -> RiskInterval:
    """Return intervals around the recalibrated ``risk``, (people,).

    ``variance`` (people,) is the variance of the log odds before recalibration;
    ``uncertainty`` (2, 2) is the covariance of slope and offset.
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
    """Return the scaling stored in the log of a run; the identity if none is stored."""
    if "slope" not in figures:
        return IDENTITY
    return PlattScaling(figures["slope"], figures["offset"], figures["middle"])
