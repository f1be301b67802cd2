"""Test results of a city that is known: person, day, hour where told, result."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.epidemic.results import read_positive
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest import columns
from epifalcon.mobility.ingest.days import read_rows
from epifalcon.mobility.ingest.rows import Tally
from epifalcon.mobility.ingest.tables import open_table
from epifalcon.types import Mask

_COLUMNS = ("person", "day", "result")


@dataclass(frozen=True, eq=False)
class NamedTests:
    """One entry for each test."""

    name: tuple[str, ...]
    slot: NDArray[np.int64]
    positive: Mask

    def __len__(self) -> int:
        return len(self.name)


def read_day_tests(path: Path, clock: Clock, first_day: int = 1) -> NamedTests:
    """The tests in a CSV or Parquet file, on ``clock``.

    Without a column ``hour`` a test counts for the first slot of its day. Any row
    that cannot be read is a ``DataError`` that names row, column and what was
    expected; a file with a header alone holds no tests.
    """
    table = open_table(path)
    wanted = {ours: columns.need(path, table.names, ours, {}) for ours in _COLUMNS}
    if (hour := columns.find(path, table.names, "hour", {})) is not None:
        wanted["hour"] = hour
    tally = Tally(path, strict=True, max_refused_share=0.0)
    names, slots, positive = [pl.Series([], dtype=pl.String)], [], []
    for batch in table.batches(wanted):
        sieve = batch.sieve(tally, table.width)
        rows = read_rows(sieve, batch, wanted, clock, first_day)
        positive.append(read_positive(sieve, batch, wanted["result"]))
        tally.check_strict()
        names.append(rows.name)
        slots.append(rows.slot)
    return NamedTests(
        tuple(pl.concat(names).to_list()),
        np.concatenate([np.zeros(0, np.int64), *slots]),
        np.concatenate([np.zeros(0, np.bool_), *positive]),
    )
