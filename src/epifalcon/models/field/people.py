"""A cohort: people who share a device or an office, and what they hold at home."""

from dataclasses import dataclass, replace

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.hypergraph.compiled import each_part
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.chains import LANES, live
from epifalcon.models.field.disease import Rates, fit_to_tests
from epifalcon.models.field.reading import (
    Heard,
    Infections,
    Now,
    infections,
    read_now,
)
from epifalcon.models.field.tables import Home, Manner, Sums, Told
from epifalcon.types import Counts, Floats, Probabilities

_PART, _MOST_PARTS = 2048, 8
"""People of a part, at the least, and parts, at most."""
_STEPS = 20
"""What a person costs in a slot, as ``each_part`` counts."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """Some people of a city, one or all, between sweeps.

    Memory is two numbers of four bytes for each person and slot, besides the
    traces. Whatever way people are dealt into cohorts, each one's messages and
    risk and all sums come out with the same bits.
    """

    traces: Traces
    rates: Rates
    home: Home

    @classmethod
    def of(
        cls, traces: Traces, known: Known, rates: Rates, errors: TestErrors
    ) -> "Cohort":
        """The people of ``traces``, before anything was sent."""
        shape = traces.by_slot.shape
        home = Home(
            traces.by_slot,
            fit_to_tests(known, traces.slots, errors),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            np.zeros(traces.people),
            known.tested.astype(np.float32),
            before_all(traces.people, rates),
            before_all(traces.people, rates),
        )
        return cls(traces, rates, home)

    @property
    def risk(self) -> Probabilities:
        """(people,) of having been infected, own tests aside."""
        return self.home.risk

    def copy(self) -> "Cohort":
        """The same people, whose messages can be renewed apart from these."""
        home = self.home
        own = home._replace(
            infectious=home.infectious.copy(),
            evidence=home.evidence.copy(),
            risk=home.risk.copy(),
        )
        return replace(self, home=own)

    def listen(self, told: Told) -> None:
        """Everybody listens and knows its risk; nothing is sent."""
        nothing = Manner(0.0, np.zeros(self.traces.slots), 0.0)
        self.sweep(told, nothing)

    def infections(self, told: Told, *, tests: bool = False) -> Infections:
        """When these people were infected, own tests aside or counted."""
        heard = Heard.by((0, self.traces.people), self.home, told)
        if tests:
            return infections(heard, self.home.prior, self.rates, self.home.fit)
        return infections(heard, self.home.aside, self.rates)

    def now(self, told: Told) -> Now:
        """Who is infected behind the last slot, if ``told`` is what places tell."""
        return read_now(self.home, told, self.rates)

    def crowd(self) -> Counts:
        """How many of these people were where: (slots, 1 + regions)."""
        edges = 1 + len(self.traces.regions)
        rows = [np.bincount(here + 1, minlength=edges) for here in self.traces.by_slot]
        return np.stack(rows)

    def sweep(
        self, told: Told, manner: Manner, *, well: bool = False, tally: bool = False
    ) -> Sums:
        """Everybody listens, lives through the slots and sends; the sums of that.

        The messages in force are renewed in place. ``well`` adds up expected
        susceptible people, ``tally`` tested people's infections and hazard.
        """
        people = self.traces.people
        parts = min(max(people // _PART, 1), _MOST_PARTS)
        found = [self._empty(told, well, tally) for _ in range(parts)]

        def work(part: int) -> None:
            tiles = -(-people // LANES)
            begin = tiles * part // parts * LANES
            end = min(tiles * (part + 1) // parts * LANES, people)
            live((begin, end), self.home, told, self.rates, manner, found[part])

        each_part(work, parts, _STEPS * self.traces.by_slot.size)
        return add_up(found)

    def _empty(self, told: Told, well: bool, tally: bool) -> Sums:
        slots, edges = self.traces.slots, 1 + len(self.traces.regions)
        days = int(told.day[-1]) + 1
        return Sums(
            np.zeros((slots, edges)),
            np.zeros((slots, edges)),
            np.zeros((slots, edges) if well else (0, 0)),
            np.zeros((2, days, edges) if tally else (0, 0, 0)),
        )


def before_all(people: int, rates: Rates) -> Floats:
    """(people, 4) chance of S, E, I, R where an outbreak begins: seeds or not."""
    found = np.zeros((people, 4))
    found[:, 0] = 1 - rates.seeded
    found[:, 1 if rates.exposed_seeds else 2] = rates.seeded
    return found


def add_up(parts: list[Sums]) -> Sums:
    """The sums over several parts or cohorts; the first one's arrays are used."""
    first, *others = parts
    for part in others:
        for total, more in zip(first, part, strict=True):
            np.add(total, more, out=total)
    return first


def mean_change(before: Floats, after: Floats) -> float:
    """Mean size of the change of risks, on a grid: no order of people shows."""
    steps = 2.0**20
    return float(np.rint(np.abs(after - before) * steps).mean() / steps)
