"""Where people were, in regions that are there already: person, day, hour, region.

A file of a city that is known: days are numbers from 1, or dates where the city's
first day is known; a region goes by its name, or its number where it has none.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest import columns, values
from epifalcon.mobility.ingest.presence import Sightings, dominant
from epifalcon.mobility.ingest.rows import Sieve, Tally
from epifalcon.mobility.ingest.tables import Batch, open_table
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces

_COLUMNS = ("person", "day", "hour", "region")
_HOURS = 24


@dataclass(frozen=True, eq=False)
class NamedRows:
    """One entry for each row that was read."""

    name: pl.Series
    """What the person is called."""
    slot: NDArray[np.int64]


def read_day_visits(
    path: Path, clock: Clock, regions: Regions, first_day: int = 1
) -> Traces:
    """The traces in a CSV or Parquet file, on ``clock`` and in ``regions``.

    ``first_day`` is the number of the clock's first day. Each (person, slot) gets
    the region of most rows, the first of equal ones. Any row that cannot be read is
    a ``DataError`` that names row, column and what was expected.
    """
    table = open_table(path)
    wanted = {ours: columns.need(path, table.names, ours, {}) for ours in _COLUMNS}
    tally = Tally(path, strict=True, max_refused_share=0.0)
    parts = []
    for batch in table.batches(wanted):
        sieve = batch.sieve(tally, table.width)
        rows = read_rows(sieve, batch, wanted, clock, first_day)
        region = _regions(sieve, batch, wanted["region"], regions)
        tally.check_strict()
        parts.append(
            pl.DataFrame({"name": rows.name, "slot": rows.slot, "region": region})
        )
    tally.finish()
    seen = pl.concat(parts).with_row_index("row")
    seen = seen.group_by("name", "slot", "region").agg(pl.len(), pl.col("row").min())
    names = seen["name"].unique()
    names = names.gather(values.natural_order(names))
    person = seen["name"].replace_strict(names, np.arange(len(names)))
    sightings = Sightings(
        person.to_numpy().astype(np.uint32),
        seen["slot"].to_numpy().astype(np.int32),
        seen["region"].to_numpy(),
        seen["len"].to_numpy().astype(np.int64),
        seen["row"].to_numpy().astype(np.int64),
    )
    by_slot = dominant(sightings, clock.slots, len(names))
    return Traces(by_slot, clock, regions, tuple(names.to_list()))


def read_rows(
    sieve: Sieve, batch: Batch, wanted: dict[str, str], clock: Clock, first_day: int
) -> NamedRows:
    """Who and when; rows outside the days of ``clock`` are refused."""
    name = values.names(sieve, batch.frame["person"], wanted["person"])
    day = _days(sieve, batch, wanted["day"], clock, first_day)
    hour = np.zeros(len(day))
    if "hour" in wanted:
        called, column = wanted["hour"], batch.frame["hour"]
        hour = values.numbers(sieve, column, called, _HOURS)
        wrong = ~((hour >= 0) & (hour < _HOURS))
        sieve.refuse(wrong, "no hour of a day", called, column, "0 to less than 24")
    in_day = np.floor(np.nan_to_num(hour) * 60 / clock.slot_minutes).astype(np.int64)
    return NamedRows(name, day * clock.slots_per_day + in_day)


def _days(
    sieve: Sieve, batch: Batch, called: str, clock: Clock, first_day: int
) -> NDArray[np.int64]:
    """The day of each row from 0, a number or a date."""
    column = batch.frame["day"]
    text = column.cast(pl.String, strict=False).str.strip_chars()
    value = text.cast(pl.Float64, strict=False)
    value = value.set(value != value.floor(), None)
    number = value.cast(pl.Int64, strict=False) - first_day
    last = first_day + clock.days - 1
    expected = f"{first_day} to {last}" if last > first_day else f"{first_day}"
    if clock.start is not None:
        start = date.fromisoformat(clock.start)
        dated = text.str.to_date("%Y-%m-%d", strict=False)
        number = _since(dated, start).fill_null(number)
        end = date.fromordinal(start.toordinal() + clock.days - 1)
        expected += f", or {start} to {end}" if end > start else f", or {start}"
    found = number.fill_null(-1).to_numpy()
    outside = (found < 0) | (found >= clock.days)
    sieve.refuse(outside, "another day", called, column, expected)
    return np.where(outside, 0, found)


def _since(dated: pl.Series, start: date) -> pl.Series:
    """Days from ``start``; null where there is no date."""
    epoch = start.toordinal() - date(1970, 1, 1).toordinal()
    return dated.to_physical().cast(pl.Int64) - epoch


def _regions(
    sieve: Sieve, batch: Batch, called: str, regions: Regions
) -> NDArray[np.int64]:
    names = [regions.name(number) for number in range(len(regions))]
    text = values.names(sieve, batch.frame["region"], called)
    table = pl.DataFrame({"name": names}, schema={"name": pl.String})
    joined = pl.DataFrame({"name": text}).join(
        table.with_row_index("at"), on="name", how="left", maintain_order="left"
    )
    at = joined["at"].cast(pl.Int64).fill_null(-1).to_numpy()
    expected = f"one of the {len(names):,} regions, such as {names[0]!r}"
    sieve.refuse(at < 0, "unknown region", called, batch.frame["region"], expected)
    return at
