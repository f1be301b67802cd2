"""Settings of the import of visits and tests."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from epifalcon.checks import Checked, Count, NonNegative, Share, at_least, within
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock

Kind = Literal["pings", "stays", "checkins", "cells", "matrix", "contacts"]
RegionRule = Literal["auto", "given", "grid", "h3", "polygons", "towers"]
EpochUnit = Literal["auto", "s", "ms", "us", "ns"]


@dataclass(frozen=True, kw_only=True)
class ReadSettings(Checked):
    """Settings for reading one table, and the limit of rejected rows."""

    columns: tuple[str, ...] = ()
    """Column names in the file, each as ``name=column``, e.g. ``person=user_id``."""
    delimiter: str = "auto"
    """Delimiter of a CSV file; ``auto`` detects it from the header."""
    epoch_unit: EpochUnit = "auto"
    """Unit of times given as numbers; ``auto`` detects it from their size."""
    date_format: tuple[str, ...] = ()
    """Formats of times as in ``strptime``, e.g. ``%d.%m.%Y %H:%M``; the first that fits
    is used. If empty: ISO 8601, seconds since 1970 and Excel dates."""
    max_refused_share: Share = 0.5
    """Maximum share of rejected rows; more is an error."""
    strict: bool = False
    """If True, any rejected row is an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = len(self.delimiter) == 1 and self.delimiter.isascii()
        if self.delimiter != "auto" and (not plain or self.delimiter in '"\r\n\0'):
            raise SettingsError(
                f"delimiter={self.delimiter!r} must be 'auto' or one ASCII character"
            )
        for form in self.date_format:
            _check_format(form)
        for entry in self.columns:
            ours, _, theirs = entry.partition("=")
            if not ours.strip() or not theirs.strip():
                raise SettingsError(
                    f"columns={entry!r} must look like person=user_id,time=ts"
                )


def _check_format(form: str) -> None:
    """Raise ``SettingsError`` unless the format has a date, and hours with minutes."""
    moment = datetime(2020, 3, 14, 15, 9, 26, tzinfo=UTC)
    try:
        found = datetime.strptime(moment.strftime(form), form).replace(tzinfo=UTC)
        exact = [moment.replace(hour=0, minute=0, second=0), moment.replace(second=0)]
        good = found in (*exact, moment) and "%Z" not in form
    except (ValueError, re.error):
        good = False
    if not good:
        raise SettingsError(
            f"date_format={form!r} must give day, month and year, and hours only with "
            "minutes, as in '%d.%m.%Y %H:%M' or '%m/%d/%y %I:%M %p'; offsets are %z"
        )


@dataclass(frozen=True, kw_only=True)
class ImportSettings(Checked):
    """Settings for converting visits to traces; see docs/reference-data.md."""

    kind: Kind
    read: ReadSettings = field(default_factory=ReadSettings)
    regions: RegionRule = "auto"
    """Kind of regions; ``auto`` uses given ids if there are any, else the grid."""
    cell_km: Annotated[float, partial(at_least, 0.001)] = 1.0
    """Side length of a grid cell in kilometres."""
    h3_resolution: Annotated[int, partial(within, 0, 15)] = 8
    polygons: str | None = None
    """GeoJSON file of the areas for ``regions="polygons"``."""
    polygon_name: str | None = None
    """Property with the name of a GeoJSON feature; by default its id or name."""
    places: str | None = None
    """File with a table of places or towers (place or cell or tower, lat, lon)."""
    place_columns: tuple[str, ...] = ()
    max_tower_km: NonNegative = 0.0
    """Maximum distance from a point to the nearest tower in km; 0 for no limit."""
    keep_unvisited: bool = False
    """If True, unvisited places of a table and unvisited polygons become regions."""
    slot_hours: float = 2.0
    start: str | None = None
    """First local day; by default the first in the data."""
    days: Count | None = None
    """Number of days; by default up to the last in the data."""
    timezone: str = "UTC"
    """Time zone of the city: used for times without an offset, and for slots."""
    fill_gap_hours: NonNegative = 0.0
    """Longest gap between observations that is filled with the region before it."""
    matrix_slot_hours: float = 0.5
    """Length in hours of one column of a matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        slot = self.clock(self.days or 1).slot_minutes
        ReadSettings(columns=self.place_columns)
        rule, matrix, pings = self.regions, self.kind == "matrix", self.kind == "pings"
        column = Clock(self.matrix_slot_hours, 1).slot_minutes if matrix else 1
        if matrix and rule not in ("auto", "given"):
            raise SettingsError(
                f"regions={rule!r} cannot be used with a matrix, which holds region "
                "ids: omit it or choose 'given'"
            )
        if self.kind == "contacts":
            self._check_contacts()
        if slot % column:
            raise SettingsError(
                f"slot_hours={self.slot_hours} must be a multiple of "
                f"matrix_slot_hours={self.matrix_slot_hours}"
            )
        if pings and rule == "given":
            raise SettingsError(
                "regions='given' cannot be used with pings, which have no places: "
                "choose grid, h3, polygons or towers"
            )
        if rule == "polygons" and self.polygons is None:
            raise SettingsError("regions='polygons' needs polygons=FILE (GeoJSON)")
        if rule != "polygons" and self.polygons is not None:
            raise SettingsError(
                f"polygons={self.polygons!r} needs regions='polygons', not {rule!r}"
            )
        if rule == "towers" and self.places is None:
            raise SettingsError("regions='towers' needs places=FILE (tower, lat, lon)")
        if pings and rule != "towers" and self.places is not None:
            raise SettingsError(
                f"places={self.places!r} has no effect on pings unless regions='towers'"
            )

    def _check_contacts(self) -> None:
        if self.regions != "auto" or self.places is not None:
            raise SettingsError(
                "regions and places cannot be used with contacts: a region is a group "
                "of people in contact"
            )
        if self.fill_gap_hours:
            raise SettingsError(
                f"fill_gap_hours={self.fill_gap_hours:g} cannot be used with contacts: "
                "in a gap there was no contact"
            )

    def clock(self, days: int, start: str | None = None) -> Clock:
        """Return a clock of ``days`` days from ``start``, default: ``self.start``."""
        return Clock(self.slot_hours, days, start or self.start, self.timezone)
