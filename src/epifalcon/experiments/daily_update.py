"""Daily update of Falcon Field: append one day after the other to a stored state."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from epifalcon import store
from epifalcon.belief_propagation.saved_state import Messages
from epifalcon.belief_propagation.settings import WindowSettings, current_model
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.risk_table import Risks
from epifalcon.epidemic.test_kinds import IGNORABLE
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.experiments import explanation
from epifalcon.experiments.import_format import ImportFormat, notes_on_visits
from epifalcon.experiments.places import PlaceInfections, places_of_window
from epifalcon.experiments.run_folder import MESSAGES_FOLDER, PREDICTION, FinishedRun
from epifalcon.experiments.simulation import simulated_on_real_people
from epifalcon.federation.field.settings import METHOD as FIELD
from epifalcon.federation.field.sliding_window import KIND, FieldWindow, NewDay
from epifalcon.methods.registry import entry
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.mobility.io.visits import MoreVisits, fill_gaps
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN


@dataclass(frozen=True, eq=False)
class Updated:
    """A window after the update by one day, and the counts of that day."""

    window: FieldWindow
    new_people: tuple[str, ...] = ()
    seen: int = 0
    """People observed on the day."""
    tests: int = 0
    day: int = 0
    """Number of the day; 0 if none was added."""
    notes: tuple[str, ...] = ()
    """Sentences on rows and slots that are not used."""


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


def is_state(folder: Path) -> bool:
    """Return True if ``folder`` holds a state, not a run."""
    return bool(store.read_manifest(folder)["kind"] == KIND)


def refuse_method(folder: Path, method: str | None) -> None:
    """Raise ``SettingsError`` if a method of the state in ``folder`` is selected."""
    if method is not None:
        raise SettingsError(
            f"{folder}: is a falcon-field state; --method applies only to runs"
        )


def places_of_state(folder: Path, progress: Progress = silent) -> PlaceInfections:
    """Compute the expected infections at every place on the days of a state."""
    found = places_of_window(load_state(folder), progress)
    return replace(found, simulated_on_real_people=is_simulated(folder))


def is_simulated(folder: Path) -> bool:
    """Return True if the run or state in ``folder`` simulates real people."""
    manifest = store.read_manifest(folder)
    if manifest["kind"] == KIND:
        return bool(manifest["settings"].get("simulated_on_real_people"))
    return simulated_on_real_people(folder)


def format_of(folder: Path) -> ImportFormat:
    """Return the format of the files that the run or state in ``folder`` takes."""
    manifest = store.read_manifest(folder)
    if manifest["kind"] == KIND:
        return ImportFormat.from_plain(manifest["settings"])
    return ImportFormat.of_city(folder)


def create_state(folder: Path, run: Path, settings: WindowSettings) -> Updated:
    """Create a state from a finished run, without writing it."""
    if folder.exists():
        raise WriteError(
            f"{folder}: exists; omit --from to continue it, or choose another folder"
        )
    finished = FinishedRun.open(run, FIELD)
    because = finished.known.because(finished.experiment.labels.tested_because)
    notes: tuple[str, ...] = ()
    if because not in IGNORABLE:
        note = (
            f"{run}: took being tested or not as evidence (tested because: {because}); "
            "updates do not, so risks of untested people can be higher than in its list"
        )
        notes = (note,)
    return Updated(window_of(finished, settings), notes=notes)


def update_window(
    window: FieldWindow, visits: Path, tests: Path | None, files: ImportFormat
) -> Updated:
    """Return the window after the day in ``visits``, which must be the next day.

    That is the day after the last visit; the window contains it already if there were
    later tests. Unknown people are added. ``tests`` may be from any day so far.
    """
    clock, known = window.traces.clock, tuple(window.traces.names or ())
    at = window.traces.observed_days
    number, first_slot = window.first_day + at, at * clock.slots_per_day
    day = replace(clock, days=clock.days + 1).last(clock.days + 1 - at)
    day = replace(day, days=1)
    more = files.read_visits(visits, day, window.traces.regions, number)
    _require_day(visits, more)
    all_days = replace(clock, days=max(number, window.last_day), start=_start(window))
    kind = window.known.kinds[0]
    found = None if tests is None else files.read_tests(tests, all_days, kind)
    index = {name: row for row, name in enumerate(known)}
    for name in (*(more.traces.names or ()), *(found.names if found else ())):
        index.setdefault(name, len(index))
    # Earlier slots, too: gaps that end on the day, and the slot before them.
    gap = files.gap_slots
    before = min(gap + 1, first_slot)
    here = np.full((before + day.slots, len(index)), UNKNOWN, np.int32)
    here[:before, : len(known)] = window.traces.by_slot[
        first_slot - before : first_slot
    ]
    row = [index[name] for name in more.traces.names or ()]
    here[before:, row] = more.traces.by_slot
    fill_gaps(here, gap)
    results = window.known.select(np.zeros(len(window.known.person), np.bool_))
    notes = notes_on_visits(visits, more)
    if tests is not None and found is not None:
        among = np.array([index[name] for name in found.names], np.int32)
        since = (window.first_day - 1) * clock.slots_per_day
        results = found.tests.renumbered(among, len(index)).since(since)
        notes += files.notes_on_tests(tests, found)
    new_people = tuple(index)[len(known) :]
    return Updated(
        window.update(NewDay(here, results, new_people, first_slot - before)),
        new_people,
        seen=int((more.traces.by_slot != UNKNOWN).any(axis=0).sum()),
        tests=len(results.person),
        day=number,
        notes=notes,
    )


def _start(window: FieldWindow) -> str | None:
    """Return the date of day 1."""
    clock = window.traces.clock
    return None if clock.start is None else clock.date(1 - window.first_day)


def _require_day(path: Path, more: MoreVisits) -> None:
    """Raise ``DataError`` if most visits are of later days."""
    clock = more.traces.clock
    later = {at: rows for at, rows in more.other_days.items() if at > clock.date(0)}
    if sum(later.values()) > int((more.traces.by_slot != UNKNOWN).sum()):
        raise DataError(
            f"{path}: expected visits of {clock.date(0)}, but most are later, such as "
            f"on {max(later, key=later.__getitem__)}: add one day after the other"
        )


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
