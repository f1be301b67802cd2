"""From what the field believes to the risk that is told, by held-out people alone.

Runs of the field that did not know some people's results show how far the risks of
such people can be believed: whether the learned correction tells them better, and
how all odds are to be bent. What they show is put on the run that knew more. Where
it is wished for, the correction is tuned on them first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.baselines.hbp import Beliefs
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.federation.field.tuning import Tuner
from epifalcon.models.field.calibrating import (
    AS_IT_IS,
    Bend,
    choose_bend,
    fit_bend,
    odds_of,
    result_chance,
    told_in_turn,
    uncertainty,
    wins,
)
from epifalcon.models.field.choosing import losses
from epifalcon.models.field.correction import Correction
from epifalcon.models.field.lessons import Lessons
from epifalcon.models.field.settings import FieldSettings
from epifalcon.types import Floats, Mask, Probabilities


@dataclass(frozen=True, eq=False)
class AtHome(Beliefs):
    """Where the sweeps ended, with what people have at home then."""

    numbers: NDArray[np.float32] | None = None
    """(people, ``NUMBERS``), where a correction may want them."""


@dataclass(frozen=True, eq=False)
class Held:
    """A run that did not know some people's results."""

    end: AtHome
    out: Mask
    """(people,) whose results it did not know, and who can be judged by them."""


@dataclass(frozen=True, eq=False)
class Telling:
    """How risks are told: corrected, bent, or as they are."""

    correction: Correction | None = None
    bend: Bend = AS_IT_IS
    unsure: Floats = field(default_factory=lambda: np.zeros((2, 2)))
    """Covariance of the bend's slope and offset, as far as people were held out."""
    tuned: bool = False
    """Whether the correction is one that was tuned here."""

    def __call__(self, end: AtHome) -> Probabilities:
        """The risks as they are told, (people,)."""
        return self.bend(corrected(end, self.correction))

    def as_plain(self) -> dict[str, Any]:
        """The figures for the log."""
        return {
            "corrected": self.correction is not None,
            "slope": self.bend.slope,
            "offset": self.bend.offset,
            "middle": self.bend.middle,
        }


@dataclass(frozen=True, eq=False)
class Ways:
    """What may be done to risks."""

    errors: TestErrors
    correction: Correction | None = None
    always: bool = False
    """Correct whatever held-out people show."""
    calibrate: bool = True

    @classmethod
    def of(cls, settings: FieldSettings, errors: TestErrors) -> "Ways":
        """As the settings say; reads the correction's file."""
        wish = settings.correction
        calibrate = settings.calibration == "auto"
        if wish == "none":
            return cls(errors, None, False, calibrate)
        if wish in ("auto", "shipped"):
            return cls(errors, Correction.shipped(), wish == "shipped", calibrate)
        return cls(errors, Correction.load(Path(wish)), True, calibrate)

    @property
    def none(self) -> bool:
        """Whether risks are always told as they are."""
        return self.correction is None and not self.calibrate


def corrected(end: AtHome, correction: Correction | None) -> Probabilities:
    """The risks after the correction, or as they are without one."""
    if correction is None or end.numbers is None:
        return end.risk
    return correction(end.risk, end.numbers)


def find_telling(
    end: AtHome,
    held: Sequence[Held],
    known: Known,
    ways: Ways,
    tuner: Tuner | None = None,
) -> Telling:
    """How to tell the risks of ``end``, of a run that knew more than ``held``.

    A bend must tell held-out people better than none, the correction, bent, better
    than that, and the correction that ``tuner`` tuned on them better than the best of
    these, each by more than one standard error. A run that knows more
    tests can be bolder or shyer as a whole; but what is expected of people without
    test is the same before and after tests of others, so a bend takes their mean
    from ``held``.
    """
    if not any(one.out.any() for one in held):
        return Telling(ways.correction if ways.always else None)
    told, positive = _held_out(held, known, None)
    bend = choose_bend(told, positive, ways.errors) if ways.calibrate else AS_IT_IS
    correction = shipped = _correction(held, known, ways, bend)
    if tuner is not None:
        correction = _tuned(held, known, ways, (bend, shipped), tuner)
    if correction is not None:
        told, positive = _held_out(held, known, correction)
        # It was trained to find what differs between people, not their level.
        bend = fit_bend(told, positive, ways.errors) if ways.calibrate else AS_IT_IS
    if bend.straight:
        bend = Bend(middle=float(odds_of(told).mean()))
    unsure = uncertainty(bend, told, positive, ways.errors)
    untested = ~known.tested
    if not bend.straight and untested.any():
        means = [bend(corrected(one.end, correction)[untested]).mean() for one in held]
        risk = corrected(end, correction)[untested]
        bend = bend.with_mean(risk, float(np.mean(means)))
    return Telling(correction, bend, unsure, correction is not shipped)


def _correction(
    held: Sequence[Held], known: Known, ways: Ways, bend: Bend
) -> Correction | None:
    """The correction, where it wins beyond what ``bend`` wins without it."""
    if ways.always or ways.correction is None:
        return ways.correction
    lost = []
    for one, bent in ((None, not bend.straight), (ways.correction, ways.calibrate)):
        told, positive = _held_out(held, known, one)
        lost.append(_lost(told, positive, ways.errors, bent=bent))
    return ways.correction if wins(lost[0] - lost[1]) else None


def _tuned(
    held: Sequence[Held],
    known: Known,
    ways: Ways,
    before: tuple[Bend, Correction | None],
    tuner: Tuner,
) -> Correction | None:
    """The correction tuned on held-out people, where it wins beyond ``before``.

    ``before`` is how they are told best without it. People are judged by weights
    that were tuned without them.
    """
    bend, shipped = before
    if ways.correction is None or any(one.end.numbers is None for one in held):
        return shipped
    told, positive = _held_out(held, known, None)
    numbers = [one.end.numbers[one.out] for one in held if one.end.numbers is not None]
    lessons = Lessons(told, np.concatenate(numbers), positive)
    tuned = tuner.tune(ways.correction, lessons, ways.errors)
    if tuner.always:
        return tuned.correction
    told, _ = _held_out(held, known, shipped)
    bent = ways.calibrate and (shipped is not None or not bend.straight)
    lost = _lost(told, positive, ways.errors, bent=bent)
    after = _lost(tuned.told, positive, ways.errors, bent=ways.calibrate)
    return tuned.correction if wins(lost - after) else shipped


def _lost(
    told: Probabilities, positive: Mask, errors: TestErrors, *, bent: bool
) -> Floats:
    """Log loss of each result; ``bent`` by a line without the person."""
    if bent:
        told = told_in_turn(told, positive, errors)
    return losses(result_chance(told, errors), positive)


def _held_out(
    held: Sequence[Held], known: Known, correction: Correction | None
) -> tuple[Probabilities, Mask]:
    """Risks and results of all held-out people."""
    told = [corrected(one.end, correction)[one.out] for one in held]
    positive = [known.status[one.out] == 1 for one in held]
    return np.concatenate(told), np.concatenate(positive)
