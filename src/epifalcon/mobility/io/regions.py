"""Assign rows to regions by given ids, a metric grid, H3 cells, polygons or towers.

While a file is read, each row's region is a key; at the end the keys that occurred
are numbered as region ids.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from epifalcon.checks import extra_module
from epifalcon.errors import DataError
from epifalcon.mobility.io.columns import (
    RowCount,
    RowFilter,
    Rule,
    keep_ids,
    keep_numbers,
    natural_order,
)
from epifalcon.mobility.io.settings import ImportSettings
from epifalcon.mobility.io.tables import (
    TABLE_PLACE,
    need_column,
    open_table,
    readable,
    renamed,
)
from epifalcon.mobility.regions import (
    EARTH_RADIUS_KM,
    RegionKind,
    Regions,
    middle,
    plane_km,
    unit_vectors,
)
from epifalcon.types import Floats

_NOWHERE = pl.col("region").is_null()


class RegionRule(ABC):
    """Rule that assigns rows to regions."""

    nowhere: Rule | None = None
    """Rule that rejects rows without a region (null key)."""
    unvisited: int = 0
    """Number of regions if unvisited ones are wanted too; their keys count from 0."""
    cells: str = "as named in the data"
    """Description of the regions."""
    larger: str = "check that the regions are places, or use --regions grid"
    """How to get larger regions."""

    @abstractmethod
    def keys(self, frame: pl.DataFrame) -> pl.Series:
        """Return each row's region key, from its place or its coordinates."""

    def in_order(self, visited: pl.Series) -> pl.Series:
        """Return the keys of all regions of the traces, in the order of their ids."""
        return pl.Series(range(self.unvisited)) if self.unvisited else visited.sort()

    @abstractmethod
    def regions(self, keys: pl.Series) -> Regions:
        """Create the regions with these keys, in this order."""


@dataclass(frozen=True, eq=False)
class LocationTable:
    """A table of places or towers, in the order of its file."""

    path: Path
    table: pl.DataFrame
    """Table with columns ``name``, ``lon`` and ``lat``."""
    rows: RowCount

    @property
    def lonlat(self) -> Floats:
        """Longitude and latitude of each place in degrees, (places, 2)."""
        return self.table.select("lon", "lat").to_numpy()

    @property
    def unknown(self) -> Rule:
        """Rule that rejects rows whose place is not in the table."""
        expected = f"one of the {len(self.table)} names in {self.path}"
        return Rule("not in the table of places", "place", expected, _NOWHERE)


def look_up(text: pl.Series, names: pl.Series) -> pl.Series:
    """Find the position of each text among ``names``; null if absent."""
    number = pl.Series(range(len(names)), dtype=pl.Int64)
    return text.replace_strict(names, number, default=None, return_dtype=pl.Int64)


def read_places(settings: ImportSettings) -> LocationTable | None:
    """Read the table of places or towers given in the settings; None if not given."""
    if settings.places is None:
        return None
    path, read = Path(settings.places), settings.read
    table = open_table(path, read.delimiter)
    chosen = renamed(settings.place_columns, ("place", "cell", "tower", "lat", "lon"))
    for name in ("place", "cell", "tower"):
        if name in chosen:
            chosen[TABLE_PLACE] = chosen.pop(name)
    wanted = {
        ours: need_column(table, theirs, chosen)
        for ours, theirs in (("place", TABLE_PLACE), ("lat", "lat"), ("lon", "lon"))
    }
    rows = RowFilter(path, wanted, read)
    schema = {"name": pl.String, "lon": pl.Float64, "lat": pl.Float64}
    known = pl.DataFrame(schema=schema)
    for batch in rows.batches(table):
        frame = keep_ids(rows, batch.frame, "place")
        frame = keep_numbers(rows, frame, "lat", 90)
        frame = keep_numbers(rows, frame, "lon", 180)
        text = pl.col("place_text")
        again = ~text.is_first_distinct() | text.is_in(known["name"].implode())
        once = Rule("name appears again", "place", "each name once", again)
        frame = rows.keep(frame, once)
        made = frame.select(name=text, lon="lon_value", lat="lat_value")
        known = pl.concat([known, made])
    return LocationTable(path, known, rows.finish())


class GivenRegions(RegionRule):
    """Regions identified by names in the data, sorted by name."""

    def __init__(
        self, places: LocationTable | None, kind: RegionKind, keep_unvisited: bool
    ) -> None:
        self._places, self._kind = places, kind
        self._codes = pl.Categorical(pl.Categories.random())
        if places is not None:
            self.nowhere = places.unknown
            self.unvisited = len(places.table) if keep_unvisited else 0

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        text = frame["place_text"]
        if self._places is None:
            return text.cast(self._codes)
        return look_up(text, self._places.table["name"])

    def in_order(self, visited: pl.Series) -> pl.Series:
        keys = super().in_order(visited)
        return keys.gather(natural_order(self._names(keys)))

    def regions(self, keys: pl.Series) -> Regions:
        lonlat = None if self._places is None else self._places.lonlat[keys]
        return make_regions(self._kind, self._names(keys), lonlat)

    def _names(self, keys: pl.Series) -> pl.Series:
        if self._places is None:
            return keys.cast(pl.String)
        return self._places.table["name"].gather(keys)


class GridRegions(RegionRule):
    """Grid cells of about ``cell_km`` by ``cell_km``, independent of the data.

    The earth is divided into rows of equal height, and each row into the number of
    equal cells that makes them closest to square. Ids run from south to north, then
    west to east.
    """

    def __init__(self, cell_km: float) -> None:
        self._rows = max(1, round(np.pi * EARTH_RADIUS_KM / cell_km))
        self._cell_km = cell_km
        self.cells = f"grid cells of {cell_km:g} km"
        self.larger = f"choose a larger --cell-km than {cell_km:g}"

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        lon, lat = _points(frame).T
        row = np.floor((lat + 90) / 180 * self._rows).astype(np.int64)
        row = np.minimum(row, self._rows - 1)
        cells = self._cells(row)
        column = np.floor((lon + 180) / 360 * cells).astype(np.int64) % cells
        return pl.Series(row << 32 | column)

    def regions(self, keys: pl.Series) -> Regions:
        row, column = keys.to_numpy() >> 32, keys.to_numpy() & (2**32 - 1)
        width = 360 / self._cells(row)
        west, south = column * width - 180, row / self._rows * 180 - 90
        corners = np.stack(
            [
                np.column_stack([west + east * width, south + north * 180 / self._rows])
                for east, north in ((0, 0), (1, 0), (1, 1), (0, 1))
            ],
            axis=1,
        )
        names = pl.Series([f"{r}/{c}" for r, c in zip(row, column, strict=True)])
        return make_regions("area", names, corners.mean(axis=1), list(corners))

    def _cells(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        middle = np.radians((row + 0.5) / self._rows * 180 - 90)
        around = 2 * np.pi * EARTH_RADIUS_KM * np.cos(middle)
        return np.maximum(1, np.rint(around / self._cell_km)).astype(np.int64)


class H3Regions(RegionRule):
    """Cells of the H3 system at one resolution, in the order of their index."""

    def __init__(self, resolution: int) -> None:
        self._resolution = resolution
        side_km = 1281.256 / 7 ** (resolution / 2)
        self.cells = f"H3 cells with sides of {side_km:.2g} km"
        self.larger = f"choose a smaller --h3-resolution than {resolution}"
        self._h3 = extra_module("h3ronpy.vector", "geo", "regions='h3'")
        self._shapely = extra_module("shapely", "geo", "regions='h3'")

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        lat, lon = frame["lat_value"], frame["lon_value"]
        cells = self._h3.coordinates_to_cells(lat, lon, self._resolution)
        return pl.Series(cells).cast(pl.Int64)

    def regions(self, keys: pl.Series) -> Regions:
        cells = keys.cast(pl.UInt64)
        points = pl.DataFrame(self._h3.cells_to_coordinates(cells))
        binary = pl.Series(self._h3.cells_to_wkb_polygons(cells)).to_list()
        shapes = self._shapely.from_wkb(binary)
        outlines = [np.array(shape.exterior.coords)[:-1] for shape in shapes]
        names = pl.Series([f"{cell:x}" for cell in keys])
        lonlat = points.select("lng", "lat").to_numpy()
        return make_regions("area", names, lonlat, outlines)


class PolygonRegions(RegionRule):
    """Areas of a GeoJSON file; where they overlap, the first in the file is used."""

    cells = "polygons of a file"
    larger = "choose larger polygons"

    def __init__(self, path: Path, name_from: str | None, keep_unvisited: bool) -> None:
        self._shapely = extra_module("shapely", "geo", "regions='polygons'")
        areas = _read_areas(path, name_from, self._shapely)
        self._names, self._shapes = (
            pl.Series(list(areas)),
            np.array(list(areas.values())),
        )
        self._tree = self._shapely.STRtree(self._shapes)
        self.unvisited = len(areas) if keep_unvisited else 0
        expected = f"a point within an area of {path}"
        self.nowhere = _point_rule("outside every polygon", expected)

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        points = self._shapely.points(_points(frame))
        point, area = self._tree.query(points, predicate="intersects")
        nowhere = len(self._shapes)
        first = np.full(len(frame), nowhere, dtype=np.int64)
        np.minimum.at(first, point, area)
        return pl.Series(first).replace(nowhere, None)

    def regions(self, keys: pl.Series) -> Regions:
        shapes = self._shapes[keys]
        centre = self._shapely.get_coordinates(self._shapely.point_on_surface(shapes))
        outlines = [_outline(shape) for shape in shapes]
        return make_regions("area", self._names.gather(keys), centre, outlines)


class TowerRegions(RegionRule):
    """Areas around cell towers: each point is assigned to the nearest tower.

    Towers at one location are merged.
    """

    cells = "areas nearest to a tower"
    larger = "choose fewer towers"

    def __init__(self, towers: LocationTable, max_km: float, unvisited: bool) -> None:
        table = towers.table.unique(["lon", "lat"], keep="first", maintain_order=True)
        self._names, self._lonlat = table["name"], table.select("lon", "lat").to_numpy()
        self._tree = cKDTree(unit_vectors(self._lonlat))
        self._max_km = max_km or np.inf
        self.unvisited = len(table) if unvisited else 0
        expected = f"a point within {max_km:g} km of a tower"
        self.nowhere = _point_rule("too far from every tower", expected)

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        chord, nearest = self._tree.query(unit_vectors(_points(frame)))
        km = 2 * EARTH_RADIUS_KM * np.arcsin(np.minimum(chord / 2, 1))
        found = pl.Series(nearest.astype(np.int64))
        return found.set(pl.Series(km > self._max_km), None)

    def regions(self, keys: pl.Series) -> Regions:
        return make_regions("area", self._names.gather(keys), self._lonlat[keys])


def make_regions(
    kind: RegionKind,
    names: pl.Series,
    lonlat: Floats | None,
    outlines: list[Floats] | None = None,
) -> Regions:
    """Create regions from names, and centres and polygon corners in degrees."""
    listed = tuple(names.to_list())
    if lonlat is None:
        return Regions(kind, np.full((len(listed), 2), np.nan), names=listed)
    origin = middle(lonlat)
    centre_km = plane_km(lonlat, origin)
    if outlines is None:
        return Regions(kind, centre_km, lonlat, listed)
    ends = np.cumsum([len(corners) for corners in outlines], dtype=np.int64)
    outline_km = plane_km(np.concatenate(outlines), origin)
    return Regions(kind, centre_km, lonlat, listed, outline_km, ends)


def _point_rule(reason: str, expected: str) -> Rule:
    def shown(row: Mapping[str, Any]) -> str:
        return f"{row['lon_value']:.6g}, {row['lat_value']:.6g}"

    return Rule(reason, "lon, lat", expected, _NOWHERE, shown)


def _points(frame: pl.DataFrame) -> Floats:
    return frame.select("lon_value", "lat_value").to_numpy()


def _outline(shape: Any) -> Floats:  # noqa: ANN401
    """Return the corners (points, 2) of the outer ring of a shape's largest part."""
    largest = max(getattr(shape, "geoms", [shape]), key=lambda part: part.area)
    return np.asarray(largest.exterior.coords)[:-1, :2]


def _read_areas(path: Path, name_from: str | None, shapely: Any) -> dict[str, Any]:  # noqa: ANN401
    """Read the polygons of a GeoJSON file, by name."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        with readable(path):
            content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    features = content.get("features") if isinstance(content, dict) else None
    if not isinstance(features, list):
        raise DataError(f"{path}: expected a GeoJSON FeatureCollection")
    areas: dict[str, Any] = {}
    for number, feature in enumerate(features, 1):
        where = f"{path}: feature {number}"
        if not isinstance(feature, dict):
            raise DataError(f"{where}: expected a GeoJSON Feature")
        name = _feature_name(feature, name_from, where) or str(number)
        if name in areas:
            raise DataError(
                f"{where}: {name!r} is also feature {list(areas).index(name) + 1}; "
                "choose another property with polygon_name"
            )
        areas[name] = _shape(feature.get("geometry"), where, shapely)
    if not areas:
        raise DataError(f"{path}: holds no features")
    return areas


def _feature_name(
    feature: Mapping[str, Any], name_from: str | None, where: str
) -> str | None:
    properties = feature.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    if name_from is not None:
        if name_from not in properties:
            there = ", ".join(repr(key) for key in list(properties)[:20])
            raise DataError(f"{where}: no property {name_from!r}: it has {there}")
        return str(properties[name_from])
    usual = [properties.get(key) for key in ("id", "name", "ID", "NAME", "Name")]
    for value in (feature.get("id"), *usual):
        if isinstance(value, str | int | float) and str(value):
            return str(value)
    return None


def _shape(geometry: object, where: str, shapely: Any) -> Any:  # noqa: ANN401
    areas = ("Polygon", "MultiPolygon")
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind not in areas:
        raise DataError(f"{where}: found {kind}, expected Polygon or MultiPolygon")
    try:
        shape = shapely.make_valid(shapely.from_geojson(json.dumps(geometry)))
    # GEOS and shapely raise many kinds of error on malformed coordinates.
    except Exception as error:
        raise DataError(f"{where}: invalid coordinates: {error}") from None
    parts = [part for part in shapely.get_parts(shape) if part.geom_type in areas]
    shape = shapely.union_all(parts)
    west, south, east, north = shape.bounds if parts else (np.nan,) * 4
    if not (west >= -180 and south >= -90 and east <= 180 and north <= 90):
        raise DataError(f"{where}: expected an area in degrees (lon, lat)")
    return shape
