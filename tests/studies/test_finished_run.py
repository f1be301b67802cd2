import json
import shutil

import numpy as np
import pytest

from epifalcon import store
from epifalcon.epidemic.hidden import Hidden
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.experiments.run_methods import Listeners, run_method
from epifalcon.federation.training import Prediction
from epifalcon.methods.contact_tracing import SoftDctRatio
from epifalcon.progress import silent
from tests.scenes import Scene, placed
from tests.studies.finished_runs import make_run
from tests.studies.measured_figures import measured

BESIDE = 'beside=["hgnn", "soft-dct-ratio"]'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    return make_run(folder, BESIDE, "reporting.trace_share=0.8")


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "run")
    return tmp_path / "run"


def test_the_risks_are_those_of_the_training(made):
    for method in ("falcon", "hgnn"):
        run = FinishedRun.open(made.folder, method)
        stored = Prediction.load(made.method_folder(method) / "prediction")
        assert np.array_equal(run.risks().probability, stored.probability)
        assert np.array_equal(run.risks().status, made.known.status)
    assert FinishedRun.open(made.folder).method == "falcon"


def test_a_rival_keeps_its_scores(made):
    run = FinishedRun.open(made.folder, "soft-dct-ratio")
    method = placed(SoftDctRatio, Scene(made.reported, seed=made.seed)).fit(made.known)
    np.testing.assert_array_equal(run.risks().probability, method.predict_proba())


def test_a_run_tells_what_its_methods_saw(made):
    run = FinishedRun.open(made.folder, "hgnn")
    assert np.array_equal(run.traces.by_slot, made.reported.by_slot)
    assert not np.array_equal(run.traces.by_slot, made.prepared.traces.by_slot)
    assert np.array_equal(run.known.status, made.known.status)
    assert run.seed == made.seed
    assert run.settings == made.prepared.experiment.prediction.central()


def test_hidden_labels_stay_closed(made, monkeypatch):
    def opened(*_):
        raise AssertionError("hidden labels were read")

    monkeypatch.setattr(Hidden, "load", opened)
    FinishedRun.open(made.folder).risks()


def test_a_method_that_was_not_run_is_refused(tmp_path):
    folder = make_run(tmp_path / "run", "method=soft-dct-ratio").folder
    with pytest.raises(SettingsError, match=r"'hgnn' was not run there, only soft-dct"):
        FinishedRun.open(folder, "hgnn")
    with pytest.raises(SettingsError, match="unknown method 'hgn'"):
        FinishedRun.open(folder, "hgn")


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    folder = make_run(tmp_path / "my run", whole=False).folder
    with pytest.raises(DataError, match=r"go on with: .*--resume --out '.*my run'"):
        FinishedRun.open(folder)


@pytest.fixture
def compared(tmp_path):
    """A comparison of one seed: one method measured, one not done yet."""
    with store.new_directory(tmp_path / "all") as scratch:
        meta = {"grows": ["seed-"]}
        store.write_manifest(scratch, "comparison", meta=meta, origin=store.Origin())
    begun = make_run(tmp_path / "all" / "seed-5", whole=False)
    listeners = Listeners(progress=silent, checkpoint_seconds=60)
    outcome = run_method(begun, "soft-dct-ratio", listeners)
    (begun.method_folder("hgnn") / "training").mkdir(parents=True)
    return begun, outcome


def test_a_method_that_a_comparison_measured_is_finished(compared):
    begun, outcome = compared
    folder = begun.folder
    with pytest.raises(
        DataError, match=r"not finished; it is of the comparison in .*l:"
    ):
        FinishedRun.open(folder, "soft-dct-ratio")
    measured(0).save(begun.method_folder("soft-dct-ratio"), begun.origin)
    run = FinishedRun.open(folder, "soft-dct-ratio")
    np.testing.assert_array_equal(run.risks().probability, outcome.probability)
    # The run's own method and the one that is not done yet.
    for method in (None, "hgnn"):
        with pytest.raises(
            SettingsError, match=r"there, only soft-dct-ratio: .*--meth"
        ):
            FinishedRun.open(folder, method)
    scores = run.place / "prediction" / "probability.npy"
    scores.write_bytes(scores.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptFileError, match="probability"):
        FinishedRun.open(folder, "soft-dct-ratio").risks()
    with pytest.raises(DataError, match=r"holds a comparison; name .*/seed-N"):
        FinishedRun.open(folder.parent)


def test_what_is_no_run_is_refused(made, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        FinishedRun.open(tmp_path / "gone")
    with pytest.raises(DataError, match="not an epifalcon folder"):
        FinishedRun.open(tmp_path)
    with pytest.raises(DataError, match="holds 'city', expected a run"):
        FinishedRun.open(made.folder / "city")


def test_one_flipped_bit_anywhere_is_noticed(copied):
    manifest = json.loads((copied / store.MANIFEST).read_text())
    assert len(manifest["files"]) > 30
    for name in [*manifest["files"], store.MANIFEST]:
        path = copied / name
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 4
        path.write_bytes(bad)
        with pytest.raises(CorruptFileError):
            FinishedRun.open(copied)
        path.write_bytes(good)
    FinishedRun.open(copied)


def test_files_that_are_gone_or_cut_are_noticed(copied):
    for name in ("known/person.npy", "methods/falcon/ledger.jsonl", "settings.toml"):
        path = copied / name
        good = path.read_bytes()
        path.write_bytes(good[:-1])
        with pytest.raises(CorruptFileError, match="bytes, expected"):
            FinishedRun.open(copied)
        path.unlink()
        with pytest.raises(CorruptFileError, match="is missing"):
            FinishedRun.open(copied)
        path.write_bytes(good)


def test_a_ledger_may_grow_but_not_change(copied):
    run = FinishedRun.open(copied)
    good = run.ledger.read_bytes()
    run.ledger.write_bytes(good + b"one more line\n")
    FinishedRun.open(copied)
    store.seal(copied, run.ledger)
    run.ledger.write_bytes(good)
    with pytest.raises(CorruptFileError, match="ledger"):
        FinishedRun.open(copied)
    run.ledger.write_bytes(good[:50] + b"x" + good[51:] + b"one more line\n")
    with pytest.raises(CorruptFileError, match="ledger"):
        FinishedRun.open(copied)


def test_a_run_of_an_earlier_version_is_told_of(copied):
    shutil.rmtree(copied / "methods" / "soft-dct-ratio")
    manifest = store.read_manifest(copied)
    (copied / store.MANIFEST).unlink()
    store.write_manifest(copied, "run", meta=manifest["meta"], origin=store.Origin())
    with pytest.raises(DataError, match="made by an earlier version"):
        FinishedRun.open(copied, "soft-dct-ratio").risks()
