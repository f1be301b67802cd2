"""Visits read row by row with plain Python, for tests.

Nothing here is shared with the reader: times go through ``datetime`` and
``zoneinfo``, stays are walked minute by minute, and regions are found by trying
each one.
"""

import csv
import math
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RADIUS_KM = 6371.0088


def read_moment(text, zone):
    """UTC time of a text, or None."""
    text = text.strip()
    try:
        number = float(text.replace(",", ".", 1))
    except ValueError:
        number = None
    if number is not None and 25_569 <= number < 73_051:
        # Days since 30 December 1899 on the wall clock, as in Excel.
        seconds = round((number - 25_569) * 86_400)
        moment = datetime(1970, 1, 1, tzinfo=zone) + timedelta(seconds=seconds)
    elif number is not None:
        if not math.isfinite(number):
            return None
        scale = 1 if abs(number) < 1e11 else 1000
        moment = EPOCH + timedelta(seconds=number / scale)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone)
    return moment.astimezone(UTC)


def wall_slot(moment, zone, slot_minutes):
    """Slot of a moment on the wall clock, counted from 1970."""
    local = moment.astimezone(zone)
    days = local.date().toordinal() - date(1970, 1, 1).toordinal()
    minute = local.hour * 60 + local.minute
    return days * (1440 // slot_minutes) + minute // slot_minutes


class LoopReader:
    """``region_of(row)`` gives a region's name, or None to refuse the row."""

    def __init__(self, kind, zone, slot_minutes, region_of):
        self.kind, self.zone, self.slot_minutes = kind, ZoneInfo(zone), slot_minutes
        self.region_of = region_of
        self.weight = defaultdict(int)
        self.first = {}
        self.read = self.refused = 0

    def run(self, path, delimiter=",", window=None):
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, delimiter=delimiter):
                self.read += 1
                self.refused += not self._take(row, window)
        return self

    def _take(self, row, window):
        if not row["person"].strip():
            return False
        names = ("start", "end") if self.kind == "stays" else ("time",)
        moments = [read_moment(row[name], self.zone) for name in names]
        if None in moments or moments[-1] < moments[0]:
            return False
        region = self.region_of(row)
        if region is None:
            return False
        pieces = list(self._pieces(*moments))
        inside = [p for p in pieces if window is None or window[0] <= p[0] < window[1]]
        for slot, spent, begin in inside:
            key = row["person"], slot, region
            self.weight[key] += spent
            self.first[key] = min(begin, self.first.get(key, begin))
        return bool(inside)

    def _pieces(self, start, end=None):
        """(slot, weight, begin) of one row."""
        if end is None:
            yield wall_slot(start, self.zone, self.slot_minutes), 1, start
        elif start == end:
            yield wall_slot(start, self.zone, self.slot_minutes), 0, start
        else:
            while start < end:
                yield wall_slot(start, self.zone, self.slot_minutes), 1, start
                start += timedelta(minutes=1)

    def best(self, order):
        """{(person, slot): region}; ``order(region)`` settles the last ties."""
        best = {}
        for (person, slot, region), weight in self.weight.items():
            rank = (-weight, self.first[person, slot, region], order(region))
            old = best.get((person, slot))
            if old is None or rank < old[0]:
                best[person, slot] = rank, region
        return {key: region for key, (_, region) in best.items()}


def grid_cell(lon, lat, cell_km):
    """Name of the grid's cell at a point."""
    rows = max(1, round(math.pi * RADIUS_KM / cell_km))
    row = min(math.floor((lat + 90) / 180 * rows), rows - 1)
    middle = math.radians((row + 0.5) / rows * 180 - 90)
    cells = max(1, round(2 * math.pi * RADIUS_KM * math.cos(middle) / cell_km))
    return f"{row}/{math.floor((lon + 180) / 360 * cells) % cells}"


def great_circle(lon, lat, other_lon, other_lat):
    """Kilometres between two points."""
    lon, lat, other_lon, other_lat = map(math.radians, (lon, lat, other_lon, other_lat))
    chord = (
        math.sin((lat - other_lat) / 2) ** 2
        + math.cos(lat) * math.cos(other_lat) * math.sin((lon - other_lon) / 2) ** 2
    )
    return 2 * RADIUS_KM * math.asin(math.sqrt(min(chord, 1)))


def in_ring(lon, lat, ring):
    """Whether a point lies inside a closed ring, by counting crossings."""
    inside = False
    for (x1, y1), (x2, y2) in pairwise(ring):
        if (y1 > lat) != (y2 > lat) and lon < (x2 - x1) * (lat - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside


def in_polygons(lon, lat, polygons):
    """Whether a point lies in one of the polygons, each a ring and its holes."""
    return any(
        in_ring(lon, lat, outer) and not any(in_ring(lon, lat, hole) for hole in holes)
        for outer, *holes in polygons
    )
