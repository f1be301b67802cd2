"""Broken files by the hundred, each from its seed."""

import datetime
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.results import read_results
from epifalcon.errors import EpifalconError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest import (
    ImportSettings,
    ReadSettings,
    import_visits,
    tables,
)
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces

KINDS = ("pings", "stays", "checkins", "cells", "matrix", "results")
CSV = {
    "pings": "person,time,lat,lon\n"
    "ann,2020-03-01T08:00:00,52.5,13.4\nbob,1583049600,52.6,13.5\n"
    '"x, ""y""",2020-03-02 09:30:00+01:00,52.7,13.6\n007,1583049600000,-1.5e1,2\n',
    "stays": "person,start,end,place\n"
    "ann,2020-03-01T08:00,2020-03-01T12:00,home\nbob,1583049600,1583059600,w 1\n"
    "é,2020-03-01,2020-03-02,home\n",
    "checkins": "person;time;place;note\n"
    'ann;2020-03-01T08:00;17;"two\nlines"\nbob;2020-03-02;18;\n',
    "cells": "person\ttime\tcell\nann\t2020-03-01T08:00Z\t17\nbob\t1583049600\t18\n",
    "results": "person,time,result\nann,2020-03-01,positive\nbob,2020-03-02,NEG\n",
}
TOWERS = "cell,lat,lon\n17,52.5,13.4\n18,52.6,13.5\n"
RINGS = [
    [[13, 52], [14, 52], [14, 53], [13, 53], [13, 52]],
    [[13.1, 52.1], [13.2, 52.1], [13.2, 52.2], [13.1, 52.1]],
]
SHAPE = {"type": "Polygon", "coordinates": RINGS}
FEATURE = {"type": "Feature", "id": "a", "properties": {"name": "A"}, "geometry": SHAPE}
AREA = {"type": "FeatureCollection", "features": [FEATURE]}
SPLINTERS = [
    b'"', b'""', b"\n", b"\r\n", b"\r", b",", b";", b"\t", b"\0", b"\xff",
    b"\xef\xbb\xbf", b"\xc3", b"1e999", b"-1", b"nan", b"inf", b"9" * 400,
    b"99999-01-01", b"2020-02-30", b"2020-03-29T02:30", b"24:00", b"20200301",
    b"+99:99",    "\u202e\U0001f600".encode(),
    b"\xff\xfea\0", b",,,,,", b'","', b"NULL", b"[/b]", b"{}", b"=1+1", b" ", b"",
]  # fmt: skip


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """``data`` with one to four things done to it."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        size = len(data)
        at, to = sorted(rng.integers(0, size + 1, 2).tolist())
        splinter = SPLINTERS[rng.integers(len(SPLINTERS))]
        what = rng.integers(8)
        if what == 0 and size:
            flipped = bytearray(data)
            flipped[rng.integers(size)] ^= 1 << int(rng.integers(8))
            data = bytes(flipped)
        elif what == 1:
            data = data[:at] + splinter + data[at:]
        elif what == 2:
            data = data[:at] + data[min(to, at + 12) :]
        elif what == 3:
            data = data[:to]
        elif what == 4:
            data = data[:at] + data[at:to] * 2 + data[to:]
        elif what == 5:
            data = data.replace(b",", splinter[:1] or b";")
        elif what == 6:
            data = data.replace(b"\n", b"\r\n" if rng.random() < 0.7 else b"\r")
        else:
            data = data[:at] + rng.bytes(int(rng.integers(1, 6))) + data[at:]
    return data


ODD_COLUMNS = [
    lambda n: pl.Series([[1]] * n),
    lambda n: pl.Series([{"a": 1}] * n),
    lambda n: pl.Series([Decimal("1.5")] * n),
    lambda n: pl.Series(["52.5"] * n, dtype=pl.Categorical),
    lambda n: pl.Series(["a"] * n, dtype=pl.Enum(["a"])),
    lambda n: pl.Series([None] * n),
    lambda n: pl.Series([None] * n, dtype=pl.String),
    lambda n: pl.Series([b"\xff"] * n),
    lambda n: pl.Series([True] * n),
    lambda n: pl.Series([2**63 - 1] * n),
    lambda n: pl.Series([2**64 - 1] * n, dtype=pl.UInt64),
    lambda n: pl.Series([2**100] * n, dtype=pl.Int128),
    lambda n: pl.Series([float("nan")] * n),
    lambda n: pl.Series([-1] * n, dtype=pl.Int8),
    lambda n: pl.Series([7.0] * n, dtype=pl.Float32),
    lambda n: pl.Series([datetime.date(2020, 3, 1)] * n),
    lambda n: pl.Series([datetime.time(8)] * n),
    lambda n: pl.Series([datetime.timedelta(1)] * n),
    lambda n: pl.Series([datetime.datetime(2020, 3, 1)] * n),
    lambda n: pl.Series([2**62] * n).cast(pl.Datetime("ms")),
    lambda n: pl.Series([1583049600 * 10**9] * n).cast(pl.Datetime("ns", "Asia/Tokyo")),
    lambda n: pl.Series([1583049600] * n),
    lambda n: pl.Series(["2020-03-01T08:00:00Z", None] * n)[:n],
    lambda n: pl.Series([""] * n),
]


def odd_parquet(kind: str, rng: np.random.Generator) -> bytes:
    """A Parquet file with the right columns and strange things in some of them."""
    text = CSV[kind].encode()
    separator = {"checkins": ";", "cells": "\t"}.get(kind, ",")
    frame = pl.read_csv(text, separator=separator, infer_schema=False)
    frame = frame[: int(rng.integers(0, len(frame) + 1))]
    for name in frame.columns:
        if rng.random() < 0.4:
            odd = ODD_COLUMNS[rng.integers(len(ODD_COLUMNS))](len(frame))
            frame = frame.with_columns(odd.alias(name))
    if rng.random() < 0.1:
        frame = frame.drop(frame.columns[0])
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def matrix_bytes(rng: np.random.Generator) -> bytes:
    """An ``.npy`` file of some type and shape, mostly a sensible one."""
    kinds = ("i4", "f8", "u8", "f4", "i1", ">i8", "c8", "S3", "?", "M8[s]", "f2")
    kind = "i4" if rng.random() < 0.3 else kinds[rng.integers(len(kinds))]
    shape = [(3, 48), (3, 96), (2, 47), (0, 48), (3,), (1, 2, 48)][rng.integers(6)]
    array = rng.integers(-2, 6, shape).astype(kind)
    if array.dtype.kind == "f" and array.size and rng.random() < 0.7:
        array.flat[0] = rng.choice([np.nan, np.inf, 0.5, -0.5, 6e4])
    if rng.random() < 0.2:
        array = np.asfortranarray(array)
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def settings_for(
    kind: str, folder: Path, rng: np.random.Generator
) -> ImportSettings | None:
    """Some settings for ``kind``; None where they make no sense together."""
    places = folder / "towers.csv"
    data = TOWERS.encode()
    places.write_bytes(mutated(data, rng) if rng.random() < 0.2 else data)
    areas = folder / "areas.geojson"
    data = json.dumps(AREA).encode()
    areas.write_bytes(mutated(data, rng) if rng.random() < 0.4 else data)
    rules = ["auto", "grid", "h3", "polygons", "towers", "given"]
    rule = str(rng.choice(rules[: 5 if kind == "pings" else 6]))
    needed = rule == "towers" or kind in ("cells", "checkins")
    try:
        return ImportSettings(
            kind=kind,
            read=ReadSettings(
                strict=bool(rng.random() < 0.1),
                max_refused_share=float(rng.choice([0.5, 1.0])),
                epoch_unit=str(rng.choice(["auto", "auto", "s", "ns"])),
            ),
            regions="auto" if kind == "matrix" else rule,
            polygons=str(areas) if rule == "polygons" and kind != "matrix" else None,
            places=str(places) if needed else None,
            cell_km=float(rng.choice([0.001, 1, 1e6])),
            slot_hours=float(rng.choice([0.5, 2, 24])),
            start=str(rng.choice(["2020-03-01", "1970-01-01"]))
            if rng.random() < 0.3
            else None,
            days=int(rng.integers(1, 4)) if rng.random() < 0.3 else None,
            timezone=str(rng.choice(["UTC", "Europe/Berlin", "Asia/Kathmandu"])),
            fill_gap_hours=float(rng.choice([0, 6])),
        )
    except EpifalconError:
        return None


def broken_file(kind: str, folder: Path, rng: np.random.Generator) -> Path:
    """A file of ``kind`` that has been through a lot.

    A Parquet file whose bytes are sound is called ``odd.parquet``.
    """
    if kind == "matrix":
        data = matrix_bytes(rng)
        path = folder / "visits.npy"
        path.write_bytes(mutated(data, rng) if rng.random() < 0.5 else data)
        return path
    if rng.random() < 0.3:
        data = odd_parquet(kind, rng)
        path = folder / "odd.parquet"
        if rng.random() < 0.15:
            path, data = folder / "visits.parquet", mutated(data, rng)
        path.write_bytes(data)
        return path
    data = mutated(CSV[kind].encode(), rng)
    if rng.random() < 0.1:
        path = folder / "visits.csv.gz"
        packed = gzip.compress(data, 1, mtime=0)
        path.write_bytes(mutated(packed, rng) if rng.random() < 0.5 else packed)
        return path
    path = folder / "visits.csv"
    path.write_bytes(data)
    return path


def try_one(seed: int, folder: Path) -> bool:
    """Read one broken file; True if it was read after all.

    Anything but success or one of our own errors comes through, and so does an
    account of rows that does not add up.
    """
    rng = np.random.default_rng(seed)
    kind = KINDS[rng.integers(len(KINDS))]
    path = broken_file(kind, folder, rng)
    settings = settings_for("pings" if kind == "results" else kind, folder, rng)
    with pytest.MonkeyPatch.context() as patch:
        if path.name == "odd.parquet":
            # Half a second for each file, for nothing.
            count = len(pl.read_parquet(path, columns=[0]))
            patch.setattr(tables, "count_rows", lambda _: count)
        return _read(kind, path, settings)


def _read(kind: str, path: Path, settings: ImportSettings | None) -> bool:
    try:
        if kind == "results":
            ids = np.zeros((24, 2), dtype=np.int32)
            clock = Clock(2, 2, "2020-03-01", "Europe/Berlin")
            traces = Traces(
                ids, clock, Regions("poi", np.zeros((1, 2))), ["ann", "bob"]
            )
            known, rows = read_results(path, traces)
            assert len(known.person) == rows.kept
        elif settings is None:
            return False
        else:
            rows = import_visits(path, settings).rows
    except EpifalconError:
        return False
    assert rows.kept > 0
    assert rows.kept + sum(rows.refused.values()) == rows.read
    return True
