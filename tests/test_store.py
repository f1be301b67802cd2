import errno
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, WriteError
from epifalcon.store import Origin, new_directory

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


def test_arrays_come_back_memory_mapped_and_read_only(tmp_path):
    ids = store.read(write_record(tmp_path / "record"), "thing").arrays["ids"]
    assert isinstance(ids, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        ids[0, 0] = 9


def test_the_manifest_tells_settings_seed_versions_and_hashes(tmp_path):
    write_record(tmp_path / "record")
    manifest = json.loads((tmp_path / "record" / "manifest.json").read_text())
    assert manifest["settings"] == {"city": {"people": 3}}
    assert manifest["seed"] == 7
    assert {"python", "numpy", "epifalcon"} <= manifest["versions"].keys()
    assert manifest["files"]["ids.npy"]["bytes"] == 128 + 48


def test_equal_records_are_equal_files(tmp_path):
    write_record(tmp_path / "one")
    write_record(tmp_path / "two")
    for name in files_in(tmp_path / "one"):
        one, two = tmp_path / "one" / name, tmp_path / "two" / name
        assert one.read_bytes() == two.read_bytes()


def test_numpy_numbers_may_stand_in_meta_and_seed(tmp_path):
    origin = Origin({"share": np.float64(0.5)}, seed=np.int64(3))
    store.write(tmp_path, "thing", {}, meta={"people": np.int64(2)}, origin=origin)
    assert store.read(tmp_path, "thing").meta == {"people": 2}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_any_flipped_bit_is_noticed(tmp_path_factory, data):
    folder = write_record(tmp_path_factory.mktemp("record"))
    path = folder / data.draw(st.sampled_from(sorted(files_in(folder))))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    before = json.loads((write_record(folder / "again") / "manifest.json").read_text())
    try:
        store.read(folder, "thing")
    except (CorruptFileError, DataError):
        return
    # Only a change of spelling (say, of a space) may pass, none of content.
    assert path.name == "manifest.json"
    assert json.loads(bytes(content)) == before


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_cut_file_is_noticed(tmp_path_factory, data):
    folder = write_record(tmp_path_factory.mktemp("record"))
    path = folder / data.draw(st.sampled_from(sorted(files_in(folder))))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
    with pytest.raises((CorruptFileError, DataError)):
        store.read(folder, "thing")


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


def test_a_new_directory_appears_whole(tmp_path):
    out = tmp_path / "a" / "b" / "out"
    with new_directory(out) as scratch:
        assert not out.exists()
        write_record(scratch)
    assert files_in(tmp_path / "a" / "b") >= {"out", "out/manifest.json"}
    assert {entry.name for entry in out.parent.iterdir()} == {"out"}
    store.read(out, "thing")


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
        if self.name.endswith(".partial"):
            raise OSError(errno.EACCES, "no", str(target))
        return rename(self, target)

    monkeypatch.setattr(type(out), "rename", stubborn)
    with pytest.raises(WriteError), new_directory(out, overwrite=True):
        pass
    monkeypatch.undo()
    store.read(out, "thing")
    assert {entry.name for entry in tmp_path.iterdir()} == {"out"}


def test_what_is_not_ours_is_left_alone_even_with_overwrite(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name, told in [("theirs", "not made by epifalcon"), ("file", "is a file")]:
        for overwrite in (False, True):
            with (
                pytest.raises(WriteError, match=told),
                new_directory(tmp_path / name, overwrite=overwrite),
            ):
                pass
    assert files_in(tmp_path) == {"theirs", "theirs/thesis.tex", "file"}


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "out").mkdir()
    with new_directory(tmp_path / "out") as scratch:
        write_record(scratch)
    store.read(tmp_path / "out", "thing")


def test_a_link_to_an_output_stays_a_link(tmp_path):
    write_record(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with new_directory(tmp_path / "link", overwrite=True) as scratch:
        store.write(scratch, "new", {}, meta={}, origin=ORIGIN)
    assert (tmp_path / "link").is_symlink()
    store.read(tmp_path / "real", "new")


def test_places_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "file").touch()
    places = [tmp_path / "file" / "out", tmp_path / "file" / "a" / "out"]
    places += [tmp_path / ("x" * 300), tmp_path / ("y" * 300) / "out"]
    for place in places:
        with pytest.raises(WriteError, match="cannot be written"), new_directory(place):
            pass
    assert files_in(tmp_path) == {"file"}


def test_a_folder_without_permission_is_told(tmp_path, monkeypatch):
    # Root may write everywhere, so the refusal is made by hand.
    def refuse(self, mode=0o777, parents=False, exist_ok=False):
        del mode, parents, exist_ok
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    for place in ("locked/out", "locked/a/out"):
        with (
            pytest.raises(WriteError, match="ermission"),
            new_directory(tmp_path / place),
        ):
            pass


def test_a_full_disk_is_told_although_it_names_no_file(tmp_path):
    def fill() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WriteError, match="No space"), new_directory(tmp_path / "out"):
        fill()


def test_trouble_with_the_input_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), new_directory(tmp_path / "out"):
        (tmp_path / "out-data.csv").read_text()


def record_in(folder):
    with new_directory(folder) as scratch:
        store.write(scratch, "thing", {"a": np.ones(3)}, meta={}, origin=Origin())


@pytest.mark.parametrize("manifest", ['{"name": "my web app"}', "not JSON", "[]"])
def test_a_manifest_of_somebody_else_is_no_leave_to_overwrite(tmp_path, manifest):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text(manifest)
    (tmp_path / "web" / "precious.txt").write_text("x")
    with (
        pytest.raises(WriteError, match="not made by epifalcon"),
        new_directory(tmp_path / "web", overwrite=True),
    ):
        pass
    assert (tmp_path / "web" / "precious.txt").read_text() == "x"


def test_a_file_that_somebody_added_is_not_overwritten(tmp_path):
    record_in(tmp_path / "ours")
    (tmp_path / "ours" / "notes.txt").write_text("x")
    with (
        pytest.raises(WriteError, match=r"holds 'notes.txt'"),
        new_directory(tmp_path / "ours", overwrite=True),
    ):
        pass
    assert (tmp_path / "ours" / "notes.txt").exists()


@pytest.mark.parametrize("inside", [".", "a.npy", "manifest.json"])
def test_what_is_being_read_is_not_overwritten(tmp_path, inside):
    record_in(tmp_path / "ours")
    with (
        pytest.raises(WriteError, match="being read"),
        new_directory(
            tmp_path / "ours", overwrite=True, inputs=[None, tmp_path / "ours" / inside]
        ),
    ):
        pass
    assert (tmp_path / "ours" / "a.npy").exists()


def test_a_disk_that_fills_while_an_array_is_written(tmp_path):
    # A real limit: NumPy tells of a short write without an error number.
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
    print("told:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("told:"), done.stderr
    assert list(tmp_path.iterdir()) == []
