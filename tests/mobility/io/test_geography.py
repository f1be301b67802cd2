import json
import sys

import h3ronpy.vector
import numpy as np
import polars as pl
import pytest

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.io import ImportSettings, ReadSettings, import_visits
from epifalcon.mobility.regions import great_circle_km


def pings(tmp_path, points, **chosen):
    path = tmp_path / "pings.csv"
    rows = [
        f"p,{1583020800 + 7200 * k},{lat},{lon}" for k, (lon, lat) in enumerate(points)
    ]
    path.write_text("person,time,lat,lon\n" + "\n".join(rows) + "\n")
    return import_visits(path, ImportSettings(kind="pings", **chosen))


def named(imported):
    traces = imported.traces
    return [traces.regions.name(r) for r in traces.by_person[0] if r >= 0]


def test_h3_cells_are_those_of_the_library(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.uniform((116, 39), (117, 40), (80, 2)).round(4)
    found = pings(tmp_path, points, regions="h3", h3_resolution=7)
    cells = pl.Series(
        h3ronpy.vector.coordinates_to_cells(
            pl.Series(points[:, 1]), pl.Series(points[:, 0]), 7
        )
    ).to_list()
    assert named(found) == [f"{cell:x}" for cell in cells]
    regions = found.traces.regions
    ids = found.traces.by_person[0][:80]
    # A cell of resolution 7 has sides of about 1.4 km.
    assert great_circle_km(regions.lonlat[ids], points).max() < 2
    assert len(regions.outline(0)) == 6
    around = np.linalg.norm(regions.outline(0) - regions.centre_km[0], axis=1)
    assert ((around > 0.8) & (around < 2)).all()


@pytest.mark.parametrize("lat", [-70, 0, 39.9, 60, 85])
@pytest.mark.parametrize("cell_km", [0.3, 2])
def test_cells_of_the_grid_are_square_and_hold_their_points(tmp_path, lat, cell_km):
    rng = np.random.default_rng(1)
    east, north = rng.uniform(179, 181, 150), rng.uniform(lat, lat + 1, 150)
    points = np.column_stack([east, north])
    points[:, 0] = (points[:, 0] + 180) % 360 - 180
    found = pings(tmp_path, points, cell_km=cell_km)
    regions, ids = found.traces.regions, found.traces.by_person[0][:150]
    corner = cell_km / np.sqrt(2)
    assert great_circle_km(regions.lonlat[ids], points).max() < corner * 1.02
    box = regions.outline(int(ids[0]))
    sides = np.linalg.norm(np.roll(box, -1, axis=0) - box, axis=1)
    assert sides[1] == pytest.approx(cell_km, rel=0.01)
    assert len(found.traces.regions) == len(set(named(found)))


def test_the_poles_and_the_date_line(tmp_path):
    points = [(0, 90), (180, -90), (180, 0), (-180, 0), (-180, 90)]
    names = named(pings(tmp_path, points))
    assert names[2] == names[3]
    # The row at the pole has three cells, each a third of the way round.
    assert {name.split("/")[0] for name in (names[0], names[4])} == {"20014"}


def areas(tmp_path, *features):
    path = tmp_path / "areas.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return str(path)


def square(west, south, size=1, **extra):
    ring = [[west, south], [west + size, south], [west + size, south + size],
            [west, south + size], [west, south]]  # fmt: skip
    return {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]},
            "properties": {}, **extra}  # fmt: skip


def test_borders_and_overlaps_go_to_the_first_polygon(tmp_path):
    path = areas(
        tmp_path, square(1, 0, id=5), square(0, 0, id="b"), square(0, 0, id="c")
    )
    points = [(1, 0.5), (0.5, 0.5), (1.5, 0.5), (0, 0), (9, 9)]
    found = pings(tmp_path, points, regions="polygons", polygons=path)
    assert named(found) == ["5", "b", "5", "b"]
    assert found.rows.refused == {"outside every polygon": 1}
    assert found.traces.regions.names == ("5", "b")
    chosen = {"regions": "polygons", "polygons": path}
    everything = pings(tmp_path, points, **chosen, keep_unvisited=True)
    assert everything.traces.regions.names == ("5", "b", "c")
    assert named(everything) == ["5", "b", "5", "b"]
    box = found.traces.regions.outline(0) - found.traces.regions.centre_km[0]
    assert len(box) == 4
    assert (np.sign(box).sum(axis=0) == 0).all()


@pytest.mark.parametrize(
    ("features", "match"),
    [
        ([], "no features"),
        ([square(0, 0, id="a"), square(1, 0, id="a")], "2: 'a' is also feature 1"),
        ([{"type": "Feature", "geometry": None}], "feature 1: found None"),
        ([square(200, 0)], "feature 1: expected an area in degrees"),
        ([square(0, 0, geometry={"type": "Point", "coordinates": [0, 0]})], "Point"),
        ([square(0, 0, geometry={"type": "Polygon", "coordinates": "x"})], "feature 1"),
        ([square(0, 0, geometry={"type": "Polygon", "coordinates": []})], "feature 1"),
        ([3], "feature 1: expected a GeoJSON Feature"),
    ],
)  # fmt: skip
def test_polygons_that_are_none(tmp_path, features, match):
    path = areas(tmp_path, *features)
    with pytest.raises(DataError, match=match):
        pings(tmp_path, [(0, 0)], regions="polygons", polygons=path)


def test_polygon_names(tmp_path):
    path = areas(tmp_path, square(0, 0, id="x", properties={"code": 17}))
    chosen = {"regions": "polygons", "polygons": path}
    assert named(pings(tmp_path, [(0, 0)], polygon_name="code", **chosen)) == ["17"]
    with pytest.raises(DataError, match="no property 'kode': it has 'code'"):
        pings(tmp_path, [(0, 0)], polygon_name="kode", **chosen)
    for text in ("{", "[1]", '{"type": "Topology"}', "[" * 100_000):
        (tmp_path / "areas.geojson").write_text(text)
        with pytest.raises(DataError, match=r"areas\.geojson"):
            pings(tmp_path, [(0, 0)], **chosen)


def table(tmp_path, text):
    path = tmp_path / "places.csv"
    path.write_text(text)
    return str(path)


def test_towers_have_a_reach_if_set(tmp_path):
    places = table(tmp_path, "tower,lat,lon\nb,0,0\na,0,1\nfar,50,50\n")
    chosen = {"regions": "towers", "places": places}
    points = [(0.4, 0), (0.6, 0), (5, 0), (179, 0)]
    assert named(pings(tmp_path, points, **chosen)) == ["b", "a", "a", "far"]
    found = pings(tmp_path, points, max_tower_km=300, **chosen)
    assert found.rows.refused == {"too far from every tower": 2}
    assert found.traces.regions.names == ("b", "a")


def test_places_give_coordinates_to_given_ids(tmp_path):
    places = table(tmp_path, "id,Latitude,lng\ny,1,2\nx,3,4\nz,5,6\nx,9,9\nq,99,0\n")
    path = tmp_path / "visits.csv"
    path.write_text(
        "person,time,cell\na,2020-03-01,x\na,2020-03-02,y\na,2020-03-02,q\n"
    )
    found = import_visits(path, ImportSettings(kind="cells", places=places))
    regions = found.traces.regions
    assert regions.names == ("x", "y")
    assert regions.lonlat.tolist() == [[4, 3], [2, 1]]
    assert found.rows.refused == {"not in the table of places": 1}
    assert found.places.refused == {"lat out of range": 1, "name appears again": 1}
    settings = ImportSettings(kind="cells", places=places, keep_unvisited=True)
    regions = import_visits(path, settings).traces.regions
    assert regions.names == ("x", "y", "z")
    settings = ImportSettings(kind="cells", places=places, regions="towers")
    assert import_visits(path, settings).traces.regions.names == ("y", "x")
    settings = ImportSettings(kind="cells", places=places, regions="grid")
    found = import_visits(path, settings).traces
    assert great_circle_km(found.regions.lonlat, np.array([[2, 1], [4, 3]])).max() < 1


@pytest.mark.parametrize("rule", ["grid", "h3", "given"])
def test_unvisited_regions_that_no_file_lists_are_refused(tmp_path, rule):
    """Otherwise the list of regions would show who was where, as if by default."""
    if rule == "h3":
        pytest.importorskip("h3ronpy")
    places = table(tmp_path, "id,lat,lon\ny,1,2\nx,3,4\n")
    path = tmp_path / "visits.csv"
    path.write_text("person,time,cell\na,2020-03-01,x\n")
    listed = {} if rule == "given" else {"places": places}
    settings = ImportSettings(kind="cells", regions=rule, keep_unvisited=True, **listed)
    with pytest.raises(SettingsError, match="keep_unvisited=true needs regions that"):
        import_visits(path, settings)
    np.save(tmp_path / "m.npy", np.zeros((2, 48)))
    settings = ImportSettings(kind="matrix", keep_unvisited=True)
    with pytest.raises(SettingsError, match="keep_unvisited=true needs regions that"):
        import_visits(tmp_path / "m.npy", settings)


@pytest.mark.parametrize(
    ("module", "rule"), [("h3ronpy", "h3"), ("shapely", "polygons")]
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, module, rule):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    polygons = areas(tmp_path, square(0, 0)) if rule == "polygons" else None
    with pytest.raises(SettingsError, match=rf"'{rule}' needs .*epifalcon\[geo\]"):
        pings(tmp_path, [(0, 0)], regions=rule, polygons=polygons)


def test_a_bad_table_of_places_is_named(tmp_path):
    places = table(tmp_path, "tower,lat,lon\nb,up,0\n")
    read = ReadSettings()
    with pytest.raises(DataError, match=r"places\.csv: all 1 rows"):
        pings(tmp_path, [(0, 0)], regions="towers", places=places, read=read)
