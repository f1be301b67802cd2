import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from epifalcon import store
from epifalcon.baselines import catalogue
from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.recalibration import fit_isotonic, fit_platt
from epifalcon.studies import one_method
from epifalcon.studies.measurements import Measured, Training, calibrated_figures
from epifalcon.studies.one_method import measure_method, training_of
from epifalcon.studies.outcomes import Outcome, judge
from epifalcon.studies.run_folder import begin
from tests.studies import town
from tests.studies.finished_runs import make_run

OWN = Path(town.__file__).with_name("own_methods.py")


@pytest.fixture
def own(tmp_path, monkeypatch):
    for table in ("_ENTRIES", "_OWN"):
        monkeypatch.setattr(catalogue, table, dict(getattr(catalogue, table)))
    return Path(shutil.copy(OWN, tmp_path / "own_methods.py"))


@pytest.fixture
def folder(tmp_path):
    begin(town.begun(tmp_path / "run"))
    return tmp_path / "run"


def test_figures_are_those_of_the_outcome_and_can_be_read_back(folder):
    found = measure_method(folder, "hgnn")
    read = Measured.load(folder / "methods" / "hgnn")
    assert read.metrics == found.metrics
    assert read.title == "HGNN"
    np.testing.assert_array_equal(read.precision, found.precision)
    assert found.metrics["people"] == 48
    for name in ("brier", "log_loss", "ece"):
        assert found.recalibrated["raw"][name] == pytest.approx(found.metrics[name])
    # Too few people in this town: what could not be fitted is as it was.
    assert "infected among the masked people" in found.left_raw
    assert found.recalibrated["platt"] == found.recalibrated["raw"]


def test_training_is_that_of_the_best_round(folder):
    found = measure_method(folder, "hgnn").training
    prediction = store.read(folder / "methods/hgnn/prediction", "prediction").meta
    model = town.FALCON.model
    assert found.learning_rate == model.learning_rate
    assert found.steps == prediction["best_round"]
    assert found.at_limit == (found.steps == model.rounds)
    assert Measured.load(folder / "methods" / "hgnn").training == found


def test_training_of_a_network_that_still_improves_at_its_limit(tmp_path):
    quick = {"steps": 6, "check_every": 2, "learning_rates": [1e-4]}
    begin(town.begun(tmp_path / "run", method="gcn", rivals={"gcn": quick}))
    found = measure_method(tmp_path / "run", "gcn").training
    assert found == Training(learning_rate=1e-4, steps=6, at_limit=True)


def test_training_that_ended_before_its_limit_or_names_none():
    told = {"learning_rate": 0.01, "best_step": 4, "step_limit": 6}
    for limit, at_limit in ((6, False), (4, True), (None, None)):
        found = training_of(
            Outcome("gcn", np.zeros(1), None, 1.0, told=told | {"step_limit": limit})
        )
        assert found == Training(learning_rate=0.01, steps=4, at_limit=at_limit)


def test_methods_without_training_report_none(folder):
    assert measure_method(folder, "hbp").training == Training()


def test_what_a_method_reports_wins_over_the_settings_of_falcon():
    told = {"learning_rate": 0.5, "best_round": 30}
    risk, settings = np.zeros(1), town.FALCON
    found = training_of(Outcome("falcon", risk, None, 1.0, settings, told=told))
    assert (found.learning_rate, found.steps) == (0.5, 30)
    assert found.at_limit is (settings.model.rounds <= 30)


def test_a_fit_that_was_there_has_no_memory_of_its_own(folder):
    first = measure_method(folder, "hgnn")
    shutil.rmtree(folder / "methods" / "hgnn" / "measured")
    again = measure_method(folder, "hgnn")
    assert first.peak_rss_mb > 50
    assert first.cpu_seconds > 0
    assert again.peak_rss_mb is again.cpu_seconds is None
    assert again.metrics == first.metrics


def test_recalibration_is_fitted_on_masked_people_and_judged_on_hidden(tmp_path):
    begun = make_run(tmp_path / "run", "city.people=400", whole=False)
    rng = np.random.default_rng(2)
    risk = rng.random(400) ** 3
    masked = np.flatnonzero(begun.known.tested).astype(np.int32)
    told = rng.random(len(masked))
    infected = begun.known.status[masked] == 1
    metrics = judge(begun, risk, "a test")
    outcome = Outcome("hgnn", risk, metrics, 1.0, masked=masked, masked_risk=told)
    found = one_method._judged(begun, outcome)
    truth = begun.epidemic.labels.hidden.open("test")
    for name, fit in (("platt", fit_platt), ("isotonic", fit_isotonic)):
        mended = fit(told, infected)(risk[truth.person])
        expected = calibrated_figures(curve(mended, truth.infected), 15)
        assert found["recalibrated"][name] == expected
    assert found["left_raw"] is None
    assert found["masked"] == len(masked)


def test_a_failure_is_left_in_the_folder(folder, own, capsys):
    words = [str(folder), "broken", "--with", str(own)]
    assert one_method.main(words) == 1
    told = json.loads((folder / "methods/broken/failed.json").read_text())
    assert told["message"] == "RuntimeError: boom\non two lines"
    assert "Traceback" in told["details"]
    assert len(told["source_sha256"]) == 64
    own.write_text(own.read_text().replace("raise RuntimeError", "str"))
    assert one_method.main(words) == 0
    assert not (folder / "methods/broken/failed.json").exists()
    assert Measured.load(folder / "methods/broken").source_sha256 is not None
    assert capsys.readouterr().out == ""


def test_an_unknown_method_or_a_bad_file_fails_in_its_place(folder, own):
    assert one_method.main([str(folder), "nobody"]) == 1
    told = json.loads((folder / "methods/nobody/failed.json").read_text())
    assert "unknown method 'nobody'" in told["message"]
    own.write_text("1 / 0")
    assert one_method.main([str(folder), "fine", "--with", str(own)]) == 1
    told = json.loads((folder / "methods/fine/failed.json").read_text())
    assert "own_methods.py: cannot be loaded: ZeroDivisionError" in told["message"]


def start(folder, method, own):
    """For real: a new Python, with its pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "epifalcon.studies.one_method", str(folder), method,
         "--with", str(own), "--attached"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(("method", "code"), [("fine", 0), ("leaving", 1)])
def test_the_process_ends_with_the_code_of_its_work(folder, own, method, code):
    with start(folder, method, own) as process:
        # Its input stays open until it has ended, as a comparison's does.
        said = process.stderr.read()
        assert process.wait() == code, said
    assert said == b""
    failed = folder / "methods" / method / "failed.json"
    assert failed.exists() == bool(code)
    if code:
        assert json.loads(failed.read_text())["message"] == "SystemExit: 6"


def test_the_process_tells_and_ends_with_its_starter(folder, own):
    process = start(folder, "slow", own)
    while not (own.parent / "calls").exists():
        assert process.poll() is None, process.stderr.read()
    process.stdin.close()
    assert process.wait() == 129
    process.stdout.close()
    process.stderr.close()
    assert not (folder / "methods" / "slow" / "failed.json").exists()
