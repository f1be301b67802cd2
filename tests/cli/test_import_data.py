import hashlib
import signal
import stat

import numpy as np
import pytest

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.traces import Traces
from tests.cli.conftest import TINY
from tests.cli.processes import Running
from tests.cli.runs import content

PINGS = (
    "user_id,ts,lat,lon\n"
    "ann,2020-03-01T08:00:00,52.52,13.40\n"
    "bob,2020-03-01T09:00:00,52.52,13.40\n"
    "bob,2020-03-02T09:00:00,52.50,13.50\n"
    "[/b],2020-03-02T09:00:00,152.50,13.50\n"
)
TESTS = "person,time,result\nann,2020-03-02,positive\nzed,2020-03-02,negative\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "pings.csv").write_text(PINGS)
    (tmp_path / "tests.csv").write_text(TESTS)
    return tmp_path


def words(folder, *more):
    return (
        "import", "--visits", folder / "pings.csv", "--kind", "pings",
        "--out", folder / "out", *more,
    )  # fmt: skip


def test_import_tells_its_rows_and_the_folder_holds_what_made_it(epifalcon, files):
    more = ("--tests", files / "tests.csv", "--set", "cell_km=2", "--json")
    figures = epifalcon(*words(files, *more)).json
    rows = [figures[f"rows_{name}"] for name in ("read", "kept", "refused")]
    assert rows == [4, 3, 1]
    assert figures["refused"] == {"lat out of range": 1}
    assert figures["examples"][0]["row"] == 5
    assert (figures["people"], figures["slots"]) == (2, 24)
    assert figures["share_observed"] == pytest.approx(3 / 48)
    assert figures["tests"]["refused"] == {"person is not in the traces": 1}
    assert figures["tests"]["positive"] == 1
    assert figures["out"] == str(files / "out")
    assert Traces.load(files / "out" / "city").names == ("ann", "bob")
    known = TestResults.load(files / "out" / "known")
    assert (known.person.tolist(), known.slot.tolist()) == ([0], [12])
    manifest = store.read_manifest(files / "out")
    assert manifest["kind"] == "import"
    assert manifest["settings"]["import"]["cell_km"] == 2
    digest = hashlib.sha256(PINGS.encode()).hexdigest()
    assert manifest["settings"]["inputs"]["visits"]["sha256"] == digest
    assert set(manifest["files"]) >= {"city/by_slot.npy", "known/person.npy"}


def test_tests_after_the_last_visit_extend_the_days(epifalcon, files):
    rows = "ann,2020-03-05,positive\nbob,2020-06-01,negative\nbob,2020-03-02,negative\n"
    (files / "tests.csv").write_text(f"person,time,result\n{rows}")
    more = ("--tests", files / "tests.csv")
    said = epifalcon(*words(files, *more))
    assert "1; they add 3 days without visits" in said.out
    assert "at most 60 days" in said.out
    figures = epifalcon(*words(files, *more, "--overwrite", "--json")).json
    assert (figures["days"], figures["slots"]) == (5, 60)
    assert figures["share_observed"] == pytest.approx(3 / 48)
    assert figures["tests"]["days_added"] == figures["tests"]["after_last_day"] * 3 == 3
    assert Traces.load(files / "out" / "city").clock.days == 5
    # Days that the user selects stay as they are.
    more = (*more, "--start", "2020-03-01", "--days", "2", "--overwrite", "--json")
    figures = epifalcon(*words(files, *more)).json
    assert (figures["days"], figures["tests"]["rows_kept"]) == (2, 1)


def test_tests_of_no_kind_are_never_ideal_without_a_warning(epifalcon, files):
    more = ("--tests", files / "tests.csv", "--overwrite")
    said = epifalcon(*words(files, *more))
    assert "Warning: 1 test has no kind" in said.out
    assert "with --test-kind: pcr," in said.out
    [warning] = epifalcon(*words(files, *more, "--json")).json["warnings"]
    assert "proof of an infection at any time" in warning
    for kind in ("ever", "pcr"):
        figures = epifalcon(*words(files, *more, "--test-kind", kind, "--json")).json
        assert figures["warnings"] == []
        assert (figures["tests"]["kinds"], figures["tests"]["without_kind"]) == (
            {kind: 1},
            1,
        )
    text = TESTS.replace("result", "result,kind").replace("tive\n", "tive,antigen\n")
    (files / "tests.csv").write_text(text)
    assert epifalcon(*words(files, *more, "--json")).json["warnings"] == []


def test_warnings_are_printed_and_listed(epifalcon, files):
    text = PINGS.replace("52.52,13.40", "13.40,52.52").replace("52.50,13.50", "13,52")
    (files / "pings.csv").write_text(text)
    said = epifalcon(*words(files, "--timezone", "Europe/Berlin"))
    assert "Warning: lat and lon are probably swapped" in said.out
    assert "Europe/Berlin" in said.out
    assert "with --fill-gap-hours 12" not in said.out
    more = ("--timezone", "Europe/Berlin", "--overwrite", "--json")
    figures = epifalcon(*words(files, *more)).json
    assert len(figures["warnings"]) == 1
    assert figures["extent"]["south"] == pytest.approx(13, abs=0.1)
    assert figures["cells"] == "grid cells of 1 km"


def test_people_read_a_table_and_the_same_files_give_the_same_bytes(epifalcon, files):
    said = epifalcon(*words(files))
    assert "lat out of range" in said.out
    assert "row 5, lat: '152.50'" in said.out
    before = content(files / "out")
    assert epifalcon(*words(files)).code == 6
    assert epifalcon(*words(files, "--overwrite", "--strict")).code == 3
    assert content(files / "out") == before
    assert epifalcon(*words(files, "--overwrite", "--quiet")).out == ""
    assert content(files / "out") == before


def test_a_spreadsheet_with_decimal_commas_and_german_dates(epifalcon, files):
    (files / "pings.csv").write_text(
        "User ID;Time stamp;GPS-lat;GPS-lon\n"
        "ann;01.03.2020 14:30;52,52;13,405\nbob;01.03.2020 14:50;52,52;13,405\n"
    )
    (files / "tests.csv").write_text("person;date;result\nbob;02.03.2020;Positiv\n")
    said = epifalcon(*words(files))
    assert "refused" in said.err
    assert said.err.endswith('; try --date-format "%d.%m.%Y %H:%M"\n')
    formats = ("--date-format", "%d.%m.%Y %H:%M", "--date-format", "%d.%m.%Y")
    more = ("--tests", files / "tests.csv", "--days", 2, *formats, "--json")
    figures = epifalcon(*words(files, *more)).json
    assert (figures["rows_kept"], figures["regions"]) == (2, 1)
    assert figures["columns"]["person"] == "User ID"
    assert Traces.load(files / "out" / "city").by_person[:, 7].tolist() == [0, 0]
    assert TestResults.load(files / "out" / "known").slot.tolist() == [12]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("--kind", "pongs"), 2, "did you mean 'pings'"),
        (("--regions", "polygons"), 2, "needs polygons=FILE"),
        (("--columns", "time=tss"), 3, "nearest: 'ts'"),
        (("--kind", "cells"), 3, "name one with --columns"),
        (("--strict",), 3, "row 5, column 'lat'"),
        (("--date-format", "%d.%m"), 2, "must give day, month and year"),
        (("--date-format", "%d.%m.%Y"), 3, "expected a time like 01.03.2020"),
        (("--visits", "nowhere.csv"), 3, "no such file"),
        (("--max-refused-share", "0.1"), 3, "1 of 4 rows were refused"),
        (("--out", "/proc/nowhere"), 6, "cannot be written"),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    epifalcon, files, more, code, message
):
    before = sorted(files.iterdir())
    epifalcon(*words(files, *more)).require_error(code, message, alone=True)
    assert sorted(files.iterdir()) == before


def test_a_matrix_with_tests_needs_a_start(epifalcon, files):
    np.save(files / "m.npy", np.zeros((3, 48), dtype=np.int32))
    (files / "tests.csv").write_text("person,time,result\n2,2020-03-01T10:00,pos\n")
    asked = ("import", "--visits", files / "m.npy", "--kind", "matrix", "--json",
             "--tests", files / "tests.csv", "--out", files / "out")  # fmt: skip
    assert epifalcon(*asked).code == 2
    said = epifalcon(*asked, "--start", "2020-03-01")
    assert said.code == 0
    assert TestResults.load(files / "out" / "known").slot.tolist() == [5]


def test_the_next_command_removes_what_a_killed_import_left(epifalcon, files):
    many = "ann,2020-03-02,positive\n" * 2_000_000
    (files / "many.csv").write_text("person,time,result\n" + many)
    killed = Running(files, words(files, "--tests", files / "many.csv"))
    # The folder exists while visits and tests are read.
    killed.wait_for(lambda: list(files.glob(".out.*")))
    killed.stop(signal.SIGKILL)
    killed.wait()
    (left,) = files.glob(".out.*")
    assert stat.filemode(left.stat().st_mode) == "drwx------"
    (left / "city").mkdir(exist_ok=True)
    (left / "city" / "by_slot.npy").write_bytes(b"traces")
    assert epifalcon("city", *TINY, "--out", files / "other").code == 0
    assert not left.exists()


def test_contacts_without_locations_run_up_to_the_report(epifalcon, tmp_path):
    days = range(1, 7)
    lines = ["person 1,person 2,start,duration"] + [
        f"p{k},p{(k + day) % 12},2020-03-{day:02d}T1{k % 3}:00,{30 + k}"
        for day in days
        for k in range(12)
    ]
    (tmp_path / "contacts.csv").write_text("\n".join(lines))
    results = [f"p{k},2020-03-06,{'pos' if k % 2 else 'neg'}" for k in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["person,time,result", *results]))
    made = epifalcon(
        *("import", "--visits", tmp_path / "contacts.csv", "--kind", "contacts"),
        *("--tests", tmp_path / "t.csv", "--out", tmp_path / "in", "--json"),
    ).json
    assert (made["people"], made["extent"], made["share_if_filled"]) == (12, None, None)
    words = ("--city", tmp_path / "in", "--known", tmp_path / "in", "--method", "hbp")
    words = (*words, "--pathogen", "omicron")
    assert epifalcon("run", *words, "--out", tmp_path / "out").code == 0
    assert "no coordinates" in (tmp_path / "out" / "report.html").read_text()
