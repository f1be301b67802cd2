import gzip
import io
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.read_tests import read_more_tests
from epifalcon.epidemic.test_kinds import EVER, PCR
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io import ImportSettings, ReadSettings, import_visits, tables
from epifalcon.mobility.io import visits as visits_module
from epifalcon.mobility.io.visits import fill_gaps, read_day_visits
from epifalcon.mobility.regions import Regions

CHECKINS = "person,time,place\n"


def visits(tmp_path, text, name="visits.csv", **chosen):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    chosen.setdefault("kind", "checkins")
    return import_visits(path, ImportSettings(**chosen))


def refused(tmp_path, text, match, error=DataError, **chosen):
    with pytest.raises(error, match=match):
        visits(tmp_path, text, **chosen)


def regions(imported, person):
    traces = imported.traces
    row = traces.by_person[list(traces.names).index(person)]
    return [None if r < 0 else traces.regions.names[r] for r in row]


def test_every_refused_row_is_explained(tmp_path):
    text = (
        "person,time,lat,lon\n"
        "ann,2020-03-01T08:00,52.5,13.4\n"
        ",2020-03-01T08:00,52.5,13.4\n"
        "ann,yesterday,52.5,13.4\n"
        "ann,,52.5,13.4\n"
        "ann,2020-03-01T08:00,952.5,13.4\n"
        "ann,2020-03-01T08:00,52.5,east\n"
        "ann,2020-03-01T08:00,52.5\n"
        "ann,2020-03-01T08:00,nan,13.4\n"
        "ann,2020-03-01T08:00,,13.4\n"
        "bob,1583049600,52.5,13.4\n"
    )
    read = ReadSettings(max_refused_share=0.9)
    rows = visits(tmp_path, text, kind="pings", read=read).rows
    assert (rows.read, rows.accepted) == (10, 2)
    assert rows.refused == {
        "empty person": 1,
        "time is not readable": 1,
        "missing time": 1,
        "lat out of range": 1,
        "lon is not a number": 1,
        "lat is not a number": 1,
        "missing lat": 1,
        "wrong number of fields, or an open quote": 1,
    }
    found = {row.reason: (row.row, row.column, row.value) for row in rows.examples}
    assert found["lat out of range"] == (6, "lat", "'952.5'")
    assert found["empty person"] == (3, "person", "''")
    assert found["wrong number of fields, or an open quote"][::2] == (8, "3 fields")


def test_too_many_refused_rows_are_an_error_that_shows_them(tmp_path):
    text = CHECKINS + "a,2020-03-01,x\na,never,x\na,soon,x\n,2020-03-01,x\n"
    refused(tmp_path, text, r"3 of 4 rows.*2 x time is not readable \(row 3.*'never'")


def test_strict_names_the_first_bad_row(tmp_path):
    text = CHECKINS + "a,2020-03-01,x\na,never,x\n,2020-03-01,x\n" + "a,-,x\n" * 9
    rows = visits(tmp_path, text, read=ReadSettings(max_refused_share=1)).rows
    assert rows.refused == {"time is not readable": 10, "empty person": 1}
    assert [row.row for row in rows.examples] == [3, 5, 6, 4]
    read = ReadSettings(strict=True)
    refused(tmp_path, text, "row 3, column 'time'.*found 'never'", read=read)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("person,time,place\n", "holds no rows"),
        ("person,when,place\na,b,c\n", "no column 'time'.*'person', 'when', 'place'"),
        ("person,time,place,time\na,b,c,d\n", "'time' appears more than once"),
        ("person,user_id,uid,time,place\n", None),
        ("user_id,uid,time,place\na,b,c,d\n", "'user_id' and 'uid' could each be"),
        (CHECKINS + ",,\n", "all 1 rows were refused"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, match):
    refused(tmp_path, text, match or "holds no rows")


def test_the_error_for_a_missing_column_names_the_nearest(tmp_path):
    read = ReadSettings(columns=("time=timestmp",))
    text = "person,timestamp,place\na,2020-03-01,x\n"
    refused(tmp_path, text, "no column 'timestmp'.*nearest: 'timestamp'", read=read)
    read = ReadSettings(columns=("tme=timestamp",))
    refused(tmp_path, text, "did you mean 'time'", SettingsError, read=read)


def test_no_such_file_a_folder_and_an_unknown_ending(tmp_path):
    for place, match in (("none.csv", "no such file"), (".", "is a folder")):
        with pytest.raises(DataError, match=match):
            import_visits(tmp_path / place, ImportSettings(kind="checkins"))
    refused(tmp_path, "PK", r"ending in one of \.csv", name="visits.xlsx")
    refused(tmp_path, "person,time\n", r"visits\.parquet", name="visits.parquet")


def test_usual_names_and_renamed_ones(tmp_path):
    text = "Device_ID,Timestamp,Latitude,LNG\na,2020-03-01,1,2\n"
    found = visits(tmp_path, text, kind="pings").columns
    assert found == {
        "person": "Device_ID", "time": "Timestamp", "lat": "Latitude", "lon": "LNG"
    }  # fmt: skip
    text = "person,who,when,place\nx,a,2020-03-01,p\n"
    read = ReadSettings(columns=("person=who", "time=when"))
    assert visits(tmp_path, text, read=read).traces.names == ("a",)


def test_ids_are_unchanged_letter_by_letter(tmp_path):
    names = ["007", "7", " 7", "Zoë", "a b", 'say "hi", x', "NULL", "張", "1e3"]
    names.append("é" * 300)
    quoted = [f'"{name}"' for name in (name.replace('"', '""') for name in names)]
    text = CHECKINS + "".join(f"{name},2020-03-01,{name}\n" for name in quoted)
    traces = visits(tmp_path, text).traces
    assert list(traces.names) == sorted(names)
    assert list(traces.regions.names) == sorted(names)


def test_the_order_of_rows_and_the_format_do_not_matter(tmp_path):
    rng = np.random.default_rng(1)
    count = 4000
    frame = pl.DataFrame(
        {
            "person": [f"p{k}" for k in rng.integers(0, 40, count)],
            "time": [1583020800 + int(s) for s in rng.integers(0, 3 * 86400, count)],
            "place": [f"r{k}" for k in rng.integers(0, 30, count)],
        }
    )
    out, shuffled = io.BytesIO(), io.BytesIO()
    frame.write_parquet(out, row_group_size=500)
    frame.sample(fraction=1, shuffle=True, seed=3).write_parquet(shuffled)
    text = frame.write_csv().encode()
    base = visits(tmp_path, text).traces
    zoned = frame.with_columns(
        pl.from_epoch("time")
        .dt.replace_time_zone("UTC")
        .dt.convert_time_zone("Asia/Tokyo"),
        pl.col("person").cast(pl.Categorical),
    )
    typed = io.BytesIO()
    zoned.write_parquet(typed)
    for data, name in (
        (out.getvalue(), "a.parquet"),
        (shuffled.getvalue(), "b.parquet"),
        (typed.getvalue(), "c.parquet"),
        (gzip.compress(text), "d.csv.gz"),
    ):
        other = visits(tmp_path, data, name).traces
        np.testing.assert_array_equal(other.by_slot, base.by_slot)
        assert other.names == base.names
        assert other.regions.names == base.regions.names
        assert other.clock == base.clock


def test_odd_wall_clock_times_are_counted(tmp_path):
    text = CHECKINS + "a,2020-03-29T02:30,x\na,2020-10-25T02:30,x\na,2020-03-29,x\n"
    found = visits(tmp_path, text, timezone="Europe/Berlin")
    assert (found.ambiguous_times, found.nonexistent_times) == (1, 1)
    assert regions(found, "a")[1] == "x"


def test_days_without_a_start_begin_with_the_data(tmp_path):
    text = CHECKINS + "a,2020-03-02,x\na,2020-03-03,y\na,2020-03-09,z\n"
    found = visits(tmp_path, text, days=2)
    assert found.traces.clock.start == "2020-03-02"
    assert found.rows.refused == {"outside the selected days": 1}
    assert found.traces.regions.names == ("x", "y")
    assert visits(tmp_path, text, start="2020-02-28").traces.clock.days == 11


def test_selecting_few_of_many_days_is_not_an_error(tmp_path):
    text = CHECKINS + "".join(f"a,2020-03-{day:02},x\n" for day in range(1, 31))
    strict = ReadSettings(strict=True, max_refused_share=0)
    found = visits(tmp_path, text, start="2020-03-08", days=2, read=strict)
    assert found.rows.refused == {"outside the selected days": 28}
    # Without a start, an outlying first day must not select the days.
    refused(tmp_path, text, "28 of 30 rows", days=2)
    refused(tmp_path, text, "all 30 rows", start="2021-03-08", days=2)
    bad = text + "a,never,x\n"
    refused(tmp_path, bad, "row 32", start="2020-03-08", days=2, read=strict)
    few = ReadSettings(max_refused_share=0.3)
    refused(tmp_path, bad, "1 of 3 rows", start="2020-03-08", days=2, read=few)


def test_numbers_as_ids(tmp_path):
    frame = pl.DataFrame(
        {
            "person": [7.0, 8.0, None, float("nan"), 7.5],
            "time": [1583020800] * 5,
            "place": pl.Series([3, 3, 3, 3, 4], dtype=pl.UInt8),
        }
    )
    out = io.BytesIO()
    frame.write_parquet(out)
    found = visits(tmp_path, out.getvalue(), "numbers.parquet")
    assert found.traces.names == ("7", "7.5", "8")
    assert found.traces.regions.names == ("3", "4")
    assert found.rows.refused == {"empty person": 2}


def test_one_outlying_time_does_not_allocate_a_century(tmp_path):
    text = CHECKINS + "a,2020-03-01,x\n" * 300 + "a,2020-03-04,x\na,1999-01-01,x\n"
    refused(tmp_path, text, r"days, from 1999-01-01 to 2020-03-04.*start and days")
    found = visits(tmp_path, text, start="2020-03-01", days=4)
    assert found.rows.refused == {"outside the selected days": 1}


def test_memory_has_a_limit_and_merging_changes_nothing(tmp_path, monkeypatch):
    text = CHECKINS + "".join(
        f"{k % 7},2020-03-0{1 + k % 3}T{k % 24:02}:00,r{k % 5}\n" for k in range(300)
    )
    whole = visits(tmp_path, text).traces.by_slot
    monkeypatch.setattr(visits_module, "_MERGE_ROWS", 0)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 400)
    np.testing.assert_array_equal(visits(tmp_path, text).traces.by_slot, whole)
    monkeypatch.setattr(visits_module, "MAX_RECORDS", 10)
    refused(tmp_path, text, r"visits\.csv: more than 10")
    monkeypatch.undo()
    monkeypatch.setattr(visits_module, "MAX_CELLS", 20)
    refused(tmp_path, text, "7 people x 36 slots are 252 cells")


def test_long_stays_are_cut_in_parts(tmp_path, monkeypatch):
    text = "person,start,end,place\n" + "".join(
        f"p{k},2020-03-{k:02},2020-03-{k + 3:02},r{k % 4}\n" for k in range(10, 25)
    )
    whole = visits(tmp_path, text, kind="stays").traces.by_slot
    monkeypatch.setattr(visits_module, "_MAX_PIECES", 50)
    parts = visits(tmp_path, text, kind="stays").traces.by_slot
    np.testing.assert_array_equal(parts, whole)


def test_stays_that_run_backwards_or_for_years_are_refused(tmp_path):
    text = (
        "person,start,end,place\n"
        "a,2020-03-01,2020-03-02,x\n"
        "a,2020-03-02,2020-03-01,x\n"
        "a,2020-03-01,2040-03-01,x\n"
    )
    read = ReadSettings(max_refused_share=0.9)
    rows = visits(tmp_path, text, kind="stays", read=read).rows
    assert rows.refused == {"end before start": 1, "stay too long": 1}


def test_missing_points_are_an_error(tmp_path):
    text = CHECKINS + "a,2020-03-01,x\n"
    refused(tmp_path, text, "needs lat and lon", SettingsError, regions="grid")
    text = "person,time\na,2020-03-01\n"
    refused(tmp_path, text, "no column 'place'")
    refused(tmp_path, text, "no column 'lat'", kind="pings")
    refused(tmp_path, "person,time,lat\na,2020-03-01,1\n", "no column 'lon'")


@pytest.mark.parametrize("longest", [0, 1, 3, 100])
def test_gaps_against_a_loop(longest):
    """Only gaps between two observations, up to the limit."""
    rng = np.random.default_rng(longest)
    by_slot = np.where(rng.random((40, 30)) < 0.7, -1, rng.integers(0, 9, (40, 30)))
    by_slot = by_slot.astype(np.int32)
    expected = by_slot.copy()
    for person in range(30):
        known = np.flatnonzero(by_slot[:, person] >= 0)
        for low, high in pairwise(known):
            if high - low - 1 <= longest:
                expected[low + 1 : high, person] = by_slot[low, person]
    fill_gaps(by_slot, longest)
    np.testing.assert_array_equal(by_slot, expected)


REGIONS = Regions("poi", np.zeros((3, 2)), names=("home", "work", "bar"))
CLOCK = Clock(slot_hours=6, days=2, start="2020-03-01")


def day_rows(tmp_path, *rows, header="person,day,hour,region"):
    path = tmp_path / "visits.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_each_slot_gets_the_region_of_most_rows_then_the_first(tmp_path):
    rows = ("b,1,0,home", "b,1,1,bar", "b,1,2.5,bar")
    rows += ("a,2,23.9,work", "b,2,6,work", "b,2,7,home")
    found = read_day_visits(day_rows(tmp_path, *rows), CLOCK, REGIONS).traces
    assert found.names == ("a", "b")
    assert found.by_slot.T.tolist() == [
        [-1, -1, -1, -1, -1, -1, -1, 1],
        [2, -1, -1, -1, -1, 1, -1, -1],
    ]


def test_days_are_numbers_or_dates(tmp_path):
    rows = ("a,2020-03-01,0,home", "a,2,0,bar", "a,2020-03-02,6,work")
    found = read_day_visits(day_rows(tmp_path, *rows), CLOCK, REGIONS).traces
    assert found.by_slot[:, 0].tolist() == [0, -1, -1, -1, 2, 1, -1, -1]
    one = Clock(slot_hours=6, days=1, start="2020-03-02")
    rows = ("a,2020-03-02,0,home", "a,2,18,bar")
    found = read_day_visits(day_rows(tmp_path, *rows), one, REGIONS, first_day=2).traces
    assert found.by_slot[:, 0].tolist() == [0, -1, -1, 2]


@pytest.mark.parametrize(
    ("row", "result"),
    [
        ("a,3,0,home", "found '3', expected 1 to 2, or 2020-03-01 to 2020-03-02"),
        ("a,1.5,0,home", "another day: found '1.5'"),
        ("a,2020-03-03,0,home", "another day"),
        ("a,first,0,home", "another day: found 'first'"),
        ("a,1,-1,home", "not an hour of a day: found '-1'"),
        ("a,1,x,home", "hour is not a number"),
        ("a,1,0,pub", "unknown region: found 'pub', expected one of the 3 regions"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, row, result):
    path = day_rows(tmp_path, "a,1,0,home", row)
    with pytest.raises(DataError, match="row 3") as error:
        read_day_visits(path, CLOCK, REGIONS)
    assert result in str(error.value)


def test_tests_without_an_hour_count_for_the_first_slot(tmp_path):
    def read(text):
        path = tmp_path / "tests.csv"
        path.write_text(text)
        return read_more_tests(path, CLOCK, None, EVER)

    found = read("person,day,result\na,1,pos\nb,2020-03-02,0\n")
    assert found.names == ("a", "b")
    assert found.tests.slot.tolist() == [0, 4]
    assert found.tests.positive.tolist() == [True, False]
    found = read("person,day,hour,result,kind,reason\na,2,13,negative,pcr,contact\n")
    assert (found.tests.slot.tolist(), found.tests.reason.tolist()) == ([6], [1])
    assert found.tests.kinds == (PCR,)
    assert read("person,day,result\n").names == ()
    with pytest.raises(DataError, match="row 2, column 'result'"):
        read("person,day,result\na,1,maybe\n")


def matrix(tmp_path, array, **chosen):
    path = tmp_path / "matrix.npy"
    np.save(path, array)
    return import_visits(path, ImportSettings(kind="matrix", **chosen))


def most_frequent(array, width):
    """The most frequent known id of each slot, of equals the first seen."""
    rows = []
    for person in array.tolist():
        slots = [person[k : k + width] for k in range(0, len(person), width)]
        known = [[int(x) for x in slot if x == x and x >= 0] for slot in slots]
        best = (Counter(slot).most_common(1) or [(-1, 0)] for slot in known)
        rows.append([top[0][0] for top in best])
    return np.array(rows)


@pytest.mark.parametrize("kind", [np.int16, np.int64, np.float32, np.float64, np.uint8])
@pytest.mark.parametrize(("column", "slot"), [(0.5, 2), (0.5, 0.5), (0.25, 4), (2, 24)])
def test_against_counting(tmp_path, monkeypatch, kind, column, slot):
    monkeypatch.setattr(visits_module, "_CHUNK_CELLS", 300)
    rng = np.random.default_rng(0)
    array = rng.choice([3, 5, 8, 100], (11, 2 * int(24 / column))).astype(kind)
    if np.issubdtype(kind, np.signedinteger):
        array[rng.random(array.shape) < 0.3] = -7
    elif np.issubdtype(kind, np.floating):
        array[rng.random(array.shape) < 0.3] = np.nan
        array[rng.random(array.shape) < 0.1] = -1
    traces = matrix(
        tmp_path, np.asfortranarray(array), matrix_slot_hours=column, slot_hours=slot
    ).traces
    expected = most_frequent(array, int(slot / column))
    ids = np.append(np.array([int(name) for name in traces.regions.names]), -1)
    np.testing.assert_array_equal(ids[traces.by_person], expected)
    assert traces.names == tuple(str(k) for k in range(11))
    assert traces.clock.start is None


def test_bad_rows_are_refused_and_the_others_keep_their_numbers(tmp_path):
    array = np.zeros((4, 48))
    array[1, 7] = 2.5
    array[2, 3] = np.inf
    array[3] = 9
    found = matrix(tmp_path, array, start="2020-03-01")
    assert found.traces.names == ("0", "3")
    assert found.rows.refused == {"not a region id": 2}
    examples = [(row.row, row.value) for row in found.rows.examples]
    assert examples == [(2, "2.5"), (3, "inf")]
    with pytest.raises(DataError, match=r"row 2.*2\.5"):
        matrix(tmp_path, array, read=ReadSettings(strict=True))


@pytest.mark.parametrize(("kind", "bits"), [("<f4", 0x7FA00000), ("<f8", 0x7FF4 << 48)])
def test_a_signalling_nan_is_a_nan(tmp_path, kind, bits):
    array = np.zeros((1, 48), dtype=kind)
    array.view(kind.replace("f", "u"))[0, :8] = bits
    assert matrix(tmp_path, array).traces.by_person[0].tolist() == [-1, -1, *[0] * 10]


def test_fewer_days_gaps_and_places(tmp_path):
    array = np.full((1, 96), -1)
    array[0, [0, 8, 60]] = [4, 2, 7]
    places = tmp_path / "places.csv"
    places.write_text("place,lat,lon\n2,1,1\n4,2,2\n")
    found = matrix(tmp_path, array, days=1, fill_gap_hours=2, places=str(places)).traces
    assert found.by_person[0].tolist() == [1, 1, 0, *[-1] * 9]
    assert found.regions.lonlat.tolist() == [[1, 1], [2, 2]]
    with pytest.raises(DataError, match="region 7"):
        matrix(tmp_path, array, places=str(places))


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros(48), "shape"),
        (np.zeros((2, 47)), "not a whole number of days"),
        (np.zeros((0, 48)), "is empty"),
        (np.full((2, 48), -1), "no observations"),
        (np.full((2, 48), "a"), "expected whole numbers"),
        (np.zeros((2, 48), dtype=complex), "expected whole numbers"),
    ],
)
def test_arrays_that_are_no_traces(tmp_path, array, match):
    with pytest.raises(DataError, match=match):
        matrix(tmp_path, array)
    with pytest.raises(DataError, match="fewer than the requested days=3"):
        matrix(tmp_path, np.zeros((2, 48)), days=3)


def test_pickles_archives_and_lies_are_refused(tmp_path):
    path = tmp_path / "matrix.npy"
    settings = ImportSettings(kind="matrix")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a readable"):
        import_visits(path, settings)
    with path.open("wb") as file:
        np.savez(file, a=np.zeros((2, 48)))
    with pytest.raises(DataError, match="archive"):
        import_visits(path, settings)
    np.save(path, np.zeros((2, 48), dtype=np.int8))
    path.write_bytes(path.read_bytes().replace(b"(2, 48)", b"(9999999999, 48)"))
    with pytest.raises(DataError, match="not a readable"):
        import_visits(path, settings)
