"""From one figure of exposure to a probability: a curve that never falls."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from epifalcon.baselines.method import Scores
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.types import Floats, Mask, Probabilities

_PRIOR_SPREAD = 10.0
"""Of the slope per standard deviation; matters only where results are very few."""
_MOST_STEPS = 100
_ROUNDING = 1e-9
"""Scores that differ by less are equal."""


def rising_risk(score: Floats, status: NDArray[np.int8]) -> Probabilities:
    """Probability of infection at each ``score`` (people,), in [0, 1]: (people,).

    A logistic curve fitted to the tested people; ``status`` (people,) is 1 for
    tested positive, 0 for negative, -1 for not tested. It never falls: where
    people with lower scores were infected more often, everybody gets the share
    of positive tests.

    Raises ``DataError`` unless there are positive and negative results.
    """
    for wanted, word in ((1, "positive"), (0, "negative")):
        if not (status == wanted).any():
            raise DataError(
                f"nobody tested {word}: exposure cannot be turned into a "
                "probability by one kind of result alone"
            )
    tested = status >= 0
    known, infected = score[tested], status[tested] == 1
    centre, spread = known.mean(), known.std()
    if spread > _ROUNDING:
        level, slope = _logistic_fit((known - centre) / spread, infected)
        if slope > 0:
            risk: Probabilities = expit(level + slope * (score - centre) / spread)
            return risk
    return np.full(len(score), infected.mean())


def rising_scores(score: Floats, known: Known) -> Scores:
    """The rising risk of one figure for each person, (people,).

    The figure of a tested person is without its own result, so its risk is that
    of somebody not tested: all tested people are masked. (The two numbers of the
    curve come from all of them together.)
    """
    risk = rising_risk(score, known.status)
    tested = np.flatnonzero(known.tested).astype(np.int32)
    return Scores(risk, tested, risk[tested], parameters=2)


def _logistic_fit(x: Floats, infected: Mask) -> tuple[float, float]:
    """Level and slope of the most likely curve, by Newton's method.

    The slope has a normal prior, so there is a most likely one even where the
    two kinds do not overlap.
    """
    sides = np.stack([np.ones(len(x)), x])
    prior = np.array([0.0, _PRIOR_SPREAD**-2])

    def lost(at: Floats) -> float:
        line = at @ sides
        fit = np.logaddexp(0, line).sum() - line[infected].sum()
        return float(fit + (prior * at**2).sum() / 2)

    at = np.array([logit(infected.mean()), 0.0])
    for _ in range(_MOST_STEPS):
        risk = expit(at @ sides)
        gradient = sides @ (risk - infected) + prior * at
        bend = (sides * (risk * (1 - risk))) @ sides.T + np.diag(prior)
        step = np.linalg.solve(bend, gradient)
        gain = float(gradient @ step)
        # Far from the end a whole step may lead uphill.
        while lost(at - step) > lost(at) and gain > 1e-12:
            step, gain = step / 2, gain / 2
        at = at - step
        if gain <= 1e-12:
            break
    return float(at[0]), float(at[1])
