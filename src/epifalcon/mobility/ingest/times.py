"""Times as they stand in files, and the time zone that makes slots of them.

All times are kept as microseconds since 1970 in UTC. Daylight saving follows
Python's ``zoneinfo``: a wall-clock time that occurs twice is the first of the
two, one that never occurs is moved forward by the length of the gap.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.mobility.ingest.settings import EpochUnit
from epifalcon.types import Floats, Mask

Micros = NDArray[np.int64]

SECOND = 1_000_000
DAY = 86_400 * SECOND
FIRST_YEAR, LAST_YEAR = 1970, 2100
EXPECTED = (
    "an ISO 8601 time like 2020-03-01T08:30:00 or seconds or milliseconds since 1970"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = int((datetime(LAST_YEAR, 1, 1, tzinfo=UTC) - _EPOCH) / timedelta(microseconds=1))
_UNIT = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_ISO = (
    r"^(\d{4})-(\d{2})-(\d{2})"
    r"(?:[Tt ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
    r" ?([Zz]|UTC|[+-]\d{2}(?::?\d{2})?)?)?$"
)


@dataclass(frozen=True, eq=False)
class Zone:
    """The offsets of a time zone from 1970 to 2100."""

    name: str
    starts: Micros
    """UTC time at which each offset begins; the first is long ago."""
    offsets: Micros
    """What is added to UTC to get the wall clock."""

    @classmethod
    def of(cls, name: str) -> "Zone":
        """The zone called ``name``, as ``zoneinfo`` knows it."""
        return _zone(name)

    def local(self, utc: Micros) -> Micros:
        """Wall-clock time at ``utc``."""
        index = np.searchsorted(self.starts, utc, side="right") - 1
        return np.asarray(utc + self.offsets[index])

    def utc(self, local: Micros) -> tuple[Micros, Mask, Mask]:
        """UTC of wall-clock times; which occur twice; which never occur."""
        before, after = self.offsets[:-1], self.offsets[1:]
        change = self.starts[1:]
        index = np.searchsorted(change + np.maximum(before, after), local, side="right")
        utc = local - self.offsets[index]
        if change.size == 0:
            none = np.zeros(local.shape, dtype=np.bool_)
            return utc, none, none
        nearest = np.minimum(index, change.size - 1)
        inside = (index < change.size) & (
            local >= (change + np.minimum(before, after))[nearest]
        )
        forward = (after > before)[nearest]
        return utc, inside & ~forward, inside & forward


@lru_cache(maxsize=8)
def _zone(name: str) -> Zone:
    zone = ZoneInfo(name)
    starts, offsets = [-(2**62)], [_offset(zone, 0)]
    for day in range(DAY // SECOND, _END // SECOND + 1, DAY // SECOND):
        if _offset(zone, day) != offsets[-1]:
            low, high = day - DAY // SECOND, day
            while high - low > 1:
                middle = (low + high) // 2
                same = _offset(zone, middle) == offsets[-1]
                low, high = (middle, high) if same else (low, middle)
            starts.append(high * SECOND)
            offsets.append(_offset(zone, day))
    return Zone(name, np.array(starts), np.array(offsets))


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, zone).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


@dataclass(frozen=True, eq=False)
class Instants:
    """Times of the rows of a batch; every array has one entry per row."""

    utc: Micros
    missing: Mask
    unreadable: Mask
    outside: Mask
    """Read, but not between 1970 and 2100."""
    twice: Mask
    """Wall-clock times that occur twice; the first was taken."""
    never: Mask
    """Wall-clock times that the clocks jump over; moved forward."""


def instants(column: pl.Series, zone: Zone, unit: EpochUnit = "auto") -> Instants:
    """The times in ``column``: text, numbers, dates or datetimes, naive or zoned.

    The column's type must be one that ``is_time`` allows.
    """
    if isinstance(column.dtype, pl.Datetime):
        value, zoned = _from_datetime(column)
    elif column.dtype == pl.Date:
        days = column.to_physical().cast(pl.Float64).to_numpy()
        value, zoned = days * DAY, np.zeros(len(column), dtype=np.bool_)
    elif column.dtype.is_numeric():
        number = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        value = _from_epoch(number, unit)
        zoned = np.ones(len(column), dtype=np.bool_)
    else:
        value, zoned = _from_text(column.cast(pl.String), unit)
    return _placed(column, value, zoned, zone)


def is_time(kind: pl.DataType) -> bool:
    """Whether a column of this type can hold times."""
    texts = isinstance(kind, pl.String | pl.Categorical | pl.Enum | pl.Null)
    return texts or kind.is_numeric() or isinstance(kind, pl.Datetime | pl.Date)


def _placed(column: pl.Series, value: Floats, zoned: Mask, zone: Zone) -> Instants:
    missing = column.is_null().to_numpy()
    if isinstance(column.dtype, pl.String):
        missing = missing | (column.str.strip_chars() == "").fill_null(True).to_numpy()
    unreadable = np.isnan(value)
    # A day on either side, so that an offset cannot push a time off the table.
    outside = ~unreadable & ((value < DAY) | (value > _END - DAY))
    micros = np.where(unreadable | outside, DAY, value).astype(np.int64)
    utc, twice, never = zone.utc(micros)
    utc = np.where(zoned, micros, utc)
    return Instants(utc, missing, unreadable, outside, twice & ~zoned, never & ~zoned)


def _from_datetime(column: pl.Series) -> tuple[Floats, Mask]:
    kind = column.dtype
    assert isinstance(kind, pl.Datetime)
    number = column.to_physical().cast(pl.Float64).fill_null(np.nan).to_numpy()
    zoned = np.full(len(column), kind.time_zone is not None)
    # Below 2^53 microseconds, until the year 2255, floats are exact.
    return np.floor(number * _UNIT[kind.time_unit]), zoned


def _from_epoch(number: Floats, unit: EpochUnit) -> Floats:
    number = np.where(np.isfinite(number), number, np.nan)
    if unit != "auto":
        return np.rint(number * _UNIT[unit])
    size = np.abs(number)
    scale = np.select(
        [size < 1e11, size < 1e14, size < 1e17], [1e6, 1e3, 1.0], default=1e-3
    )
    return np.where(_like_a_date(number), np.nan, np.rint(number * scale))


def _like_a_date(number: Floats) -> Mask:
    """Whole numbers like 20200301, far likelier a date than seconds of 1970."""
    found = np.zeros(len(number), dtype=np.bool_)
    near = np.flatnonzero((number >= 19_000_101) & (number <= 21_001_231))
    digits = number[near]
    month, day = digits // 100 % 100, digits % 100
    found[near] = (
        (digits % 1 == 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    )
    return found


def _from_text(column: pl.Series, unit: EpochUnit) -> tuple[Floats, Mask]:
    text = column.str.strip_chars()
    number = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    value = _from_epoch(number, unit)
    zoned = np.ones(len(text), dtype=np.bool_)
    rest = np.flatnonzero(np.isnan(number))
    if rest.size:
        value = value.copy()
        value[rest], zoned[rest] = _from_iso(text.gather(rest))
    return value, zoned


def _from_iso(text: pl.Series) -> tuple[Floats, Mask]:
    parts = text.str.extract_groups(_ISO).struct.unnest()
    year, month, day, hour, minute, second = (
        parts[:, k].cast(pl.Float64).fill_null(np.nan if k < 3 else 0).to_numpy()
        for k in range(6)
    )
    fraction = parts[:, 6].fill_null("").str.pad_end(6, "0").str.slice(0, 6)
    micros = fraction.cast(pl.Float64).to_numpy()
    in_day = ((hour * 60 + minute) * 60 + second) * SECOND + micros
    good = (month >= 1) & (month <= 12) & (day >= 1) & (minute < 60) & (second < 60)
    good &= in_day <= DAY  # 24:00:00 is the midnight at the end of the day
    months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype(np.int64)
    first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    after = (months + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
    good &= day <= after - first
    offset, zoned = _offsets(parts[:, 7])
    value = (first + day - 1) * DAY + in_day - offset
    return np.where(good & np.isfinite(value), value, np.nan), zoned


def _offsets(suffix: pl.Series) -> tuple[Floats, Mask]:
    zoned = suffix.is_not_null().to_numpy()
    digits = suffix.fill_null("").str.replace_all(r"[^0-9]", "").str.pad_end(4, "0")
    hours = digits.str.slice(0, 2).cast(pl.Float64).to_numpy()
    minutes = digits.str.slice(2, 2).cast(pl.Float64).to_numpy()
    sign = np.where(suffix.str.starts_with("-").fill_null(False).to_numpy(), -1, 1)
    offset = sign * (hours * 60 + minutes) * 60 * SECOND
    real = (hours <= 18) & (minutes < 60)
    return np.where(real, offset, np.nan), zoned
