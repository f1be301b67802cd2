"""Where a person's risk comes from: days, hours and regions, never other people.

Made at home, from the person's own trace, tests and messages and from what the
places of a run of Falcon Field told everybody.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.published import Messages, PublishedField
from epifalcon.studies.finished_run import FinishedRun
from epifalcon.studies.method_folder import (
    FIELD_FOLDER,
    MESSAGES_FOLDER,
    PREDICTION,
)
from epifalcon.studies.methods import FIELD
from epifalcon.types import UNKNOWN, Floats


@dataclass(frozen=True)
class Exposure:
    """A stay in one region on one day, and its share of the person's risk."""

    day: int
    begin: float
    """Hour of the day."""
    end: float
    region: str | None
    """None where the person was not observed."""
    share: float

    @property
    def hours(self) -> str:
        """From when to when."""
        return f"{_clock_time(self.begin)}-{_clock_time(self.end)}"

    @property
    def place(self) -> str:
        """What people call the region."""
        return "not observed" if self.region is None else self.region


@dataclass(frozen=True, eq=False)
class Explanation:
    """A person's risk, taken apart; ``before``, and ``by_day``, add up to 1."""

    person: str
    risk: float
    """Of having been infected, as the field tells it to this person."""
    now: float
    """Of being infected, exposed or infectious, at the end."""
    tests: bool
    """Whether the person's own tests count in both; else they are left aside."""
    before: float
    """Share of the risk from before the first day."""
    by_day: Floats
    """(days,) share of the risk."""
    exposures: tuple[Exposure, ...]
    """All stays with any risk, the largest share first."""
    first_day: int = 1
    """Number of the first day."""

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "person": self.person,
            "risk": self.risk,
            "risk_now": self.now,
            "own_tests": "counted" if self.tests else "aside",
            "before": self.before,
            "first_day": self.first_day,
            "by_day": self.by_day.tolist(),
            "exposures": [vars(one) for one in self.exposures],
        }


def explain(run: FinishedRun, person: str, *, tests: bool = False) -> Explanation:
    """Where the risk of ``person``, a name or a number, comes from in ``run``.

    By the field that knew all tests. The listed risk of a tested person is of a run
    without the tests of its fold, and can differ.
    """
    if run.method != FIELD:
        raise SettingsError(
            f"{run.folder}: {run.method} tells no risks by place; explanations are of "
            f"{FIELD}: choose it with --method, or run it"
        )
    place = run.place / PREDICTION
    at = find_person(run.traces, person)
    return explain_person(place, run.traces, run.tests, at, tests=tests)


def explain_person(
    place: Path, traces: Traces, known: Known, person: int, *, tests: bool = False
) -> Explanation:
    """The same of the field kept in ``place``, a person by its number."""
    field = load_field(place)
    messages = None
    if field.city.own_in_sums:
        messages = Messages.load(place / MESSAGES_FOLDER).of(person)
    home = field.people(*one_person(traces, known, person), messages)
    called = str(person) if traces.names is None else traces.names[person]
    return taken_apart(home, field, called, tests=tests)


def load_field(place: Path) -> PublishedField:
    """The field kept in the folder of a prediction."""
    if not (place / FIELD_FOLDER).is_dir():
        raise DataError(
            f"{place}: keeps no field: the run was made with field.kept=false or by an "
            "earlier version of epifalcon; run it again"
        )
    return PublishedField.load(place / FIELD_FOLDER)


def taken_apart(
    home: Cohort,
    field: PublishedField,
    called: str,
    *,
    tests: bool,
    first_day: int = 1,
) -> Explanation:
    """The explanation of the one person of ``home``."""
    told = field.told()
    found, now = home.infections(told, tests=tests), home.now(told)
    shares = found.shares[:, 0]
    by_day = shares[1:].reshape(home.traces.clock.days, -1).sum(axis=1)
    stays = _stays(shares[1:], home.traces, first_day)
    return Explanation(
        person=called,
        risk=float(found.risk[0]),
        now=float(now.tested[0] if tests else now.aside[0]),
        tests=tests,
        before=float(shares[0]),
        by_day=by_day,
        exposures=tuple(sorted(stays, key=lambda one: -one.share)),
        first_day=first_day,
    )


def _stays(share: Floats, traces: Traces, first_day: int) -> list[Exposure]:
    """Slots of one day, region and stretch of time put together."""
    clock, here = traces.clock, traces.by_slot[:, 0]
    slot = np.arange(len(here))
    new = (np.diff(here, prepend=-2) != 0) | (slot % clock.slots_per_day == 0)
    starts = np.flatnonzero(new)
    total = np.add.reduceat(share, starts)
    lengths = np.diff(np.append(starts, len(here)))
    found = []
    for first, slots, part in zip(
        starts.tolist(), lengths.tolist(), total, strict=True
    ):
        region, begin = int(here[first]), clock.hour_of_slot(first)
        found.append(
            Exposure(
                day=first_day + clock.day_of_slot(first),
                begin=begin,
                end=begin + slots * clock.slot_minutes / 60,
                region=None if region == UNKNOWN else traces.regions.name(region),
                share=float(part),
            )
        )
    return [one for one in found if one.share > 0]


def find_person(traces: Traces, person: str) -> int:
    """The number of the person called ``person``."""
    if traces.names is not None:
        names = list(traces.names)
        if person in names:
            return names.index(person)
        raise DataError(f"person={person!r} is none of the run's {len(names):,} people")
    if person.isascii() and person.isdigit() and int(person) < traces.people:
        return int(person)
    raise DataError(
        f"person={person!r} is none of the run's people, who have numbers from 0 to "
        f"{traces.people - 1}"
    )


def one_person(traces: Traces, known: Known, person: int) -> tuple[Traces, Known]:
    """The trace and the tests of one person, whose number is then 0."""
    by_slot = np.ascontiguousarray(traces.by_slot[:, person : person + 1])
    own = known.person == person
    tests = Known(
        1, np.zeros(int(own.sum()), np.int32), known.positive[own], known.slot[own]
    )
    return Traces(by_slot, traces.clock, traces.regions), tests


def _clock_time(hour: float) -> str:
    minutes = round(hour * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
