"""The region model's state beside the person model's edges.

The paper puts the state of (region, time) beside each edge's row before people
average over their edges ("Cooperative Coupling", algorithm 2). The mean of rows
put side by side is the means put side by side, and the state does not change
while the person model learns: so it is averaged over each person's edges once.
"""

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagate import edge_to_node
from epifalcon.mobility.clock import Clock

_COLUMNS = 8


def state_of_people(states: Tensor, inc: Incidence, clock: Clock) -> Tensor:
    """The mean state of each person's true edges, (people, width).

    ``states``, (regions, days, width), is what the region model hands out for
    each region and day. An edge has the state of the day in which its window
    begins. People without edges get zeros. Every person can compute its own
    row at home from the states, which everybody is sent.
    """
    if states.ndim != 3 or states.shape[:2] != (inc.regions, clock.days):
        raise DataError(
            f"region states have shape {tuple(states.shape)}, expected "
            f"({inc.regions}, {clock.days}, width): made for another city?"
        )
    if clock.slots % inc.windows:
        raise DataError(
            f"{inc.windows} windows do not divide the clock's {clock.slots} slots"
        )
    if not bool(torch.isfinite(states).all()):
        raise DataError("region states hold NaN or infinity, expected finite numbers")
    window_slots = clock.slots // inc.windows
    day = inc.edge_window.astype(np.int64) * window_slots // clock.slots_per_day
    place = torch.from_numpy(inc.edge_region * np.int64(clock.days) + day)
    flat = states.detach().reshape(-1, states.shape[2])
    # A few columns at a time: all edges at once would take a row for each.
    parts = [
        edge_to_node(flat[:, first : first + _COLUMNS][place], inc)
        for first in range(0, flat.shape[1], _COLUMNS)
    ]
    return torch.cat(parts, dim=1) if parts else flat.new_zeros(inc.people, 0)
