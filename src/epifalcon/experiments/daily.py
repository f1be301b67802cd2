"""Falcon Field day by day: a state on disk that takes one new day after the other."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.belief_propagation.saved_state import Messages
from epifalcon.belief_propagation.settings import WindowSettings
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.results import NamedTests, read_day_tests
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.experiments import explaining
from epifalcon.experiments.risks import Risks
from epifalcon.experiments.run_folder import MESSAGES_FOLDER, PREDICTION, FinishedRun
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.federation.field.window import FieldWindow, NewDay
from epifalcon.methods.registry import entry
from epifalcon.mobility.ingest.visits import read_day_visits
from epifalcon.types import UNKNOWN

_NO_TESTS = NamedTests((), np.zeros(0, np.int64), np.zeros(0, np.bool_))


@dataclass(frozen=True, eq=False)
class Updated:
    """A window after a day, and what the day brought."""

    window: FieldWindow
    newcomers: tuple[str, ...] = ()
    seen: int = 0
    """People observed on the day."""
    tests: int = 0


def window_of(run: FinishedRun, wish: WindowSettings) -> FieldWindow:
    """The state to begin with: the days of a finished run of Falcon Field."""
    if not entry(run.method).stores_state:
        raise SettingsError(
            f"{run.folder}: {run.method} cannot go on day by day; begin from a run of "
            f"{FIELD}"
        )
    place = run.place / PREDICTION
    field = explaining.load_field(place)
    if not field.graph.own_in_sums:
        raise SettingsError(
            f"{run.folder}: was run behind noise (field_privacy.mode), and each day "
            "would be one more release: day by day goes with field_privacy.mode=off"
        )
    settings = run.experiment.field
    # Newcomers have names, so everybody has.
    names = run.traces.names or tuple(map(str, range(run.traces.people)))
    traces = replace(run.traces, names=names)
    held = Messages.load(place / MESSAGES_FOLDER)
    people = field.people(traces, run.tests, held)
    law = store.read(place, PREDICTION).meta["told"]["law"]
    transmission = Transmission(law, settings.region)
    return FieldWindow.of_run(people, run.tests, field, settings, wish, transmission)


def save_state(
    folder: Path, window: FieldWindow, made_by: dict[str, Any], *, again: bool
) -> None:
    """Write the state, whole or not at all; ``again`` replaces the day before."""
    with store.new_directory(folder, overwrite=again) as scratch:
        window.save(scratch, store.Origin.now(made_by, None))


def load_state(folder: Path) -> FieldWindow:
    """Read the state in ``folder``; every byte is checked."""
    if not folder.exists():
        raise DataError(
            f"{folder}: no such state; begin one from a finished run of {FIELD} with "
            "--from RUN"
        )
    return FieldWindow.load(folder)


def begin_state(folder: Path, run: Path, settings: WindowSettings) -> Updated:
    """Create the state of a finished run; nothing is written yet."""
    if folder.exists():
        raise WriteError(
            f"{folder}: exists; leave out --from to go on with it, or begin another"
        )
    return Updated(window_of(FinishedRun.open(run, FIELD), settings))


def take_day(window: FieldWindow, visits: Path, tests: Path | None) -> Updated:
    """The window after the day in the file ``visits``, which must be the next one.

    Who is not known yet is a newcomer. ``tests`` may be of any day so far.
    """
    number, clock = window.last_day + 1, window.traces.clock
    next_day = replace(clock, days=clock.days + 1).last(1)
    day = read_day_visits(visits, next_day, window.traces.regions, number)
    start = clock.start
    if start is not None:
        gone = np.timedelta64(window.first_day - 1, "D")
        start = str(np.datetime64(start) - gone)
    so_far = replace(clock, days=number, start=start)
    told = _NO_TESTS if tests is None else read_day_tests(tests, so_far)
    known = window.traces.names or ()
    place = {name: at for at, name in enumerate(known)}
    for name in (*(day.names or ()), *told.name):
        place.setdefault(name, len(place))
    here = np.full((clock.slots_per_day, len(place)), UNKNOWN, np.int32)
    here[:, [place[name] for name in day.names or ()]] = day.by_slot
    before = (window.first_day - 1) * clock.slots_per_day
    newcomers = tuple(place)[len(known) :]
    after = window.update(
        NewDay(
            here,
            np.array([place[name] for name in told.name], np.int32),
            told.positive,
            (told.slot - before).astype(np.int32),
            newcomers,
        )
    )
    return Updated(after, newcomers, day.people, len(told))


def risks_of(window: FieldWindow) -> Risks:
    """The list of the window's last day, each person's own tests counted.

    Without folds a tested person's risk, own tests aside, is no risk to act upon:
    what the others know has come from these tests, too.
    """
    _, now = window.risks()
    names = window.traces.names
    return Risks(now.ever, window.boundary.status, names, now=now.tested)


def explain_in(
    window: FieldWindow, person: str, *, tests: bool = False
) -> explaining.Explanation:
    """Where the risk of ``person`` comes from, by the days of the window."""
    at = explaining.find_person(window.traces, person)
    own = explaining.one_person(window.traces, window.known, at)
    alone = window.field.people(*own, window.messages.of(at))
    row = slice(at, at + 1)
    boundary = window.boundary
    return explaining.taken_apart(
        alone.with_prior(boundary.prior[row], boundary.aside[row]),
        window.field,
        person,
        tests=tests,
        first_day=window.first_day,
    )
