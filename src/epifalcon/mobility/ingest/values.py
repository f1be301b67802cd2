"""Names and coordinates out of columns of any sensible type."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.ingest.rows import Sieve
from epifalcon.mobility.ingest.settings import EpochUnit
from epifalcon.mobility.ingest.times import EXPECTED, Instants, Zone, instants, is_time
from epifalcon.types import Floats

_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Null)


def names(sieve: Sieve, column: pl.Series, called: str) -> pl.Series:
    """The ids in ``column`` as text, exactly as they stand in the file.

    The column bears our name for it; ``called`` is its name in the file.
    Whole numbers stored as floats lose their ".0". Refuses rows whose id is
    empty, broken text, or runs over a line end (a quote was left open).
    """
    kind = column.dtype
    if not isinstance(kind, _TEXT) and not kind.is_numeric():
        raise DataError(
            f"{sieve.path}: column {called!r} holds {kind}, expected text or numbers"
        )
    text = _whole(column) if kind.is_float() else column.cast(pl.String)
    empty = (text.is_null() | (text.str.strip_chars() == "")).fill_null(True)
    sieve.refuse(empty.to_numpy(), f"empty {column.name}", called, column, "an id")
    broken = text.str.contains("\ufffd", literal=True).fill_null(False)
    sieve.refuse(
        broken.to_numpy(), f"{column.name} is not UTF-8", called, column, "UTF-8 text"
    )
    split = text.str.contains("\n", literal=True).fill_null(False)
    sieve.refuse(
        split.to_numpy(),
        f"line end inside {column.name}",
        called,
        column,
        "an id in one line",
    )
    return text


def numbers(sieve: Sieve, column: pl.Series, called: str, limit: float) -> Floats:
    """Finite numbers between ``-limit`` and ``limit``; refused rows hold NaN."""
    kind, ours = column.dtype, column.name
    if isinstance(kind, _TEXT):
        column = column.cast(pl.String).str.strip_chars().replace("", None)
    elif not kind.is_numeric():
        raise DataError(
            f"{sieve.path}: column {called!r} holds {kind}, expected numbers"
        )
    value = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    expected = f"a number from {-limit:g} to {limit:g}"
    missing = column.is_null().to_numpy()
    sieve.refuse(missing, f"missing {ours}", called, column, expected)
    bad = ~np.isfinite(value)
    sieve.refuse(bad, f"{ours} is not a number", called, column, expected)
    with np.errstate(invalid="ignore"):
        out = np.abs(value) > limit
    sieve.refuse(out, f"{ours} out of range", called, column, expected)
    return np.where(bad | out, np.nan, value)


def times(
    sieve: Sieve, column: pl.Series, called: str, zone: Zone, unit: EpochUnit
) -> Instants:
    """The times in ``column``; rows without a readable one are refused."""
    if not is_time(column.dtype):
        raise DataError(
            f"{sieve.path}: column {called!r} holds {column.dtype}, expected times"
        )
    found = instants(column, zone, unit)
    shown, ours = column, column.name
    if isinstance(column.dtype, pl.Datetime):
        # As a number: polars cannot show a time of the year 300,000.
        shown = column.to_physical()
    sieve.refuse(found.missing, f"missing {ours}", called, shown, EXPECTED)
    sieve.refuse(found.unreadable, f"{ours} is not readable", called, shown, EXPECTED)
    sieve.refuse(
        found.outside,
        f"{ours} out of range",
        called,
        shown,
        "a time between 1970 and 2100",
    )
    return found


class Codes:
    """Numbers for names, the same for the same name in every batch."""

    def __init__(self) -> None:
        self._known = pl.DataFrame(schema={"name": pl.String, "code": pl.UInt32})

    def encode(self, text: pl.Series) -> NDArray[np.uint32]:
        """The number of each name; new names get the next free numbers."""
        frame = pl.DataFrame({"name": text})
        new = frame.unique().join(self._known, on="name", how="anti")
        if len(new):
            new = new.with_row_index("code", offset=len(self._known))
            self._known = pl.concat([self._known, new.select("name", "code")])
        joined = frame.join(self._known, on="name", how="left", maintain_order="left")
        return joined["code"].to_numpy()

    def decode(self, codes: NDArray[np.uint32]) -> pl.Series:
        """The names of ``codes``."""
        return self._known["name"].gather(codes)


def natural_order(text: pl.Series) -> NDArray[np.int64]:
    """Positions that sort names: whole numbers by size, other names by their letters.

    It is by size only if every name is a whole number without leading zeros.
    """
    if text.str.contains(r"^(0|[1-9][0-9]{0,17})$").all():
        return text.cast(pl.Int64).arg_sort().to_numpy().astype(np.int64)
    return text.arg_sort().to_numpy().astype(np.int64)


def _whole(column: pl.Series) -> pl.Series:
    value = column.cast(pl.Float64).fill_nan(None)
    small = value.is_finite() & (value.abs() < 2.0**53)
    whole = (small & (value == value.floor())).fill_null(False)
    number = value.zip_with(whole, pl.Series([None], dtype=pl.Float64))
    return number.cast(pl.Int64).cast(pl.String).zip_with(whole, value.cast(pl.String))
