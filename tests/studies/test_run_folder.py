import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, WriteError
from epifalcon.experiments.run_folder import begin, finish, finished, open_run
from epifalcon.locks import alone
from epifalcon.mobility.reporting import ReportingSettings
from tests.faults import Killed, disk, full_from, killed_at
from tests.studies import town


@pytest.fixture
def folder(tmp_path):
    begin(town.begun(tmp_path / "run"))
    return tmp_path / "run"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def assert_same(read, made):
    assert read.prepared.experiment == made.prepared.experiment
    assert read.prepared.name == made.prepared.name
    assert read.seed == made.seed
    assert read.origin == made.origin
    for one, other in (
        (read.prepared.traces.by_slot, made.prepared.traces.by_slot),
        (read.reported.by_slot, made.reported.by_slot),
        (read.known.status, made.known.status),
        (read.known.slot, made.known.slot),
    ):
        np.testing.assert_array_equal(one, other)


def test_what_was_begun_is_opened(folder):
    made, read = town.begun(folder), open_run(folder)
    assert_same(read, made)
    for part in (read, made):
        assert part.epidemic is not None
    one, other = (part.epidemic.labels.hidden.open("a test") for part in (read, made))
    np.testing.assert_array_equal(one.infected, other.infected)
    np.testing.assert_array_equal(
        read.epidemic.outbreak.infection_slot, made.epidemic.outbreak.infection_slot
    )


def test_reported_traces_and_real_tests_are_opened(tmp_path):
    reporting = ReportingSettings(trace_share=0.5)
    made = replace(town.begun(tmp_path / "run", reporting=reporting), epidemic=None)
    assert made.reported.observed_share < made.prepared.traces.observed_share
    begin(made)
    read = open_run(tmp_path / "run")
    assert read.epidemic is None
    assert_same(read, made)


def test_a_run_says_when_it_is_whole(folder):
    assert not finished(folder)
    (folder / "summary.json").write_text("{}")
    finish(town.begun(folder))
    assert finished(folder)
    open_run(folder)
    (folder / "summary.json").write_text("[]")
    with pytest.raises(CorruptFileError, match=r"summary\.json"):
        open_run(folder)


def test_only_a_run_is_opened(folder, tmp_path):
    for place, told in (
        (folder / "city", "holds 'city', expected a run"),
        (tmp_path, "not an epifalcon folder"),
        (tmp_path / "none", "no such folder"),
    ):
        with pytest.raises(DataError, match=told):
            open_run(place)


@pytest.mark.parametrize(
    "name", ["city/by_slot.npy", "known/positive.npy", "settings.toml"]
)
def test_a_changed_or_missing_input_is_noticed(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=path.name):
        open_run(folder)
    path.unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        open_run(folder)


GROWN = ["methods/falcon/ledger.jsonl", "figures/a.png", "summary.json", "report.html",
         ".summary.json.partial", ".manifest.json.partial"]  # fmt: skip


def test_a_run_that_has_grown_may_be_begun_again(folder):
    for name in GROWN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    with pytest.raises(WriteError, match="add --overwrite"):
        begin(town.begun(folder))
    begin(town.begun(folder), overwrite=True)
    assert not (folder / "methods").exists()
    assert names(folder.parent) == ["run"]


@pytest.mark.parametrize("name", ["notes.txt", ".git", "known/mine.csv"])
def test_somebody_elses_file_in_a_run_is_never_lost(folder, name):
    (folder / name).write_text("precious")
    with pytest.raises(WriteError, match="is no part of it: move"):
        begin(town.begun(folder), overwrite=True)
    assert (folder / name).read_text() == "precious"


def test_a_finished_run_grows_no_more(folder):
    finish(town.begun(folder))
    (folder / "summary.json").write_text("{}")
    with pytest.raises(WriteError, match="is no part of it"):
        begin(town.begun(folder), overwrite=True)


@pytest.mark.parametrize("number", [1, 3, 9, 20, 40])
def test_a_full_disk_leaves_nothing_begun(tmp_path, number):
    with (
        pytest.raises(WriteError, match="No space left"),
        disk(tmp_path, full_from(number)),
    ):
        begin(town.begun(tmp_path / "new" / "run"))
    assert names(tmp_path) == []


def test_one_process_at_a_time(folder):
    with alone(folder):
        with (
            pytest.raises(WriteError, match="another process is working"),
            alone(folder),
        ):
            pytest.fail("two at once")
        link = folder.parent / "link"
        link.symlink_to(folder)
        with pytest.raises(WriteError, match="another process"), alone(link):
            pytest.fail("two at once")
        with alone(folder.parent / "other"):
            pass
        # The second's refusal must not have let a third in.
        with pytest.raises(WriteError, match="another process"), alone(folder):
            pytest.fail("two at once")
    with alone(folder):
        assert ".run.lock" in names(folder.parent)
    assert names(folder.parent) == ["link", "run"]


def test_a_lock_that_outlived_its_process_is_taken(folder):
    (folder.parent / ".run.lock").write_text("")
    with alone(folder):
        pass
    assert names(folder.parent) == ["run"]


def test_a_lock_removed_by_its_owner_meanwhile_is_not_taken(folder, monkeypatch):
    # Between our open and our lock the owner ends and a third begins.
    real = os.open

    def late(path, *more):
        handle = real(path, *more)
        os.unlink(path)
        os.close(real(path, *more))
        return handle

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(WriteError, match="another process"), alone(folder):
        pytest.fail("not ours")


def test_folders_made_for_a_run_that_never_began_go_again(tmp_path):
    with alone(tmp_path / "a" / "b" / "run"):
        assert (tmp_path / "a" / "b").is_dir()
    assert names(tmp_path) == []
    with alone(tmp_path / "a" / "b" / "run"):
        begin(town.begun(tmp_path / "a" / "b" / "run"))
    assert finished(tmp_path / "a" / "b" / "run") is False


@pytest.mark.parametrize("place", ["file/run", "file/deeper/run"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"), alone(tmp_path / place):
        pytest.fail("nothing can stand there")
    with pytest.raises(WriteError), alone(Path("/proc/none/run")):
        pytest.fail("nothing can stand there")
    assert names(tmp_path) == ["file"]


def test_what_a_kill_left_is_swept_up(folder):
    mine = town.begun(folder)
    for number in (5, 25, 60):
        with pytest.raises(Killed), disk(folder.parent, killed_at(number)):
            begin(mine, overwrite=True)
    beside = folder.parent / ".other.0123abcd.partial"
    beside.mkdir()
    assert len(names(folder.parent)) == 5
    with alone(folder):
        pass
    assert names(folder.parent) == [beside.name, "run"]


def test_a_run_half_replaced_is_put_back(folder):
    (folder / "methods").mkdir()
    (folder / "methods" / "note").write_text("old")

    def fail(_name, _number):
        # The old folder was moved away, the new one has not come yet.
        if not folder.exists():
            raise Killed

    with pytest.raises(Killed), disk(folder.parent, fail):
        begin(town.begun(folder), overwrite=True)
    assert not folder.exists()
    with alone(folder):
        pass
    assert (folder / "methods" / "note").read_text() == "old"
    assert names(folder.parent) == ["run"]


def test_the_manifest_tells_of_the_settings(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "run"
    assert manifest["seed"] == town.SEED
    assert manifest["meta"]["finished"] is False
    assert store.Origin(manifest["settings"], town.SEED).fingerprint == (
        town.begun(folder).origin.fingerprint
    )
