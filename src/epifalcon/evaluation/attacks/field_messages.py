"""Label inference from what Falcon Field's people send, one by one.

For a server to whom each person is a cohort of its own (``local``, and ``off`` with one
person at each site). Places leave in the clear, and the server knows what the person
received, so it computes what the person would send if untested, negative or positive,
and compares with what came: the likelihood, which no other attack on these messages
beats where the time of the test is guessed right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from epifalcon.belief_propagation.seir_chain import EdgeMessages, Sums, SweepOptions
from epifalcon.epidemic.known import Known
from epifalcon.evaluation.attacks.label_inference import Diagnosis
from epifalcon.federation.field.course import Course, Gathered
from epifalcon.federation.field.home import FieldHome, FieldRun
from epifalcon.federation.field.plan import INFECTIOUS, TESTS
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.preparing import Household
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats, PersonIds

_CLEAR = 0.05
"""What an attacker takes for noise where there is none: numbers are rounded."""
_MOST_EXCHANGES = 3
_WHEN = (0.1, 0.5, 0.9)
"""Quantiles of the slots of tests, which everybody knows."""


@dataclass(frozen=True, eq=False)
class Overheard:
    """A task on a city, and what the server told everybody in its exchanges."""

    task: FieldTask
    traces: Traces
    known: Known
    """For judging, and to make people's own messages; no attack reads it."""
    seed: int
    noise: int
    run: FieldRun
    told: tuple[tuple[EdgeMessages, SweepOptions], ...]

    @classmethod
    def of(
        cls, task: FieldTask, traces: Traces, known: Known, seed: int, noise: int
    ) -> "Overheard":
        """Carry out the run for everybody by the pathogen's rate, and listen."""
        task = _single_run(task)
        everybody = FieldHome(Household(traces, known, 0), task, seed, noise)
        people = _Listening([everybody])
        Course(people, task, traces.people, traces.clock).go()
        if people.run is None:
            raise AssertionError("a course without any run")
        return cls(task, traces, known, seed, noise, people.run, tuple(people.heard))

    def home(
        self, person: int, known: Known, task: FieldTask | None = None
    ) -> FieldHome:
        """One person as a cohort of its own, with tests ``known`` of one person."""
        by_slot = np.ascontiguousarray(self.traces.by_slot[:, [person]])
        alone = Traces(by_slot, self.traces.clock, self.traces.regions)
        home = Household(alone, known, person)
        count = self.traces.people
        return FieldHome(home, task or self.task, self.seed, self.noise, count)

    def sent(self, home: FieldHome) -> Floats:
        """All cells of all exchanges that leave ``home``, one after the other."""
        home.begin(self.run)
        parts = []
        for received, options in self.told:
            sums = home.sweep(received, options)
            parts += [sums.infectious.ravel(), sums.evidence.ravel()]
        return np.concatenate(parts)

    def spread(self, home: FieldHome) -> Floats:
        """The noise of each number of ``sent``, which ``home`` has just sent."""
        edges = 1 + len(self.traces.regions)
        if not self.task.private:
            size = 2 * len(self.told) * self.traces.slots * edges
            return np.full(size, _CLEAR)
        cells = self.traces.slots // home.plan.length * edges
        exchanges = range(1, 1 + len(self.told))
        each = [np.full(cells, home.scale[INFECTIOUS, number]) for number in exchanges]
        return np.concatenate(each)

    @property
    def clear(self) -> FieldTask:
        """The same task with next to no noise: what people would send without."""
        if not self.task.private:
            return self.task
        wishes = self.task.wishes
        privacy = replace(wishes.privacy, epsilon=1e12)
        return replace(self.task, wishes=replace(wishes, privacy=privacy))


def from_messages(
    heard: Overheard, people: PersonIds, progress: Progress = silent
) -> Diagnosis:
    """Log-likelihoods by the cells that each person sent in all exchanges."""
    guesses = hypotheses(heard)
    likely = np.empty((len(people), len(guesses)))
    for place, person in enumerate(people):
        device = heard.home(int(person), _own(heard.known, int(person)))
        came, spread = heard.sent(device), heard.spread(device)
        for number, tests in enumerate(guesses):
            would = [
                heard.sent(heard.home(int(person), one, heard.clear)) for one in tests
            ]
            far = [-0.5 * float((((came - one) / spread) ** 2).sum()) for one in would]
            likely[place, number] = logsumexp(far) - np.log(len(far))
        progress("messages", place + 1, len(people))
    return Diagnosis.of("messages", likely)


def from_counts(heard: Overheard, people: PersonIds) -> Diagnosis:
    """By what each person says of its own test when tests are counted."""
    likely = np.empty((len(people), 3))
    spread = _CLEAR
    for place, person in enumerate(people):
        device = heard.home(int(person), _own(heard.known, int(person)))
        if heard.task.private:
            spread = device.plan.sigma(TESTS)
        came = device.count().tests.sum(axis=0)
        for number, would in enumerate(((1, 0), (1, 1), (0, 0))):
            likely[place, number] = -0.5 * (((came - would) / spread) ** 2).sum()
    return Diagnosis.of("counts", likely)


def hypotheses(heard: Overheard) -> tuple[Sequence[Known], ...]:
    """Tests of one person who is negative, positive or untested, at likely times."""
    slots = heard.known.slot if len(heard.known.slot) else np.array([0])
    when = np.unique(np.quantile(slots, _WHEN).astype(np.int32))

    def tested(positive: bool) -> list[Known]:
        zero, result = np.zeros(1, np.int32), np.array([positive])
        return [Known(1, zero, result, np.array([slot], np.int32)) for slot in when]

    none = np.zeros(0, np.int32)
    return tested(False), tested(True), [Known(1, none, np.zeros(0, np.bool_), none)]


def _single_run(task: FieldTask) -> FieldTask:
    """One run, of few exchanges: the first messages tell of tests alone."""
    if task.private:
        return task
    field = task.wishes.field
    few = replace(
        field,
        folds=0,
        sweeps=min(field.sweeps, _MOST_EXCHANGES),
        region=replace(field.region, law="one"),
    )
    return replace(task, wishes=replace(task.wishes, field=few))


def _own(known: Known, person: int) -> Known:
    mine = known.person == person
    return Known(
        1, np.zeros(int(mine.sum()), np.int32), known.positive[mine], known.slot[mine]
    )


class _Listening(Gathered):
    """Sites in one process, and all messages that they receive."""

    def __init__(self, homes: Sequence[FieldHome]) -> None:
        super().__init__(homes)
        self.heard: list[tuple[EdgeMessages, SweepOptions]] = []
        self.run: FieldRun | None = None

    def begin(self, run: FieldRun) -> None:
        self.run = run
        super().begin(run)

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        self.heard.append((received, options))
        return super().sweep(received, options)
