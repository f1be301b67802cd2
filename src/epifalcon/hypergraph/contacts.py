"""Contact graph of the baselines: slots that pairs of people spent together.

C counts the slots that two people spent in one region: the sum over slots of B B'
without its diagonal, where B (people, regions) is the occupancy of a slot. A thousand
people in one place are one hyperedge but a million pairs, so products use merged edges
(``fused_propagation.py``), and only each person's strongest contacts are listed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon._numba import compiled, each_part
from epifalcon.checks import whole
from epifalcon.hypergraph.fused_propagation import MergedEdges
from epifalcon.hypergraph.incidence import Ends, Ids, Incidence, count_ids, transpose
from epifalcon.hypergraph.propagation import (
    equal_parts,
    inverse,
    linear,
    require_rows,
    view,
)
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces

_PARTS = 16
_SLOT = 2**40
"""Score of one shared slot; the lower bits break ties by group size."""


@dataclass(frozen=True, eq=False)
class Contacts:
    """Symmetric matrix C of slots that two people spent in one region, diagonal 0.

    Stored as groups of people who were together, each with its number of slots, so
    memory is linear in the number of visits.
    """

    people: int
    """Number of people."""
    groups: MergedEdges

    @cached_property
    def slots_with_others(self) -> NDArray[np.int64]:
        """Return the row sums of C as integers, (people,)."""
        return self._per_person(self.groups.edges * (self.groups.size - 1))

    @cached_property
    def degree(self) -> Tensor:
        """Return the row sums of C, (people,) float32."""
        return torch.from_numpy(self.slots_with_others.astype(np.float32))

    @cached_property
    def matrix(self) -> sp.csr_array:
        """Return C as a sparse float32 matrix; for small cities only."""
        rows = self.groups.members
        shape = len(self.groups), self.people
        present = sp.csr_array(
            (np.ones(len(rows.index)), rows.index, rows.start), shape
        )
        result = sp.csr_array(present.T @ (present * self.groups.edges[:, None]))
        result.setdiag(0)
        result.eliminate_zeros()
        result.sort_indices()
        return result.astype(np.float32)

    def product(self, x: Tensor) -> Tensor:
        """Return C x, (people, width), in the dtype of ``x``, float32 or float64.

        Differentiable any number of times; bitwise equal for any number of threads.
        Sums of integers are exact if the dtype can represent them.
        """
        require_rows(x, self.people, "people")
        return linear(x, self._times, self._times)

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over each person's contacts, D^-1 C x; 0 without contacts."""
        share = torch.from_numpy(inverse(self.slots_with_others)).to(x.dtype)
        return self.product(x) * share[:, None]

    def _per_person(self, value: NDArray[np.integer]) -> NDArray[np.int64]:
        """Sum ``value`` (groups,) over the groups of each person, (people,)."""
        member, spread = self.groups.members.index, np.repeat(value, self.groups.size)
        # Whole numbers below 2^53 add up exactly as floats.
        return np.bincount(member, spread, self.people).astype(np.int64)

    def _times(self, x: Tensor) -> Tensor:
        """Return C x, computed from group sums minus the person's own row."""
        own = self._per_person(self.groups.edges).astype(float)
        slots = self.groups.edges.astype(float)
        return torch.from_numpy(self.groups.spread(view(x), slots, -own))


@dataclass(frozen=True, eq=False)
class NeighbourList:
    """Strongest contacts of each person as incoming edges, strongest first."""

    edge_index: Tensor
    """Partners (sources) and people (targets), (2, edges) int64."""
    weight: Tensor
    """Number of slots spent together, (edges,) float32."""


def contacts_of(traces: Traces, day: int | None = None) -> Contacts:
    """Return the contacts of one day, or of all days together."""
    if day is not None:
        slots = traces.by_slot[traces.clock.slots_of_day(day)]
        traces = Traces(slots, Clock(traces.clock.slot_hours, 1), traces.regions)
    meetings = Incidence.of(traces, keep_alone=False)
    return Contacts(traces.people, MergedEdges.of(meetings))


def strongest(contacts: Contacts, most: int) -> NeighbourList:
    """Return each person's ``most`` partners with the most slots together.

    Ties are broken by smaller groups (the sum over the shared slots of 1 / others
    present), then by the lower id. C itself is never stored.
    """
    whole(1, most=most)
    groups, people = contacts.groups, contacts.people
    rows, score = groups.members, _group_scores(contacts)
    start = np.zeros(people + 1, np.int64)
    np.cumsum(count_ids(rows.index, people), out=start[1:])
    own = transpose(rows.start, rows.index, start)
    best = np.zeros((people, min(most, people)), np.int32)
    slots, count = np.zeros(best.shape, np.int64), np.zeros(people, np.int64)
    bound = equal_parts(start, _PARTS)

    def work(part: int) -> None:
        begin, end = int(bound[part]), int(bound[part + 1])
        _choose(
            rows.start, rows.index, score, start, own, begin, end, best, slots, count
        )

    each_part(work, _PARTS, int((groups.size**2).sum()))
    valid = np.arange(best.shape[1]) < count[:, None]
    target = np.repeat(np.arange(people), count)
    edges = np.stack([best[valid], target]).astype(np.int64)
    weight = slots[valid].astype(np.float32)
    return NeighbourList(torch.from_numpy(edges), torch.from_numpy(weight))


def _group_scores(contacts: Contacts) -> NDArray[np.int64]:
    """Return the contribution of each group to the score of a pair, (groups,).

    The high bits hold slots, the low bits slots / others present. Scores are integers,
    so the sum does not depend on the order.
    """
    groups = contacts.groups
    spread = np.repeat(groups.edges, groups.size)
    longest = np.bincount(groups.members.index, spread, 1).max()
    unit = _SLOT // (int(longest) + 1)
    others = np.maximum(groups.size - 1, 1)
    return np.asarray(groups.edges * (_SLOT + unit // others), np.int64)


@compiled
def _choose(
    start: Ends,
    index: Ids,
    score: NDArray[np.int64],
    own_start: Ends,
    own: Ids,
    begin: int,
    end: int,
    best: Ids,
    slots: NDArray[np.int64],
    count: NDArray[np.int64],
) -> None:
    """Find the strongest partners of people ``begin`` to ``end``."""
    total = np.zeros(len(own_start) - 1, np.int64)
    met = np.empty(len(total), np.int32)
    for person in range(begin, end):
        others = 0
        for group in own[own_start[person] : own_start[person + 1]]:
            for other in index[start[group] : start[group + 1]]:
                if total[other] == 0:
                    met[others] = other
                    others += 1
                total[other] += score[group]
        total[person] = 0
        length = 0
        for other in met[:others]:
            length = _insert(best[person], length, other, total)
        count[person] = length
        for place in range(length):
            slots[person, place] = total[best[person, place]] // _SLOT
        for other in met[:others]:
            total[other] = 0


@compiled
def _insert(best: Ids, length: int, other: int, total: NDArray[np.int64]) -> int:
    """Insert ``other`` into the sorted list ``best``; return the new length."""
    if total[other] == 0:
        return length
    place = length
    while place > 0:
        current = best[place - 1]
        equal = total[current] == total[other]
        if total[current] > total[other] or (equal and current < other):
            break
        if place < len(best):
            best[place] = current
        place -= 1
    if place < len(best):
        best[place] = other
    return min(length + 1, len(best))
