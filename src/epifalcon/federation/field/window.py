"""Falcon Field day by day: a sliding window of days that is inferred again.

    window = window.update(day)

The slots of a new day are appended with no messages in them; everything sent so far
stays, and a few sweeps spread the news of the day and of its tests. When the window is
full its oldest day is dropped: each person's posterior of its state at the end of that
day, given the tests until then, becomes the prior of everything after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.belief_propagation.inference import (
    Cohort,
    InferenceState,
    InitialHazard,
    infer,
    initial_prior,
)
from epifalcon.belief_propagation.marginals import (
    Now,
    current_risk,
    state_probabilities,
)
from epifalcon.belief_propagation.own_tests import result_likelihood
from epifalcon.belief_propagation.saved_state import Messages, PublishedField
from epifalcon.belief_propagation.seir_chain import EdgeMessages, Sums, SweepOptions
from epifalcon.belief_propagation.settings import FieldSettings, WindowSettings
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.types import UNKNOWN, Floats, Mask, Probabilities, RegionIds, Slots

KIND = "field-window"
_TRACES, _KNOWN, _FIELD, _MESSAGES = "traces", "known", "field", "messages"
_BOUNDARY = ("prior", "aside", "status")


@dataclass(frozen=True, eq=False)
class NewDay:
    """Visits and tests of the day after the window."""

    by_slot: RegionIds
    """(slots of a day, people): the people of the window in order, then newcomers."""
    person: NDArray[np.int32]
    """(tests,)"""
    positive: Mask
    slot: Slots
    """(tests,) from the first slot of the window before the update; earlier tests are
    moved to that slot."""
    newcomers: Sequence[str] = ()
    """Names of the newcomers, if people have names."""


@dataclass(frozen=True, eq=False)
class Boundary:
    """State of people before the window; (people, 4) each."""

    prior: Floats
    """Probability of S, E, I, R given earlier own tests."""
    aside: Floats
    """The same, own tests excluded."""
    status: NDArray[np.int8]
    """(people,) of all tests so far, as ``Known.status``."""

    def of_more(self, people: int) -> "Boundary":
        """Extend to so many people; newcomers were in the city before, like others."""
        more = people - len(self.status)
        mean = np.tile(self.aside.mean(axis=0), (more, 1))
        return Boundary(
            np.concatenate([self.prior, mean]),
            np.concatenate([self.aside, mean]),
            np.concatenate([self.status, np.full(more, -1, np.int8)]),
        )


@dataclass(frozen=True, eq=False)
class FieldWindow:
    """The state that is stored from one day to the next."""

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
        settings: FieldSettings,
        window: WindowSettings,
        transmission: Transmission,
    ) -> "FieldWindow":
        """Create a window on the last days of a run."""
        prior = initial_prior(people.traces.people, field.rates)
        found = cls(
            people.traces,
            known,
            field,
            Messages(people.state.infectious, people.state.evidence),
            Boundary(prior, prior.copy(), known.status.copy()),
            settings,
            window,
            transmission,
        )
        while found.traces.clock.days > found.window.days:
            found = found._without_oldest_day()
        return found

    @property
    def last_day(self) -> int:
        """Number of the window's last day."""
        return self.first_day + self.traces.clock.days - 1

    def people(self) -> Cohort:
        """Return everybody with messages and priors, on the window's days."""
        cohort = self.field.people(self.traces, self.known, self.messages)
        return cohort.with_prior(self.boundary.prior, self.boundary.aside)

    def risks(self) -> tuple[Probabilities, Now]:
        """Return the risk ever, own tests excluded, and the current risk."""
        people, received = self.people(), self.field.messages()
        people.listen(received)
        return people.risk, current_risk(people, received)

    def update(self, day: NewDay) -> "FieldWindow":
        """Return the window after one more day; this one is not changed."""
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
        """Merge the tests of the window and of the day.

        A person certainly infected before the window stays so: the first positive
        test stands, even if it is no longer in the window.
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
        """Add newcomers, who were not observed before and have sent nothing."""
        traces, more = self.traces, people - self.traces.people
        if not more:
            return self
        here = np.pad(traces.by_slot, ((0, 0), (0, more)), constant_values=UNKNOWN)
        names = None if traces.names is None else (*traces.names, *newcomers)
        sent = self.messages
        return replace(
            self,
            traces=Traces(here, traces.clock, traces.regions, names),
            messages=sent.each(lambda one: np.pad(one, ((0, 0), (0, more)))),
        )

    def _with_day(self, by_slot: RegionIds) -> "FieldWindow":
        """Append a day in which nothing was sent yet."""
        traces, old = self.traces, self.traces.clock
        clock = Clock(old.slot_hours, old.days + 1, old.start, old.timezone)
        edges = 1 + len(traces.regions)
        rows = [np.bincount(row + 1, minlength=edges) for row in by_slot]
        crowd = np.stack(rows).astype(np.float64)

        def extended(table: Floats) -> Floats:
            return np.concatenate([table, np.zeros_like(crowd)])

        sums = self.field.sums.each(extended)
        sums.crowd[-len(crowd) :] = crowd
        present = np.concatenate([self.field.graph.present, crowd])
        nothing = np.zeros((len(crowd), by_slot.shape[1]), np.float32)
        here = np.concatenate([traces.by_slot, by_slot])
        return replace(
            self,
            traces=Traces(here, clock, traces.regions, traces.names),
            field=replace(
                self.field,
                graph=replace(self.field.graph, clock=clock, present=present),
                sums=sums,
                factor=self.field.factor.each(
                    lambda one: np.concatenate([one, one[-1:]])
                ),
            ),
            messages=self.messages.each(lambda one: np.concatenate([one, nothing])),
        )

    def _without_oldest_day(self) -> "FieldWindow":
        """Drop the first day; each person keeps its state at the end of it."""
        traces, field = self.traces, self.field
        clock, gone = (
            traces.clock.last(traces.clock.days - 1),
            traces.clock.slots_per_day,
        )

        def rest(array: NDArray[Any]) -> NDArray[Any]:
            return array[gone:]

        return replace(
            self,
            traces=Traces(rest(traces.by_slot), clock, traces.regions, traces.names),
            known=_tests_after(self.known, gone, right=field.errors.none),
            field=replace(
                field,
                graph=replace(
                    field.graph, clock=clock, present=rest(field.graph.present)
                ),
                sums=field.sums.each(rest),
                factor=field.factor.each(lambda one: one[1:]),
            ),
            messages=self.messages.each(rest),
            boundary=self._boundary_after(gone),
            first_day=self.first_day + 1,
        )

    def _boundary_after(self, slots: int) -> Boundary:
        """Compute everybody's state after the first ``slots`` slots."""
        received = self.field.messages()
        first = received._replace(
            edges=received.edges[:slots], day=received.day[:slots]
        )
        until = _picked(self.known, self.known.slot < slots)
        people = self.people()
        likelihood = result_likelihood(until, slots, self.field.errors)
        people = replace(people, state=people.state._replace(tests=likelihood))
        return replace(
            self.boundary,
            prior=state_probabilities(people, first, with_tests=True),
            aside=state_probabilities(people, first, with_tests=False),
        )

    def _swept(self) -> "FieldWindow":
        """Run the sweeps of a day from the current messages."""
        settings, people = self.settings, self.people()
        profile = self._start().damping_profile(settings.caution)
        # Transmission is estimated from the first sweep on.
        sweep = settings.region.from_sweep
        state = InferenceState(self.field.sums, self.field.factor, profile, sweep=sweep)
        state = infer(
            _Alone(people),
            self.field.graph,
            state,
            self.window.sweeps,
            settings,
            self.transmission,
        )
        return replace(
            self,
            field=replace(self.field, sums=state.sums, factor=state.factor),
            messages=Messages(people.state.infectious, people.state.evidence),
        )

    def _start(self) -> InitialHazard:
        """Assume growth from those infected before to the share of positives."""
        infected = float(1 - self.boundary.aside[:, 0].mean())
        tested, positive = self.known.tested.sum(), (self.known.status == 1).sum()
        slots = self.traces.clock.slots
        return InitialHazard.from_tests(int(tested), int(positive), infected, slots)

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the window into ``folder``."""
        self.traces.save(folder / _TRACES, origin)
        self.known.save(folder / _KNOWN, origin)
        self.field.save(folder / _FIELD, origin)
        self.messages.save(folder / _MESSAGES, origin)
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(self.boundary, name) for name in _BOUNDARY
        }
        meta = {
            "first_day": self.first_day,
            "last_day": self.last_day,
            "settings": as_plain(self.settings),
            "window": as_plain(self.window),
            "law": self.transmission.law,
        }
        store.write(folder, KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "FieldWindow":
        """Read what ``save`` wrote; every byte is checked."""
        kept = store.read(folder, KIND)
        meta, arrays = kept.meta, kept.arrays
        try:
            settings = build(FieldSettings, meta["settings"], "settings")
            return cls(
                traces=Traces.load(folder / _TRACES),
                known=Known.load(folder / _KNOWN),
                field=PublishedField.load(folder / _FIELD),
                messages=Messages.load(folder / _MESSAGES),
                boundary=Boundary(*(np.array(arrays[name]) for name in _BOUNDARY)),
                settings=settings,
                window=build(WindowSettings, meta["window"], "window"),
                transmission=Transmission(meta["law"], settings.region),
                first_day=int(meta["first_day"]),
            )
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None


@dataclass(frozen=True, eq=False)
class _Alone:
    """The exchange of one cohort with itself."""

    cohort: Cohort

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        return self.cohort.sweep(received, options)

    def end(self, received: EdgeMessages) -> None:
        self.cohort.listen(received)


def _picked(known: Known, kept: Mask) -> Known:
    return Known(
        known.people, known.person[kept], known.positive[kept], known.slot[kept]
    )


def _tests_after(known: Known, slots: int, *, right: bool) -> Known:
    """Return the tests after the first ``slots`` slots, with slots counted from there.

    If tests are never wrong, the first positive one stands: what contradicts one that
    is dropped now is dropped with it.
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
