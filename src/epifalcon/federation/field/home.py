"""The people of one site: what they count, hear and send, and what they keep.

The same arithmetic behind messages and in one process. What leaves with a promise is
bounded (``cuts``) and has its noise here, of this site's own secret: ``local`` one
noise of each person for each cell that it sends for, drawn as one for those of a
site; ``sums`` one noise on each of the site's sums, as large as the whole promise
needs, since nobody stands between a site and the server who could add up without
looking. Of k sites the total then has k noises.

Values with noise are whole multiples of a power of two, too: rounding comes after
the noise and costs nothing, and sums are the same in any order.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from epifalcon.errors import DataError
from epifalcon.federation.field.cuts import excess_cut, presence_cut
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.plan import INFECTIOUS, PRESENCE, TESTS, FieldPlan
from epifalcon.federation.field.reading import Profile
from epifalcon.federation.field.sending import Sent, send
from epifalcon.federation.field.task import FieldTask
from epifalcon.federation.preparing import Household, drawn_for
from epifalcon.models.field.choosing import losses
from epifalcon.models.field.disease import Rates
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.settings import LAWS
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals
from epifalcon.types import Floats, Probabilities

NOISE_STEPS = 2.0**30
_RISK_STEPS = 2.0**30
Aim = Literal["everybody", "fold", "judged"]


@dataclass(frozen=True)
class FieldRun:
    """One run of all sweeps: on which tests, and whose risks are kept of it."""

    rates: Rates
    without: tuple[int, ...] = ()
    """Folds whose tests are left aside."""
    aim: Aim = "everybody"
    """Risks of everybody; of the people of ``fold``; or only how well ``law`` tells
    the people of ``fold``."""
    fold: int = -1
    law: int = -1
    """Place among ``LAWS``."""


@dataclass(frozen=True, eq=False)
class Counted:
    """What a site tells before the first exchange; of several sites the sums."""

    crowd: Floats
    """How many people were where: (slots, 1 + regions); under ``sums`` a bounded sum
    for each region, with noise; under ``local`` of size 0, told by ``noises``."""
    tests: Floats
    """(folds, 2) tested and positive people; with a promise one row, with noise."""
    noises: Floats
    """How many noises each cell has, (cells in time, 1 + regions): those of a
    cell's senders under ``local``; without any promise of size 0."""

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(
            self.crowd + other.crowd,
            self.tests + other.tests,
            self.noises + other.noises,
        )


class FieldHome:
    """A site's people in a task, from the first count to their risks."""

    def __init__(self, home: Household, task: FieldTask, seed: int, noise: int) -> None:
        """Deal tested people into folds by ``seed``; draw noise by ``noise``.

        Folds follow from seed and person: any split into sites gives the same.
        """
        self.home, self.task = home, task
        draws = drawn_for(home, "falcon-field folds", seed)
        self.fold = (draws * max(task.folds, 1)).astype(np.int64)
        self.fold[~home.known.tested] = -1
        self.risk: Probabilities = np.zeros(home.traces.people)
        self.run: FieldRun | None = None
        self.exchanges = 0
        """Of the run, so far."""
        self.scale: dict[tuple[str, int], float] = {}
        """Noise of each release so far, by channel and exchange."""
        self._profile: Profile | None = None
        self._lost = np.zeros((home.traces.people, len(LAWS)))
        self._noise = noise
        self._cohort: Cohort | None = None

    @cached_property
    def plan(self) -> FieldPlan:
        """The promise; only where there is one."""
        return FieldPlan.of(self.task.wishes.privacy, self.home.traces.clock)

    def count(self) -> Counted:
        """How many people were where, and how many tested and positive."""
        crowd = np.asarray(self._new_cohort().crowd(), np.float64)
        status = self.home.known.status
        folds = range(max(self.task.folds, 1))
        tests = [
            [
                int((self.fold == part).sum()),
                int((status[self.fold == part] == 1).sum()),
            ]
            for part in folds
        ]
        told = np.array(tests, np.float64)
        if not self.task.private:
            return Counted(crowd, told, np.zeros((0, 0)))
        return self._count_privately(told)

    def begin(self, run: FieldRun) -> None:
        """Everybody as before anything was sent, some tests left aside."""
        if any(not 0 <= part < self.task.folds for part in (*run.without,)):
            raise DataError(f"folds {run.without} of {self.task.folds}")
        self._cohort, self._profile = self._new_cohort(run), None
        self.run, self.exchanges = run, 0

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Everybody listens and sends; with a promise, bounded sums with noise."""
        self.exchanges += 1
        cohort, number = self._require_cohort(), self.exchanges
        if not self.task.private:
            return cohort.sweep(told, manner, well=well, tally=tally)
        if number == 1:
            clock = self.home.traces.clock
            self._profile = Profile.of(told, cohort.rates, clock, manner.bound)
        if self._profile is None:
            raise DataError("the first exchange of the run was missed")
        # Nobody takes its own message out of a noised sum: people keep the new ones.
        fresh = Manner(1.0, np.ones_like(manner.renewed_evidence), manner.bound)
        cohort.sweep(told, fresh)
        cut, reach = excess_cut(self.plan, self._profile, number)
        noised = self._noised(send([cohort], cut), INFECTIOUS, number, reach)
        return Sums(noised, np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0, 0)))

    def end(self, told: Told, manner: Manner) -> None:
        """Everybody listens for the last time; risks are kept as the run aims at."""
        cohort, run = self._require_cohort(), self.run
        cohort.sweep(told, manner)
        risk = np.rint(cohort.risk * _RISK_STEPS) / _RISK_STEPS
        if run is None or run.aim == "everybody":
            self.risk[:] = risk
        elif run.aim == "fold":
            own = self.fold == run.fold
            self.risk[own] = risk[own]
        else:
            own = self.fold == run.fold
            infected = self.home.known.status[own] == 1
            self._lost[own, run.law] = losses(risk[own], infected)
        self._cohort = self.run = None

    def judged(self, folds: list[int]) -> Judgement:
        """How well each law told the people of ``folds``, held out of its runs."""
        return Judgement.of(self._lost[np.isin(self.fold, folds)])

    def _new_cohort(self, run: FieldRun | None = None) -> Cohort:
        left, rates = self.home.known, Rates(0.0, 0.0, 0.0, False)
        if run is not None:
            left, rates = left.of_people(~np.isin(self.fold, run.without)), run.rates
        return Cohort.of(self.home.traces, left, rates, self.task.test_errors)

    def _require_cohort(self) -> Cohort:
        if self._cohort is None:
            raise DataError("no run was begun")
        return self._cohort

    def _count_privately(self, tests: Floats) -> Counted:
        cut, reach = presence_cut(self.plan)
        sent = send([self._new_cohort()], cut)
        told = tests + self._noise_of_tests()
        if self.task.mode == "local":
            return Counted(np.zeros((0, 0)), told, sent.senders)
        cells = self.home.traces.slots // self.plan.length
        noises = np.ones((cells, sent.total.shape[1]))
        noises[:, 0] = 0
        return Counted(self._noised(sent, PRESENCE, 0, reach), told, noises)

    def _noised(self, sent: Sent, channel: str, number: int, reach: float) -> Floats:
        """Sums (cells in time, 1 + regions) with their noise; place 0 stays empty."""
        receipt = self.plan.receipt(channel, number)
        self.scale[channel, number] = reach * receipt.sigma
        # A number that is none would show through any noise.
        total = np.nan_to_num(sent.total[:, 1:], posinf=0.0, neginf=0.0)
        place = np.arange(total.size, dtype=np.int64)
        rows = NoiseRows(np.full_like(place, self.home.first), place)
        noise = keyed_normals(NoiseKey(self._noise, receipt.terms), rows, 1)
        local = self.task.mode == "local"
        noises = sent.senders[:, 1:] if local else np.ones_like(total)
        added = reach * receipt.sigma * np.sqrt(noises) * noise.reshape(total.shape)
        return np.pad(_on_grid(total + added), ((0, 0), (1, 0)))

    def _noise_of_tests(self) -> Floats:
        """(2,) of everybody, tested or not: who sends must not tell who is."""
        receipt = self.plan.receipt(TESTS, 0)
        key = NoiseKey(self._noise, receipt.terms)
        people = self.home.people if self.task.mode == "local" else self.home.people[:1]
        noise = keyed_normals(key, NoiseRows.of_people(people), 2)
        return np.asarray(_on_grid(receipt.sigma * noise).sum(axis=0))


def _on_grid(values: Floats) -> Floats:
    return np.asarray(np.rint(values * NOISE_STEPS) / NOISE_STEPS)
