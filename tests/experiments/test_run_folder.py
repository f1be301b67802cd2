"""The folder of a run: opened as it was begun, checked, locked, and read when done."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epifalcon import store
from epifalcon.epidemic.ground_truth import GroundTruth
from epifalcon.errors import CorruptFileError, DataError, SettingsError, WriteError
from epifalcon.experiments.run_folder import (
    FinishedRun,
    MethodFailure,
    MethodResult,
    create_run_folder,
    finish,
    finished,
    open_run,
)
from epifalcon.experiments.run_methods import TrainingOptions, run_method
from epifalcon.locks import FileLock, lock_folder
from epifalcon.methods.contact_tracing import SoftDctRatio
from epifalcon.mobility.subsample import ReportingSettings
from tests.cli.runs import flip, names
from tests.experiments.finished_runs import make_run
from tests.faults import Killed, disk, killed_at
from tests.scenes import Scene, placed
from tests.studies import town
from tests.studies.method_results import method_result


@pytest.fixture
def folder(tmp_path):
    create_run_folder(town.inputs(tmp_path / "run"))
    return tmp_path / "run"


@pytest.mark.parametrize("real", [False, True])
def test_a_created_run_can_be_opened(tmp_path, real):
    made = town.inputs(tmp_path / "run")
    if real:
        reporting = ReportingSettings(trace_share=0.5)
        made = replace(
            town.inputs(tmp_path / "run", reporting=reporting), epidemic=None
        )
        assert made.reported.observed_share < made.prepared.traces.observed_share
    create_run_folder(made)
    read = open_run(tmp_path / "run")
    assert read.prepared.experiment == made.prepared.experiment
    assert read.prepared.name == made.prepared.name
    assert (read.seed, read.origin) == (made.seed, made.origin)
    assert (read.epidemic is None) == real

    def arrays(run):
        traces, known = run.prepared.traces, run.known
        yield from (traces.by_slot, run.reported.by_slot, known.status, known.slot)
        if not real:
            yield run.epidemic.labels.hidden.open("a test").infected
            yield run.epidemic.outbreak.infection_slot

    for one, other in zip(arrays(read), arrays(made), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_lock_does_not_follow_a_link(tmp_path):
    target = tmp_path / "elsewhere"
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(WriteError):
        FileLock.inside(tmp_path)
    assert not target.exists()


def test_a_run_is_whole_once_it_is_finished(folder):
    assert not finished(folder)
    (folder / "summary.json").write_text("{}")
    finish(town.inputs(folder))
    assert finished(folder)
    open_run(folder)
    (folder / "summary.json").write_text("[]")
    with pytest.raises(CorruptFileError, match=r"summary\.json"):
        open_run(folder)
    (folder / "summary.json").write_text("{}")
    (folder / "report.html").write_text("added later")
    with pytest.raises(WriteError, match="is not in its manifest"):
        create_run_folder(town.inputs(folder), overwrite=True)


@pytest.mark.parametrize("read", [open_run, FinishedRun.open])
def test_only_a_run_is_opened(folder, tmp_path, read):
    for place, message in (
        (folder / "city", "holds 'city', expected a run"),
        (tmp_path, "not an epifalcon folder"),
        (tmp_path / "none", "no such folder"),
    ):
        with pytest.raises(DataError, match=message):
            read(place)


GROWN = ["methods/falcon/ledger.jsonl", "figures/a.png", "summary.json", "report.html",
         ".summary.json.partial", ".manifest.json.partial"]  # fmt: skip


def test_a_run_with_later_files_may_be_overwritten(folder):
    for name in GROWN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    with pytest.raises(WriteError, match="add --overwrite"):
        create_run_folder(town.inputs(folder))
    create_run_folder(town.inputs(folder), overwrite=True)
    assert not (folder / "methods").exists()
    assert names(folder.parent) == ["run"]
    (folder / "known" / "mine.csv").write_text("precious")
    with pytest.raises(WriteError, match="is not in its manifest: move"):
        create_run_folder(town.inputs(folder), overwrite=True)


def refused(folder):
    with pytest.raises(WriteError, match="another process"), lock_folder(folder):
        pytest.fail("two at once")


def test_one_process_at_a_time(folder, monkeypatch):
    # A lock that outlived its process is taken.
    (folder.parent / ".run.lock").write_text("")
    with lock_folder(folder):
        link = folder.parent / "link"
        link.symlink_to(folder)
        # The second's refusal must not let a third in.
        for place in (folder, link, folder):
            refused(place)
        with lock_folder(folder.parent / "other"):
            pass
    with lock_folder(folder):
        assert ".run.lock" in names(folder.parent)
    assert names(folder.parent) == ["link", "run"]
    # Between our open and our lock the owner ends and a third begins.
    real = os.open

    def late(path, *more):
        handle = real(path, *more)
        os.unlink(path)
        os.close(real(path, *more))
        return handle

    monkeypatch.setattr(os, "open", late)
    refused(folder)


def test_folders_made_for_a_run_that_never_began_go_again(tmp_path):
    with lock_folder(tmp_path / "a" / "b" / "run"):
        assert (tmp_path / "a" / "b").is_dir()
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "run", Path("/proc/none/run")):
        with pytest.raises(WriteError), lock_folder(place):
            pytest.fail("nothing can stand there")
    assert names(tmp_path) == ["file"]


def test_what_a_kill_left_is_removed(folder):
    for number in (5, 25, 60):
        with pytest.raises(Killed), disk(folder.parent, killed_at(number)):
            create_run_folder(town.inputs(folder), overwrite=True)
        assert len(names(folder.parent)) == 2
    with lock_folder(folder):
        pass
    assert names(folder.parent) == ["run"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    beside = 'beside=["hgnn", "soft-dct-ratio"]'
    return make_run(folder, beside, "reporting.trace_share=0.8")


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "run")
    return tmp_path / "run"


def test_the_risks_are_those_of_the_training(made, monkeypatch):
    def opened(*_):
        raise AssertionError("hidden labels were read")

    monkeypatch.setattr(GroundTruth, "load", opened)
    for method in ("falcon", "hgnn"):
        run = FinishedRun.open(made.folder, method)
        stored = store.read(made.method_folder(method) / "prediction", "prediction")
        assert np.array_equal(run.risks().probability, stored.arrays["probability"])
        assert np.array_equal(run.risks().status, made.known.status)
    assert np.array_equal(run.traces.by_slot, made.reported.by_slot)
    assert not np.array_equal(run.traces.by_slot, made.prepared.traces.by_slot)
    assert run.seed == made.seed
    assert run.settings == made.prepared.experiment.prediction.central()
    assert FinishedRun.open(made.folder).method == "falcon"
    run = FinishedRun.open(made.folder, "soft-dct-ratio")
    method = placed(SoftDctRatio, Scene(made.reported, seed=made.seed)).fit(made.known)
    np.testing.assert_array_equal(run.risks().probability, method.predict_proba())


def test_a_method_or_run_that_is_not_done_is_refused(made, tmp_path):
    with pytest.raises(SettingsError, match=r"method='gcn', only of falcon, "):
        FinishedRun.open(made.folder, "gcn")
    with pytest.raises(SettingsError, match="unknown method 'hgn'"):
        FinishedRun.open(made.folder, "hgn")
    folder = make_run(tmp_path / "my run", whole=False).folder
    with pytest.raises(DataError, match=r"resume with: .*--resume --out '.*my run'"):
        FinishedRun.open(folder)


def test_a_method_that_a_comparison_measured_is_finished(tmp_path):
    with store.new_directory(tmp_path / "all") as scratch:
        meta = {"grows": ["seed-"]}
        store.write_manifest(scratch, "comparison", meta=meta, origin=store.Origin())
    inputs = make_run(tmp_path / "all" / "seed-5", whole=False)
    outcome = run_method(inputs, "soft-dct-ratio", TrainingOptions())
    (inputs.method_folder("hgnn") / "training").mkdir(parents=True)
    folder = inputs.folder
    with pytest.raises(
        DataError, match=r"not finished; it belongs to the comparison in .*l:"
    ):
        FinishedRun.open(folder, "soft-dct-ratio")
    method_result(0).save(inputs.method_folder("soft-dct-ratio"), inputs.origin)
    run = FinishedRun.open(folder, "soft-dct-ratio")
    np.testing.assert_array_equal(run.risks().probability, outcome.scores.risk)
    # The run's own method and the one that is not done yet.
    for method in (None, "hgnn"):
        with pytest.raises(SettingsError, match=r"only of soft-dct-ratio: .*--method"):
            FinishedRun.open(folder, method)
    scores = run.place / "prediction" / "probability.npy"
    scores.write_bytes(scores.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptFileError, match="probability"):
        FinishedRun.open(folder, "soft-dct-ratio").risks()
    with pytest.raises(DataError, match=r"holds a comparison; choose .*/seed-N"):
        FinishedRun.open(folder.parent)


def test_one_flipped_bit_or_missing_file_anywhere_is_noticed(copied):
    manifest = json.loads((copied / store.MANIFEST).read_text())
    assert len(manifest["files"]) > 30
    for name in [*manifest["files"], store.MANIFEST]:
        good = (copied / name).read_bytes()
        flip(copied / name)
        with pytest.raises(CorruptFileError):
            FinishedRun.open(copied)
        (copied / name).write_bytes(good)
    FinishedRun.open(copied)
    (copied / "known/person.npy").unlink()
    for read in (open_run, FinishedRun.open):
        with pytest.raises(CorruptFileError, match="is missing"):
            read(copied)


def test_a_ledger_may_grow_but_not_change(copied):
    run = FinishedRun.open(copied)
    good = run.ledger.read_bytes()
    run.ledger.write_bytes(good + b"one more line\n")
    FinishedRun.open(copied)
    store.seal(copied, run.ledger)
    for bad in (good, good[:50] + b"x" + good[51:] + b"one more line\n"):
        run.ledger.write_bytes(bad)
        with pytest.raises(CorruptFileError, match="ledger"):
            FinishedRun.open(copied)


def without(folder, key):
    """Write the stored figures again, as a version that did not know ``key``."""
    read = store.read(folder / "measured", "measured")
    meta = {name: value for name, value in read.meta.items() if name != key}
    store.write(
        folder / "measured", "measured", read.arrays, meta=meta, origin=read.origin
    )


def test_figures_are_read_as_they_were_written(tmp_path):
    training = {"learning_rate": 0.01, "steps": 300, "at_limit": True}
    made = replace(method_result(3), training=training)
    made.save(tmp_path, store.Origin({}, 3))
    read = MethodResult.load(tmp_path)
    for name, value in vars(made).items():
        np.testing.assert_equal(getattr(read, name), value)
    assert MethodResult.load(tmp_path / "none") is None
    without(tmp_path, "training")
    assert set(MethodResult.load(tmp_path).training.values()) == {None}
    without(tmp_path, "title")
    with pytest.raises(CorruptFileError, match="another version"):
        MethodResult.load(tmp_path)


def test_a_failure_is_read_as_it_was_written(tmp_path):
    made = MethodFailure("one\ntwo", "details", "abc", killed=True)
    made.save(tmp_path / "method")
    assert MethodFailure.load(tmp_path / "method") == made
    assert MethodFailure.load(tmp_path) is None
    for text in ("{", "[]", json.dumps({"strange": 1})):
        (tmp_path / "method" / "failed.json").write_text(text)
        assert "cannot be read" in MethodFailure.load(tmp_path / "method").message
