"""``epifalcon update`` and ``explain`` as an operator meets them."""

import json
import shutil

import polars as pl
import pytest

from epifalcon.epidemic.risk_table import Risks
from epifalcon.errors import WriteError
from epifalcon.experiments.run_folder import FinishedRun, finish
from tests.cli.runs import write_own_data
from tests.experiments.field_runs import made, write_visits

COLUMNS = ["person", "risk", "risk_now", "observed", "tested", "evidence"]
COLUMNS += ["rank", "percentile", "known"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    inputs, _ = made(tmp_path_factory.mktemp("daily") / "run")
    finish(inputs)
    return FinishedRun.open(inputs.folder)


@pytest.fixture
def state(epifalcon, run, tmp_path):
    folder = tmp_path / "state"
    assert epifalcon("update", folder, "--from", run.folder, "--quiet").code == 0
    return folder


def day(run, path, number, people=range(80)):
    """The town's first day once more, as day ``number``."""
    write_visits(run, path, people, number, 1)
    return path


def test_each_morning_a_day_comes_in_and_a_list_goes_out(
    epifalcon, run, state, tmp_path
):
    visits, out = day(run, tmp_path / "6.csv", 6), tmp_path / "risks.csv"
    tests = tmp_path / "tests.csv"
    tests.write_text("person,day,result\n3,6,positive\n4,2,negative\nyan,6,negative\n")
    with visits.open("a") as file:
        file.write("zoe,6,8,3\n")
    words = ("--traces", visits, "--tests", tests, "--out", out)
    said = epifalcon("update", state, *words)
    assert (said.code, said.err) == (0, "")
    assert "Day 6: 82 people, 2 of them new" in said.out
    table = pl.read_csv(out)
    assert table.columns == COLUMNS
    assert len(table) == 82
    # Own tests count: certain for the positive, next to nothing for the negative.
    risk = dict(table.select("person", "risk").iter_rows())
    assert risk["3"] == pytest.approx(1)
    assert risk["yan"] < 1e-3
    known = dict(table.select("person", "known").iter_rows())
    assert known["3"] == "positive"
    assert known["yan"] == "negative"
    assert known["zoe"] is None
    # The list can be written again, and the next day continues from here.
    again = tmp_path / "again.csv"
    assert epifalcon("update", state, "--out", again).code == 0
    assert again.read_bytes() == out.read_bytes()
    following = day(run, tmp_path / "7.csv", 7)
    found = epifalcon("update", state, "--traces", following, "--json").json
    assert (found["day"], found["first_day"], found["people"]) == (7, 1, 82)
    assert found["newcomers"] == []
    assert found["seen"] == 80
    assert "positive" not in {one["known"] for one in found["highest"]}
    assert epifalcon("inspect", state, "--quiet").code == 0
    places = epifalcon("places", state, "--top", 3, "--json").json
    assert (len(places["places"]), len(places["by_day"])) == (3, 7)
    assert {row["day"] for row in places["places"]} <= set(range(1, 8))
    said = epifalcon("places", state, "--method", "falcon-field")
    said.require_error(2, "--method applies only to runs", alone=True)


def test_others_read_neither_state_nor_risks_of_a_run_that_they_cannot_read(
    epifalcon, run, tmp_path
):
    private, state = tmp_path / "run", tmp_path / "state"
    shutil.copytree(run.folder, private)
    private.chmod(0o700)
    out, page = tmp_path / "risks.csv", tmp_path / "page"
    visits = day(run, tmp_path / "6.csv", 6, [1])
    assert epifalcon("update", state, "--from", private, "--quiet").code == 0
    assert epifalcon("update", state, "--traces", visits, "--out", out).code == 0
    assert epifalcon("explain", state, 1, "--out", page).code == 0
    found = [out, state, *state.rglob("*"), page, *page.rglob("*")]
    assert not [path for path in found if path.stat().st_mode & 0o077]


def test_others_read_no_output_from_files_that_they_cannot_read(
    epifalcon, run, state, tmp_path
):
    city, out = tmp_path / "given", {n: tmp_path / n for n in ("a.csv", "b.csv", "in")}
    for name in ("city", "known"):
        shutil.copytree(run.folder / name, city / name)
    city.chmod(0o700)
    words = ("predict", run.folder, "--city", city, "--known", city)
    assert epifalcon(*words, "--out", out["a.csv"]).code == 0
    visits = day(run, tmp_path / "6.csv", 6, [1])
    visits.chmod(0o600)
    words = ("predict", run.folder, "--traces", day(run, tmp_path / "1.csv", 1))
    (tmp_path / "1.csv").chmod(0o600)
    assert epifalcon(*words, "--out", out["b.csv"]).code == 0
    assert epifalcon("update", state, "--traces", visits).code == 0
    words = write_own_data(tmp_path, "in", ["p1", "p2"], ["a", "b", "c", "d"])
    (tmp_path / "in-tests.csv").chmod(0o600)
    assert epifalcon(*words).code == 0
    assert out["a.csv"].exists()
    found = [path for one in (*out.values(), state) for path in (one, *one.rglob("*"))]
    assert not [path for path in found if path.stat().st_mode & 0o077]


def test_a_full_window_drops_its_oldest_day(epifalcon, run, tmp_path):
    state, visits = tmp_path / "state", day(run, tmp_path / "6.csv", 6)
    words = ("--from", run.folder, "--days", 3, "--sweeps", 2, "--traces", visits)
    found = epifalcon("update", state, *words, "--json").json
    assert (found["first_day"], found["day"]) == (4, 6)
    message = epifalcon("explain", state, 5, "--json").json
    assert message["first_day"] == 4
    assert len(message["by_day"]) == 3
    assert message["before"] + sum(message["by_day"]) == pytest.approx(1)
    assert message["risk"] == pytest.approx(message["listed_risk"], abs=1e-6)


@pytest.mark.parametrize(
    ("visited", "tested", "message"),
    [
        (7, 6, "day.csv: row 2, column 'day': another day: found '7', expected 6"),
        (6, 7, "another day: found '7', expected 1 to 6"),
    ],
)
def test_a_day_that_cannot_be_taken_leaves_the_state_as_it_was(
    epifalcon, state, tmp_path, visited, tested, message
):
    visits, tests = tmp_path / "day.csv", tmp_path / "tests.csv"
    visits.write_text(f"person,day,hour,region\n3,{visited},0,1\n")
    tests.write_text(f"person,day,result\n3,{tested},positive\n")
    before = (state / "manifest.json").read_bytes()
    said = epifalcon("update", state, "--traces", visits, "--tests", tests)
    said.require_error(3, message, alone=True)
    assert (state / "manifest.json").read_bytes() == before


def test_wrong_words(epifalcon, run, state, tmp_path):
    cases = [
        ((tmp_path / "gone",), 3, "--from RUN"),
        ((state, "--tests", "t.csv"), 2, "--tests needs --traces"),
        ((state, "--days", 3), 2, "need --from"),
        ((state, "--from", run.folder), 6, "--from"),
        ((tmp_path / "new", "--from", state), 3, "expected a run"),
        ((tmp_path / "new", "--from", run.folder, "--days", 0), 2, "days"),
        ((state, "--out", "risks.txt"), 2, "must end in .csv"),
        ((run.folder,), 3, "holds 'run', expected 'field-window'"),
    ]
    for words, code, message in cases:
        said = epifalcon("update", *words)
        assert (said.code, said.out) == (code, ""), words
        assert message in said.err
    assert not (tmp_path / "new").exists()


def test_a_list_that_cannot_be_written_says_that_the_day_was_taken(
    epifalcon, run, state, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise WriteError("r.csv: cannot be written: No space left on device")

    monkeypatch.setattr(Risks, "write", full)
    visits = day(run, tmp_path / "6.csv", 6, [1])
    words = ("--traces", visits, "--out", tmp_path / "r.csv")
    epifalcon("update", state, *words).require_error(6, "the state contains the day")


def test_an_explanation_on_the_screen_and_on_a_page(epifalcon, run, tmp_path):
    said = epifalcon("explain", run.folder, 11, "--top", 3, "--out", tmp_path / "page")
    assert said.code == 0
    assert "Largest exposures" in said.out
    assert "identifies the other one" in said.out
    plain = json.loads((tmp_path / "page" / "explanation.json").read_text())
    assert plain["person"] == "11"
    again = epifalcon("explain", run.folder, 11, "--out", tmp_path / "page")
    assert again.code == 6
    epifalcon("explain", run.folder, 80).require_error(3, "from 0 to 79", alone=True)
    assert epifalcon("explain", tmp_path, 1).code == 3
    assert epifalcon("explain", run.folder, 1, "--method", "hbp").code == 2


def test_new_people_by_file(epifalcon, run, tmp_path):
    write_visits(run, tmp_path / "new.csv", [7, 9], 1, run.traces.clock.days)
    out = tmp_path / "r.csv"
    words = ("--traces", tmp_path / "new.csv", "--out", out)
    said = epifalcon("predict", run.folder, *words)
    assert (said.code, said.err) == (0, "")
    assert "risk now" in said.out
    assert pl.read_csv(out).columns == [*COLUMNS, "risk_now_with_tests"]
    # Somebody with a test is printed if nobody is without one.
    write_visits(run, tmp_path / "one.csv", [7], 1, run.traces.clock.days)
    (tmp_path / "t.csv").write_text("person,day,result\n7,1,negative\n")
    tests = ("--tests", tmp_path / "t.csv")
    one = ("--traces", tmp_path / "one.csv", *tests, "--out", tmp_path / "one-risk.csv")
    said = epifalcon("predict", run.folder, *one)
    assert said.code == 0, said.err
    assert "Highest risks of 1 person\n" in said.out
    assert "│ negative │" in said.out
    for wrong, message in [
        ((*words, "--city", run.folder), "not both"),
        ((*tests, "--out", out), "--tests needs --traces"),
    ]:
        said = epifalcon("predict", run.folder, *wrong, "--overwrite")
        said.require_error(2, message)
