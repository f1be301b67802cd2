"""``epifalcon predict`` as a user meets it: files, tables, exit codes."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.risk_table import Risks
from epifalcon.errors import WriteError
from epifalcon.federation.engine import VectorisedEngine
from epifalcon.mobility.traces import Traces
from epifalcon.reports import formats
from epifalcon.store import Origin
from tests.cli.conftest import TINY
from tests.cli.runs import run_quietly, strict, with_set, write_own_data
from tests.experiments.finished_runs import make_run

SETTINGS = (
    *("outbreak.seed_count=12", "model.rounds=6", "region.training.steps=2"),
    *("region.training.horizon=1", "pseudo.domains.least_regions=5"),
)
QUICK = (*TINY, *with_set(SETTINGS))
STATUS = ("--set", "model.input=status")
COLUMNS = ["person", "risk", "risk_now", "observed", "tested", "evidence"]
COLUMNS += ["rank", "percentile", "known"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict") / "demo"
    beside = ("--beside", "hgnn", "--beside", "soft-dct-ratio")
    run_quietly("run", *QUICK, *STATUS, *beside, "--out", folder, "--quiet")
    return folder


@pytest.mark.parametrize(
    ("method", "suffix"),
    [(None, "csv"), ("hgnn", "parquet"), ("soft-dct-ratio", "csv")],
)
def test_everybody_once_and_the_highest_first(
    epifalcon, demo, tmp_path, method, suffix
):
    out = tmp_path / f"risks.{suffix}"
    chosen = () if method is None else ("--method", method)
    said = epifalcon("predict", demo, "--out", out, *chosen)
    assert (said.code, said.err) == (0, "")
    found = strict(
        epifalcon("predict", demo, "--out", out, *chosen, "--overwrite", "--json").out
    )
    assert (found["people"], found["method"]) == (120, method or "falcon")
    assert [set(one) for one in found["highest"]] == [set(COLUMNS)] * 10
    table = (pl.read_csv if suffix == "csv" else pl.read_parquet)(out)
    assert table.columns == COLUMNS
    assert table["person"].dtype == pl.Int64
    place = demo / "methods" / (method or "falcon") / "prediction" / "probability.npy"
    assert table.sort("person")["risk"].to_list() == np.load(place).tolist()
    known = np.load(demo / "known" / "person.npy")
    assert set(table.filter(pl.col("known").is_not_null())["person"]) == set(known)
    assert set(table["known"]) == {"positive", "negative", None}
    # The ten highest risks without a test are printed; others on request.
    untested = int(table["known"].is_null().sum())
    assert f"Whom to test next: highest risks of {untested} people" in said.out
    assert f"Written to {out}" in said.out
    assert printed(said.out) == rows_of(table.head(10))
    words = ("--out", out, *chosen, "--overwrite", "--tested")
    everybody = epifalcon("predict", demo, *words)
    assert "Highest risks of 120 people" in everybody.out
    assert printed(everybody.out) == rows_of(table.sort("rank", "person").head(10))


def printed(text):
    """Number, person, risk and percentile of each printed row."""
    return [line.split()[1:8:2] for line in text.splitlines() if "│" in line]


def rows_of(table):
    return [
        [f"{number}", f"{person}", f"{risk:.4f}", f"{percentile:.2f}"]
        for number, (person, risk, percentile) in enumerate(
            table.select("person", "risk", "percentile").iter_rows(), 1
        )
    ]


def test_own_people_are_read_without_torch(demo, tmp_path):
    code = (
        "import sys; from epifalcon.cli.main import main\n"
        "main()\n"
        "sys.stderr.write(' '.join(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", demo, "--out", tmp_path / "r.csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "torch" not in done.stderr.split()


def test_an_existing_file_is_kept_without_overwrite(epifalcon, demo, tmp_path):
    out = tmp_path / "risks.csv"
    out.write_text("mine")
    epifalcon("predict", demo, "--out", out).require_error(6, "add --overwrite")
    assert out.read_text() == "mine"
    assert epifalcon("predict", demo, "--out", out, "--overwrite").code == 0
    assert out.read_text().startswith("person,risk")
    # Into the run itself, as people do: it stays a good run.
    assert epifalcon("predict", demo, "--out", demo / "risks.csv").code == 0
    assert epifalcon("inspect", demo, "--quiet").code == 0
    (demo / "risks.csv").unlink()


@pytest.mark.parametrize(
    "case",
    [
        (("DEMO", "--out", "r.txt"), 2, "r.txt: must end in .csv or .parquet"),
        (("DEMO", "--out", "r.csv", "--known", "DEMO"), 2, "--known needs --city"),
        (("DEMO", "--city", "gone", "--out", "r.csv"), 3, "gone: no such folder"),
        (
            ("DEMO", "--city", "DEMO", "--method", "soft-dct-ratio", "--out", "r.csv"),
            2,
            "epifalcon run --method soft-dct-ratio",
        ),
    ],
)
def test_wrong_words(epifalcon, demo, tmp_path, monkeypatch, case):
    words, code, message = case
    monkeypatch.chdir(tmp_path)
    said = epifalcon("predict", *(word.replace("DEMO", str(demo)) for word in words))
    said.require_error(code, message)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_new_people_and_a_word_on_tests_not_used(epifalcon, demo, tmp_path):
    traces = Traces.load(demo / "city")
    part = Traces(traces.by_slot[:, 40:].copy(), traces.clock, traces.regions)
    part.save(tmp_path / "part", Origin())
    out = tmp_path / "r.csv"
    said = epifalcon("predict", demo, "--city", tmp_path / "part", "--out", out)
    assert (said.code, said.err) == (0, "")
    assert len(pl.read_csv(out)) == 80
    words = ("--city", demo, "--out", out, "--overwrite")
    said = epifalcon("predict", demo, *words)
    assert f"add --known {demo}" in said.err
    known = epifalcon("predict", demo, *words, "--known", demo, "--json")
    assert known.err == ""
    assert known.json["tested"] == len(set(np.load(demo / "known" / "person.npy")))


def test_a_spent_budget_ends_with_4_and_writes_nothing(epifalcon, tmp_path):
    words = ("privacy.mode=local", "model.rounds=4")
    private, out = make_run(tmp_path / "run", *words).folder, tmp_path / "r.csv"
    assert epifalcon("predict", private, "--out", out).code == 0
    words = ("--city", private, "--known", private, "--out", tmp_path / "n.csv")
    epifalcon("predict", private, *words).require_error(4, "nothing was released")
    assert not (tmp_path / "n.csv").exists()
    assert epifalcon("inspect", private, "--quiet").code == 0


@pytest.mark.usefixtures("no_pictures")
def test_the_cost_of_a_prediction_is_printed(epifalcon, tmp_path):
    folder, out = tmp_path / "run", tmp_path / "r.csv"
    epifalcon("run", *QUICK, *STATUS, "--mode", "paper", "--out", folder, "--quiet")
    words = ("--city", folder, "--known", folder, "--out", out)
    said = epifalcon("predict", folder, *words)
    assert said.code == 0
    assert "epsilon of one person is" in said.out
    assert "Risks are raw data" in said.out
    files = [out, *(folder / "private").rglob("*")]
    assert [one for one in files if one.stat().st_mode & 0o077] == []
    again = epifalcon("predict", folder, *words, "--overwrite", "--json").json
    trained = json.loads((folder / "summary.json").read_text())["epsilon"]["person"]
    assert again["privacy"]["epsilon"]["person"] > trained
    assert epifalcon("inspect", folder, "--quiet").code == 0
    resumed = epifalcon("run", "--resume", "--out", folder, "--json")
    spent = again["privacy"]["epsilon"]["person"]
    assert resumed.json["epsilon"]["person"] == spent
    # The shareable files state what was spent since they were written.
    shared = json.loads((folder / "summary.json").read_text())
    assert shared["epsilon"]["person"] == spent
    assert formats.epsilon(spent) in (folder / "report.html").read_text()
    assert epifalcon("inspect", folder, "--quiet").code == 0


def test_a_scoring_that_ends_early_says_what_stays_spent(
    epifalcon, tmp_path, monkeypatch
):
    words = ("privacy.mode=paper", "model.rounds=2")
    folder, out = make_run(tmp_path / "run", *words).folder, tmp_path / "r.csv"
    ledger = folder / "methods" / "falcon" / "ledger.jsonl"
    before = ledger.read_bytes()
    said = epifalcon("predict", folder, "--city", folder, "--out", "/proc/no/r.csv")
    assert said.code == 6
    assert ledger.read_bytes() == before

    def full(*_, **__):
        raise WriteError("r.csv: cannot be written: No space left on device")

    def stopped(*_, **__):
        raise KeyboardInterrupt

    for place, fail, code, message in (
        (
            (Risks, "write"),
            full,
            6,
            "device; the privacy budget of this prediction stays spent",
        ),
        ((VectorisedEngine, "scores"), stopped, 130, "stays spent"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*place, fail)
            said = epifalcon("predict", folder, "--city", folder, "--out", out)
        said.require_error(code, message)
        assert not out.exists()


def test_imported_people_keep_their_names(epifalcon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = [f"place {number}" for number in range(12)]
    newcomers = ["zoë", "ann, b.", "007", 'the "boss"', "=1+1"]
    for name, people, visited in (
        ("old", [f"p{number}" for number in range(60)], places),
        ("new", newcomers, places[3:7]),
        ("other", "abcde", places[3:7]),
    ):
        said = epifalcon(*write_own_data(tmp_path, name, people, visited))
        assert said.code == 0, said.err
    run = ("run", *QUICK[6:], *STATUS, "--pathogen", "sars-cov-2")
    words = ("--city", "old", "--known", "old", "--out", "run", "--quiet")
    said = epifalcon(*run, *words)
    assert said.code == 0, said.err
    assert epifalcon("predict", "run", "--out", "r.csv").code == 0
    assert set(pl.read_csv("r.csv")["person"]) == {f"p{n}" for n in range(60)}
    # Only four of the run's places were visited: they are found by their names.
    words = ("--city", "new", "--known", "new", "--out", "n.csv")
    assert epifalcon("predict", "run", *words).code == 0
    assert "'=1+1" in pl.read_csv("n.csv")["person"]
    said = epifalcon("predict", "run", *words, "--overwrite", "--keep-formulas")
    assert said.code == 0, said.err
    table = pl.read_csv("n.csv")
    assert sorted(table["person"]) == sorted(newcomers)
    known = dict(zip(table["person"], table["known"], strict=True))
    assert known["ann, b."] == "positive"
    assert known["zoë"] is None
    # Tests of people with other names are refused.
    words = ("--city", "new", "--known", "other", "--out", "m.csv")
    for command in (("predict", "run"), run):
        said = epifalcon(*command, *words)
        said.require_error(3, "the tests are of people with other names")
    words = ("--visits", "new-visits.csv", "--kind", "checkins", "--out", "untested")
    epifalcon("import", *words, "-q")
    said = epifalcon(*run, "--city", "new", "--known", "untested", "--out", "no")
    said.require_error(3, "untested: holds no test results; import with --tests")
