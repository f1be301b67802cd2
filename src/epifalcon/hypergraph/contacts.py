"""Who was with whom, and for how many slots: the contact graph of the rivals.

C counts the slots that two people spent in one region: the sum over slots of B B'
without its diagonal, where B (people, regions) is where everybody was. A thousand
people who meet are one edge but a million pairs, so products go through merged edges
(``fused.py``), and only the strongest contacts of each person are listed.
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
from epifalcon.hypergraph.fused import MergedEdges
from epifalcon.hypergraph.incidence import Ends, Ids, Incidence, count_ids, transpose
from epifalcon.hypergraph.propagate import (
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
"""A slot together, with room below it for how small the company was."""


@dataclass(frozen=True, eq=False)
class Contacts:
    """C: slots that two people spent in one region. Symmetric, no diagonal.

    Stored as groups of people who were together, each with its number of slots, so
    memory is linear in the visits.
    """

    people: int
    """Number of people."""
    groups: MergedEdges

    @cached_property
    def slots_with_others(self) -> NDArray[np.int64]:
        """Sum of each person's row, in whole numbers: (people,)."""
        return self._per_person(self.groups.edges * (self.groups.size - 1))

    @cached_property
    def degree(self) -> Tensor:
        """Sum of each person's row: (people,) float32."""
        return torch.from_numpy(self.slots_with_others.astype(np.float32))

    @cached_property
    def matrix(self) -> sp.csr_array:
        """C as a sparse matrix, float32 with sorted columns: for small cities only."""
        rows = self.groups.members
        shape = len(self.groups), self.people
        present = sp.csr_array(
            (np.ones(len(rows.index)), rows.index, rows.start), shape
        )
        made = sp.csr_array(present.T @ (present * self.groups.edges[:, None]))
        made.setdiag(0)
        made.eliminate_zeros()
        made.sort_indices()
        return made.astype(np.float32)

    def product(self, x: Tensor) -> Tensor:
        """Return C x, (people, width), in the type of ``x``, 32 or 64 bits.

        Differentiable any number of times; the same bits for any number of threads.
        Sums of whole numbers are exact as long as they fit the type.
        """
        require_rows(x, self.people, "people")
        return linear(x, self._times, self._times)

    def mean(self, x: Tensor) -> Tensor:
        """D^-1 C x: each person's mean over its contacts, 0 without any."""
        share = torch.from_numpy(inverse(self.slots_with_others)).to(x.dtype)
        return self.product(x) * share[:, None]

    def _per_person(self, value: NDArray[np.integer]) -> NDArray[np.int64]:
        """Add up a whole number of each group over each person's groups."""
        member, spread = self.groups.members.index, np.repeat(value, self.groups.size)
        # Whole numbers below 2^53 add up exactly as floats.
        return np.bincount(member, spread, self.people).astype(np.int64)

    def _times(self, x: Tensor) -> Tensor:
        """C x; a group also returns a person's own row, which is subtracted."""
        own = self._per_person(self.groups.edges).astype(float)
        slots = self.groups.edges.astype(float)
        return torch.from_numpy(self.groups.spread(view(x), slots, -own))


@dataclass(frozen=True, eq=False)
class Partners:
    """Each person's strongest contacts as edges to it, the strongest first."""

    edge_index: Tensor
    """(2, edges) int64: row 0 the partner (source), row 1 the person (target)."""
    weight: Tensor
    """(edges,) float32: slots together."""


def contacts_of(traces: Traces, day: int | None = None) -> Contacts:
    """The contacts of one day, or of all days together."""
    if day is not None:
        some = traces.by_slot[traces.clock.slots_of_day(day)]
        traces = Traces(some, Clock(traces.clock.slot_hours, 1), traces.regions)
    company = Incidence.of(traces, keep_alone=False)
    return Contacts(traces.people, MergedEdges.of(company))


def strongest(contacts: Contacts, most: int) -> Partners:
    """Return each person's ``most`` partners with the most slots together.

    Ties are broken by smaller company (the sum over the shared slots of 1 / others
    present), then by the lower id. C itself is never stored.
    """
    whole(1, most=most)
    groups, people = contacts.groups, contacts.people
    rows, worth = groups.members, _worth(contacts)
    start = np.zeros(people + 1, np.int64)
    np.cumsum(count_ids(rows.index, people), out=start[1:])
    own = transpose(rows.start, rows.index, start)
    found = np.zeros((people, min(most, people)), np.int32)
    slots, count = np.zeros(found.shape, np.int64), np.zeros(people, np.int64)
    bound = equal_parts(start, _PARTS)

    def work(part: int) -> None:
        begin, end = int(bound[part]), int(bound[part + 1])
        _choose(
            rows.start, rows.index, worth, start, own, begin, end, found, slots, count
        )

    each_part(work, _PARTS, int((groups.size**2).sum()))
    kept = np.arange(found.shape[1]) < count[:, None]
    target = np.repeat(np.arange(people), count)
    edges = np.stack([found[kept], target]).astype(np.int64)
    weight = slots[kept].astype(np.float32)
    return Partners(torch.from_numpy(edges), torch.from_numpy(weight))


def _worth(contacts: Contacts) -> NDArray[np.int64]:
    """Return the weight of two people's time in each group: (groups,).

    Slots in the high bits, slots / others present in the low ones, as whole numbers,
    whose sum does not depend on the order.
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
    worth: NDArray[np.int64],
    own_start: Ends,
    own: Ids,
    begin: int,
    end: int,
    found: Ids,
    slots: NDArray[np.int64],
    count: NDArray[np.int64],
) -> None:
    """Write the partners of the people from ``begin`` to ``end``."""
    total = np.zeros(len(own_start) - 1, np.int64)
    met = np.empty(len(total), np.int32)
    for person in range(begin, end):
        others = 0
        for group in own[own_start[person] : own_start[person + 1]]:
            for other in index[start[group] : start[group + 1]]:
                if total[other] == 0:
                    met[others] = other
                    others += 1
                total[other] += worth[group]
        total[person] = 0
        kept = 0
        for other in met[:others]:
            kept = _enlist(found[person], kept, other, total)
        count[person] = kept
        for place in range(kept):
            slots[person, place] = total[found[person, place]] // _SLOT
        for other in met[:others]:
            total[other] = 0


@compiled
def _enlist(found: Ids, kept: int, other: int, total: NDArray[np.int64]) -> int:
    """Put ``other`` into the list of the best, if it is one; how many there are."""
    if total[other] == 0:
        return kept
    place = kept
    while place > 0:
        rival = found[place - 1]
        equal = total[rival] == total[other]
        if total[rival] > total[other] or (equal and rival < other):
            break
        if place < len(found):
            found[place] = rival
        place -= 1
    if place < len(found):
        found[place] = other
    return min(kept + 1, len(found))
