"""The schedule of Falcon Field: which runs, which model of transmission, how started.

One orchestration for one process, for sites and for the audit:

1. for each pair of folds of the tested people a base run without both, from nothing;
2. for each candidate model of transmission a short run from the base: the held-out
   fold of the pair shows which model is better for the other fold;
3. for each fold of the pair the final run without it, from the base, with the model
   that the other fold selected;
4. the final run with all tests, with the model that all held-out folds selected.

A run only starts from one that knew a subset of its tests, so nobody's own result
reaches its own risk. A private run is one run, without folds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Protocol, cast

import numpy as np

from epifalcon.belief_propagation.calibration import ModelLosses
from epifalcon.belief_propagation.inference import (
    FactorGraph,
    InferenceState,
    InitialHazard,
    MessageExchange,
    add_sums,
    infer,
)
from epifalcon.belief_propagation.seir_chain import (
    EdgeMessages,
    Sums,
    SweepOptions,
    force_by_share,
    rates_for,
)
from epifalcon.belief_propagation.settings import ALIKE, LEAST_FOLDS, Law
from epifalcon.belief_propagation.transmission import Transmission, TransmissionFactor
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.field.denoising import (
    DenoisingExchange,
    PrivateCounts,
    by_slot,
)
from epifalcon.federation.field.privacy_plan import (
    FieldPlan,
    opening_receipts,
    sweep_receipts,
)
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.field.site_people import (
    FieldRun,
    FieldSite,
    HeldOutFold,
    SiteCounts,
)
from epifalcon.federation.preparation import SiteData
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Floats, Probabilities


class SiteGroup(MessageExchange, Protocol):
    """All people of a task, wherever they are."""

    def counted(self) -> SiteCounts:
        """Return the counts of all sites, added up."""

    def begin(self, run: FieldRun) -> None:
        """Begin a run everywhere."""

    def judged(self, held_out: Sequence[HeldOutFold]) -> ModelLosses:
        """Return the log losses of held-out people under each candidate model."""


@dataclass
class ServerResult:
    """What the server knows at the end: nobody's risk."""

    law: Law = "one"
    laws_of_folds: dict[int, Law] = field(default_factory=dict)
    sweeps: int = 0
    state: InferenceState | None = None
    """Of the run with all tests."""

    @property
    def field(self) -> dict[str, Floats]:
        """The final sums at all edges and the factors, by name."""
        if self.state is None:
            return {}
        return {**vars(self.state.sums), "factor": self.state.factor.mean}


@dataclass(frozen=True)
class Pair:
    """Folds that a base run excludes: two, of which an odd number shares one."""

    folds: tuple[int, ...]
    owned: tuple[int, ...]
    """Folds whose final runs start from this base."""

    def partner(self, fold: int) -> int | None:
        """Return the fold that selects the model for ``fold``, if there is one."""
        return next((one for one in self.folds if one != fold), None)


class InferenceSchedule:
    """All runs of a task; people then know their risks."""

    def __init__(
        self,
        people: SiteGroup,
        task: FieldTask,
        count: int,
        clock: Clock,
        report: Callable[[int, int], None] = lambda _done, _planned: None,
        factor: TransmissionFactor | None = None,
    ) -> None:
        """``count`` is the number of people; ``factor`` known transmission."""
        self._people, self._task, self._clock = people, task, clock
        self._report, self._factor = report, factor
        self._counted = people.counted()
        self._rates = rates_for(count, clock, task.pathogen, task.rule)
        self.found = ServerResult()
        self._private: PrivateCounts | None = None
        crowd, share = self._counted.crowd, self._share_of_others()
        if task.private:
            plan = FieldPlan(task.wishes.privacy, clock)
            self._private = PrivateCounts(plan, crowd, self._counted.noises, count)
            crowd = by_slot(1 + self._private.crowd[None], clock.slots)
            share = self._private.share_of_others
        self.graph = FactorGraph(
            clock,
            0.0
            if share is None
            else force_by_share(share, clock, task.pathogen, task.rule),
            task.rule.chance,
            crowd,
            over_susceptible=task.rule.contact == "I/S",
            own_in_sums=not task.private,
        )
        settings = task.inference
        self._laws: tuple[Law, ...] = ("one",) if task.private else settings.region.laws
        self._folds: list[int] = []
        if task.folds:
            self._folds = np.flatnonzero(self._counted.tests[:, 0]).tolist()
        self._selects = len(self._laws) > 1 and len(self._folds) > 1
        calibrates = settings.calibration == "auto" and len(self._folds) >= LEAST_FOLDS
        self._candidates = self._laws if self._selects or calibrates else ()
        self._short = min(settings.region.choosing_sweeps, settings.sweeps)
        self._more = max(settings.sweeps - self._short, 1)
        self._candidate_sweeps = max(self._short // 2, 1)

    def go(self) -> ServerResult:
        """Run everything; see the module."""
        found, judged = self.found, []
        state: InferenceState | None = None
        for pair in self.pairs():
            base = FieldRun(pair.folds, self._laws[0], "cold", "base")
            common = self._run(base, self._short)
            for law in self._candidates:
                candidate = FieldRun(pair.folds, law, "base", "candidate")
                self._run(candidate, self._candidate_sweeps, common)
            for fold in pair.owned:
                judged.append(HeldOutFold(fold, pair.folds))
                partner, law = pair.partner(fold), self._laws[0]
                if self._selects and partner is not None:
                    law = self._select([HeldOutFold(partner, pair.folds)])
                found.laws_of_folds[fold] = law
                state = self._run(FieldRun((fold,), law, "base"), self._more, common)
        found.law = self._select(judged) if self._selects else self._laws[0]
        if state is None:
            last = self._run(FieldRun((), found.law), self._task.inference.sweeps)
        else:
            last = self._run(FieldRun((), found.law, "last"), self._more, state)
        found.state = last
        return found

    @property
    def _planned(self) -> int:
        """Sweeps of all runs."""
        if not self._folds:
            return self._task.inference.sweeps
        each = self._short + len(self._candidates) * self._candidate_sweeps
        return len(self.pairs()) * each + (1 + len(self._folds)) * self._more

    def pairs(self) -> list[Pair]:
        """Return the pairs of folds that base runs exclude."""
        folds = self._folds
        if len(folds) < LEAST_FOLDS:
            # A run without two of two folds would know no test.
            return [Pair((fold,), (fold,)) for fold in folds]
        pairs = [tuple(folds[at : at + 2]) for at in range(0, len(folds), 2)]
        found = [Pair(pair, pair) for pair in pairs]
        if len(folds) % 2:
            found[-1] = Pair((folds[0], folds[-1]), (folds[-1],))
        return found

    def _select(self, held_out: Sequence[HeldOutFold]) -> Law:
        return self._people.judged(held_out).best(self._laws, ALIKE)

    def _run(
        self, run: FieldRun, sweeps: int, start: InferenceState | None = None
    ) -> InferenceState:
        settings, exchange = self._task.inference, cast(MessageExchange, self._people)
        self._people.begin(run)
        tests = np.delete(self._counted.tests, run.without, axis=0).sum(axis=0)
        tested, positive = float(tests[0]), float(tests[1])
        if self._private is not None:
            tested = max(tested, 1.0)
            positive = self._private.positive(tested, positive)
            exchange = DenoisingExchange(exchange, self._private, self._rates)
        state = infer(
            exchange,
            self.graph,
            InitialHazard.from_tests(
                tested, positive, self._rates.seeded, self._clock.slots
            )
            if start is None
            else start.continued(),
            sweeps,
            settings,
            Transmission(run.law, settings.region),
            self._count_sweep,
            self._factor,
        )
        if run.purpose != "base":
            exchange.end(self.graph.messages(state.sums, state.factor))
        return state

    def _count_sweep(self) -> None:
        self.found.sweeps += 1
        self._report(self.found.sweeps, max(self._planned, self.found.sweeps))

    def _share_of_others(self) -> float | None:
        """Mean share of others among the people present; None if nobody was seen."""
        there = self._counted.crowd[:, 1:]
        lost = (there > 0) if self._task.rule.contact == "I/N" else (there == 1)
        observed = float(there.sum())
        return 1 - float(lost.sum()) / observed if observed else None


class LocalSites:
    """Sites in one process; records receipts in ``ledger`` before anything leaves."""

    def __init__(
        self, homes: Sequence[FieldSite], ledger: Ledger | None = None
    ) -> None:
        self.homes, self._ledger = homes, ledger
        self._task, self._clock = homes[0].task, homes[0].home.traces.clock

    def counted(self) -> SiteCounts:
        if self._ledger is not None:
            self._ledger.record(*opening_receipts(self._task, self._clock))
        return reduce(add, [home.count() for home in self.homes])

    def begin(self, run: FieldRun) -> None:
        for home in self.homes:
            home.begin(run)

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        if self._ledger is not None:
            number = 1 + self.homes[0].exchanges
            receipts = sweep_receipts(self._task, self._clock, number)
            self._ledger.record(*receipts)
        return add_sums([home.sweep(received, options) for home in self.homes])

    def end(self, received: EdgeMessages) -> None:
        for home in self.homes:
            home.end(received)

    def judged(self, held_out: Sequence[HeldOutFold]) -> ModelLosses:
        return reduce(add, [home.judged(held_out) for home in self.homes])

    @property
    def risk(self) -> Probabilities:
        """(people,) site after site."""
        return np.concatenate([home.risk for home in self.homes])


def run_in_process(
    task: FieldTask,
    traces: Traces,
    known: TestResults,
    *,
    seed: int,
    noise: int = 0,
    ledger: Ledger | None = None,
    report: Callable[[int, int], None] = lambda _done, _planned: None,
    factor: TransmissionFactor | None = None,
) -> tuple[FieldSite, InferenceSchedule]:
    """Run a task for everybody in this process; the home then knows all risks."""
    home = FieldSite(SiteData(traces, known, 0), task, seed, noise)
    people = LocalSites([home], ledger)
    course = InferenceSchedule(
        people, task, traces.people, traces.clock, report, factor
    )
    course.go()
    return home, course
