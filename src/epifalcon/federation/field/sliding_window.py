"""Daily updates of Falcon Field: inference on a sliding window of days.

    window = window.update(day)

The slots of a new day are appended without messages. Earlier messages are retained, and
a few sweeps propagate the day's visits and tests. When the window is full, its oldest
day is dropped: each person's posterior at the end of that day, given the tests until
then, becomes the prior of the remaining days.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.belief_propagation.inference import (
    ChainCohort,
    CurrentRisk,
    InferenceState,
    InitialHazard,
    count_people,
    infer,
    initial_prior,
)
from epifalcon.belief_propagation.saved_state import Messages, SavedField
from epifalcon.belief_propagation.seir_chain import result_likelihood
from epifalcon.belief_propagation.settings import (
    FieldSettings,
    WindowSettings,
    current_model,
)
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.types import UNKNOWN, Floats, Probabilities, RegionIds

KIND = "field-window"
_TRACES, _KNOWN, _FIELD, _MESSAGES = "traces", "known", "field", "messages"
_BOUNDARY = ("prior", "aside", "status")


@dataclass(frozen=True, eq=False)
class NewDay:
    """Visits and tests of the day after the window."""

    by_slot: RegionIds
    """Region ids, (slots, people): people of the window, then new people."""
    tests: TestResults
    """Tests of the same people; slots count from the first slot of the window before
    the update, where earlier tests are, too."""
    new_people: Sequence[str] = ()
    """Names of the new people, if people have names."""
    first_slot: int | None = None
    """Slot of the window in which the visits begin; they replace what was there. By
    default the first slot after the window."""


@dataclass(frozen=True, eq=False)
class Boundary:
    """Distribution of people's states before the window."""

    prior: Floats
    """Probabilities of S, E, I, R given earlier own tests, (people, 4)."""
    without_tests: Floats
    """Probabilities of S, E, I, R with own tests excluded, (people, 4)."""
    status: NDArray[np.int8]
    """Combined result of all tests so far, (people,): 1, 0, or -1 if not tested."""


@dataclass(frozen=True, eq=False)
class FieldWindow:
    """Inference state on the window, stored between daily updates."""

    traces: Traces
    known: TestResults
    field: SavedField
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
        people: ChainCohort,
        known: TestResults,
        field: SavedField,
        settings: FieldSettings,
        window: WindowSettings,
        transmission: Transmission,
    ) -> "FieldWindow":
        """Create a window of the last days of a finished run."""
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

    def people(self) -> ChainCohort:
        """Return the cohort of all people with its current messages and priors."""
        cohort = self.field.people(self.traces, self.known, self.messages)
        return cohort.with_prior(self.boundary.prior, self.boundary.without_tests)

    def risks(self) -> tuple[Probabilities, CurrentRisk]:
        """Return the risk of ever having been infected, and the current risk."""
        people, received = self.people(), self.field.messages()
        people.end(received)
        return people.risk, people.current_risk(received)

    def update(self, day: NewDay) -> "FieldWindow":
        """Return a new window that includes ``day``."""
        after = self._with_tests(day)._with_day(day)
        if after.traces.clock.days > after.window.days:
            after = after._without_oldest_day()
        return after._swept()

    def _with_tests(self, day: NewDay) -> "FieldWindow":
        """Return the window with the day's tests, and with new people in its boundary.

        New people get the mean distribution of the city. Negative tests of a person who
        was certainly infected before the window are ignored: the first positive test
        counts, even if it is no longer in the window.
        """
        people, old, boundary = day.by_slot.shape[1], self.known, self.boundary
        more, tests = people - old.people, day.tests
        mean = np.tile(boundary.without_tests.mean(axis=0), (more, 1))
        prior = np.concatenate([boundary.prior, mean])
        status = np.pad(boundary.status, (0, more), constant_values=-1)
        np.maximum.at(status, tests.person, tests.positive.astype(np.int8))
        counts = tests.positive | (prior[tests.person, 0] > 0)
        known = old.joined(tests.select(counts), people)
        without_tests = np.concatenate([boundary.without_tests, mean])
        boundary = Boundary(prior, without_tests, status)
        return replace(self, known=known, boundary=boundary)

    def _with_day(self, day: NewDay) -> "FieldWindow":
        """Return the window with the day's visits; new slots are without messages."""
        traces, old = self.traces, self.traces.clock
        first = traces.slots if day.first_slot is None else day.first_slot
        visits = slice(first, first + len(day.by_slot))
        slots, more = max(0, visits.stop - traces.slots), day.by_slot.shape[1]
        more -= traces.people
        here = np.pad(traces.by_slot, ((0, slots), (0, more)), constant_values=UNKNOWN)
        here[visits] = day.by_slot
        names = None if traces.names is None else (*traces.names, *day.new_people)
        days = slots // old.slots_per_day
        clock = replace(old, days=old.days + days)
        field = self.field.on_slots(
            clock,
            lambda one: np.pad(one, ((0, slots), (0, 0))),
            lambda one: np.pad(one, ((0, days), (0, 0)), mode="edge"),
        )
        for table in (field.graph.present, field.sums.crowd):
            table[visits] = count_people(day.by_slot, len(traces.regions))
        longer = Traces(here, clock, traces.regions, names)
        padded = self.messages.each(lambda one: np.pad(one, ((0, slots), (0, more))))
        return replace(self, traces=longer, field=field, messages=padded)

    def _without_oldest_day(self) -> "FieldWindow":
        """Return the window without its first day, whose final states become priors."""
        traces, clock = self.traces, self.traces.clock
        gone = clock.slots_per_day
        clock = clock.last(clock.days - 1)

        def rest(array: NDArray[Any]) -> NDArray[Any]:
            return array[gone:]

        return replace(
            self,
            traces=Traces(rest(traces.by_slot), clock, traces.regions, traces.names),
            known=_tests_after(self.known, gone, right=self.known.is_exact),
            field=self.field.on_slots(clock, rest, lambda one: one[1:]),
            messages=self.messages.each(rest),
            boundary=self._boundary_after(gone),
            first_day=self.first_day + 1,
        )

    def _boundary_after(self, slots: int) -> Boundary:
        """Compute each person's state distribution after the first ``slots`` slots."""
        received = self.field.messages()
        edges, day = received.edges[:slots], received.day[:slots]
        first = received._replace(edges=edges, day=day)
        until = self.known.select(self.known.slot < slots)
        people = self.people()
        likelihood = result_likelihood(until, self.traces.clock)
        people = replace(people, state=people.state._replace(tests=likelihood))
        return replace(
            self.boundary,
            prior=people.state_probabilities(first, with_tests=True),
            without_tests=people.state_probabilities(first, with_tests=False),
        )

    def _swept(self) -> "FieldWindow":
        """Return the window after the sweeps of a daily update."""
        settings, people, known = self.settings, self.people(), self.known
        # Growth from those infected before the window to the share of positives.
        start = InitialHazard.from_tests(
            int(known.tested.sum()),
            int((known.status == 1).sum()),
            float(1 - self.boundary.without_tests[:, 0].mean()),
            self.traces.clock.slots,
        )
        profile = start.damping_profile(settings.damping_decay)
        # Transmission is estimated from the first sweep on.
        sweep = settings.region.from_sweep
        state = InferenceState(self.field.sums, self.field.factor, profile, sweep=sweep)
        graph, sweeps = self.field.graph, self.window.sweeps
        state = infer(people, graph, state, sweeps, settings, self.transmission)
        return replace(
            self,
            field=replace(self.field, sums=state.sums, factor=state.factor),
            messages=Messages(people.state.infectious, people.state.evidence),
        )

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the window to ``folder``."""
        self.traces.save(folder / _TRACES, origin)
        self.known.save(folder / _KNOWN, origin)
        self.field.save(folder / _FIELD, origin)
        self.messages.save(folder / _MESSAGES, origin)
        boundary = self.boundary
        values = (boundary.prior, boundary.without_tests, boundary.status)
        arrays: dict[str, NDArray[Any]] = dict(zip(_BOUNDARY, values, strict=True))
        meta = {
            "first_day": self.first_day,
            "last_day": self.last_day,
            "settings": as_plain(self.settings),
            "window": as_plain(self.window),
            "law": self.transmission.model,
        }
        store.write(folder, KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "FieldWindow":
        """Read a window written by ``save``; verify its checksums."""
        stored = store.read(folder, KIND)
        meta, arrays = stored.meta, stored.arrays
        settings = build(FieldSettings, meta["settings"], "settings")
        return cls(
            traces=Traces.load(folder / _TRACES),
            known=TestResults.load(folder / _KNOWN),
            field=SavedField.load(folder / _FIELD),
            messages=Messages.load(folder / _MESSAGES),
            boundary=Boundary(*(np.array(arrays[name]) for name in _BOUNDARY)),
            settings=settings,
            window=build(WindowSettings, meta["window"], "window"),
            transmission=Transmission(current_model(meta["law"]), settings.region),
            first_day=int(meta["first_day"]),
        )


def _tests_after(known: TestResults, slots: int, *, right: bool) -> TestResults:
    """Return the tests from slot ``slots`` on, with slots counted from there.

    If ``right`` (tests without errors), negative tests after a dropped positive test of
    the same person are dropped too.
    """
    later = known.slot >= slots
    if right:
        first = known.first_positive_slot[known.person]
        later &= known.positive | (first < 0) | (first >= slots)
    return known.select(later).since(slots)
