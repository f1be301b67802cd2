"""Broken files by the hundred, each from its seed: never another exception."""

import datetime
import gzip
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.read_tests import read_results
from epifalcon.errors import DataError, EpifalconError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io import ImportSettings, ReadSettings, import_visits, tables
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces

CSV = {
    "pings": "person,time,lat,lon\n"
    "ann,2020-03-01T08:00:00,52.5,13.4\nbob,1583049600,52.6,13.5\n"
    '"x, ""y""",2020-03-02 09:30:00+01:00,52.7,13.6\n007,1583049600000,-1.5e1,2\n',
    "stays": "person,start,end,place\n"
    "ann,2020-03-01T08:00,2020-03-01T12:00,home\nbob,1583049600,1583059600,w 1\n"
    "é,2020-03-01,2020-03-02,home\n",
    "checkins": "person,time,place,note\n"
    'ann,2020-03-01T08:00,17,"two\nlines"\nbob,2020-03-02,18,\n',
    "cells": "person,time,cell\nann,2020-03-01T08:00Z,17\nbob,1583049600,18\n",
    "contacts": "person,other,start,end\n"
    "ann,bob,2020-03-01T08:00,2020-03-01T08:20\nbob,é,1583049600,1583051600\n"
    '"x, ""y""",ann,2020-03-02 09:30:00+01:00,43892.5\n',
    "results": "person,time,result\nann,2020-03-01,positive\nbob,2020-03-02,NEG\n",
}
KINDS = (*CSV, "matrix")
TOWERS = b"cell,lat,lon\n17,52.5,13.4\n18,52.6,13.5\n"
RING = [[13, 52], [14, 52], [14, 53], [13, 53], [13, 52]]
SHAPE = {"type": "Polygon", "coordinates": [RING]}
FEATURE = {"type": "Feature", "id": "a", "properties": {"name": "A"}, "geometry": SHAPE}
AREA = json.dumps({"type": "FeatureCollection", "features": [FEATURE]}).encode()
SPLINTERS = [
    b'"', b'""', b"\n", b"\r\n", b"\r", b",", b";", b"\0", b"\xff", b"\xef\xbb\xbf",
    b"1e999", b"-1", b"nan", b"inf", b"9" * 400, b"99999-01-01", b"2020-02-30",
    b"2020-03-29T02:30", b"24:00", b"+99:99", "\u202e\U0001f600".encode(),
    b"\xff\xfea\0", b",,,,,", b'","', b"NULL", b"{}", b" ", b"",
]  # fmt: skip
DAY = datetime.datetime(2020, 3, 1)
ODD = [
    ([1], None), ({"a": 1}, None), ("52.5", pl.Categorical), (None, None), (True, None),
    (b"\xff", None), (2**63 - 1, None), (2**64 - 1, pl.UInt64), (2**100, pl.Int128),
    (float("nan"), None), (-1, pl.Int8), (7.0, pl.Float32), (DAY.date(), None),
    (DAY.time(), None), (DAY - DAY, None), (DAY, pl.Datetime("ns", "Asia/Tokyo")),
    (1583049600, None), ("", None),
]  # fmt: skip


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """``data`` with one to three things done to it."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at, to = sorted(rng.integers(0, len(data) + 1, 2).tolist())
        splinter = SPLINTERS[rng.integers(len(SPLINTERS))]
        flipped = data[at : at + 1].translate(bytes(k ^ 8 for k in range(256)))
        choices = [
            data[:at] + flipped + data[at + 1 :],
            data[:at] + splinter + data[at:],
            data[:at] + data[min(to, at + 12) :],
            data[:to],
            data[:at] + data[at:to] * 2 + data[to:],
            data.replace(b",", splinter[:1] or b";"),
            data.replace(b"\n", b"\r\n" if rng.random() < 0.7 else b"\r"),
            data[:at] + rng.bytes(int(rng.integers(1, 6))) + data[at:],
        ]
        data = choices[rng.integers(len(choices))]
    return data


def matrix_bytes(rng: np.random.Generator) -> bytes:
    kinds = ("i4", "f8", "u8", "f4", ">i8", "c8", "S3", "?", "M8[s]", "f2")
    kind = "i4" if rng.random() < 0.3 else kinds[rng.integers(len(kinds))]
    shape = [(3, 48), (3, 96), (2, 47), (0, 48), (3,), (1, 2, 48)][rng.integers(6)]
    array = rng.integers(-2, 6, shape).astype(kind)
    if array.dtype.kind == "f" and array.size and rng.random() < 0.7:
        array.flat[0] = rng.choice([np.nan, np.inf, 0.5, -0.5, 6e4])
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def broken_file(kind: str, folder: Path, rng: np.random.Generator) -> Path:
    """A file of ``kind``; a Parquet file of sound bytes is called ``odd.parquet``."""
    if kind == "matrix":
        name, data = "visits.npy", matrix_bytes(rng)
        data = mutated(data, rng) if rng.random() < 0.5 else data
    elif rng.random() < 0.3:
        frame = pl.read_csv(CSV[kind].encode(), infer_schema=False)
        frame = frame[: int(rng.integers(0, len(frame) + 1))]
        for column in frame.columns:
            if rng.random() < 0.4:
                value, dtype = ODD[rng.integers(len(ODD))]
                odd = pl.Series([value] * len(frame), dtype=dtype, strict=False)
                frame = frame.with_columns(odd.alias(column))
        out, name = io.BytesIO(), "odd.parquet"
        frame.write_parquet(out)
        data = out.getvalue()
        if rng.random() < 0.15:
            name, data = "visits.parquet", mutated(data, rng)
    else:
        name, data = "visits.csv", mutated(CSV[kind].encode(), rng)
        if rng.random() < 0.1:
            name, data = "visits.csv.gz", gzip.compress(data, 1, mtime=0)
            data = mutated(data, rng) if rng.random() < 0.5 else data
    (folder / name).write_bytes(data)
    return folder / name


def settings_for(kind: str, folder: Path, rng: np.random.Generator) -> ImportSettings:
    places, areas = folder / "towers.csv", folder / "areas.geojson"
    places.write_bytes(mutated(TOWERS, rng) if rng.random() < 0.2 else TOWERS)
    areas.write_bytes(mutated(AREA, rng) if rng.random() < 0.4 else AREA)
    rule = str(rng.choice(["auto", "grid", "h3", "polygons", "towers", "given"]))
    rule = "auto" if kind in ("matrix", "contacts") else rule
    needed = rule == "towers" or kind in ("cells", "checkins")
    return ImportSettings(
        kind=kind,
        read=ReadSettings(
            strict=bool(rng.random() < 0.1),
            max_refused_share=float(rng.choice([0.5, 1.0])),
            epoch_unit=str(rng.choice(["auto", "auto", "s", "ns"])),
        ),
        regions=rule,
        polygons=str(areas) if rule == "polygons" else None,
        places=str(places) if needed else None,
        cell_km=float(rng.choice([0.001, 1, 1e6])),
        slot_hours=float(rng.choice([0.5, 2, 24])),
        start="2020-03-01" if rng.random() < 0.2 else None,
        days=int(rng.integers(1, 4)) if rng.random() < 0.3 else None,
        timezone=str(rng.choice(["UTC", "Europe/Berlin", "Asia/Kathmandu"])),
        fill_gap_hours=0 if kind == "contacts" else float(rng.choice([0, 6])),
    )


def is_read(seed: int, folder: Path) -> bool:
    """Read one broken file; only our own errors are expected."""
    rng = np.random.default_rng(seed)
    kind = KINDS[rng.integers(len(KINDS))]
    path = broken_file(kind, folder, rng)
    with pytest.MonkeyPatch.context() as patch:
        if path.name == "odd.parquet":
            # Spares half a second per file.
            count = len(pl.read_parquet(path, columns=[0]))
            patch.setattr(tables, "count_rows", lambda _: count)
        try:
            if kind == "results":
                ids = np.zeros((24, 2), dtype=np.int32)
                clock = Clock(2, 2, "2020-03-01", "Europe/Berlin")
                place = Regions("poi", np.zeros((1, 2)))
                traces = Traces(ids, clock, place, ["ann", "bob"])
                found = read_results(path, traces)
                known, rows = found.tests, found.rows
                # Rows with equal person, slot, kind and result are one test.
                assert len(known.person) <= rows.accepted
            else:
                rows = import_visits(path, settings_for(kind, folder, rng)).rows
        except EpifalconError:
            return False
    assert rows.accepted > 0
    assert rows.accepted + sum(rows.refused.values()) == rows.read
    return True


@pytest.mark.parametrize("part", range(8))
def test_a_broken_file_never_ends_in_another_exception(part, tmp_path):
    read = sum(is_read(seed, tmp_path) for seed in range(part * 120, part * 120 + 120))
    # Some must get through, or the files are too broken to test anything.
    assert read >= 8


def test_damaged_pages_are_reported_in_one_line(tmp_path, capfd):
    """One wrong bit makes polars fail, panic, lose rows or end the process."""
    path = tmp_path / "visits.parquet"
    count = 3000
    frame = pl.DataFrame({"person": ["a"] * count, "time": [1583020800] * count})
    frame = frame.with_columns(place=pl.Series([str(k % 7) for k in range(count)]))
    frame.write_parquet(path, row_group_size=1000)
    whole = path.read_bytes()
    found = []
    # Bytes of the headers of pages, which are known to do each of these things.
    for at in (38, 39, 40, 42, 72, 157, 160, len(whole) - 600):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            rows = import_visits(path, ImportSettings(kind="checkins")).rows
        except DataError as error:
            found.append(str(error))
        else:
            assert rows.read == count
    assert len(found) >= 4
    assert not any("\n" in result for result in found)
    assert capfd.readouterr().err == ""
