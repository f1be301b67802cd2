"""Falcon Field's messages over sites, and the checks of each.

Nothing that arrives is believed: a site refuses what no honest server sends, since
people's messages would be computed from it, and a server what no people can send.
"""

from dataclasses import dataclass
from typing import Any, Self, get_args

import numpy as np

from epifalcon.belief_propagation import calibration, seir_chain
from epifalcon.belief_propagation.seir_chain import (
    MOST_LOG,
    EdgeMessages,
    Sums,
    SweepOptions,
)
from epifalcon.belief_propagation.settings import LAWS
from epifalcon.errors import DataError
from epifalcon.federation.field.home import (
    Counted,
    FieldRun,
    HeldOut,
    Purpose,
    Start,
)
from epifalcon.federation.field.plan import INFECTIOUS, PRESENCE, TESTS, FieldPlan
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.messages import Heading, Record
from epifalcon.federation.sites.files import digest
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats

_ROOM = 9.0
"""A normal number is further out once in 10^18 draws."""
_ROUNDING = 1e-6
_MOST_LOSS = 14.0
_MOST_SEEMING = 1e12


@dataclass(frozen=True)
class Size:
    """Of a task: all people of all sites, the clock and how many regions."""

    people: int
    clock: Clock
    regions: int

    @property
    def by_slot(self) -> tuple[int, int]:
        """Of sums for each place and slot; place 0 is "not observed"."""
        return self.clock.slots, 1 + self.regions


@dataclass(frozen=True, eq=False)
class _Exchange(Record):
    """Server to site: the state of all places, how to sweep, and in which run."""

    edges: Floats
    flat: Floats
    typical: Floats
    renewed_evidence: Floats
    own: float
    renewed_illness: float
    bound: float
    step: int
    without: list[int]
    law: str
    start: str
    purpose: str
    susceptible: bool
    tally: bool

    @classmethod
    def of(
        cls, received: EdgeMessages, options: SweepOptions, run: FieldRun, step: int
    ) -> Self:
        """Encode one exchange; ``step`` counts those of a run."""
        first = received.hazard.size > 0
        return cls(
            edges=np.zeros((0, 0, 4)) if first else received.edges,
            flat=received.hazard,
            typical=received.typical,
            renewed_evidence=options.evidence_step,
            own=received.own,
            renewed_illness=options.infectious_step,
            bound=options.bound,
            step=step,
            without=list(run.without),
            law=run.law,
            start=run.start,
            purpose=run.purpose,
            susceptible=options.susceptible,
            tally=options.tally,
        )

    @property
    def digest(self) -> str:
        """Of all that the request says."""
        packet = self.encode(Heading("", "", 0, ""))
        return digest(dict(packet.values), tensors=packet.tensors)

    def received(
        self, size: Size, task: FieldTask
    ) -> tuple[EdgeMessages, SweepOptions]:
        """Decode the state of places; what no honest server sends is a ``DataError``.

        Evidence beyond the agreed bound would be more than its noise covers.
        """
        slots = size.clock.slots
        flat = _within("flat", self.flat, None, 0.0, MOST_LOG)
        edges = np.zeros((*size.by_slot, 4))
        if flat.size == 0:
            edges = _edges(self.edges, size, task)
        first = self.step == 1 and self.start == "cold" and self.phase == Sweep.phase
        if (flat.size > 0) != first:
            raise DataError("a first hazard, and no other exchange, begins a run")
        if flat.size and flat.shape != (slots,):
            raise DataError(f"a first hazard of {flat.shape}, expected ({slots},)")
        share = _within("renewed_evidence", self.renewed_evidence, (slots,), 0.0, 1.0)
        agreed = task.inference.evidence_bound if self.phase == Sweep.phase else 0.0
        if self.bound != agreed:
            raise DataError(f"evidence up to {self.bound:g} is not what was agreed")
        for name in ("own", "renewed_illness"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name}={getattr(self, name):g} must be from 0 to 1")
        day = (np.arange(slots) // size.clock.slots_per_day).astype(np.int32)
        by_day = size.clock.days, size.by_slot[1]
        typical = _within("typical", self.typical, by_day, 0.0, 1.0)
        return (
            EdgeMessages(edges, flat, day, self.own, typical),
            SweepOptions(
                self.renewed_illness, share, self.bound, self.susceptible, self.tally
            ),
        )

    def run(self, folds: int) -> FieldRun:
        """Decode in which run the exchange is."""
        _whole(self.step, 1, 10**6)
        words = {
            self.law: LAWS,
            self.start: get_args(Start),
            self.purpose: get_args(Purpose),
        }
        for word, allowed in words.items():
            if word not in allowed:
                raise DataError(f"{word!r} is none of {', '.join(allowed)}")
        without: Any = _folds(self.without, folds)
        law: Any = self.law
        start: Any = self.start
        purpose: Any = self.purpose
        return FieldRun(without, law, start, purpose)


@dataclass(frozen=True, eq=False)
class Sweep(_Exchange):
    """Server to site: one exchange. Answer: FieldSums."""

    phase = "sweep"


@dataclass(frozen=True, eq=False)
class End(_Exchange):
    """Server to site: the last state of places in a run. Answer: Done."""

    phase = "end"


@dataclass(frozen=True, eq=False)
class Judge(Record):
    """Server to site: sum up losses of held-out people under each model."""

    phase = "judged"
    folds: list[list[Any]]
    """Each a fold and the folds that the run excluded."""

    @classmethod
    def of(cls, held_out: list[HeldOut]) -> Self:
        """Encode whose losses are wanted."""
        return cls([[one.fold, list(one.without)] for one in held_out])

    def held_out(self, folds: int) -> list[HeldOut]:
        """Decode whose losses are wanted."""
        if any(not isinstance(one, list) or len(one) != 2 for one in self.folds):
            raise DataError("folds must be pairs of a fold and excluded folds")
        return [
            HeldOut(_whole(fold, 0, folds - 1), _folds(without, folds))
            for fold, without in self.folds
        ]


@dataclass(frozen=True, eq=False)
class FieldCounted(Record):
    """Site to server: counts (``home.Counted``)."""

    crowd: Floats
    tests: Floats
    noises: Floats


@dataclass(frozen=True, eq=False)
class FieldSums(Record):
    """Site to server: sums over its people (``seir_chain.Sums``)."""

    infectious: Floats
    evidence: Floats
    susceptible: Floats
    tally: Floats


@dataclass(frozen=True, eq=False)
class Losses(Record):
    """Site to server: sums of held-out people's losses (``calibration.Losses``)."""

    people: int
    total: Floats
    products: Floats


def _folds(values: object, folds: int) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise DataError("excluded folds must be a list")
    return tuple(_whole(one, 0, folds - 1) for one in values)


def _edges(given: Floats, size: Size, task: FieldTask) -> Floats:
    # With noise, more people may seem to be in a place than there are.
    people = _MOST_SEEMING if task.private else size.people + _ROUNDING
    most = people * max(task.inference.evidence_bound, 1.0)
    edges = _within("edges", given, (*size.by_slot, 4), -people, most)
    chance = edges[..., seir_chain.CHANCE]
    if (chance < 0).any() or (chance >= 1).any():
        raise DataError("a chance of infection outside 0 to 1")
    for number in (seir_chain.OTHERS, seir_chain.INFECTIOUS):
        if (edges[..., number] < 0).any():
            raise DataError("a negative number of people at a place")
    return edges


class FieldAnswers:
    """Checks the answers of one site."""

    def __init__(self, task: FieldTask, size: Size, people: int) -> None:
        """``people`` are the site's own, ``size`` has those of all."""
        self._task, self._size, self.people = task, size, people
        self._crowd = np.zeros(size.by_slot)
        self._plan: FieldPlan | None = None
        if task.private:
            self._plan = FieldPlan.of(task.wishes.privacy, size.clock)
        self._noises = np.zeros((0, 0))

    def counted(self, answer: FieldCounted) -> Counted:
        """Counts that so many people can have."""
        tests_shape = (max(self._task.folds, 1), 2)
        if self._plan is not None:
            return self._noised_counts(answer)
        people, by_slot = self.people, self._size.by_slot
        crowd = _within("crowd", answer.crowd, by_slot, 0.0, people)
        tests = _within("tests", answer.tests, tests_shape, 0.0, people)
        _require_whole(crowd, tests)
        if (crowd.sum(axis=1) != self.people).any():
            raise DataError(f"counts of other than {self.people:,} people in a slot")
        if (tests[:, 1] > tests[:, 0]).any() or tests[:, 0].sum() > self.people:
            raise DataError("more people tested than there are, or more positive")
        self._crowd = crowd
        return Counted(crowd, tests, np.zeros((0, 0)))

    def _noised_counts(self, answer: FieldCounted) -> Counted:
        plan, edges = self._plan_of(), 1 + self._size.regions
        shape = (plan.clock.slots // plan.length, edges)
        noises = _within("noises", answer.noises, shape, 0.0, self.people)
        _require_whole(noises)
        local = self._task.is_local
        if not local and (noises[:, 1:] != 1).any():
            raise DataError("a sum has one noise of its site")
        self._noises = noises
        room = _ROOM * plan.sigma(TESTS) * np.sqrt(self.people)
        most = self.people + room
        tests = _within("tests", answer.tests, (1, 2), -room, most)
        if local:
            return Counted(_within("crowd", answer.crowd, (0, 0)), tests, noises)
        crowd = self._cells("crowd", answer.crowd, PRESENCE, (1, edges))
        return Counted(crowd, tests, noises)

    def sums(self, answer: FieldSums, options: SweepOptions) -> Sums:
        """Sums that the people counted can have sent."""
        bound = self._task.inference.evidence_bound
        nothing = np.zeros((0, 0))
        if self._plan is not None:
            size = self._noises.shape
            cells = self._cells("infectious", answer.infectious, INFECTIOUS, size)
            return Sums(cells, nothing, nothing, np.zeros((0, 0, 0)))
        infectious = self._of_present("infectious", answer.infectious, 0.0, 1.0)
        evidence = self._of_present("evidence", answer.evidence, -1.0, bound)
        expected = nothing
        if options.susceptible:
            expected = self._of_present("susceptible", answer.susceptible, 0.0, 1.0)
        found = np.zeros((0, 0, 0))
        if options.tally:
            clock = self._size.clock
            most = self.people * clock.slots_per_day * MOST_LOG
            shape = (2, clock.days, 1 + self._size.regions)
            found = _within("tally", answer.tally, shape, 0.0, most)
        return Sums(infectious, evidence, expected, found)

    def losses(self, answer: Losses) -> calibration.Losses:
        """Sums of losses that so many people can have."""
        people = _whole(answer.people, 0, self.people)
        laws, most = len(self._task.wishes.field.region.laws), people * _MOST_LOSS
        total = _within("total", answer.total, (laws,), 0.0, most)
        shape, top = (laws, laws), most * _MOST_LOSS
        products = _within("products", answer.products, shape, 0.0, top)
        return calibration.Losses(people, total, products)

    def _plan_of(self) -> FieldPlan:
        if self._plan is None:
            raise DataError("nothing is promised")
        return self._plan

    def _cells(
        self, name: str, given: Floats, channel: str, shape: tuple[int, ...]
    ) -> Floats:
        """Sums with noise: of everybody at once, and so far out as noise can be."""
        plan = self._plan_of()
        # The most that a person brings to a cell, and that its unit can move.
        most = max(plan.settings.bound, float(plan.length), plan.clock.slots_per_day)
        number = 1 if channel == INFECTIOUS else 0
        sigma = max(plan.sigma(channel, one) for one in (number, number + 1))
        noises = self.people if self._task.is_local else 1
        room = most * (self.people + _ROOM * sigma * np.sqrt(noises))
        found = _within(name, given, shape)
        if (np.abs(found) > room).any():
            raise DataError(f"{name} holds what no noise of the plan makes")
        if found[:, 0].any():
            raise DataError(f"{name} tells of people who were not observed")
        return found

    def _of_present(self, name: str, given: Floats, low: float, high: float) -> Floats:
        found = _within(name, given, self._size.by_slot)
        least, most = low * self._crowd - _ROUNDING, high * self._crowd + _ROUNDING
        if ((found < least) | (found > most)).any():
            raise DataError(f"{name} is more than the people there can send")
        return found


def _within(
    name: str,
    found: Floats,
    shape: tuple[int, ...] | None = None,
    low: float = -np.inf,
    high: float = np.inf,
) -> Floats:
    """Require finite numbers of this shape, from ``low`` to ``high``."""
    if shape is not None and found.shape != shape:
        raise DataError(f"{name} has the shape {found.shape}, expected {shape}")
    if not np.isfinite(found).all():
        raise DataError(f"{name} holds NaN or infinity")
    if ((found < low) | (found > high)).any():
        raise DataError(f"{name} holds a number outside {low:g} to {high:g}")
    return found


def _require_whole(*counts: Floats) -> None:
    """Refuse counts that are not whole numbers."""
    if any((one != np.rint(one)).any() for one in counts):
        raise DataError("a count is not a whole number")


def _whole(value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError("a whole number is none")
    if not low <= value <= high:
        raise DataError(f"{value} must be from {low} to {high}")
    return value
