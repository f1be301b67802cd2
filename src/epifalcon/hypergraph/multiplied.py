"""A layer multiplied out: one weight for each two people who met.

Worth it where the same people meet again and again, in many different groups.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from epifalcon.hypergraph import pairs
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.hypergraph.incidence import Rows
from epifalcon.hypergraph.merging import Groups
from epifalcon.hypergraph.pairs import Ends, Ids
from epifalcon.types import Floats

_PARTS = 16
_SAMPLE = 512
_WORTH = 2.7


@dataclass(frozen=True, eq=False)
class Multiplied:
    """sum over e of 1/|e| for each two people who share edges e, by rows."""

    start: Tensor
    """(people + 1,) int32"""
    person: Tensor
    """(entries,) int32"""
    weight: Tensor
    """(entries,) float32"""

    def times(self, x: Tensor) -> Tensor:
        """The product with ``x`` (people, width), float32; rows sum in order."""
        product: Tensor = embedding_bag(
            self.person,
            x,
            self.start,
            mode="sum",
            per_sample_weights=self.weight,
            include_last_offset=True,
        )
        return product


def worth_it(groups: Groups, people: int) -> bool:
    """Whether the entries, counted for some people, are few beside the pairs.

    The bound was fitted to measurements: with fewer than 2.7 entries for each
    pair of the merged groups, one entry costing less than one pair, the
    product is the faster way.
    """
    chosen = np.arange(0, people, max(1, people // _SAMPLE), dtype=np.int32)
    entries = _count(groups.rows, _of_person(groups.rows, people), chosen).sum()
    estimate = entries * (people / len(chosen))
    return bool(0 < estimate < min(_WORTH * len(groups.rows.index), 2**31 - 1))


def multiply_out(groups: Groups, alone: Ids) -> Multiplied:
    """The weights of ``groups``, and on the diagonal how often each was ``alone``."""
    people = len(alone)
    turned = _of_person(groups.rows, people)
    everybody = np.arange(people, dtype=np.int32)
    start = np.zeros(people + 1, np.int64)
    np.cumsum(_count(groups.rows, turned, everybody), out=start[1:])
    person = np.empty(start[-1], np.int32)
    weight = np.empty(start[-1], np.float32)
    bound = np.linspace(0, people, _PARTS + 1).astype(np.int64)
    matrix = groups.rows.start, groups.rows.index, groups.weight

    def work(part: int) -> None:
        filled = start, person, weight
        _fill(
            matrix,
            (turned.start, turned.index),
            alone,
            bound[part : part + 2],
            filled,
        )

    each_part(work, _PARTS, len(person))
    return Multiplied(
        torch.from_numpy(start.astype(np.int32)),
        torch.from_numpy(person),
        torch.from_numpy(weight),
    )


def _of_person(rows: Rows, people: int) -> Rows:
    start = np.zeros(people + 1, np.int64)
    np.cumsum(pairs.count_ids(rows.index, people), out=start[1:])
    return Rows(start, pairs.transpose(rows.start, rows.index, start))


def _count(rows: Rows, turned: Rows, chosen: Ids) -> Ids:
    count = np.empty(len(chosen), np.int32)
    bound = np.linspace(0, len(chosen), _PARTS + 1).astype(np.int64)

    def work(part: int) -> None:
        some = slice(bound[part], bound[part + 1])
        _count_some(
            (rows.start, rows.index),
            (turned.start, turned.index),
            chosen[some],
            count[some],
        )

    each_part(work, _PARTS, len(rows.index))
    return count


@compiled
def _count_some(
    rows: tuple[Ends, Ids], turned: tuple[Ends, Ids], chosen: Ids, count: Ids
) -> None:
    """How many people each chosen one shares a group with, itself included."""
    start, index = rows
    own_start, own = turned
    seen = np.full(len(own_start) - 1, -1, np.int32)
    for place in range(len(chosen)):
        person = chosen[place]
        seen[person] = person
        found = 1
        for each in range(own_start[person], own_start[person + 1]):
            group = own[each]
            for pair in range(start[group], start[group + 1]):
                found += seen[index[pair]] != person
                seen[index[pair]] = person
        count[place] = found


@compiled
def _meet(members: Ids, weight: float, total: Floats, other: Ids, here: int) -> int:
    """Add ``weight`` for each member; list those not met before from ``here`` on."""
    for met in members:
        if total[met] < 0:
            other[here] = met
            total[met] = 0
            here += 1
        total[met] += weight
    return here


@compiled
def _fill(
    matrix: tuple[Ends, Ids, Floats],
    turned: tuple[Ends, Ids],
    alone: Ids,
    bound: NDArray[np.int64],
    filled: tuple[Ends, Ids, NDArray[np.float32]],
) -> None:
    """The entries of the people from bound[0] to bound[1], in order of meeting."""
    start, index, group_weight = matrix
    own_start, own = turned
    first, other, weight = filled
    total = np.full(len(own_start) - 1, -1.0)
    for person in range(bound[0], bound[1]):
        here = first[person]
        other[here] = person
        total[person] = alone[person]
        here += 1
        for each in range(own_start[person], own_start[person + 1]):
            group = own[each]
            members = index[start[group] : start[group + 1]]
            here = _meet(members, group_weight[group], total, other, here)
        for entry in range(first[person], here):
            weight[entry] = total[other[entry]]
            total[other[entry]] = -1
