"""Edges with exactly the same members, taken together.

People stay put, so a region often holds the same people slot after slot. What
such edges pass on is the same mean, so one group with their number does for
all. Edges of one person pass that person's row back and need no group.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph import pairs
from epifalcon.hypergraph.compiled import compiled
from epifalcon.hypergraph.incidence import Incidence, Rows
from epifalcon.hypergraph.pairs import Ends, Ids
from epifalcon.types import Floats

ALONE = -1
"""The group of an edge with one member."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Sets of two or more people, and how many edges have just these members."""

    rows: Rows
    """The members of each group."""
    edges: Ids
    """(groups,) how many edges were merged."""
    group_of_edge: Ids
    """(edges,) the group of each edge of the hypergraph, ``ALONE`` for one person."""

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def size(self) -> NDArray[np.int64]:
        """Members of each group: (groups,)."""
        return np.diff(self.rows.start)

    @cached_property
    def weight(self) -> Floats:
        """The sum of 1/|e| over the merged edges: (groups,)."""
        return np.asarray(self.edges / self.size)


def merge(inc: Incidence) -> Groups:
    """The groups of ``inc``, in the order of the regions.

    Members are compared one by one, the hash only tells where to look: the
    result is exact. Groups of one region lie side by side because they share
    most of their members, whose rows then are still in the cache.
    """
    order = _by_region(inc)
    rows = inc.by_edge
    group = np.empty(inc.edges, np.int32)
    bits = max(int(inc.edges).bit_length() + 1, 4)
    first, count = _merge(rows.start, rows.index, order, bits, group)
    start = np.zeros(len(first) + 1, np.int64)
    np.cumsum(inc.size[first], out=start[1:])
    member = pairs.select_rows(rows.start, rows.index, first, start)
    return Groups(Rows(start, member), count, group)


def _by_region(inc: Incidence) -> Ids:
    """Edges by region and then by window, in linear time."""
    region = inc.edge_region
    bounds = np.zeros(inc.regions + 1, np.int64)
    np.cumsum(pairs.count_ids(region, inc.regions), out=bounds[1:])
    single = np.arange(inc.edges + 1, dtype=np.int64)
    return pairs.transpose(single, region, bounds)


@compiled
def _merge(
    start: Ends, index: Ids, order: Ids, bits: int, group: Ids
) -> tuple[Ids, Ids]:
    """First edge and number of edges of each group; ``group`` is filled.

    A hash table of 2^bits places with open addressing, at most half full.
    """
    last = np.uint64((1 << bits) - 1)
    table = np.full(1 << bits, -1, np.int32)
    first = np.empty(len(order), np.int32)
    count = np.zeros(len(order), np.int32)
    groups = 0
    for edge in order:
        if start[edge + 1] - start[edge] == 1:
            group[edge] = ALONE
            continue
        place = _hash(start, index, edge) & last
        found = table[place]
        while found >= 0 and not _same(start, index, first[found], edge):
            place = (place + np.uint64(1)) & last
            found = table[place]
        if found < 0:
            table[place] = found = groups
            first[found] = edge
            groups += 1
        group[edge] = found
        count[found] += 1
    return first[:groups].copy(), count[:groups].copy()


@compiled
def _hash(start: Ends, index: Ids, edge: int) -> np.uint64:
    """A 64-bit hash of the members, in their order."""
    value = np.uint64(0x9E3779B97F4A7C15)
    for pair in range(start[edge], start[edge + 1]):
        value = (value ^ np.uint64(index[pair])) * np.uint64(0xBF58476D1CE4E5B9)
        value ^= value >> np.uint64(29)
    return value


@compiled
def _same(start: Ends, index: Ids, here: int, there: int) -> bool:
    """Whether two edges have the same members."""
    size = start[here + 1] - start[here]
    if start[there + 1] - start[there] != size:
        return False
    for step in range(size):
        if index[start[here] + step] != index[start[there] + step]:
            return False
    return True
