"""The people of one site in Falcon Field: counts, messages, clipping, noise, risks.

The same code runs in one process (one site with everybody), over a network and in the
audit. In a private run messages are clipped and noised here.

A person's message is a vector with one entry per cell (a region and a range of
slots): the sum of the contributions of its slots there. Each slot is clipped at a cap,
and a vector longer than the bound is scaled down to it. The rules depend only on the
plan, so sites compute them themselves and no server can request more.

Noise is drawn with the site's own secret. In mode ``local`` each person adds noise to
each of its cells; their sum is drawn once per site. In mode ``sums`` the noise of each
site's sum is large enough for the whole guarantee, since no trusted party adds the sums
of sites. In mode ``sealed`` each contribution is rounded towards 0 to a multiple of a
fixed-point step, so sums are exact and no rounding increases a sensitivity, and two
noise terms stand for the two aggregators.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled, inner
from epifalcon.belief_propagation.calibration import ModelLosses
from epifalcon.belief_propagation.disease_rates import Disease
from epifalcon.belief_propagation.inference import ChainCohort, CurrentRisk
from epifalcon.belief_propagation.seir_chain import (
    OTHERS,
    EdgeMessages,
    OwnTests,
    Rates,
    Sums,
    SweepOptions,
    rates_for,
)
from epifalcon.belief_propagation.settings import TransmissionModel
from epifalcon.belief_propagation.testing import TestHistories
from epifalcon.checks import present
from epifalcon.epidemic.settings import with_infected_share
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.federation.field.denoising import ExpectedProfile, unit_of
from epifalcon.federation.field.privacy_plan import (
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
)
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.messages import Record
from epifalcon.federation.preparation import SiteData, drawn_for
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals, on_grid
from epifalcon.types import Additive, Floats, Mask, Probabilities, RegionIds

_BELOW_BOUND = 1 - 2.0**-40
"""Factor slightly below 1: rounding must not make a vector longer than the bound."""
RunStart = Literal["cold", "base", "last"]
RunPurpose = Literal["base", "candidate", "final"]
Candidate = tuple[tuple[int, ...], TransmissionModel]
"""Key of a candidate run: excluded folds and transmission model."""


@dataclass(frozen=True)
class FieldRun:
    """One run of belief propagation: tests, transmission model, start and purpose."""

    without: tuple[int, ...] = ()
    """Folds whose tests are excluded."""
    transmission: TransmissionModel = "fixed"
    """Transmission model of the run."""
    start: RunStart = "cold"
    """Initial messages. ``cold``: none. ``base``: those of the last base run. ``last``:
    those of the last final run. That run must exclude all tests excluded here."""
    purpose: RunPurpose = "final"
    """Use of the run: start of others, model selection, or risks."""
    disease: Disease | None = None
    """Estimated rates; None for those of the task."""


@dataclass(frozen=True)
class HeldOutFold:
    """A held-out fold, and the folds excluded by the run that evaluates it."""

    fold: int
    without: tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """Dimensions of a task: people over all sites, clock, and number of regions."""

    people: int
    clock: Clock
    regions: int

    @property
    def by_slot(self) -> tuple[int, int]:
        """Shape of sums per slot and region; column 0 is for people not observed."""
        return self.clock.slots, 1 + self.regions

    @property
    def by_day(self) -> tuple[int, int]:
        """Shape of sums per day and region; column 0 is for people not observed."""
        return self.clock.days, 1 + self.regions


class SiteCounts(Record, Additive):
    """Counts of a site before the first sweep, or sums over several sites."""

    crowd: Floats
    """Number of people, (slots, 1 + regions). In mode ``sums`` a clipped and noised sum
    per region; in mode ``local`` empty, since ``noises`` counts the people."""
    tests: Floats
    """Tested and positive people per fold, (folds, 2); one noised row if private."""
    dated: Floats
    """Number of tests whose results depend on when a person was infected, (1,); empty
    if private."""
    noises: Floats
    """Number of noise terms in each cell, (cells in time, 1 + regions): one per sender
    in mode ``local``. Empty in mode ``off``."""


@dataclass(frozen=True, eq=False)
class RunRisks:
    """Risks after a run, and the likelihood of each person's own tests."""

    risk: Probabilities
    """Probability of having been infected, own tests excluded, (people,)."""
    tests: OwnTests
    log_never: Floats | float = 0.0
    """Log likelihood of being tested on these days without infection, (people,); 0 if
    tests are random."""

    @property
    def losses(self) -> Floats:
        """Negative log likelihood of own tests and their days, (people,)."""
        return np.maximum(self.tests.losses(self.risk) - self.log_never, 0.0)


class ClippingRule(NamedTuple):
    """Public parameters of the clipping of messages."""

    base: Floats
    """Public expectation that is subtracted from the message of each slot, (slots,)."""
    scale: float
    """Factor of the difference; 0 counts presence only, ``present`` per slot."""
    present: float
    length: int
    """Number of slots per cell."""
    cap: float
    """Largest absolute contribution of one slot."""
    bound: float
    """Largest L2 norm of a person's whole vector."""
    places: int
    """Number of regions per cell in time, those with the most time spent; 0 for all."""
    reach: float
    """Sensitivity of the vector to the protected unit."""
    step: float
    """Fixed-point step of all contributions; 0 if they are not rounded."""


class Sent(NamedTuple):
    """Clipped sums and numbers of senders, each (cells in time, 1 + regions)."""

    total: Floats
    senders: Floats
    """Number of people who contribute to each cell."""


def presence_clipping(plan: FieldPlan) -> ClippingRule:
    """Return the clipping rule for presence, the number of people per place."""
    clock, slots = plan.clock, plan.clock.slots
    bound, reach, base = plan.settings.bound, plan.presence_reach, np.zeros(slots)
    step = plan.step
    clipping = ClippingRule(base, 0.0, 1 / slots, slots, 1.0, bound, 0, reach, step)
    if plan.settings.mode == "local":
        return clipping._replace(length=plan.length, places=plan.places)
    if plan.settings.unit != "person":
        return clipping._replace(cap=1 / slots, bound=np.inf)
    cap = min(1 / slots, reach / clock.slots_per_day)
    return clipping._replace(cap=cap, bound=reach)


def excess_clipping(
    plan: FieldPlan, profile: ExpectedProfile, number: int
) -> ClippingRule:
    """Return the clipping rule for excess infectiousness in sweep ``number``."""
    scale = unit_of(plan, profile)
    most = scale * float(profile.excess.max())
    whole = plan.settings.unit == "person" or number > 1
    return ClippingRule(
        profile.usual,
        scale,
        0.0,
        plan.length,
        plan.cap(most) if number == 1 else np.inf,
        plan.settings.bound if whole else np.inf,
        plan.places,
        plan.reach(number, most),
        plan.step,
    )


def send(cohort: ChainCohort, clipping: ClippingRule) -> Sent:
    """Sum the clipped messages of all people, before any noise."""
    shape = (cohort.traces.slots // clipping.length, 1 + len(cohort.traces.regions))
    sent = Sent(np.zeros(shape), np.zeros(shape))
    _add_messages(cohort.state.regions, cohort.state.infectious, clipping, sent)
    return sent


@inner
def _rounded(value: float, step: float) -> float:
    """Round towards 0 to a multiple of ``step``; not if it is 0."""
    if step == 0.0:
        return value
    return math.trunc(value / step) * step


@compiled
def _add_messages(
    regions: RegionIds, message: NDArray[np.float32], clipping: ClippingRule, sent: Sent
) -> None:
    """Add each person's clipped vector to ``sent``."""
    slots, edges = regions.shape[0], sent.total.shape[1]
    value, time = np.zeros((2, edges))
    row, place = np.empty((2, slots), np.int64)
    entry_value = np.empty(slots)
    visited = np.empty(slots, np.int64)
    for person in range(regions.shape[1]):
        entries, squared = 0, 0.0
        for begin in range(0, slots, clipping.length):
            count = 0
            for slot in range(begin, begin + clipping.length):
                edge = regions[slot, person] + 1
                if edge == 0:
                    continue
                if time[edge] == 0:
                    visited[count] = edge
                    count += 1
                    value[edge] = 0.0
                excess = clipping.scale * (message[slot, person] - clipping.base[slot])
                value[edge] += _rounded(
                    min(max(excess + clipping.present, -clipping.cap), clipping.cap),
                    clipping.step,
                )
                time[edge] += 1
            for _ in range(
                count if clipping.places == 0 else min(clipping.places, count)
            ):
                # The region with the most time; in a tie the one visited first.
                edge = visited[0]
                for at in range(1, count):
                    if time[visited[at]] > time[edge]:
                        edge = visited[at]
                time[edge] = 0
                row[entries], place[entries] = begin // clipping.length, edge
                entry_value[entries] = value[edge]
                squared += value[edge] ** 2
                entries += 1
            for at in range(count):
                time[visited[at]] = 0
        scale = 1.0
        if squared > 0:
            scale = min(1.0, _BELOW_BOUND * clipping.bound / np.sqrt(squared))
        for entry in range(entries):
            sent.total[row[entry], place[entry]] += _rounded(
                scale * entry_value[entry], clipping.step
            )
            sent.senders[row[entry], place[entry]] += 1


class FieldSite:
    """State of the people of a site during one task."""

    def __init__(
        self,
        data: SiteData,
        task: FieldTask,
        seed: int,
        noise: int,
        people: int | None = None,
    ) -> None:
        """Assign people to folds by ``seed``; ``people`` counts those of all sites."""
        self.data, self.task = data, task
        draws = drawn_for(data.people, "falcon-field folds", seed)
        self.part = (draws * max(task.folds, 1)).astype(np.int64)
        """Fold of each person, tested or not."""
        self.fold = np.where(data.known.tested, self.part, -1)
        traces = data.traces
        total = traces.people if people is None else people
        self.size = Size(total, traces.clock, len(traces.regions))
        self.plan = FieldPlan(task.settings.privacy, traces.clock)
        self.run: FieldRun | None = None
        self.rates = self._rates(FieldRun())
        self.exchanges = 0
        """Number of sweeps of the current run so far."""
        self.scale: dict[tuple[str, int], float] = {}
        """Noise standard deviation of each release so far, by channel and sweep."""
        self.finals: dict[tuple[int, ...], RunRisks] = {}
        """Results of final runs, by the folds that they exclude."""
        self.now: dict[tuple[int, ...], CurrentRisk] = {}
        """Risks of being infected at the end of final runs."""
        self.candidates: dict[Candidate, RunRisks] = {}
        """Results of candidate models."""
        self.cohort = self._new_cohort(data.known, FieldRun())
        self.others: Floats | None = None
        """Number of other people at each edge, (slots, 1 + regions), as received."""
        self._base: tuple[FieldRun | None, ChainCohort] = None, self.cohort
        self._profile: ExpectedProfile | None = None
        self._noise = noise

    @property
    def risk(self) -> Probabilities:
        """Risk of each person, (people,); out-of-fold for tested people.

        If testing is evidence, that of untested people includes not being tested.
        """
        if () not in self.finals:
            raise DataError("the run has not ended")
        risk = np.empty(len(self.fold))
        for without in sorted(self.finals):
            own = self.own(without)
            risk[own] = self.finals[without].risk[own]
        if not self.task.tests_are_random:
            untested = self.fold < 0
            risk[untested] = self.now[()].ever[untested]
        return risk

    @property
    def current(self) -> CurrentRisk:
        """Risk of being infected at the end of each person.

        As in ``risk``, that without own tests is out-of-fold for tested people.
        """
        now, tested = self.now[()], self.fold >= 0
        without = now.without_tests.copy()
        for folds in sorted(self.finals):
            own = self.own(folds)
            without[own] = self.now[folds].without_tests[own]
        if not self.task.tests_are_random:
            without[~tested] = now.tested[~tested]
        return CurrentRisk(without, np.where(tested, now.tested, without), self.risk)

    def own(self, without: tuple[int, ...]) -> Mask:
        """Return the mask of people in the given folds, or of everybody for ``()``."""
        return np.isin(self.fold, without) if without else np.full(len(self.fold), True)

    def count(self) -> SiteCounts:
        """Count people per place, tested and positive people; noised if private."""
        folds, status = max(self.task.folds, 1), self.data.known.status
        tests = np.zeros((folds, 2))
        np.add.at(tests[:, 0], self.fold[status >= 0], 1)
        np.add.at(tests[:, 1], self.fold[status == 1], 1)
        if not self.task.private:
            dated = [not kind.is_exact for kind in self.data.known.kinds]
            count = np.array([np.count_nonzero(np.array(dated)[self.data.known.kind])])
            crowd, none = self.cohort.crowd(), np.zeros((0, 0))
            return SiteCounts(crowd, tests, count.astype(np.float64), none)
        tests = self._noised_tests(tests)
        clipping = presence_clipping(self.plan)
        sent = send(self.cohort, clipping)
        if self.task.is_local:
            return SiteCounts(np.zeros((0, 0)), tests, np.zeros(0), sent.senders)
        cells = self.data.traces.slots // self.plan.length
        noises = np.full((cells, sent.total.shape[1]), float(self.plan.noises))
        noises[:, 0] = 0
        crowd = self._noised(sent, PRESENCE, 0, clipping)
        return SiteCounts(crowd, tests, np.zeros(0), noises)

    def begin(self, run: FieldRun) -> None:
        """Start ``run``: exclude its folds' tests and set the initial messages."""
        last = self.task.folds - 1
        # More folds than in a pair, or in another order, would only fill the memory.
        parts = [part for part in sorted({*run.without}) if 0 <= part <= last]
        if list(run.without) != parts[:2]:
            raise DataError(f"without={run.without} must be up to two folds <= {last}")
        if self.run is not None and self.run.purpose == "base":
            self._base = self.run, self.cohort
        self.rates = self._rates(run)
        known = self.data.known.of_people(~np.isin(self.fold, run.without))
        if run.start == "cold":
            self.cohort = self._new_cohort(known, run)
        else:
            before, cohort = self.run, self.cohort
            if run.start == "base":
                before, cohort = self._base[0], self._base[1].copy()
            missing = "the run starts from one that this site does not have"
            before = present(before, missing)
            if not set(run.without) <= set(before.without):
                raise DataError("a run starts from one that used tests it excludes")
            self.cohort = cohort.with_tests(known, self._histories(run))
        self.run, self.exchanges, self._profile = run, 0, None

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Process received messages; return sums, clipped and noised if private."""
        present(self.run, "no run was started")
        self.exchanges += 1
        number = self.exchanges
        if not self.task.private:
            return self.cohort.sweep(received, options)
        if number == 1:
            clock, bound = self.data.traces.clock, options.bound
            self._profile = ExpectedProfile.of(received, self.rates, clock, bound)
        profile = present(self._profile, "the first exchange of the run is missing")
        # Own messages are not subtracted from noised sums, so no damping is needed.
        plain = SweepOptions(1.0, np.ones(len(received.day)), options.bound)
        self.cohort.sweep(received, plain)
        clipping = excess_clipping(self.plan, profile, number)
        noised = self._noised(send(self.cohort, clipping), INFECTIOUS, number, clipping)
        return Sums(noised)

    def end(self, received: EdgeMessages) -> None:
        """Process the last messages of a run and store the risks; nothing is sent."""
        self.others = received.edges[..., OTHERS]
        run = present(self.run, "no run was started")
        # Risks exclude own tests in any case; these are the tests to predict.
        histories = self._histories(replace(run, without=()))
        cohort = self.cohort.with_tests(self.data.known, histories)
        cohort.end(received)
        log_never: Floats | float = 0.0
        if histories is not None:
            log_never = histories.log_never(received.testing)
        found = RunRisks(cohort.risk.copy(), cohort.own_tests, log_never)
        if run.purpose == "final":
            self.now[run.without] = self.cohort.current_risk(received)
            self.finals[run.without] = found
        else:
            self.candidates[run.without, run.transmission] = found

    def losses(
        self, held_out: Sequence[HeldOutFold], models: Sequence[TransmissionModel]
    ) -> ModelLosses:
        """Sum the log losses of held-out people under each of ``models``.

        Tested people are held out or, if testing is evidence, everybody.
        """
        parts: list[Floats] = []
        fold = self.fold if self.task.tests_are_random else self.part
        for held in held_out:
            own = fold == held.fold
            keys = [(held.without, transmission) for transmission in models]
            if held.fold not in held.without or not self.candidates.keys() >= {*keys}:
                raise DataError(f"fold {held.fold} was not held out of any run")
            runs = [self.candidates[key] for key in keys]
            parts.append(np.stack([run.losses[own] for run in runs], axis=1))
        parts.append(np.zeros((0, len(models))))
        return ModelLosses.of(np.concatenate(parts))

    def _new_cohort(self, known: TestResults, run: FieldRun) -> ChainCohort:
        return ChainCohort.of(self.data.traces, known, self.rates, self._histories(run))

    def _rates(self, run: FieldRun) -> Rates:
        """Return the rates per slot that ``run`` assumes."""
        task, clock, people = self.task, self.size.clock, self.size.people
        if run.disease is None:
            return rates_for(people, clock, task.pathogen, task.rule)
        rule = with_infected_share(task.rule, run.disease.seed_share)
        return rates_for(people, clock, run.disease.pathogen, rule)

    def _histories(self, run: FieldRun) -> TestHistories | None:
        """Return when people were tested, unless tests are random."""
        task, traces, known = self.task, self.data.traces, self.data.known
        if task.tests_are_random:
            return None
        pathogen = task.pathogen if run.disease is None else run.disease.pathogen
        excluded = np.isin(self.part, run.without)
        return TestHistories.of(known, traces.clock, pathogen, task.rule, excluded)

    def _noised(
        self, sent: Sent, channel: str, number: int, clipping: ClippingRule
    ) -> Floats:
        """Return the sums with noise, (cells in time, 1 + regions); column 0 is 0."""
        receipt = self.plan.receipt(channel, number)
        scale = clipping.reach * receipt.sigma * math.sqrt(self.plan.noises)
        self.scale[channel, number] = scale
        # NaN or infinity would remain visible after noise.
        total = np.nan_to_num(sent.total[:, 1:], posinf=0.0, neginf=0.0)
        place = np.arange(total.size, dtype=np.int64)
        rows = NoiseRows(np.full_like(place, self.data.first), place)
        noise = keyed_normals(NoiseKey(self._noise, receipt.terms), rows, 1)
        noises = sent.senders[:, 1:] if self.task.is_local else 1.0
        added = scale * np.sqrt(noises) * noise.reshape(total.shape)
        return np.pad(self._on_grid(total + added, scale), ((0, 0), (1, 0)))

    def _noised_tests(self, tests: Floats) -> Floats:
        """Return the counts of tested and positive people with noise."""
        receipt = self.plan.receipt(TESTS, 0)
        key = NoiseKey(self._noise, receipt.terms)
        people = self.data.people if self.task.is_local else self.data.people[:1]
        noise = keyed_normals(key, NoiseRows.of_people(people), 2)
        scale = receipt.sigma * math.sqrt(self.plan.noises)
        return self._on_grid(tests + scale * noise.sum(axis=0), receipt.sigma)

    def _on_grid(self, noised: Floats, sigma: float) -> Floats:
        """Round noised values to the fixed-point step, or a grid relative to sigma."""
        step = self.plan.step
        return np.rint(noised / step) * step if step else on_grid(noised, sigma)
