"""What networks stand on: who met whom, made once and only if asked for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from epifalcon.hypergraph.contacts import (
    Contacts,
    Partners,
    contacts_of,
    strongest,
)
from epifalcon.hypergraph.fixed import Fixed
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN


@dataclass(frozen=True, eq=False)
class Circle:
    """The people whom each person attends to, and how close they are."""

    edges: Fixed
    """From partner to person."""
    closeness: Tensor
    """(edges, 1) float32: log(1 + slots together), 1 for all slots of the traces."""


class Ground:
    """The contacts of a city's people, whole and day by day."""

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self.people = traces.people
        self.days = traces.clock.days
        self._partners: dict[int, Partners] = {}

    @cached_property
    def contacts(self) -> Contacts:
        """Of all days together."""
        return contacts_of(self.traces)

    @cached_property
    def daily(self) -> tuple[Contacts, ...]:
        """Of each day."""
        return tuple(contacts_of(self.traces, day) for day in range(self.days))

    @cached_property
    def observed(self) -> Tensor:
        """How many slots each person was observed in: (people,) float32."""
        seen = (self.traces.by_slot != UNKNOWN).sum(axis=0)
        return torch.from_numpy(seen.astype(np.float32))

    def partners(self, most: int) -> Partners:
        """Each person's strongest partners, ``most`` at most."""
        if most not in self._partners:
            self._partners[most] = strongest(self.contacts, most)
        return self._partners[most]

    def circle(self, most: int, with_self: bool) -> Circle:
        """The strongest partners, and the person itself where wanted.

        With itself a person spends the slots in which it was observed.
        """
        found = self.partners(most)
        edges, slots = found.edge_index, found.weight
        if with_self:
            everybody = torch.arange(self.people).expand(2, -1)
            edges = torch.cat([everybody, edges], dim=1)
            slots = torch.cat([self.observed, slots])
        closeness = slots.log1p() / np.log1p(self.traces.slots)
        return Circle(Fixed.of(edges, self.people), closeness[:, None])
