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
        """Shape of sums per slot and region; column 0 is "not observed"."""
        return self.clock.slots, 1 + self.regions

    @property
    def by_day(self) -> tuple[int, int]:
        """Shape of sums per day and region."""
        return self.clock.days, 1 + self.regions


@dataclass(frozen=True, eq=False)
class _Exchange(Record):
    """Server to site: edge messages, how to sweep, and in which run.

    Fields are those of ``EdgeMessages``, ``SweepOptions`` and ``FieldRun``.
    """

    edges: Floats
    hazard: Floats
    typical: Floats
    evidence_step: Floats
    own: float
    infectious_step: float
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
        given: dict[str, Any] = {**received._asdict(), **options._asdict()}
        given |= {**vars(run), "without": list(run.without), "step": step}
        del given["day"]
        if received.hazard.size:
            given["edges"] = np.zeros((0, 0, 4))
        return cls(**given)

    @property
    def digest(self) -> str:
        """Digest of everything in the request."""
        packet = self.encode(Heading("", "", 0, ""))
        return digest(dict(packet.values), tensors=packet.tensors)

    def received(
        self, size: Size, task: FieldTask
    ) -> tuple[EdgeMessages, SweepOptions]:
        """Decode the edge messages; refuse what no honest server sends.

        Evidence beyond the agreed bound would be more than its noise covers.
        """
        slots, sweeps = size.clock.slots, self.phase == Sweep.phase
        first = self.step == 1 and self.start == "cold" and sweeps
        if (self.hazard.size > 0) != first:
            raise DataError("a first hazard, and no other exchange, begins a run")
        _within("hazard", self.hazard, (slots,) if first else (0,), 0.0, MOST_LOG)
        _within("evidence_step", self.evidence_step, (slots,), 0.0, 1.0)
        _within("typical", self.typical, size.by_day, 0.0, 1.0)
        if self.bound != (task.inference.evidence_bound if sweeps else 0.0):
            raise DataError(f"evidence up to {self.bound:g} is not what was agreed")
        for name in ("own", "infectious_step"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name}={getattr(self, name):g} must be from 0 to 1")
        return (
            EdgeMessages(
                np.zeros((*size.by_slot, 4)) if first else self._edges(size, task),
                self.hazard,
                (np.arange(slots) // size.clock.slots_per_day).astype(np.int32),
                self.own,
                self.typical,
            ),
            SweepOptions(
                self.infectious_step,
                self.evidence_step,
                self.bound,
                self.susceptible,
                self.tally,
            ),
        )

    def _edges(self, size: Size, task: FieldTask) -> Floats:
        # With noise, more people may seem to be in a place than there are.
        people = _MOST_SEEMING if task.private else size.people + _ROUNDING
        most = people * max(task.inference.evidence_bound, 1.0)
        edges = _within("edges", self.edges, (*size.by_slot, 4), -people, most)
        chance = edges[..., seir_chain.CHANCE]
        if (chance < 0).any() or (chance >= 1).any():
            raise DataError("a chance of infection outside 0 to 1")
        if (edges[..., [seir_chain.OTHERS, seir_chain.INFECTIOUS]] < 0).any():
            raise DataError("a negative number of people at a place")
        return edges

    def run(self, folds: int) -> FieldRun:
        """Decode in which run the exchange is."""
        _whole(self.step, 1, 10**6)
        given: tuple[Any, Any, Any] = self.law, self.start, self.purpose
        allowed = LAWS, get_args(Start), get_args(Purpose)
        for word, words in zip(given, allowed, strict=True):
            if word not in words:
                raise DataError(f"{word!r} is none of {', '.join(words)}")
        return FieldRun(_folds(self.without, folds), *given)


@dataclass(frozen=True, eq=False)
class Sweep(_Exchange):
    """Server to site: one exchange. Answer: FieldSums."""

    phase = "sweep"


@dataclass(frozen=True, eq=False)
class End(_Exchange):
    """Server to site: the last edge messages of a run. Answer: Done."""

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


class FieldAnswers:
    """Checks the answers of one site."""

    def __init__(self, task: FieldTask, size: Size, people: int) -> None:
        """``people`` are the site's own, ``size`` has those of all."""
        self._task, self._size, self.people = task, size, people
        self._plan = FieldPlan(task.wishes.privacy, size.clock)
        self._crowd = np.zeros(size.by_slot)
        self._noises = np.zeros((0, 0))

    def counted(self, answer: Counted) -> Counted:
        """Require counts that so many people can have."""
        if self._task.private:
            return self._noised_counts(answer)
        people, crowd, tests = self.people, answer.crowd, answer.tests
        _within("crowd", crowd, self._size.by_slot, 0.0, people, whole=True)
        shape = (max(self._task.folds, 1), 2)
        _within("tests", tests, shape, 0.0, people, whole=True)
        _within("noises", answer.noises, (0, 0))
        if (crowd.sum(axis=1) != people).any():
            raise DataError(f"counts of other than {people:,} people in a slot")
        if (tests[:, 1] > tests[:, 0]).any() or tests[:, 0].sum() > people:
            raise DataError("more people tested than there are, or more positive")
        self._crowd = crowd
        return answer

    def _noised_counts(self, answer: Counted) -> Counted:
        plan, people, edges = self._plan, self.people, 1 + self._size.regions
        shape = (plan.clock.slots // plan.length, edges)
        _within("noises", answer.noises, shape, 0.0, people, whole=True)
        room = _ROOM * plan.sigma(TESTS) * np.sqrt(people)
        _within("tests", answer.tests, (1, 2), -room, people + room)
        if self._task.is_local:
            _within("crowd", answer.crowd, (0, 0))
        else:
            self._require_cells("crowd", answer.crowd, PRESENCE, (1, edges))
            if (answer.noises[:, 1:] != 1).any():
                raise DataError("a sum has one noise of its site")
        self._noises = answer.noises
        return answer

    def sums(self, answer: FieldSums, options: SweepOptions) -> Sums:
        """Return the sums, if the people counted can have sent them."""
        nothing, no_tally = np.zeros((0, 0)), np.zeros((0, 0, 0))
        if self._task.private:
            shape = self._noises.shape
            self._require_cells("infectious", answer.infectious, INFECTIOUS, shape)
            return Sums(answer.infectious, nothing, nothing, no_tally)
        self._require_of_present("infectious", answer.infectious, 0.0, 1.0)
        bound = self._task.inference.evidence_bound
        self._require_of_present("evidence", answer.evidence, -1.0, bound)
        if options.susceptible:
            self._require_of_present("susceptible", answer.susceptible, 0.0, 1.0)
        if options.tally:
            most = self.people * self._size.clock.slots_per_day * MOST_LOG
            _within("tally", answer.tally, (2, *self._size.by_day), 0.0, most)
        return Sums(
            answer.infectious,
            answer.evidence,
            answer.susceptible if options.susceptible else nothing,
            answer.tally if options.tally else no_tally,
        )

    def losses(self, answer: Losses) -> calibration.Losses:
        """Return the sums of losses, if so many people can have them."""
        most = _whole(answer.people, 0, self.people) * _MOST_LOSS
        laws = len(self._task.wishes.field.region.laws)
        _within("total", answer.total, (laws,), 0.0, most)
        _within("products", answer.products, (laws, laws), 0.0, most * _MOST_LOSS)
        return calibration.Losses(answer.people, answer.total, answer.products)

    def _require_cells(
        self, name: str, given: Floats, channel: str, shape: tuple[int, ...]
    ) -> None:
        """Require noised sums within what noise of the plan can make."""
        plan = self._plan
        # The most that a person brings to a cell, and that its unit can move.
        most = max(plan.settings.bound, float(plan.length), plan.clock.slots_per_day)
        number = 1 if channel == INFECTIOUS else 0
        sigma = max(plan.sigma(channel, one) for one in (number, number + 1))
        noises = self.people if self._task.is_local else 1
        room = most * (self.people + _ROOM * sigma * np.sqrt(noises))
        if (np.abs(_within(name, given, shape)) > room).any():
            raise DataError(f"{name} holds what no noise of the plan makes")
        if given[:, 0].any():
            raise DataError(f"{name} tells of people who were not observed")

    def _require_of_present(
        self, name: str, given: Floats, low: float, high: float
    ) -> None:
        _within(name, given, self._size.by_slot)
        least, most = low * self._crowd - _ROUNDING, high * self._crowd + _ROUNDING
        if ((given < least) | (given > most)).any():
            raise DataError(f"{name} is more than the people there can send")


def _folds(values: object, folds: int) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise DataError("excluded folds must be a list")
    return tuple(_whole(one, 0, folds - 1) for one in values)


def _within(
    name: str,
    found: Floats,
    shape: tuple[int, ...],
    low: float = -np.inf,
    high: float = np.inf,
    *,
    whole: bool = False,
) -> Floats:
    """Require finite numbers of this shape, from ``low`` to ``high``."""
    if found.shape != shape:
        raise DataError(f"{name} has the shape {found.shape}, expected {shape}")
    if not np.isfinite(found).all():
        raise DataError(f"{name} holds NaN or infinity")
    if ((found < low) | (found > high)).any():
        raise DataError(f"{name} holds a number outside {low:g} to {high:g}")
    if whole and (found != np.rint(found)).any():
        raise DataError(f"{name} holds a count that is not a whole number")
    return found


def _whole(value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError("a whole number is none")
    if not low <= value <= high:
        raise DataError(f"{value} must be from {low} to {high}")
    return value
