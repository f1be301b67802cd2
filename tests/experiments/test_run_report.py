"""The report of a run: as stored, in a browser, of real people, on a failing disk."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.experiments.run_folder import create_run_folder, finished, open_run
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.experiments.run_report import write_results
from epifalcon.federation.early_stopping import ValidationCheck
from epifalcon.methods.base import Scores
from epifalcon.privacy.events import UNITS
from epifalcon.settings import json_text
from tests.browser import chromium, open_page
from tests.cli.runs import undrawn
from tests.experiments.finished_runs import copied_run
from tests.experiments.test_run_methods import with_hidden
from tests.faults import Killed, disk, killed_at
from tests.studies import town

PHONE, DESK = 390, 1280
FIGURES = {
    *("epidemic-curve", "mobility", "precision-recall"),
    *("reliability", "risk-map", "training"),
}
FORECAST = {
    "source": "reported",
    "measure": "count",
    "scores": {
        "model": {"mae": [0.1, 0.2], "rmse": [0.3, None]},
        "last": {"mae": [0.5, 0.6], "rmse": [0.7, 0.8]},
    },
}
SPENT = {
    "mode": "paper",
    "epsilon": {"visit": 1.0, "day": 2.0, "person": 12345.6},
    "delta": 1e-6,
    "channels": {"upload/0": {"visit": 1.0, "day": 2.0, "person": 12345.6}},
    "relation": "zero-out",
    "adversary": "each-upload",
    "unprotected": [{"channel": "places", "what": "places in clear", "rounds": 1}],
}


def risk_of(seed):
    """Risks that know something of the truth."""
    infected = town.epidemic().outbreak.ever_infected()
    noise = np.random.default_rng(seed).normal(size=len(infected))
    return 1 / (1 + np.exp(2 - 1.5 * infected - 0.7 * noise))


def outcome_of(method, inputs=None, **diagnostics):
    risk = risk_of(len(method))
    masked = np.flatnonzero(town.known().tested)[:12].astype(np.int32)
    scores = Scores(risk, masked, risk[masked], seconds=12.34, diagnostics=diagnostics)
    one = Outcome(method, scores)
    if inputs is None:
        return one
    return replace(one, evaluation=Evaluation.of(inputs, one))


def outcomes(hidden=True):
    """Falcon and HGNN as if trained, HBP as if computed."""
    off = {**SPENT, "mode": "off", "channels": {}, "epsilon": dict.fromkeys(UNITS)}
    looks = (
        ValidationCheck(2, 0.6, 0.5, math.inf, 0.7),
        ValidationCheck(4, 0.5, 0.625, 9.0, 0.6),
    )
    diagnostics = {
        "best_round": 4,
        "rounds": 4,
        "validation_auc": 0.625,
        "looks": [vars(check) for check in looks],
    }
    inputs = town.inputs(None) if hidden else None
    return [
        outcome_of("falcon", inputs, spent=SPENT, forecast=FORECAST, **diagnostics),
        outcome_of("hgnn", inputs, spent=off, **diagnostics),
        outcome_of("hbp", inputs, sweeps=5),
    ]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    inputs = town.inputs(
        tmp_path_factory.mktemp("started") / "run",
        beside=("hgnn", "hbp"),
        privacy=town.with_mode("paper").privacy,
    )
    create_run_folder(inputs)
    return inputs


@pytest.fixture(scope="module")
def reported(started):
    inputs = copied_run(started, "reported")
    write_results(inputs, outcomes())
    return inputs.folder


@pytest.fixture(scope="module")
def real(started):
    """The same people, of whom nobody knows the truth; one method failed."""
    inputs = copied_run(started, "real")
    inputs = replace(inputs, epidemic=None)
    failed = {"gcn": "ran out of <memory>"}
    write_results(inputs, outcomes(hidden=False)[:2], failed=failed)
    return inputs.folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize("which", ["reported", "real"])
def test_the_page_is_as_stored(request, stored_page, which):
    folder = request.getfixturevalue(which)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "http" not in page
    page = page.replace(str(folder), f"FOLDER/{which}")
    stored_page(page, f"run-{which}")


def test_without_the_truth_files_show_nobody(real):
    text = (real / "figures" / "risk-map.csv").read_text(encoding="utf-8")
    assert text.splitlines()[0] == "region,name,x_km,y_km,people,predicted"
    assert not list((real / "figures").glob("explanation*"))


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("which", ["reported", "real"])
def test_a_browser_shows_all_of_it_and_asks_nobody(browser, request, which, width):
    folder = request.getfixturevalue(which)
    seen = open_page(browser, folder / "report.html", width)
    assert seen.complaints == []
    assert seen.requests == [(folder / "report.html").resolve().as_uri()]
    drawn = {path.stem for path in (folder / "figures").glob("*.png")}
    few = {"risk-map", "training"}
    assert drawn == (FIGURES if which == "reported" else few)
    assert len(seen.images) == len(drawn)
    for image in seen.images:
        assert image["width"] > 300
        assert image["shown"] > 300
        assert len(image["alt"]) > 20
    assert seen.width <= width
    assert seen.landmarks == ["header", "nav", "main", "footer"]


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_the_map_can_be_computed_again_from_its_file(reported, started):
    rows = rows_of(reported / "figures" / "risk-map.csv")
    names = ("people", "predicted", "true", "predicted_mean", "true_mean")
    people, *drawn, risk, _ = (
        np.array([float(row[name]) for row in rows]) for name in names
    )
    assert people.sum() == len(started.epidemic.labels.hidden)
    weighted = np.cov(drawn, aweights=people)
    shrunk = weighted[0, 1] / np.sqrt(weighted[0, 0] * weighted[1, 1])
    page = (reported / "report.html").read_text()
    assert f"Correlation of the two: {shrunk:.2f}" in page
    mean = np.average(risk, weights=people)
    np.testing.assert_allclose(drawn[0], (people * risk + 20 * mean) / (people + 20))


def test_files_hold_the_numbers(reported):
    figures, tables = reported / "figures", reported / "tables"
    assert {path.stem for path in figures.glob("*.svg")} == FIGURES
    assert {path.stem for path in figures.glob("*.csv")} == FIGURES
    names = {"methods", "in-plain-words", "privacy", "forecast", "city"}
    assert {path.stem for path in tables.iterdir()} == names
    for path in [*figures.glob("*.csv"), *tables.glob("*.csv")]:
        assert rows_of(path), path.name
    methods = {row["method"]: row for row in rows_of(tables / "methods.csv")}
    for one in outcomes():
        assert float(methods[one.method]["auc"]) == one.metrics.auc
    summary = json.loads((reported / "summary.json").read_text())
    assert summary["prevalence"] == summary["metrics"]["prevalence"]
    assert set(summary["beside"]) == {"hgnn", "hbp"}
    assert set(summary["epsilon"]) == set(UNITS)


@pytest.fixture
def ended(started, tmp_path, monkeypatch):
    """A run in which nothing is written yet; figures are not drawn."""
    monkeypatch.setattr("epifalcon.reports.plot_style.save", undrawn)
    return copied_run(started, tmp_path / "run")


def test_a_finished_run_is_only_read(ended):
    first = write_results(ended, outcomes())
    with disk(ended.folder) as changed:
        second = write_results(ended, outcomes())
    assert changed.changes == 0
    assert second.values == json.loads(json_text(first.values))
    assert second.tables == first.tables
    files = json.loads((ended.folder / "manifest.json").read_text())["files"]
    there = {path for path in ended.folder.rglob("*") if path.is_file()}
    named = {path.relative_to(ended.folder).as_posix() for path in there}
    assert named == {*files, "manifest.json"}


@pytest.mark.parametrize("infected", [True, False])
def test_hidden_people_of_one_kind_do_not_stop_the_report(ended, infected):
    inputs = with_hidden(ended, np.full(48, infected))
    kept = write_results(inputs, [outcome_of("hbp", inputs)])
    assert "nothing to rank" in (ended.folder / "report.html").read_text()
    assert kept.values["metrics"]["auc"] is None
    assert kept.values["prevalence"] == infected


@pytest.mark.parametrize("hidden", [True, False])
def test_a_kill_at_any_change_can_be_resumed(ended, hidden):
    number, killed = 1, True
    inputs = ended if hidden else replace(ended, epidemic=None)
    while killed:
        try:
            with disk(ended.folder, killed_at(number)):
                write_results(inputs, outcomes(hidden))
            killed = False
        except Killed:
            assert not finished(ended.folder)
            open_run(ended.folder)
            number += 9
    assert number > 10
    assert finished(ended.folder)
    assert list(ended.folder.rglob(".*")) == []
