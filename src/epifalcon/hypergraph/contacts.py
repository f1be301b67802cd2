"""Who was with whom, and for how many slots: the contact graph of the rivals.

C counts the slots that two people spent in one region: the sum over slots of
B B' without its diagonal, where B (people, regions) is where everybody was. It is
exact, and in a crowded region it has far too many entries to be written down: a
thousand people who meet are one edge, but a million pairs. So products go through
the edges (``operator.py`` in another guise), and only the strongest contacts of
each person are ever listed.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.hypergraph import pairs
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.hypergraph.fixed import Fixed
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence, Rows
from epifalcon.hypergraph.meetings import meetings_of
from epifalcon.hypergraph.merging import Groups, merge
from epifalcon.hypergraph.operator import Ready
from epifalcon.hypergraph.pairs import Ends, Ids
from epifalcon.hypergraph.propagate import equal_parts, require_rows, view
from epifalcon.hypergraph.spreading import RowsOf, finish_part, spread_part
from epifalcon.hypergraph.stays import stays_of
from epifalcon.hypergraph.vectors import aligned, aligned_zeros, lanes
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Mask

_SMALL = 4
"""Members of a group up to which it is taken apart into pairs of people."""
_AT_ONCE = 128
"""Bytes of a row that are passed at once: everybody's then fit into a cache."""
_PARTS = 16
_SLOT = 2**40
"""A slot together, with room below it for how small the company was."""
_NOTHING = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Contacts:
    """C: slots that two people spent in one region. Symmetric, no diagonal.

    Held as groups of people who were together, each with its number of slots:
    memory is linear in the visits, whatever the crowds.
    """

    people: int
    """Number of people."""
    groups: Groups

    @cached_property
    def slots_with_others(self) -> NDArray[np.int64]:
        """The sum of each person's row, in whole numbers: (people,)."""
        each = self.groups.edges * (self.groups.size - 1)
        member = self.groups.rows.index
        spread = np.repeat(each, self.groups.size)
        # Whole numbers below 2^53 add up exactly as floats.
        found = np.bincount(member, spread, self.people)
        return found.astype(np.int64)

    @cached_property
    def degree(self) -> Tensor:
        """The sum of each person's row: (people,) float32."""
        return torch.from_numpy(self.slots_with_others.astype(np.float32))

    @cached_property
    def matrix(self) -> sp.csr_array:
        """C written down, float32 with sorted columns: for small cities only."""
        met = meetings_of(self.groups.rows, self._slots(), self.people)
        parts = met.weight.astype(np.float32), met.person.astype(np.int32), met.start
        made = sp.csr_array(parts, shape=(self.people, self.people))
        made.sort_indices()
        return made

    def product(self, x: Tensor) -> Tensor:
        """C x, (people, width) to (people, width), in the type of ``x``.

        Differentiable any number of times; the same bit by bit for any number of
        threads. Whole numbers come out exactly as long as they are small enough
        for the type. Raises ``DataError`` unless ``x`` has that shape and 32 or
        64 bits.
        """
        require_rows(x, self.people, "people")
        return _Product.of(x, self)

    def mean(self, x: Tensor) -> Tensor:
        """D^-1 C x: each person's mean over its contacts, 0 without any."""
        return self.product(x) * self._share(x.dtype)[:, None]

    def _share(self, kind: torch.dtype) -> Tensor:
        degree = torch.from_numpy(self.slots_with_others).to(kind)
        return torch.where(degree > 0, 1 / degree.clamp(min=1), 0.0)

    def _slots(self) -> NDArray[np.float64]:
        return self.groups.edges.astype(np.float64)

    @cached_property
    def _made_ready(self) -> dict[str, Ready]:
        return {}

    def ready(self, kind: np.dtype[np.floating]) -> Ready:
        """What products in this type need, made at the first one."""
        if kind.str not in self._made_ready:
            small, slots = self.groups.size <= _SMALL, self._slots()
            rows = self._rows_of(~small)
            stays = stays_of(rows, self.people)
            met = meetings_of(self._rows_of(small), slots[small], self.people)
            # A group passes its own row back to a person too; that is taken off.
            own = np.bincount(
                rows.index, np.repeat(slots[~small], np.diff(rows.start)), self.people
            )
            meetings = met.start, met.person, met.weight.astype(kind)
            self._made_ready[kind.str] = Ready(
                stays, slots[~small].astype(kind), -own.astype(kind), meetings
            )
        return self._made_ready[kind.str]

    def _rows_of(self, chosen: Mask) -> Rows:
        """The members of some groups."""
        rows = self.groups.rows
        start = np.append(0, np.cumsum(self.groups.size[chosen])).astype(np.int64)
        number = np.flatnonzero(chosen).astype(np.int32)
        return Rows(start, pairs.select_rows(rows.start, rows.index, number, start))


@dataclass(frozen=True, eq=False)
class Partners:
    """Each person's strongest contacts, as edges from partner to person.

    In the order of the persons, the strongest partner first.
    """

    edge_index: Tensor
    """(2, edges) int64: row 0 the partner (source), row 1 the person (target)."""
    weight: Tensor
    """(edges,) float32: slots together."""

    def fixed(self, people: int) -> Fixed:
        """The edges as a fixed support for products and scores, in this order."""
        return Fixed.of(self.edge_index, people)


def contacts_of(traces: Traces, day: int | None = None) -> Contacts:
    """The contacts of one day, or of all days together.

    A slot in which a person was not observed counts for nothing.
    """
    if day is not None:
        some = traces.by_slot[traces.clock.slots_of_day(day)]
        traces = Traces(some, Clock(traces.clock.slot_hours, 1), traces.regions)
    company = HypergraphSettings(keep_alone=False)
    return Contacts(traces.people, merge(Incidence.of(traces, company)))


def strongest(contacts: Contacts, most: int) -> Partners:
    """Each person's ``most`` partners with the most slots together.

    Of equal ones those come first who were together in smaller company (the sum
    over the shared slots of 1 / others present), and only then those with the
    lower number. C itself is never written down: a few numbers for each person
    and the partners are all the memory it takes.
    """
    whole(1, most=most)
    groups, people = contacts.groups, contacts.people
    rows = groups.rows
    start = np.zeros(people + 1, np.int64)
    np.cumsum(pairs.count_ids(rows.index, people), out=start[1:])
    mine = start, pairs.transpose(rows.start, rows.index, start)
    worth = _worth(contacts)
    found = np.zeros((people, min(most, people)), np.int32)
    slots, count = np.zeros(found.shape, np.int64), np.zeros(people, np.int64)
    bound = equal_parts(start, _PARTS)

    def work(part: int) -> None:
        some = int(bound[part]), int(bound[part + 1])
        _choose((rows.start, rows.index, worth), mine, some, (found, slots, count))

    each_part(work, _PARTS, int((groups.size**2).sum()))
    kept = np.arange(found.shape[1]) < count[:, None]
    target = np.repeat(np.arange(people), count)
    edges = np.stack([found[kept], target]).astype(np.int64)
    weight = slots[kept].astype(np.float32)
    return Partners(torch.from_numpy(edges), torch.from_numpy(weight))


def _worth(contacts: Contacts) -> NDArray[np.int64]:
    """What two people have of being together in each group: (groups,).

    Slots, and below them slots / others present, in whole numbers, which add up
    to the same in any order.
    """
    groups = contacts.groups
    spread = np.repeat(groups.edges, groups.size)
    longest = np.bincount(groups.rows.index, spread, 1).max()
    unit = _SLOT // (int(longest) + 1)
    others = np.maximum(groups.size - 1, 1)
    return np.asarray(groups.edges * (_SLOT + unit // others), np.int64)


class _Product(torch.autograd.Function):
    """C x; C is symmetric, so the gradient is the same product."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, contacts: Contacts
    ) -> Tensor:
        ctx.contacts = contacts  # type: ignore[attr-defined]
        rows = view(x)
        return torch.from_numpy(_times(contacts.ready(rows.dtype), rows))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None]:
        return _Product.of(grad, ctx.contacts), None  # type: ignore[attr-defined]

    @classmethod
    def of(cls, x: Tensor, contacts: Contacts) -> Tensor:
        """``apply`` with its types."""
        made = cls.apply(x, contacts)  # type: ignore[no-untyped-call]
        return cast(Tensor, made)


def _times(ready: Ready, x: RowsOf) -> RowsOf:
    """C x, some columns at a time."""
    width, step = x.shape[1], _AT_ONCE // x.itemsize
    if width <= step:
        return _times_some(ready, x)
    out = np.empty_like(x)
    for first in range(0, width, step):
        some = slice(first, first + step)
        out[:, some] = _times_some(ready, x[:, some])
    return out


def _times_some(ready: Ready, x: RowsOf) -> RowsOf:
    """C x for few columns: from people to groups and back, then pairs of people.

    Blocks are shared out to parts by their number, not by that of the threads,
    and the parts are added in order.
    """
    people, used = x.shape
    step = lanes(x.dtype)
    rows = aligned_zeros((people, -(-used // step) * step), x.dtype)
    rows[:, :used] = x
    out, last = aligned(rows.shape, x.dtype), np.ones(people, x.dtype)
    nothing, key = _NOTHING.astype(x.dtype), np.uint64(0)
    block, person = ready.blocks, ready.people
    with ready.zeros((len(block) - 1, *rows.shape)) as sums:

        def spread(part: int) -> None:
            some, groups = (block[part], block[part + 1]), (ready.weight, nothing)
            spread_part(
                ready.stays.arrays, groups, some, (key, used), (rows, sums[part])
            )

        def finish(part: int) -> None:
            some, scales = (person[part], person[part + 1]), (ready.own, nothing, last)
            finish_part(sums, some, scales, ready.meetings, (key, 0, used), (rows, out))

        each_part(spread, len(sums), len(ready.stays) * used)
        each_part(finish, len(person) - 1, people * used)
    return np.ascontiguousarray(out[:, :used])


@compiled
def _choose(
    matrix: tuple[Ends, Ids, NDArray[np.int64]],
    mine: tuple[Ends, Ids],
    bound: tuple[int, int],
    chosen: tuple[Ids, NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """The partners of the people from bound[0] to bound[1]."""
    start, index, worth = matrix
    own_start, own = mine
    found, slots, count = chosen
    total = np.zeros(len(own_start) - 1, np.int64)
    met = np.empty(len(total), np.int32)
    for person in range(bound[0], bound[1]):
        others = 0
        for group in own[own_start[person] : own_start[person + 1]]:
            members = index[start[group] : start[group + 1]]
            others = _meet(members, worth[group], total, (met, others))
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
def _meet(
    members: Ids, worth: int, total: NDArray[np.int64], met: tuple[Ids, int]
) -> int:
    """Add a group's worth to its members, list the new ones; how many there are."""
    listed, count = met
    for other in members:
        if total[other] == 0:
            listed[count] = other
            count += 1
        total[other] += worth
    return count


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
