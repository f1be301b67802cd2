"""Regions from points: H3 cells, polygons, nearest towers."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.spatial import cKDTree

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.ingest.places import Places
from epifalcon.mobility.ingest.regioning import Keys, Numbered, Spots, placed
from epifalcon.mobility.ingest.rows import Sieve, Told
from epifalcon.mobility.ingest.tables import readable
from epifalcon.mobility.regions import EARTH_RADIUS_KM
from epifalcon.types import Floats

_USUAL_NAMES = ("id", "name", "ID", "NAME", "Name")


class H3Regions:
    """Cells of the H3 system at one resolution, in the order of their index."""

    needs_points = True

    def __init__(self, resolution: int) -> None:
        self._resolution = resolution
        self._h3 = _extra("h3ronpy.vector", "regions='h3'")
        self._shapely = _extra("shapely", "regions='h3'")

    def keys(self, sieve: Sieve, spots: Spots) -> Keys:
        assert spots.lon is not None
        assert spots.lat is not None
        keys = np.zeros(len(spots.lon), dtype=np.int64)
        alive = sieve.alive
        lat, lon = pl.Series(spots.lat[alive]), pl.Series(spots.lon[alive])
        cells = pl.Series(self._h3.coordinates_to_cells(lat, lon, self._resolution))
        keys[alive] = cells.to_numpy().astype(np.int64)
        return keys

    def number(self, keys: Keys) -> Numbered:
        cells = pl.Series(keys.astype(np.uint64))
        points = pl.DataFrame(self._h3.cells_to_coordinates(cells))
        shapes = self._shapely.from_wkb(
            pl.Series(self._h3.cells_to_wkb_polygons(cells)).to_list()
        )
        outlines = [np.array(shape.exterior.coords)[:-1] for shape in shapes]
        lonlat = points.select("lng", "lat").to_numpy()
        names = pl.Series([f"{cell:x}" for cell in keys.tolist()])
        regions = placed("area", names, lonlat, outlines)
        return Numbered(regions, np.arange(len(keys)))


class PolygonRegions:
    """Areas of a GeoJSON file, in the order of the file.

    A point on a border, or in an overlap, belongs to the area that comes first.
    """

    needs_points = True

    def __init__(self, path: Path, name_from: str | None, keep_unvisited: bool) -> None:
        self._path = path
        self._shapely = _extra("shapely", "regions='polygons'")
        self._names, self._shapes = _read_areas(path, name_from, self._shapely)
        self._tree = self._shapely.STRtree(self._shapes)
        self._all = keep_unvisited

    def keys(self, sieve: Sieve, spots: Spots) -> Keys:
        alive = np.flatnonzero(sieve.alive)
        assert spots.lon is not None
        assert spots.lat is not None
        points = self._shapely.points(spots.lon[alive], spots.lat[alive])
        point, area = self._tree.query(points, predicate="intersects")
        nowhere = len(self._shapes)
        first = np.full(len(alive), nowhere, dtype=np.int64)
        np.minimum.at(first, point, area)
        keys = np.full(len(spots.lon), nowhere, dtype=np.int64)
        keys[alive] = first
        sieve.refuse(
            keys == nowhere,
            "outside every polygon",
            "lon, lat",
            _Points(spots.lon, spots.lat),
            f"a point within an area of {self._path}",
        )
        return keys

    def number(self, keys: Keys) -> Numbered:
        shown = np.arange(len(self._shapes)) if self._all else keys
        shapes = [self._shapes[at] for at in shown.tolist()]
        inner = self._shapely.point_on_surface(shapes)
        outlines = [_outline(shape) for shape in shapes]
        names = pl.Series([self._names[at] for at in shown.tolist()])
        regions = placed("area", names, self._shapely.get_coordinates(inner), outlines)
        return Numbered(regions, keys if self._all else np.arange(len(keys)))


class TowerRegions:
    """Each point belongs to the nearest tower; towers on one spot count as one."""

    needs_points = True

    def __init__(self, towers: Places, max_km: float, keep_unvisited: bool) -> None:
        _, first = np.unique(towers.lonlat, axis=0, return_index=True)
        self._at = np.sort(first)
        self._towers = towers
        self._tree = cKDTree(_on_sphere(towers.lonlat[self._at]))
        self._max_km = max_km
        self._all = keep_unvisited

    def keys(self, sieve: Sieve, spots: Spots) -> Keys:
        assert spots.lon is not None
        assert spots.lat is not None
        points = np.nan_to_num(np.column_stack([spots.lon, spots.lat]))
        chord, nearest = self._tree.query(_on_sphere(points))
        if self._max_km > 0:
            km = 2 * EARTH_RADIUS_KM * np.arcsin(np.minimum(chord / 2, 1))
            sieve.refuse(
                km > self._max_km,
                "too far from every tower",
                "lon, lat",
                _Points(spots.lon, spots.lat),
                f"a point within {self._max_km:g} km of a tower",
            )
        return np.asarray(nearest, dtype=np.int64)

    def number(self, keys: Keys) -> Numbered:
        at = self._at if self._all else self._at[keys]
        names = self._towers.names.gather(at)
        regions = placed("area", names, self._towers.lonlat[at])
        return Numbered(regions, keys if self._all else np.arange(len(keys)))


class _Points:
    def __init__(self, lon: Floats, lat: Floats) -> None:
        self._lon, self._lat = lon, lat

    def __getitem__(self, index: int) -> Told:
        return Told(f"{self._lon[index]:.6g}, {self._lat[index]:.6g}")


def _extra(module: str, purpose: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SettingsError(
            f"{purpose} needs {module.partition('.')[0]}: "
            "install it with pip install 'epifalcon[geo]'"
        ) from None


def _on_sphere(lonlat: Floats) -> Floats:
    lon, lat = np.radians(lonlat).T
    return np.column_stack(
        [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    )


def _outline(shape: Any) -> Floats:  # noqa: ANN401
    """The outer ring of the largest part, without the repeated last corner."""
    parts = getattr(shape, "geoms", [shape])
    largest = max(parts, key=lambda part: part.area)
    return np.asarray(largest.exterior.coords)[:-1, :2]


def _read_areas(
    path: Path,
    name_from: str | None,
    shapely: Any,  # noqa: ANN401
) -> tuple[list[str], list[Any]]:
    names: dict[str, int] = {}
    shapes = []
    for number, feature in enumerate(_features(path), 1):
        where = f"{path}: feature {number}"
        name = _feature_name(feature, name_from, where, number)
        if name in names:
            raise DataError(
                f"{where}: called {name!r} like feature {names[name]}; "
                "choose another property with polygon_name"
            )
        names[name] = number
        shapes.append(_shape(feature.get("geometry"), where, shapely))
    if not shapes:
        raise DataError(f"{path}: holds no features")
    return list(names), shapes


def _features(path: Path) -> list[Mapping[str, Any]]:
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
    for number, feature in enumerate(features, 1):
        if not isinstance(feature, dict):
            raise DataError(f"{path}: feature {number}: expected a GeoJSON Feature")
    return features


def _feature_name(
    feature: Mapping[str, Any], name_from: str | None, where: str, number: int
) -> str:
    properties = feature.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    if name_from is not None:
        if name_from not in properties:
            there = ", ".join(repr(key) for key in list(properties)[:20])
            raise DataError(f"{where}: no property {name_from!r}: it has {there}")
        return str(properties[name_from])
    for value in (feature.get("id"), *(properties.get(key) for key in _USUAL_NAMES)):
        if isinstance(value, str | int | float) and str(value):
            return str(value)
    return str(number)


def _shape(geometry: object, where: str, shapely: Any) -> Any:  # noqa: ANN401
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise DataError(f"{where}: found {kind}, expected Polygon or MultiPolygon")
    try:
        shape = shapely.make_valid(shapely.from_geojson(json.dumps(geometry)))
    # GEOS and shapely raise many kinds of error on malformed coordinates.
    except Exception as error:
        raise DataError(f"{where}: broken coordinates: {error}") from None
    parts = [part for part in shapely.get_parts(shape) if part.geom_type in _AREAS]
    shape = shapely.union_all(parts)
    west, south, east, north = shape.bounds if parts else (np.nan,) * 4
    if not (west >= -180 and south >= -90 and east <= 180 and north <= 90):
        raise DataError(f"{where}: expected an area in degrees (lon, lat)")
    return shape


_AREAS = ("Polygon", "MultiPolygon")
