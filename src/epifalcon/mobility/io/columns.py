"""Parse ids, numbers and times in columns; count rejected rows by reason.

Times are microseconds since 1970 in UTC. As in Python's ``zoneinfo``, a wall-clock
time that occurs twice is taken as the first of the two, and one that does not exist is
moved forward by the length of the gap.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.io.settings import EpochUnit, ReadSettings
from epifalcon.mobility.io.tables import InputTable, RowBatch
from epifalcon.text import FORMULA

EXAMPLES_PER_REASON = 3
_LONGEST_VALUE = 60
SECOND = 1_000_000
DAY = 86_400 * SECOND
_END = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * SECOND
_EXCEL_1970, _EXCEL_2100 = 25_569, 73_051
"""Days since 30 December 1899, as spreadsheets store dates. As seconds since 1970 such
numbers are within the first day, which is refused, so the two cannot be confused."""
_UNIT = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_ISO = (
    r"^(\d{4}-\d{2}-\d{2})"
    r"(?:[Tt ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
    r" ?([Zz]|UTC|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_EXPECTED = (
    "an ISO 8601 time like 2020-03-01T08:30:00, seconds or milliseconds since 1970, an "
    "Excel date like 43891.5, or a format given by --date-format"
)
_DAY_FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y%m%d")
_TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
"""Formats to suggest for times that cannot be read."""
_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Null)


@dataclass(frozen=True)
class RefusedRow:
    """One rejected row: its number, the value found, what was expected."""

    reason: str
    row: int
    """Row number in the file; the header of a CSV file is row 1."""
    column: str
    value: str
    expected: str

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column!r}: {self.reason}: {self.found}"

    @property
    def found(self) -> str:
        """Text with the value found and the value expected."""
        return f"found {self.value}, expected {self.expected}"


@dataclass(frozen=True)
class RowCount:
    """Number of rows read, accepted, and rejected by reason."""

    read: int
    accepted: int
    refused: Mapping[str, int]
    examples: tuple[RefusedRow, ...]

    def as_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows_read": self.read,
            "rows_kept": self.accepted,
            "rows_refused": self.read - self.accepted,
            "refused": dict(self.refused),
            "examples": [vars(example) for example in self.examples],
        }


class Rule(NamedTuple):
    """Condition under which a row is rejected, and the text of the message."""

    reason: str
    column: str
    """Internal name of the column with the invalid value."""
    expected: str
    bad: pl.Expr
    """Expression that is True for rows to reject; null counts as False."""
    shown: Callable[[Mapping[str, Any]], str] | None = None
    """Function that formats the invalid value; by default the value of ``column``."""


class RowFilter:
    """Filter that applies rules to the rows of one file, batch by batch.

    ``ignored`` are reasons that count neither for ``strict`` nor for the maximum
    share of rejected rows, because the user excluded such rows.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        read: ReadSettings,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.columns = columns
        self.settings = read
        self.offsets: set[float | None] = set()
        """Smallest and largest offset of times (microseconds); None if one has none."""
        self._ignored = ignored
        self._read = 0
        self._refused: dict[str, int] = {}
        self._examples: list[RefusedRow] = []

    def batches(self, table: InputTable) -> Iterator[RowBatch]:
        """Yield the rows of ``table`` that have the right number of fields."""
        width = len(table.names)
        fields = Rule(
            "wrong number of fields, or an open quote",
            "(whole row)",
            f"{width} fields",
            pl.col("fields") != width,
            # -1 marks a quote that is never closed, where fields cannot be counted.
            lambda row: (
                f"{row['fields']} fields" if row["fields"] >= 0 else "open quote"
            ),
        )
        for batch in table.batches(self.columns):
            self.count(len(batch.frame))
            if "fields" in batch.frame.columns:
                batch = replace(batch, frame=self.keep(batch.frame, fields))
            yield batch
            self.check_strict()

    def count(self, rows: int) -> None:
        """Add ``rows`` to the number of rows read."""
        self._read += rows

    def keep(self, frame: pl.DataFrame, *rules: Rule) -> pl.DataFrame:
        """Return the accepted rows; count others by the first rule that rejects."""
        numbers = (pl.when(rule.bad).then(at) for at, rule in enumerate(rules))
        found = frame.select(rule=pl.coalesce(*numbers))["rule"]
        if found.null_count() == len(found):
            return frame
        for at, rule in enumerate(rules):
            self._refuse(rule, frame.filter(found == at))
        return frame.filter(found.is_null())

    def _refuse(self, rule: Rule, rows: pl.DataFrame) -> None:
        if rows.is_empty():
            return
        before = self._refused.get(rule.reason, 0)
        self._refused[rule.reason] = before + len(rows)
        called = self.columns.get(rule.column, rule.column)
        # Times as numbers: Python has no datetime for the year 300,000.
        numbers = pl.selectors.datetime().to_physical()
        few = rows.head(max(0, EXAMPLES_PER_REASON - before)).with_columns(numbers)
        for row in few.iter_rows(named=True):
            value = rule.shown(row) if rule.shown else show(row[rule.column])
            example = RefusedRow(rule.reason, row["row"], called, value, rule.expected)
            self._examples.append(example)

    def check_strict(self) -> None:
        """Raise ``DataError`` in strict mode if a row was rejected so far."""
        wrong = [row for row in self._examples if row.reason not in self._ignored]
        if self.settings.strict and wrong:
            first = min(wrong, key=lambda example: example.row)
            raise DataError(f"{self.path}: {first}")

    def finish(self) -> RowCount:
        """Return the row counts; raise ``DataError`` if too many were rejected."""
        ranked = sorted((-count, reason) for reason, count in self._refused.items())
        counts = {reason: -count for count, reason in ranked}
        refused, order = sum(counts.values()), list(counts)
        self._examples.sort(key=lambda row: (order.index(row.reason), row.row))
        examples = tuple(self._examples)
        found = RowCount(self._read, self._read - refused, counts, examples)
        if self._read == 0:
            raise DataError(f"{self.path}: holds no rows")
        hint = ""
        if counts.get("lat out of range", 0) > refused / 2:
            hint = f"; if lat and lon are swapped: columns {swapped(self.columns)}"
        for example in examples:
            if forms := _possible_formats(example.value.strip("'")):
                hint = f"; try --date-format {forms}"
        if found.accepted == 0:
            raise DataError(
                f"{self.path}: all {refused} rows were refused: {_summary(found)}{hint}"
            )
        ignored = sum(self._refused.get(reason, 0) for reason in self._ignored)
        wrong, considered = refused - ignored, self._read - ignored
        share = self.settings.max_refused_share
        if wrong > share * considered:
            raise DataError(
                f"{self.path}: {wrong} of {considered} rows were refused, more "
                f"than max_refused_share={share:g} allows: {_summary(found)}{hint}"
            )
        return found


def _possible_formats(text: str) -> str:
    """Return the usual formats that ``text`` has, quoted; empty if none."""
    fitting = []
    for day, time in itertools.product(_DAY_FORMATS, _TIME_FORMATS):
        with contextlib.suppress(ValueError):
            datetime.strptime(text, day + time)
            fitting.append(f'"{day}{time}"')
    return " or ".join(fitting)


def show(value: object) -> str:
    """Format a value for messages: quote text and shorten long values."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = "nothing" if value is None else text
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def swapped(columns: Mapping[str, str]) -> str:
    """Return the setting that exchanges the columns of latitude and longitude."""
    return f"lat={columns['lon']},lon={columns['lat']}"


def _summary(count: RowCount) -> str:
    parts = []
    for reason, number in list(count.refused.items())[:3]:
        one = next(row for row in count.examples if row.reason == reason)
        where = f"row {one.row}, column {one.column!r}"
        parts.append(f"{number} x {reason} ({where}: {one.found})")
    return "; ".join(parts)


def keep_ids(rows: RowFilter, frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add ``{name}_text``, the ids exactly as in the file, and drop rows without one.

    Whole numbers stored as floats lose their ".0", and formulas the apostrophe that
    lists of risks put before them. Rejects ids that are empty,
    are not UTF-8, or contain a line end (an open quote).
    """
    kind = _require_type(rows, frame, name, "text or numbers")
    text = pl.col(name).cast(pl.String).str.replace(f"^'{FORMULA[1:]}", "$1")
    if kind.is_float():
        value = pl.col(name).cast(pl.Float64).fill_nan(None)
        whole = (value.abs() < 2.0**53) & (value == value.floor())
        number = pl.when(whole).then(value).cast(pl.Int64).cast(pl.String)
        text = pl.when(whole).then(number).otherwise(value.cast(pl.String))
    frame = frame.with_columns(text.alias(f"{name}_text"))
    text = pl.col(f"{name}_text")
    empty = (text.str.strip_chars() == "").fill_null(True)
    lossy, lines = (text.str.contains(part, literal=True) for part in ("\ufffd", "\n"))
    return rows.keep(
        frame,
        Rule(f"empty {name}", name, "an id", empty),
        Rule(f"{name} is not UTF-8", name, "UTF-8 text", lossy),
        Rule(f"line end inside {name}", name, "an id in one line", lines),
    )


def keep_numbers(
    rows: RowFilter, frame: pl.DataFrame, name: str, limit: float
) -> pl.DataFrame:
    """Parse a column into ``{name}_value``; drop rows outside [-limit, limit]."""
    kind = _require_type(rows, frame, name, "numbers")
    column, missing = frame[name], pl.col(name).is_null()
    if isinstance(kind, _TEXT):
        column = column.cast(pl.String).str.strip_chars()
        missing |= pl.col(name).cast(pl.String).str.strip_chars() == ""
    value = pl.col(f"{name}_value")
    expected = f"a number from {-limit:g} to {limit:g}"
    wrong = ~value.is_finite().fill_null(False)
    return rows.keep(
        frame.with_columns(_to_number(column).alias(f"{name}_value")),
        Rule(f"missing {name}", name, expected, missing),
        Rule(f"{name} is not a number", name, expected, wrong),
        Rule(f"{name} out of range", name, expected, value.abs() > limit),
    )


def keep_times(
    rows: RowFilter, frame: pl.DataFrame, name: str, zone: str, unit: EpochUnit
) -> pl.DataFrame:
    """Add ``{name}_utc``, ``_local``, ``_twice``, ``_never``; drop unreadable times.

    The first two are microseconds since 1970, in UTC and on the wall clock of
    ``zone``; the others mark wall-clock times that occur twice or do not exist.
    """
    kind = _require_type(rows, frame, name, "times", times=True)
    formats = rows.settings.date_format
    frame = frame.with_columns(_moments(frame[name], unit, formats))
    expected = " or ".join(map(_format_example, formats)) or _EXPECTED
    empty = pl.col(name).is_null()
    if kind == pl.String:
        empty |= pl.col(name).str.strip_chars() == ""
    # One day of margin on each side, so that no offset leaves the range.
    outside = ~pl.col("value").is_between(DAY, _END - DAY)
    late = "a time between 1970 and 2100"
    frame = rows.keep(
        frame,
        Rule(f"missing {name}", name, expected, empty),
        Rule(f"{name} is not readable", name, expected, pl.col("value").is_null()),
        Rule(f"{name} out of range", name, late, outside),
    )
    offset = frame["offset"]
    zoned = offset.is_not_null()
    rows.offsets |= {offset.min(), offset.max()}  # type: ignore[arg-type]
    rows.offsets |= {None} if offset.null_count() else set()
    found = localise(frame["value"].cast(pl.Int64), zoned, zone)
    return frame.with_columns(found.rename(lambda part: f"{name}_{part}"))


def localise(value: pl.Series, zoned: pl.Series, zone: str) -> pl.DataFrame:
    """Convert times to UTC and local; mark ambiguous and nonexistent local times.

    ``value`` is UTC where ``zoned``, wall-clock time of ``zone`` elsewhere.
    """
    never = twice = pl.Series([False]).new_from_index(0, len(value))
    utc = value
    if not zoned.all():
        wall = value.cast(pl.Datetime("us"))
        exact = _to_utc(wall, zone, "null")
        utc = exact.zip_with(~zoned, value)
        odd = utc.is_null()
        if odd.any():
            first = _to_utc(wall, zone, "earliest")
            twice, never = odd & first.is_not_null(), odd & first.is_null()
            # The offset before the change of the clocks; no gap is longer than a day.
            before = wall - timedelta(hours=25)
            offset = before.to_physical() - _to_utc(before, zone, "latest")
            utc = utc.fill_null(first).fill_null(value - offset)
    moment = utc.cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone)
    local = moment.dt.replace_time_zone(None).to_physical()
    return pl.DataFrame({"utc": utc, "local": local, "twice": twice, "never": never})


def _to_utc(
    wall: pl.Series, zone: str, ambiguous: Literal["earliest", "latest", "null"]
) -> pl.Series:
    """Convert wall-clock times to microseconds in UTC; null if nonexistent."""
    found = wall.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
    return found.to_physical()


def natural_order(text: pl.Series) -> NDArray[np.int64]:
    """Return the sort order of names, numeric if all are whole numbers."""
    if text.str.contains(r"^(0|[1-9][0-9]{0,17})$").all():
        text = text.cast(pl.Int64)
    return text.arg_sort().to_numpy().astype(np.int64)


def _require_type(
    rows: RowFilter, frame: pl.DataFrame, name: str, what: str, times: bool = False
) -> pl.DataType:
    kind = frame[name].dtype
    allowed = isinstance(kind, (*_TEXT, *((pl.Datetime, pl.Date) if times else ())))
    if not allowed and not kind.is_numeric():
        called = rows.columns[name]
        raise DataError(f"{rows.path}: column {called!r} holds {kind}, expected {what}")
    return kind


def _to_number(column: pl.Series) -> pl.Series:
    """Convert to floats; text may have a decimal comma. Null if not a number."""
    number = column.cast(pl.Float64, strict=False)
    if column.dtype == pl.String and column.str.contains(",", literal=True).any():
        point = column.str.replace(",", ".", literal=True)
        number = number.fill_null(point.cast(pl.Float64, strict=False))
    return number


def _moments(
    column: pl.Series, unit: EpochUnit, formats: tuple[str, ...]
) -> pl.DataFrame:
    """Parse times: ``value`` (microseconds or null), ``offset`` (null if local)."""
    kind = column.dtype
    if isinstance(kind, pl.Datetime):
        # Below 2^53 microseconds, until the year 2255, floats are exact.
        number = column.to_physical().cast(pl.Float64) * _UNIT[kind.time_unit]
        return _with_offset(number.floor(), 0.0 if kind.time_zone else None)
    if kind == pl.Date:
        return _with_offset(column.to_physical().cast(pl.Float64) * DAY, None)
    if formats and not kind.is_float():
        return _from_formats(column.cast(pl.String).str.strip_chars(), formats)
    if kind.is_numeric():
        return _from_number(column.cast(pl.Float64, strict=False), unit)
    text = column.cast(pl.String).str.strip_chars()
    number = _to_number(text)
    rest = number.is_null()
    if not rest.any():
        return _from_number(number, unit)
    frame = _from_iso(text.set(~rest, None))
    if rest.all():
        return frame
    numbers = _from_number(number, unit)
    return frame.select(part.zip_with(rest, numbers[part.name]) for part in frame)


def _with_offset(value: pl.Series, offset: float | None) -> pl.DataFrame:
    constant = pl.lit(offset, dtype=pl.Float64)
    return value.alias("value").to_frame().with_columns(offset=constant)


def _from_formats(text: pl.Series, formats: tuple[str, ...]) -> pl.DataFrame:
    """Parse times by the first format that fits, as :func:`_moments`."""
    parts = []
    for form in formats:
        # Here %f counts nanoseconds, and %.f is a fraction.
        chosen = form.replace(".%f", "%.f")
        moment = text.str.to_datetime(chosen, time_unit="us", strict=False)
        value = moment.to_physical().cast(pl.Float64)
        parts.append(_with_offset(value, 0.0 if "%z" in form else None))
    found = parts[0]
    for part in parts[1:]:
        known = found["value"].is_not_null()
        found = found.select(one.zip_with(known, part[one.name]) for one in found)
    return found


def _format_example(form: str) -> str:
    example = datetime(2020, 3, 1, 14, 30, tzinfo=UTC).strftime(form)
    return f"a time like {example} ({form})"


def _from_number(number: pl.Series, unit: EpochUnit) -> pl.DataFrame:
    """Convert epochs and Excel dates, which are local times; null for others."""
    value = pl.col("number")
    size = value.abs()
    scale = pl.lit(_UNIT.get(unit))
    like_a_date = excel = pl.lit(False)
    if unit == "auto":
        scale = pl.when(size < 1e11).then(1e6).when(size < 1e14).then(1e3)
        scale = scale.when(size < 1e17).then(1.0).otherwise(1e-3)
        # Whole numbers like 20200301 are more likely dates than seconds of 1970.
        month, day = value // 100 % 100, value % 100
        like_a_date = (
            value.is_between(19_000_101, 21_001_231)
            & (value % 1 == 0)
            & month.is_between(1, 12)
            & day.is_between(1, 31)
        )
        excel = value.is_between(_EXCEL_1970, _EXCEL_2100, closed="left")
    good = value.is_finite() & ~like_a_date
    # To the second: five decimals of a day are a second.
    dated = ((value - _EXCEL_1970) * 86_400).round(0) * SECOND
    made = pl.when(excel).then(dated).when(good).then((value * scale).round(0))
    offset = pl.when(~excel).then(0.0)
    return pl.DataFrame({"number": number}).select(value=made, offset=offset)


def _from_iso(text: pl.Series) -> pl.DataFrame:
    """Parse ISO 8601 times, as :func:`_moments`."""
    groups = pl.col("text").str.extract_groups(_ISO).struct.unnest()
    parts = pl.DataFrame({"text": text}).select(groups)
    clock = (pl.col(name).cast(pl.Float64) for name in ("2", "3", "4"))
    hour, minute, second = (part.fill_null(0) for part in clock)
    fraction = pl.col("5").fill_null("").str.pad_end(6, "0").str.slice(0, 6)
    in_day = ((hour * 60 + minute) * 60 + second) * SECOND + fraction.cast(pl.Float64)
    digits = pl.col("6").fill_null("").str.replace_all(r"[^0-9]", "")
    digits = digits.str.pad_end(4, "0")
    ahead = digits.str.slice(0, 2).cast(pl.Float64)
    past = digits.str.slice(2, 2).cast(pl.Float64)
    sign = pl.when(pl.col("6").str.starts_with("-")).then(-1).otherwise(1)
    offset = sign * (ahead * 60 + past) * 60 * SECOND
    # 24:00:00 is the midnight at the end of the day.
    good = (minute < 60) & (second < 60) & (in_day <= DAY) & (ahead <= 18) & (past < 60)
    day = pl.col("1").str.to_date("%Y-%m-%d", strict=False).to_physical()
    value = pl.when(good).then(day.cast(pl.Float64) * DAY + in_day - offset)
    return parts.select(
        value=value, offset=pl.when(pl.col("6").is_not_null()).then(offset)
    )
