"""The people of one site: what they count, receive and send, and what they store.

The same code runs in one process (one site with everybody), over a network and in the
audit. In a private run messages are clipped and noised here.

A person's message is a vector with one entry per cell (a region and a stretch of
slots): the sum of what its slots there contribute. Each slot is clipped at a cap, and
a vector longer than the bound is scaled down to it. The rules follow from the plan
alone, so that sites compute them themselves and no server can ask for more.

Noise is drawn with the site's own secret: in mode ``local`` one noise per person and
cell, drawn as one noise for the people of a site; in mode ``sums`` one noise per sum
of the site, each large enough for the whole guarantee, since no trusted party adds up
the sums of sites.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.belief_propagation.calibration import ModelLosses, risk_losses
from epifalcon.belief_propagation.inference import ChainCohort, CurrentRisk
from epifalcon.belief_propagation.seir_chain import (
    EdgeMessages,
    Sums,
    SweepOptions,
    rates_for,
)
from epifalcon.belief_propagation.settings import Law
from epifalcon.checks import present
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
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals
from epifalcon.types import Floats, Mask, Probabilities, RegionIds

_BELOW_BOUND = 1 - 2.0**-40
"""Rounding must not make a vector longer than the bound."""
Start = Literal["cold", "base", "last"]
Purpose = Literal["base", "candidate", "final"]


@dataclass(frozen=True)
class FieldRun:
    """One run of belief propagation: on which tests, from where, for what."""

    without: tuple[int, ...] = ()
    """Folds whose tests are excluded."""
    law: Law = "one"
    """Model of transmission."""
    start: Start = "cold"
    """From nothing, from the last run with the purpose ``base``, or from the last
    final run. A start must not know tests that the run excludes."""
    purpose: Purpose = "final"
    """To start other runs from, to select a model of transmission, or for risks."""


@dataclass(frozen=True, eq=False)
class HeldOutFold:
    """People of a fold, with the folds that the run which judges them excludes."""

    fold: int
    without: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SiteCounts(Record):
    """Counts of a site before the first sweep; of several sites the sums."""

    crowd: Floats
    """Number of people: (slots, 1 + regions). In mode ``sums`` a clipped sum per
    region, with noise; in mode ``local`` of size 0, since ``noises`` shows it."""
    tests: Floats
    """(folds, 2) tested and positive people; in a private run one row, with noise."""
    noises: Floats
    """Number of noises in each cell, (cells in time, 1 + regions): that of a cell's
    senders in mode ``local``. Of size 0 without a guarantee."""

    def __add__(self, other: "SiteCounts") -> "SiteCounts":
        return SiteCounts(
            self.crowd + other.crowd,
            self.tests + other.tests,
            self.noises + other.noises,
        )


@dataclass(frozen=True, eq=False)
class Final:
    """People at the end of a final run."""

    risk: Probabilities
    """(people,) of having been infected, own tests excluded."""
    now: CurrentRisk


class ClippingRule(NamedTuple):
    """How messages are clipped; public."""

    base: Floats
    """(slots,) subtracted from the message of a slot: what everybody expects."""
    scale: float
    """Factor on the difference; with 0 each slot contributes ``present``."""
    present: float
    length: int
    """Slots of a cell."""
    cap: float
    """Largest contribution of one slot."""
    bound: float
    """Largest L2 norm of a person's whole vector."""
    places: int
    """Regions per stretch, those of most time; 0 for all."""
    reach: float
    """How far the protected unit moves the vector."""


class Sent(NamedTuple):
    """(cells in time, 1 + regions) each; column 0, not observed, stays empty."""

    total: Floats
    senders: Floats
    """Number of people who send for the cell."""


def presence_cut(plan: FieldPlan) -> ClippingRule:
    """Return the clipping of presence: how many people were where."""
    clock, slots = plan.clock, plan.clock.slots
    bound, reach = plan.settings.bound, plan.presence_reach
    cut = ClippingRule(np.zeros(slots), 0.0, 1 / slots, slots, 1.0, bound, 0, reach)
    if plan.settings.mode == "local":
        return cut._replace(length=plan.length, places=plan.settings.places)
    if plan.settings.unit != "person":
        return cut._replace(cap=1 / slots, bound=np.inf)
    cap = min(1 / slots, reach / clock.slots_per_day)
    return cut._replace(cap=cap, bound=reach)


def excess_cut(plan: FieldPlan, profile: ExpectedProfile, number: int) -> ClippingRule:
    """Return the clipping of the excess infectiousness in sweep ``number``."""
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
        plan.settings.places if plan.settings.mode == "local" else 0,
        plan.reach(number, most),
    )


def send(cohort: ChainCohort, cut: ClippingRule) -> Sent:
    """Sum the clipped messages of all people, before any noise."""
    shape = (cohort.traces.slots // cut.length, 1 + len(cohort.traces.regions))
    sent = Sent(np.zeros(shape), np.zeros(shape))
    _add_messages(cohort.state.regions, cohort.state.infectious, cut, sent)
    return sent


@compiled
def _add_messages(
    regions: RegionIds, message: NDArray[np.float32], cut: ClippingRule, sent: Sent
) -> None:
    """Add everybody's vector to ``sent``."""
    slots, edges = regions.shape[0], sent.total.shape[1]
    value, time = np.zeros((2, edges))
    row, place = np.empty((2, slots), np.int64)
    entry_value = np.empty(slots)
    visited = np.empty(slots, np.int64)
    for person in range(regions.shape[1]):
        entries, squared = 0, 0.0
        for begin in range(0, slots, cut.length):
            count = 0
            for slot in range(begin, begin + cut.length):
                edge = regions[slot, person] + 1
                if edge == 0:
                    continue
                if time[edge] == 0:
                    visited[count] = edge
                    count += 1
                    value[edge] = 0.0
                excess = cut.scale * (message[slot, person] - cut.base[slot])
                value[edge] += min(max(excess + cut.present, -cut.cap), cut.cap)
                time[edge] += 1
            for _ in range(count if cut.places == 0 else min(cut.places, count)):
                # The region of most time; of equals the one visited first.
                edge = visited[0]
                for at in range(1, count):
                    if time[visited[at]] > time[edge]:
                        edge = visited[at]
                time[edge] = 0
                row[entries], place[entries] = begin // cut.length, edge
                entry_value[entries] = value[edge]
                squared += value[edge] ** 2
                entries += 1
            for at in range(count):
                time[visited[at]] = 0
        scale = 1.0
        if squared > 0:
            scale = min(1.0, _BELOW_BOUND * cut.bound / np.sqrt(squared))
        for entry in range(entries):
            sent.total[row[entry], place[entry]] += scale * entry_value[entry]
            sent.senders[row[entry], place[entry]] += 1


class FieldSite:
    """The people of a site in one task, from the first count to their risks."""

    def __init__(
        self,
        home: SiteData,
        task: FieldTask,
        seed: int,
        noise: int,
        people: int | None = None,
    ) -> None:
        """Assign people to folds by ``seed``; ``people`` counts those of all sites."""
        self.home, self.task = home, task
        draws = drawn_for(home.people, "falcon-field folds", seed)
        self.fold = (draws * max(task.folds, 1)).astype(np.int64)
        self.fold[~home.known.tested] = -1
        traces = home.traces
        total = traces.people if people is None else people
        self.rates = rates_for(total, traces.clock, task.pathogen, task.rule)
        self.run: FieldRun | None = None
        self.exchanges = 0
        """Sweeps of the run so far."""
        self.scale: dict[tuple[str, int], float] = {}
        """Noise of each release so far, by channel and sweep."""
        self.finals: dict[tuple[int, ...], Final] = {}
        """Results of final runs, by the folds that they exclude."""
        self.candidates: dict[tuple[tuple[int, ...], Law], Probabilities] = {}
        """Risks of candidate models, by excluded folds and model."""
        self.cohort = self._new_cohort(home.known)
        self._base: tuple[FieldRun | None, ChainCohort] = None, self.cohort
        self._profile: ExpectedProfile | None = None
        self._noise = noise

    @cached_property
    def plan(self) -> FieldPlan:
        """The plan of a private run."""
        return FieldPlan(self.task.wishes.privacy, self.home.traces.clock)

    @property
    def risk(self) -> Probabilities:
        """(people,) risks; those of tested people are out-of-fold."""
        if () not in self.finals:
            raise DataError("the run has not ended")
        risk = np.empty(len(self.fold))
        for without in sorted(self.finals):
            own = self.own(without)
            risk[own] = self.finals[without].risk[own]
        return risk

    def own(self, without: tuple[int, ...]) -> Mask:
        """(people,) whose risk is that of the run without these folds; () is first."""
        return np.isin(self.fold, without) if without else np.full(len(self.fold), True)

    def count(self) -> SiteCounts:
        """Count who was where, and how many were tested and positive."""
        folds, status = max(self.task.folds, 1), self.home.known.status
        tests = np.zeros((folds, 2))
        np.add.at(tests[:, 0], self.fold[status >= 0], 1)
        np.add.at(tests[:, 1], self.fold[status == 1], 1)
        if not self.task.private:
            return SiteCounts(self.cohort.crowd(), tests, np.zeros((0, 0)))
        tests = tests + self._noise_of_tests()
        cut = presence_cut(self.plan)
        sent = send(self.cohort, cut)
        if self.task.is_local:
            return SiteCounts(np.zeros((0, 0)), tests, sent.senders)
        cells = self.home.traces.slots // self.plan.length
        noises = np.ones((cells, sent.total.shape[1]))
        noises[:, 0] = 0
        return SiteCounts(self._noised(sent, PRESENCE, 0, cut), tests, noises)

    def begin(self, run: FieldRun) -> None:
        """Start a run: some tests excluded, messages from nothing or another run."""
        if any(not 0 <= part < self.task.folds for part in run.without):
            raise DataError(f"folds {run.without} of {self.task.folds}")
        if self.run is not None and self.run.purpose == "base":
            self._base = self.run, self.cohort
        known = self.home.known.of_people(~np.isin(self.fold, run.without))
        if run.start == "cold":
            self.cohort = self._new_cohort(known)
        else:
            before, cohort = self.run, self.cohort
            if run.start == "base":
                before, cohort = self._base[0], self._base[1].copy()
            before = present(before, "the run starts from one that was not seen here")
            if not set(run.without) <= set(before.without):
                raise DataError("a run starts from one that knew tests it excludes")
            self.cohort = cohort.with_tests(known, self.task.test_errors)
        self.run, self.exchanges, self._profile = run, 0, None

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Receive messages and send sums; in a private run clipped, with noise."""
        present(self.run, "no run was begun")
        self.exchanges += 1
        number = self.exchanges
        if not self.task.private:
            return self.cohort.sweep(received, options)
        if number == 1:
            clock = self.home.traces.clock
            self._profile = ExpectedProfile.of(
                received, self.rates, clock, options.bound
            )
        profile = present(self._profile, "the first exchange of the run was missed")
        # Nobody subtracts its own message from a noised sum: no damping at home.
        self.cohort.sweep(
            received, SweepOptions(1.0, np.ones(len(received.day)), options.bound)
        )
        cut = excess_cut(self.plan, profile, number)
        noised = self._noised(send(self.cohort, cut), INFECTIOUS, number, cut)
        return Sums(noised, np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0, 0)))

    def end(self, received: EdgeMessages) -> None:
        """Receive the last messages of a run and store risks; nothing is sent."""
        run = present(self.run, "no run was begun")
        self.cohort.end(received)
        risk = self.cohort.risk.copy()
        if run.purpose == "final":
            now = self.cohort.current_risk(received)
            self.finals[run.without] = Final(risk, now)
        else:
            self.candidates[run.without, run.law] = risk

    def judged(self, held_out: Sequence[HeldOutFold]) -> ModelLosses:
        """Sum the log losses of held-out people under each candidate model."""
        status, parts = self.home.known.status, []
        laws = self.task.wishes.field.region.laws
        for held in held_out:
            own = self.fold == held.fold
            keys = [(held.without, law) for law in laws]
            if held.fold not in held.without or not self.candidates.keys() >= {*keys}:
                raise DataError(f"fold {held.fold} was held out of no run")
            risks = [self.candidates[key][own] for key in keys]
            losses = [risk_losses(risk, status[own] == 1) for risk in risks]
            parts.append(np.stack(losses, axis=1))
        parts.append(np.zeros((0, len(laws))))
        return ModelLosses.of(np.concatenate(parts))

    def _new_cohort(self, known: TestResults) -> ChainCohort:
        return ChainCohort.of(
            self.home.traces, known, self.rates, self.task.test_errors
        )

    def _noised(
        self, sent: Sent, channel: str, number: int, cut: ClippingRule
    ) -> Floats:
        """Add noise to sums (cells in time, 1 + regions); column 0 stays empty."""
        receipt = self.plan.receipt(channel, number)
        scale = self.scale[channel, number] = cut.reach * receipt.sigma
        # NaN or infinity would show through any noise.
        total = np.nan_to_num(sent.total[:, 1:], posinf=0.0, neginf=0.0)
        place = np.arange(total.size, dtype=np.int64)
        rows = NoiseRows(np.full_like(place, self.home.first), place)
        noise = keyed_normals(NoiseKey(self._noise, receipt.terms), rows, 1)
        noises = sent.senders[:, 1:] if self.task.is_local else np.ones_like(total)
        added = scale * np.sqrt(noises) * noise.reshape(total.shape)
        return np.pad(total + added, ((0, 0), (1, 0)))

    def _noise_of_tests(self) -> Floats:
        """(2,) noise of everybody, tested or not: who sends must not show who is."""
        receipt = self.plan.receipt(TESTS, 0)
        key = NoiseKey(self._noise, receipt.terms)
        people = self.home.people if self.task.is_local else self.home.people[:1]
        noise = keyed_normals(key, NoiseRows.of_people(people), 2)
        return np.asarray(receipt.sigma * noise.sum(axis=0))
