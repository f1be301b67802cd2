"""Falcon Field's messages as tensors and plain values, and what each must be.

Nothing that comes is believed: a site refuses what no honest server tells, since
people's numbers would be worked out from it, and a server what no people can send.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation.field.home import NOISE_STEPS, Counted, FieldRun
from epifalcon.federation.field.judging import STEPS, Judgement
from epifalcon.federation.field.plan import INFECTIOUS, PRESENCE, TESTS, FieldPlan
from epifalcon.federation.field.task import FieldTask
from epifalcon.federation.sites.switchboard import Payload
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.clock import Clock
from epifalcon.models.field.chains import (
    CROWD,
    EVIDENCE_STEPS,
    FORCE,
    ILLNESS,
    INFECTIOUS_STEPS,
)
from epifalcon.models.field.disease import Rates
from epifalcon.models.field.settings import LAWS
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.types import Floats

_ROOM = 9.0
"""A normal number is further out once in 10^18 draws."""
_ROUNDING = 1e-6
_MOST_BORNE = 30.0
"""Hazard of one slot: ``chains`` lets no more through."""
_TALLY_STEPS = 2.0**30
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


def tell(told: Told, manner: Manner, run: FieldRun, step: int) -> Payload:
    """One exchange as a call: what places tell, how to sweep, and in which run."""
    tensors = {
        "edges": _tensor(told.edges if not told.flat.size else np.zeros((0, 0, 4))),
        "flat": _tensor(told.flat),
        "typical": _tensor(told.typical),
        "renewed_evidence": _tensor(manner.renewed_evidence),
    }
    plain = {
        "own": told.own,
        "renewed_illness": manner.renewed_illness,
        "bound": manner.bound,
        "step": step,
        "rates": list(run.rates),
        "without": list(run.without),
        "aim": [run.aim, run.fold, run.law],
    }
    return Payload(tensors, plain)


def read_told(call: Parcel, size: Size, task: FieldTask) -> tuple[Told, Manner]:
    """What a site is told; what no honest server tells is a ``DataError``.

    Evidence beyond the agreed bound would be more than its noise covers.
    """
    slots = size.clock.slots
    flat = _array(call, "flat", None, (0.0, _MOST_BORNE))
    edges = np.zeros((*size.by_slot, 4))
    if flat.size == 0:
        edges = _edges(call, size, task)
    if (flat.size > 0) != (call.value("step") == 1):
        raise DataError("a first hazard, and no other exchange, begins a run")
    if flat.size and flat.shape != (slots,):
        raise DataError(f"a first hazard of {flat.shape}, expected ({slots},)")
    share = _array(call, "renewed_evidence", (slots,), (0.0, 1.0))
    bound = _number(call, "bound", 0.0, 1e6)
    if bound != task.inference.evidence_bound:
        raise DataError(f"evidence up to {bound:g} is not what was agreed")
    own = _number(call, "own", 0.0, 1.0)
    illness = _number(call, "renewed_illness", 0.0, 1.0)
    day = (np.arange(slots) // size.clock.slots_per_day).astype(np.int32)
    by_day = size.clock.days, size.by_slot[1]
    typical = _array(call, "typical", by_day, (0.0, 1.0))
    return Told(edges, flat, day, own, typical), Manner(illness, share, bound)


def read_run(call: Parcel, folds: int) -> tuple[FieldRun, int]:
    """In which run an exchange is, and the how-manieth of it."""
    rates, without, aim = (call.value(name) for name in ("rates", "without", "aim"))
    step = _whole(call.value("step"), 1, 10**6)
    numbers = [float(one) for one in rates]
    if len(numbers) != 4 or not all(0 <= one <= 1 for one in numbers):
        raise DataError("chances of the disease must be four, between 0 and 1")
    if not 0 < numbers[2] < 1:
        raise DataError(f"a share of seeds of {numbers[2]:g}")
    word, fold, law = aim
    if word not in ("everybody", "fold", "judged"):
        raise DataError("a run aims at nothing known")
    aside = tuple(_whole(one, 0, folds - 1) for one in without)
    run = FieldRun(
        Rates(numbers[0], numbers[1], numbers[2], bool(numbers[3])),
        aside,
        word,
        _whole(fold, -1, folds - 1),
        _whole(law, -1, len(LAWS) - 1),
    )
    if run.aim != "everybody" and run.fold not in aside:
        raise DataError(f"fold {run.fold} would be told by its own tests")
    return run, step


def _edges(call: Parcel, size: Size, task: FieldTask) -> Floats:
    # With noise, more people may seem to be in a place than there are.
    people = _MOST_SEEMING if task.private else float(size.people)
    most = people * max(task.inference.evidence_bound, 1.0)
    edges = _array(call, "edges", (*size.by_slot, 4), (-people, most))
    if (edges[..., FORCE] < 0).any() or (edges[..., FORCE] >= 1).any():
        raise DataError("a chance of infection outside 0 to 1")
    for number in (CROWD, ILLNESS):
        if (edges[..., number] < 0).any():
            raise DataError("a place tells less than nobody")
    return edges


def send_sums(sums: Sums) -> Payload:
    """A site's sums as an answer."""
    return Payload({name: _tensor(one) for name, one in sums._asdict().items()})


def send_counted(counted: Counted) -> Payload:
    """A site's counts as an answer."""
    return Payload({name: _tensor(one) for name, one in vars(counted).items()})


def send_judgement(made: Judgement) -> Payload:
    """A site's sums of losses as an answer."""
    tensors = {"total": _tensor(made.total), "products": _tensor(made.products)}
    return Payload(tensors, {"people": made.people})


class FieldAnswers:
    """Reads the answers of one site of so many people."""

    def __init__(self, task: FieldTask, size: Size, people: int) -> None:
        """``people`` are the site's own, ``size`` has those of all."""
        self._task, self._size, self._people = task, size, people
        self._crowd = np.zeros(size.by_slot)
        self._plan: FieldPlan | None = None
        if task.private:
            self._plan = FieldPlan.of(task.wishes.privacy, size.clock)
        self._noises = np.zeros((0, 0))

    def counted(self, answer: Parcel) -> Counted:
        """Counts that so many people can have."""
        tests_shape = (max(self._task.folds, 1), 2)
        if self._plan is not None:
            return self._noised_counts(answer)
        crowd = _array(answer, "crowd", self._size.by_slot, (0.0, self._people))
        tests = _array(answer, "tests", tests_shape, (0.0, self._people))
        _require_grid(crowd, 1.0)
        _require_grid(tests, 1.0)
        if (crowd.sum(axis=1) != self._people).any():
            raise DataError(f"counts of other than {self._people:,} people in a slot")
        if (tests[:, 1] > tests[:, 0]).any() or tests[:, 0].sum() > self._people:
            raise DataError("more people tested than there are, or more positive")
        self._crowd = crowd
        return Counted(crowd, tests, np.zeros((0, 0)))

    def _noised_counts(self, answer: Parcel) -> Counted:
        plan, edges = self._plan_of(), 1 + self._size.regions
        shape = (plan.clock.slots // plan.length, edges)
        noises = _array(answer, "noises", shape, (0.0, self._people))
        _require_grid(noises, 1.0)
        local = self._task.mode == "local"
        if not local and (noises[:, 1:] != 1).any():
            raise DataError("a sum has one noise of its site")
        self._noises = noises
        room = _ROOM * plan.sigma(TESTS) * np.sqrt(self._people)
        tests = _array(answer, "tests", (1, 2), (-room, self._people + room))
        if local:
            return Counted(_array(answer, "crowd", (0, 0)), tests, noises)
        crowd = self._cells(answer, "crowd", PRESENCE, (1, edges))
        return Counted(crowd, tests, noises)

    def sums(self, answer: Parcel, *, well: bool, tally: bool) -> Sums:
        """Sums that the people counted can have sent."""
        bound = self._task.inference.evidence_bound
        nothing = np.zeros((0, 0))
        if self._plan is not None:
            size = self._noises.shape
            cells = self._cells(answer, "infectious", INFECTIOUS, size)
            return Sums(cells, nothing, nothing, np.zeros((0, 0, 0)))
        infectious = self._of_present(answer, "infectious", (0.0, 1.0))
        evidence = self._of_present(answer, "evidence", (-1.0, bound))
        _require_grid(infectious, INFECTIOUS_STEPS)
        _require_grid(evidence, EVIDENCE_STEPS)
        expected = nothing
        if well:
            expected = self._of_present(answer, "well", (0.0, 1.0))
            _require_grid(expected, INFECTIOUS_STEPS)
        found = np.zeros((0, 0, 0))
        if tally:
            clock = self._size.clock
            most = self._people * clock.slots_per_day * _MOST_BORNE
            shape = (2, clock.days, 1 + self._size.regions)
            found = _array(answer, "tally", shape, (0.0, most))
            _require_grid(found, _TALLY_STEPS)
        return Sums(infectious, evidence, expected, found)

    def judgement(self, answer: Parcel) -> Judgement:
        """Sums of losses that so many people can have."""
        people = _whole(answer.value("people"), 0, self._people)
        laws, most = len(LAWS), people * _MOST_LOSS
        total = _array(answer, "total", (laws,), (0.0, most))
        products = _array(answer, "products", (laws, laws), (0.0, most * _MOST_LOSS))
        _require_grid(total, STEPS)
        _require_grid(products, STEPS)
        return Judgement(people, total, products)

    def scores(self, answer: Parcel) -> Floats | None:
        """Risks of the site's people; None where it keeps them."""
        if "scores" not in answer.tensors:
            return None
        return _array(answer, "scores", (self._people,), (0.0, 1.0))

    def _plan_of(self) -> FieldPlan:
        if self._plan is None:
            raise DataError("nothing is promised")
        return self._plan

    def _cells(
        self, answer: Parcel, name: str, channel: str, shape: tuple[int, ...]
    ) -> Floats:
        """Sums with noise: of everybody at once, and so far out as noise can be."""
        plan = self._plan_of()
        # The most that a person brings to a cell, and that its unit can move.
        most = max(plan.settings.bound, float(plan.length), plan.clock.slots_per_day)
        number = 1 if channel == INFECTIOUS else 0
        sigma = max(plan.sigma(channel, one) for one in (number, number + 1))
        noises = self._people if self._task.mode == "local" else 1
        room = most * (self._people + _ROOM * sigma * np.sqrt(noises))
        found = _array(answer, name, shape)
        if (np.abs(found) > room).any():
            raise DataError(f"{name} holds what no noise of the plan makes")
        if found[:, 0].any():
            raise DataError(f"{name} tells of people who were not observed")
        _require_grid(found, NOISE_STEPS)
        return found

    def _of_present(
        self, answer: Parcel, name: str, each: tuple[float, float]
    ) -> Floats:
        found = _array(answer, name, self._size.by_slot)
        low, high = (one * self._crowd for one in each)
        if ((found < low) | (found > high)).any():
            raise DataError(f"{name} is more than the people there can send")
        return found


def _tensor(array: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.array(array, np.float64))


def _array(
    parcel: Parcel,
    name: str,
    shape: tuple[int, ...] | None = None,
    within: tuple[float, float] | None = None,
) -> Floats:
    """A tensor of finite doubles, of this shape and within these ends."""
    one = parcel.tensor(name)
    if one.dtype != torch.float64:
        raise DataError(f"{name} is of {one.dtype}, expected doubles")
    found: Floats = one.numpy()
    if shape is not None and found.shape != shape:
        raise DataError(f"{name} has the shape {found.shape}, expected {shape}")
    if not np.isfinite(found).all():
        raise DataError(f"{name} holds NaN or infinity")
    if within is not None and ((found < within[0]) | (found > within[1])).any():
        raise DataError(f"{name} holds a number outside {within[0]:g} to {within[1]:g}")
    return found


def _require_grid(array: Floats, steps: float) -> None:
    """Refuse what is no whole multiple: its sums would depend on their order."""
    scaled = array * steps
    if (scaled != np.rint(scaled)).any():
        raise DataError("a sum is no whole multiple of its unit")


def _number(parcel: Parcel, name: str, low: float, high: float) -> float:
    value = parcel.value(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{name} is no number")
    if not low <= value <= high:
        raise DataError(f"{name}={value:g} must be from {low:g} to {high:g}")
    return float(value)


def _whole(value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError("a whole number is none")
    if not low <= value <= high:
        raise DataError(f"{value} must be from {low} to {high}")
    return value
