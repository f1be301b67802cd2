"""Where a person's risk comes from: days, hours and regions, never other people.

Computed from the person's own trace, tests and messages and from what the places of
a run of Falcon Field publish.
"""

from pathlib import Path

import numpy as np

from epifalcon.belief_propagation.inference import Cohort
from epifalcon.belief_propagation.marginals import current_risk, infections
from epifalcon.belief_propagation.saved_state import Messages, PublishedField
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments.run_folder import (
    FIELD_FOLDER,
    MESSAGES_FOLDER,
    PREDICTION,
    FinishedRun,
)
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.mobility.traces import Traces
from epifalcon.reports.explanation_report import Explanation, Exposure
from epifalcon.types import UNKNOWN, Floats


def explain(run: FinishedRun, person: str, *, tests: bool = False) -> Explanation:
    """Explain the risk of ``person``, a name or a number, in ``run``.

    By the field that used all tests. The listed risk of a tested person is out-of-fold
    and can differ.
    """
    if run.method != FIELD:
        raise SettingsError(
            f"{run.folder}: {run.method} has no risks by place; explanations are of "
            f"{FIELD}: choose it with --method, or run it"
        )
    place = run.place / PREDICTION
    at = find_person(run.traces, person)
    return explain_person(place, run.traces, run.tests, at, tests=tests)


def explain_person(
    place: Path, traces: Traces, known: Known, person: int, *, tests: bool = False
) -> Explanation:
    """Explain the risk of a person, by number, from the field stored in ``place``."""
    field = load_field(place)
    messages = None
    if field.graph.own_in_sums:
        messages = Messages.load(place / MESSAGES_FOLDER).of(person)
    home = field.people(*one_person(traces, known, person), messages)
    called = str(person) if traces.names is None else traces.names[person]
    return taken_apart(home, field, called, tests=tests)


def load_field(place: Path) -> PublishedField:
    """Load the field stored in the folder of a prediction."""
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
    """Explain the risk of the one person of ``home``."""
    received = field.messages()
    found = infections(home, received, with_tests=tests)
    now = current_risk(home, received)
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
    """Merge consecutive slots of one day and region into stays."""
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
    """Return the number of the person called ``person``."""
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
    """Return trace and tests of one person, whose number is then 0."""
    by_slot = np.ascontiguousarray(traces.by_slot[:, person : person + 1])
    own = known.person == person
    tests = Known(
        1, np.zeros(int(own.sum()), np.int32), known.positive[own], known.slot[own]
    )
    return Traces(by_slot, traces.clock, traces.regions), tests
