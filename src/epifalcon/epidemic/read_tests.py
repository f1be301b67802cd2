"""Read test results from a file: person, time or day, result, kind, reason, onset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from epifalcon.epidemic.test_kinds import EVER, KINDS, REASONS, TestKind
from epifalcon.epidemic.test_results import NOT_GIVEN, TestResults
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
from epifalcon.mobility.io.tables import (
    InputTable,
    find_column,
    need_column,
    open_table,
    renamed,
)
from epifalcon.mobility.io.visits import STRICT, keep_slots
from epifalcon.mobility.traces import Traces

_OUTSIDE_DAYS = "outside the days of the traces"
_COLUMNS = ("person", "time", "result")
_OPTIONAL = ("kind", "reason", "onset")
_SCHEMA = {
    "person_text": pl.String,
    "positive": pl.Boolean,
    "slot": pl.Int64,
    "kind": pl.String,
    "reason": pl.Int8,
    "onset": pl.Int64,
}
_NO_ROWS = RowCount(0, 0, {}, ())
_NO_ONSET = -(2**31)
_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Null, pl.Boolean)
_POSITIVE = ("positive", "pos", "1", "true", "+", "1.0", "positiv", "detected")
_NEGATIVE = ("negative", "neg", "0", "false", "-", "0.0", "negativ", "not detected")


@dataclass(frozen=True, eq=False)
class ImportedTests:
    """Tests imported from a file, and counts of its rows."""

    tests: TestResults
    rows: RowCount
    names: tuple[str, ...]
    """Names of the people, in the order of their numbers in ``tests``."""
    early_onsets: int = 0
    """Number of tests with symptoms since before the first day of the traces."""
    later_tests: int = 0
    """Number of tests after the last day of the traces."""
    later_days: int = 0
    """Number of days to add to the traces, so that their days contain all tests."""
    without_kind: int = 0
    """Number of tests for which the file gives no kind."""

    def kind_warning(self, option: str) -> str:
        """Return the warning that tests of no kind count as ideal; may be empty."""
        if not self.without_kind:
            return ""
        some = f"{self.without_kind:,} tests have"
        if self.without_kind == 1:
            some = "1 test has"
        return (
            f"{some} no kind: a positive result is taken as proof of an infection at "
            "any time before it, a negative one as proof of none. Name the kind with "
            f"{option}: pcr, antigen, serology, clinical, a TOML file, or ever if this "
            "is right"
        )

    def as_plain(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        tests = self.tests
        reasons = ("not given", *REASONS)
        return {
            **self.rows.as_plain(),
            "positive": int(tests.positive.sum()),
            "people": int(tests.tested.sum()),
            "kinds": {
                each.name: int((tests.kind == number).sum())
                for number, each in enumerate(tests.kinds)
            },
            "reasons": {
                name: count
                for number, name in enumerate(reasons, NOT_GIVEN)
                if (count := int((tests.reason == number).sum()))
            },
            "onsets": int((tests.onset >= 0).sum()),
            "onsets_before_first_day": self.early_onsets,
            "after_last_day": self.later_tests,
            "days_added": self.later_days,
            "without_kind": self.without_kind,
            "duplicates": self.rows.accepted - len(tests.person),
        }


def read_results(
    path: Path,
    traces: Traces,
    settings: ReadSettings | None = None,
    kind: TestKind = EVER,
    most_later_days: int = 0,
) -> ImportedTests:
    """Read the tests of the people of ``traces`` in a CSV or Parquet file.

    A row is rejected if its person is not in the traces, its time is not within their
    days or at most ``most_later_days`` days after them, its result is neither positive
    nor negative, its kind or reason, if there is a column for it, is unknown, or its
    onset of symptoms is after the test. An empty kind and a missing column stand for
    ``kind``. An onset before the first day of the traces counts for their first slot.
    Rows with equal person, slot, kind and result are one test. If the traces have no
    names, people are identified by their number from 0. A date without a time of day
    counts for the first slot of that day.
    """
    settings = settings or ReadSettings()
    table = open_table(path, settings.delimiter)
    names = traces.names or tuple(map(str, range(traces.people)))
    later = most_later_days
    found = _read_dated(table, traces.clock, settings, kind, names, later)
    tests = replace(found.tests, names_sha256=traces.names_sha256)
    return replace(found, tests=tests)


def read_more_tests(
    path: Path, clock: Clock, settings: ReadSettings | None, kind: TestKind
) -> ImportedTests:
    """Read tests of any people, in the columns of an import or by number of the day.

    A file with the columns person, day and result, and optionally hour, is read on
    ``clock`` and may have no invalid row; any other file as by ``read_results``.
    Without ``settings``, the city was not imported and has only numbers of days.
    """
    table = open_table(path, settings.delimiter if settings else "auto")
    if settings is not None and find_column(table, "hour", {}) is None:
        chosen = renamed(settings.columns, (*_COLUMNS, *_OPTIONAL))
        if find_column(table, "time", chosen) is not None:
            return _read_dated(table, clock, settings, kind)
    return _read_numbered(table, clock, kind)


def _read_dated(
    table: InputTable,
    clock: Clock,
    settings: ReadSettings,
    kind: TestKind,
    names: Sequence[str] | None = None,
    most_later_days: int = 0,
) -> ImportedTests:
    """Read tests with dates; people must be among ``names``, if given."""
    if clock.start is None:
        raise SettingsError(
            f"{table.path}: test results need the date of the traces' first day: set "
            "start"
        )
    chosen = renamed(settings.columns, (*_COLUMNS, *_OPTIONAL))
    wanted = {ours: need_column(table, ours, chosen) for ours in _COLUMNS}
    wanted |= _optional_columns(table, chosen)
    rows = RowFilter(table.path, wanted, settings, (_OUTSIDE_DAYS,))
    listed = pl.Series(names or (), dtype=pl.String)
    people = f"one of the {len(listed)} people of the traces"
    absent = ~pl.col("person_text").is_in(listed.implode())
    stranger = Rule("person is not in the traces", "person", people, absent)
    days = f"{clock.days} days from {clock.start}"
    if most_later_days:
        days += f", or at most {most_later_days} days after them"
    last_slot = clock.slots - 1 + most_later_days * clock.slots_per_day
    outside = ~pl.col("slot").is_between(0, last_slot)
    parts = []
    for batch in rows.batches(table):
        frame = keep_ids(rows, batch.frame, "person")
        if names is not None:
            frame = rows.keep(frame, stranger)
        frame = keep_times(rows, frame, "time", clock.timezone, settings.epoch_unit)
        frame = frame.with_columns(slot=_slot_of("time", clock))
        frame = rows.keep(frame, Rule(_OUTSIDE_DAYS, "time", days, outside))
        parts.append(_parsed(rows, frame, clock))
    # A day without tests has a file without rows.
    count = rows.finish() if parts or names is not None else _NO_ROWS
    return _imported(parts, count, clock, kind, names)


def _read_numbered(table: InputTable, clock: Clock, kind: TestKind) -> ImportedTests:
    """Read tests (person, day, hour, result); an invalid row is an error.

    Without a column ``hour`` a test counts for the first slot of its day. A file with
    only a header has no tests.
    """
    columns = ("person", "day", "result")
    wanted = {ours: need_column(table, ours, {}) for ours in columns}
    if (hour := find_column(table, "hour", {})) is not None:
        wanted["hour"] = hour
    wanted |= _optional_columns(table, {})
    rows = RowFilter(table.path, wanted, STRICT)
    parts = [
        _parsed(rows, keep_slots(rows, batch.frame, clock), clock)
        for batch in rows.batches(table)
    ]
    count = rows.finish() if parts else _NO_ROWS
    return _imported(parts, count, clock, kind, None)


def _parsed(rows: RowFilter, frame: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    """Return the accepted tests with the columns of ``_SCHEMA``."""
    frame = _keep_optional(rows, _keep_results(rows, frame), clock)
    return frame.select(pl.col(name).cast(kind) for name, kind in _SCHEMA.items())


def _imported(
    parts: list[pl.DataFrame],
    rows: RowCount,
    clock: Clock,
    kind: TestKind,
    names: Sequence[str] | None,
) -> ImportedTests:
    """Combine parsed tests into the record; by default of the people in the file."""
    found = _without_duplicates(pl.concat([pl.DataFrame(schema=_SCHEMA), *parts]))
    if names is None:
        names = found["person_text"].unique(maintain_order=True).to_list()
    onset = found["onset"].to_numpy()
    kinds = {"": kind, **KINDS}
    used = [name for name in kinds if name in set(found["kind"])] or [""]
    numbers = found["kind"].replace_strict(used, range(len(used)), return_dtype=pl.Int8)
    tests = TestResults.from_tests(
        max(1, len(names)),
        look_up(found["person_text"], pl.Series(names, dtype=pl.String)).to_numpy(),
        found["positive"].to_numpy(),
        found["slot"].to_numpy(),
        None,
        numbers.to_numpy(),
        tuple(kinds[name] for name in used),
        found["reason"].to_numpy(),
        np.where(onset == _NO_ONSET, NOT_GIVEN, np.maximum(onset, 0)),
    )
    last_day = clock.day_of_slot(int(tests.slot.max(initial=0)))
    return ImportedTests(
        tests,
        rows,
        tuple(names),
        early_onsets=int(((onset < 0) & (onset != _NO_ONSET)).sum()),
        later_tests=int((tests.slot >= clock.slots).sum()),
        later_days=max(0, last_day + 1 - clock.days),
        without_kind=int((found["kind"] == "").sum()),
    )


def _optional_columns(table: InputTable, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of kind, reason and onset that the file has."""
    found = {ours: find_column(table, ours, chosen) for ours in _OPTIONAL}
    return {ours: theirs for ours, theirs in found.items() if theirs is not None}


def _keep_optional(rows: RowFilter, frame: pl.DataFrame, clock: Clock) -> pl.DataFrame:
    """Parse ``kind`` (text), ``reason`` (number) and ``onset`` (slot) of each test.

    Rejects rows with an unknown kind or reason, and with an onset after the test.
    """
    frame = _keep_words(rows, frame, "kind", tuple(KINDS), "unknown kind of test")
    frame = _keep_words(rows, frame, "reason", REASONS, "unknown reason of a test")
    numbers = {"": NOT_GIVEN} | {name: at for at, name in enumerate(REASONS)}
    reason = pl.col("reason").replace_strict(numbers, return_dtype=pl.Int8)
    frame = frame.with_columns(reason=reason)
    none = pl.lit(_NO_ONSET, dtype=pl.Int64)
    if "onset" not in rows.columns:
        return frame.with_columns(onset=none)
    text = pl.col("onset").cast(pl.String, strict=False).str.strip_chars()
    empty = frame.select((text == "").fill_null(True)).to_series()
    given = frame.filter(~empty)
    given = keep_times(rows, given, "onset", clock.timezone, rows.settings.epoch_unit)
    slot, per_day = _slot_of("onset", clock), clock.slots_per_day
    late = slot // per_day > pl.col("slot") // per_day
    expected = "a day up to that of the test"
    given = rows.keep(given, Rule("onset after the test", "onset", expected, late))
    given = given.with_columns(onset=pl.min_horizontal(slot, "slot"))
    others = frame.filter(empty).with_columns(onset=none)
    return pl.concat([given.select(others.columns), others])


def _keep_words(
    rows: RowFilter, frame: pl.DataFrame, name: str, words: Sequence[str], reason: str
) -> pl.DataFrame:
    """Reject rows with a word that is not in ``words``; a missing column is empty."""
    if name not in rows.columns:
        return frame.with_columns(pl.lit("").alias(name))
    text = pl.col(name).cast(pl.String, strict=False).fill_null("")
    frame = frame.with_columns(text.str.strip_chars().str.to_lowercase().alias(name))
    odd = ~pl.col(name).is_in(["", *words])
    expected = f"empty or one of {', '.join(words)}"
    return rows.keep(frame, Rule(reason, name, expected, odd))


def _without_duplicates(tests: pl.DataFrame) -> pl.DataFrame:
    """Return one row per person, slot, kind and result, with its first given reason."""
    given = pl.col("reason").filter(pl.col("reason") != NOT_GIVEN).first()
    return tests.group_by(
        "person_text", "positive", "slot", "kind", maintain_order=True
    ).agg(reason=given.fill_null(NOT_GIVEN), onset=pl.max("onset"))


def _slot_of(name: str, clock: Clock) -> pl.Expr:
    minutes = clock.slot_minutes * 60_000_000
    return (pl.col(f"{name}_local") // minutes - clock.epoch_slot).cast(pl.Int64)


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
