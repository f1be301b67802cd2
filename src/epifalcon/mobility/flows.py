"""Flows: how many people went from region to region on each day.

The changing graph of the region model (paper: population flow networks G^(t)),
one graph a day.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility import sparse
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Counts, RegionIds

_KIND = "flows"
_POINTS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Flows:
    """Moves, stays and visitors of every day.

    A move is a pair of consecutive slots in which a person was observed both
    times; across a gap there is none. It belongs to the day of the later slot:
    who goes home over midnight moves on the day of arrival.
    """

    between: sp.csr_array
    """Moves r to r', r' other than r: counts, (days * regions, regions), day first."""
    stays: Counts
    """Pairs that stayed where they were: (days, regions)."""
    visitors: Counts
    """Different people observed in a region on a day: (days, regions)."""

    def __post_init__(self) -> None:
        days, regions = self.stays.shape
        if self.visitors.shape != (days, regions):
            raise DataError(
                f"visitors have shape {self.visitors.shape}, expected {(days, regions)}"
            )
        if self.between.shape != (days * regions, regions):
            raise DataError(
                f"between has shape {self.between.shape}, "
                f"expected {(days * regions, regions)}"
            )

    @property
    def days(self) -> int:
        """Number of days."""
        return int(self.stays.shape[0])

    @property
    def regions(self) -> int:
        """Number of regions."""
        return int(self.stays.shape[1])

    def moves(self, day: int, *, stays: bool = False) -> sp.csr_array:
        """The counts of one day, (regions, regions): row from, column to.

        With ``stays`` the diagonal holds those who stayed, else it is empty.
        """
        if not 0 <= day < self.days:
            raise DataError(f"day={day} must lie between 0 and {self.days - 1}")
        between = sparse.rows_of(self.between, day, self.regions)
        if not stays:
            return between
        home = np.flatnonzero(self.stays[day])
        diagonal = sparse.table(home, home, self.stays[day][home], between.shape)
        return sparse.add(between, diagonal)

    def __add__(self, other: "Flows") -> "Flows":
        """The flows of both groups of people together."""
        if (self.days, self.regions) != (other.days, other.regions):
            raise DataError("flows of different cities or days cannot be added")
        return Flows(
            sparse.add(self.between, other.between),
            self.stays + other.stays,
            self.visitors + other.visitors,
        )

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        arrays: dict[str, NDArray[Any]] = {
            "stays": self.stays,
            "visitors": self.visitors,
            **sparse.pack("between", self.between),
        }
        meta = {"days": self.days, "regions": self.regions}
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Flows":
        """Read what ``save`` wrote."""
        stored = store.read(folder, _KIND)
        try:
            stays = stored.arrays["stays"]
            days, regions = stays.shape
            between = sparse.unpack("between", stored.arrays, (days * regions, regions))
            return cls(between, stays, stored.arrays["visitors"])
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None


def count_flows(traces: Traces, progress: Progress = silent) -> Flows:
    """Count the flows of every day; memory beside the result is one day's moves."""
    clock, regions = traces.clock, len(traces.regions)
    stays = np.zeros((clock.days, regions), dtype=np.int64)
    visitors = np.zeros((clock.days, regions), dtype=np.int64)
    between = []
    for day in range(clock.days):
        slots = clock.slots_of_day(day)
        moved = [np.zeros(0, dtype=np.int64)]
        for slot in range(max(slots.start, 1), slots.stop):
            here, there = traces.by_slot[slot - 1], traces.by_slot[slot]
            stays[day] += _stays(here, there, regions)
            moved.append(_moves(here, there, regions))
        cell, times = np.unique(np.concatenate(moved), return_counts=True)
        between.append(
            sparse.table(cell // regions, cell % regions, times, (regions, regions))
        )
        visitors[day] = _visitors(traces.by_slot[slots], regions)
        progress("flows", day + 1, clock.days)
    return Flows(sp.vstack(between, format="csr"), stays, visitors)


def _stays(here: RegionIds, there: RegionIds, regions: int) -> Counts:
    stayed = here[(here == there) & (here != UNKNOWN)]
    return np.bincount(stayed, minlength=regions)


def _moves(here: RegionIds, there: RegionIds, regions: int) -> NDArray[np.int64]:
    """Cell number (from * regions + to) of everybody who moved."""
    moved = (here != there) & (here != UNKNOWN) & (there != UNKNOWN)
    return np.asarray(here[moved].astype(np.int64) * regions + there[moved])


def _visitors(day: RegionIds, regions: int) -> Counts:
    """Different people in each region, from one day's (slots, people)."""
    total = np.zeros(regions, dtype=np.int64)
    block = max(1, _POINTS_AT_ONCE // len(day))
    for first in range(0, day.shape[1], block):
        region = np.sort(day[:, first : first + block].T, axis=1)
        new = region != UNKNOWN
        new[:, 1:] &= region[:, 1:] != region[:, :-1]
        total += np.bincount(region[new], minlength=regions)
    return total
