"""Flows: number of people who moved between regions on each day.

The dynamic graph of the region model (paper: population flow networks G^(t)), one
graph per day.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from epifalcon.checks import shaped
from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Counts, RegionIds

_POINTS_PER_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class Flows:
    """Moves, stays and visitors of every day.

    A move is a pair of consecutive slots in both of which a person was observed.
    It belongs to the day of the later slot, so a move over midnight counts for the
    day of arrival.
    """

    between: sp.csr_array
    """Moves r to r', r' other than r: counts, (days * regions, regions), day first."""
    stays: Counts
    """Pairs of slots in one region: (days, regions)."""
    visitors: Counts
    """Distinct people observed in a region on a day: (days, regions)."""

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
        """Return the moves of one day, (regions, regions): row from, column to."""
        if not 0 <= day < self.days:
            raise DataError(f"day={day} must lie between 0 and {self.days - 1}")
        return self.between[day * self.regions : (day + 1) * self.regions]

    def __add__(self, other: "Flows") -> "Flows":
        """Add the flows of two groups of people."""
        if (self.days, self.regions) != (other.days, other.regions):
            raise DataError("flows of different cities or days cannot be added")
        return Flows(
            self.between + other.between,
            self.stays + other.stays,
            self.visitors + other.visitors,
        )


def count_flows(traces: Traces, progress: Progress = silent) -> Flows:
    """Count the flows of every day; needs memory for one day's moves at a time."""
    clock, regions = traces.clock, len(traces.regions)
    stays = np.zeros((clock.days, regions), dtype=np.int64)
    visitors = np.zeros((clock.days, regions), dtype=np.int64)
    between = []
    for day in range(clock.days):
        slots = clock.slots_of_day(day)
        cells = [np.zeros(0, dtype=np.int64)]
        for slot in range(max(slots.start, 1), slots.stop):
            here, there = traces.by_slot[slot - 1], traces.by_slot[slot]
            both = (here != UNKNOWN) & (there != UNKNOWN)
            stayed, moved = both & (here == there), both & (here != there)
            stays[day] += np.bincount(here[stayed], minlength=regions)
            cells.append(here[moved].astype(np.int64) * regions + there[moved])
        cell, times = np.unique(np.concatenate(cells), return_counts=True)
        place = (cell // regions, cell % regions)
        between.append(sp.csr_array((times, place), shape=(regions, regions)))
        visitors[day] = _visitors(traces.by_slot[slots], regions)
        progress("flows", day + 1, clock.days)
    return Flows(sp.vstack(between, format="csr"), stays, visitors)


def _visitors(day: RegionIds, regions: int) -> Counts:
    """Count the distinct people in each region, from one day's (slots, people)."""
    total = np.zeros(regions, dtype=np.int64)
    block = max(1, _POINTS_PER_BLOCK // len(day))
    for first in range(0, day.shape[1], block):
        region = np.sort(day[:, first : first + block].T, axis=1)
        new = region != UNKNOWN
        new[:, 1:] &= region[:, 1:] != region[:, :-1]
        total += np.bincount(region[new], minlength=regions)
    return total
