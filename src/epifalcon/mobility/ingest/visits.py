"""Pings, stays, check-ins and cell events: from rows to traces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest import columns, geography, values
from epifalcon.mobility.ingest.imported import Imported, finished, require_room
from epifalcon.mobility.ingest.places import Places, read_places
from epifalcon.mobility.ingest.presence import (
    Presence,
    Sightings,
    dominant,
    pieces_of_stays,
)
from epifalcon.mobility.ingest.regioning import (
    GivenRegions,
    GridRegions,
    Keys,
    Regioning,
    Spots,
)
from epifalcon.mobility.ingest.rows import RowCount, Sieve, Tally
from epifalcon.mobility.ingest.settings import ImportSettings
from epifalcon.mobility.ingest.tables import Batch, Table, open_table
from epifalcon.mobility.ingest.times import DAY, Instants, Zone
from epifalcon.mobility.regions import RegionKind
from epifalcon.progress import Progress, silent
from epifalcon.types import Mask

MAX_SPAN_DAYS = 366
OUTSIDE_DAYS = "outside the days asked for"
_FIRST_SLOT, _LAST_SLOT = -(2**31), 2**31 - 1
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_COLUMNS = {
    "pings": ("person", "time", "lat", "lon"),
    "stays": ("person", "start", "end", "place", "lat", "lon"),
    "checkins": ("person", "time", "place", "lat", "lon"),
    "cells": ("person", "time", "cell"),
}


def read_visits(
    path: Path, settings: ImportSettings, progress: Progress = silent
) -> Imported:
    """Traces from a table of pings, stays, check-ins or cell events.

    Each (person, slot) gets the region of most time (stays) or most rows (all
    other kinds); equal ones go to the region seen first in that slot.
    """
    table = open_table(path, settings.read.delimiter)
    places = read_places(settings)
    wanted = _wanted(path, table.names, settings, places)
    days_asked_for = settings.start is not None
    if settings.days is not None and settings.start is None:
        found = _Reading(path, table, settings, wanted, places).run(progress)
        settings = replace(settings, start=_day(found.first_slot, settings.clock(1)))
    reading = _Reading(path, table, settings, wanted, places)
    if days_asked_for:
        reading.tally.expect(OUTSIDE_DAYS)
    scan = reading.run(progress)
    rows = reading.tally.finish()
    return _assemble(path, reading, scan, rows)


@dataclass(frozen=True, eq=False)
class _Scan:
    seen: Sightings
    times_twice: int
    times_never: int

    @property
    def first_slot(self) -> int:
        return int(self.seen.slot.min())


@dataclass(frozen=True)
class _Window:
    """Slots from 1970 that are asked for."""

    low: int
    high: int

    def outside(self, slot: NDArray[np.int32] | NDArray[np.int64]) -> Mask:
        return np.asarray((slot < self.low) | (slot >= self.high))


class _Reading:
    """One pass over the file."""

    def __init__(
        self,
        path: Path,
        table: Table,
        settings: ImportSettings,
        wanted: Mapping[str, str],
        places: Places | None,
    ) -> None:
        self.settings = settings
        self.wanted = wanted
        self.places = places
        self.people = values.Codes()
        self.regioning = _regioning(settings, wanted, places)
        read = settings.read
        self.tally = Tally(
            path, strict=read.strict, max_refused_share=read.max_refused_share
        )
        self._table = table
        self._zone = Zone.of(settings.timezone)
        self._slot_us = settings.clock(1).slot_minutes * 60_000_000
        self._window = _window(settings)
        self._presence = Presence(path)
        self._twice = self._never = 0

    def run(self, progress: Progress) -> _Scan:
        """Read every row; raises ``DataError`` if none is kept."""
        kept = False
        for batch in self._table.batches(self.wanted):
            kept |= self._take(batch)
            self.tally.check_strict()
            progress("reading visits", batch.done, batch.total)
        if not kept:
            self.tally.finish()
        return _Scan(self._presence.total(), self._twice, self._never)

    def _take(self, batch: Batch) -> bool:
        sieve = batch.sieve(self.tally, self._table.width)
        person = values.names(sieve, batch.frame["person"], self.wanted["person"])
        moments = [
            self._times(sieve, batch, name)
            for name in ("time", "start", "end")
            if name in self.wanted
        ]
        if len(moments) == 2:
            self._check_stays(sieve, batch, moments[0], moments[1])
        keys = self.regioning.keys(sieve, self._spots(sieve, batch))
        seen = self._sightings(sieve, batch, keys, moments)
        alive = sieve.alive
        if not alive.any():
            return False
        for moment in moments:
            self._twice += int(np.count_nonzero(moment.twice & alive))
            self._never += int(np.count_nonzero(moment.never & alive))
        codes = np.zeros(len(alive), dtype=np.uint32)
        codes[alive] = self.people.encode(person.filter(pl.Series(alive)))
        for part, row in seen:
            self._presence.add(replace(part, person=codes[row]))
        return True

    def _times(self, sieve: Sieve, batch: Batch, name: str) -> Instants:
        unit = self.settings.read.epoch_unit
        return values.times(
            sieve, batch.frame[name], self.wanted[name], self._zone, unit
        )

    def _check_stays(
        self, sieve: Sieve, batch: Batch, start: Instants, end: Instants
    ) -> None:
        column, called = batch.frame["end"], self.wanted["end"]
        spent = end.utc - start.utc
        sieve.refuse(
            spent < 0, "end before start", called, column, "an end after the start"
        )
        sieve.refuse(
            spent > MAX_SPAN_DAYS * DAY,
            "stay too long",
            called,
            column,
            f"an end within {MAX_SPAN_DAYS} days of the start",
        )

    def _spots(self, sieve: Sieve, batch: Batch) -> Spots:
        wanted, frame = self.wanted, batch.frame
        if "lat" in wanted:
            lat = values.numbers(sieve, frame["lat"], wanted["lat"], 90)
            lon = values.numbers(sieve, frame["lon"], wanted["lon"], 180)
            return Spots(lon=lon, lat=lat)
        text = values.names(sieve, frame["place"], wanted["place"])
        if not self.regioning.needs_points:
            return Spots(text, wanted["place"])
        assert self.places is not None
        at = self.places.find(sieve, text, wanted["place"])
        lonlat = self.places.lonlat[at]
        return Spots(lon=lonlat[:, 0], lat=lonlat[:, 1])

    def _sightings(
        self, sieve: Sieve, batch: Batch, keys: Keys, moments: Sequence[Instants]
    ) -> list[tuple[Sightings, NDArray[np.int64]]]:
        """Sightings without their people, each with the rows that they come from."""
        if len(moments) == 2:
            return self._stay_sightings(sieve, batch, keys, moments)
        utc = moments[0].utc
        slot = self._zone.local(utc) // self._slot_us
        self._refuse_outside(sieve, batch, "time", self._window.outside(slot))
        row = np.flatnonzero(sieve.alive)
        ones = np.ones(len(row), dtype=np.int64)
        nobody = np.zeros(0, dtype=np.uint32)
        seen = Sightings(nobody, slot[row].astype(np.int32), keys[row], ones, utc[row])
        return [(seen, row)]

    def _stay_sightings(
        self, sieve: Sieve, batch: Batch, keys: Keys, moments: Sequence[Instants]
    ) -> list[tuple[Sightings, NDArray[np.int64]]]:
        alive = np.flatnonzero(sieve.alive)
        start, end = (moment.utc[alive] for moment in moments)
        within = np.zeros(len(sieve.alive), dtype=np.bool_)
        seen = []
        nobody = np.zeros(0, dtype=np.uint32)
        for stay, slot, spent, begin in pieces_of_stays(
            start, end, self._zone, self._slot_us
        ):
            inside = ~self._window.outside(slot)
            row = alive[stay[inside]]
            within[row] = True
            part = Sightings(nobody, slot[inside], keys[row], spent[inside],
                             begin[inside])  # fmt: skip
            seen.append((part, row))
        self._refuse_outside(sieve, batch, "start", ~within)
        return seen

    def _refuse_outside(
        self, sieve: Sieve, batch: Batch, name: str, outside: Mask
    ) -> None:
        sieve.refuse(
            outside,
            OUTSIDE_DAYS,
            self.wanted[name],
            batch.frame[name],
            _told_days(self.settings),
        )


def _wanted(
    path: Path, names: Sequence[str], settings: ImportSettings, places: Places | None
) -> dict[str, str]:
    """The columns to read; a cell's column is read as a place."""
    kind, rule = settings.kind, settings.regions
    chosen = columns.renamed(settings.read.columns, _COLUMNS[kind])
    moments = ("start", "end") if kind == "stays" else ("time",)
    wanted = {
        ours: columns.need(path, names, ours, chosen) for ours in ("person", *moments)
    }
    if kind == "cells":
        wanted["place"] = columns.need(path, names, "cell", chosen)
    elif kind != "pings":
        place = columns.find(path, names, "place", chosen)
        if place is not None:
            wanted["place"] = place
        elif rule == "given":
            columns.need(path, names, "place", chosen)
    by_name = rule in ("auto", "given") and "place" in wanted
    if by_name:
        return wanted
    if kind != "cells" and _any_point(path, names, chosen):
        wanted.pop("place", None)
        for ours in ("lat", "lon"):
            wanted[ours] = columns.need(path, names, ours, chosen)
    elif "place" not in wanted:
        columns.need(path, names, "lat" if kind == "pings" else "place", chosen)
    elif places is None:
        raise SettingsError(
            f"regions={rule!r} needs lat and lon, which {path} does not have: name "
            "these columns, or a table of places (places=FILE) that holds them"
        )
    return wanted


def _any_point(path: Path, names: Sequence[str], chosen: Mapping[str, str]) -> bool:
    return any(
        columns.find(path, names, ours, chosen) is not None for ours in ("lat", "lon")
    )


def _regioning(
    settings: ImportSettings, wanted: Mapping[str, str], places: Places | None
) -> Regioning:
    rule, everything = settings.regions, settings.keep_unvisited
    if rule == "auto":
        rule = "grid" if "lat" in wanted else "given"
    if rule == "given":
        kind: RegionKind = "area" if settings.kind == "cells" else "poi"
        return GivenRegions(places, kind, everything)
    if rule == "h3":
        return geography.H3Regions(settings.h3_resolution)
    if rule == "polygons":
        assert settings.polygons is not None
        areas = Path(settings.polygons)
        return geography.PolygonRegions(areas, settings.polygon_name, everything)
    if rule == "towers":
        assert places is not None
        return geography.TowerRegions(places, settings.max_tower_km, everything)
    return GridRegions(settings.cell_km)


def _window(settings: ImportSettings) -> _Window:
    per_day = settings.clock(1).slots_per_day
    if settings.start is None:
        return _Window(_FIRST_SLOT, _LAST_SLOT)
    first = date.fromisoformat(settings.start).toordinal() - _EPOCH_ORDINAL
    low = first * per_day
    if settings.days is None:
        return _Window(low, _LAST_SLOT)
    return _Window(low, low + settings.days * per_day)


def _told_days(settings: ImportSettings) -> str:
    if settings.days is None:
        return f"{settings.start} or later"
    return f"{settings.days} days from {settings.start}"


def _day(slot: int, clock: Clock) -> str:
    """ISO date of a slot counted from 1970."""
    return date.fromordinal(slot // clock.slots_per_day + _EPOCH_ORDINAL).isoformat()


def _clock(path: Path, settings: ImportSettings, seen: Sightings) -> tuple[Clock, int]:
    """The clock of the traces, and its first slot counted from 1970."""
    per_day = settings.clock(1).slots_per_day
    first, last = int(seen.slot.min()) // per_day, int(seen.slot.max()) // per_day
    if settings.start is not None:
        first = _window(settings).low // per_day
    days = settings.days or last - first + 1
    start = date.fromordinal(first + _EPOCH_ORDINAL).isoformat()
    if settings.days is None and days > MAX_SPAN_DAYS:
        low, high = np.quantile(seen.slot, [0.01, 0.99]).astype(int) // per_day
        raise DataError(
            f"{path}: the times run over {days} days, from {start} to "
            f"{_day(last * per_day, settings.clock(1))}, more than {MAX_SPAN_DAYS}; "
            f"most lie in {high - low + 1} days from "
            f"{_day(low * per_day, settings.clock(1))}: say which days to take with "
            "start and days"
        )
    return settings.clock(days, start), first * per_day


def _assemble(path: Path, reading: _Reading, scan: _Scan, rows: RowCount) -> Imported:
    seen, settings = scan.seen, reading.settings
    clock, low = _clock(path, settings, seen)
    codes, person = np.unique(seen.person, return_inverse=True)
    require_room(path, len(codes), clock)
    names = reading.people.decode(codes)
    order = values.natural_order(names)
    keys, region = np.unique(seen.region, return_inverse=True)
    numbered = reading.regioning.number(keys)
    final = Sightings(
        np.argsort(order).astype(np.uint32)[person],
        seen.slot - np.int32(low),
        numbered.ids[region],
        seen.weight,
        seen.first,
    )
    by_slot = dominant(final, clock.slots, len(codes))
    told = tuple(names.gather(order).to_list())
    traces = finished(by_slot, clock, numbered.regions, told, settings)
    return Imported(
        traces,
        rows,
        reading.places.rows if reading.places else None,
        dict(reading.wanted),
        scan.times_twice,
        scan.times_never,
    )
