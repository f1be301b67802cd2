"""Which slots are observed: gaps come in bursts and differ between people."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from scipy.optimize import brentq

from epifalcon.mobility.city.draws import State, normal, start, uniform
from epifalcon.types import UNKNOWN, RegionIds

# Keeps this stream apart from the person's life: coverage changes no life.
_SALT = np.uint64(0xC0FFEE5EED)


class Coverage(NamedTuple):
    """A person's log odds of being observed are normal(``centre``, ``sigma``).

    ``renewal`` is the chance per slot that being observed is drawn anew.
    """

    everything: bool
    centre: float
    sigma: float
    renewal: float


def coverage(share: float, sigma: float, renewal: float) -> Coverage:
    """The coverage whose mean over people is ``share``."""
    if share in (0.0, 1.0):
        return Coverage(share == 1.0, -700.0, 0.0, renewal)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def excess(centre: float) -> float:
        return float(weights @ (1 / (1 + np.exp(-(centre + sigma * nodes))))) - share

    reach = 40.0 + 12.0 * sigma
    return Coverage(False, float(brentq(excess, -reach, reach)), sigma, renewal)


@njit(cache=True)
def cut_gaps(
    plan: Coverage, state: State, seed: np.uint64, number: int, slots: RegionIds
) -> None:
    """Put -1 into the slots (slots,) in which the person was not observed."""
    if plan.everything:
        return
    start(state, seed ^ _SALT, number)
    share = 1.0 / (1.0 + math.exp(-(plan.centre + plan.sigma * normal(state))))
    seen = uniform(state) < share
    for slot in range(slots.size):
        if uniform(state) < plan.renewal:
            seen = uniform(state) < share
        if not seen:
            slots[slot] = UNKNOWN
