"""Read test results from a file: person, time or day, result."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.epidemic.test_kinds import EVER, KINDS, TestKind
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io.columns import (
    RowCount,
    RowFilter,
    Rule,
    keep_ids,
    keep_times,
)
from epifalcon.mobility.io.regions import look_up
from epifalcon.mobility.io.settings import ReadSettings
from epifalcon.mobility.io.tables import find_column, need_column, open_table, renamed
from epifalcon.mobility.io.visits import STRICT, keep_slots
from epifalcon.mobility.traces import Traces
from epifalcon.types import Mask

_OUTSIDE_DAYS = "outside the days of the traces"
_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Null, pl.Boolean)
_POSITIVE = ("positive", "pos", "1", "true", "+", "1.0")
_NEGATIVE = ("negative", "neg", "0", "false", "-", "0.0")


def read_results(
    path: Path,
    traces: Traces,
    settings: ReadSettings | None = None,
    kind: TestKind = EVER,
) -> tuple[TestResults, RowCount]:
    """Read the tests in a CSV or Parquet file.

    A row is rejected if its person is not in the traces, its time is not within
    their days, its result is neither positive nor negative, or its kind, if there is a
    column for it, is unknown; an empty cell and a missing column stand for ``kind``.
    Rows with equal person, slot, kind and result are one test. If the traces have no
    names, people are identified by their number from 0. A date without a time of day
    counts for the first slot of that day.
    """
    settings, clock = settings or ReadSettings(), traces.clock
    table = open_table(path, settings.delimiter)
    if clock.start is None:
        raise SettingsError(
            f"{path}: test results need the date of the traces' first day: set start"
        )
    columns = ("person", "time", "result")
    chosen = renamed(settings.columns, (*columns, "kind"))
    wanted = {ours: need_column(table, ours, chosen) for ours in columns}
    if (column := find_column(table, "kind", chosen)) is not None:
        wanted["kind"] = column
    rows = RowFilter(path, wanted, settings, (_OUTSIDE_DAYS,))
    names = pl.Series(traces.names or map(str, range(traces.people)), dtype=pl.String)
    slot = pl.col("time_local") // (clock.slot_minutes * 60_000_000) - clock.epoch_slot
    days = f"{clock.days} days from {clock.start}"
    people = f"one of the {len(names)} people of the traces"
    parts = []
    for batch in rows.batches(table):
        frame = keep_ids(rows, batch.frame, "person")
        frame = frame.with_columns(at=look_up(frame["person_text"], names))
        unknown = pl.col("at").is_null()
        stranger = Rule("person is not in the traces", "person", people, unknown)
        frame = rows.keep(frame, stranger)
        frame = keep_times(rows, frame, "time", clock.timezone, settings.epoch_unit)
        frame = frame.with_columns(slot=slot)
        outside = ~pl.col("slot").is_between(0, clock.slots - 1)
        frame = rows.keep(frame, Rule(_OUTSIDE_DAYS, "time", days, outside))
        frame = _keep_kinds(rows, _keep_results(rows, frame))
        parts.append(frame.select("at", "positive", "slot", "kind"))
    count = rows.finish()
    found = pl.concat(parts).unique(maintain_order=True)
    kinds = {"": kind, **KINDS}
    used = [name for name in kinds if name in set(found["kind"])] or [""]
    numbers = found["kind"].replace_strict(used, range(len(used)), return_dtype=pl.Int8)
    known = TestResults.from_tests(
        traces.people,
        found["at"].to_numpy(),
        found["positive"].to_numpy(),
        found["slot"].to_numpy(),
        traces.names_sha256,
        numbers.to_numpy(),
        tuple(kinds[name] for name in used),
    )
    return known, count


@dataclass(frozen=True, eq=False)
class NamedTests:
    """Tests by name of the person, one entry for each test."""

    name: tuple[str, ...]
    slot: NDArray[np.int64]
    positive: Mask

    def __len__(self) -> int:
        return len(self.name)


def read_day_tests(path: Path, clock: Clock) -> NamedTests:
    """Read tests (person, day, hour, result) on ``clock`` from a CSV or Parquet file.

    Without a column ``hour`` a test counts for the first slot of its day. Raises
    ``DataError`` for an invalid row, with its number, the column and the expected
    value. A file with only a header has no tests.
    """
    table = open_table(path)
    columns = ("person", "day", "result")
    wanted = {ours: need_column(table, ours, {}) for ours in columns}
    if (hour := find_column(table, "hour", {})) is not None:
        wanted["hour"] = hour
    rows = RowFilter(path, wanted, STRICT)
    schema = {"person_text": pl.String, "slot": pl.Int64, "positive": pl.Boolean}
    found = pl.DataFrame(schema=schema)
    for batch in rows.batches(table):
        frame = _keep_results(rows, keep_slots(rows, batch.frame, clock))
        found = pl.concat([found, frame.select(*schema)])
    return NamedTests(
        tuple(found["person_text"].to_list()),
        found["slot"].to_numpy(),
        found["positive"].to_numpy(),
    )


def _keep_kinds(rows: RowFilter, frame: pl.DataFrame) -> pl.DataFrame:
    """Reject rows of an unknown kind; without a column ``kind`` it is empty."""
    if "kind" not in rows.columns:
        return frame.with_columns(kind=pl.lit(""))
    text = pl.col("kind").cast(pl.String, strict=False).fill_null("")
    frame = frame.with_columns(kind=text.str.strip_chars().str.to_lowercase())
    odd = ~pl.col("kind").is_in(["", *KINDS])
    expected = f"empty or one of {', '.join(KINDS)}"
    return rows.keep(frame, Rule("unknown kind of test", "kind", expected, odd))


def _keep_results(rows: RowFilter, frame: pl.DataFrame) -> pl.DataFrame:
    """Add a column ``positive``; reject rows with neither positive nor negative."""
    kind = frame["result"].dtype
    if not (isinstance(kind, _TEXT) or kind.is_numeric()):
        raise DataError(
            f"{rows.path}: column {rows.columns['result']!r} holds {kind}, "
            "expected positive or negative"
        )
    text = pl.col("result").cast(pl.String, strict=False)
    text = text.str.strip_chars().str.to_lowercase()
    odd = ~text.is_in([*_POSITIVE, *_NEGATIVE]).fill_null(False)
    expected = "positive or negative, pos or neg, 1 or 0, true or false, + or -"
    rule = Rule("result is neither positive nor negative", "result", expected, odd)
    return rows.keep(frame.with_columns(positive=text.is_in(_POSITIVE)), rule)
