"""Methods in a run's folder: read again, resumed, refused, and what they may see."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon import store
from epifalcon.epidemic.ground_truth import GroundTruth, HeldOutLabels
from epifalcon.epidemic.labels import Labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.settings import with_infected_share
from epifalcon.errors import CorruptFileError, DataError, SettingsError, WriteError
from epifalcon.experiments import run_methods
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import MethodFailure, create_run_folder, finish
from epifalcon.experiments.run_methods import (
    Outcome,
    TrainingOptions,
    context_of,
    require_possible,
    run_method,
    run_other,
    traces_of,
)
from epifalcon.federation.settings import PrivacySettings
from epifalcon.methods.hbp import share_infected
from epifalcon.mobility.subsample import keep_last_days
from epifalcon.settings import json_text
from tests.cli.runs import content
from tests.faults import disk
from tests.studies import town

OPTIONS = TrainingOptions(checkpoint_seconds=0)
QUICK = {"gcn": {"steps": 4, "check_every": 2, "learning_rates": [0.01]}}


class Untouchable:
    """The outbreak of a test in which nothing may look at it."""

    def __getattr__(self, name):
        raise AssertionError(f"the outbreak's {name} was read")


def with_hidden(inputs, infected, outbreak=None, person=None):
    """The run with other truth about the people who were not tested."""
    epidemic = inputs.epidemic
    if person is None:
        person = epidemic.labels.hidden.open("a test").person
    labels = Labels(epidemic.labels.known, GroundTruth(HeldOutLabels(person, infected)))
    outbreak = outbreak or epidemic.outbreak
    return replace(inputs, epidemic=replace(epidemic, labels=labels, outbreak=outbreak))


def region(cases):
    return replace(town.FALCON.region, macro_cases=cases)


RUNS = {
    "falcon": ("falcon", {}),
    "falcon-none": ("falcon", {"region": region("none")}),
    "falcon-paper": ("falcon", {"privacy": PrivacySettings(mode="paper")}),
    "hgnn": ("hgnn", {}),
    "soft-dct-ratio": ("soft-dct-ratio", {}),
    "gcn": ("gcn", {"rivals": QUICK}),
}
EVERY = pytest.mark.parametrize(("method", "changes"), RUNS.values(), ids=RUNS.keys())
KINDS = pytest.mark.parametrize("method", ["hgnn", "soft-dct-ratio"])


def stored_by(folder):
    """Every file of a method's scores and features, as bytes."""
    found = content(folder).items()
    return {name: one for name, one in found if not name.endswith("manifest.json")}


@EVERY
def test_hidden_labels_reach_no_bit_and_an_ended_fit_is_read(tmp_path, method, changes):
    inputs = town.inputs(tmp_path / "true", **changes)
    truth = inputs.epidemic.labels.hidden.open("a test").infected
    flipped = with_hidden(
        town.inputs(tmp_path / "flipped", **changes), ~truth, Untouchable()
    )
    one, other = (run_method(run, method, OPTIONS) for run in (inputs, flipped))
    np.testing.assert_array_equal(one.scores.risk, other.scores.risk)
    stored = stored_by(inputs.method_folder(method))
    assert stored == stored_by(flipped.method_folder(method))
    assert "prediction/probability.npy" in stored
    # They do decide how the scores are evaluated.
    assert one.metrics.auc == pytest.approx(1 - other.metrics.auc)

    def never(name, *_):
        raise AssertionError(f"{name}: trained again")

    with disk(tmp_path) as changed:
        again = run_method(inputs, method, TrainingOptions(progress=never))
    assert changed.changes <= 1  # mkdir of what is there
    assert stored_by(inputs.method_folder(method)) == stored
    assert json_text(one.as_plain()) == json_text(again.as_plain())
    for name in ("risk", "masked", "masked_risk"):
        np.testing.assert_array_equal(
            getattr(one.scores, name), getattr(again.scores, name)
        )
    if one.scores.masked is not None:
        assert inputs.known.tested[one.scores.masked].all()


def test_the_setting_that_leaks_reads_the_outbreak(tmp_path):
    inputs = town.inputs(tmp_path, region=region("all"))
    truth = inputs.epidemic.labels.hidden.open("a test").infected
    with pytest.raises(AssertionError, match="the outbreak's"):
        run_method(with_hidden(inputs, truth, Untouchable()), "falcon", OPTIONS)
    outcome = run_method(inputs, "falcon", OPTIONS)
    assert outcome.title == "Falcon, off (ALL CASES)"
    assert outcome.as_plain()["macro_cases"] == "all"


@KINDS
def test_scores_of_another_run_are_refused(tmp_path, method):
    run_method(town.inputs(tmp_path), method, OPTIONS)
    other = replace(town.inputs(tmp_path), seed=9)
    with pytest.raises(DataError, match="other data, settings or seed"):
        run_method(other, method, OPTIONS)


def test_a_stopped_training_is_resumed(tmp_path):
    expected = run_method(town.inputs(tmp_path / "a", rivals=QUICK), "gcn", OPTIONS)
    inputs, calls = town.inputs(tmp_path / "b", rivals=QUICK), []

    def stop(*call):
        calls.append(call)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_method(inputs, "gcn", replace(OPTIONS, progress=stop))
    assert (inputs.method_folder("gcn") / "training").is_dir()
    found = run_method(inputs, "gcn", OPTIONS)
    np.testing.assert_array_equal(found.scores.risk, expected.scores.risk)
    assert found.diagnostics["best_step"] <= 4
    assert [one.name for one in inputs.method_folder("gcn").iterdir()] == ["prediction"]


def test_what_a_kill_left_is_removed(tmp_path):
    inputs = town.inputs(tmp_path)
    for name in (".checkpoint-000004.0123abcd.partial", ".features.0123abcd.partial"):
        (inputs.method_folder("hgnn") / name).mkdir(parents=True)
    run_method(inputs, "hgnn", OPTIONS)
    left = sorted(one.name for one in inputs.method_folder("hgnn").iterdir())
    assert left == ["ledger.jsonl", "model", "prediction"]


def test_a_damaged_record_is_noticed(tmp_path):
    inputs = town.inputs(tmp_path)
    place = inputs.method_folder("soft-dct") / "prediction"
    with store.new_directory(place) as scratch:
        arrays = {"risk": np.zeros(3)}
        store.write(scratch, "prediction", arrays, meta={}, origin=inputs.origin)
    with pytest.raises(CorruptFileError, match="lacks 'probability'"):
        run_method(inputs, "soft-dct", OPTIONS)


def test_what_cannot_be_trained_is_refused_for_every_method(tmp_path):
    stopping = replace(town.FALCON.stopping, validation_share=1.0)
    for method, beside in (("falcon", ()), ("soft-dct-ratio", ("hgnn",))):
        inputs = town.inputs(tmp_path, method=method, beside=beside, stopping=stopping)
        with pytest.raises(SettingsError, match="validation_share"):
            require_possible(inputs)
    require_possible(town.inputs(tmp_path, method="soft-dct-ratio", stopping=stopping))
    blind = replace(town.inputs(tmp_path, method="oracle"), epidemic=None)
    with pytest.raises(SettingsError, match="needs a simulated outbreak"):
        require_possible(blind)
    assert list(tmp_path.iterdir()) == []


def test_methods_are_given_beliefs(tmp_path):
    experiment = Experiment.load("hamlet+regional-1.5+beta-half+test-errors")
    inputs = town.inputs(tmp_path)
    inputs = replace(inputs, prepared=replace(inputs.prepared, experiment=experiment))
    for name in ("hbp", "gcn", "hbp-true-factors"):
        context = context_of(inputs, name)
        assert context.rule.even
        assert context.pathogen.beta == SARS_COV_2.beta / 2


def test_traces_that_begin_later_begin_with_more_infected(tmp_path):
    inputs = town.inputs(tmp_path)
    rule, known = inputs.prepared.experiment.outbreak, inputs.known
    assert context_of(inputs, "hbp").rule == rule
    late = replace(inputs, reported=keep_last_days(inputs.reported, 2))
    expected = share_infected(rule, SARS_COV_2, known, late.dropped_slots)
    assert rule.seed_count / known.people < expected
    assert expected < (known.status == 1).sum() / known.tested.sum()
    # Nothing hidden is needed.
    blind = replace(late, epidemic=None)
    for name in ("hbp", "mean-field", "gcn"):
        assert context_of(blind, name).rule == with_infected_share(rule, expected)
    # The oracle sees the outbreak from its first slot, another ceiling as methods do.
    for name in ("oracle", "hbp-true-factors"):
        assert context_of(late, name).ground_truth is inputs.epidemic.outbreak
    assert context_of(late, "oracle").rule is rule
    assert traces_of(late, "oracle") is inputs.prepared.traces
    assert traces_of(late, "hbp-true-factors") is late.reported
    assert context_of(late, "hbp-true-factors").rule == with_infected_share(
        rule, expected
    )


def failing(error):
    def raise_it(*_):
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("round 3: the loss is no number"), "round 3: the loss is no number"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_guest_that_fails_is_tried_again_until_the_run_is_finished(
    tmp_path, monkeypatch, error, message
):
    inputs = town.inputs(tmp_path / "run", beside=("soft-dct-ratio",))
    create_run_folder(inputs)
    with monkeypatch.context() as patched:
        patched.setattr(run_methods, "run_method", failing(error))
        failed = run_other(inputs, "soft-dct-ratio", OPTIONS)
    assert failed.message == message
    place = inputs.method_folder("soft-dct-ratio")
    assert MethodFailure.load(place) == failed
    finish(inputs)
    assert run_other(inputs, "soft-dct-ratio", OPTIONS) == failed
    create_run_folder(inputs, overwrite=True)
    failed.save(place)
    assert isinstance(run_other(inputs, "soft-dct-ratio", OPTIONS), Outcome)
    assert MethodFailure.load(place) is None


@pytest.mark.parametrize("stop", [WriteError("full"), KeyboardInterrupt()])
def test_what_stops_every_method_stops_a_guest(tmp_path, monkeypatch, stop):
    inputs = town.inputs(tmp_path / "run", beside=("hbp",))
    create_run_folder(inputs)
    monkeypatch.setattr(run_methods, "run_method", failing(stop))
    with pytest.raises(type(stop)):
        run_other(inputs, "hbp", OPTIONS)
    assert MethodFailure.load(inputs.method_folder("hbp")) is None


def test_a_log_is_written_on_request(tmp_path):
    inputs = town.inputs(tmp_path)
    for _ in range(2):
        run_method(inputs, "hgnn", replace(OPTIONS, log=True))
        assert len(list(inputs.method_folder("hgnn").glob("log/events*"))) == 1
