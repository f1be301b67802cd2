import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.regions import (
    EARTH_RADIUS_KM,
    Regions,
    great_circle_km,
    plane_km,
)

CASES = settings(max_examples=100, deadline=None, derandomize=True)
points = st.tuples(st.floats(-180, 180), st.floats(-90, 90))


def by_vectors(one, other) -> float:
    """Great-circle distance by the angle between unit vectors."""

    def vector(point):
        lon, lat = map(math.radians, point)
        across = math.cos(lat)
        return across * math.cos(lon), across * math.sin(lon), math.sin(lat)

    a, b = np.array(vector(one)), np.array(vector(other))
    angle = math.atan2(float(np.linalg.norm(np.cross(a, b))), float(a @ b))
    return EARTH_RADIUS_KM * angle


@CASES
@given(points, points)
def test_great_circle_equals_the_angle_between_vectors(one, other):
    got = float(great_circle_km(np.array(one), np.array(other)))
    # Near the antipode the half-versed sine is good to a metre only.
    assert got == pytest.approx(by_vectors(one, other), abs=1e-2)
    back = float(great_circle_km(np.array(other), np.array(one)))
    assert got == pytest.approx(back, abs=1e-6)


def test_distances_that_people_know():
    berlin, munich = np.array([13.405, 52.52]), np.array([11.582, 48.135])
    assert float(great_circle_km(berlin, munich)) == pytest.approx(504.4, abs=0.5)
    degree = great_circle_km(np.array([0.0, 0.0]), np.array([0.0, 1.0]))
    assert float(degree) == pytest.approx(111.195, abs=1e-3)


@CASES
@given(
    points.filter(lambda p: abs(p[1]) < 60),
    st.lists(
        st.tuples(st.floats(-0.4, 0.4), st.floats(-0.4, 0.4)), min_size=2, max_size=5
    ),
)
def test_the_plane_keeps_distances_of_a_city_also_across_the_date_line(centre, offsets):
    degrees = np.array(centre) + np.array(offsets)
    degrees[:, 0] = (degrees[:, 0] + 180) % 360 - 180
    plane = plane_km(degrees)
    flat = np.hypot(*(plane[0] - plane[1]))
    assert flat == pytest.approx(
        float(great_circle_km(degrees[0], degrees[1])), rel=0.015, abs=1e-6
    )
    assert np.abs(plane.mean(axis=0)).max() < 1e-6


def test_a_city_on_the_date_line_stays_in_one_piece():
    suva = np.array([[179.9, -17.0], [-179.9, -17.0], [179.8, -17.0]])
    plane = plane_km(suva)
    assert np.ptp(plane[:, 0]) == pytest.approx(31.9, abs=0.1)
    assert plane.mean(axis=0) == pytest.approx([0, 0], abs=1e-9)


def test_the_plane_leaves_unknown_places_unknown():
    degrees = np.array([[10.0, 50.0], [np.nan, np.nan], [10.2, 50.0]])
    plane = plane_km(degrees)
    assert np.isnan(plane[1]).all()
    assert plane[2, 0] - plane[0, 0] == pytest.approx(14.3, abs=0.1)
    assert np.isnan(plane_km(np.full((2, 2), np.nan))).all()


def test_the_plane_touches_a_given_origin():
    degrees = np.array([[10.0, 50.0], [10.0, 51.0]])
    plane = plane_km(degrees, origin=np.array([10.0, 50.0]))
    assert plane[0].tolist() == [0, 0]
    assert plane[1, 1] == pytest.approx(111.195, abs=1e-3)


def test_plane_distances_broadcast():
    regions = Regions("poi", np.array([[0.0, 0.0], [3.0, 4.0], [np.nan, np.nan]]))
    ids = np.arange(3, dtype=np.int32)
    apart = regions.distance_km(ids[:, None], ids[None, :])
    assert apart.shape == (3, 3)
    assert apart[0, 1] == apart[1, 0] == 5
    assert apart[0, 0] == 0
    assert np.isnan(apart[2]).all()
    assert not regions.placed
    assert Regions("poi", np.zeros((1, 2))).placed


def test_degrees_are_preferred_where_they_are_known():
    lonlat = np.array([[13.405, 52.52], [11.582, 48.135]])
    regions = Regions("area", np.zeros((2, 2)), lonlat=lonlat)
    apart = regions.distance_km(np.array([0], np.int32), np.array([1], np.int32))
    assert apart[0] == pytest.approx(504.4, abs=0.5)


def test_outlines_are_cut_at_their_ends():
    corners = np.arange(14.0).reshape(7, 2)
    regions = Regions(
        "area", np.zeros((3, 2)), outline_km=corners, outline_ends=np.array([3, 3, 7])
    )
    assert regions.outline(0).tolist() == corners[:3].tolist()
    assert len(regions.outline(1)) == 0
    assert regions.outline(2).tolist() == corners[3:].tolist()
    assert Regions("poi", np.zeros((1, 2))).outline(0) is None


def test_names_or_numbers():
    assert Regions("poi", np.zeros((2, 2)), names=("a", "b")).name(1) == "b"
    assert Regions("poi", np.zeros((2, 2))).name(1) == "1"
    assert len(Regions("poi", np.zeros((2, 2)))) == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"centre_km": np.zeros((0, 2))}, "centre_km"),
        ({"centre_km": np.zeros((2, 3))}, "centre_km"),
        ({"centre_km": np.zeros(2)}, "centre_km"),
        ({"centre_km": np.zeros((2, 2), dtype=np.float32)}, "float64"),
        ({"lonlat": np.zeros((3, 2))}, "lonlat"),
        ({"names": ("a",)}, "1 names"),
        ({"outline_km": np.zeros((3, 2))}, "together"),
        ({"outline_ends": np.array([3, 3])}, "together"),
        (
            {"outline_km": np.zeros((3, 2)), "outline_ends": np.array([3])},
            "1 outlines",
        ),
        (
            {"outline_km": np.zeros((3, 2)), "outline_ends": np.array([4, 3])},
            "must not fall",
        ),
        (
            {"outline_km": np.zeros((3, 2)), "outline_ends": np.array([1, 2])},
            "3 points",
        ),
        (
            {"outline_km": np.zeros(3), "outline_ends": np.array([1, 3])},
            "outline_km",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(wrong, told):
    with pytest.raises(DataError, match=told):
        Regions(**{"kind": "area", "centre_km": np.zeros((2, 2)), **wrong})


def test_an_unknown_kind_is_refused():
    with pytest.raises(SettingsError, match="kind='grid'"):
        Regions("grid", np.zeros((2, 2)))
