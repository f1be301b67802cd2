import json
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.epidemic.hidden import Hidden, Truth
from epifalcon.epidemic.labels import Labels
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.experiments import run_methods
from epifalcon.experiments.measurements import Failed
from epifalcon.experiments.run_folder import begin, finish
from epifalcon.experiments.run_methods import (
    Listeners,
    Outcome,
    judge,
    require_possible,
    run_guest,
    run_method,
)
from epifalcon.federation.settings import PrivacySettings
from epifalcon.progress import silent
from epifalcon.settings import json_text
from tests.faults import disk, full_from
from tests.studies import town

LISTENERS = Listeners(progress=silent, checkpoint_seconds=0)


class Untouchable:
    """The outbreak of a test in which nothing may look at it."""

    def __getattr__(self, name):
        raise AssertionError(f"the outbreak's {name} was read")


def with_hidden(begun, infected, outbreak=None):
    """The run with other truth about the people who were not tested."""
    epidemic = begun.epidemic
    person = epidemic.labels.hidden.open("a test").person
    labels = Labels(epidemic.labels.known, Hidden(Truth(person, infected)))
    outbreak = outbreak or epidemic.outbreak
    return replace(begun, epidemic=replace(epidemic, labels=labels, outbreak=outbreak))


def region(cases):
    return replace(town.FALCON.region, macro_cases=cases)


RUNS = {
    "falcon": ("falcon", {}),
    "falcon-none": ("falcon", {"region": region("none")}),
    "falcon-paper": ("falcon", {"privacy": PrivacySettings(mode="paper")}),
    "hgnn": ("hgnn", {}),
    "soft-dct-ratio": ("soft-dct-ratio", {}),
}
EVERY = pytest.mark.parametrize(("method", "changes"), RUNS.values(), ids=RUNS.keys())


def content(folder):
    """Every file that a method keeps of its scores and features, as bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


@EVERY
def test_hidden_labels_reach_no_bit_of_a_method(tmp_path, method, changes):
    begun = town.begun(tmp_path / "true", **changes)
    truth = begun.epidemic.labels.hidden.open("a test").infected
    flipped = with_hidden(
        town.begun(tmp_path / "flipped", **changes), ~truth, Untouchable()
    )
    one, other = (run_method(run, method, LISTENERS) for run in (begun, flipped))
    np.testing.assert_array_equal(one.probability, other.probability)
    kept = content(begun.method_folder(method))
    assert kept == content(flipped.method_folder(method))
    assert "prediction/probability.npy" in kept
    # They do decide how the scores are judged.
    assert one.metrics.auc == pytest.approx(1 - other.metrics.auc)


def test_the_setting_that_leaks_reads_the_outbreak(tmp_path):
    begun = town.begun(tmp_path, region=region("all"))
    truth = begun.epidemic.labels.hidden.open("a test").infected
    with pytest.raises(AssertionError, match="the outbreak's"):
        run_method(with_hidden(begun, truth, Untouchable()), "falcon", LISTENERS)
    outcome = run_method(begun, "falcon", LISTENERS)
    assert outcome.title == "Falcon, off (ALL CASES)"
    assert outcome.as_plain()["macro_cases"] == "all"


@EVERY
def test_a_method_that_has_ended_is_read(tmp_path, method, changes):
    begun = town.begun(tmp_path, **changes)
    first = run_method(begun, method, LISTENERS)
    kept = content(tmp_path)
    with disk(tmp_path) as changed:
        second = run_method(begun, method, LISTENERS)
    assert changed.changes <= 1  # mkdir of what is there
    assert content(tmp_path) == kept
    assert json_text(first.as_plain()) == json_text(second.as_plain())


@pytest.mark.parametrize("method", ["hgnn", "soft-dct-ratio"])
def test_scores_of_another_run_are_refused(tmp_path, method):
    run_method(town.begun(tmp_path), method, LISTENERS)
    other = replace(town.begun(tmp_path), seed=9)
    with pytest.raises(DataError, match="other data, settings or seed"):
        run_method(other, method, LISTENERS)


@pytest.mark.parametrize("method", ["hgnn", "soft-dct-ratio"])
def test_a_full_disk_is_told_and_can_be_gone_on_from(tmp_path, method):
    begun = town.begun(tmp_path / "run")
    (tmp_path / "run").mkdir()
    for number in (1, 3, 5):
        with pytest.raises(WriteError), disk(tmp_path, full_from(number)):
            run_method(begun, method, LISTENERS)
    whole = run_method(town.begun(tmp_path / "whole"), method, LISTENERS)
    again = run_method(begun, method, LISTENERS)
    np.testing.assert_array_equal(again.probability, whole.probability)


def test_what_a_kill_left_is_swept_up(tmp_path):
    begun = town.begun(tmp_path)
    for name in (".checkpoint-000004.0123abcd.partial", ".features.0123abcd.partial"):
        (begun.method_folder("hgnn") / name).mkdir(parents=True)
    run_method(begun, "hgnn", LISTENERS)
    assert sorted(entry.name for entry in begun.method_folder("hgnn").iterdir()) == [
        "ledger.jsonl",
        "model",
        "prediction",
    ]


def test_nobody_hidden_or_nothing_known_is_not_judged(tmp_path):
    begun = town.begun(tmp_path)
    scores = np.linspace(0, 1, 80)
    assert judge(replace(begun, epidemic=None), scores, "x") is None
    none = Truth(np.zeros(0, np.int32), np.zeros(0, np.bool_))
    labels = Labels(begun.known, Hidden(none))
    nobody = replace(begun, epidemic=replace(begun.epidemic, labels=labels))
    assert judge(nobody, scores, "x") is None


@pytest.mark.parametrize("infected", [True, False])
def test_hidden_people_of_one_kind_are_judged_as_far_as_possible(tmp_path, infected):
    begun = with_hidden(town.begun(tmp_path), np.full(48, infected))
    found = judge(begun, np.linspace(0, 1, 80), "x")
    assert found.auc is None
    assert found.prevalence == infected
    assert found.brier is not None


def test_the_figures_of_a_method_are_strict_json(tmp_path):
    begun = town.begun(tmp_path, privacy=PrivacySettings(mode="paper", upload_sigma=0))
    outcome = run_method(begun, "falcon", LISTENERS)
    plain = json.loads(json_text(outcome.as_plain()))
    assert plain["epsilon"] == {"visit": None, "day": None, "person": None}
    assert plain["rounds"] == 6
    assert plain["mode"] == "paper"
    assert outcome.title == "Falcon, paper"


def test_the_rival_has_no_privacy_whatever_the_run_has(tmp_path):
    begun = town.begun(tmp_path, privacy=PrivacySettings(mode="local"))
    outcome = run_method(begun, "hgnn", LISTENERS)
    assert outcome.title == "HGNN"
    assert outcome.as_plain()["mode"] == "off"
    assert outcome.trained.forecast is None


def test_what_cannot_be_trained_is_refused_for_every_method(tmp_path):
    stopping = replace(town.FALCON.stopping, validation_share=1.0)
    for method, beside in (("falcon", ()), ("soft-dct-ratio", ("hgnn",))):
        begun = town.begun(tmp_path, method=method, beside=beside, stopping=stopping)
        with pytest.raises(SettingsError, match="validation_share"):
            require_possible(begun)
    require_possible(town.begun(tmp_path, method="soft-dct-ratio", stopping=stopping))
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_written_on_request(tmp_path):
    begun = town.begun(tmp_path)
    assert isinstance(run_method(begun, "hgnn", replace(LISTENERS, log=True)), Outcome)
    logged = sorted(begun.method_folder("hgnn").glob("log/events*"))
    assert len(logged) == 1
    run_method(begun, "hgnn", replace(LISTENERS, log=True))
    assert sorted(begun.method_folder("hgnn").glob("log/events*")) == logged


def failing(error):
    def raise_it(*_):
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataError("round 3: the loss is no number"), "round 3: the loss is no number"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_guest_that_fails_is_told_and_tried_again(tmp_path, monkeypatch, error, told):
    begun = town.begun(tmp_path / "run", beside=("soft-dct-ratio",))
    begin(begun)
    with monkeypatch.context() as patched:
        patched.setattr(run_methods, "run_method", failing(error))
        failed = run_guest(begun, "soft-dct-ratio", LISTENERS)
    assert isinstance(failed, Failed)
    assert failed.message == told
    assert Failed.load(begun.method_folder("soft-dct-ratio")) == failed
    found = run_guest(begun, "soft-dct-ratio", LISTENERS)
    assert isinstance(found, Outcome)
    assert Failed.load(begun.method_folder("soft-dct-ratio")) is None


def test_a_finished_run_keeps_what_was_told_of_a_guest(tmp_path, monkeypatch):
    begun = town.begun(tmp_path / "run", beside=("hbp",))
    begin(begun)
    with monkeypatch.context() as patched:
        patched.setattr(run_methods, "run_method", failing(DataError("no")))
        failed = run_guest(begun, "hbp", LISTENERS)
    finish(begun)
    assert run_guest(begun, "hbp", LISTENERS) == failed


@pytest.mark.parametrize("stop", [WriteError("full"), KeyboardInterrupt()])
def test_what_stops_every_method_stops_a_guest(tmp_path, monkeypatch, stop):
    begun = town.begun(tmp_path / "run", beside=("hbp",))
    begin(begun)
    monkeypatch.setattr(run_methods, "run_method", failing(stop))
    with pytest.raises(type(stop)):
        run_guest(begun, "hbp", LISTENERS)
    assert Failed.load(begun.method_folder("hbp")) is None
