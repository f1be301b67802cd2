"""What people did, counted: visits by slot of the day and moves between regions.

Sorted lists instead of tables, because a person sees few of all regions.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon.mobility import sparse
from epifalcon.types import UNKNOWN, Counts, Floats, Probabilities, RegionIds


@dataclass(frozen=True, eq=False)
class Visits:
    """Where each person was at each slot of the day, sorted by person and region."""

    owner: Counts
    """(visits,) person * regions + region."""
    slot: Counts
    """(visits,) slot of the day."""
    share: Probabilities
    """(visits,) pi_u(r | t): share of the person's observations at that slot."""
    observed: Counts
    """(people, slots a day): how often each person was observed at each slot."""

    def by_region(self, regions: int) -> Floats:
        """The sum of the shares over people: (slots a day, regions)."""
        slots = self.observed.shape[1]
        cell = self.slot * regions + self.owner % regions
        sums = np.bincount(cell, weights=self.share, minlength=slots * regions)
        return np.asarray(sums.reshape(slots, regions))

    def people_by_slot(self) -> Counts:
        """How many people were ever observed at each slot of the day."""
        return np.asarray(np.count_nonzero(self.observed, axis=0))


@dataclass(frozen=True, eq=False)
class Moves:
    """How often each person went from region to region, sorted by person and start."""

    owner: Counts
    """(moves,) person * regions + the region that is left."""
    there: Counts
    """(moves,) the region that is reached."""
    times: Counts
    """(moves,) how often."""
    share: Probabilities
    """(moves,) p_u(r' | r): share of the person's moves out of the region."""

    def table(self, regions: int) -> sp.csr_array:
        """All people's moves taken together: counts, (regions, regions)."""
        return sparse.table(
            self.owner % regions, self.there, self.times, (regions, regions)
        )


def count_visits(trace: RegionIds, regions: int, slots_per_day: int) -> Visits:
    """Visits in ``trace`` (people, slots), days pooled; -1 is no visit."""
    person, slot = np.nonzero(trace != UNKNOWN)
    of_day = slot % slots_per_day
    owner = person * regions + trace[person, slot]
    key, times = np.unique(owner * slots_per_day + of_day, return_counts=True)
    cells = len(trace) * slots_per_day
    observed = np.bincount(person * slots_per_day + of_day, minlength=cells)
    owner, of_day = key // slots_per_day, key % slots_per_day
    share = times / observed[owner // regions * slots_per_day + of_day]
    return Visits(owner, of_day, share, observed.reshape(len(trace), slots_per_day))


def count_moves(trace: RegionIds, regions: int) -> Moves:
    """Moves in ``trace`` (people, slots) between slots that are both observed."""
    known = (trace[:, :-1] != UNKNOWN) & (trace[:, 1:] != UNKNOWN)
    person, slot = np.nonzero(known)
    owner = person * regions + trace[person, slot]
    key, times = np.unique(
        owner * regions + trace[person, slot + 1], return_counts=True
    )
    owner, there = key // regions, key % regions
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    left = np.add.reduceat(times, starts) if times.size else times
    share = times / np.repeat(left, np.diff(np.append(starts, owner.size)))
    return Moves(owner, there, times, share)


def visit_then_move(visits: Visits, moves: Moves, regions: int) -> sp.csr_array:
    """sum_u pi_u(r|t) p_u(r'|r) as (slots a day * regions, regions), t first."""
    first = np.searchsorted(moves.owner, visits.owner, side="left")
    past = np.searchsorted(moves.owner, visits.owner, side="right")
    visit = np.repeat(np.arange(first.size), past - first)
    move = _ranges(first, past)
    slots = visits.observed.shape[1]
    return sparse.table(
        visits.slot[visit] * regions + visits.owner[visit] % regions,
        moves.there[move],
        visits.share[visit] * moves.share[move],
        (slots * regions, regions),
    )


def _ranges(first: NDArray[np.int64], past: NDArray[np.int64]) -> NDArray[np.int64]:
    """first[0], ..., past[0] - 1, first[1], ..., past[1] - 1, and so on."""
    length = past - first
    before = np.cumsum(length) - length
    return np.asarray(np.arange(length.sum()) + np.repeat(first - before, length))
