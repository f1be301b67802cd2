"""Extent, coverage and warnings of an import, each with data that has one mistake."""

import numpy as np
import pytest

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io import ImportSettings, import_visits
from epifalcon.mobility.io.plausibility import share_if_filled
from epifalcon.mobility.io.visits import fill_gaps
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces

BERLIN = [(52.50, 13.40), (52.60, 13.40), (52.50, 13.50)]


def imported(tmp_path, lines, kind="pings", **chosen):
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return import_visits(path, ImportSettings(kind=kind, **chosen))


def pings(points=BERLIN, days=range(1, 15), people=4, offset=""):
    """Everybody is at one of the points at noon of each day of March 2020."""
    return ["person,time,lat,lon"] + [
        f"{person},2020-03-{day:02d}T12:00{offset},{lat},{lon}"
        for person in range(people)
        for day in days
        for lat, lon in [points[day % len(points)]]
    ]


def test_plausible_data_have_an_extent_and_no_warning(tmp_path):
    found = imported(tmp_path, pings(), timezone="Europe/Berlin", cell_km=0.1)
    assert found.warnings == ()
    box = found.extent
    assert (box.south, box.north) == pytest.approx((52.5, 52.6), abs=1e-3)
    assert (box.west, box.east) == pytest.approx((13.4, 13.5), abs=1e-3)
    # A degree is 111.2 km to the north, and 111.2 cos(52.55) to the east.
    assert box.height_km == pytest.approx(11.12, abs=0.1)
    assert box.width_km == pytest.approx(6.76, abs=0.1)
    assert found.cells == "grid cells of 0.1 km"


def test_extent_across_the_date_line(tmp_path):
    found = imported(tmp_path, pings([(-17, 179.9), (-17, -179.9)]))
    assert (found.extent.west, found.extent.east) == pytest.approx(
        (179.9, -179.9), abs=0.02
    )
    assert found.extent.width_km < 30


@pytest.mark.parametrize("hours", [2, 6, 12])
def test_share_if_filled_is_the_share_after_filling(hours):
    rng = np.random.default_rng(1)
    by_slot = np.where(rng.random((48, 30)) < 0.2, 0, -1).astype(np.int32)
    regions, clock = Regions("poi", np.zeros((1, 2))), Clock(2, 4)
    expected = by_slot.copy()
    fill_gaps(expected, hours // 2)
    share = share_if_filled(Traces(by_slot, clock, regions), hours)
    assert share == pytest.approx((expected >= 0).mean())


@pytest.mark.parametrize(
    ("points", "zone", "warns"),
    [
        ([(lon, lat) for lat, lon in BERLIN], "Europe/Berlin", True),
        ([(-74.0, 40.7)], "UTC", True),
        ([(40.7, -74.0)], "America/New_York", False),
        ([(40.7, -74.0)], "Europe/Berlin", False),
        ([(43.8, 87.6)], "Asia/Shanghai", False),
        ([(-51.6, -69.2)], "America/Argentina/Buenos_Aires", False),
        ([(38.0, 23.7)], "Europe/Athens", False),
        ([(23.7, 38.0)], "Europe/Athens", True),
    ],
)
def test_swapped_coordinates(points, zone, warns, tmp_path):
    found = imported(tmp_path, pings(points), timezone=zone).warnings
    assert [("--columns lat=lon,lon=lat" in text) for text in found] == [True] * warns


def test_swapped_coordinates_beyond_the_pole(tmp_path):
    lines = pings([(116.4, 39.9)])
    with pytest.raises(DataError, match=r"swapped: columns lat=lon,lon=lat"):
        imported(tmp_path, lines)
    mixed = pings(BERLIN) + lines[1:20]
    (found,) = imported(tmp_path, mixed).warnings
    assert "19 of 75 rows have a lat beyond 90 degrees" in found


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (("", "+01:00"), "set --timezone"),
        (("+01:00", "+08:00"), "range from +1 h to +8 h"),
        (("Z", "-05:30"), "range from -5.5 h to +0 h"),
        (("+01:00", "+02:00"), None),
        (("Z", "Z"), None),
    ],
)
def test_mixed_time_zones(offsets, message, tmp_path):
    first, second = offsets
    lines = pings(days=range(1, 5), offset=first)
    lines += pings(days=range(5, 9), offset=second)[1:]
    found = imported(tmp_path, lines, timezone="Europe/Berlin").warnings
    assert len(found) == (message is not None)
    assert message is None or message in found[0]


def test_cells_of_a_metre(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["person,time,lat,lon"] + [
        f"{person},2020-03-01T{hour:02d}:00,{lat:.6f},{lon:.6f}"
        for person in range(40)
        for hour in range(24)
        for lat, lon in [rng.normal((52.5, 13.4), 0.001)]
    ]
    assert imported(tmp_path, lines, slot_hours=1).warnings == ()
    (found,) = imported(tmp_path, lines, slot_hours=1, cell_km=0.001).warnings
    assert "hardly anybody" in found
    assert "choose a larger --cell-km than 0.001" in found


def test_places_that_are_visits(tmp_path):
    lines = ["person,time,place"] + [
        f"{k % 7},2020-03-01T{k % 24:02d}:00,visit {k}" for k in range(80)
    ]
    (found,) = imported(tmp_path, lines, "checkins").warnings
    assert "check that the regions are places" in found


@pytest.mark.parametrize(
    ("day", "warns"), [("2019-12-24", True), ("2020-02-28", False)]
)
def test_a_day_far_from_the_others(day, warns, tmp_path):
    lines = [*pings(), f"1,{day}T12:00,52.5,13.4"]
    found = imported(tmp_path, lines).warnings
    assert len(found) == warns
    if warns:
        assert "only 1 of 57 observations" in found[0]
        assert "--start 2020-03-01 --days 14" in found[0]


def test_overlapping_stays(tmp_path):
    head = "person,start,end,place"
    apart = [
        f"{person},2020-03-01T{hour:02d}:00,2020-03-01T{hour + 1:02d}:00,home"
        for person in "ab"
        for hour in (12, 8, 9)
    ]
    assert imported(tmp_path, [head, *apart], "stays").warnings == ()
    late = "b,2020-03-01T09:30,2020-03-01T11:00,work"
    (found,) = imported(tmp_path, [head, *apart, late], "stays").warnings
    assert "at least 1 of 7 stays" in found
    assert "row 8" in found
