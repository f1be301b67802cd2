"""What a worker leaves: metrics of a method, an analysis, or a failure."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epifalcon import store
from epifalcon.evaluation.calibration import fit_isotonic, fit_platt
from epifalcon.evaluation.curves import curve
from epifalcon.experiments.measurements import (
    Failed,
    Followed,
    Measured,
    Training,
    calibrated_figures,
)
from epifalcon.experiments.run_folder import begin
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.methods import registry
from epifalcon.studies import worker
from epifalcon.studies.worker import measure_method, training_of
from tests.studies import town
from tests.studies.finished_runs import make_run

OWN = Path(town.__file__).with_name("own_methods.py")


@pytest.fixture
def own(tmp_path, monkeypatch):
    for table in ("_ENTRIES", "_OWN"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    return Path(shutil.copy(OWN, tmp_path / "own_methods.py"))


@pytest.fixture
def folder(tmp_path):
    begin(town.begun(tmp_path / "run"))
    return tmp_path / "run"


def test_metrics_are_stored_and_a_finished_fit_is_not_repeated(folder):
    found = measure_method(folder, "hgnn")
    read = Measured.load(folder / "methods" / "hgnn")
    assert read.metrics == found.metrics
    assert read.title == "HGNN"
    np.testing.assert_array_equal(read.precision, found.precision)
    assert found.metrics["people"] == 48
    assert found.peak_rss_mb > 50
    assert found.cpu_seconds > 0
    for name in ("brier", "log_loss", "ece"):
        assert found.recalibrated["raw"][name] == pytest.approx(found.metrics[name])
    # Too few people in this town to recalibrate.
    assert "infected among the masked people" in found.left_raw
    assert found.recalibrated["platt"] == found.recalibrated["raw"]
    prediction = store.read(folder / "methods/hgnn/prediction", "prediction").meta
    model = town.FALCON.model
    assert read.training == found.training == Training(
        learning_rate=model.learning_rate,
        steps=prediction["best_round"],
        at_limit=prediction["best_round"] == model.rounds,
    )  # fmt: skip
    shutil.rmtree(folder / "methods" / "hgnn" / "measured")
    again = measure_method(folder, "hgnn")
    # The cost of a fit that was there already is unknown.
    assert again.peak_rss_mb is again.cpu_seconds is None
    assert again.metrics == found.metrics


NOTHING = {"probability": np.zeros(1), "seconds": 1.0}


def test_training_that_ended_at_or_before_its_limit_or_names_none():
    told = {"learning_rate": 0.01, "best_step": 4, "step_limit": 6}
    for limit, at_limit in ((6, False), (4, True), (None, None)):
        found = training_of(
            Outcome(**NOTHING, method="gcn", told=told | {"step_limit": limit})
        )
        assert found == Training(learning_rate=0.01, steps=4, at_limit=at_limit)
    assert training_of(Outcome(**NOTHING, method="hbp")) == Training()


def test_recalibration_is_fitted_on_masked_people_and_evaluated_on_hidden(tmp_path):
    begun = make_run(tmp_path / "run", "city.people=400", whole=False)
    rng = np.random.default_rng(2)
    risk = rng.random(400) ** 3
    masked = np.flatnonzero(begun.known.tested).astype(np.int32)
    told = rng.random(len(masked))
    infected = begun.known.status[masked] == 1
    outcome = Outcome(
        **NOTHING | {"probability": risk},
        method="hgnn",
        masked=masked,
        masked_risk=told,
    )
    outcome = replace(outcome, evaluation=Evaluation.of(begun, outcome))
    found = worker.evaluated(begun, outcome)
    truth = begun.epidemic.labels.hidden.open("test")
    for name, fit in (("platt", fit_platt), ("isotonic", fit_isotonic)):
        mended = fit(told, infected)(risk[truth.person])
        expected = calibrated_figures(curve(mended, truth.infected), 15)
        assert found["recalibrated"][name] == expected
    assert found["left_raw"] is None
    assert found["masked"] == len(masked)


def test_a_failure_is_stored_until_the_file_is_mended(folder, own):
    words = (str(folder), "broken", [str(own)])
    assert worker.measure(*words) == 1
    told = json.loads((folder / "methods/broken/failed.json").read_text())
    assert told["message"] == "RuntimeError: boom\non two lines"
    assert "Traceback" in told["details"]
    assert len(told["source_sha256"]) == 64
    own.write_text(own.read_text().replace("raise RuntimeError", "str"))
    assert worker.measure(*words) == 0
    assert not (folder / "methods/broken/failed.json").exists()
    assert Measured.load(folder / "methods/broken").source_sha256 is not None


@pytest.mark.parametrize(
    ("method", "source", "message"),
    [
        ("nobody", None, "unknown method 'nobody'"),
        ("fine", "1 / 0", "own_methods.py: cannot be loaded: ZeroDivisionError"),
        ("leaving", None, "SystemExit: 6"),
    ],
)
def test_what_cannot_be_run_fails_in_its_place(folder, own, method, source, message):
    if source is not None:
        own.write_text(source)
    assert worker.measure(str(folder), method, [str(own)]) == 1
    assert message in Failed.load(folder / "methods" / method).message


def test_an_analysis_leaves_its_values_or_its_failure(copied):
    run = copied("off").folder
    assert worker.follow_up(str(run), "falcon", "sizes") == 0
    found = Followed.load(run / "methods/falcon/sizes")
    assert found.values["people"] > 0
    assert found.cpu_seconds > 0
    # A run that recorded nothing cannot be audited.
    assert worker.follow_up(str(run), "falcon", "audit") == 1
    assert "record" in Failed.load(run / "methods/falcon/audit").message
