"""From places and points to regions: the protocol, given ids and the metric grid.

While a file is read, each row's region is a 64-bit key; at the end the keys
that were seen become region ids.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.mobility.ingest.places import Places
from epifalcon.mobility.ingest.rows import Sieve
from epifalcon.mobility.ingest.values import Codes, natural_order
from epifalcon.mobility.regions import EARTH_RADIUS_KM, RegionKind, Regions, plane_km
from epifalcon.types import Floats

Keys = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spots:
    """Where the rows of a batch are; what the data does not have is None."""

    place: pl.Series | None = None
    place_called: str = "place"
    lon: Floats | None = None
    lat: Floats | None = None


@dataclass(frozen=True, eq=False)
class Numbered:
    """The regions in their final order, and the id of each key asked about."""

    regions: Regions
    ids: NDArray[np.int64]


class Regioning(Protocol):
    """One way to make regions."""

    needs_points: bool
    """Whether it works on longitude and latitude, rather than on names."""

    def keys(self, sieve: Sieve, spots: Spots) -> Keys:
        """A key for each row; rows without a region are refused."""

    def number(self, keys: Keys) -> Numbered:
        """Region ids for the sorted, distinct ``keys`` that were seen."""


class GivenRegions:
    """Regions are the places that the data names, in the order of their names."""

    needs_points = False

    def __init__(
        self, places: Places | None, kind: RegionKind, keep_unvisited: bool
    ) -> None:
        self._places = places
        self._kind: RegionKind = kind
        self._all = keep_unvisited
        self._codes = Codes()

    def keys(self, sieve: Sieve, spots: Spots) -> Keys:
        assert spots.place is not None
        if self._places is not None:
            return self._places.find(sieve, spots.place, spots.place_called)
        text = spots.place.zip_with(pl.Series(sieve.alive), pl.Series([""]))
        return self._codes.encode(text).astype(np.int64)

    def number(self, keys: Keys) -> Numbered:
        if self._places is None:
            names = self._codes.decode(keys.astype(np.uint32))
            lonlat, ids = None, np.arange(len(keys))
        else:
            ids = keys if self._all else np.arange(len(keys))
            shown = np.arange(len(self._places.names)) if self._all else keys
            names = self._places.names.gather(shown)
            lonlat = self._places.lonlat[shown]
        order = natural_order(names)
        if lonlat is not None:
            lonlat = lonlat[order]
        regions = placed(self._kind, names.gather(order), lonlat)
        return Numbered(regions, np.argsort(order)[ids])


class GridRegions:
    """Cells of about ``cell_km`` by ``cell_km``, the same wherever the data lies.

    The earth is cut into rows of equal height, and each row into the whole
    number of equal cells that comes nearest to square. Ids run from south to
    north, then west to east.
    """

    needs_points = True

    def __init__(self, cell_km: float) -> None:
        self._rows = max(1, round(np.pi * EARTH_RADIUS_KM / cell_km))
        self._cell_km = cell_km

    def keys(self, sieve: Sieve, spots: Spots) -> Keys:  # noqa: ARG002
        assert spots.lon is not None
        assert spots.lat is not None
        lat, lon = np.nan_to_num(spots.lat), np.nan_to_num(spots.lon)
        row = np.floor((lat + 90) / 180 * self._rows).astype(np.int64)
        row = np.minimum(row, self._rows - 1)
        cells = self._cells(row)
        column = np.floor((lon + 180) / 360 * cells).astype(np.int64) % cells
        return np.asarray(row << 32 | column)

    def number(self, keys: Keys) -> Numbered:
        row, column = keys >> 32, keys & (2**32 - 1)
        cells = self._cells(row)
        west, south = column / cells * 360 - 180, row / self._rows * 180 - 90
        width, height = 360 / cells, np.full(len(keys), 180 / self._rows)
        corners = np.stack(
            [
                np.column_stack([west, south]),
                np.column_stack([west + width, south]),
                np.column_stack([west + width, south + height]),
                np.column_stack([west, south + height]),
            ],
            axis=1,
        )
        names = pl.Series(
            [f"{r}/{c}" for r, c in zip(row.tolist(), column.tolist(), strict=True)]
        )
        centre = corners.mean(axis=1)
        regions = placed("area", names, centre, list(corners))
        return Numbered(regions, np.arange(len(keys)))

    def _cells(self, row: Keys) -> Keys:
        middle = np.radians((row + 0.5) / self._rows * 180 - 90)
        around = 2 * np.pi * EARTH_RADIUS_KM * np.cos(middle)
        return np.maximum(1, np.rint(around / self._cell_km)).astype(np.int64)


def placed(
    kind: RegionKind,
    names: pl.Series,
    lonlat: Floats | None,
    outlines: list[Floats] | None = None,
) -> Regions:
    """Regions with these names, centres (degrees) and corners (degrees)."""
    told = tuple(names.to_list())
    if lonlat is None:
        return Regions(kind, np.full((len(told), 2), np.nan), names=told)
    origin = _middle(lonlat)
    centre_km = plane_km(lonlat, origin)
    if outlines is None:
        return Regions(kind, centre_km, lonlat, told)
    ends = np.cumsum([len(corners) for corners in outlines], dtype=np.int64)
    outline_km = plane_km(np.concatenate(outlines), origin)
    return Regions(kind, centre_km, lonlat, told, outline_km, ends)


def _middle(lonlat: Floats) -> Floats:
    # A plain mean of longitudes goes wrong where the date line runs through a city.
    turn = np.exp(1j * np.radians(lonlat[:, 0])).mean()
    return np.array([np.degrees(np.angle(turn)), lonlat[:, 1].mean()])
