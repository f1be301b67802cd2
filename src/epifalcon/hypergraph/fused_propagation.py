"""Both halves of a hypergraph layer in one pass: y = D_v^-1 H D_e^-1 H' x.

The equation of HGNN without Theta and activation. Edge rows are never stored.
``propagation.py`` is the readable reference with separate halves.

Three optimisations:

- *Merged edges.* People often stay in place, so many edges have identical members.
  One group with the summed weight replaces them; single-person edges become a diagonal.
- *Fused halves.* Rows are summed in small tables that fit the first-level cache,
  scaled, and immediately added to the members' results.
- *Stays.* Most members of a region's group are also in its next group. A row is added
  to a running sum where a stay begins and subtracted where it ends; each stay receives
  the difference of two running sums. This halves the time of a pass.

Independent Gaussian noise on every edge is merged as well: the noise of a group is
one Gaussian with the summed variance, which leaves the joint distribution of all
received rows unchanged.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from epifalcon._numba import compiled, each_part, inner
from epifalcon._random import fill_normals
from epifalcon.hypergraph.incidence import Ends, Ids, Incidence, Rows, count_ids
from epifalcon.hypergraph.propagation import RowsOf, inverse
from epifalcon.types import Floats

Lanes = tuple[np.floating, ...]
ALONE = -1
"""Group id of an edge with one member."""
_PARTS = 2
_BLOCK = 64
"""Maximum groups per block; more would save few stays and reduce precision."""
_SMALLER = 4
"""A group this many times smaller than the largest of the block starts a new block."""
_CHUNK = 32
"""Number of blocks whose noise is drawn at once."""
_COLUMNS = 32
"""Number of columns processed at once; other widths are padded with zeros."""
# A block's table has one row per group with four parts of _COLUMNS values: entering
# minus leaving rows, rows of stays in this group only, the group's output, and the
# sum of the outputs of earlier groups. Constant widths compile to vector instructions
# without loops, and unsigned indices need no check for negative values.
_WIDTH, _ONCE, _PASSED, _SUMMED, _ROW = (
    np.uint64(part * _COLUMNS) for part in (1, 1, 2, 3, 4)
)
_1, _2, _3, _4, _5, _6, _7, _LANES = (np.uint64(number) for number in range(1, 9))


@dataclass(frozen=True, eq=False)
class MergedEdges:
    """Groups of two or more people; each replaces all edges with these members."""

    members: Rows
    """Members of each group."""
    edges: Ids
    """Number of merged edges of each group, (groups,)."""
    group_of_edge: Ids
    """Group of each edge of the hypergraph, (edges,); ``ALONE`` for one member."""

    @classmethod
    def of(cls, inc: Incidence) -> "MergedEdges":
        """Merge equal edges of ``inc``, by region, so adjacent groups share members."""
        rows = inc.by_edge
        group = np.empty(inc.edges, np.int32)
        bits = max(int(inc.edges).bit_length() + 1, 4)
        first = _merge(rows.start, rows.index, _by_region(inc), bits, group)
        chosen = inc.matrix[first]
        members = Rows(chosen.indptr.astype(np.int64), chosen.indices.astype(np.int32))
        return cls(members, count_ids(group[group != ALONE], len(first)), group)

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def size(self) -> NDArray[np.int64]:
        """Return the number of members of each group, (groups,)."""
        return np.diff(self.members.start)

    def spread(
        self,
        x: RowsOf,
        weight: Floats,
        own: Floats,
        scale: Floats | None = None,
        noise: "PassNoise | None" = None,
    ) -> RowsOf:
        """Sum the members' rows per group, then the group sums per person.

        Args:
            x: rows, (people, width), float32 or float64.
            weight: positive factor of each group's sum, (groups,).
            own: factor of the person's own row, which is added, (people,).
            scale: factor of the result, (people,); None for 1.
            noise: noise added to group sums and to the rows of people.

        Returns:
            Rows (people, width) in the dtype of ``x``; they do not depend on the
            number of threads.
        """
        stays, width, rows = self.stays, x.shape[1], _pad(x)
        # Two parts with about equal numbers of stays.
        middle = int(np.searchsorted(stays.start, stays.start[-1] / _PARTS))
        bound = 0, middle, len(stays.start) - 1
        sums = self._take_zeros((_PARTS, *rows.shape), x.dtype)
        # Noise is added to the sum of a group, which is scaled afterwards.
        sigma = None if noise is None else (noise.group / weight).astype(x.dtype)
        key = np.uint64(0 if noise is None else noise.key)

        def work(part: int) -> None:
            begin, end = bound[part], bound[part + 1]
            if noise is None or sigma is None:
                stays.spread(begin, end, weight, None, rows, sums[part])
                return
            for first in range(begin, end, _CHUNK):
                past = min(first + _CHUNK, end)
                groups = slice(stays.block[first], stays.block[past])
                drawn = np.empty((len(sigma[groups]), width), x.dtype)
                fill_normals(key, groups.start, sigma[groups], drawn)
                stays.spread(first, past, weight, _pad(drawn), rows, sums[part])

        each_part(work, _PARTS, len(stays.person) * width)
        if noise is not None:
            drawn = np.empty(x.shape, x.dtype)
            fill_normals(key, len(self), noise.person.astype(x.dtype), drawn)
            sums[0] += _pad(drawn)
        out = np.empty(rows.shape, x.dtype)
        last = np.ones(len(x)) if scale is None else scale
        people = np.linspace(0, len(x), _PARTS + 1).astype(np.int64)

        def finish(part: int) -> None:
            _finish(sums, rows, own, last, people[part], people[part + 1], out)

        each_part(finish, _PARTS, _PARTS * sums[0].size)
        self._spare[:] = [sums]
        return np.moveaxis(out, 0, 1).reshape(len(x), -1)[:, :width]

    @cached_property
    def stays(self) -> "Stays":
        """Return the stays of people in consecutive groups."""
        people = int(self.members.index.max(initial=-1)) + 1
        return _stays(self.members.start, self.members.index, people)

    @cached_property
    def _spare(self) -> list[RowsOf]:
        return []

    def _take_zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RowsOf:
        """Return zeros; reuse the last array, since allocation is slow."""
        spare = self._spare.pop() if self._spare else None
        if spare is None or spare.shape != shape or spare.dtype != dtype:
            return _zeros(shape, dtype)
        return spare


class Stays(NamedTuple):
    """Stays of people in consecutive groups, by blocks whose tables fit a cache.

    The stays of a block are contiguous: those in one group, then the longer ones.
    A block ends early where a group is much smaller than an earlier one, because
    subtracting from a large running sum leaves its rounding error.
    """

    block: Ends
    """First group of each block, (blocks + 1,)."""
    start: Ends
    """First stay of each block, (blocks + 1,)."""
    longer: Ends
    """First stay of each block that spans more than one group, (blocks,)."""
    person: NDArray[np.uint32]
    """Person of each stay, (stays,)."""
    first: NDArray[np.uint8]
    """First group of each stay, relative to its block, (stays,)."""
    past: NDArray[np.uint8]
    """Last group of each stay plus one, relative to its block, (stays,)."""

    def spread(
        self,
        begin: int,
        end: int,
        weight: Floats,
        noise: RowsOf | None,
        x: RowsOf,
        out: RowsOf,
    ) -> None:
        """Add the outputs of the groups in blocks ``begin`` to ``end`` to ``out``.

        The output of group g is weight[g] times the sum of its members' rows of ``x``
        and its row of ``noise``. Arrays have shape (pieces, rows, _COLUMNS).
        """
        table = _zeros(((_BLOCK + 1) * int(_ROW),), x.dtype)
        for piece in range(len(x)):
            drawn = np.empty(0, x.dtype) if noise is None else noise[piece].ravel()
            read, written = x[piece].reshape(-1), out[piece].reshape(-1)
            _spread(*self, begin, end, weight, drawn, read, written, table)


@dataclass(frozen=True, eq=False)
class PassNoise:
    """Parameters of the Gaussian noise added during a pass."""

    group: Floats
    """Standard deviation of the noise on each group's output, (groups,)."""
    person: Floats
    """Standard deviation of the noise from single-person edges, (people,)."""
    key: int
    """64-bit key of the random numbers."""


@dataclass(frozen=True, eq=False)
class EdgeSums:
    """Sums of per-edge values by group and by person."""

    group: Floats
    """Sum over the edges of each group, (groups,)."""
    person: Floats
    """Sum over the edges in which the person was alone, (people,)."""


@dataclass(frozen=True, eq=False)
class FusedOperator:
    """Operator D_v^-1 H diag(1/n_e) H' on merged edges."""

    merged: MergedEdges
    person_alone: Ids
    """Person of each single-person edge, in the order of the edges."""
    degree: Ids
    """Number of edges of each person, (people,)."""
    counts: Floats
    """Number n_e of people at each edge, (edges,)."""

    @classmethod
    def of(cls, inc: Incidence, counts: Floats | None = None) -> "FusedOperator":
        """Build the operator; ``counts`` (edges,) is n_e, by default the edge sizes."""
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
        """Return 1 / deg(v), (people,); 0 for people without edges."""
        return inverse(self.degree)

    @cached_property
    def weight(self) -> EdgeSums:
        """Return the sums of 1/n_e by group and by person."""
        return self.sum_edges(1 / self.counts)

    def sum_edges(self, value: Floats) -> EdgeSums:
        """Sum ``value`` (edges,) by group and, for single-person edges, by person."""
        group = self.merged.group_of_edge
        joined = group != ALONE
        by_group = np.bincount(group[joined], value[joined], len(self.merged))
        by_person = np.bincount(self.person_alone, value[~joined], self.people)
        return EdgeSums(by_group.astype(float), by_person.astype(float))

    def apply(
        self, x: RowsOf, scale: Floats | None = None, noise: PassNoise | None = None
    ) -> RowsOf:
        """Compute scale * (H diag(1/n_e) H' x + noise).

        Args:
            x: rows, (people, width), float32 or float64.
            scale: factors (people,), such as ``share``; None for 1.
            noise: standard deviations and key; None for no noise.

        Returns:
            Rows (people, width) in the dtype of ``x``.
        """
        weight = self.weight
        return self.merged.spread(x, weight.group, weight.person, scale, noise)


def _pad(rows: RowsOf) -> RowsOf:
    """Split (rows, width) into zero-padded pieces, (pieces, rows, _COLUMNS)."""
    count, width = rows.shape
    if width == _COLUMNS:
        return np.ascontiguousarray(rows)[None]
    pieces = -(-width // _COLUMNS)
    padded = np.zeros((count, pieces * _COLUMNS), rows.dtype)
    padded[:, :width] = rows
    split = padded.reshape(count, pieces, _COLUMNS)
    return np.ascontiguousarray(np.moveaxis(split, 1, 0))


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> RowsOf:
    """Return zeros aligned to a cache line; unaligned vectors are slow."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    return cast(RowsOf, torch.zeros(shape, dtype=kind).numpy())


def _by_region(inc: Incidence) -> Ids:
    """Return the edges ordered by region, then by window, in linear time."""
    ones, start = np.ones(inc.edges, np.int8), np.arange(inc.edges + 1)
    by_edge = sp.csr_array((ones, inc.edge_region, start), (inc.edges, inc.regions))
    return by_edge.tocsc().indices.astype(np.int32)


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
    weight: Floats,
    noise: RowsOf,
    x: RowsOf,
    out: RowsOf,
    table: RowsOf,
) -> None:
    """Run ``Stays.spread`` on one piece, with flat arrays and one block's table.

    The first two sections of the table are zero before and after the call.
    """
    for number in range(begin, end):
        for stay in range(start[number], longer[number]):
            who = np.uint64(person[stay]) * _WIDTH
            group = np.uint64(first[stay]) * _ROW + _ONCE
            for column in range(np.uint64(0), _WIDTH, _LANES):
                sums = _load(table, group + column)
                _store(table, group + column, _add(sums, _load(x, who + column)))
        for stay in range(longer[number], start[number + 1]):
            who = np.uint64(person[stay]) * _WIDTH
            group = np.uint64(first[stay]) * _ROW
            after = np.uint64(past[stay]) * _ROW
            for column in range(np.uint64(0), _WIDTH, _LANES):
                values = _load(x, who + column)
                sums = _load(table, group + column)
                _store(table, group + column, _add(sums, values))
                sums = _load(table, after + column)
                _store(table, after + column, _subtract(sums, values))
        if len(noise):
            for row in range(block[number], block[number + 1]):
                drawn = np.uint64(row - block[begin]) * _WIDTH
                group = np.uint64(row - block[number]) * _ROW + _ONCE
                for column in range(_WIDTH):
                    table[group + column] += noise[drawn + column]
        _pass_on(weight[block[number] : block[number + 1]], table)
        for stay in range(start[number], longer[number]):
            who = np.uint64(person[stay]) * _WIDTH
            group = np.uint64(first[stay]) * _ROW + _PASSED
            for column in range(np.uint64(0), _WIDTH, _LANES):
                sums = _load(out, who + column)
                _store(out, who + column, _add(sums, _load(table, group + column)))
        for stay in range(longer[number], start[number + 1]):
            who = np.uint64(person[stay]) * _WIDTH
            group = np.uint64(first[stay]) * _ROW + _SUMMED
            after = np.uint64(past[stay]) * _ROW + _SUMMED
            for column in range(np.uint64(0), _WIDTH, _LANES):
                sums = _load(out, who + column)
                values = _load(table, after + column)
                values = _subtract(values, _load(table, group + column))
                _store(out, who + column, _add(sums, values))


@compiled
def _pass_on(weight: Floats, table: RowsOf) -> None:
    """Compute the output of each group of a block, and the running sum of outputs."""
    for group in range(len(weight)):
        factor, row = table.dtype.type(weight[group]), np.uint64(group) * _ROW
        for column in range(_WIDTH):
            at = row + column
            present = table[at]
            output = factor * (present + table[at + _ONCE])
            table[at + _ROW] += present
            table[at + _PASSED] = output
            table[at + _ROW + _SUMMED] = table[at + _SUMMED] + output
            table[at] = 0
            table[at + _ONCE] = 0
    row = np.uint64(len(weight)) * _ROW
    for column in range(_WIDTH):
        table[row + column] = 0


@compiled
def _finish(
    sums: RowsOf,
    x: RowsOf,
    own: Floats,
    scale: Floats,
    begin: int,
    end: int,
    out: RowsOf,
) -> None:
    """Write scale * (sum of parts + own * x) of some people, and reset their parts."""
    for piece in range(len(x)):
        for who in range(begin, end):
            factor, last = x.dtype.type(own[who]), x.dtype.type(scale[who])
            for column in range(_COLUMNS):
                total = factor * x[piece, who, column]
                for part in range(_PARTS):
                    total += sums[part, piece, who, column]
                    sums[part, piece, who, column] = 0
                out[piece, who, column] = last * total


# Eight values at a time, all read before one is written: the compiler then uses one
# vector and need not check whether arrays overlap.
@inner
def _load(values: RowsOf, at: np.uint64) -> "Lanes":
    return (
        values[at],
        values[at + _1],
        values[at + _2],
        values[at + _3],
        values[at + _4],
        values[at + _5],
        values[at + _6],
        values[at + _7],
    )


@inner
def _store(values: RowsOf, at: np.uint64, new: "Lanes") -> None:
    values[at] = new[0]
    values[at + _1] = new[1]
    values[at + _2] = new[2]
    values[at + _3] = new[3]
    values[at + _4] = new[4]
    values[at + _5] = new[5]
    values[at + _6] = new[6]
    values[at + _7] = new[7]


@inner
def _add(a: "Lanes", b: "Lanes") -> "Lanes":
    return (
        a[0] + b[0],
        a[1] + b[1],
        a[2] + b[2],
        a[3] + b[3],
        a[4] + b[4],
        a[5] + b[5],
        a[6] + b[6],
        a[7] + b[7],
    )


@inner
def _subtract(a: "Lanes", b: "Lanes") -> "Lanes":
    return (
        a[0] - b[0],
        a[1] - b[1],
        a[2] - b[2],
        a[3] - b[3],
        a[4] - b[4],
        a[5] - b[5],
        a[6] - b[6],
        a[7] - b[7],
    )


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
    """Return blocks, the first stay of each block, and the stays in start order."""
    groups = len(start) - 1
    block = np.zeros(groups + 1, np.int64)
    begin = np.zeros(groups + 1, np.int64)
    person = np.empty(len(member), np.uint32)
    first = np.empty(len(member), np.uint8)
    past = np.empty(len(member), np.uint8)
    last_group = np.full(people, -1, np.int64)
    open_stay = np.zeros(people, np.int64)
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
                open_stay[who] = stays
                person[stays], first[stays] = who, group - here
                stays += 1
            past[open_stay[who]] = group - here + 1
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
    """Write the group of each edge and return the first edge of each group.

    Uses a hash table of 2^bits entries with open addressing, at most half full. Members
    are compared one by one, so the result is exact.
    """
    last = np.uint64((1 << bits) - 1)
    table = np.full(1 << bits, -1, np.int32)
    first = np.empty(len(order), np.int32)
    groups = 0
    for edge in order:
        members = index[start[edge] : start[edge + 1]]
        if len(members) == 1:
            group[edge] = ALONE
            continue
        place = _hash(members) & last
        match = table[place]
        while match >= 0:
            other = first[match]
            if np.array_equal(index[start[other] : start[other + 1]], members):
                break
            place = (place + np.uint64(1)) & last
            match = table[place]
        if match < 0:
            table[place] = match = groups
            first[match] = edge
            groups += 1
        group[edge] = match
    return first[:groups].copy()


@compiled
def _hash(members: Ids) -> np.uint64:
    """Return a 64-bit hash of the ordered members of an edge."""
    value = np.uint64(0x9E3779B97F4A7C15)
    for person in members:
        value = (value ^ np.uint64(person)) * np.uint64(0xBF58476D1CE4E5B9)
        value ^= value >> np.uint64(29)
    return value
