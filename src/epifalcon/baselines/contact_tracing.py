"""Soft contact tracing: how much of the known company of a person was infected.

What a tracing app would tell, graded instead of yes or no, and without anything
learnt about people or places: the rival that stands in every table. It sees
places and test results as they are, so it promises no privacy.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagate import edge_to_node, sum_to_edges
from epifalcon.types import Floats, Mask, Probabilities

_PRIOR_SPREAD = 10.0
"""Of the slope per standard deviation; matters only where results are very few."""
_MOST_STEPS = 100
_ROUNDING = 1e-9
"""Exposures that differ by less are equal."""


def exposure(incidence: Incidence, status: NDArray[np.int8]) -> Floats:
    """The share of known positives among the others met, in the mean: (people,).

    With deg(u) the edges of u, P_e the known positives in edge e and K_e the
    known people in it, each without u itself:

        x_u = 1/deg(u) * sum over e of u of P_e / K_e

    An edge without other known people counts 0, and so does a person without
    edges. ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for
    not tested. A person's own result never enters its own exposure, not even
    by a last bit; of people not tested, not even their presence counts (a share
    of everybody present ranked people worse in nearly every city tried).
    """
    _require_status(incidence, status)
    known = np.stack([status == 1, status >= 0], axis=1).astype(np.float64)
    positive, tested = sum_to_edges(torch.from_numpy(known), incidence).T
    # As somebody untested, negative or positive sees the edge: to leave a person
    # out of whole numbers is exact, to take it out of a sum of shares is not.
    seen = torch.stack(
        [
            _share(positive, tested),
            _share(positive, tested - 1),
            _share(positive - 1, tested - 1),
        ],
        dim=1,
    )
    mean = edge_to_node(seen, incidence).numpy()
    own: Floats = np.take_along_axis(mean, status[:, None].astype(np.int64) + 1, 1)
    return own[:, 0]


def soft_contact_tracing(
    incidence: Incidence, status: NDArray[np.int8]
) -> Probabilities:
    """Probability of infection from exposure alone, in [0, 1]: (people,).

    A logistic curve over the root of the exposure, fitted to the tested people,
    whose own results are not in their exposures. It never falls: where fewer
    exposed people were infected more often, everybody gets the share of
    positive tests. For a tested person too, this is the risk without its test.

    Raises ``DataError`` unless there are positive and negative results.
    """
    exposed = exposure(incidence, status)
    for wanted, word in ((1, "positive"), (0, "negative")):
        if not (status == wanted).any():
            raise DataError(
                f"nobody tested {word}: exposure cannot be turned into a "
                "probability by one kind of result alone"
            )
    # Risk rises less and less with exposure; a line would overstate the highest.
    score = np.sqrt(exposed)
    tested = status >= 0
    return _rising_risk(score, score[tested], status[tested] == 1)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """The part of the whole, 0 where nobody is left."""
    return torch.where(whole > 0, part / whole.clamp(min=1), 0.0)


def _rising_risk(score: Floats, known: Floats, infected: Mask) -> Probabilities:
    """The logistic curve of ``known`` and ``infected`` at every ``score``."""
    centre, spread = known.mean(), known.std()
    if spread > _ROUNDING:
        level, slope = _logistic_fit((known - centre) / spread, infected)
        if slope > 0:
            risk: Probabilities = expit(level + slope * (score - centre) / spread)
            return risk
    return np.full(len(score), infected.mean())


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


def _require_status(incidence: Incidence, status: NDArray[np.int8]) -> None:
    if status.shape != (incidence.people,):
        raise DataError(
            f"status has shape {status.shape}, expected ({incidence.people},)"
        )
    if not np.isin(status, (-1, 0, 1)).all():
        raise DataError("status must be 1, 0 or -1")
