"""Import visits: convert pings, stays, check-ins, cell events, matrices and contacts.

Also reads visits of a known city (person, day, hour, region), where days are numbers
from 1 or dates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io.columns import (
    DAY,
    RowCount,
    RowFilter,
    Rule,
    keep_ids,
    keep_numbers,
    keep_times,
    localise,
    natural_order,
    show,
)
from epifalcon.mobility.io.contacts import (
    ContactRegions,
    find_groups,
    number_groups,
    share_represented,
)
from epifalcon.mobility.io.plausibility import (
    NIGHT_HOURS,
    Extent,
    find_warnings,
    share_if_filled,
)
from epifalcon.mobility.io.regions import (
    GivenRegions,
    GridRegions,
    H3Regions,
    LocationTable,
    PolygonRegions,
    RegionRule,
    TowerRegions,
    look_up,
    read_places,
)
from epifalcon.mobility.io.settings import ImportSettings, ReadSettings
from epifalcon.mobility.io.tables import (
    InputTable,
    find_column,
    need_column,
    open_table,
    renamed,
)
from epifalcon.mobility.regions import RegionKind, Regions
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, RegionIds

MAX_CELLS = 2_000_000_000
MAX_RECORDS = 180_000_000
MAX_SPAN_DAYS = 366
OUTSIDE_DAYS = "outside the selected days"
_MAX_PIECES = 4_000_000
_MERGE_ROWS = 4_000_000
_CHUNK_CELLS = 4_000_000
_LARGEST_ID = 2**53
_MAGIC = b"\x93NUMPY"
STRICT = ReadSettings(strict=True)
_HOURS = 24
_COLUMNS = {
    "pings": ("person", "time", "lat", "lon"),
    "stays": ("person", "start", "end", "place", "lat", "lon"),
    "checkins": ("person", "time", "place", "lat", "lon"),
    "cells": ("person", "time", "cell"),
    "contacts": ("person", "other", "start", "end", "duration"),
}


@dataclass(frozen=True, eq=False)
class Imported:
    """Traces imported from a file, and counts of its rows."""

    traces: Traces
    rows: RowCount
    places: RowCount | None = None
    """Row counts of the table of places, if given."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column name in the file by internal column name."""
    ambiguous_times: int = 0
    """Number of accepted rows whose wall-clock time occurs twice (clocks set back)."""
    nonexistent_times: int = 0
    """Number of accepted rows whose wall-clock time does not exist (set forward)."""
    cells: str = ""
    """Description of the regions, e.g. ``grid cells of 1 km``."""
    share_if_filled: float | None = None
    """Share observed if the gaps of a night were filled; None for contacts."""
    warnings: tuple[str, ...] = ()
    """Probable mistakes in the data, each with its remedy."""

    @cached_property
    def extent(self) -> Extent | None:
        """Bounding box of the regions; None without coordinates."""
        return Extent.of(self.traces.regions)

    def as_plain(self) -> dict[str, Any]:
        """Return the counts for JSON: rows, people, regions, slots, share observed."""
        traces = self.traces
        return {
            **self.rows.as_plain(),
            "people": traces.people,
            "regions": len(traces.regions),
            "slots": traces.slots,
            "share_observed": traces.observed_share,
            "share_if_filled": self.share_if_filled,
            "cells": self.cells,
            "extent": self.extent.as_plain() if self.extent else None,
            "warnings": list(self.warnings),
            "start": traces.clock.start,
            "days": traces.clock.days,
            "slot_hours": traces.clock.slot_hours,
            "timezone": traces.clock.timezone,
            "columns": dict(self.columns),
            "times_twice": self.ambiguous_times,
            "times_never": self.nonexistent_times,
            "places": self.places.as_plain() if self.places else None,
        }


def import_visits(
    path: Path, settings: ImportSettings, progress: Progress = silent
) -> Imported:
    """Import traces from the file ``path`` of the kind given in the settings.

    Bad rows are rejected and counted by reason; other problems raise ``DataError``.
    People and regions are numbered in the order of their names. Each (person, slot)
    gets the region of most time (stays, contacts) or most rows (all other kinds); ties
    go to the region seen first in that slot.
    """
    if settings.kind == "matrix":
        return read_matrix(path, settings, progress)
    table = open_table(path, settings.read.delimiter)
    places = read_places(settings)
    wanted = _wanted(table, settings, places)
    # Rows outside the days that the user selected are not errors.
    ignored = () if settings.start is None else (OUTSIDE_DAYS,)
    if settings.days is not None and settings.start is None:
        reading = _Reading(table, settings, wanted, places, ignored)
        first = int(reading.run(progress)["slot"].min())  # type: ignore[arg-type]
        settings = replace(settings, start=_day(first, settings.clock(1)))
    reading = _Reading(table, settings, wanted, places, ignored)
    _require_listed(settings, reading.regions)
    seen = reading.run(progress)
    rows = reading.rows.finish()
    clock = _clock(path, settings, seen["slot"])
    contacts, represented = settings.kind == "contacts", 1.0
    pieces = seen
    seen, names = _number_people(find_groups(seen) if contacts else seen)
    _require_room(path, len(names), clock)
    seen = seen.with_columns(slot=pl.col("slot") - clock.epoch_slot)
    if contacts:
        by_slot = dominant(seen, clock.slots, len(names))
        keys = number_groups(by_slot)
        represented = share_represented(pieces, by_slot, names, clock.epoch_slot)
    else:
        by_slot, keys = _numbered_regions(seen, reading.regions, clock, len(names))
        fill_gaps(by_slot, gap_slots(settings))
    traces = Traces(by_slot, clock, reading.regions.regions(keys), names)
    listed = places.rows if places else None
    warnings = find_warnings(
        traces,
        rows,
        columns=wanted,
        small_regions=reading.regions.larger,
        offsets=reading.rows.offsets,
        overlaps=reading.overlaps,
        overlap_row=reading.overlap_row,
        represented=represented,
    )
    return Imported(
        traces,
        rows,
        listed,
        wanted,
        ambiguous_times=reading.twice,
        nonexistent_times=reading.never,
        cells=reading.regions.cells,
        share_if_filled=None if contacts else share_if_filled(traces, NIGHT_HOURS),
        warnings=warnings,
    )


class _Reading:
    """Reader of a file of visits that filters and aggregates its rows in one pass."""

    def __init__(
        self,
        table: InputTable,
        settings: ImportSettings,
        wanted: Mapping[str, str],
        places: LocationTable | None,
        ignored: tuple[str, ...],
    ) -> None:
        self.rows = RowFilter(table.path, wanted, settings.read, ignored)
        self._people = pl.Categorical(pl.Categories.random())
        self.regions = _region_rule(settings, wanted, places)
        if settings.kind == "contacts":
            self.regions = ContactRegions(self._people)
        self.twice = self.never = 0
        self.overlaps = 0
        self.overlap_row: int | None = None
        self._table, self._settings, self._places = table, settings, places
        self._wanted = wanted
        self._slot_us = settings.clock(1).slot_minutes * 60_000_000
        self._seen: list[pl.DataFrame] = []

    def run(self, progress: Progress) -> pl.DataFrame:
        """Read every row; raise ``DataError`` if none is accepted.

        Returns one row per person, slot (from 1970, on the wall clock) and region
        key, with the number of rows or microseconds (``weight``) and the earliest
        moment (``first``).
        """
        waiting = 0
        for batch in self.rows.batches(self._table):
            for part in self._take(batch.frame):
                self._seen.append(part)
                waiting += len(part)
                if waiting > _MERGE_ROWS:
                    self._merge()
                    waiting = 0
            progress("reading visits", batch.done, batch.total)
        if not self._seen:
            self.rows.finish()
        self._merge()
        return self._seen[0]

    def _merge(self) -> None:
        """Aggregate the rows read so far, to limit memory; raise if too many remain."""
        seen = pl.concat(self._seen).lazy()
        if self._settings.kind == "contacts":
            # Which contacts overlap is known only at the end.
            total = seen.unique()
        else:
            groups = seen.group_by("person", "slot", "region")
            total = groups.agg(pl.sum("weight"), pl.min("first"))
        self._seen = [total.collect(engine="streaming")]
        if len(self._seen[0]) > MAX_RECORDS:
            raise DataError(
                f"{self._table.path}: more than {MAX_RECORDS:,} distinct (person, "
                "slot, region): choose fewer days (start, days) or longer slots "
                "(slot_hours)"
            )

    def _take(self, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        rows, settings = self.rows, self._settings
        frame = keep_ids(rows, frame, "person")
        moments = [name for name in ("time", "start", "end") if name in self._wanted]
        for name in moments:
            unit = settings.read.epoch_unit
            frame = keep_times(rows, frame, name, settings.timezone, unit)
        has_length = "start" in moments
        if has_length:
            last = "end"
            if "end" not in moments:
                last = "duration"
                frame = keep_numbers(rows, frame, last, MAX_SPAN_DAYS * 1440)
                spent = (pl.col("duration_value") * 60_000_000).round(0)
                frame = frame.with_columns(
                    end_utc=pl.col("start_utc") + spent.cast(pl.Int64)
                )
            spent = pl.col("end_utc") - pl.col("start_utc")
            late = f"an end within {MAX_SPAN_DAYS} days of the start"
            frame = rows.keep(
                frame,
                Rule("end before start", last, "an end after the start", spent < 0),
                Rule("stay too long", last, late, spent > MAX_SPAN_DAYS * DAY),
            )
        frame = self._place(frame)
        frame = frame.with_columns(who=pl.col("person_text").cast(self._people))
        if settings.kind == "stays":
            self._find_overlaps(frame)
        low, high = -(2**31), 2**31 - 1
        if settings.start is not None:
            clock = settings.clock(settings.days or 1)
            low = clock.epoch_slot
            high = low + clock.slots - 1 if settings.days else high
        if has_length:
            frame, parts = self._cut(frame, low, high)
        else:
            slot = pl.col("time_local") // self._slot_us
            frame = frame.with_columns(slot=slot, weight=pl.lit(1), first="time_utc")
            inside = pl.col("slot").is_between(low, high)
            parts = [frame := self._keep_inside(frame, "time", inside)]
        for name in moments:
            self.twice += int(frame[f"{name}_twice"].sum())
            self.never += int(frame[f"{name}_never"].sum())
        return [
            part.select(
                pl.col("who").alias("person"),
                pl.col("slot").cast(pl.Int32),
                "region",
                pl.col("weight").cast(pl.Int64),
                "first",
            )
            for part in parts
            if len(part)
        ]

    def _find_overlaps(self, frame: pl.DataFrame) -> None:
        """Count stays that begin before the one before them ends, in one batch."""
        stays = frame.select(pl.col("who").to_physical(), "start_utc", "end_utc", "row")
        stays = stays.sort("who", "start_utc")
        again = pl.col("who") == pl.col("who").shift()
        again &= pl.col("start_utc") < pl.col("end_utc").shift()
        found = stays.filter(again)["row"]
        self.overlaps += len(found)
        if self.overlap_row is None and len(found):
            self.overlap_row = int(found.min())  # type: ignore[arg-type]

    def _place(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add ``region``, the key of each row's region; drop rows without one."""
        rows, places = self.rows, self._places
        if "other" in self._wanted:
            frame = keep_ids(rows, frame, "other")
            oneself = pl.col("other_text") == pl.col("person_text")
            rule = Rule("contact with oneself", "other", "another person", oneself)
            frame = rows.keep(frame, rule)
        elif "lat" in self._wanted:
            frame = keep_numbers(rows, frame, "lat", 90)
            frame = keep_numbers(rows, frame, "lon", 180)
        else:
            frame = keep_ids(rows, frame, "place")
            if not isinstance(self.regions, GivenRegions):
                assert places is not None
                at = look_up(frame["place_text"], places.table["name"])
                frame = rows.keep(frame.with_columns(region=at), places.unknown)
                lon, lat = places.table.select("lon", "lat")[frame["region"]]
                frame = frame.with_columns(lon_value=lon, lat_value=lat)
        frame = frame.with_columns(region=self.regions.keys(frame))
        return rows.keep(frame, self.regions.nowhere) if self.regions.nowhere else frame

    def _keep_inside(
        self, frame: pl.DataFrame, name: str, inside: pl.Expr
    ) -> pl.DataFrame:
        settings = self._settings
        expected = f"{settings.days} days from {settings.start}"
        if settings.days is None:
            expected = f"{settings.start} or later"
        return self.rows.keep(frame, Rule(OUTSIDE_DAYS, name, expected, ~inside))

    def _cut(
        self, frame: pl.DataFrame, low: int, high: int
    ) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
        """Split stays into slots of the wall clock; drop those outside the days.

        Returns the accepted stays, and the pieces in several tables to limit memory.
        Durations are elapsed time even if clocks change. A stay of length 0 is one
        piece of weight 0.
        """
        if frame.is_empty():
            return frame, []
        start, end = frame["start_utc"].to_numpy(), frame["end_utc"].to_numpy()
        zone, last = self._settings.timezone, int(end.max())
        edges = _slot_edges(int(start.min()), last, zone, self._slot_us)
        edge = edges["utc"].to_numpy()
        piece = np.searchsorted(edge, start, side="right") - 1
        past = np.maximum(np.searchsorted(edge, end, side="left"), piece + 1)
        group = np.cumsum(past - piece) // _MAX_PIECES
        stays = frame.select("who", "region", "start_utc", "end_utc")
        stays = stays.with_row_index("stay").with_columns(group=group)
        stays = stays.with_columns(piece=piece, past=past)
        begin, spent = pl.max_horizontal("start_utc", "utc"), pl.col("end_utc")
        spent = pl.min_horizontal(spent, "until") - begin
        inside = np.zeros(len(frame), dtype=np.bool_)
        parts = []
        for part in stays.partition_by("group", maintain_order=True):
            cut = part.with_columns(piece=pl.int_ranges("piece", "past"))
            cut = cut.explode("piece").join(edges, on="piece")
            cut = cut.filter(pl.col("slot").is_between(low, high))
            inside[cut["stay"].to_numpy()] = True
            parts.append(cut.with_columns(weight=spent, first=begin))
        return self._keep_inside(frame, "start", pl.lit(pl.Series(inside))), parts


def _slot_edges(first: int, last: int, zone: str, slot_us: int) -> pl.DataFrame:
    """Return the wall-clock slots: number ``piece``, ``slot``, ``utc`` to ``until``."""
    step = gcd(slot_us, 900_000_000)
    utc = np.arange(first // step, last // step + 2) * step
    zoned = pl.Series([True]).new_from_index(0, len(utc))
    slot = localise(pl.Series(utc), zoned, zone)["local"].to_numpy() // slot_us
    begins = np.flatnonzero(np.diff(slot, prepend=slot[0] - 1))
    edges = pl.DataFrame({"utc": utc[begins], "slot": slot[begins]})
    until = pl.col("utc").shift(-1)
    return edges.with_columns(until=until, piece=pl.int_range(pl.len()))


def _number_people(seen: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Replace the names in ``person`` by numbers in their natural order."""
    names = seen["person"].unique()
    text = names.cast(pl.String)
    order = natural_order(text)
    numbers = pl.DataFrame({"person": names, "number": np.argsort(order)})
    seen = seen.join(numbers, on="person").drop("person")
    return seen.rename({"number": "person"}), tuple(text.gather(order).to_list())


def _numbered_regions(
    seen: pl.DataFrame, rule: RegionRule, clock: Clock, people: int
) -> tuple[RegionIds, pl.Series]:
    """Return the region of each slot and person, and the keys of the regions."""
    keys = rule.in_order(seen["region"].unique())
    ids = keys.to_frame("region").with_row_index("id")
    seen = seen.join(ids, on="region").drop("region").rename({"id": "region"})
    return dominant(seen, clock.slots, people), keys


def dominant(seen: pl.DataFrame, slots: int, people: int) -> RegionIds:
    """Return the region of largest weight per (slot, person), -1 for none.

    Ties go to the region seen first in the slot, then to the lower id. ``seen``
    has one row per person, slot (from 0) and region.
    """
    order = seen.sort("weight", "first", "region", descending=[False, True, True])
    best = np.full((slots, people), UNKNOWN, dtype=np.int32)
    # Where an index is repeated, NumPy assigns the last value.
    slot, person, region = (order[name] for name in ("slot", "person", "region"))
    best[slot.to_numpy(), person.to_numpy()] = region.to_numpy()
    return best


def fill_gaps(by_slot: RegionIds, longest: int) -> None:
    """Fill gaps of up to ``longest`` slots in (slots, people), in place.

    Between two observations, the person is assumed to have stayed in the region before
    the gap.
    """
    last = np.full(by_slot.shape[1], -1)
    for slot in range(len(by_slot) if longest > 0 else 0):
        seen = np.flatnonzero(by_slot[slot] != UNKNOWN)
        gap = slot - last[seen] - 1
        filled = seen[(last[seen] >= 0) & (gap > 0) & (gap <= longest)]
        for back in range(1, longest + 1):
            filled = filled[slot - back > last[filled]]
            if not filled.size:
                break
            by_slot[slot - back, filled] = by_slot[last[filled], filled]
        last[seen] = slot


def gap_slots(settings: ImportSettings) -> int:
    """Return the length in slots of the longest gap that is filled."""
    # A tolerance for rounding: 0.3 / 0.1 is slightly less than 3.
    return int(settings.fill_gap_hours / settings.slot_hours + 1e-9)


def _require_room(path: Path, people: int, clock: Clock) -> None:
    cells = people * clock.slots
    if cells > MAX_CELLS:
        raise DataError(
            f"{path}: {people:,} people x {clock.slots:,} slots are {cells:,} cells, "
            f"more than {MAX_CELLS:,}: choose fewer days (start, days) or longer slots"
        )


def _wanted(
    table: InputTable, settings: ImportSettings, places: LocationTable | None
) -> dict[str, str]:
    """Return the columns to read, by internal name; cells are read as places."""
    kind, rule = settings.kind, settings.regions
    chosen = renamed(settings.read.columns, _COLUMNS[kind])
    if kind == "contacts":
        ends = find_column(table, "end", chosen) is not None
        names = ("person", "other", "start", "end" if ends else "duration")
        return {ours: need_column(table, ours, chosen) for ours in names}
    moments = ("start", "end") if kind == "stays" else ("time",)
    wanted = {ours: need_column(table, ours, chosen) for ours in ("person", *moments)}
    place = None
    if kind == "cells":
        place = need_column(table, "cell", chosen)
    elif kind != "pings":
        find = need_column if rule == "given" else find_column
        place = find(table, "place", chosen)
    if place is not None and rule in ("auto", "given"):
        return {**wanted, "place": place}
    points = {} if kind == "cells" else dict.fromkeys(("lat", "lon"))
    if any(find_column(table, ours, chosen) is not None for ours in points):
        return wanted | {ours: need_column(table, ours, chosen) for ours in points}
    if place is None:
        need_column(table, "lat" if kind == "pings" else "place", chosen)
    elif places is None:
        raise SettingsError(
            f"regions={rule!r} needs lat and lon, which {table.path} does not have: "
            "name these columns, or a table of places (places=FILE) that holds them"
        )
    return wanted | {"place": str(place)}


def _region_rule(
    settings: ImportSettings, wanted: Mapping[str, str], places: LocationTable | None
) -> RegionRule:
    rule, everything = settings.regions, settings.keep_unvisited
    if rule == "given" or (rule == "auto" and "lat" not in wanted):
        kind: RegionKind = "area" if settings.kind == "cells" else "poi"
        return GivenRegions(places, kind, everything)
    if rule == "h3":
        return H3Regions(settings.h3_resolution)
    if rule == "polygons":
        areas = Path(str(settings.polygons))
        return PolygonRegions(areas, settings.polygon_name, everything)
    if rule == "towers":
        assert places is not None
        return TowerRegions(places, settings.max_tower_km, everything)
    return GridRegions(settings.cell_km)


def _require_listed(settings: ImportSettings, rule: RegionRule) -> None:
    """Raise ``SettingsError`` if unvisited regions are wanted, but in no file."""
    if settings.keep_unvisited and not rule.unvisited:
        raise SettingsError(
            "keep_unvisited=true needs regions that a file lists: choose polygons, "
            "towers, or given regions with a table of places; of a grid, of H3 cells "
            "and of names in the data only visited regions are known"
        )


def _day(slot: int, clock: Clock) -> str:
    """Return the ISO date of a slot counted from 1970."""
    return str(np.datetime64(int(slot) // clock.slots_per_day, "D"))


def _clock(path: Path, settings: ImportSettings, slot: pl.Series) -> Clock:
    """Return the clock of the traces from settings and slots (counted from 1970)."""
    one, slots = settings.clock(1), slot.to_numpy()
    per_day = one.slots_per_day
    start = settings.start or _day(int(slots.min()), one)
    first = settings.clock(1, start).epoch_slot // per_day
    last = int(slots.max()) // per_day
    days = settings.days or last - first + 1
    if settings.days is None and days > MAX_SPAN_DAYS:
        low, high = np.quantile(slots, [0.01, 0.99]).astype(int) // per_day
        raise DataError(
            f"{path}: the times span {days} days, from {start} to "
            f"{_day(last * per_day, one)}, more than {MAX_SPAN_DAYS}; most are in "
            f"{high - low + 1} days from {_day(low * per_day, one)}: select the days "
            "with start and days"
        )
    return settings.clock(days, start)


@dataclass(frozen=True, eq=False)
class MoreVisits:
    """Visits of a city that exists, on a clock and in its regions."""

    traces: Traces
    rows: RowCount
    unknown_places: Mapping[str, int] = field(default_factory=dict)
    """Number of observed slots at each place that is no region of the city."""
    other_days: Mapping[str, int] = field(default_factory=dict)
    """Number of observations outside the clock, by date."""


def read_more_visits(
    path: Path,
    settings: ImportSettings | None,
    clock: Clock,
    regions: Regions,
    first_day: int = 1,
    progress: Progress = silent,
) -> MoreVisits:
    """Read visits in the regions of a city from a file like that of its import.

    A file with the columns person, day, hour and region is read by
    ``read_day_visits``, and every file if the city was not imported (no ``settings``).
    Slots at a place that is no region of the city count as not observed. Raises
    ``DataError`` if no visit is on ``clock``.
    """
    if settings is None or _has_day_columns(path, settings):
        return read_day_visits(path, clock, regions, first_day)
    if settings.kind == "contacts":
        raise SettingsError(
            f"{path}: contacts cannot be added to a city, because its regions are "
            "groups of people of the import: import all days together"
        )
    settings = replace(settings, start=None, days=None)
    if settings.kind == "matrix":
        found = read_matrix(path, replace(settings, start=clock.start), progress)
        if (days := found.traces.clock.days) != clock.days:
            raise DataError(f"{path}: holds {days} days, expected {clock.days}")
        return _in_regions(found.traces, found.rows, regions, {})
    table = open_table(path, settings.read.delimiter)
    places = read_places(settings)
    wanted = _wanted(table, settings, places)
    reading = _Reading(table, settings, wanted, places, ())
    seen = reading.run(progress)
    rows = reading.rows.finish()
    slot = pl.col("slot") - clock.epoch_slot
    seen = seen.with_columns(slot=slot)
    inside = pl.col("slot").is_between(0, clock.slots - 1)
    others = seen.filter(~inside)["slot"] // clock.slots_per_day
    other_days = {
        clock.date(int(day)): int(count)
        for day, count in others.value_counts().sort("slot").iter_rows()
    }
    seen = seen.filter(inside)
    if seen.is_empty():
        listed = ", ".join(list(other_days)[:3])
        more = f" and {len(other_days) - 3} more days" if len(other_days) > 3 else ""
        last = clock.date(clock.days - 1)
        expected = clock.date(0) + (f" to {last}" if clock.days > 1 else "")
        raise DataError(
            f"{path}: expected visits of {expected}, found those of {listed}{more}; "
            "days cannot be skipped or repeated"
        )
    seen, names = _number_people(seen)
    _require_room(path, len(names), clock)
    by_slot, keys = _numbered_regions(seen, reading.regions, clock, len(names))
    fill_gaps(by_slot, gap_slots(settings))
    traces = Traces(by_slot, clock, reading.regions.regions(keys), names)
    return _in_regions(traces, rows, regions, other_days)


def _has_day_columns(path: Path, settings: ImportSettings) -> bool:
    """Return True if the table has columns of day, hour and region."""
    if settings.kind == "matrix":
        return path.suffix != ".npy"
    table = open_table(path, settings.read.delimiter)
    needed = ("hour", "day", "region")
    return all(find_column(table, ours, {}) is not None for ours in needed)


def _in_regions(
    traces: Traces, rows: RowCount, regions: Regions, other_days: Mapping[str, int]
) -> MoreVisits:
    """Renumber the regions as those of the same name in ``regions``."""
    names = pl.Series([regions.name(number) for number in range(len(regions))])
    own = pl.Series([traces.regions.name(at) for at in range(len(traces.regions))])
    number = look_up(own, names).fill_null(UNKNOWN).to_numpy()
    visited, slots = np.unique(traces.by_slot, return_counts=True)
    unknown = {
        traces.regions.title(int(at)): int(count)
        for at, count in zip(visited, slots, strict=True)
        if at != UNKNOWN and number[at] == UNKNOWN
    }
    # -1 (not observed) indexes the last entry.
    by_slot = np.append(number, UNKNOWN).astype(np.int32)[traces.by_slot]
    known = Traces(by_slot, traces.clock, regions, traces.names)
    return MoreVisits(known, rows, unknown, other_days)


def read_day_visits(
    path: Path, clock: Clock, regions: Regions, first_day: int = 1
) -> MoreVisits:
    """Read the visits in a CSV or Parquet file, on ``clock`` and in ``regions``.

    ``first_day`` is the number of the clock's first day. Each (person, slot) gets
    the region of most rows; ties go to the first. A bad row raises ``DataError``.
    """
    table = open_table(path)
    columns = ("person", "day", "hour", "region")
    wanted = {ours: need_column(table, ours, {}) for ours in columns}
    rows = RowFilter(path, wanted, STRICT)
    names = pl.Series([regions.name(number) for number in range(len(regions))])
    expected = f"one of the {len(names):,} regions, such as {names[0]!r}"
    unknown = Rule("unknown region", "region", expected, pl.col("at").is_null())
    parts = []
    for batch in rows.batches(table):
        frame = keep_slots(rows, batch.frame, clock, first_day)
        frame = keep_ids(rows, frame, "region")
        frame = frame.with_columns(at=look_up(frame["region_text"], names))
        parts.append(rows.keep(frame, unknown))
    count = rows.finish()
    seen = pl.concat(parts).group_by(person="person_text", slot="slot", region="at")
    counted = seen.agg(weight=pl.len(), first=pl.col("row").min())
    numbered, people = _number_people(counted)
    by_slot = dominant(numbered, clock.slots, len(people))
    return MoreVisits(Traces(by_slot, clock, regions, people), count)


def keep_slots(
    rows: RowFilter, frame: pl.DataFrame, clock: Clock, first_day: int = 1
) -> pl.DataFrame:
    """Add columns ``person_text`` and ``slot``; reject rows outside ``clock``."""
    frame = keep_ids(rows, frame, "person")
    text = pl.col("day").cast(pl.String, strict=False).str.strip_chars()
    value = text.cast(pl.Float64, strict=False)
    day = pl.when(value == value.floor()).then(value).cast(pl.Int64, strict=False)
    day -= first_day
    last = first_day + clock.days - 1
    expected = f"{first_day} to {last}" if last > first_day else f"{first_day}"
    if clock.start is not None:
        start = date.fromisoformat(clock.start)
        dated = text.str.to_date("%Y-%m-%d", strict=False) - start
        day = pl.coalesce(dated.dt.total_days(), day)
        end = date.fromordinal(start.toordinal() + clock.days - 1)
        expected += f", or {start} to {end}" if end > start else f", or {start}"
    outside = ~day.is_between(0, clock.days - 1).fill_null(False)
    frame = rows.keep(frame, Rule("another day", "day", expected, outside))
    slot = day * clock.slots_per_day
    if "hour" in frame.columns:
        frame = keep_numbers(rows, frame, "hour", _HOURS)
        hour = pl.col("hour_value")
        wrong = (hour < 0) | (hour >= _HOURS)
        late = Rule("not an hour of a day", "hour", "0 to less than 24", wrong)
        frame = rows.keep(frame, late)
        slot += (hour * 60 / clock.slot_minutes).floor().cast(pl.Int64)
    return frame.with_columns(slot=slot)


def read_matrix(
    path: Path, settings: ImportSettings, progress: Progress = silent
) -> Imported:
    """Import traces from a matrix (people, columns of ``matrix_slot_hours`` each).

    Whole numbers are region ids; negative ones and NaN are "not observed"; a row with
    anything else is rejected. A slot of several columns gets its most frequent id;
    ties go to the first. People and regions are named by their numbers.
    """
    matrix = _open_matrix(path)
    clock, width = _matrix_clock(path, matrix, settings)
    _require_room(path, len(matrix), clock)
    matrix = matrix[:, : clock.slots * width]
    rows = RowFilter(path, {}, settings.read)
    accepted, ids = np.zeros(len(matrix), dtype=np.bool_), np.empty(0, dtype=np.int64)
    for first, part in _chunks(matrix):
        accepted[first : first + len(part)] = _good_rows(rows, first, part)
        found = _region_ids(part[accepted[first : first + len(part)]])
        ids = np.union1d(ids, np.unique(found))
        progress("reading matrix", first + len(part), len(matrix))
    count = rows.finish()
    ids = ids[ids >= 0]
    if ids.size == 0:
        raise DataError(f"{path}: no observations: all entries are negative or NaN")

    places = read_places(settings)
    given = GivenRegions(places, "area", settings.keep_unvisited)
    _require_listed(settings, given)
    keys = given.keys(pl.DataFrame({"place_text": pl.Series(ids).cast(pl.String)}))
    if keys.null_count():
        lost = ids[keys.is_null().to_numpy()]
        raise DataError(
            f"{path}: region {lost[0]} (and {lost.size - 1} more) is not in the "
            f"table of places {settings.places}"
        )
    ordered = given.in_order(keys)
    final = look_up(keys, ordered).to_numpy().astype(np.int32)
    by_slot = np.empty((clock.slots, np.count_nonzero(accepted)), dtype=np.int32)
    done = 0
    for first, part in _chunks(matrix):
        found = _region_ids(part[accepted[first : first + len(part)]])
        known = found >= 0
        at = np.searchsorted(ids, np.where(known, found, ids[0]))
        local = np.where(known, final[at], np.int32(UNKNOWN))
        by_slot[:, done : done + len(local)] = _most_frequent(local, width).T
        done += len(local)
    people = tuple(str(row) for row in np.flatnonzero(accepted).tolist())
    fill_gaps(by_slot, gap_slots(settings))
    traces = Traces(by_slot, clock, given.regions(ordered), people)
    return Imported(
        traces,
        count,
        places.rows if places else None,
        cells=given.cells,
        share_if_filled=share_if_filled(traces, NIGHT_HOURS),
    )


def _open_matrix(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{path}: expected a NumPy array file (.npy)")
    try:
        # Memory-mapped, so that a header that declares terabytes allocates nothing.
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    # A broken header can raise almost any exception.
    except Exception as error:
        raise DataError(f"{path}: not a readable .npy array: {error}") from None
    if not isinstance(matrix, np.ndarray):
        raise DataError(f"{path}: expected one array (.npy), found an archive")
    if matrix.ndim != 2 or matrix.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: found {matrix.dtype} of shape {matrix.shape}, expected whole "
            "numbers of shape (people, columns)"
        )
    if matrix.size == 0:
        raise DataError(f"{path}: is empty: its shape is {matrix.shape}")
    return matrix


def _matrix_clock(
    path: Path, matrix: NDArray[Any], settings: ImportSettings
) -> tuple[Clock, int]:
    """Return the clock of a matrix, and its number of columns per slot."""
    column = Clock(settings.matrix_slot_hours, 1)
    days, rest = divmod(matrix.shape[1], column.slots_per_day)
    if rest:
        raise DataError(
            f"{path}: {matrix.shape[1]} columns of {settings.matrix_slot_hours:g} h "
            "are not a whole number of days: check matrix_slot_hours"
        )
    if settings.days is not None and settings.days > days:
        raise DataError(
            f"{path}: holds {days} days, fewer than the requested days={settings.days}"
        )
    clock = settings.clock(settings.days or days)
    return clock, clock.slot_minutes // column.slot_minutes


def _chunks(matrix: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield pairs (number of the first row, block of rows)."""
    rows = max(1, _CHUNK_CELLS // matrix.shape[1])
    for first in range(0, len(matrix), rows):
        yield first, np.asarray(matrix[first : first + rows])


def _good_rows(rows: RowFilter, first: int, part: NDArray[Any]) -> NDArray[np.bool_]:
    """Reject rows with other values than region ids; return a mask of the others."""
    # A signalling NaN warns whenever it is used.
    with np.errstate(invalid="ignore"):
        number = part.astype(np.float64)
        whole = np.isnan(number) | (number == np.floor(number))
    bad = ~whole | (np.abs(number) > _LARGEST_ID)
    wrong = bad.any(axis=1)
    found = part[np.arange(len(part)), bad.argmax(axis=1)]
    frame = pl.DataFrame({"row": np.arange(first + 1, first + len(part) + 1)})
    rows.count(len(frame))
    rule = Rule(
        "not a region id",
        "(first wrong entry of the row)",
        "whole numbers, negative or NaN where not observed",
        pl.lit(pl.Series(wrong)),
        lambda row: show(found[row["row"] - first - 1].item()),
    )
    rows.keep(frame, rule)
    rows.check_strict()
    return np.asarray(~wrong)


def _region_ids(part: NDArray[Any]) -> NDArray[np.int64]:
    if part.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            part = np.where(np.isnan(part), UNKNOWN, np.maximum(part, UNKNOWN))
    return np.maximum(part.astype(np.int64), UNKNOWN)


def _most_frequent(part: RegionIds, width: int) -> RegionIds:
    """Return the most frequent id in each group of ``width`` columns; ties: first."""
    entry = part.reshape(len(part), -1, width)
    times = np.zeros(entry.shape, dtype=np.int32)
    for column in range(width):
        times += entry == entry[..., column, None]
    best = np.where(entry >= 0, times, -1).argmax(axis=2)
    return np.take_along_axis(entry, best[..., None], axis=2)[..., 0]
