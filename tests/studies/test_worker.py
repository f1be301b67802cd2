"""What a worker leaves: metrics of a method, an analysis, or a failure."""

import json
import shutil
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from epifalcon import store
from epifalcon.attacks.recurrence import RepeatReliability
from epifalcon.evaluation.calibration import fit_isotonic, fit_platt
from epifalcon.evaluation.metrics import brier, calibration_error, curve, log_loss
from epifalcon.experiments.run_folder import (
    FinishedRun,
    FollowUpResult,
    MethodFailure,
    MethodResult,
    create_run_folder,
)
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.federation.training import public_mobility
from epifalcon.methods.base import Scores
from epifalcon.progress import silent
from epifalcon.studies import privacy_audit, worker
from epifalcon.studies.paper.noise import ATTACKS
from epifalcon.studies.paper.pseudo_tradeoff import PLACES
from epifalcon.studies.privacy_audit import AttackParameters, ClaimedPlaces
from epifalcon.studies.worker import training_of
from tests.experiments.finished_runs import make_run
from tests.studies import town


@pytest.fixture
def folder(tmp_path):
    create_run_folder(town.inputs(tmp_path / "run"))
    return tmp_path / "run"


def test_metrics_are_stored_and_a_finished_fit_is_not_repeated(folder):
    def measured():
        assert worker.measure(str(folder), "hgnn", []) == 0
        return MethodResult.load(folder / "methods" / "hgnn")

    found = measured()
    assert found.title == "HGNN"
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
    assert found.training == {
        "learning_rate": model.learning_rate,
        "steps": prediction["best_round"],
        "at_limit": prediction["best_round"] == model.rounds,
    }  # fmt: skip
    shutil.rmtree(folder / "methods" / "hgnn" / "measured")
    again = measured()
    # The cost of a fit that was there already is unknown.
    assert again.peak_rss_mb is again.cpu_seconds is None
    assert again.metrics == found.metrics


def test_training_that_ended_at_or_before_its_limit_or_names_none():
    diagnostics = {"learning_rate": 0.01, "best_step": 4, "step_limit": 6}
    for limit, at_limit in ((6, False), (4, True), (None, None)):
        scores = Scores(np.zeros(1), diagnostics=diagnostics | {"step_limit": limit})
        found = training_of(Outcome("gcn", scores))
        assert found == {"learning_rate": 0.01, "steps": 4, "at_limit": at_limit}
    untrained = training_of(Outcome("hbp", Scores(np.zeros(1))))
    assert set(untrained.values()) == {None}


def test_recalibration_is_fitted_on_masked_people_and_evaluated_on_hidden(tmp_path):
    inputs = make_run(tmp_path / "run", "city.people=400", whole=False)
    rng = np.random.default_rng(2)
    risk = rng.random(400) ** 3
    masked = np.flatnonzero(inputs.known.tested).astype(np.int32)
    diagnostics = rng.random(len(masked))
    infected = inputs.known.status[masked] == 1
    outcome = Outcome("hgnn", Scores(risk, masked, diagnostics))
    outcome = replace(outcome, evaluation=Evaluation.of(inputs, outcome))
    found = worker.evaluated(inputs, outcome)
    truth = inputs.epidemic.labels.hidden.open("test")
    for name, fit in (("platt", fit_platt), ("isotonic", fit_isotonic)):
        mended = fit(diagnostics, infected)(risk[truth.person])
        ranked = curve(mended, truth.infected)
        expected = [brier(ranked), log_loss(ranked)]
        expected.append(calibration_error(ranked, 15, "width"))
        assert list(found["recalibrated"][name].values()) == expected
    assert found["left_raw"] is None
    assert found["masked"] == len(masked)


def test_a_failure_is_stored_until_the_file_is_mended(folder, own):
    words = (str(folder), "broken", [str(own)])
    assert worker.measure(*words) == 1
    diagnostics = json.loads((folder / "methods/broken/failed.json").read_text())
    assert diagnostics["message"] == "RuntimeError: boom\non two lines"
    assert "Traceback" in diagnostics["details"]
    assert len(diagnostics["source_sha256"]) == 64
    own.write_text(own.read_text().replace("raise RuntimeError", "str"))
    assert worker.measure(*words) == 0
    assert not (folder / "methods/broken/failed.json").exists()
    assert MethodResult.load(folder / "methods/broken").source_sha256 is not None


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
    assert message in MethodFailure.load(folder / "methods" / method).message


def test_an_analysis_leaves_its_values_or_its_failure(copied):
    run = copied("off").folder
    assert worker.follow_up(str(run), "falcon", "sizes") == 0
    found = FollowUpResult.load(run / "methods/falcon/sizes")
    assert found.values["people"] > 0
    assert found.cpu_seconds > 0
    # A run that recorded nothing cannot be audited.
    assert worker.follow_up(str(run), "falcon", "audit") == 1
    assert "record" in MethodFailure.load(run / "methods/falcon/audit").message


def test_places_are_attacked_without_notes(opened):
    found = worker.place_errors(opened("paper"), silent)
    assert set(found) == {*PLACES, "random"}
    assert all(0 <= one <= 1 for one in found.values())
    # Two pseudo places to a true one.
    assert found["random"] == pytest.approx(2 / 3, abs=0.05)


def test_attacks_are_listed_by_name(monkeypatch):
    attacks = [SimpleNamespace(name=name, error=0.2, random=0.9) for name in ATTACKS]
    attacks[1].error = 0.1
    attacks[2].error = None
    attacks.append(SimpleNamespace(name="result", error=0.0, random=0.5))
    monkeypatch.setattr(worker, "read_statistics", lambda _place: None)
    monkeypatch.setattr(privacy_audit, "attacks_on", lambda *_words: attacks)
    found = worker.audit_errors(SimpleNamespace(place=None), silent)
    expected = {one.name: one.error for one in attacks}
    assert found == {**expected, "strongest": 0.1, "random": 0.9}


@pytest.mark.parametrize("kind", ["places", "audit"])
def test_attackers_have_the_public_mobility_model_of_the_run(
    kind, tmp_path, monkeypatch
):
    words = ("privacy.mode=paper", "privacy.upload_sigma=0.05", "model.rounds=2")
    inputs = make_run(
        tmp_path / "run", *words, "view.people=10", "pseudo.people_share=0.4"
    )
    used = []

    def spy(**parts):
        used.append(parts["model"])
        return ClaimedPlaces(**parts)

    parameters = AttackParameters((), RepeatReliability(), by_sets=False)
    monkeypatch.setattr(privacy_audit, "ClaimedPlaces", spy)
    monkeypatch.setattr(privacy_audit, "learn_attacks", lambda *_words: parameters)
    run = FinishedRun.open(inputs.folder)
    worker.ANALYSES[kind](run, silent)
    public = public_mobility(run.traces, run.settings.pseudo, run.seed)
    assert [one.people for one in used] == [public.people]
    assert 40 < public.people < 80
    assert (used[0].joint != public.joint).nnz == 0
    np.testing.assert_array_equal(used[0].visits, public.visits)


def counted(traces, window):
    """Edges, and meetings by pair of people, by looking at everybody."""
    edges, meetings = {}, []
    for slot, here in enumerate(traces.by_slot):
        for person, region in enumerate(here):
            if region >= 0:
                edges.setdefault((slot // window, region), set()).add(person)
        for one, other in combinations(range(traces.people), 2):
            if here[one] >= 0 and here[one] == here[other]:
                meetings.append((one, other))
    return edges, meetings


def test_sizes_are_those_of_a_plain_count(opened, monkeypatch):
    run = opened("off")
    edges, meetings = counted(run.traces, run.settings.model.window_slots)
    expected = {
        "people": run.traces.people,
        "contacts": len(set(meetings)),
        "meetings": len(meetings),
        "edges": len(edges),
        "incidences": sum(len(people) for people in edges.values()),
    }
    assert worker.graph_sizes(run, silent) == expected
    monkeypatch.setattr(worker, "_MOST_MEETINGS", 1)
    assert worker.graph_sizes(run, silent)["contacts"] is None
