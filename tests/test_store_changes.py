"""Records that are replaced, grow, or were being written when the process ended."""

import errno

import numpy as np
import pytest

from epifalcon import store
from epifalcon.errors import CorruptFileError, WriteError
from epifalcon.store import Origin, new_directory
from tests.faults import Killed, disk, killed_at
from tests.test_store import ORIGIN, files_in, write_record


def test_a_fingerprint_tells_settings_and_seed_but_not_versions():
    same = Origin({"city": {"people": 3.0}}, seed=7)
    assert same.fingerprint == ORIGIN.fingerprint
    others = [Origin(ORIGIN.settings, 8), Origin({"city": {"people": 4}}, 7)]
    others += [Origin(ORIGIN.settings, None), Origin({}, 7)]
    assert len({one.fingerprint for one in [same, *others]}) == 5


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "summary.json"
    store.replace_text(path, "old")
    with disk(tmp_path) as counted:
        store.replace_text(path, "new")
    for number in range(1, counted.changes + 1):
        store.replace_text(path, "old")
        with pytest.raises(Killed), disk(tmp_path, killed_at(number)):
            store.replace_text(path, "new, and cut off")
        assert path.read_text() == "old"
        store.replace_text(path, "new")
        assert path.read_text() == "new"
        assert files_in(tmp_path) == {"summary.json"}


def test_a_folder_may_grow_where_it_says_so(tmp_path):
    with new_directory(tmp_path / "out") as scratch:
        store.write_manifest(
            scratch, "run", meta={"grows": ["methods/", "note.txt"]}, origin=ORIGIN
        )
    (tmp_path / "out" / "methods" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "methods" / "deep" / "file").touch()
    (tmp_path / "out" / "note.txt").touch()
    with pytest.raises(WriteError, match="add --overwrite"):
        store.refuse_occupied(tmp_path / "out", overwrite=False)
    store.refuse_occupied(tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "methodology.txt").touch()
    with pytest.raises(WriteError, match=r"holds 'methodology.txt'"):
        store.refuse_occupied(tmp_path / "out", overwrite=True)


def test_only_trouble_with_the_output_becomes_ours(tmp_path):
    def trouble(number, name=None):
        with store.writing(tmp_path / "out"):
            raise OSError(number, "trouble", None if name is None else str(name))

    for number, name in [
        (errno.ENOSPC, None),
        (errno.EDQUOT, None),
        (errno.EACCES, tmp_path / "out" / "deep" / "file"),
        (errno.EACCES, tmp_path / "out"),
        (errno.EROFS, tmp_path),
    ]:
        with pytest.raises(WriteError, match="out: cannot be written: trouble"):
            trouble(number, name)
    for number, name in [(errno.EACCES, None), (errno.ENOENT, tmp_path / "other")]:
        with pytest.raises(OSError, match="trouble") as caught:
            trouble(number, name)
        assert not isinstance(caught.value, WriteError)


SCRATCH = [".a.0123abcd.partial", ".a.ffffffff.partial", ".b.0123abcd.partial"]
OTHERS = [".a.partial", ".a.0123abc.partial", ".a.0123ABCD.partial", "a.0123abcd.old"]


@pytest.mark.parametrize(("name", "left"), [(None, []), ("a", SCRATCH[2:])])
def test_what_a_kill_left_is_cleared(tmp_path, name, left):
    for place in [*SCRATCH, *OTHERS]:
        (tmp_path / place / "deep").mkdir(parents=True)
    store.clear_scratch(tmp_path, name)
    assert {entry.name for entry in tmp_path.iterdir()} == {*OTHERS, *left}


@pytest.mark.parametrize("arrived", [True, False])
def test_what_was_to_be_replaced_is_put_back_if_the_new_has_not_come(tmp_path, arrived):
    write_record(tmp_path / ".a.0123abcd.old")
    (tmp_path / ".a.0123abcd.partial").mkdir()
    if arrived:
        (tmp_path / "a").mkdir()
    store.clear_scratch(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a"}
    assert (tmp_path / "a" / "manifest.json").exists() is not arrived


def test_a_kill_at_any_change_leaves_the_old_or_the_new(tmp_path):
    def exchange():
        with new_directory(tmp_path / "out", overwrite=True) as scratch:
            store.write(scratch, "new", {"a": np.ones(2)}, meta={}, origin=ORIGIN)

    def old():
        with new_directory(tmp_path / "out", overwrite=True) as scratch:
            store.write(scratch, "old", {"a": np.ones(1)}, meta={}, origin=ORIGIN)

    old()
    with disk(tmp_path) as counted:
        exchange()
    kinds = []
    for number in range(1, counted.changes + 1):
        old()
        with pytest.raises(Killed), disk(tmp_path, killed_at(number)):
            exchange()
        store.clear_scratch(tmp_path)
        assert {entry.name for entry in tmp_path.iterdir()} == {"out"}
        kinds.append(store.verify(tmp_path / "out")["kind"])
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {"old", "new"}


def test_a_journal_may_grow_but_not_change_or_shrink(tmp_path):
    journal, other = tmp_path / "kept.jsonl", tmp_path / "kept.json"
    for path in (journal, other):
        path.write_text("one\n")
    store.write_manifest(tmp_path, "thing", meta={}, origin=store.Origin())
    journal.write_text("one\ntwo\n")
    store.verify(tmp_path)
    for changed in ("onE\ntwo\n", "one"):
        journal.write_text(changed)
        with pytest.raises(CorruptFileError, match=r"kept\.jsonl"):
            store.verify(tmp_path)
    journal.write_text("one\n")
    other.write_text("one\ntwo\n")
    with pytest.raises(CorruptFileError, match="8 bytes, expected 4"):
        store.verify(tmp_path)


def test_sealing_changes_nothing_but_the_journals_entry(tmp_path):
    journal = tmp_path / "below" / "kept.jsonl"
    journal.parent.mkdir()
    journal.write_text("one\n")
    (tmp_path / "beside.txt").write_text("beside")
    store.write_manifest(tmp_path, "thing", meta={"a": 1}, origin=store.Origin())
    before = store.read_manifest(tmp_path)
    journal.write_text("one\ntwo\n")
    (tmp_path / "later.txt").write_text("somebody's file")
    store.seal(tmp_path, journal)
    after = store.verify(tmp_path)
    assert after["files"].pop("below/kept.jsonl") == store.describe(journal)
    assert before["files"].pop("below/kept.jsonl")["bytes"] == 4
    for one in (before, after):
        one.pop("manifest_sha256")
    assert before == after
    journal.write_text("one\n")
    with pytest.raises(CorruptFileError):
        store.verify(tmp_path)
