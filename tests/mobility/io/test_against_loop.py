"""Every kind of visits and regions against the plain reader of the oracles."""

import json
import re
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from epifalcon.mobility.io import ImportSettings, ReadSettings, import_visits
from tests.oracles import import_loop

# Clocks go forward in Berlin on 29 March 2020, back in New York on 1 November
# 2020, and by half an hour on Lord Howe Island on 5 April 2020.
WORLDS = [
    ("UTC", date(2020, 3, 1)),
    ("Europe/Berlin", date(2020, 3, 28)),
    ("America/New_York", date(2020, 10, 31)),
    ("Australia/Lord_Howe", date(2020, 4, 4)),
    ("Asia/Kathmandu", date(2021, 12, 31)),
]
PEOPLE = ["ann", "7", "007", "Zoë 张", 'o"neil, jr', " b ", "'"]
PLACES = ["home", "work", "café", "10", "9", "a;b"]
BAD_TIMES = ["", "soon", "2020-02-30T10:00", "nan", "1e400", "2020-13-01"]
BAD_POINTS = [("", "13"), ("91", "13"), ("nan", "1"), ("5,2,5", "13"), ("52", "-181")]
POLYGONS = {
    "west": [[[(13.0, 52.0), (13.4, 52.0), (13.4, 53.0), (13.0, 53.0), (13.0, 52.0)],
              [(13.1, 52.2), (13.3, 52.2), (13.2, 52.7), (13.1, 52.2)]]],
    "two parts": [
        [[(13.4, 52.0), (13.7, 52.0), (13.7, 52.4), (13.4, 52.4), (13.4, 52.0)]],
        [[(13.8, 52.6), (14.0, 52.6), (14.0, 53.0), (13.8, 53.0), (13.8, 52.6)]],
    ],
    "over west": [[[(13.2, 52.1), (13.6, 52.1), (13.6, 52.9), (13.2, 52.1)]]],
}  # fmt: skip


class Writer:
    """Random rows of one kind, written as people write them."""

    def __init__(self, seed, first_day):
        self.rng = np.random.default_rng(seed)
        self.first = datetime.combine(first_day, datetime.min.time())

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def moment(self, minutes=None):
        """A wall-clock time in the first three days, in some spelling."""
        if self.rng.random() < 0.05:
            return self.pick(BAD_TIMES)
        minutes = self.rng.integers(0, 3 * 1440) if minutes is None else minutes
        when = self.first + timedelta(minutes=int(minutes))
        aware = when.replace(tzinfo=UTC)
        spelled = [
            when.isoformat(),
            when.isoformat(" ", "minutes"),
            aware.isoformat(),
            f"{when.isoformat()}Z",
            f"{when.isoformat()}-0330",
            f"{int(aware.timestamp())}",
            f"{int(aware.timestamp() * 1000)}",
            f"{aware.timestamp() / 86400 + 25569:.5f}",
            f"{aware.timestamp() / 86400 + 25569:.9f}".replace(".", ","),
            f" {when.isoformat()}.250000 ",
        ]
        return self.pick(spelled[:-1] if self.plain else spelled)

    plain = False

    def stay(self):
        """Start and end, both on whole minutes, sometimes the wrong way round."""
        self.plain = True
        begin = int(self.rng.integers(0, 3 * 1440))
        longest = self.pick([0, 30, 600, 2000])
        return self.moment(begin), self.moment(
            begin + self.rng.integers(-9, 9 + longest)
        )

    def point(self):
        if self.rng.random() < 0.05:
            return self.pick(BAD_POINTS)
        lat, lon = self.rng.uniform((51.9, 12.9), (53.1, 14.1))
        if self.rng.random() < 0.5:
            lat, lon = self.pick([(52.3, 13.05), (52.5, 13.45), (52.5, 13.2)])
        if self.rng.random() < 0.2:
            return str(lat).replace(".", ","), str(lon).replace(".", ",")
        return str(lat), str(lon)

    def person(self):
        return "" if self.rng.random() < 0.03 else self.pick(PEOPLE)


def write(path, header, rows):
    quoted = ['"' + str(v).replace('"', '""') + '"' for row in rows for v in row]
    width = len(header)
    lines = [",".join(quoted[k : k + width]) for k in range(0, len(quoted), width)]
    plain = [
        line if 'o"' in line or re.search(r"\d,\d", line) else line.replace('"', "")
        for line in lines
    ]
    path.write_text("\n".join([",".join(header), *plain]) + "\n", encoding="utf-8")


def number_or_none(text, limit):
    try:
        value = float(text.replace(",", ".", 1))
    except ValueError:
        return None
    return value if abs(value) <= limit else None


def lonlat(row):
    lat, lon = number_or_none(row["lat"], 90), number_or_none(row["lon"], 180)
    return None if lat is None or lon is None else (lon, lat)


def agree(imported, oracle, order):
    """Same people, regions, ids at every slot, and rows."""
    traces = imported.traces
    best = oracle.best(order)
    people = sorted({person for person, _, _ in oracle.weight})
    if all(name.isdigit() and str(int(name)) == name for name in people):
        people.sort(key=int)
    regions = sorted({region for _, _, region in oracle.weight}, key=order)
    assert list(traces.names) == people
    assert list(traces.regions.names) == regions
    start = date.fromisoformat(traces.clock.start) - date(1970, 1, 1)
    low = start.days * traces.clock.slots_per_day
    expected = np.full((len(people), traces.slots), -1)
    for (person, slot), region in best.items():
        expected[people.index(person), slot - low] = regions.index(region)
    np.testing.assert_array_equal(traces.by_person, expected)
    assert imported.rows.read == oracle.read
    assert imported.rows.accepted == oracle.read - oracle.refused
    assert sum(imported.rows.refused.values()) == oracle.refused


def rows_of(kind, writer, count=80):
    if kind == "pings":
        return ["person", "time", "lat", "lon"], [
            (writer.person(), writer.moment(), *writer.point()) for _ in range(count)
        ]
    if kind == "stays":
        return ["person", "start", "end", "place"], [
            (writer.person(), *writer.stay(), writer.pick([*PLACES, "", " "]))
            for _ in range(count)
        ]
    last = "cell" if kind == "cells" else "place"
    return ["person", "time", last], [
        (writer.person(), writer.moment(), writer.pick(PLACES)) for _ in range(count)
    ]


@pytest.mark.parametrize("world", range(len(WORLDS)))
@pytest.mark.parametrize("slot_hours", [0.25, 2, 24])
@pytest.mark.parametrize("kind", ["stays", "checkins", "cells"])
def test_given_regions(kind, slot_hours, world, tmp_path):
    zone, first_day = WORLDS[world]
    path = tmp_path / "visits.csv"
    write(path, *rows_of(kind, Writer(world, first_day)))
    settings = ImportSettings(
        kind=kind,
        slot_hours=slot_hours,
        timezone=zone,
        read=ReadSettings(max_refused_share=1),
    )
    column = "cell" if kind == "cells" else "place"
    oracle = import_loop.LoopReader(
        kind,
        zone,
        int(slot_hours * 60),
        lambda row: (row[column].strip() and row[column]) or None,
    ).run(path)
    agree(import_visits(path, settings), oracle, lambda name: name)


@pytest.fixture
def geography(tmp_path):
    """Files of towers and polygons, and how a plain program would use them."""
    rng = np.random.default_rng(3)
    towers = rng.uniform((12.9, 51.9), (14.1, 53.1), (25, 2)).round(3)
    towers[7] = towers[3]
    names = [f"t{(7 * k) % 25}" for k in range(25)]
    places = zip(names, towers, strict=True)
    lines = ["tower,lat,lon"] + [f"{n},{p[1]},{p[0]}" for n, p in places]
    (tmp_path / "towers.csv").write_text("\n".join(lines))
    features = [
        {
            "type": "Feature",
            "properties": {"name": name},
            "geometry": {"type": "MultiPolygon", "coordinates": parts},
        }
        for name, parts in POLYGONS.items()
    ]
    areas = {"type": "FeatureCollection", "features": features}
    (tmp_path / "areas.geojson").write_text(json.dumps(areas))

    def nearest(row):
        here = lonlat(row)
        if here is None:
            return None
        km = [import_loop.great_circle(*here, *tower) for tower in towers]
        return names[int(np.argmin(km))]

    def area(row):
        here = lonlat(row)
        if here is None:
            return None
        inside = [n for n, p in POLYGONS.items() if import_loop.in_polygons(*here, p)]
        return inside[0] if inside else None

    def cell(row):
        here = lonlat(row)
        return None if here is None else import_loop.grid_cell(*here, 7.5)

    def by_number(name):
        return tuple(map(int, name.split("/")))

    return {
        "towers": (nearest, names.index),
        "polygons": (area, list(POLYGONS).index),
        "grid": (cell, by_number),
    }


@pytest.mark.parametrize("world", range(len(WORLDS)))
@pytest.mark.parametrize("rule", ["grid", "towers", "polygons"])
def test_regions_from_points(rule, world, geography, tmp_path):
    zone, first_day = WORLDS[world]
    path = tmp_path / "visits.csv"
    write(path, *rows_of("pings", Writer(world, first_day), 150))
    region_of, order = geography[rule]
    settings = ImportSettings(
        kind="pings",
        regions=rule,
        timezone=zone,
        cell_km=7.5,
        places=str(tmp_path / "towers.csv") if rule == "towers" else None,
        polygons=str(tmp_path / "areas.geojson") if rule == "polygons" else None,
        read=ReadSettings(max_refused_share=0.9),
    )
    oracle = import_loop.LoopReader("pings", zone, 120, region_of).run(path)
    agree(import_visits(path, settings), oracle, order)


@pytest.mark.parametrize("kind", ["checkins", "stays"])
def test_only_the_selected_days(kind, tmp_path):
    zone, first_day = WORLDS[1]
    path = tmp_path / "visits.csv"
    write(path, *rows_of(kind, Writer(5, first_day)))
    low = (date(2020, 3, 29) - date(1970, 1, 1)).days * 12
    settings = ImportSettings(
        kind=kind,
        timezone=zone,
        start="2020-03-29",
        days=1,
        read=ReadSettings(max_refused_share=1),
    )
    oracle = import_loop.LoopReader(
        kind, zone, 120, lambda row: row["place"].strip() or None
    )
    oracle.run(path, window=(low, low + 12))
    imported = import_visits(path, settings)
    agree(imported, oracle, lambda name: name)
    assert imported.rows.refused["outside the selected days"] > 0
    assert imported.traces.clock.days == 1
