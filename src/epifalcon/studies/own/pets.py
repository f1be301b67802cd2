"""The tables of the pandemic track of the US-UK PETs Prize as traces and tests.

    data = read_pets("va")
    model = ef.FalconField().fit(data.traces, known_tests(data.traces, data.tests))
    print(ef.evaluate(model.predict_proba(), data.truth).average_precision)

The last number is the AUPRC for "infected in the last 7 days".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from epifalcon.epidemic.ground_truth import GroundTruth, HeldOutLabels
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io.columns import RowFilter, Rule, keep_ids, keep_numbers
from epifalcon.mobility.io.regions import look_up
from epifalcon.mobility.io.tables import need_column, open_table
from epifalcon.mobility.io.visits import MAX_CELLS, STRICT, dominant
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Floats, RegionIds

HELD_OUT_DAYS = 7
_ALSO = {"type": "activity_type", "start": "start_time"}
"""Other names of columns: the population's own files and the prize's differ."""
_DAY, _WEEK = 86_400, 7 * 86_400
_HOME = ("1", "home")
_STATES = ("S", "I", "R")
_MOST_DAYS = 3660


@dataclass(frozen=True, eq=False)
class PetsData:
    """A population of the PETs Prize: traces, dated tests, and the held-out week."""

    traces: Traces
    tests: pl.DataFrame
    """Columns ``person`` (index), ``day``, ``result``, ``kind``, ``reason``, ``onset``.
    Before the held-out week everybody's state is known, so the reason is random."""
    truth: GroundTruth
    """Who is infected in the last 7 days, of the people not infected before."""
    age: Floats
    """Age in years, NaN if not given: (people,)."""


def read_pets(folder: str | Path, *, slot_hours: float = 2.0) -> PetsData:
    """Read the tables in ``folder``: CSV, also gzipped, or Parquet.

    Files are recognised by the end of their names, as in ``va_person.csv.gz``:

    - ``va_person``: pid, hid and optionally age;
    - ``va_household``: hid;
    - ``va_activity_location_assignment``: pid, lid, type, start and duration in seconds
      from the first midnight of a typical day or week, which repeats;
    - ``va_disease_outcome_training``: day (from 0), pid, state (S, I or R).

    Each slot has the place of most time. Time without activity, and activities of type
    home (1), are spent at the home ``hid``. Of consecutive days in a state, the tests
    are the first and the last: PCR for S (negative) and I (positive), serology for R;
    the first day of S, which shows nothing more, is left out.
    """
    folder = Path(folder)
    people, homes = _people(folder)
    names = people["pid_text"]
    state = _states(folder, names)
    days = int(state["day"].max()) + 1  # type: ignore[arg-type]
    if days <= HELD_OUT_DAYS:
        raise DataError(
            f"{_file(folder, 'disease_outcome_training')}: {days} days, expected more "
            f"than the {HELD_OUT_DAYS} that are held out"
        )
    clock = Clock(slot_hours, days)
    if len(names) * clock.slots > MAX_CELLS:
        raise DataError(
            f"{folder}: {len(names):,} people x {clock.slots:,} slots are more than "
            f"{MAX_CELLS:,} cells: choose longer slots (slot_hours)"
        )
    pattern, places = _pattern(folder, people, homes, clock)
    by_slot = np.resize(pattern, (clock.slots, len(names)))
    centre = np.full((len(places), 2), np.nan)
    regions = Regions("poi", centre, names=tuple(places.to_list()))
    traces = Traces(by_slot, clock, regions, tuple(names.to_list()))
    cutoff = days - 1 - HELD_OUT_DAYS
    before = state.filter(pl.col("day") <= cutoff)
    age = people["age_value"].to_numpy().copy()
    return PetsData(traces, _tests(before), _truth(state, cutoff, len(names)), age)


def _file(folder: Path, ending: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    paths = sorted(folder.iterdir())
    found = [path for path in paths if path.name.split(".")[0].endswith(ending)]
    if len(found) != 1:
        names = ", ".join(path.name for path in found or paths) or "nothing"
        raise DataError(
            f"{folder}: expected one file like va_{ending}.csv, found {names}"
        )
    return found[0]


def _batches(
    folder: Path,
    ending: str,
    ids: tuple[str, ...],
    numbers: Mapping[str, float] | None = None,
) -> Iterator[tuple[RowFilter, pl.DataFrame]]:
    """Yield checked rows with ``{id}_text`` and ``{number}_value``.

    ``numbers`` has the limit of each column; ``age`` may be missing. A row that the
    caller rejects raises ``DataError``.
    """
    path, numbers = _file(folder, ending), numbers or {}
    table = open_table(path)
    wanted = {}
    for ours in (*ids, *numbers):
        other = _ALSO.get(ours, ours)
        if ours != "age" or ours in table.names:
            name = other if other in table.names else ours
            wanted[ours] = need_column(table, ours, {ours: name})
    rows = RowFilter(path, wanted, STRICT)
    for batch in rows.batches(table):
        frame = batch.frame
        for name in ids:
            frame = keep_ids(rows, frame, name)
        for name in numbers:
            if name in wanted:
                frame = keep_numbers(rows, frame, name, numbers[name])
                below = Rule("negative", name, "0 or more", pl.col(f"{name}_value") < 0)
                frame = rows.keep(frame, below)
        yield rows, frame
    rows.finish()


def _people(folder: Path) -> tuple[pl.DataFrame, pl.Series]:
    """Return the people (pid_text, age_value, home from 0) and the names of homes."""
    table = _file(folder, "household").name
    parts = [frame for _, frame in _batches(folder, "household", ("hid",))]
    homes = pl.concat(parts)["hid_text"].unique(maintain_order=True)
    parts = []
    for rows, frame in _batches(folder, "person", ("pid", "hid"), {"age": 150}):
        frame = frame.with_columns(home=look_up(frame["hid_text"], homes))
        expected = f"one of the {len(homes)} hid of {table}"
        unknown = pl.col("home").is_null()
        parts.append(rows.keep(frame, Rule("unknown hid", "hid", expected, unknown)))
    people = pl.concat(parts)
    _require_unique(_file(folder, "person"), people, "pid_text")
    if "age_value" not in people.columns:
        people = people.with_columns(age_value=pl.lit(float("nan")))
    return people.select("pid_text", "age_value", "home"), homes


def _require_unique(path: Path, frame: pl.DataFrame, *columns: str) -> None:
    twice = frame.filter(pl.struct(columns).is_duplicated())
    if len(twice):
        rows = " and ".join(str(row) for row in twice.sort(*columns)["row"][:2])
        names = " and ".join(column.split("_")[0] for column in columns)
        raise DataError(f"{path}: rows {rows} have the same {names}, expected one row")


def _keep_people(
    rows: RowFilter, frame: pl.DataFrame, names: pl.Series
) -> pl.DataFrame:
    frame = frame.with_columns(person=look_up(frame["pid_text"], names))
    expected = f"one of the {len(names)} pid of the person table"
    return rows.keep(
        frame, Rule("unknown pid", "pid", expected, pl.col("person").is_null())
    )


def _states(folder: Path, names: pl.Series) -> pl.DataFrame:
    """Return person, day and state, sorted; one row per person and day."""
    ending, parts = "disease_outcome_training", []
    for rows, frame in _batches(folder, ending, ("pid", "state"), {"day": _MOST_DAYS}):
        day = pl.col("day_value")
        frame = rows.keep(
            _keep_people(rows, frame, names),
            Rule("not a whole day", "day", "a whole number", day != day.floor()),
            Rule(
                "unknown state",
                "state",
                "S, I or R",
                ~pl.col("state_text").is_in(_STATES),
            ),
        )
        day = day.cast(pl.Int64)
        parts.append(frame.select("row", "person", day=day, state="state_text"))
    state = pl.concat(parts).sort("person", "day")
    _require_unique(_file(folder, ending), state, "person", "day")
    return state


def _pattern(
    folder: Path, people: pl.DataFrame, homes: pl.Series, clock: Clock
) -> tuple[RegionIds, pl.Series]:
    """Return the region of each person in a typical day or week, and region names."""
    home = people.select("home").with_row_index("person")
    home = home.with_columns(pl.col("person").cast(pl.Int64))
    ending, parts = "activity_location_assignment", []
    numbers = {"start": float(_WEEK), "duration": float(_WEEK)}
    for rows, frame in _batches(folder, ending, ("pid", "lid", "type"), numbers):
        parts.append(_keep_people(rows, frame, people["pid_text"]))
    stays = pl.concat(parts)
    at_home = pl.col("type_text").str.to_lowercase().is_in(_HOME)
    lids = stays.filter(~at_home)["lid_text"].unique(maintain_order=True)
    stays = stays.with_columns(lid_at=look_up(stays["lid_text"], lids) + len(homes))
    stays = stays.join(home, on="person")
    stays = stays.with_columns(
        region=pl.when(at_home).then("home").otherwise("lid_at"),
        end=pl.col("start_value") + pl.col("duration_value"),
    )
    period = _DAY if float(stays["start_value"].max()) < _DAY else _WEEK  # type: ignore[arg-type]
    seconds = clock.slot_minutes * 60
    first = (pl.col("start_value") // seconds).cast(pl.Int64)
    last = (pl.col("end") / seconds).ceil().cast(pl.Int64)
    pieces = stays.with_columns(slot=pl.int_ranges(first, last)).explode("slot")
    begin = pl.col("slot") * seconds
    spent = pl.min_horizontal("end", begin + seconds)
    spent -= pl.max_horizontal("start_value", begin)
    pieces = pieces.drop_nulls("slot").select(
        "person",
        slot=pl.col("slot") % (period // seconds),
        region="region",
        weight=spent,
        first=pl.max_horizontal("start_value", begin) % period,
    )
    # The rest of a slot is spent at home.
    rest = pieces.group_by("person", "slot").agg(
        weight=seconds - pl.sum("weight"), first=pl.max("first")
    )
    rest = rest.filter(pl.col("weight") > 0).join(home, on="person")
    rest = rest.rename({"home": "region"}).select(pieces.columns)
    seen = pl.concat([pieces, rest])
    total = seen.group_by("person", "slot", "region")
    seen = total.agg(pl.sum("weight"), pl.min("first"))
    pattern = dominant(seen, period // seconds, len(people))
    pattern = np.where(pattern == UNKNOWN, people["home"].to_numpy(), pattern)
    return pattern.astype(np.int32), pl.concat(["home-" + homes, "place-" + lids])


def _tests(state: pl.DataFrame) -> pl.DataFrame:
    """Return the first and last day of each run of equal states as tests."""
    run = ("person", "state")
    changed = pl.struct(run) != pl.struct(run).shift(1)
    state = state.with_columns(begins=changed.fill_null(True))
    ends = pl.col("begins").shift(-1).fill_null(True)
    infected = pl.col("state") != "S"
    return state.filter(ends | (pl.col("begins") & infected)).select(
        "person",
        "day",
        result=infected,
        kind=pl.when(pl.col("state") == "R")
        .then(pl.lit("serology"))
        .otherwise(pl.lit("pcr")),
        reason=pl.lit("random"),
        onset=pl.lit(None, pl.Int64),
    )


def _truth(state: pl.DataFrame, cutoff: int, people: int) -> GroundTruth:
    infected = state.filter(pl.col("state") != "S")
    first = np.full(people, np.iinfo(np.int64).max)
    np.minimum.at(first, infected["person"].to_numpy(), infected["day"].to_numpy())
    person = np.flatnonzero(first > cutoff).astype(np.int32)
    newly = first[person] < np.iinfo(np.int64).max
    return GroundTruth(HeldOutLabels(person, newly))
