"""The table of places or towers: what is called what, and where it lies."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.mobility.ingest import columns, values
from epifalcon.mobility.ingest.rows import RowCount, Sieve, Tally
from epifalcon.mobility.ingest.settings import ImportSettings
from epifalcon.mobility.ingest.tables import open_table
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class Places:
    """Places by name, in the order of their file."""

    path: Path
    names: pl.Series
    lonlat: Floats
    rows: RowCount

    def find(self, sieve: Sieve, text: pl.Series, called: str) -> NDArray[np.int64]:
        """The position of each name here; rows with other names are refused."""
        table = pl.DataFrame({"name": self.names}).with_row_index("at")
        joined = pl.DataFrame({"name": text}).join(
            table, on="name", how="left", maintain_order="left"
        )
        at = joined["at"].cast(pl.Int64).fill_null(-1).to_numpy()
        sieve.refuse(
            at < 0,
            "not in the table of places",
            called,
            text,
            f"one of the {len(self.names)} names in {self.path}",
        )
        return at


def read_places(settings: ImportSettings) -> Places | None:
    """The table that the settings name, or None if they name none.

    Columns: place (or cell, or tower), lat, lon. A name that comes again is
    refused, as is a row whose coordinates are no good.
    """
    if settings.places is None:
        return None
    path, read = Path(settings.places), settings.read
    table = open_table(path, read.delimiter)
    known = ("place", "cell", "tower", "lat", "lon")
    chosen = columns.renamed(settings.place_columns, known)
    for other in ("cell", "tower"):
        if other in chosen:
            chosen["place"] = chosen.pop(other)
    if "place" in chosen:
        chosen[columns.TABLE_PLACE] = chosen["place"]
    wanted = {
        ours: columns.need(path, table.names, theirs, chosen)
        for ours, theirs in (
            ("place", columns.TABLE_PLACE), ("lat", "lat"), ("lon", "lon")
        )
    }  # fmt: skip
    tally = Tally(path, strict=read.strict, max_refused_share=read.max_refused_share)
    names: list[pl.Series] = []
    points: list[Floats] = []
    for batch in table.batches(wanted):
        sieve = batch.sieve(tally, table.width)
        text = values.names(sieve, batch.frame["place"], wanted["place"])
        lat = values.numbers(sieve, batch.frame["lat"], wanted["lat"], 90)
        lon = values.numbers(sieve, batch.frame["lon"], wanted["lon"], 180)
        _refuse_known(sieve, text, names, wanted["place"])
        names.append(text.filter(sieve.alive))
        points.append(np.column_stack([lon, lat])[sieve.alive])
        tally.check_strict()
    rows = tally.finish()
    return Places(path, pl.concat(names), np.concatenate(points), rows)


def _refuse_known(
    sieve: Sieve, text: pl.Series, before: list[pl.Series], called: str
) -> None:
    alive = pl.Series(sieve.alive)
    # Only a row that is otherwise good makes a later one of its name a repeat.
    index = pl.DataFrame({"name": text}).with_row_index("at").filter(alive)
    firsts = index.unique("name", keep="first", maintain_order=True)["at"]
    again = np.ones(len(text), dtype=np.bool_)
    again[firsts.to_numpy()] = False
    for part in before:
        again |= text.is_in(part.implode()).fill_null(False).to_numpy()
    sieve.refuse(again, "name appears again", called, text, "each name once")
