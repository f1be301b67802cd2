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

    ``renewal`` is the chance per slot that being observed is drawn anew;
    ``filled`` replaces gaps by the last observed region.
    """

    everything: bool
    centre: float
    sigma: float
    renewal: float
    filled: bool


def coverage(
    share: float, sigma: float, renewal: float, filled: bool = False
) -> Coverage:
    """Return the coverage whose mean over people is ``share``."""
    if share in (0.0, 1.0):
        return Coverage(share == 1.0, -700.0, 0.0, renewal, filled)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def excess(centre: float) -> float:
        return float(weights @ (1 / (1 + np.exp(-(centre + sigma * nodes))))) - share

    reach = 40.0 + 12.0 * sigma
    centre = float(brentq(excess, -reach, reach))
    return Coverage(False, centre, sigma, renewal, filled)


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


@njit(cache=True)
def fill_gaps(slots: RegionIds) -> None:
    """Replace each -1 in (slots,) by the last region before it, or else the first."""
    first = 0
    while first < slots.size and slots[first] == UNKNOWN:
        first += 1
    if first == slots.size:
        return
    slots[:first] = slots[first]
    for slot in range(first + 1, slots.size):
        if slots[slot] == UNKNOWN:
            slots[slot] = slots[slot - 1]
