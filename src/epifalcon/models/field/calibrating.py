"""Make risks mean what they say, by tested people whose results were held out.

The odds of everybody are bent by one straight line,

    logit(told) = logit(risk) + offset + (slope - 1) (logit(risk) - middle)

with the middle of the held-out people, and slope and offset of highest posterior:
both have a normal prior around "as it is", so few people bend little. A result is
read by its chances of being wrong, so what is told is infection, not a result.
The order of people never turns round.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from epifalcon.checks import same_length
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.models.field.choosing import losses
from epifalcon.types import Floats, Mask, Probabilities

LEAST_PEOPLE = 20
"""People on whom a line can be fitted at all."""
ENOUGH_PEOPLE = 150
"""Held-out people without whom nothing is chosen. A line of two numbers fitted on n
people loses about 1 / n by chance on others, and chance is chosen more than fairly."""
_SLOPE_SPREAD, _OFFSET_SPREAD = 0.2, 0.5
"""Standard deviations of the prior."""
_LEAST_SLOPE = 0.1
_LEAST_RISK = 1e-6
_PARTS = 5
_STEPS, _ENOUGH = 50, 1e-10
_FARTHEST = 3.0
"""Most that ``with_mean`` moves log odds."""


@dataclass(frozen=True)
class Bend:
    """A rising line over log odds."""

    slope: float = 1.0
    offset: float = 0.0
    middle: float = 0.0

    @property
    def straight(self) -> bool:
        """Whether it leaves every risk as it is."""
        return self.slope == 1 and self.offset == 0

    def __call__(self, risk: Probabilities) -> Probabilities:
        """The risks as the line tells them, in the same shape."""
        if self.straight:
            return risk
        odds = odds_of(risk)
        return np.asarray(expit(odds + _moved(self, odds - self.middle)))

    def with_mean(self, risk: Probabilities, mean: float) -> "Bend":
        """The line with another offset, by which ``risk`` has this mean."""
        if not len(risk):
            return self
        odds = odds_of(risk)
        bent = odds + _moved(self, odds - self.middle)

        def apart(more: float) -> float:
            return float(expit(bent + more).mean()) - mean

        if apart(-_FARTHEST) >= 0 or apart(_FARTHEST) <= 0:
            return self
        more = float(brentq(apart, -_FARTHEST, _FARTHEST, xtol=1e-9))
        return replace(self, offset=self.offset + more)


AS_IT_IS = Bend()


def still(now: Probabilities, risk: Probabilities, told: Probabilities) -> Floats:
    """Of being infected now, if ``told`` stands for ``risk``, of ever having been.

    How many of those infected still are stays the same.
    """
    share = np.divide(now, risk, out=np.zeros_like(now), where=risk > 0)
    return np.asarray(np.clip(share, 0.0, 1.0) * told)


def odds_of(risk: Probabilities) -> Floats:
    """Log odds; risks of 0 and 1 count as a millionth and all but a millionth."""
    return np.asarray(logit(np.clip(risk, _LEAST_RISK, 1 - _LEAST_RISK)))


def result_chance(risk: Probabilities, errors: TestErrors) -> Probabilities:
    """The chance of a positive result, where tests may be wrong."""
    wrong = errors.false_positive
    return np.asarray(wrong + (1 - wrong - errors.false_negative) * risk)


def fit_bend(risk: Probabilities, positive: Mask, errors: TestErrors) -> Bend:
    """The line of highest posterior for held-out people, both (people,)."""
    same_length(risk=risk, positive=positive)
    if len(risk) < LEAST_PEOPLE:
        return AS_IT_IS
    odds = odds_of(risk)
    middle = float(odds.mean())
    away = odds - middle
    bend = Bend(middle=middle)
    lost = _lost(bend, away, positive, errors)
    for _ in range(_STEPS):
        step = _step(bend, away, positive, errors)
        share = 1.0
        while share > _ENOUGH:
            new = Bend(
                max(float(bend.slope - share * step[0]), _LEAST_SLOPE),
                float(bend.offset - share * step[1]),
                middle,
            )
            if (now := _lost(new, away, positive, errors)) <= lost:
                break
            share /= 2
        else:
            return bend
        won, bend, lost = lost - now, new, now
        if won <= _ENOUGH * len(risk):
            break
    return bend


def told_in_turn(
    risk: Probabilities, positive: Mask, errors: TestErrors
) -> Probabilities:
    """Each part of the people by a line that was fitted on the other parts.

    People are taken in their order: every fifth person is of one part.
    """
    part = np.arange(len(risk)) % _PARTS
    told = risk.copy()
    for one in range(_PARTS):
        out = part == one
        told[out] = fit_bend(risk[~out], positive[~out], errors)(risk[out])
    return told


def choose_bend(risk: Probabilities, positive: Mask, errors: TestErrors) -> Bend:
    """The fitted line, where it tells held-out people better; else none.

    People told by a line without them must win by more than one standard error, and
    there must be ``ENOUGH_PEOPLE``.
    """
    told = told_in_turn(risk, positive, errors)
    before = losses(result_chance(risk, errors), positive)
    after = losses(result_chance(told, errors), positive)
    if not wins(before - after):
        return AS_IT_IS
    return fit_bend(risk, positive, errors)


def wins(gain: Floats) -> bool:
    """Whether a gain (people,) is more than one standard error above nothing.

    Never that of fewer than ``ENOUGH_PEOPLE``.
    """
    if len(gain) < ENOUGH_PEOPLE:
        return False
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def _moved(bend: Bend, away: Floats) -> Floats:
    return np.asarray(bend.offset + (bend.slope - 1) * away)


def _lost(bend: Bend, away: Floats, positive: Mask, errors: TestErrors) -> float:
    """Minus the log posterior."""
    risk = expit(away + bend.middle + _moved(bend, away))
    told = losses(result_chance(risk, errors), positive).sum()
    prior = ((bend.slope - 1) / _SLOPE_SPREAD) ** 2 + (
        bend.offset / _OFFSET_SPREAD
    ) ** 2
    return float(told + prior / 2)


def uncertainty(
    bend: Bend, risk: Probabilities, positive: Mask, errors: TestErrors
) -> Floats:
    """(2, 2) covariance of slope and offset, fitted on these people, around ``bend``.

    That of the prior where there are too few.
    """
    if len(risk) < LEAST_PEOPLE:
        return np.diag([_SLOPE_SPREAD**2, _OFFSET_SPREAD**2])
    away = odds_of(risk) - bend.middle
    return np.asarray(np.linalg.inv(_slopes(bend, away, positive, errors)[1]))


def _step(bend: Bend, away: Floats, positive: Mask, errors: TestErrors) -> Floats:
    """Newton's step with Fisher's information, (slope, offset)."""
    slope, bent = _slopes(bend, away, positive, errors)
    return np.asarray(np.linalg.solve(bent, slope))


def _slopes(
    bend: Bend, away: Floats, positive: Mask, errors: TestErrors
) -> tuple[Floats, Floats]:
    """Gradient (2,) and information (2, 2) of minus the log posterior."""
    risk = expit(away + bend.middle + _moved(bend, away))
    chance = np.clip(result_chance(risk, errors), _LEAST_RISK, 1 - _LEAST_RISK)
    power = 1 - errors.false_positive - errors.false_negative
    rise = power * risk * (1 - risk)
    spread = chance * (1 - chance)
    design = np.stack([away, np.ones_like(away)])
    prior = np.array([_SLOPE_SPREAD, _OFFSET_SPREAD]) ** -2.0
    slope = design @ ((chance - positive) / spread * rise)
    slope += prior * np.array([bend.slope - 1, bend.offset])
    bent = (design * (rise**2 / spread)) @ design.T + np.diag(prior)
    return slope, bent
