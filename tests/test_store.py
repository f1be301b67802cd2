import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, WriteError
from epifalcon.store import Origin, new_directory, pack_strings, unpack_strings
from tests.faults import Killed, disk, killed_at

ORIGIN = Origin.now({"city": {"people": 3}}, seed=7)
ARRAYS = {
    "ids": np.arange(12, dtype=np.int32).reshape(3, 4),
    "share": np.array([0.5, np.nan, -0.0]),
    "none": np.zeros((0, 2)),
    "one": np.array(3),
    "swapped": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


def write_record(folder):
    store.write(folder, "thing", ARRAYS, meta={"people": 3}, origin=ORIGIN)
    return folder


def files_in(folder) -> set[str]:
    return {entry.relative_to(folder).as_posix() for entry in folder.rglob("*")}


def test_what_is_written_is_read_back(tmp_path):
    stored = store.read(write_record(tmp_path / "record"), "thing")
    assert stored.kind == "thing"
    assert stored.meta == {"people": 3}
    assert stored.origin == ORIGIN
    assert set(stored.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(stored.arrays[name], array)
        assert stored.arrays[name].dtype == array.dtype
    assert isinstance(stored.arrays["ids"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        stored.arrays["ids"][0, 0] = 9
    with pytest.raises(CorruptFileError, match="the record lacks 'gone'"):
        _ = stored.arrays["gone"]
    assert {"python", "numpy", "epifalcon"} <= stored.origin.versions.keys()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_any_flipped_bit_and_any_cut_is_noticed(tmp_path_factory, data):
    folder = write_record(tmp_path_factory.mktemp("record"))
    path = folder / data.draw(st.sampled_from(sorted(files_in(folder))))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        # The last byte of the manifest is a line end.
        del content[min(place, len(content) - 2) :]
    path.write_bytes(content)
    before = json.loads((write_record(folder / "again") / "manifest.json").read_text())
    try:
        store.read(folder, "thing")
    except (CorruptFileError, DataError):
        return
    # Only a change of spelling (say, of a space) may pass, none of content.
    assert path.name == "manifest.json"
    assert json.loads(bytes(content)) == before


def test_a_missing_file_is_corrupt_and_a_missing_record_is_not(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        store.read(tmp_path / "gone", "thing")
    with pytest.raises(DataError, match="not an epifalcon folder"):
        store.read(tmp_path, "thing")
    folder = write_record(tmp_path / "record")
    (folder / "ids.npy").unlink()
    with pytest.raises(CorruptFileError, match=r"ids\.npy: is missing"):
        store.read(folder, "thing")


def test_another_kind_or_schema_is_refused(tmp_path):
    folder = write_record(tmp_path / "record")
    with pytest.raises(DataError, match="'thing', expected 'city'"):
        store.read(folder, "city")
    with pytest.raises(DataError, match="schema 1"):
        store.read(folder, "thing", schema=2)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CorruptFileError),
        (b"[" * 100_000, CorruptFileError),
        (b"\xff\xff", CorruptFileError),
        (b"[]", DataError),
        (b"{}", DataError),
        (b'{"format": "epifalcon-record"}', CorruptFileError),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, content, error):
    folder = write_record(tmp_path / "record")
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(error, match=r"manifest\.json"):
        store.read(folder, "thing")


def test_a_folder_of_records_vouches_for_the_manifests_inside(tmp_path):
    write_record(tmp_path / "run" / "city")
    store.write_manifest(tmp_path / "run", "run", meta={}, origin=ORIGIN)
    store.verify(tmp_path / "run")
    inner = tmp_path / "run" / "city" / "manifest.json"
    inner.write_text(inner.read_text().replace('"people": 3', '"people": 4'))
    with pytest.raises(CorruptFileError, match="city"):
        store.verify(tmp_path / "run")


def test_pickled_content_is_neither_written_nor_read(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        store.write(tmp_path, "thing", {"a": np.array([{}])}, meta={}, origin=Origin())
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    store.write_manifest(tmp_path, "thing", meta={}, origin=Origin())
    with pytest.raises(CorruptFileError, match=r"a\.npy"):
        store.read(tmp_path, "thing")


@pytest.mark.parametrize("error", [DataError("bad"), KeyboardInterrupt(), OSError(5)])
def test_on_any_error_nothing_is_left_behind(tmp_path, error):
    def fail(scratch) -> None:
        write_record(scratch)
        raise error

    with (
        pytest.raises(type(error)),
        new_directory(tmp_path / "a" / "b" / "out") as scratch,
    ):
        fail(scratch)
    assert files_in(tmp_path) == set()


def test_parents_that_others_use_are_left(tmp_path):
    def fail() -> None:
        (tmp_path / "a" / "other").mkdir()
        raise DataError("bad")

    with pytest.raises(DataError), new_directory(tmp_path / "a" / "out"):
        fail()
    assert files_in(tmp_path) == {"a", "a/other"}


def test_an_old_output_stays_until_the_new_one_is_whole(tmp_path):
    out = write_record(tmp_path / "out")
    with pytest.raises(WriteError, match="--overwrite"), new_directory(out):
        pass

    def fail(scratch) -> None:
        (scratch / "new.txt").touch()
        raise DataError("bad")

    with pytest.raises(DataError), new_directory(out, overwrite=True) as scratch:
        fail(scratch)
    store.read(out, "thing")
    with new_directory(out, overwrite=True) as scratch:
        (scratch / "new.txt").touch()
    assert files_in(tmp_path) == {"out", "out/new.txt"}


def test_a_failed_exchange_puts_the_old_output_back(tmp_path, monkeypatch):
    out = write_record(tmp_path / "out")
    rename = type(out).rename

    def stubborn(self, target):
        if self.parent.name.endswith(".partial"):
            raise OSError(errno.EACCES, "no", str(target))
        return rename(self, target)

    monkeypatch.setattr(type(out), "rename", stubborn)
    with pytest.raises(WriteError), new_directory(out, overwrite=True):
        pass
    monkeypatch.undo()
    store.read(out, "thing")
    assert {entry.name for entry in tmp_path.iterdir()} == {"out"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_ours_is_left_alone_even_with_overwrite(tmp_path, overwrite):
    (tmp_path / "file").touch()
    for number, manifest in enumerate([None, '{"name": "my web app"}', "[]"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "thesis.tex").touch()
        if manifest:
            (folder / "manifest.json").write_text(manifest)
    before = files_in(tmp_path)
    for name in ("file", "0", "1", "2"):
        result = "is a file" if name == "file" else "not made by epifalcon"
        with (
            pytest.raises(WriteError, match=result),
            new_directory(tmp_path / name, overwrite=overwrite),
        ):
            pass
    assert files_in(tmp_path) == before


def test_a_link_to_an_output_stays_a_link(tmp_path):
    write_record(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with new_directory(tmp_path / "link", overwrite=True) as scratch:
        store.write(scratch, "new", {}, meta={}, origin=ORIGIN)
    assert (tmp_path / "link").is_symlink()
    store.read(tmp_path / "real", "new")


def test_places_that_cannot_be_written_are_reported(tmp_path):
    (tmp_path / "file").touch()
    places = [tmp_path / "file" / "out", tmp_path / "file" / "a" / "out"]
    places += [tmp_path / ("x" * 300), tmp_path / ("y" * 300) / "out"]
    for place in places:
        with pytest.raises(WriteError, match="cannot be written"), new_directory(place):
            pass
    assert files_in(tmp_path) == {"file"}


def test_an_input_error_is_not_reported_as_an_output_error(tmp_path):
    with pytest.raises(FileNotFoundError), new_directory(tmp_path / "out"):
        (tmp_path / "out-data.csv").read_text()


def test_a_disk_that_fills_while_an_array_is_written(tmp_path):
    # A real limit: NumPy reports a short write without an error number.
    code = f"""
import pathlib, resource, signal, numpy as np
from epifalcon import store
from epifalcon.errors import WriteError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with store.new_directory(pathlib.Path({str(tmp_path / "out")!r})) as folder:
        big = np.ones(1_000_000)
        store.write(folder, "big", {{"a": big}}, meta={{}}, origin=store.Origin())
except WriteError as error:
    print("error:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("error:"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_fingerprint_depends_on_settings_and_seed_but_not_on_versions():
    same = Origin({"city": {"people": 3.0}}, seed=7)
    assert same.fingerprint == ORIGIN.fingerprint
    others = [Origin(ORIGIN.settings, 8), Origin({"city": {"people": 4}}, 7)]
    others += [Origin(ORIGIN.settings, None), Origin({}, 7)]
    assert len({one.fingerprint for one in [same, *others]}) == 5


def test_a_file_is_replaced_whole(tmp_path):
    path, link = tmp_path / "summary.json", tmp_path / "link"
    link.symlink_to(path)
    store.replace_text(link, "old")
    assert link.is_symlink()
    link.unlink()
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
    with pytest.raises(WriteError, match=r"has 'methodology.txt'"):
        store.refuse_occupied(tmp_path / "out", overwrite=True)


def test_only_errors_of_the_output_become_write_errors(tmp_path):
    def failure(number, name=None):
        with store.writing(tmp_path / "out"):
            raise OSError(number, "failure", None if name is None else str(name))

    for number, name in [
        (errno.ENOSPC, None),
        (errno.EDQUOT, None),
        (errno.EACCES, tmp_path / "out" / "deep" / "file"),
        (errno.EACCES, tmp_path / "out"),
        (errno.EROFS, tmp_path),
        (errno.EACCES, tmp_path / ".out.partial"),
    ]:
        with pytest.raises(WriteError, match="out: cannot be written: failure"):
            failure(number, name)
    for number, name in [(errno.EACCES, None), (errno.ENOENT, tmp_path / "other")]:
        with pytest.raises(OSError, match="failure") as raised:
            failure(number, name)
        assert not isinstance(raised.value, WriteError)


SCRATCH = [".a.0123abcd.partial", ".a.ffffffff.partial", ".b.0123abcd.partial"]
OTHERS = [".a.partial", ".a.0123abc.partial", ".a.0123ABCD.partial", "a.0123abcd.old"]


def test_what_a_kill_left_is_cleared(tmp_path):
    for place in [*SCRATCH, *OTHERS]:
        (tmp_path / place / "deep").mkdir(parents=True)
    store.clear_scratch(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == set(OTHERS)


@pytest.mark.parametrize("arrived", [True, False])
def test_what_was_to_be_replaced_is_put_back_if_the_new_has_not_come(tmp_path, arrived):
    write_record(tmp_path / ".a.0123abcd.old")
    (tmp_path / ".a.0123abcd.partial").mkdir()
    if arrived:
        (tmp_path / "a").mkdir()
    store.clear_scratch(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a"}
    assert (tmp_path / "a" / "manifest.json").exists() is not arrived


WRITER = """
import sys, time
from pathlib import Path
from epifalcon.store import scratch_beside
with scratch_beside(Path(sys.argv[1])) as made:
    made.write_text("traces")
    print(flush=True)
    time.sleep(600)
"""


def test_the_next_writer_removes_what_a_killed_process_left(tmp_path):
    with contextlib.ExitStack() as running:
        for name in ("busy", "killed"):
            words = [sys.executable, "-c", WRITER, tmp_path / name]
            writer = subprocess.Popen(words, stdout=subprocess.PIPE)
            running.enter_context(writer)
            running.callback(writer.kill)
            assert writer.stdout.readline() == b"\n"
        writer.kill()
        writer.wait()
        busy, left = sorted(tmp_path.iterdir())
        assert stat.filemode(left.stat().st_mode) == "drwx------"
        assert (left / "killed").read_text() == "traces"
        with new_directory(tmp_path / "new"):
            pass
        assert set(tmp_path.iterdir()) == {busy, tmp_path / "new"}


@pytest.mark.parametrize("step", [(os, "open"), (fcntl, "flock")])
def test_a_scratch_folder_removed_before_its_lock_is_made_again(
    tmp_path, monkeypatch, step
):
    real = getattr(*step)

    def late(*more):
        monkeypatch.undo()
        store.clear_scratch(tmp_path)
        return real(*more)

    monkeypatch.setattr(*step, late)
    with new_directory(tmp_path / "out") as scratch:
        (scratch / "file").touch()
    assert files_in(tmp_path) == {"out", "out/file"}


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


def test_odd_strings_come_back_from_disk(tmp_path):
    for number, values in enumerate([["", ""], ["a\0", "ü\n", "\ud800"], []]):
        folder = tmp_path / str(number)
        arrays = pack_strings("name", values)
        store.write(folder, "names", arrays, meta={}, origin=Origin())
        back = store.read(folder, "names").arrays
        assert unpack_strings("name", back) == tuple(values)


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_outputs_are_readable_by_those_who_can_read_the_source(tmp_path, mode):
    (tmp_path / "source").mkdir()
    (tmp_path / "source").chmod(mode)
    before = os.umask(0o022)
    try:
        with store.as_private_as(tmp_path / "source"):
            (tmp_path / "made").mkdir()
    finally:
        assert os.umask(before) == 0o022
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == mode
