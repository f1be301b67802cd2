"""Daily update of Falcon Field: append one day after the other to a stored state."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from epifalcon import store
from epifalcon.belief_propagation.saved_state import Messages
from epifalcon.belief_propagation.settings import WindowSettings, current_model
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.read_tests import NamedTests, read_day_tests
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.experiments import explanation
from epifalcon.experiments.risk_table import Risks
from epifalcon.experiments.run_folder import MESSAGES_FOLDER, PREDICTION, FinishedRun
from epifalcon.experiments.simulation import simulated_on_real_people
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.federation.field.sliding_window import KIND, FieldWindow, NewDay
from epifalcon.methods.registry import entry
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.mobility.io.visits import read_day_visits
from epifalcon.types import UNKNOWN

_NO_TESTS = NamedTests((), np.zeros(0, np.int64), np.zeros(0, np.bool_))


@dataclass(frozen=True, eq=False)
class Updated:
    """A window after the update by one day, and the counts of that day."""

    window: FieldWindow
    new_people: tuple[str, ...] = ()
    seen: int = 0
    """People observed on the day."""
    tests: int = 0


def window_of(run: FinishedRun, window_settings: WindowSettings) -> FieldWindow:
    """Return the window over the last days of a finished run of Falcon Field."""
    if not entry(run.method).stores_state:
        raise SettingsError(
            f"{run.folder}: {run.method} does not support daily updates; start from "
            f"a run of {FIELD}"
        )
    folder = run.place / PREDICTION
    field = explanation.load_field(folder)
    if not field.graph.own_in_sums:
        raise SettingsError(
            f"{run.folder}: was run with noise (field_privacy.mode), so each day would "
            "be another release: daily updates need field_privacy.mode=off"
        )
    settings = run.experiment.field
    # New people are identified by name, so everybody needs one.
    names = run.traces.names or tuple(map(str, range(run.traces.people)))
    traces = replace(run.traces, names=names)
    messages = Messages.load(folder / MESSAGES_FOLDER)
    people = field.people(traces, run.tests, messages)
    model = current_model(store.read(folder, PREDICTION).meta["told"]["law"])
    transmission = Transmission(model, settings.region)
    return FieldWindow.of_run(
        people, run.tests, field, settings, window_settings, transmission
    )


def load_state(folder: Path) -> FieldWindow:
    """Load the state in ``folder`` and verify its checksums."""
    if not folder.exists():
        raise DataError(
            f"{folder}: no such state; create one from a finished run of {FIELD} with "
            "--from RUN"
        )
    return FieldWindow.load(folder)


def is_simulated(folder: Path) -> bool:
    """Return True if the run or state in ``folder`` simulates real people."""
    manifest = store.read_manifest(folder)
    if manifest["kind"] == KIND:
        return bool(manifest["settings"].get("simulated_on_real_people"))
    return simulated_on_real_people(folder)


def create_state(folder: Path, run: Path, settings: WindowSettings) -> Updated:
    """Create a state from a finished run, without writing it."""
    if folder.exists():
        raise WriteError(
            f"{folder}: exists; omit --from to continue it, or choose another folder"
        )
    return Updated(window_of(FinishedRun.open(run, FIELD), settings))


def update_window(window: FieldWindow, visits: Path, tests: Path | None) -> Updated:
    """Return the window after the day in ``visits``, which must be the next day.

    Unknown people are added. ``tests`` may be from any day so far.
    """
    number, clock = window.last_day + 1, window.traces.clock
    next_day = replace(clock, days=clock.days + 1).last(1)
    day = read_day_visits(visits, next_day, window.traces.regions, number)
    start = clock.start
    if start is not None:
        dropped = np.timedelta64(window.first_day - 1, "D")
        start = str(np.datetime64(start) - dropped)
    all_days = replace(clock, days=number, start=start)
    results = _NO_TESTS if tests is None else read_day_tests(tests, all_days)
    known = window.traces.names or ()
    index = {name: row for row, name in enumerate(known)}
    for name in (*(day.names or ()), *results.name):
        index.setdefault(name, len(index))
    by_slot = np.full((clock.slots_per_day, len(index)), UNKNOWN, np.int32)
    by_slot[:, [index[name] for name in day.names or ()]] = day.by_slot
    before = (window.first_day - 1) * clock.slots_per_day
    new_people = tuple(index)[len(known) :]
    after = window.update(
        NewDay(
            by_slot,
            np.array([index[name] for name in results.name], np.int32),
            results.positive,
            (results.slot - before).astype(np.int32),
            new_people,
        )
    )
    return Updated(after, new_people, day.people, len(results))


def risks_of(window: FieldWindow) -> Risks:
    """Return the risks on the window's last day, own tests included.

    Without folds, a risk that excludes a tested person's own tests is not out-of-fold:
    the messages of others depend on these tests.
    """
    _, now = window.risks()
    names, coverage = window.traces.names, TraceCoverage.of(window.traces)
    status = window.boundary.status
    return Risks(now.ever, status, names, now=now.tested, coverage=coverage)


def explain_in_window(
    window: FieldWindow, person: str, *, tests: bool = False
) -> explanation.Explanation:
    """Explain the risk of ``person`` by the days of the window."""
    return explanation.explain_person(
        window.field,
        window.messages,
        window.traces,
        window.known,
        explanation.find_person(window.traces, person),
        tests=tests,
        before=window.boundary,
        first_day=window.first_day,
    )
