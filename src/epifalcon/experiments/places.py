"""Regions and times ranked by the expected number of infections.

Computed from the stored messages of a Falcon Field run, or of a state of daily updates,
in blocks of people.
"""

from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import polars as pl

from epifalcon import store
from epifalcon.belief_propagation.saved_state import Messages, SavedField
from epifalcon.checks import one_of, whole
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import SettingsError, WriteError
from epifalcon.experiments.explanation import clock_hours, load_state
from epifalcon.experiments.run_folder import PREDICTION, FinishedRun
from epifalcon.federation.field.sliding_window import Boundary, FieldWindow
from epifalcon.methods.registry import entry
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.reports.tables import Table, write_csv
from epifalcon.types import Floats, Probabilities

By = Literal["place", "place-day"]
TOP = 20
CAUTION = (
    "A place that few people visit identifies them: the list is for those who may see "
    "the traces."
)
_BLOCK = 2_000_000
"""Maximum number of (person, slot) pairs in memory at a time."""
_MOST = 0.8
"""Share of the infections of a place and day within the hours that are listed."""
_LEAST_SHOWN = 0.005
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class PlaceInfections:
    """Expected infections by slot and region, given all test results."""

    by_slot: Floats
    """Expected infections, (slots, 1 + regions); column 0: while not observed."""
    before: float
    """Expected number of people infected before the first slot."""
    traces: Traces
    first_day: int = field(default=1, kw_only=True)
    """Number of the first day of ``traces``."""
    simulated_on_real_people: bool = field(default=False, kw_only=True)

    @property
    def by_day(self) -> Floats:
        """Expected infections on each day, also while not observed, (days,)."""
        return np.asarray(
            self.by_slot.sum(axis=1).reshape(self.traces.clock.days, -1).sum(axis=1)
        )

    @property
    def total(self) -> float:
        """Expected number of infections on all days."""
        return float(self.by_slot.sum())

    @property
    def unobserved(self) -> float:
        """Expected infections in slots in which the person was not observed."""
        return float(self.by_slot[:, 0].sum())

    def table(self, top: int = TOP, by: By = "place") -> pl.DataFrame:
        """Return the ``top`` places, or places and days, with the most infections.

        Columns: ``place``; ``day`` (its number), ``date`` and ``weekday`` (null if
        the first day has no date): of this row, or the day with most infections;
        ``hours``: the shortest period of that day with 80 % of them;
        ``expected_infections``; ``share`` of all infections; ``people`` who visited the
        place (on that day). Places without infections are left out.
        """
        one_of(get_args(By), by=by)
        whole(1, top=top)
        clock, regions = self.traces.clock, len(self.traces.regions)
        by_day = np.add.reduceat(
            self.by_slot[:, 1:], np.arange(0, clock.slots, clock.slots_per_day), axis=0
        )
        ranked = by_day.sum(axis=0) if by == "place" else by_day.ravel()
        # The highest first; equal ones in their order.
        order = np.argsort(-ranked, kind="stable")[:top]
        rows = []
        for cell in order[ranked[order] > 0].tolist():
            region = cell if by == "place" else cell % regions
            day = int(np.argmax(by_day[:, cell])) if by == "place" else cell // regions
            slots = clock.slots_of_day(day)
            visited = slice(None) if by == "place" else slots
            when = date_of(clock, day)
            rows.append(
                {
                    "place": self.traces.regions.title(region),
                    "day": day + self.first_day,
                    "date": None if when is None else when.isoformat(),
                    "weekday": None if when is None else f"{when:%A}",
                    "hours": _hours(clock, self.by_slot[slots, 1 + region]),
                    "expected_infections": float(ranked[cell]),
                    "share": float(ranked[cell]) / max(self.total, _TINY),
                    "people": _visitors(self.traces, region, visited),
                }
            )
        return pl.DataFrame(rows, schema=_COLUMNS)

    def write(
        self, path: Path, table: pl.DataFrame, *, overwrite: bool = False
    ) -> None:
        """Write a table as CSV, atomically."""
        require_csv(path, overwrite=overwrite)
        mark = {}
        if self.simulated_on_real_people:
            mark = {"simulated_on_real_people": "true"}
        rows = [[*row, *mark.values()] for row in table.iter_rows()]
        with store.parents_of(path), store.writing(path):
            write_csv(path, [*table.columns, *mark], rows)


_COLUMNS = pl.Schema(
    {
        "place": pl.String(),
        "day": pl.Int64(),
        "date": pl.String(),
        "weekday": pl.String(),
        "hours": pl.String(),
        "expected_infections": pl.Float64(),
        "share": pl.Float64(),
        "people": pl.Int64(),
    }
)


def place_infections(
    saved: SavedField,
    messages: Messages | None,
    traces: Traces,
    known: TestResults,
    risk: Probabilities,
    progress: Progress = silent,
    *,
    before: Boundary | None = None,
    first_day: int = 1,
) -> PlaceInfections:
    """Compute the expected infections at every region and slot.

    ``risk``, (people,), is the predicted risk, perhaps recalibrated. The infections of
    an untested person add up to it; those of a tested person to the risk given the own
    tests. ``before`` are the states before day ``first_day``, if the traces start
    there.
    """
    slots, people = traces.by_slot.shape
    total = np.zeros((slots, 1 + len(traces.regions)))
    earlier, size = 0.0, max(1, _BLOCK // slots)
    received, tested = saved.messages(), known.tested
    for first in range(0, people, size):
        progress("places", first, people)
        end = min(first + size, people)
        block = slice(first, end)
        part = Traces(
            np.ascontiguousarray(traces.by_slot[:, block]), traces.clock, traces.regions
        )
        own = None
        if messages is not None:
            own = messages.each(lambda array, at=block: array[:, at].copy())  # type: ignore[misc]
        cohort = saved.people(part, known.of_range(first, end), own)
        if before is not None:
            prior = before.prior[block], before.without_tests[block]
            cohort = cohort.with_prior(*prior)
        found = cohort.infections(received, with_tests=True)
        weight = np.where(
            tested[block], 1.0, risk[block] / np.maximum(found.risk, _TINY)
        )
        earlier += float(found.before @ weight)
        for slot, (here, infected) in enumerate(
            zip(part.by_slot, found.in_slot * weight, strict=True)
        ):
            total[slot] += np.bincount(here + 1, infected, total.shape[1])
    progress("places", people, people)
    return PlaceInfections(total, earlier, traces, first_day=first_day)


def places_of_run(run: FinishedRun, progress: Progress = silent) -> PlaceInfections:
    """Compute the expected infections at every place of a finished run."""
    if not entry(run.method).stores_state:
        raise SettingsError(
            f"{run.folder}: {run.method} has no infections by place; only falcon-field "
            "has: choose it with --method, or run it"
        )
    state = load_state(run.place / PREDICTION)
    risk = run.risks().probability
    found = place_infections(*state, run.traces, run.tests, risk, progress)
    return replace(found, simulated_on_real_people=run.simulated_on_real_people)


def places_of_window(
    window: FieldWindow, progress: Progress = silent
) -> PlaceInfections:
    """Compute the expected infections at every place on the days of a window.

    They add up to the risks of the state, own tests included.
    """
    return place_infections(
        window.field,
        window.messages,
        window.traces,
        window.known,
        window.risks()[1].ever,
        progress,
        before=window.boundary,
        first_day=window.first_day,
    )


def summary_sentence(found: PlaceInfections) -> str:
    """State the expected number of infections and how many have no place."""
    unobserved = found.unobserved / max(found.total, _TINY)
    clock, first = found.traces.clock, "the first day"
    if found.first_day > 1:
        first = clock.title(0, found.first_day)
    return (
        f"Expected infections: {found.total:,.1f} on {clock.days} days, "
        f"{unobserved:.0%} of them while the person was not observed, and "
        f"{found.before:,.1f} before {first}."
    )


def shown_table(table: pl.DataFrame, by: By = "place") -> Table:
    """Format the rows of ``PlaceInfections.table``."""
    rows = []
    for row in table.iter_rows(named=True):
        if row["expected_infections"] < _LEAST_SHOWN:
            continue
        day = str(row["day"])
        if row["date"] is not None:
            day = f"{row['date']} {row['weekday'][:3]}"
        numbers = [f"{row['expected_infections']:,.2f}", f"{row['share']:.1%}"]
        people = f"{row['people']:,}"
        rows.append([row["place"], *numbers, people, day, row["hours"]])
    columns = ["place", "expected infections", "share", "people"]
    columns += ["day", "hours"] if by == "place-day" else ["most on", "hours"]
    caption = "Places with the most expected infections"
    return Table(caption + (", by day" if by == "place-day" else ""), columns, rows)


def require_csv(path: Path, *, overwrite: bool = False) -> None:
    """Raise, before any work is done, if a table cannot be written to ``path``."""
    if path.suffix.lower() != ".csv":
        raise SettingsError(f"{path}: must end in .csv")
    store.refuse_shareable(path)
    if path.is_dir():
        raise WriteError(f"{path}: is a folder, expected a file to write")
    if path.exists() and not overwrite:
        raise WriteError(f"{path}: exists; choose another file or add --overwrite")


def date_of(clock: Clock, day: int) -> date | None:
    """Return the date of a day, from 0; None if the first day has no date."""
    if clock.start is None:
        return None
    return date.fromisoformat(clock.start) + timedelta(days=day)


def _hours(clock: Clock, infections: Floats) -> str:
    """Return the shortest period of a day, (slots per day,), with most infections."""
    sums = np.concatenate([[0.0], np.cumsum(infections)])
    least = _MOST * sums[-1]
    # For each first slot, the first end at which the period has enough.
    ends = np.searchsorted(sums, sums[:-1] + least * (1 - 1e-9))
    begins = np.arange(len(infections))
    length = np.where(ends <= len(infections), ends - begins, len(sums))
    first = int(np.argmin(length))
    slot = clock.slot_minutes / 60
    return clock_hours(first * slot, int(ends[first]) * slot)


def _visitors(traces: Traces, region: int, slots: slice) -> int:
    """Count the people who were in ``region`` in any of ``slots``."""
    visited = np.zeros(traces.people, np.bool_)
    for here in traces.by_slot[slots]:
        visited |= here == region
    return int(visited.sum())
