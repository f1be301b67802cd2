"""Flows: number of people who moved between regions on each day.

The dynamic graph of the region model (paper: population flow networks G^(t)), one
graph per day.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.checks import shaped
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Additive, Counts, RegionIds


@dataclass(frozen=True, eq=False)
class Flows(Additive):
    """Numbers of moves, stays and visitors on every day.

    A move is a pair of consecutive slots in both of which a person was observed.
    It belongs to the day of the later slot, so a move over midnight counts for the
    day of arrival.
    """

    between: sp.csr_array
    """Number of moves from r to another r', (days * regions, regions), day by day."""
    stays: Counts
    """Number of consecutive slot pairs in one region: (days, regions)."""
    visitors: Counts
    """Number of distinct people observed in a region on a day: (days, regions)."""

    def __post_init__(self) -> None:
        days, regions = self.stays.shape
        shaped((days, regions), visitors=self.visitors)
        shaped((days * regions, regions), between=self.between)

    @property
    def days(self) -> int:
        """Number of days."""
        return int(self.stays.shape[0])

    @property
    def regions(self) -> int:
        """Number of regions."""
        return int(self.stays.shape[1])

    def moves(self, day: int) -> sp.csr_array:
        """Return the moves of one day, (from regions, to regions)."""
        return self.between[day * self.regions : (day + 1) * self.regions]


def count_flows(traces: Traces, progress: Progress = silent) -> Flows:
    """Count the flows of every day, one day at a time to limit memory."""
    clock, regions = traces.clock, len(traces.regions)
    # A plain array: numba would recompile for a memory-mapped one.
    by_slot = traces.by_slot.view(np.ndarray)
    stays = np.zeros((clock.days, regions), dtype=np.int64)
    visitors = np.zeros((clock.days, regions), dtype=np.int64)
    between = []
    for day in range(clock.days):
        slots = clock.slots_of_day(day)
        cells = [np.zeros(0, dtype=np.int64)]
        for slot in range(max(slots.start, 1), slots.stop):
            here, there = by_slot[slot - 1], by_slot[slot]
            both = (here != UNKNOWN) & (there != UNKNOWN)
            stayed, moved = both & (here == there), both & (here != there)
            stays[day] += np.bincount(here[stayed], minlength=regions)
            cells.append(here[moved].astype(np.int64) * regions + there[moved])
        cell, times = np.unique(np.concatenate(cells), return_counts=True)
        place = (cell // regions, cell % regions)
        between.append(sp.csr_array((times, place), shape=(regions, regions)))
        visitors[day] = count_distinct(by_slot[slots], regions)
        progress("flows", day + 1, clock.days)
    return Flows(sp.vstack(between, format="csr"), stays, visitors)


@compiled
def count_distinct(window: RegionIds, regions: int) -> NDArray[np.int32]:
    """Count distinct people per region in ``window`` (slots, people): (regions,)."""
    slots, people = window.shape
    count = np.zeros(regions, np.int32)
    last = np.full(regions, -1, np.int32)
    for person in range(people):
        for slot in range(slots):
            region = window[slot, person]
            if region != UNKNOWN and last[region] != person:
                last[region] = person
                count[region] += 1
    return count
