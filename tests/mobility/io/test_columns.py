from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import SettingsError
from epifalcon.mobility.io import ReadSettings
from epifalcon.mobility.io.columns import RowFilter, keep_times, localise

EPOCH = datetime(1970, 1, 1)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Pyongyang",
]


def micros(moment):
    return (moment.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


def times_of(column, zone="UTC", unit="auto", formats=()):
    frame = pl.DataFrame({"row": range(len(column)), "time": column})
    settings = ReadSettings(max_refused_share=1, date_format=formats)
    rows = RowFilter(Path("x"), {"time": "time"}, settings)
    return keep_times(rows, frame, "time", zone, unit)


def utc_of(column, zone="UTC", unit="auto", formats=()):
    found = times_of(column, zone, unit, formats)
    by_row = dict(zip(found["row"], found["time_utc"], strict=True))
    return [
        EPOCH + timedelta(microseconds=by_row[row]) if row in by_row else None
        for row in range(len(column))
    ]


def localised(moments, zone, zoned):
    value = pl.Series([micros(moment) for moment in moments])
    return localise(value, pl.Series([zoned] * len(moments)), zone)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1)),
    st.sampled_from([0, 0, 0, 60, 3600]),
)
def test_local_and_back_as_zoneinfo_does(name, moment, shift):
    zone = ZoneInfo(name)
    aware = moment.replace(tzinfo=UTC)
    assert localised([moment], name, True)["local"][0] == micros(aware.astimezone(zone))
    wall = moment.replace(tzinfo=zone) + timedelta(seconds=shift)
    found = localised([wall], name, False)
    assert found["utc"][0] == micros(wall.astimezone(UTC))
    offsets = {wall.replace(fold=fold).utcoffset() for fold in (0, 1)}
    back = wall.astimezone(UTC).astimezone(zone).replace(tzinfo=None)
    missing = back != wall.replace(tzinfo=None)
    assert found["never"][0] == missing
    assert found["twice"][0] == (len(offsets) == 2 and not missing)


@pytest.mark.parametrize("name", ZONES)
def test_every_half_hour_around_every_change_of_the_clocks(name):
    zone = ZoneInfo(name)
    days = [datetime(2000, 1, 1) + timedelta(days=k) for k in range(365 * 25)]
    offset = [day.replace(tzinfo=zone).utcoffset() for day in days]
    walls = [
        day + timedelta(minutes=minutes)
        for day, one, other in zip(days, offset, offset[1:], strict=False)
        if one != other
        for minutes in range(-60, 50 * 60, 30)
    ]
    expected = [micros(w.replace(tzinfo=zone).astimezone(UTC)) for w in walls]
    if walls:
        assert localised(walls, name, False)["utc"].to_list() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2020-03-01T08:30:15", datetime(2020, 3, 1, 8, 30, 15)),
        ("2020-03-01 08:30", datetime(2020, 3, 1, 8, 30)),
        ("2020-03-01", datetime(2020, 3, 1)),
        ("  2020-03-01T08:30:15.123456789Z ", datetime(2020, 3, 1, 8, 30, 15, 123456)),
        ("2020-03-01T08:30:15,5", datetime(2020, 3, 1, 8, 30, 15, 500000)),
        ("2020-03-01T08:30:15+05:45", datetime(2020, 3, 1, 2, 45, 15)),
        ("2020-03-01T08:30:15-0330", datetime(2020, 3, 1, 12, 0, 15)),
        ("2020-03-01T08:30:15+02", datetime(2020, 3, 1, 6, 30, 15)),
        ("2020-03-01 08:30:15 UTC", datetime(2020, 3, 1, 8, 30, 15)),
        ("2020-02-29T24:00:00", datetime(2020, 3, 1)),
        ("1583051415", datetime(2020, 3, 1, 8, 30, 15)),
        ("1583051415.25", datetime(2020, 3, 1, 8, 30, 15, 250000)),
        ("1583051415000", datetime(2020, 3, 1, 8, 30, 15)),
        ("1583051415000000", datetime(2020, 3, 1, 8, 30, 15)),
        ("1583051415000000000", datetime(2020, 3, 1, 8, 30, 15)),
        ("1.583051415e9", datetime(2020, 3, 1, 8, 30, 15)),
        ("43891.5", datetime(2020, 3, 1, 12)),
        ("43891,60417", datetime(2020, 3, 1, 14, 30)),
        ("43891", datetime(2020, 3, 1)),
        ("25570", datetime(1970, 1, 2)),
        ("73048.5", datetime(2099, 12, 29, 12)),
        ("86400", datetime(1970, 1, 2)),
        ("73051", None),
        ("25568.9", None),
        ("1583051415,25", datetime(2020, 3, 1, 8, 30, 15, 250000)),
        ("2021-02-29", None),
        ("2020-02-30T08:00", None),
        ("2020-13-01", None),
        ("2020-00-10", None),
        ("2020-03-01T24:00:01", None),
        ("2020-03-01T08:60", None),
        ("2020-03-01T08:30:60", None),
        ("2020-03-01T08:30:15+25:00", None),
        ("01/03/2020", None),
        ("20200301", None),
        ("2020-03-01T", None),
        ("2020-03-01+02:00", None),
        ("", None),
        ("inf", None),
        ("1e300", None),
        ("-5", None),
        ("1969-12-31", None),
        ("2150-01-01", None),
        (None, None),
    ],
)
def test_spellings(text, expected):
    assert utc_of(pl.Series([text], dtype=pl.String)) == [expected]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_datetimes_naive_and_zoned(unit):
    noon = pl.Series([datetime(2020, 7, 1, 12), None]).cast(pl.Datetime(unit))
    assert utc_of(noon, "Europe/Berlin") == [datetime(2020, 7, 1, 10), None]
    tokyo = noon.dt.replace_time_zone("Asia/Tokyo")
    assert utc_of(tokyo, "Europe/Berlin") == [datetime(2020, 7, 1, 3), None]


def test_numbers_and_units():
    column = pl.Series([5_000_000, 1_583_051_415])
    assert utc_of(column, unit="s") == [
        EPOCH + timedelta(seconds=5_000_000),
        datetime(2020, 3, 1, 8, 30, 15),
    ]
    assert utc_of(pl.Series([200_000_000_000.0]), unit="ms") == [
        EPOCH + timedelta(seconds=200_000_000)
    ]


def test_excel_dates_are_local_times_unless_a_unit_is_set():
    column = pl.Series([43891.5, 43891.5 + 150])
    assert utc_of(column, "Europe/Berlin") == [
        datetime(2020, 3, 1, 11),
        datetime(2020, 7, 29, 10),
    ]
    assert utc_of(column, unit="s") == [None, None]


def test_date_formats_in_order_of_their_list():
    formats = ("%d.%m.%Y %H:%M", "%d.%m.%Y", "%m/%d/%y %I:%M %p", "%Y%m%d %H:%M:%S.%f")
    found = {
        "01.03.2020 14:30": datetime(2020, 3, 1, 13, 30),
        " 1.3.2020": datetime(2020, 2, 29, 23),
        "03/01/20 02:30 PM": datetime(2020, 3, 1, 13, 30),
        "20200301 14:30:15.25": datetime(2020, 3, 1, 13, 30, 15, 250000),
        "2020-03-01": None,
        "31.02.2020 10:00": None,
        "": None,
    }
    column = pl.Series(list(found))
    assert utc_of(column, "Europe/Berlin", formats=formats) == [*found.values()]
    zoned = pl.Series(["01.03.2020 14:30 +0200"])
    assert utc_of(zoned, "Europe/Berlin", formats=("%d.%m.%Y %H:%M %z",)) == [
        datetime(2020, 3, 1, 12, 30)
    ]
    assert utc_of(pl.Series([20200301]), formats=("%Y%m%d",)) == [datetime(2020, 3, 1)]


@pytest.mark.parametrize(
    "form",
    [
        "%d.%m.",
        "%H:%M",
        "%d.%m.%Y %H",
        "%Y-%m-%d %Q",
        "%Y-%m-%d %H:%M %Z",
        "x",
        "%Y%Y-%m-%d",
    ],
)
def test_a_format_without_a_whole_date_is_refused(form):
    with pytest.raises(SettingsError, match="must give day, month and year"):
        ReadSettings(date_format=(form,))
