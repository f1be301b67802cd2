"""Test results from a file: person, time, result."""

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest import columns, values
from epifalcon.mobility.ingest.rows import RowCount, Sieve, Tally
from epifalcon.mobility.ingest.settings import ReadSettings
from epifalcon.mobility.ingest.tables import Batch, open_table
from epifalcon.mobility.ingest.times import Zone
from epifalcon.mobility.traces import Traces
from epifalcon.types import Mask

_OUTSIDE_DAYS = "outside the days of the traces"
_COLUMNS = ("person", "time", "result")
_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Null, pl.Boolean)
_POSITIVE = ("positive", "pos", "1", "true", "+", "1.0")
_NEGATIVE = ("negative", "neg", "0", "false", "-", "0.0")


def read_results(
    path: Path, traces: Traces, settings: ReadSettings | None = None
) -> tuple[Known, RowCount]:
    """The tests in a CSV or Parquet file, one entry per row that is kept.

    A row is refused if its person is not in the traces, its time is not within
    their days, or its result is neither positive nor negative. Where the
    traces have no names, people are called by their number from 0. A date
    without a time of day counts for the first slot of that day.
    """
    settings = settings or ReadSettings()
    if traces.clock.start is None:
        raise SettingsError(
            f"{path}: test results need the date of the traces' first day: give start"
        )
    table = open_table(path, settings.delimiter)
    chosen = columns.renamed(settings.columns, _COLUMNS)
    wanted = {ours: columns.need(path, table.names, ours, chosen) for ours in _COLUMNS}
    tally = Tally(
        path, strict=settings.strict, max_refused_share=settings.max_refused_share
    )
    tally.expect(_OUTSIDE_DAYS)
    reader = _Reader(traces, settings, wanted)
    parts = []
    for batch in table.batches(wanted):
        sieve = batch.sieve(tally, table.width)
        parts.append(reader.take(sieve, batch))
        tally.check_strict()
    rows = tally.finish()
    person, positive, slot = (
        np.concatenate([part[k] for part in parts]) for k in range(3)
    )
    known = Known.from_tests(traces.people, person, positive, slot, traces.who)
    return known, rows


class _Reader:
    """Turns batches of rows into (person, positive, slot)."""

    def __init__(
        self, traces: Traces, settings: ReadSettings, wanted: dict[str, str]
    ) -> None:
        names = traces.names or [str(number) for number in range(traces.people)]
        self._people = pl.DataFrame(
            {"name": list(names)}, schema={"name": pl.String}
        ).with_row_index("at")
        self._clock = traces.clock
        self._zone = Zone.of(traces.clock.timezone)
        self._unit = settings.epoch_unit
        self._wanted = wanted

    def take(
        self, sieve: Sieve, batch: Batch
    ) -> tuple[NDArray[np.int64], Mask, NDArray[np.int64]]:
        person = self._person(sieve, batch)
        called, column = self._wanted["time"], batch.frame["time"]
        moment = values.times(sieve, column, called, self._zone, self._unit)
        slot = slots_at(self._zone.local(moment.utc), self._clock)
        outside = (slot < 0) | (slot >= self._clock.slots)
        sieve.refuse(
            outside,
            _OUTSIDE_DAYS,
            called,
            column,
            f"{self._clock.days} days from {self._clock.start}",
        )
        positive = read_positive(sieve, batch, self._wanted["result"])
        alive = sieve.alive
        return person[alive], positive[alive], slot[alive]

    def _person(self, sieve: Sieve, batch: Batch) -> NDArray[np.int64]:
        called = self._wanted["person"]
        text = values.names(sieve, batch.frame["person"], called)
        joined = pl.DataFrame({"name": text}).join(
            self._people, on="name", how="left", maintain_order="left"
        )
        at = joined["at"].cast(pl.Int64).fill_null(-1).to_numpy()
        sieve.refuse(
            at < 0,
            "person is not in the traces",
            called,
            batch.frame["person"],
            f"one of the {len(self._people)} people of the traces",
        )
        return at


def slots_at(local: NDArray[np.int64], clock: Clock) -> NDArray[np.int64]:
    """Slots of wall-clock times in microseconds since 1970; any whole number."""
    assert clock.start is not None
    first = date.fromisoformat(clock.start).toordinal() - date(1970, 1, 1).toordinal()
    slot = local // (clock.slot_minutes * 60_000_000)
    return np.asarray(slot - first * clock.slots_per_day)


def read_positive(sieve: Sieve, batch: Batch, called: str) -> Mask:
    """Which results are positive; rows that are neither that nor negative go out."""
    column = batch.frame["result"]
    if not (isinstance(column.dtype, _TEXT) or column.dtype.is_numeric()):
        raise DataError(
            f"{sieve.path}: column {called!r} holds {column.dtype}, "
            "expected positive or negative"
        )
    text = column.cast(pl.String, strict=False).str.strip_chars()
    text = text.str.to_lowercase()
    positive = text.is_in(_POSITIVE).fill_null(False).to_numpy()
    negative = text.is_in(_NEGATIVE).fill_null(False).to_numpy()
    sieve.refuse(
        ~(positive | negative),
        "result is neither positive nor negative",
        called,
        column,
        "positive or negative, pos or neg, 1 or 0, true or false, + or -",
    )
    return positive
