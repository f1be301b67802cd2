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

from epifalcon.checks import whole
from epifalcon.hypergraph.fused_propagation import MergedEdges
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.propagation import inverse, linear, require_rows, view
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats

_PEOPLE_AT_ONCE = 256
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
    def present(self) -> sp.csr_array:
        """Return the members of each group as ones, (groups, people) int64."""
        rows = self.groups.members
        ones, shape = (
            np.ones(len(rows.index), np.int64),
            (len(self.groups), self.people),
        )
        return sp.csr_array((ones, rows.index, rows.start), shape)

    @cached_property
    def slots_with_others(self) -> NDArray[np.int64]:
        """Return the row sums of C as integers, (people,)."""
        slots = self.groups.edges * (self.groups.size - 1)
        return np.asarray(self.present.T @ slots)

    @cached_property
    def degree(self) -> Tensor:
        """Return the row sums of C, (people,) float32."""
        return torch.from_numpy(self.slots_with_others.astype(np.float32))

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

    @cached_property
    def _own(self) -> Floats:
        """Return minus the number of slots with a group, (people,)."""
        return -np.asarray(self.present.T @ self.groups.edges, np.float64)

    def _times(self, x: Tensor) -> Tensor:
        """Return C x, computed from group sums minus the person's own row."""
        slots = self.groups.edges.astype(float)
        return torch.from_numpy(self.groups.spread(view(x), slots, self._own))


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
    present), then by the lower id. C is only stored for some people at a time.
    """
    whole(1, most=most)
    groups, present = contacts.groups, contacts.present
    # The high bits of a score hold slots, the low bits slots / others present; sums of
    # integers do not depend on the order.
    unit = _SLOT // (int((present.T @ groups.edges).max(initial=0)) + 1)
    score = groups.edges * (_SLOT + unit // np.maximum(groups.size - 1, 1))
    scored, groups_of = present * score[:, None], present.T.tocsr()
    partners, people, slots = [], [], []
    for first in range(0, contacts.people, _PEOPLE_AT_ONCE):
        total = groups_of[first : first + _PEOPLE_AT_ONCE] @ scored
        row = np.repeat(np.arange(total.shape[0]), np.diff(total.indptr))
        total.data[total.indices == first + row] = 0
        order = np.lexsort((total.indices, -total.data, row))
        rank = np.arange(len(row)) - total.indptr[row]
        chosen = order[(rank < most) & (total.data[order] > 0)]
        partners.append(total.indices[chosen])
        people.append(first + row[chosen])
        slots.append(total.data[chosen] // _SLOT)
    edges = np.stack([np.concatenate(partners), np.concatenate(people)])
    weight = np.concatenate(slots).astype(np.float32)
    return NeighbourList(
        torch.from_numpy(edges.astype(np.int64)), torch.from_numpy(weight)
    )
