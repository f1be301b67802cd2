"""Records of arrays on disk: ``.npy`` files and one JSON manifest.

``manifest.json`` holds the kind and schema of the record, the settings, seed and
versions that produced it, and the SHA-256 and size of every file. Directories are
created atomically: written under another name, flushed, then renamed.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import CorruptFileError, DataError, EpifalconError, WriteError
from epifalcon.settings import fingerprint, json_text
from epifalcon.streams import PRIVATE
from epifalcon.types import Plain

MANIFEST = "manifest.json"
FORMAT = "epifalcon-record"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_VERSIONED = ("epifalcon", "numpy", "scipy", "numba", "polars", "torch")
_GROWS = "grows"
_JOURNAL = ".jsonl"
"""Suffix of append-only files, whose lines are verified by their readers."""
_SCRATCH = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<what>partial|old)")


@dataclass(frozen=True)
class Origin:
    """Provenance of a record: settings, seed and versions."""

    settings: Plain = field(default_factory=dict)
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, settings: Plain, seed: int | None) -> "Origin":
        """Return the origin of a record made by the running program."""
        return cls(settings=settings, seed=seed, versions=dict(installed_versions()))

    @property
    def fingerprint(self) -> str:
        """Return the hash of settings and seed, independent of versions."""
        return fingerprint({"settings": self.settings, "seed": self.seed})


@dataclass(frozen=True)
class Stored:
    """A record as read from disk; arrays are read-only memory maps."""

    kind: str
    arrays: Mapping[str, NDArray[Any]]
    meta: Plain
    origin: Origin


class _Entries(dict[str, Any]):
    """Entries of a stored record; a missing one is a ``CorruptFileError``."""

    def __init__(self, folder: Path, entries: Plain) -> None:
        super().__init__(entries)
        self._folder = folder

    def __missing__(self, name: str) -> None:
        raise CorruptFileError(f"{self._folder}: the record lacks {name!r}")


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions of Python, epifalcon and its numerical libraries."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@contextlib.contextmanager
def new_directory(
    path: Path, *, overwrite: bool = False, inputs: Sequence[Path | None] = ()
) -> Iterator[Path]:
    """Yield a scratch folder that is renamed to ``path`` if the block succeeds.

    On any error the scratch folder and the parents created for it are removed, and
    ``path`` is unchanged. Raises ``WriteError`` if ``path`` exists, unless it is empty,
    or ``overwrite`` is set, it holds an epifalcon manifest and only files listed there,
    and it contains none of ``inputs``, which the block reads.
    """
    path = Path(os.path.realpath(path))
    with writing(path):
        refuse_occupied(path, overwrite)
    for given in inputs:
        read = path if given is None else Path(os.path.realpath(given))
        if given is not None and (read == path or path in read.parents):
            raise WriteError(
                f"{path}: contains the input {given}; choose another folder"
            )
    with scratch_beside(path) as made:
        made.mkdir()
        yield made
        _put_in_place(made, path)


@contextlib.contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """Yield a place for ``path`` in a hidden folder beside it, on the same disk.

    Only this user can read the folder. It is removed at the end, with the parents
    created for it; what killed processes left beside ``path`` is removed first.
    """
    with parents_of(path), contextlib.ExitStack() as held:
        with writing(path):
            clear_scratch(path.parent)
        scratch = _new_scratch(path, held)
        try:
            with writing(path, scratch):
                yield scratch / path.name
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _new_scratch(path: Path, held: contextlib.ExitStack) -> Path:
    """Create a folder that ``clear_scratch`` leaves alone until ``held`` is closed."""
    while True:
        scratch = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.partial"
        with writing(path, scratch):
            scratch.mkdir(mode=0o700)
            # Another process may remove the folder before it is locked.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                held.enter_context(_locked(scratch))
                if scratch.exists():
                    return scratch


def clear_scratch(folder: Path) -> None:
    """Remove what killed processes left in ``folder``.

    A directory that was moved but not yet replaced is restored. Folders that another
    process still uses are left alone.
    """
    for entry in sorted(folder.iterdir()):
        if (match := _SCRATCH.fullmatch(entry.name)) is None:
            continue
        # Busy, removed meanwhile, or of another user: not ours to remove.
        with contextlib.suppress(OSError), _locked(entry):
            if match["what"] == "old" and not (folder / match["name"]).exists():
                entry.rename(folder / match["name"])
            else:
                shutil.rmtree(entry, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; raise ``OSError`` if it is locked. Renaming it keeps the lock."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from None
        yield
    finally:
        os.close(handle)


def write(
    folder: Path,
    kind: str,
    arrays: Mapping[str, NDArray[Any]],
    *,
    meta: Plain,
    origin: Origin,
    schema: int = 1,
) -> None:
    """Write one record into ``folder`` (created if missing), manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        try:
            with (folder / f"{name}.npy").open("wb") as file:
                ordered = np.asarray(array, order="C")
                np.lib.format.write_array(file, ordered, allow_pickle=False)
        except OSError as error:
            if error.errno is not None:
                raise
            # NumPy reports a full disk without an error number.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
    write_manifest(folder, kind, meta=meta, origin=origin, schema=schema)


def write_manifest(
    folder: Path, kind: str, *, meta: Plain, origin: Origin, schema: int = 1
) -> None:
    """Write ``manifest.json``, which lists every file in ``folder``.

    A folder ``PRIVATE`` that has a manifest of its own is left out.

    A folder with files added later is not overwritten, unless their names start
    with one of the prefixes in ``meta["grows"]``.
    """
    inner = folder / PRIVATE
    apart = inner if (inner / MANIFEST).is_file() else None
    files = {
        entry.relative_to(folder).as_posix(): describe(entry)
        for entry in sorted(folder.rglob("*"))
        if entry.is_file() and entry.name != f".{MANIFEST}.partial"
        if entry != folder / MANIFEST and apart not in entry.parents
    }
    content = {
        "format": FORMAT,
        "kind": kind,
        "schema": schema,
        "settings": origin.settings,
        "settings_sha256": fingerprint(origin.settings),
        "seed": origin.seed,
        "versions": dict(origin.versions),
        "meta": meta,
        "files": files,
    }
    content["manifest_sha256"] = _own_digest(json.loads(json_text(content)))
    replace_text(folder / MANIFEST, json_text(content, indent=2) + "\n")


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the contents of a file atomically; a link stays a link.

    ``mode`` are the permissions of the new file, before the umask.
    """
    path = Path(os.path.realpath(path))
    scratch = _scratch_of(path)
    scratch.unlink(missing_ok=True)
    # A link that others planted under this name is not followed.
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    flush(scratch)
    scratch.rename(path)


def _scratch_of(path: Path) -> Path:
    return path.parent / f".{path.name}.partial"


def read(folder: Path, kind: str, *, schema: int = 1) -> Stored:
    """Read the record of ``kind`` in ``folder`` and verify every file.

    Raises ``DataError`` if there is no such record, and ``CorruptFileError``
    if a file is missing or does not match the manifest.
    """
    manifest = read_manifest(folder)
    if manifest["kind"] != kind:
        raise DataError(f"{folder}: holds {manifest['kind']!r}, expected {kind!r}")
    if manifest["schema"] != schema:
        raise DataError(
            f"{folder}: has schema {manifest['schema']} of {kind!r}, "
            f"but this version reads schema {schema}"
        )
    _verify(folder, manifest["files"])
    arrays = {
        name.removesuffix(".npy"): _load_array(folder / name)
        for name in manifest["files"]
        if name.endswith(".npy") and "/" not in name
    }
    origin = Origin(manifest["settings"], manifest["seed"], manifest["versions"])
    meta = _Entries(folder, manifest["meta"])
    return Stored(kind, _Entries(folder, arrays), meta, origin)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of ``folder``; check its own hash, not those of the files."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if not path.is_file():
        raise DataError(f"{folder}: not an epifalcon folder ({MANIFEST} is missing)")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CorruptFileError(f"{path}: cannot be read as JSON: {error}") from None
    expected = {"kind", "schema", "settings", "seed", "versions", "meta", "files"}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: not an epifalcon manifest")
    if missing := expected - content.keys():
        raise CorruptFileError(f"{path}: lacks {', '.join(sorted(missing))}")
    if content.get("manifest_sha256") != _own_digest(content):
        raise CorruptFileError(f"{path}: content does not match its own SHA-256")
    return content


def verify(folder: Path) -> dict[str, Any]:
    """Check every file of ``folder`` against its manifest; return the manifest."""
    manifest = read_manifest(folder)
    _verify(folder, manifest["files"])
    return manifest


def refuse_links(folder: Path) -> None:
    """Raise ``DataError`` if ``folder`` contains a link.

    Whoever made the folder may have planted it, and a command that continues the work
    in the folder would write to where it points.
    """
    if link := next((one for one in folder.rglob("*") if one.is_symlink()), None):
        raise DataError(
            f"{link}: is a link, so that commands would write outside of {folder}; "
            "replace it with what it points to"
        )


def seal(folder: Path, path: Path) -> None:
    """Update the manifest entry of ``path``, a journal that has grown."""
    manifest = read_manifest(folder)
    manifest["files"][path.relative_to(folder).as_posix()] = describe(path)
    manifest["manifest_sha256"] = _own_digest(manifest)
    place = folder / MANIFEST
    with writing(place):
        replace_text(place, json_text(manifest, indent=2) + "\n")


def describe(path: Path) -> dict[str, Any]:
    """Compute the SHA-256 and the size in bytes of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size}


@contextlib.contextmanager
def owner_only(closed: int = 0o077) -> Iterator[None]:
    """Make all files that the process creates readable only by their owner.

    ``closed`` are the permissions that nobody gets, in addition to the umask's.
    """
    before = os.umask(closed)
    os.umask(before | closed)
    try:
        yield
    finally:
        os.umask(before)


def as_private_as(*sources: Path) -> contextlib.AbstractContextManager[None]:
    """Make files readable only by those who can read all of the folders.

    These are the owner, members of the group, and all users. A folder may be a part of
    a run or an import that others cannot read.
    """
    places = {Path(os.path.realpath(source)) for source in sources}
    whole = {p for one in places for p in one.parents if os.path.isfile(p / MANIFEST)}
    modes = [place.stat().st_mode for place in places | whole]
    return owner_only(
        sum(bits for bits in (0o070, 0o007) if not all(mode & bits for mode in modes))
    )


@contextlib.contextmanager
def writing(*paths: Path) -> Iterator[None]:
    """Convert an ``OSError`` about the output ``paths`` to ``WriteError``."""
    path = paths[0]
    try:
        yield
    except OSError as error:
        # A full disk names no file; otherwise the file must relate to the output.
        ours = error.errno in _FULL
        if isinstance(error.filename, str | os.PathLike):
            place = Path(error.filename)
            ours |= place in {*paths, *path.parents, *map(_scratch_of, paths)}
            ours |= not set(paths).isdisjoint(place.parents)
        if isinstance(error, WriteError) or not ours:
            raise
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def parents_of(path: Path) -> Iterator[None]:
    """Create missing parents of ``path``; on exit remove them if still empty."""
    created: list[Path] = []
    try:
        with writing(path):
            for place in reversed([p for p in path.parents if not p.exists()]):
                with contextlib.suppress(FileExistsError):
                    place.mkdir()
                    created.append(place)
        yield
    finally:
        for place in reversed(created):
            with contextlib.suppress(OSError):
                place.rmdir()


def _own_digest(manifest: Plain) -> str:
    """Compute the hash of a manifest without its own hash entry."""
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return fingerprint(rest)


def refuse_occupied(path: Path, overwrite: bool) -> None:
    """Raise ``WriteError`` if ``new_directory`` may not write to ``path``."""
    refuse_shareable(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir():
        raise WriteError(f"{path}: is a file, expected a folder to write into")
    try:
        manifest = read_manifest(path)
    except EpifalconError:
        raise WriteError(
            f"{path}: exists and was not made by epifalcon; choose another folder"
        ) from None
    listed = {MANIFEST, *manifest["files"]}
    grows = tuple(manifest["meta"].get(_GROWS, ()))
    files = (entry for entry in path.rglob("*") if not entry.is_dir())
    names = {entry.relative_to(path).as_posix() for entry in files} - listed
    if unlisted := sorted(name for name in names if not name.startswith(grows)):
        raise WriteError(
            f"{path}: has {unlisted[0]!r}, which is not in its manifest: move it first"
        )
    if not overwrite:
        raise WriteError(f"{path}: exists; choose another folder or add --overwrite")
    if (path / PRIVATE / MANIFEST).is_file():
        refuse_occupied(path / PRIVATE, overwrite)


def refuse_shareable(path: Path) -> None:
    """Raise ``WriteError`` if ``path`` is among the shareable files of a private run.

    Outputs of other commands hold raw data, or would be taken for a part of the run.
    """
    path = Path(os.path.realpath(path))
    for folder in path.parents:
        inner = folder / PRIVATE
        inside = inner in (path, *path.parents)
        if not inside and os.path.isfile(inner / MANIFEST):
            raise WriteError(
                f"{path}: would be among the shareable files of {folder}, but can hold "
                "raw data; choose a place outside of that folder"
            )


def occupant(folder: Path, kind: str) -> dict[str, Any] | None:
    """Return the manifest of the ``kind`` in ``folder``; None if missing or empty."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / MANIFEST).is_file():
        refuse_occupied(folder, overwrite=False)
    manifest = read_manifest(folder)
    refuse_links(folder)
    if manifest["kind"] != kind:
        raise WriteError(
            f"{folder}: holds {manifest['kind']!r}, not a {kind}; choose another folder"
        )
    return manifest


def _put_in_place(scratch: Path, path: Path) -> None:
    for entry in scratch.rglob("*"):
        flush(entry)
    flush(scratch)
    if not path.exists():
        scratch.rename(path)
        flush(path.parent)
        return
    old = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.old"
    with _locked(path):
        path.rename(old)
        try:
            scratch.rename(path)
        except BaseException:
            old.rename(path)
            raise
        flush(path.parent)
        shutil.rmtree(old, ignore_errors=True)


def flush(path: Path) -> None:
    """Sync a file or a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verify(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise CorruptFileError(f"{path}: is missing")
        size = path.stat().st_size
        grown = size > expected["bytes"] and path.suffix == _JOURNAL
        if size != expected["bytes"] and not grown:
            raise CorruptFileError(
                f"{path}: has {size} bytes, expected {expected['bytes']}"
            )
        digest = describe(path)["sha256"]
        if grown:
            with path.open("rb") as file:
                digest = hashlib.sha256(file.read(expected["bytes"])).hexdigest()
        if digest != expected["sha256"]:
            raise CorruptFileError(f"{path}: content does not match its SHA-256")


def _load_array(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except ValueError as error:
        raise CorruptFileError(f"{path}: not a readable array: {error}") from None


def pack_strings(name: str, values: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Convert strings to two arrays: UTF-8 bytes and end offsets."""
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return {f"{name}_text": text, f"{name}_ends": ends}


def unpack_strings(name: str, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """Read the strings that ``pack_strings`` stored under ``name``."""
    text = arrays[f"{name}_text"].tobytes()
    ends = arrays[f"{name}_ends"].tolist()
    starts = [0, *ends][:-1]
    return tuple(
        text[start:end].decode("utf-8", "surrogatepass")
        for start, end in zip(starts, ends, strict=True)
    )
