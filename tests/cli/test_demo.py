"""``epifalcon demo``: its table, its report, and which folders it replaces."""

import pytest

from epifalcon.experiments import demo as demonstration
from epifalcon.experiments.experiment import Experiment
from tests.cli.conftest import QUICK, TINY
from tests.cli.runs import content, run_quietly, with_set

SMALL = (*TINY[1::2], "outbreak.seed_count=12", *QUICK)

pytestmark = pytest.mark.usefixtures("no_pictures")


SETTINGS = demonstration.demo_experiment()
PRIVATE = "epifalcon run --method falcon-field --mode sums --out guarded"


@pytest.fixture(autouse=True)
def small_town(monkeypatch):
    """The demonstration on a town of 120 people."""
    options = {"method": SETTINGS.method, "beside": list(SETTINGS.beside)}
    small = Experiment.load("hamlet", SMALL, options, mode=SETTINGS.privacy.mode)
    monkeypatch.setattr(demonstration, "demo_experiment", lambda: small)


def test_a_table_with_explanations_and_a_report(epifalcon, tmp_path):
    out = tmp_path / "demo"
    said = epifalcon("demo", "--out", out)
    assert said.code == 0, said.err
    rows = ("Falcon, as published", "Falcon Field", "HBP", "Ceiling", "Chance")
    notes = ("0.5 is guessing", "partly chance", "demo/report.html", PRIVATE)
    for words in (*rows, *notes):
        assert words in said.out
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    # The same again, as JSON: an earlier demo is replaced.
    again = epifalcon("demo", "--out", out, "--json").json
    assert (again["method"], again["mode"]) == ("falcon", "paper")
    assert set(again["beside"]) == {"falcon-field", "hbp", "oracle"}


def test_python_prints_the_same_result(tmp_path):
    result = demonstration.demo(tmp_path / "demo")
    text = str(result)
    assert "Ceiling" in text
    assert f"Report: {tmp_path / 'demo' / 'report.html'}" in text
    assert result.report.is_file()
    aucs = [row[2] for row in result.table.rows]
    metrics = result.figures["metrics"]
    assert aucs[0] == f"{metrics['auc']:.3f}"
    assert len(aucs) == 5


def test_other_content_is_never_replaced(epifalcon, tmp_path):
    other, files = tmp_path / "other", tmp_path / "files"
    files.mkdir()
    (files / "mine.txt").write_text("mine")
    run_quietly("run", *with_set(SMALL), "--method", "hbp", "--out", other, "--quiet")
    for folder, overwrite in ((other, ()), (files, ()), (files, ("--overwrite",))):
        before = content(folder)
        said = epifalcon("demo", "--out", folder, *overwrite)
        assert said.code == 6
        assert content(folder) == before
    # Nor files that somebody added to an earlier demo.
    out = tmp_path / "demo"
    assert epifalcon("demo", "--out", out, "--quiet").code == 0
    (out / "notes.txt").write_text("mine")
    assert epifalcon("demo", "--out", out).code == 6
    assert (out / "notes.txt").read_text() == "mine"
