"""Ten million pings from Parquet into traces, against a plain Python loop.

Ours is ``import_visits`` with the default grid, measured in a separate process.
The peer does the same work row by row with ``csv`` and dictionaries
on a sample of the same pings; both are given as rows per second, so the ratio
does not depend on the size of the sample. The peer's sample is CSV, because
plain Python cannot read Parquet; ours on that CSV is reported as well.
"""

import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from math import cos, floor, pi, radians
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

PEER_ROWS = 200_000
PEOPLE = 15_738
DAYS = 14
FIRST_DAY = datetime(2020, 3, 1, tzinfo=UTC)

_CHILD = """
import json, resource, sys, time
from pathlib import Path
from epifalcon.mobility.io import ImportSettings, import_visits
settings = ImportSettings(kind="pings")
import_visits(Path(sys.argv[2]), settings)  # load and compile outside the clock
start = time.perf_counter()
imported = import_visits(Path(sys.argv[1]), settings)
seconds = time.perf_counter() - start
whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
peak = max(resource.getrusage(one).ru_maxrss for one in whose)
print(json.dumps({"seconds": seconds, "peak_rss_mb": peak / 1024,
    "rows": imported.rows.accepted, "people": imported.traces.people,
    "regions": len(imported.traces.regions),
    "share_observed": imported.traces.observed_share}))
"""


def run(rows: int = 10_000_000) -> dict[str, Any]:
    """Rows per second of ours and of the plain loop, and our peak memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample, full = folder / "sample.csv", folder / "pings.parquet"
        _pings(min(rows, PEER_ROWS)).write_csv(sample)
        _pings(rows).write_parquet(full, row_group_size=1_000_000)
        ours = _import(full, sample)
        ours_csv = _import(sample, sample)
        start = time.perf_counter()
        plain = plain_import(sample)
        peer = min(rows, PEER_ROWS) / (time.perf_counter() - start)
    assert plain["people"] == ours_csv["people"]
    assert plain["regions"] == ours_csv["regions"]
    speed = rows / ours["seconds"]
    return {
        "name": "ingest",
        "ours": speed,
        "peer": peer,
        "ratio": speed / peer,
        "unit": "rows/s",
        "rows": rows,
        "rows_per_second": speed,
        "rows_per_second_csv": ours_csv["rows"] / ours_csv["seconds"],
        "peak_rss_mb": ours["peak_rss_mb"],
        "seconds": ours["seconds"],
        "peer_is": f"plain Python loop over {min(rows, PEER_ROWS):,} rows of CSV",
    }


def plain_import(
    path: Path, slot_hours: int = 2, cell_km: float = 1.0
) -> dict[str, Any]:
    """The same work without any library: most frequent cell per person and slot."""
    seen: dict[tuple[str, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    rows = max(1, round(pi * 6371.0088 / cell_km))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            moment = datetime.fromisoformat(row["time"]).replace(tzinfo=UTC)
            lat, lon = float(row["lat"]), float(row["lon"])
            if not (-90 <= lat <= 90 and -180 <= lon <= 180 and row["person"]):
                continue
            north = min(floor((lat + 90) / 180 * rows), rows - 1)
            around = 2 * pi * 6371.0088 * cos(radians((north + 0.5) / rows * 180 - 90))
            cells = max(1, round(around / cell_km))
            cell = (north, floor((lon + 180) / 360 * cells) % cells)
            slot = int(moment.timestamp()) // (slot_hours * 3600)
            seen[row["person"], slot][cell] += 1
    best = {key: counts.most_common(1)[0][0] for key, counts in seen.items()}
    everything = {cell for counts in seen.values() for cell in counts}
    people = {person for person, _ in best}
    return {"people": len(people), "regions": len(everything), "cells": len(best)}


def _pings(rows: int) -> pl.DataFrame:
    """Pings of people at home and at work, in the order of time."""
    rng = np.random.default_rng(7)
    home = rng.normal((116.4, 39.9), 0.12, (PEOPLE, 2))
    work = rng.normal((116.4, 39.9), 0.06, (PEOPLE, 2))
    person = rng.integers(0, PEOPLE, rows)
    second = np.sort(rng.integers(0, DAYS * 86_400, rows))
    hour = second // 3600 % 24
    at_work = (hour >= 9) & (hour < 17)
    point = np.where(at_work[:, None], work[person], home[person])
    point += rng.normal(0, 0.002, (rows, 2))
    names = pl.Series([f"device-{number:06d}" for number in range(PEOPLE)])
    return pl.DataFrame(
        {
            "person": names.gather(person),
            "time": pl.Series(second * 1_000_000 + int(FIRST_DAY.timestamp()) * 10**6)
            .cast(pl.Datetime("us")),
            "lat": point[:, 1],
            "lon": point[:, 0],
        }
    )  # fmt: skip


def _import(path: Path, warm: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), str(warm)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(run(*map(int, sys.argv[1:])), indent=2))
