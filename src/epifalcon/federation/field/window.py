"""The field from day to day: a window of days that moves on without starting again.

    window = window.update(day)

The new day's slots are put behind the window's, with what people sent so far left
where it stands; a few sweeps then bring news of the day, and of its tests backwards,
to everybody. Where the window is full its oldest day goes: what each person thinks
of its own state at the end of that day, tests until then counted, is the prior of
all that comes after, and is thought of no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.federation.field.together import Together
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.disease import fit_to_tests
from epifalcon.models.field.people import Cohort, before_all
from epifalcon.models.field.places import Places
from epifalcon.models.field.published import Messages, PublishedField
from epifalcon.models.field.reading import Heard, Now, states_after
from epifalcon.models.field.settings import FieldSettings, WindowSettings
from epifalcon.models.field.sweeps import Stage, Start, caution_by, go_on
from epifalcon.models.field.tables import Sums
from epifalcon.models.field.transmission import Transmission
from epifalcon.types import UNKNOWN, Floats, Mask, Probabilities, RegionIds, Slots


@dataclass(frozen=True, eq=False)
class NewDay:
    """What comes in about the day after the window."""

    by_slot: RegionIds
    """(slots of a day, people): those of the window in their order, then newcomers."""
    person: NDArray[np.int32]
    """(tests,)"""
    positive: Mask
    slot: Slots
    """(tests,) from the first slot of the window as it was; earlier ones count for
    that slot."""
    newcomers: Sequence[str] = ()
    """What the newcomers are called, where people have names."""


@dataclass(frozen=True, eq=False)
class Boundary:
    """What people think of their state before the window; (people, 4) each."""

    prior: Floats
    """Chance of S, E, I, R, earlier own tests counted."""
    aside: Floats
    """The same, own tests aside."""
    status: NDArray[np.int8]
    """(people,) of all tests so far, as ``Known.status``."""

    def of_more(self, people: int) -> "Boundary":
        """Of so many people in all; newcomers were in the city before, like others."""
        more = people - len(self.status)
        mean = np.tile(self.aside.mean(axis=0), (more, 1))
        return Boundary(
            np.concatenate([self.prior, mean]),
            np.concatenate([self.aside, mean]),
            np.concatenate([self.status, np.full(more, -1, np.int8)]),
        )


@dataclass(frozen=True, eq=False)
class FieldWindow:
    """All that goes on from one day to the next."""

    traces: Traces
    known: Known
    field: PublishedField
    messages: Messages
    boundary: Boundary
    settings: FieldSettings
    window: WindowSettings
    transmission: Transmission
    first_day: int = 1
    """Number of the window's first day."""

    @classmethod
    def of_run(
        cls,
        people: Cohort,
        known: Known,
        field: PublishedField,
        settings: tuple[FieldSettings, WindowSettings],
        transmission: Transmission,
    ) -> "FieldWindow":
        """A window on the days of a run, the oldest ones dropped where it is full."""
        prior = before_all(people.traces.people, field.rates)
        messages = Messages(people.home.infectious, people.home.evidence)
        boundary = Boundary(prior, prior.copy(), known.status.copy())
        found = cls(
            people.traces, known, field, messages, boundary, *settings, transmission
        )
        while found.traces.clock.days > found.window.days:
            found = found._without_oldest_day()
        return found

    @property
    def last_day(self) -> int:
        """Number of the window's last day."""
        return self.first_day + self.traces.clock.days - 1

    def people(self) -> Cohort:
        """Everybody at home, on the window's days."""
        cohort = self.field.people(self.traces, self.known, self.messages)
        home = cohort.home._replace(
            prior=self.boundary.prior, aside=self.boundary.aside
        )
        return replace(cohort, home=home)

    def risks(self) -> tuple[Probabilities, Now]:
        """Of ever having been infected, own tests aside; and of being so now."""
        people, told = self.people(), self.field.told()
        people.listen(told)
        return people.risk, people.now(told)

    def update(self, day: NewDay) -> "FieldWindow":
        """The window moved on by a day; this one stays as it is."""
        _require_fitting(self, day)
        known = self._with_tests(day)
        after = replace(
            self, known=known, boundary=self._with_status(day, known.people)
        )
        after = after._with_people(day.by_slot.shape[1], day.newcomers)
        after = after._with_day(day.by_slot)
        if after.traces.clock.days > after.window.days:
            after = after._without_oldest_day()
        return after._swept()

    def _with_tests(self, day: NewDay) -> Known:
        """The tests of the window and of the day.

        Who was certainly infected before the window stays so: the first positive
        test stands, also where it is gone.
        """
        people, old = day.by_slot.shape[1], self.known
        sure = np.zeros(people, np.bool_)
        sure[: old.people] = self.boundary.prior[:, 0] == 0
        kept = day.positive | ~sure[day.person]
        slot = np.maximum(day.slot[kept], 0).astype(np.int32)
        return Known.from_tests(
            people,
            np.concatenate([old.person, day.person[kept]]),
            np.concatenate([old.positive, day.positive[kept]]),
            np.concatenate([old.slot, slot]),
        )

    def _with_status(self, day: NewDay, people: int) -> Boundary:
        boundary = self.boundary.of_more(people)
        status = boundary.status.copy()
        np.maximum.at(status, day.person, day.positive.astype(np.int8))
        return replace(boundary, status=status)

    def _with_people(self, people: int, newcomers: Sequence[str]) -> "FieldWindow":
        """Newcomers were not observed before, and have sent nothing."""
        traces, more = self.traces, people - self.traces.people
        if not more:
            return self
        here = np.pad(traces.by_slot, ((0, 0), (0, more)), constant_values=UNKNOWN)
        names = None if traces.names is None else (*traces.names, *newcomers)
        sent = self.messages
        return replace(
            self,
            traces=Traces(here, traces.clock, traces.regions, names),
            messages=Messages(
                np.pad(sent.infectious, ((0, 0), (0, more))),
                np.pad(sent.evidence, ((0, 0), (0, more))),
            ),
        )

    def _with_day(self, by_slot: RegionIds) -> "FieldWindow":
        """The window with one more day, of which nothing was sent yet."""
        traces, field, sent = self.traces, self.field, self.messages
        old = traces.clock
        clock = Clock(old.slot_hours, old.days + 1, old.start, old.timezone)
        edges, more = 1 + len(traces.regions), old.slots_per_day
        present = np.stack([np.bincount(row + 1, minlength=edges) for row in by_slot])
        nothing = np.zeros((more, by_slot.shape[1]), np.float32)
        empty = Places.empty(present.astype(np.float64))
        places = field.places
        here = np.concatenate([traces.by_slot, by_slot])
        return replace(
            self,
            traces=Traces(here, clock, traces.regions, traces.names),
            field=replace(
                field,
                city=replace(
                    field.city,
                    clock=clock,
                    present=np.concatenate([field.city.present, present]),
                ),
                places=Places(
                    np.concatenate([places.crowd, empty.crowd]),
                    np.concatenate([places.infectious, empty.infectious]),
                    np.concatenate([places.evidence, empty.evidence]),
                ),
                factor=field.factor.each(lambda one: np.concatenate([one, one[-1:]])),
            ),
            messages=Messages(
                np.concatenate([sent.infectious, nothing]),
                np.concatenate([sent.evidence, nothing]),
            ),
        )

    def _without_oldest_day(self) -> "FieldWindow":
        """The window without its first day, of which each person keeps its state."""
        traces, places, sent = self.traces, self.field.places, self.messages
        clock, city = traces.clock.last(traces.clock.days - 1), self.field.city
        rest = slice(traces.clock.slots_per_day, None)
        return replace(
            self,
            traces=Traces(traces.by_slot[rest], clock, traces.regions, traces.names),
            known=_tests_after(self.known, rest.start, right=self.field.errors.none),
            field=replace(
                self.field,
                city=replace(city, clock=clock, present=city.present[rest]),
                places=Places(
                    places.crowd[rest], places.infectious[rest], places.evidence[rest]
                ),
                factor=self.field.factor.each(lambda one: one[1:]),
            ),
            messages=Messages(sent.infectious[rest], sent.evidence[rest]),
            boundary=self._boundary_behind(rest.start),
            first_day=self.first_day + 1,
        )

    def _boundary_behind(self, slots: int) -> Boundary:
        """What people think of their state behind the first ``slots`` slots."""
        people, told = self.people(), self.field.told()
        first = told._replace(edges=told.edges[:slots])
        heard = Heard.by((0, self.traces.people), people.home, first)
        until = _picked(self.known, self.known.slot < slots)
        fit = fit_to_tests(until, slots, self.field.errors)
        rates = self.field.rates
        return replace(
            self.boundary,
            prior=states_after(heard, self.boundary.prior, rates, fit),
            aside=states_after(heard, self.boundary.aside, rates),
        )

    def _swept(self) -> "FieldWindow":
        """After the sweeps of a day, from what is in force."""
        settings, people, city = self.settings, self.people(), self.field.city
        together = Together([people])
        caution = caution_by(self._start(), city.clock.slots, settings)
        none = np.zeros((0, 0))
        sums = Sums(none, none, none, np.zeros((0, 0, 0)))
        stage = Stage(self.field.places, self.field.factor, sums, caution)
        for _ in range(self.window.sweeps):
            tally = self.transmission.law != "one"
            stage = go_on(together, city, stage, settings, tally=tally)
            if tally:
                factor = self.transmission.estimate(
                    stage.sums.tally, stage.factor, settings.region.from_sweep
                )
                stage = replace(stage, factor=factor)
        field = replace(self.field, places=stage.places, factor=stage.factor)
        messages = Messages(people.home.infectious, people.home.evidence)
        return replace(self, field=field, messages=messages)

    def _start(self) -> Start:
        """From who was infected before the window to the share of positive tests."""
        infected = float(1 - self.boundary.aside[:, 0].mean())
        tested, positive = self.known.tested.sum(), (self.known.status == 1).sum()
        rates = self.field.rates._replace(seeded=infected)
        return Start.by_share(
            int(tested), int(positive), rates, self.traces.clock.slots
        )


def _picked(known: Known, kept: Mask) -> Known:
    return Known(
        known.people, known.person[kept], known.positive[kept], known.slot[kept]
    )


def _tests_after(known: Known, slots: int, *, right: bool) -> Known:
    """The tests behind the first ``slots`` slots, on a clock that begins there.

    Where tests are always right, the first positive one stands: what contradicts
    one that is gone now goes with it.
    """
    kept = known.slot >= slots
    if right:
        first = known.first_positive_slot[known.person]
        kept &= known.positive | (first < 0) | (first >= slots)
    return _picked(known, kept).since(slots)


def _require_fitting(window: FieldWindow, day: NewDay) -> None:
    """Raise ``DataError`` where the day cannot come behind the window."""
    slots, people = window.traces.clock.slots_per_day, window.traces.people
    if day.by_slot.ndim != 2 or day.by_slot.shape[0] != slots:
        raise DataError(
            f"a day of shape {day.by_slot.shape}, expected ({slots} slots, people)"
        )
    if day.by_slot.shape[1] < people:
        raise DataError(
            f"a day of {day.by_slot.shape[1]:,} people, expected the {people:,} of the "
            "window and any newcomers behind them"
        )
    end = window.traces.slots + slots
    if len(day.slot) and int(day.slot.max()) >= end:
        raise DataError(
            f"a test in slot {int(day.slot.max())}, but the day ends with slot "
            f"{end - 1}"
        )
    names, more = window.traces.names, day.by_slot.shape[1] - people
    if names is not None and len(day.newcomers) != more:
        raise DataError(f"{len(day.newcomers)} names for {more} newcomers")
