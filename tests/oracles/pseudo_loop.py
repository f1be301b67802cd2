"""Pseudo traces person by person, from whole rows of the mobility model."""

import numpy as np

from epifalcon.mobility.mobility_model import MobilityModel
from tests.oracles.markov_loop import transition


def place_shares(weight: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Shares of the free regions by weight, all alike if they weigh nothing."""
    selected = np.where(free, weight, 0.0)
    if selected.sum() == 0:
        selected = free.astype(float)
    return selected / selected.sum()


def next_shares(
    model: MobilityModel, slot: int, last: int, free: np.ndarray
) -> np.ndarray:
    """The next region's distribution at ``slot``: p over the free regions."""
    day = model.slots_per_day
    visits = model.visits[slot % day]
    if last < 0:
        return place_shares(visits, free)
    everywhere = np.arange(free.size)
    row = np.where(free, transition(model, slot - 1, last, everywhere), 0.0)
    return row / row.sum() if row.sum() > 0 else place_shares(visits, free)
