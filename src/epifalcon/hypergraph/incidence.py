"""Hypergraph incidence: which people were in which region in which window.

An edge is a region in a window of one or more slots; it joins all people who
were there (paper, section "Privacy-preserving FGML Framework": e(t, r)).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.errors import DataError
from epifalcon.mobility.flows import count_distinct
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, PersonIds, RegionIds

T = TypeVar("T", bound=np.generic)
Ids = NDArray[np.int32]
Ends = NDArray[np.int64]
EdgeKeys = NDArray[np.int64]
_MOST_EDGES = 2**31 - 1
_EDGES_AT_ONCE = 100_000


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in CSR form: row i is ``index[start[i] : start[i + 1]]``, ascending."""

    start: Ends
    """Start of each row in ``index``, (rows + 1,)."""
    index: Ids
    """Column of each entry, (pairs,)."""

    def __post_init__(self) -> None:
        _freeze(self.start)
        _freeze(self.index)


@dataclass(frozen=True, eq=False)
class Incidence:
    """Incidence H as (person, edge) pairs, sorted by edge and then by person.

    A person counts once per edge, however many slots of the window were spent
    there. Every edge has at least one member; people without edges have degree 0.
    All arrays are read-only.

    Memory is 4 bytes per pair and 20 per edge; ``by_person``, computed on first use,
    takes 5 more per pair.
    """

    people: int
    regions: int
    windows: int
    edge_key: EdgeKeys
    """Key window * regions + region of each edge, (edges,), ascending; the same in
    every cohort."""
    by_edge: Rows
    """Members of each edge."""

    def __post_init__(self) -> None:
        _freeze(self.edge_key)

    @classmethod
    def of(
        cls, traces: Traces, *, window_slots: int = 1, keep_alone: bool = True
    ) -> "Incidence":
        """Build the hypergraph of ``traces``; unobserved slots belong to no edge.

        Each window has ``window_slots`` slots. ``keep_alone`` keeps edges with one
        person, which is required for a cohort, since people of other cohorts may be
        members of the same edge.
        """
        regions, windows = len(traces.regions), traces.clock.windows(window_slots)
        # A plain array: numba would recompile for a memory-mapped one.
        by_slot = np.ascontiguousarray(traces.by_slot).view(np.ndarray)
        by_slot.setflags(write=False)
        parts = by_slot.reshape(windows, window_slots, traces.people)
        least = 1 if keep_alone else 2
        region, size = [], []
        for window in parts:
            count = count_distinct(window, regions)
            region.append(np.flatnonzero(count >= least))
            size.append(count[region[-1]])
        start = _bounds(np.concatenate(size))
        if len(start) > _MOST_EDGES:
            raise DataError(f"{len(start):,} edges, expected at most {_MOST_EDGES:,}")
        member = np.empty(start[-1], np.int32)
        first = 0
        for window, here in zip(parts, region, strict=True):
            place = np.full(regions, -1, np.int64)
            place[here] = start[first : first + len(here)]
            _fill_window(window, place, member)
            first += len(here)
        key = [number * regions + here for number, here in enumerate(region)]
        rows = Rows(start, member)
        return cls(traces.people, regions, windows, np.concatenate(key), rows)

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.edge_key)

    @property
    def pairs(self) -> int:
        """Number of (person, edge) pairs."""
        return len(self.by_edge.index)

    @cached_property
    def size(self) -> Ids:
        """Return |e|, the number of members in this record, (edges,)."""
        return _freeze(np.diff(self.by_edge.start).astype(np.int32))

    @cached_property
    def degree(self) -> Ids:
        """Return deg(v), the number of edges of each person, (people,)."""
        return _freeze(count_ids(self.by_edge.index, self.people))

    @cached_property
    def by_person(self) -> sp.csr_array:
        """Return H, the edges of each person, (people, edges)."""
        return self.matrix.T.tocsr()

    @property
    def matrix(self) -> sp.csr_array:
        """Return H' as a sparse matrix (edges, people), a view of ``by_edge``."""
        start, index = self.by_edge.start, self.by_edge.index
        if self.pairs <= np.iinfo(np.int32).max:
            # With bounds of another type SciPy would copy the index.
            start = start.astype(np.int32)
        ones = np.ones(self.pairs, np.int8)
        return sp.csr_array((ones, index, start), (self.edges, self.people))

    @property
    def edge_region(self) -> Ids:
        """Return the region of each edge, (edges,)."""
        return (self.edge_key % self.regions).astype(np.int32)

    def restrict(self, people: PersonIds | Sequence[int]) -> "Incidence":
        """Return the incidence of a cohort, renumbered in the order of ``people``.

        Edge keys are unchanged; edges without any of the people are dropped. ``degree``
        is the same as in the city, but ``size`` counts the cohort only, so means over
        edges need the sums and sizes of all cohorts.
        """
        own = self.by_person[np.asarray(people)].T.tocsr()
        size = np.diff(own.indptr)
        nonempty = np.flatnonzero(size)
        rows = Rows(_bounds(size[nonempty]), own.indices.astype(np.int32))
        key = self.edge_key[nonempty]
        return Incidence(len(people), self.regions, self.windows, key, rows)

    def places_in(self, keys: EdgeKeys) -> NDArray[np.int64]:
        """Return the position of each edge key in the ascending ``keys``, (edges,)."""
        place = np.searchsorted(keys, self.edge_key)
        missing = place == len(keys)
        missing[~missing] = keys[place[~missing]] != self.edge_key[~missing]
        if missing.any():
            lost = self.edge_key[missing]
            raise DataError(f"{len(lost)} edges are not listed, first {lost[0]}")
        return place


def _bounds(size: Ids) -> Ends:
    start = np.zeros(len(size) + 1, np.int64)
    np.cumsum(size, out=start[1:])
    return start


def _freeze(array: NDArray[T]) -> NDArray[T]:
    array.setflags(write=False)
    return array


def distinct_members(
    inc: Incidence, others: Sequence[Incidence] = ()
) -> NDArray[np.int64]:
    """Count the distinct people of each edge over ``inc`` and ``others``, (edges,)."""
    parts, count = [], np.empty(inc.edges, np.int64)
    for other in others:
        place = np.searchsorted(other.edge_key, inc.edge_key)
        shared = np.flatnonzero(place < other.edges)
        shared = shared[other.edge_key[place[shared]] == inc.edge_key[shared]]
        # The rows of ``other`` at the edges of ``inc``.
        chosen = sp.csr_array(
            (np.ones(len(shared), np.int8), (shared, place[shared])),
            (inc.edges, other.edges),
        )
        parts.append((chosen, other.matrix))
    own = inc.matrix
    for first in range(0, inc.edges, _EDGES_AT_ONCE):
        chunk = slice(first, first + _EDGES_AT_ONCE)
        union = own[chunk]
        for chosen, matrix in parts:
            union = union + chosen[chunk] @ matrix
        count[chunk] = np.diff(union.indptr)
    return count


@compiled
def _fill_window(window: RegionIds, place: Ends, member: Ids) -> None:
    """Write each person into the edge of the visited region, for each slot of a window.

    ``place`` (regions,) is the next free position of each region's edge in
    ``member``, -1 where the region has no edge; it is updated in place.
    """
    slots, people = window.shape
    last = np.full(len(place), -1, np.int32)
    for person in range(people):
        for slot in range(slots):
            region = window[slot, person]
            if region != UNKNOWN and last[region] != person and place[region] >= 0:
                last[region] = person
                member[place[region]] = person
                place[region] += 1


@compiled
def count_ids(ids: Ids, length: int) -> Ids:
    """Return the count of each id below ``length``, int32; ``ids`` is not copied."""
    count = np.zeros(length, np.int32)
    for value in ids:
        count[value] += 1
    return count
