"""Schedule of Falcon Field: order of runs, initial messages and model selection.

The same schedule is used in one process, over sites and in the audit:

0. unless all tests are random and without dates, short runs without each pair of folds,
   from whose losses the rates of the disease are estimated (``disease_rates``);
1. for each pair of folds of the tested people a cold base run without both;
2. for each candidate transmission model a short run from the base: each held-out fold
   of the pair selects the model for the other fold;
3. for each fold of the pair the final run without it, from the base, with the model
   that the other fold selected;
4. the final run with all tests, with the model that all held-out folds selected.

A run only starts from one that used a subset of its tests, so nobody's own result
affects its own risk, except through the estimated rates, which are equal for all. A
private run is one run, without folds and with the rates of the task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Protocol

import numpy as np

from epifalcon.belief_propagation.calibration import ModelLosses
from epifalcon.belief_propagation.disease_rates import (
    Disease,
    RateEstimate,
    estimate_rates,
    evaluations,
)
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
from epifalcon.belief_propagation.settings import (
    EQUALLY_RICH,
    LEAST_FOLDS,
    TransmissionModel,
)
from epifalcon.belief_propagation.testing import RANDOM, initial_rates
from epifalcon.belief_propagation.transmission import Transmission, TransmissionFactor
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.field.denoising import DenoisingExchange, by_slot
from epifalcon.federation.field.privacy_plan import FieldPlan, opening_receipts
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.field.site_people import (
    FieldRun,
    FieldSite,
    HeldOutFold,
    RunPurpose,
    RunStart,
    SiteCounts,
)
from epifalcon.federation.preparation import SiteData
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Floats


class SiteGroup(MessageExchange, Protocol):
    """Interface to all sites of a task."""

    def counts(self) -> SiteCounts:
        """Return the sum of the counts of all sites."""

    def begin(self, run: FieldRun) -> None:
        """Start ``run`` at all sites."""

    def losses(
        self, held_out: Sequence[HeldOutFold], models: Sequence[TransmissionModel]
    ) -> ModelLosses:
        """Return the log losses of held-out people under each of ``models``."""


@dataclass
class ServerResult:
    """Result of a task at the server; risks stay at the sites."""

    transmission: TransmissionModel = "fixed"
    transmission_of_folds: dict[int, TransmissionModel] = field(default_factory=dict)
    sweeps: int = 0
    state: InferenceState | None = None
    """Final state of the run with all tests."""
    rates: RateEstimate | None = None
    """Estimated rates of the disease; None if the published ones were used."""

    @property
    def field(self) -> dict[str, Floats]:
        """Final sums at all edges and transmission factors, by name."""
        if self.state is None:
            return {}
        return {**vars(self.state.sums), "factor": self.state.factor.mean}


@dataclass(frozen=True)
class Pair:
    """Two folds excluded by a base run; with an odd number of folds, pairs overlap."""

    folds: tuple[int, ...]
    owned: tuple[int, ...]
    """Folds whose final runs start from this base."""

    def partner(self, fold: int) -> int | None:
        """Return the fold that selects the model for ``fold``, if there is one."""
        return next((one for one in self.folds if one != fold), None)


class InferenceSchedule:
    """Executes all runs of a task; the sites store the risks of their people."""

    def __init__(
        self,
        people: SiteGroup,
        task: FieldTask,
        count: int,
        clock: Clock,
        report: Callable[[int, int], None] = lambda _done, _planned: None,
        factor: TransmissionFactor | None = None,
    ) -> None:
        """Collect the counts of all sites; ``factor`` fixes transmission factors."""
        self._people, self._task, self._clock = people, task, clock
        self._report, self._factor = report, factor
        self._disease: Disease | None = None
        self._counts = people.counts()
        self._rates = rates_for(count, clock, task.pathogen, task.rule)
        self.result = ServerResult()
        self._private: DenoisingExchange | None = None
        crowd, share = self._counts.crowd, self._share_of_others()
        if task.private:
            plan, noises = FieldPlan(task.settings.privacy, clock), self._counts.noises
            self._private = DenoisingExchange(
                people, plan, self._rates, crowd, noises, count
            )
            crowd = by_slot(1 + self._private.crowd[None], clock.slots)
            share = self._private.share_of_others
        self._share = share
        self.graph = FactorGraph(
            clock,
            self._force(task.pathogen),
            task.rule.chance,
            crowd,
            over_susceptible=task.rule.contact == "I/S",
            own_in_sums=not task.private,
        )
        settings = task.inference
        self._models: tuple[TransmissionModel, ...] = (
            ("fixed",) if task.private else settings.region.candidates
        )
        self._folds: list[int] = []
        if task.folds:
            self._folds = np.flatnonzero(self._counts.tests[:, 0]).tolist()
        dated = bool(self._counts.dated.sum()) or not task.tests_are_random
        unknown = task.pathogen.is_unknown
        self._estimates = (
            settings.rates == "auto"
            and len(self._folds) >= LEAST_FOLDS
            and (dated or unknown)
        )
        if self._estimates and len(self._models) > 1:
            # The rates replace the global factor.
            self._models = tuple(
                dict.fromkeys(("fixed", *(EQUALLY_RICH & {*self._models})))
            )
        self._selects = len(self._models) > 1 and len(self._folds) > 1
        calibrates = settings.calibration == "auto" and len(self._folds) >= LEAST_FOLDS
        self._candidates = self._models if self._selects or calibrates else ()
        self._short = min(settings.region.choosing_sweeps, settings.sweeps)
        self._more = max(settings.sweeps - self._short, 1)
        self._candidate_sweeps = max(self._short // 2, 1)

    def run(self) -> ServerResult:
        """Execute all runs in the order of the module docstring."""
        result, held_out = self.result, []
        if self._estimates:
            result.rates = self._estimate_rates()
        state: InferenceState | None = None
        for pair in self.pairs():
            base = self._new_run(pair.folds, self._models[0], "cold", "base")
            common = self._run(base, self._short)
            for transmission in self._candidates:
                candidate = self._new_run(pair.folds, transmission, "base", "candidate")
                self._run(candidate, self._candidate_sweeps, common)
            for fold in pair.owned:
                held_out.append(HeldOutFold(fold, pair.folds))
                partner, transmission = pair.partner(fold), self._models[0]
                if self._selects and partner is not None:
                    transmission = self._select([HeldOutFold(partner, pair.folds)])
                result.transmission_of_folds[fold] = transmission
                run = self._new_run((fold,), transmission, "base")
                state = self._run(run, self._more, common)
        chosen = self._select(held_out) if self._selects else self._models[0]
        result.transmission = chosen
        if state is None:
            sweeps = self._task.inference.sweeps
            result.state = self._run(self._new_run((), chosen), sweeps)
        else:
            last = self._new_run((), chosen, "last")
            result.state = self._run(last, self._more, state)
        return result

    @property
    def released_tests(self) -> dict[str, float] | None:
        """Noised numbers of tested and positive people; None without noise."""
        if self._private is None:
            return None
        tested, positive = self._counts.tests.sum(axis=0).tolist()
        error = self._private.tests_error
        return {"tested": tested, "positive": positive, "standard_error": error}

    @property
    def _planned(self) -> int:
        """Planned number of sweeps over all runs."""
        if not self._folds:
            return self._task.inference.sweeps
        each = self._short + len(self._candidates) * self._candidate_sweeps
        found = len(self.pairs()) * each + (1 + len(self._folds)) * self._more
        if self._estimates:
            each = len(self.pairs()) * self._short
            found += evaluations(self._task.pathogen) * each
        return found

    def pairs(self) -> list[Pair]:
        """Return the pairs of folds that base runs exclude."""
        folds = self._folds
        if len(folds) < LEAST_FOLDS:
            # A run without two of two folds would have no tests.
            return [Pair((fold,), (fold,)) for fold in folds]
        pairs = [tuple(folds[at : at + 2]) for at in range(0, len(folds), 2)]
        result = [Pair(pair, pair) for pair in pairs]
        if len(folds) % 2:
            result[-1] = Pair((folds[0], folds[-1]), (folds[-1],))
        return result

    def _select(self, held_out: Sequence[HeldOutFold]) -> TransmissionModel:
        losses = self._people.losses(held_out, self._models)
        return losses.best(self._models, EQUALLY_RICH)

    def _new_run(
        self,
        without: tuple[int, ...],
        transmission: TransmissionModel,
        start: RunStart = "cold",
        purpose: RunPurpose = "final",
    ) -> FieldRun:
        return FieldRun(without, transmission, start, purpose, self._disease)

    def _estimate_rates(self) -> RateEstimate:
        """Estimate the rates from the losses of all folds in runs without them."""

        def loss(disease: Disease) -> float:
            self._assume(disease)
            for pair in self.pairs():
                run = self._new_run(pair.folds, "fixed", purpose="candidate")
                self._run(run, self._short)
            folds = [
                HeldOutFold(fold, pair.folds)
                for pair in self.pairs()
                for fold in pair.owned
            ]
            return float(self._people.losses(folds, ("fixed",)).total[0])

        task = self._task
        found = estimate_rates(loss, Disease(task.pathogen, self._rates.seeded))
        self._assume(found.disease)
        return found

    def _assume(self, disease: Disease) -> None:
        """Use the rates of ``disease`` from the next run on."""
        self._disease = disease
        self._rates = self._rates._replace(seeded=disease.seed_share)
        self.graph = replace(self.graph, force=self._force(disease.pathogen))

    def _force(self, pathogen: Pathogen) -> float:
        if self._share is None:
            return 0.0
        return force_by_share(self._share, self._clock, pathogen, self._task.rule)

    def _run(
        self, run: FieldRun, sweeps: int, start: InferenceState | None = None
    ) -> InferenceState:
        settings = self._task.inference
        exchange: MessageExchange = self._private or self._people
        self._people.begin(run)
        tests = np.delete(self._counts.tests, run.without, axis=0).sum(axis=0)
        tested, positive = float(tests[0]), float(tests[1])
        if self._private is not None:
            tested = max(tested, 1.0)
            positive = self._private.positive(tested, positive)
        begin: InferenceState | InitialHazard
        if start is not None:
            begin = start.continued()
        else:
            seeded, slots = self._rates.seeded, self._clock.slots
            begin = InitialHazard.from_tests(tested, positive, seeded, slots)
        state = infer(
            exchange,
            self.graph,
            begin,
            sweeps,
            settings,
            Transmission(run.transmission, settings.region),
            self._count_sweep,
            self._factor,
            RANDOM if self._task.tests_are_random else initial_rates(self._clock.days),
        )
        if run.purpose != "base":
            last = self.graph.messages(state.sums, state.factor, state.testing)
            exchange.end(last)
        return state

    def _count_sweep(self) -> None:
        self.result.sweeps += 1
        self._report(self.result.sweeps, max(self._planned, self.result.sweeps))

    def _share_of_others(self) -> float | None:
        """Mean share of others among people at a place; None without observations."""
        there = self._counts.crowd[:, 1:]
        lost = (there > 0) if self._task.rule.contact == "I/N" else (there == 1)
        observed = float(there.sum())
        return 1 - float(lost.sum()) / observed if observed else None


class LocalSites:
    """Sites in one process; records receipts in ``ledger`` before each release."""

    def __init__(
        self, sites: Sequence[FieldSite], ledger: Ledger | None = None
    ) -> None:
        self.sites, self._ledger = sites, ledger
        self._task, self._clock = sites[0].task, sites[0].data.traces.clock

    def counts(self) -> SiteCounts:
        if self._ledger is not None:
            self._ledger.record(*opening_receipts(self._task, self._clock))
        return reduce(add, [site.count() for site in self.sites])

    def begin(self, run: FieldRun) -> None:
        for site in self.sites:
            site.begin(run)

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        if self._ledger is not None:
            number = 1 + self.sites[0].exchanges
            self._ledger.record(*self.sites[0].plan.exchange(number))
        return add_sums([site.sweep(received, options) for site in self.sites])

    def end(self, received: EdgeMessages) -> None:
        for site in self.sites:
            site.end(received)

    def losses(
        self, held_out: Sequence[HeldOutFold], models: Sequence[TransmissionModel]
    ) -> ModelLosses:
        return reduce(add, [site.losses(held_out, models) for site in self.sites])


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
    """Run a task with everybody at one in-process site; return site and schedule."""
    site = FieldSite(SiteData(traces, known, 0), task, seed, noise)
    people, count, clock = LocalSites([site], ledger), traces.people, traces.clock
    schedule = InferenceSchedule(people, task, count, clock, report, factor)
    schedule.run()
    return site, schedule
