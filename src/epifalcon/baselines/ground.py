"""What networks stand on: who met whom, made once and only if asked for."""

from functools import cached_property

from epifalcon.hypergraph.contacts import (
    Contacts,
    Partners,
    contacts_of,
    strongest,
)
from epifalcon.mobility.traces import Traces


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

    def partners(self, most: int) -> Partners:
        """Each person's strongest partners, ``most`` at most."""
        if most not in self._partners:
            self._partners[most] = strongest(self.contacts, most)
        return self._partners[most]
