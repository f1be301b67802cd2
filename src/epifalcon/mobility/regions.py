"""Regions that people visit: points or polygons."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import one_of, shaped
from epifalcon.errors import DataError
from epifalcon.store import pack_strings, unpack_strings
from epifalcon.types import Floats, RegionIds

EARTH_RADIUS_KM = 6371.0088
RegionKind = Literal["poi", "area", "group"]
"""Points, polygons, or groups of people in contact, which have no location."""
_CELL_CODE = r"\d+/\d+|8[0-9a-f]{14}"
"""Names of grid cells (row/column) and of H3 cells."""
_OPTIONAL = ("lonlat", "outline_km", "outline_ends")


@dataclass(frozen=True, eq=False)
class Regions:
    """Locations, names and outlines of the regions.

    ``centre_km`` (regions, 2) are plane coordinates in kilometres, NaN if the
    location is unknown. With ``lonlat`` (regions, 2) in degrees, distances are
    great-circle ones. ``outline_km`` (points, 2) holds the corners of all polygons;
    region r owns the points from ``outline_ends[r - 1]`` to ``outline_ends[r]``.
    """

    kind: RegionKind
    centre_km: Floats
    lonlat: Floats | None = None
    names: tuple[str, ...] | None = None
    outline_km: Floats | None = None
    outline_ends: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        one_of(get_args(RegionKind), kind=self.kind)
        count, ends = len(self.centre_km), self.outline_ends
        if not count:
            raise DataError("centre_km is empty, expected at least one region")
        points = {"centre_km": self.centre_km, "lonlat": self.lonlat}
        for name, array in points.items():
            if array is not None:
                shaped((count, 2), **{name: array})
                if array.dtype != np.float64:
                    raise DataError(f"{name} is {array.dtype}, expected float64")
        if self.names is not None and len(self.names) != count:
            raise DataError(f"{len(self.names)} names for {count} regions")
        if (self.outline_km is None) != (ends is None):
            raise DataError("outline_km and outline_ends must be given together")
        if self.outline_km is not None and ends is not None:
            shaped((count,), outline_ends=ends)
            if (np.diff(ends, prepend=0) < 0).any():
                raise DataError("outline_ends must not decrease")
            shaped((int(ends[-1]), 2), outline_km=self.outline_km)

    def __len__(self) -> int:
        return len(self.centre_km)

    @cached_property
    def placed(self) -> bool:
        """True if the location of every region is known."""
        return bool(np.isfinite(self.centre_km).all())

    def name(self, region: int) -> str:
        """Return the name of a region, or its number if regions have no names."""
        return str(region) if self.names is None else self.names[region]

    def title(self, region: int) -> str:
        """Return the name of a region for readers: of a grid or H3 cell its centre."""
        name, cell = self.name(region), self.outline_km is not None
        if self.lonlat is None or not (cell and re.fullmatch(_CELL_CODE, name)):
            return name
        east, north = self.lonlat[region]
        return (
            f"{abs(north):.4f} {'N' if north >= 0 else 'S'} "
            f"{abs(east):.4f} {'E' if east >= 0 else 'W'}"
        )

    def outline(self, region: int) -> Floats | None:
        """Return the corners (points, 2) of the region's polygon in kilometres."""
        if self.outline_km is None or self.outline_ends is None:
            return None
        start = 0 if region == 0 else self.outline_ends[region - 1]
        return self.outline_km[start : self.outline_ends[region]]

    def pack(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the record for storage, by name."""
        values = {name: getattr(self, name) for name in ("centre_km", *_OPTIONAL)}
        arrays = {name: array for name, array in values.items() if array is not None}
        if self.names is not None:
            arrays |= pack_strings("region_names", self.names)
        return arrays

    @classmethod
    def unpack(cls, kind: RegionKind, arrays: Mapping[str, NDArray[Any]]) -> "Regions":
        """Create the record from the arrays of ``pack``."""
        names = None
        if "region_names_text" in arrays:
            names = unpack_strings("region_names", arrays)
        given = {name: arrays.get(name) for name in _OPTIONAL}
        return cls(kind, arrays["centre_km"], names=names, **given)

    def distance_km(self, here: RegionIds, there: RegionIds) -> Floats:
        """Return distances in km between regions, elementwise; NaN if unknown."""
        if self.lonlat is not None:
            return great_circle_km(self.lonlat[here], self.lonlat[there])
        east, north = self.centre_km[:, 0], self.centre_km[:, 1]
        across, along = east[here] - east[there], north[here] - north[there]
        # Several times faster than hypot, whose overflow protection is not needed here.
        return np.asarray(np.sqrt(across * across + along * along))


def great_circle_km(here: Floats, there: Floats) -> Floats:
    """Return great-circle distances in km between points (..., 2) of (lon, lat)."""
    lon_here, lat_here = np.moveaxis(np.radians(here), -1, 0)
    lon_there, lat_there = np.moveaxis(np.radians(there), -1, 0)
    squared = (
        np.sin((lat_there - lat_here) / 2) ** 2
        + np.cos(lat_here) * np.cos(lat_there) * np.sin((lon_there - lon_here) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(squared, 1))))


def unit_vectors(lonlat: Floats) -> Floats:
    """Convert degrees (points, 2) to vectors of length 1: (points, 3)."""
    lon, lat = np.radians(lonlat).T
    flat = np.cos(lat)
    return np.column_stack([flat * np.cos(lon), flat * np.sin(lon), np.sin(lat)])


def plane_km(lonlat: Floats, origin: Floats) -> Floats:
    """Project degrees (points, 2) to kilometres on a plane that touches ``origin``.

    Accurate to 1 % within 100 km of the origin and 60 degrees of the
    equator; meant for maps and grids of a city. NaN stays NaN.
    """
    scale = np.radians(1) * EARTH_RADIUS_KM
    east = (lonlat[:, 0] - origin[0] + 180) % 360 - 180
    shrink = np.cos(np.radians(origin[1]))
    flat = np.column_stack([east * shrink, lonlat[:, 1] - origin[1]])
    return np.asarray(flat * scale)


def middle(lonlat: Floats) -> Floats:
    """Compute the mean (lon, lat) of finite points; handles the date line."""
    known = lonlat[np.isfinite(lonlat).all(axis=1)]
    if not len(known):
        return np.zeros(2)
    # Relative to one of the points, since 179 and -179 are adjacent.
    east = (known[:, 0] - known[0, 0] + 180) % 360 - 180
    return np.array([known[0, 0] + east.mean(), known[:, 1].mean()])
