"""Clock, regions and traces: the records that every later stage reads."""

import doctest
import math
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility import clock as clock_module
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import (
    EARTH_RADIUS_KM,
    Regions,
    great_circle_km,
    middle,
    plane_km,
)
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, build
from epifalcon.store import Origin
from tests.oracles.cities import cities

CASES = settings(max_examples=80, deadline=None, derandomize=True)
NAN = float("nan")
CLOCKS = st.builds(
    Clock,
    st.sampled_from([m / 60 for m in range(1, 1441) if 1440 % m == 0]),
    st.integers(1, 60),
    st.none() | st.dates(max_value=date(9999, 10, 1)).map(str),
)
POINTS = st.tuples(st.floats(-180, 180), st.floats(-90, 90))
PLACES = Regions("poi", np.zeros((3, 2)))
GOOD = np.array([[0, 1], [-1, 1], [2, 2], [0, -1]], dtype=np.int32)
CLOCK = Clock(12, 2)


@CASES
@given(CLOCKS, st.data())
def test_slots_days_and_hours_agree(clock, data):
    assert clock.slots == clock.days * clock.slots_per_day
    assert clock.slots_per_day * clock.slot_minutes == 1440
    assert clock.slot_days * clock.slots_per_day == pytest.approx(1)
    seen = []
    for day in range(clock.days):
        slots = range(clock.slots)[clock.slots_of_day(day)]
        assert {clock.day_of_slot(slot) for slot in (slots[0], slots[-1])} == {day}
        assert clock.hour_of_slot(slots[0]) == 0
        assert clock.hour_of_slot(slots[-1]) == pytest.approx(24 - clock.slot_hours)
        seen.extend(slots)
    assert seen == list(range(clock.slots))
    assert build(Clock, as_plain(clock)) == clock
    days = data.draw(st.integers(1, clock.days))
    assert clock.last(days).days == days
    assert clock.last(clock.days) == clock
    assert clock.last(days).last(1) == clock.last(1)


def test_days_of_the_calendar_and_thirds_of_an_hour():
    assert Clock(2, 14).slots_of_day(-1) == slice(156, 168)
    assert Clock(2, 5, "2020-02-27").last(3).start == "2020-02-29"
    assert Clock(slot_hours=1 / 3).slots_per_day == 72
    assert Clock(slot_hours=0.33333).slots_per_day == 72
    assert doctest.testmod(clock_module).failed == 0


def test_days_that_are_not_there_are_refused():
    for days in (0, -1, 2.5, 6, True):
        with pytest.raises(SettingsError, match="last_days="):
            Clock(days=5).last(days)
    for day in (14, -15):
        with pytest.raises(SettingsError, match=f"day={day}"):
            Clock(days=14).slots_of_day(day)
    with pytest.raises(SettingsError, match="days=14 from 9999-12-31"):
        Clock(days=14, start="9999-12-31")
    with pytest.raises(SettingsError, match="days=99999999 from 2020-03-01"):
        Clock(days=99_999_999, start="2020-03-01")


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
@given(POINTS, POINTS)
def test_great_circle_equals_the_angle_between_vectors(one, other):
    got = float(great_circle_km(np.array(one), np.array(other)))
    # Near the antipode the half-versed sine is good to a metre only.
    assert got == pytest.approx(by_vectors(one, other), abs=1e-2)
    berlin, munich = np.array([13.405, 52.52]), np.array([11.582, 48.135])
    assert float(great_circle_km(berlin, munich)) == pytest.approx(504.4, abs=0.5)


NEAR = st.tuples(st.floats(-0.4, 0.4), st.floats(-0.4, 0.4))


@CASES
@given(POINTS.filter(lambda p: abs(p[1]) < 60), st.lists(NEAR, min_size=2, max_size=5))
def test_the_plane_keeps_distances_of_a_city_also_across_the_date_line(centre, offsets):
    degrees = np.array(centre) + np.array(offsets)
    degrees[:, 0] = (degrees[:, 0] + 180) % 360 - 180
    plane = plane_km(degrees, middle(degrees))
    flat = np.hypot(*(plane[0] - plane[1]))
    apart = float(great_circle_km(degrees[0], degrees[1]))
    assert flat == pytest.approx(apart, rel=0.015, abs=1e-6)
    assert np.abs(plane.mean(axis=0)).max() < 1e-6
    unknown = np.vstack([degrees, [NAN, NAN]])
    np.testing.assert_array_equal(plane_km(unknown, middle(unknown))[:-1], plane)


def test_distances_broadcast_and_prefer_degrees():
    regions = Regions("poi", np.array([[0.0, 0.0], [3.0, 4.0], [NAN, NAN]]))
    ids = np.arange(3, dtype=np.int32)
    apart = regions.distance_km(ids[:, None], ids[None, :])
    assert apart[0, 1] == apart[1, 0] == 5
    assert apart[0, 0] == 0
    assert np.isnan(apart[2]).all()
    assert not regions.placed
    lonlat = np.array([[13.405, 52.52], [11.582, 48.135]])
    regions = Regions("area", np.zeros((2, 2)), lonlat=lonlat)
    assert regions.placed
    assert regions.distance_km(ids[:1], ids[1:2])[0] == pytest.approx(504.4, abs=0.5)


def test_outlines_are_cut_at_their_ends_and_names_are_numbers_without():
    corners = np.arange(14.0).reshape(7, 2)
    regions = Regions(
        "area", np.zeros((3, 2)), outline_km=corners, outline_ends=np.array([3, 3, 7])
    )
    outlines = [regions.outline(region).tolist() for region in range(3)]
    assert outlines == [corners[:3].tolist(), [], corners[3:].tolist()]
    assert PLACES.outline(0) is None
    assert Regions("poi", np.zeros((2, 2)), names=("a", "b")).name(1) == "b"
    assert PLACES.name(1) == "1"


SIX = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"centre_km": np.zeros((0, 2))}, "centre_km"),
        ({"centre_km": np.zeros((2, 3))}, "centre_km"),
        ({"centre_km": np.zeros(2)}, "centre_km"),
        ({"centre_km": np.zeros((2, 2), dtype=np.float32)}, "float64"),
        ({"lonlat": SIX}, "lonlat"),
        ({"names": ("a",)}, "1 names"),
        ({"outline_km": SIX}, "together"),
        ({"outline_ends": np.array([3, 3])}, "together"),
        ({"outline_km": SIX, "outline_ends": np.array([3])}, "outline_ends"),
        ({"outline_km": SIX, "outline_ends": np.array([4, 3])}, "must not decrease"),
        ({"outline_km": SIX, "outline_ends": np.array([1, 2])}, "outline_km"),
        ({"outline_km": np.zeros(3), "outline_ends": np.array([1, 3])}, "outline_km"),
    ],
)
def test_regions_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(DataError, match=message):
        Regions(**{"kind": "area", "centre_km": np.zeros((2, 2)), **wrong})
    with pytest.raises(SettingsError, match="kind='grid'"):
        Regions("grid", np.zeros((2, 2)))


@CASES
@given(cities())
def test_the_views_show_the_same_people(traces):
    assert np.shares_memory(traces.by_person, traces.by_slot)
    seen = 0
    for slot in range(traces.slots):
        counts = traces.occupancy(slot)
        for region in range(len(traces.regions)):
            assert counts[region] == sum(traces.by_slot[slot] == region)
        seen += counts.sum()
    per_day = traces.clock.slots_per_day
    days = [day.any() for day in np.split(traces.by_slot >= 0, traces.clock.days)]
    assert traces.observed_days == max(np.flatnonzero(days), default=0) + 1
    pairs = traces.observed_days * per_day * traces.people
    assert traces.observed_share == pytest.approx(seen / pairs)
    longer = traces.with_days(traces.clock.days + 2)
    assert (longer.by_slot[traces.slots :] == -1).all()
    assert longer.observed_share == traces.observed_share
    first = longer.with_days(1).by_slot
    np.testing.assert_array_equal(first, traces.by_slot[:per_day])
    with pytest.raises(ValueError, match="read-only"):
        traces.by_person[0, 0] = 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (GOOD.astype(np.int64), "int64"),
        (GOOD[0], "1 axes"),
        (GOOD[:3], "3 slots"),
        (GOOD[:, :0], "no people"),
        (np.where(GOOD == 2, 3, GOOD).astype(np.int32), "to 3"),
        (np.where(GOOD == 2, -2, GOOD).astype(np.int32), "from -2"),
    ],
)
def test_arrays_that_are_no_traces_are_refused(array, message):
    with pytest.raises(DataError, match=message):
        Traces(array, CLOCK, PLACES)
    with pytest.raises(DataError, match="1 names for 2 people"):
        Traces(GOOD.copy(), CLOCK, PLACES, ("Ada",))


def test_all_parts_survive_the_disk(tmp_path):
    regions = Regions(
        "area",
        np.array([[0.0, 1.0], [2.0, 3.0], [NAN, NAN]]),
        lonlat=np.array([[10.0, 50.0], [10.1, 50.1], [NAN, NAN]]),
        names=("Nord", "", "Süd\n"),
        outline_km=np.arange(12.0).reshape(6, 2),
        outline_ends=np.array([3, 6, 6]),
    )
    clock = Clock(12, 2, "2020-03-28", "Europe/Berlin")
    traces = Traces(GOOD.copy(), clock, regions, ("007", "7"))
    traces.save(tmp_path / "city", Origin.now({"a": 1}, 3))
    loaded = Traces.load(tmp_path / "city")
    np.testing.assert_array_equal(loaded.by_slot, GOOD)
    assert isinstance(loaded.by_slot, np.memmap)
    assert (loaded.clock, loaded.names) == (clock, ("007", "7"))
    for name in ("centre_km", "lonlat", "outline_km", "outline_ends"):
        mine, theirs = getattr(regions, name), getattr(loaded.regions, name)
        np.testing.assert_array_equal(theirs, mine)
    assert (loaded.regions.names, loaded.regions.kind) == (regions.names, "area")
    Traces(GOOD.copy(), CLOCK, PLACES).save(tmp_path / "bare", Origin())
    bare = Traces.load(tmp_path / "bare")
    assert bare.names is bare.regions.names is bare.regions.lonlat is None
