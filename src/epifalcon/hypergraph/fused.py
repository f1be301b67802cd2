"""Both halves of a hypergraph layer in one pass: y = D_v^-1 H D_e^-1 H' x.

The equation of HGNN without Theta and activation. Edge rows are never stored, so
this is the fast way wherever nobody needs to see them; ``propagate.py`` is the
readable reference with both halves.

Three ideas make it fast:

- *Merged edges.* People stay put, so a region often holds the same people slot
  after slot. Edges with exactly the same members pass on the same mean, so one
  group with the summed weight replaces them. Edges of one person return that
  person's own row and become a diagonal.
- *Fused halves.* Rows are summed in small tables that stay in the first-level
  cache, scaled, and added to the members' results at once.
- *Stays.* Groups of a region follow each other in time, so most people of one are
  in the next. A row is added to a running sum where a stay begins and subtracted
  where it ends; on the way back a stay gets the difference of two running sums of
  what the groups passed on. This halves the time of a pass.

Fresh Gaussian noise on every edge merges as well: the noise of a group is one
Gaussian with the summed variance, which has the same joint distribution for all
that people receive.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled, each_part
from epifalcon._random import fill_normals
from epifalcon.hypergraph.incidence import (
    Ends,
    Ids,
    Incidence,
    Rows,
    count_ids,
    select_rows,
    transpose,
)
from epifalcon.hypergraph.propagate import RowsOf, equal_parts, inverse
from epifalcon.types import Floats

ALONE = -1
"""The group of an edge with one member."""
_PARTS = 2
_BLOCK = 64
"""Groups in a block at most; more would save few stays and cost precision."""
_SMALLER = 4
"""A group this many times smaller than the block's largest begins a new block."""
_CHUNK = 32
"""Blocks whose noise is drawn at once."""
_COLUMNS = 64
"""Columns that are passed at once, so that everybody's rows stay in a cache."""


@dataclass(frozen=True, eq=False)
class MergedEdges:
    """Groups of two or more people, each for all edges with exactly these members."""

    members: Rows
    """Members of each group."""
    edges: Ids
    """(groups,) number of merged edges."""
    group_of_edge: Ids
    """(edges,) group of each edge of the hypergraph, ``ALONE`` for one person."""

    @classmethod
    def of(cls, inc: Incidence) -> "MergedEdges":
        """Merge the edges of ``inc``.

        Groups are ordered by region: those of one region share most members, whose
        rows are then still in the cache.
        """
        rows = inc.by_edge
        group = np.empty(inc.edges, np.int32)
        bits = max(int(inc.edges).bit_length() + 1, 4)
        first = _merge(rows.start, rows.index, _by_region(inc), bits, group)
        start = np.zeros(len(first) + 1, np.int64)
        np.cumsum(inc.size[first], out=start[1:])
        members = Rows(start, select_rows(rows.start, rows.index, first, start))
        return cls(members, count_ids(group[group != ALONE], len(first)), group)

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def size(self) -> NDArray[np.int64]:
        """Number of members: (groups,)."""
        return np.diff(self.members.start)

    def spread(self, x: RowsOf, weight: Floats, noise: "Noise | None" = None) -> RowsOf:
        """Sum the members' rows in each group, scale, and add up each person's groups.

        Args:
            x: rows, (people, width), in 32 or 64 bits.
            weight: (groups,) factor of each group's sum.
            noise: added to what a group passes on.

        Returns:
            (people, width), of the type of ``x``. The work is cut into parts that do
            not depend on the number of threads, so neither does the result.
        """
        width = x.shape[1]
        if noise is None and width > _COLUMNS:
            pieces = [
                self.spread(np.ascontiguousarray(piece), weight)
                for piece in np.split(x, range(_COLUMNS, width, _COLUMNS), axis=1)
            ]
            return np.concatenate(pieces, axis=1)
        stays, scale = self.stays, weight.astype(x.dtype)
        bound = equal_parts(stays.start, _PARTS)
        sums = self._take_zeros((_PARTS, *x.shape), x.dtype)
        sigma = None if noise is None else noise.group.astype(x.dtype)

        def work(part: int) -> None:
            begin, end = int(bound[part]), int(bound[part + 1])
            drawn = np.zeros((0, width), x.dtype)
            if noise is None or sigma is None:
                stays.spread(begin, end, scale, drawn, x, sums[part])
                return
            for first in range(begin, end, _CHUNK):
                past = min(first + _CHUNK, end)
                groups = slice(stays.block[first], stays.block[past])
                drawn = np.empty((len(sigma[groups]), width), x.dtype)
                fill_normals(noise.word, groups.start, sigma[groups], drawn)
                stays.spread(first, past, scale, drawn, x, sums[part])

        each_part(work, _PARTS, len(stays.person) * width)
        total: RowsOf = np.add(sums[0], sums[1])
        for more in sums[2:]:
            total += more
        sums.fill(0)
        self._spare[:] = [sums]
        return total

    @cached_property
    def stays(self) -> "Stays":
        """Stays of people in consecutive groups."""
        people = int(self.members.index.max(initial=-1)) + 1
        return _stays(self.members.start, self.members.index, people)

    @cached_property
    def _spare(self) -> list[RowsOf]:
        return []

    def _take_zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RowsOf:
        """Return zeros; the last array is used again, as fresh memory is slow."""
        found = self._spare.pop() if self._spare else None
        if found is None or found.shape != shape or found.dtype != dtype:
            return np.zeros(shape, dtype)
        return found


class Stays(NamedTuple):
    """People in consecutive groups, by blocks of groups whose tables fit a cache.

    The stays of a block lie together: those in a single group first, then by person.
    A block ends early where a group is much smaller than one before it: what is left
    of a large sum after subtracting has the rounding error of the large one.
    """

    block: Ends
    """(blocks + 1,) first group of each block."""
    start: Ends
    """(blocks + 1,) first stay of each block."""
    longer: Ends
    """(blocks,) the first of its stays in more than one group."""
    person: NDArray[np.uint32]
    """(stays,)"""
    first: NDArray[np.uint8]
    """(stays,) first group of the stay, counted from the block's first."""
    past: NDArray[np.uint8]
    """(stays,) one past its last group."""

    def spread(
        self,
        begin: int,
        end: int,
        weight: RowsOf,
        noise: RowsOf,
        x: RowsOf,
        out: RowsOf,
    ) -> None:
        """Add to out[v] what the groups of blocks ``begin`` to ``end`` pass on to v.

        A group passes on weight[g] times the sum of its members' rows, plus its row
        of ``noise`` (groups of these blocks, width) unless that is empty.
        """
        _spread(*self, begin, end, weight, noise, x, out)


@dataclass(frozen=True, eq=False)
class Noise:
    """Gaussian noise that is added during a pass."""

    group: Floats
    """(groups,) standard deviation on what a group passes on."""
    person: Floats
    """(people,) standard deviation on what a person gets from edges of its own."""
    key: int
    """64-bit key of the random numbers."""

    @property
    def word(self) -> np.uint64:
        """The key for compiled code."""
        return np.uint64(self.key)


@dataclass(frozen=True, eq=False)
class EdgeSums:
    """Sums of a number of each edge."""

    group: Floats
    """(groups,) over the edges of each group."""
    person: Floats
    """(people,) over the edges in which the person was alone."""


@dataclass(frozen=True, eq=False)
class FusedOperator:
    """D_v^-1 H diag(1/n_e) H' on merged edges."""

    merged: MergedEdges
    person_alone: Ids
    """(edges of one person,) that person, in the order of the edges."""
    degree: Ids
    """(people,) number of edges of each person."""
    counts: Floats
    """(edges,) n_e."""

    @classmethod
    def of(cls, inc: Incidence, counts: Floats | None = None) -> "FusedOperator":
        """Build the operator; ``counts`` (edges,) are n_e if not the sizes."""
        merged, rows = MergedEdges.of(inc), inc.by_edge
        alone = rows.index[rows.start[:-1][merged.group_of_edge == ALONE]]
        divisor = inc.size.astype(float) if counts is None else counts
        return cls(merged, alone, inc.degree, divisor)

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.degree)

    @cached_property
    def share(self) -> Floats:
        """1 / deg(v), 0 for people without edges: (people,)."""
        return inverse(self.degree)

    @cached_property
    def weight(self) -> EdgeSums:
        """Sums of 1/n_e."""
        return self.sum_edges(1 / self.counts)

    def sum_edges(self, value: Floats) -> EdgeSums:
        """Add up a number of each edge, (edges,), by group and by lone person."""
        group = self.merged.group_of_edge
        joined = group != ALONE
        by_group = np.bincount(group[joined], value[joined], len(self.merged))
        by_person = np.bincount(self.person_alone, value[~joined], self.people)
        return EdgeSums(by_group.astype(float), by_person.astype(float))

    def apply(
        self, x: RowsOf, scale: Floats | None = None, noise: Noise | None = None
    ) -> RowsOf:
        """Compute scale * (H diag(1/n_e) H' x + noise).

        Args:
            x: rows, (people, width), in 32 or 64 bits.
            scale: (people,), such as ``share``; None for 1.
            noise: standard deviations and key; None for no noise.

        Returns:
            (people, width), of the type of ``x``.
        """
        out = self.merged.spread(x, self.weight.group, noise)
        out += self.weight.person.astype(x.dtype)[:, None] * x
        if noise is not None:
            drawn = np.empty_like(x)
            sigma = noise.person.astype(x.dtype)
            fill_normals(noise.word, len(self.merged), sigma, drawn)
            out += drawn
        if scale is not None:
            out *= scale.astype(x.dtype)[:, None]
        return out


def _by_region(inc: Incidence) -> Ids:
    """Order edges by region and then by window, in linear time."""
    region = inc.edge_region
    bounds = np.zeros(inc.regions + 1, np.int64)
    np.cumsum(count_ids(region, inc.regions), out=bounds[1:])
    return transpose(np.arange(inc.edges + 1, dtype=np.int64), region, bounds)


@compiled
def _spread(
    block: Ends,
    start: Ends,
    longer: Ends,
    person: NDArray[np.uint32],
    first: NDArray[np.uint8],
    past: NDArray[np.uint8],
    begin: int,
    end: int,
    weight: RowsOf,
    noise: RowsOf,
    x: RowsOf,
    out: RowsOf,
) -> None:
    """See ``Stays.spread``."""
    width = x.shape[1]
    once = np.zeros((_BLOCK, width), x.dtype)
    entered = np.zeros((_BLOCK + 1, width), x.dtype)
    passed = np.zeros((_BLOCK, width), x.dtype)
    summed = np.zeros((_BLOCK + 1, width), x.dtype)
    silence = np.zeros((1, width), x.dtype)
    present = np.empty(width, x.dtype)
    for number in range(begin, end):
        for stay in range(start[number], longer[number]):
            who, group = person[stay], first[stay]
            for column in range(width):
                once[group, column] += x[who, column]
        for stay in range(longer[number], start[number + 1]):
            who, group, after = person[stay], first[stay], past[stay]
            for column in range(width):
                entered[group, column] += x[who, column]
            for column in range(width):
                entered[after, column] -= x[who, column]
        present[:] = 0
        groups = block[number + 1] - block[number]
        for group in range(groups):
            factor, row = weight[block[number] + group], 0
            drawn = silence
            if len(noise):
                drawn, row = noise, block[number] + group - block[begin]
            for column in range(width):
                present[column] += entered[group, column]
                given = factor * (present[column] + once[group, column])
                given += drawn[row, column]
                passed[group, column] = given
                summed[group + 1, column] = summed[group, column] + given
                once[group, column] = 0
                entered[group, column] = 0
        entered[groups] = 0
        for stay in range(start[number], longer[number]):
            who, group = person[stay], first[stay]
            for column in range(width):
                out[who, column] += passed[group, column]
        for stay in range(longer[number], start[number + 1]):
            who, group, after = person[stay], first[stay], past[stay]
            for column in range(width):
                out[who, column] += summed[after, column] - summed[group, column]


def _stays(start: Ends, member: Ids, people: int) -> Stays:
    block, begin, person, first, past = _find_stays(start, member, people)
    number = np.repeat(np.arange(len(block) - 1), np.diff(begin))
    longer = past - first > 1
    order = np.lexsort((person, longer, number))
    split = begin[1:] - np.bincount(number, longer, len(block) - 1).astype(np.int64)
    return Stays(block, begin, split, person[order], first[order], past[order])


@compiled
def _find_stays(
    start: Ends, member: Ids, people: int
) -> tuple[Ends, Ends, NDArray[np.uint32], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return blocks, where their stays begin, and the stays as they begin."""
    groups = len(start) - 1
    block = np.zeros(groups + 1, np.int64)
    begin = np.zeros(groups + 1, np.int64)
    person = np.empty(len(member), np.uint32)
    first = np.empty(len(member), np.uint8)
    past = np.empty(len(member), np.uint8)
    last_group = np.full(people, -1, np.int64)
    opened = np.zeros(people, np.int64)
    blocks, stays, largest = 0, 0, 0
    for group in range(groups):
        size = start[group + 1] - start[group]
        full = blocks == 0 or group - block[blocks - 1] == _BLOCK
        if full or _SMALLER * size < largest:
            block[blocks], begin[blocks] = group, stays
            blocks += 1
            largest = 0
        largest = max(largest, size)
        here = block[blocks - 1]
        for pair in range(start[group], start[group + 1]):
            who = member[pair]
            if group == here or last_group[who] != group - 1:
                opened[who] = stays
                person[stays], first[stays] = who, group - here
                stays += 1
            past[opened[who]] = group - here + 1
            last_group[who] = group
    block[blocks], begin[blocks] = groups, stays
    return (
        block[: blocks + 1].copy(),
        begin[: blocks + 1].copy(),
        person[:stays].copy(),
        first[:stays].copy(),
        past[:stays].copy(),
    )


@compiled
def _merge(start: Ends, index: Ids, order: Ids, bits: int, group: Ids) -> Ids:
    """Return the first edge of each group; ``group`` is filled.

    A hash table of 2^bits places with open addressing, at most half full. Members
    are compared one by one, so the result is exact.
    """
    last = np.uint64((1 << bits) - 1)
    table = np.full(1 << bits, -1, np.int32)
    first = np.empty(len(order), np.int32)
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
    return first[:groups].copy()


@compiled
def _hash(start: Ends, index: Ids, edge: int) -> np.uint64:
    """Hash the members of an edge, in their order, to 64 bits."""
    value = np.uint64(0x9E3779B97F4A7C15)
    for pair in range(start[edge], start[edge + 1]):
        value = (value ^ np.uint64(index[pair])) * np.uint64(0xBF58476D1CE4E5B9)
        value ^= value >> np.uint64(29)
    return value


@compiled
def _same(start: Ends, index: Ids, here: int, there: int) -> bool:
    """Return True if two edges have the same members."""
    size = start[here + 1] - start[here]
    if start[there + 1] - start[there] != size:
        return False
    for step in range(size):
        if index[start[here] + step] != index[start[there] + step]:
            return False
    return True
