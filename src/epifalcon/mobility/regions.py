"""Regions: the places, points or polygons, between which people move."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epifalcon.checks import one_of
from epifalcon.errors import DataError
from epifalcon.types import Floats, RegionIds

EARTH_RADIUS_KM = 6371.0088
RegionKind = Literal["poi", "area"]


@dataclass(frozen=True, eq=False)
class Regions:
    """Where each region lies and what kind of place it is.

    ``centre_km`` (regions, 2) are plane coordinates in kilometres. Where the
    data came with degrees, ``lonlat`` (regions, 2) keeps them and distances
    are great-circle ones. ``outline_km`` (points, 2) holds the corners of all
    polygons, one after the other; region r owns the points from
    ``outline_ends[r - 1]`` to ``outline_ends[r]``. A region whose place is not
    known (a bare name) has NaN for its centre.
    """

    kind: RegionKind
    centre_km: Floats
    lonlat: Floats | None = None
    names: tuple[str, ...] | None = None
    outline_km: Floats | None = None
    outline_ends: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        one_of(("poi", "area"), kind=self.kind)
        shape = self.centre_km.shape
        if len(shape) != 2 or shape[1] != 2 or shape[0] == 0:
            raise DataError(f"centre_km has shape {shape}, expected (regions, 2)")
        if self.lonlat is not None and self.lonlat.shape != shape:
            raise DataError(f"lonlat has shape {self.lonlat.shape}, expected {shape}")
        if self.names is not None and len(self.names) != shape[0]:
            raise DataError(f"{len(self.names)} names for {shape[0]} regions")
        if (self.outline_km is None) != (self.outline_ends is None):
            raise DataError("outline_km and outline_ends come together")
        if self.outline_ends is not None and len(self.outline_ends) != shape[0]:
            raise DataError(f"{len(self.outline_ends)} outlines for {shape[0]} regions")

    def __len__(self) -> int:
        return len(self.centre_km)

    @cached_property
    def placed(self) -> bool:
        """Whether every region's place is known, so that distances exist."""
        return bool(np.isfinite(self.centre_km).all())

    def name(self, region: int) -> str:
        """What people call the region: its own name or its number."""
        return str(region) if self.names is None else self.names[region]

    def outline(self, region: int) -> Floats | None:
        """Corners (points, 2) of the region's polygon in kilometres, if it has one."""
        if self.outline_km is None or self.outline_ends is None:
            return None
        start = 0 if region == 0 else self.outline_ends[region - 1]
        return self.outline_km[start : self.outline_ends[region]]

    def distance_km(self, here: RegionIds, there: RegionIds) -> Floats:
        """Kilometres between regions, element by element; shapes broadcast.

        NaN where either place is unknown. Ids must be 0 or more.
        """
        if self.lonlat is not None:
            return great_circle_km(self.lonlat[here], self.lonlat[there])
        offset = self.centre_km[here] - self.centre_km[there]
        return np.asarray(np.hypot(offset[..., 0], offset[..., 1]))


def great_circle_km(here: Floats, there: Floats) -> Floats:
    """Great-circle kilometres between points (..., 2) given as degrees (lon, lat)."""
    lon_here, lat_here = np.moveaxis(np.radians(here), -1, 0)
    lon_there, lat_there = np.moveaxis(np.radians(there), -1, 0)
    squared = (
        np.sin((lat_there - lat_here) / 2) ** 2
        + np.cos(lat_here) * np.cos(lat_there) * np.sin((lon_there - lon_here) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(squared, 1))))


def plane_km(lonlat: Floats, origin: Floats | None = None) -> Floats:
    """Degrees (points, 2) as kilometres on a plane that touches ``origin``.

    ``origin`` (2,) is the mean of the points unless given. Good to a part in a
    thousand within 100 km of the origin; meant for maps and grids of a city.
    """
    centre = np.nanmean(lonlat, axis=0) if origin is None else origin
    scale = np.radians(1) * EARTH_RADIUS_KM
    east = (lonlat[:, 0] - centre[0] + 180) % 360 - 180
    return np.column_stack(
        [
            east * scale * np.cos(np.radians(centre[1])),
            (lonlat[:, 1] - centre[1]) * scale,
        ]
    )
