"""Label inference from the messages that each person sends in Falcon Field.

Applies where the server sees the messages of each person separately (mode ``local``,
and ``off`` with one person per site). Places are sent in the clear and the server knows
what each person received. It computes the messages of an untested, a negative and a
positive person and compares them with the observed ones. This is a likelihood-ratio
test, the most powerful attack on these messages if the test time is guessed correctly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from epifalcon.attacks.label_inference import LabelScores
from epifalcon.belief_propagation.seir_chain import EdgeMessages, Sums, SweepOptions
from epifalcon.checks import present
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.field.inference_schedule import InferenceSchedule, LocalSites
from epifalcon.federation.field.privacy_plan import INFECTIOUS, TESTS
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.field.site_people import FieldRun, FieldSite
from epifalcon.federation.preparation import SiteData
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats, PersonIds

_CLEAR = 0.05
"""Noise scale that the attacker assumes for messages without noise (rounding)."""
_MOST_EXCHANGES = 3
_WHEN = (0.1, 0.5, 0.9)
"""Quantiles of the test slots, which are public, used as hypothetical test times."""


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A Falcon Field run and all messages that the server broadcast in it."""

    task: FieldTask
    traces: Traces
    known: TestResults
    """Test results, to simulate the devices and evaluate; not used by attacks."""
    seed: int
    noise: int
    run: FieldRun
    broadcasts: tuple[tuple[EdgeMessages, SweepOptions], ...]

    @classmethod
    def of(
        cls, task: FieldTask, traces: Traces, known: TestResults, seed: int, noise: int
    ) -> "RecordedRun":
        """Run the task with all people in one process and record all broadcasts."""
        task = _single_run(task)
        everybody = FieldSite(SiteData(traces, known, 0), task, seed, noise)
        people = _Recording([everybody])
        InferenceSchedule(people, task, traces.people, traces.clock).run()
        run = present(people.run, "a schedule without any run")
        return cls(task, traces, known, seed, noise, run, tuple(people.broadcasts))

    def site_of(
        self, person: int, known: TestResults, task: FieldTask | None = None
    ) -> FieldSite:
        """Return a site with a single ``person``, whose test results are ``known``."""
        by_slot = np.ascontiguousarray(self.traces.by_slot[:, [person]])
        alone = Traces(by_slot, self.traces.clock, self.traces.regions)
        data = SiteData(alone, known, person)
        count = self.traces.people
        return FieldSite(data, task or self.task, self.seed, self.noise, count)

    def sent(self, site: FieldSite) -> Floats:
        """Return the values that ``site`` uploads in all exchanges, as one vector."""
        site.begin(self.run)
        parts = []
        for received, options in self.broadcasts:
            sums = site.sweep(received, options)
            parts += [sums.infectious.ravel(), sums.evidence.ravel()]
        return np.concatenate(parts)

    def spread(self, site: FieldSite) -> Floats:
        """Return the noise scale of each value of ``sent``; call ``sent`` first."""
        edges = 1 + len(self.traces.regions)
        if not self.task.private:
            size = 2 * len(self.broadcasts) * self.traces.slots * edges
            return np.full(size, _CLEAR)
        cells = self.traces.slots // site.plan.length * edges
        exchanges = range(1, 1 + len(self.broadcasts))
        parts = [np.full(cells, site.scale[INFECTIOUS, number]) for number in exchanges]
        return np.concatenate(parts)

    @property
    def clear(self) -> FieldTask:
        """The same task with negligible noise, to compute expected messages."""
        if not self.task.private:
            return self.task
        settings = self.task.settings
        privacy = replace(settings.privacy, epsilon=1e12)
        return replace(self.task, settings=replace(settings, privacy=privacy))


def from_messages(
    recorded: RecordedRun, people: PersonIds, progress: Progress = silent
) -> LabelScores:
    """Infer labels from the messages that each person sent in all exchanges."""
    guesses = hypotheses(recorded)
    likely = np.empty((len(people), len(guesses)))
    for row, person in enumerate(people):
        own = recorded.known.of_range(int(person), int(person) + 1)
        device = recorded.site_of(int(person), own)
        observed, spread = recorded.sent(device), recorded.spread(device)
        for number, tests in enumerate(guesses):
            scores = []
            for test in tests:
                site = recorded.site_of(int(person), test, recorded.clear)
                away = (observed - recorded.sent(site)) / spread
                scores.append(-0.5 * float((away**2).sum()))
            likely[row, number] = logsumexp(scores) - np.log(len(scores))
        progress("messages", row + 1, len(people))
    return LabelScores.of("messages", likely)


def from_counts(recorded: RecordedRun, people: PersonIds) -> LabelScores:
    """Infer labels from each person's upload of test counts."""
    likely = np.empty((len(people), 3))
    spread = _CLEAR
    for row, person in enumerate(people):
        own = recorded.known.of_range(int(person), int(person) + 1)
        device = recorded.site_of(int(person), own)
        if recorded.task.private:
            spread = device.plan.sigma(TESTS)
        observed = device.count().tests.sum(axis=0)
        for number, mean in enumerate(((1, 0), (1, 1), (0, 0))):
            likely[row, number] = -0.5 * (((observed - mean) / spread) ** 2).sum()
    return LabelScores.of("counts", likely)


def hypotheses(recorded: RecordedRun) -> tuple[Sequence[TestResults], ...]:
    """Return test records of a negative, a positive and an untested person.

    A tested person has one record for each of the test times ``_WHEN``.
    """
    slots = recorded.known.slot if len(recorded.known.slot) else np.array([0])
    when = np.unique(np.quantile(slots, _WHEN).astype(np.int32))

    def tested(positive: bool) -> list[TestResults]:
        zero, result = np.zeros(1, np.int32), np.array([positive])
        kinds = recorded.known.kinds
        return [TestResults(1, zero, result, at, kinds=kinds) for at in when[:, None]]

    none = np.zeros(0, np.int32)
    untested = TestResults(1, none, np.zeros(0, np.bool_), none)
    return tested(False), tested(True), [untested]


def _single_run(task: FieldTask) -> FieldTask:
    """Reduce a run without privacy to one fit with at most ``_MOST_EXCHANGES``."""
    if task.private:
        return task
    field = task.settings.field
    sweeps = min(field.sweeps, _MOST_EXCHANGES)
    region = replace(field.region, transmission="fixed")
    reduced = replace(field, folds=0, sweeps=sweeps, region=region)
    return replace(task, settings=replace(task.settings, field=reduced))


class _Recording(LocalSites):
    """Sites in one process that also record all messages they receive."""

    def __init__(self, sites: Sequence[FieldSite]) -> None:
        super().__init__(sites)
        self.broadcasts: list[tuple[EdgeMessages, SweepOptions]] = []
        self.run: FieldRun | None = None

    def begin(self, run: FieldRun) -> None:
        self.run = run
        super().begin(run)

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        self.broadcasts.append((received, options))
        return super().sweep(received, options)
