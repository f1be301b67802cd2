"""Extent and coverage of imported traces, and warnings of probable mistakes.

Everything is computed from the traces and from figures of each batch of rows: no
second pass over the rows, and no table as long as the file.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from importlib import resources

import numpy as np

from epifalcon.mobility.io.columns import SECOND, RowCount, swapped
from epifalcon.mobility.regions import EARTH_RADIUS_KM, Regions, great_circle_km, middle
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Counts, Floats

NIGHT_HOURS = 12.0
"""Length of gap whose filling is suggested: a night at home without observation."""
_HOUR = 3600 * SECOND
_SAMPLED_SLOTS = 48
_FEW_TOGETHER = 0.01
_POLAR_DEGREES = 72
"""No city is nearer to a pole."""
_FAR_KM = 1500
_FEW_ROWS = 0.01
_LEAST_OBSERVATIONS = 20
_LEAST_REPRESENTED = 0.9
_LEAST_DAYS_AWAY = 7


@dataclass(frozen=True)
class Extent:
    """Bounding box of the regions' centres."""

    south: float
    west: float
    north: float
    east: float
    width_km: float
    height_km: float

    def __str__(self) -> str:
        return (
            f"lat {self.south:.4f} to {self.north:.4f}, lon {self.west:.4f} to "
            f"{self.east:.4f} ({self.width_km:,.1f} x {self.height_km:,.1f} km)"
        )

    @classmethod
    def of(cls, regions: Regions) -> "Extent | None":
        """Compute the extent; None if no region has degrees."""
        lonlat = regions.lonlat
        if lonlat is None or not np.isfinite(lonlat).all(axis=1).any():
            return None
        # Relative to the middle, since 179 and -179 are adjacent.
        origin = middle(lonlat)[0]
        east = (lonlat[:, 0] - origin + 180) % 360 - 180
        low, high = np.nanmin(east), np.nanmax(east)
        south, north = np.nanmin(lonlat[:, 1]), np.nanmax(lonlat[:, 1])
        degree_km = np.radians(1) * EARTH_RADIUS_KM
        shrink = np.cos(np.radians((south + north) / 2))
        west_edge, east_edge = ((origin + at + 180) % 360 - 180 for at in (low, high))
        return cls(
            float(south),
            float(west_edge),
            float(north),
            float(east_edge),
            float((high - low) * shrink * degree_km),
            float((north - south) * degree_km),
        )

    def as_plain(self) -> dict[str, float]:
        """Return plain values for JSON."""
        return asdict(self)


def share_if_filled(traces: Traces, hours: float) -> float:
    """Compute the share observed if gaps of up to ``hours`` were filled."""
    longest = int(hours / traces.clock.slot_hours + 1e-9)
    filled, last = 0, np.full(traces.people, -1)
    for slot, regions in enumerate(traces.by_slot):
        seen = np.flatnonzero(regions != UNKNOWN)
        gap = np.where(last[seen] >= 0, slot - last[seen] - 1, 0)
        filled += int(gap[gap <= longest].sum())
        last[seen] = slot
    return traces.observed_share + filled / max(1, traces.by_slot.size)


def describe_share(traces: Traces, filled: float | None) -> str:
    """Describe the share observed, and the option that would increase it."""
    share = traces.observed_share
    if filled is None:
        return f"{share:.3f} (slots with a contact)"
    word = "high" if share >= 0.6 else "moderate" if share >= 0.25 else "low"
    text = f"{share:.3f} ({word})"
    if filled >= share + 0.05:
        return f"{text}; with --fill-gap-hours {NIGHT_HOURS:g}: {filled:.3f}"
    if word == "high":
        return text
    return f"{text}; too rarely observed to fill gaps: try a longer --slot-hours"


def find_warnings(
    traces: Traces,
    rows: RowCount,
    columns: Mapping[str, str],
    small_regions: str,
    offsets: set[float | None],
    overlaps: int,
    overlap_row: int | None,
    represented: float,
) -> tuple[str, ...]:
    """Return one sentence with a remedy for each probable mistake in the data."""
    observed = np.array([np.count_nonzero(here != UNKNOWN) for here in traces.by_slot])
    found = (
        _swapped(traces, rows, columns),
        _mixed_zones(traces.clock.timezone, offsets),
        _small_regions(traces, observed, small_regions),
        _span(traces, observed),
        _overlaps(overlaps, overlap_row, rows),
        _lost_contacts(represented, traces.clock.slot_hours),
    )
    return tuple(text for text in found if text)


def _overlaps(stays: int, row: int | None, rows: RowCount) -> str | None:
    if not stays:
        return None
    return (
        f"at least {stays:,} of {rows.accepted:,} stays begin before the same person's "
        f"previous stay ends (one is row {row}); the place with the most time in a "
        "slot counts: correct start and end in the file, or name other columns with "
        "--columns start=...,end=..."
    )


def _lost_contacts(represented: float, slot_hours: float) -> str | None:
    if represented >= _LEAST_REPRESENTED:
        return None
    return (
        f"{1 - represented:.0%} of the contact time is lost, because a person is in "
        f"one group per slot: choose a shorter --slot-hours than {slot_hours:g}"
    )


def _swapped(traces: Traces, rows: RowCount, columns: Mapping[str, str]) -> str | None:
    lonlat = traces.regions.lonlat
    if lonlat is None:
        return None
    here: Floats = np.nanmedian(lonlat, axis=0)
    outside = rows.refused.get("lat out of range", 0)
    why = f"the middle of the data is at lat {here[1]:.1f}, lon {here[0]:.1f}"
    zone = _zone_lonlat(traces.clock.timezone)
    if outside > max(2, 0.1 * rows.read):
        why = f"{outside:,} of {rows.read:,} rows have a lat beyond 90 degrees"
    elif abs(here[1]) <= _POLAR_DEGREES:
        if zone is None or abs(here[0]) > 90:
            return None
        far, near = great_circle_km(np.array([here, here[::-1]]), zone)
        if far < _FAR_KM or near > far / 2:
            return None
        why += f", {far:,.0f} km from {traces.clock.timezone}; swapped, {near:,.0f} km"
    if "lat" in columns:
        remedy = f"--columns {swapped(columns)}"
    else:
        remedy = "--place-columns lat=...,lon=..."
    return f"lat and lon are probably swapped ({why}): try {remedy}"


def _zone_lonlat(zone: str) -> Floats | None:
    """Return longitude and latitude of the city that names a time zone."""
    table = resources.files("tzdata") / "zoneinfo" / "zone.tab"
    degrees = r"([+-]\d{2})(\d{2})(?:\d{2})?([+-]\d{3})(\d{2})(?:\d{2})?"
    for line in table.read_text().splitlines():
        fields = line.split("\t")
        if zone in fields[2:3] and (found := re.fullmatch(degrees, fields[1])):
            lat, lat_minute, lon, lon_minute = found.groups()
            return np.array(
                [
                    float(lon) + float(f"{lon[0]}{lon_minute}") / 60,
                    float(lat) + float(f"{lat[0]}{lat_minute}") / 60,
                ]
            )
    return None


def _mixed_zones(zone: str, offsets: set[float | None]) -> str | None:
    known = sorted(offset for offset in offsets if offset is not None)
    if known and None in offsets:
        return (
            "some times have an offset or are seconds since 1970, others have none and "
            f"were read as local times of {zone}: set --timezone to the zone of those"
        )
    # Clocks that change by an hour give two offsets in one zone.
    if known and known[-1] - known[0] > _HOUR:
        low, high = (f"{offset / _HOUR:+g} h" for offset in (known[0], known[-1]))
        return (
            f"the offsets of times range from {low} to {high}, more than in one zone: "
            "check the times, or import a file for each zone with its --timezone"
        )
    return None


def _small_regions(traces: Traces, observed: Counts, remedy: str) -> str | None:
    """Count who is together in the slots with the most observations."""
    regions, people = len(traces.regions), traces.people
    if people < 2 or regions <= people:
        return None
    chosen = np.argsort(-observed, kind="stable")[:_SAMPLED_SLOTS]
    together, sampled = 0, int(observed[chosen].sum())
    for here in traces.by_slot[chosen]:
        crowd = np.unique(here[here != UNKNOWN], return_counts=True)[1]
        together += int(crowd[crowd > 1].sum())
    if together >= _FEW_TOGETHER * sampled:
        return None
    return (
        f"hardly anybody is in one region with somebody else ({regions:,} regions, "
        f"{people:,} people; {together:,} of {sampled:,} sampled observations): "
        f"regions are probably too small: {remedy}"
    )


def _span(traces: Traces, observed: Counts) -> str | None:
    """Compare the days that hold nearly all observations with all days."""
    clock = traces.clock
    count = observed.reshape(clock.days, -1).sum(axis=1)
    total = int(count.sum())
    if total < _LEAST_OBSERVATIONS or clock.start is None:
        return None
    few = max(2, int(_FEW_ROWS * total))
    low = int(np.searchsorted(np.cumsum(count), few, side="right"))
    high = clock.days - 1
    high -= int(np.searchsorted(np.cumsum(count[::-1]), few, side="right"))
    visited = np.flatnonzero(count)
    away = max(low - int(visited[0]), int(visited[-1]) - high)
    if away <= max(_LEAST_DAYS_AWAY, high - low + 1):
        return None
    rare = total - int(count[low : high + 1].sum())
    first, last = (
        date.fromisoformat(clock.start) + timedelta(days=day) for day in (low, high)
    )
    return (
        f"only {rare:,} of {total:,} observations are before {first} or after {last}, "
        f"up to {away} days away: check their times, or leave them out with "
        f"--start {first} --days {high - low + 1}"
    )
