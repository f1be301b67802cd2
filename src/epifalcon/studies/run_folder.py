"""The folder of a run while it is being made: begun, gone on with, finished.

First city, outbreak and labels appear in it, all at once; then each method
trains in a folder of its own and leaves checkpoints; last come pictures and the
report. One process at a time works on it.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from epifalcon import store
from epifalcon.epidemic.hidden import Hidden
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.labels import Labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.errors import DataError, WriteError
from epifalcon.mobility.traces import Traces
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import CITY, REPORTED, Epidemic, Prepared

KIND = "run"
METHODS = "methods"
TABLES = "tables"
SETTINGS = "settings.toml"
SUMMARY = "summary.json"
_REPORT = "report.html"
_LATER = [f"{METHODS}/", "figures/", f"{TABLES}/", _REPORT, SUMMARY] + [
    f".{name}.partial" for name in (SETTINGS, SUMMARY, _REPORT, store.MANIFEST)
]


@dataclass(frozen=True)
class Begun:
    """A run's inputs, as they stand in its folder."""

    folder: Path
    prepared: Prepared
    seed: int
    reported: Traces
    """The traces as methods see them."""
    known: Known
    epidemic: Epidemic | None
    """None where the tests are of real people: nobody knows the truth."""
    threads: int | None = None
    """Of torch when the run was begun: with others its sums round otherwise."""

    @property
    def origin(self) -> store.Origin:
        """What the run says of itself."""
        return self.prepared.origin(self.seed)

    def method_folder(self, method: str) -> Path:
        """Where ``method`` keeps its things."""
        return self.folder / METHODS / method


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process; ``WriteError`` where another has it.

    The lock is a file beside the folder. It ends with the process, however that
    ends. What a killed process left half-made beside the folder is removed.
    """
    folder = Path(os.path.realpath(folder))
    made: list[Path] = []
    path = folder.parent / f".{folder.name}.lock"
    with store.writing(folder, path):
        store.make_parents(folder.parent, made)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    held = False
    try:
        held = _take(handle, path)
        if not held:
            raise WriteError(
                f"{folder}: another process is working on this run; wait for it or "
                "choose another folder"
            )
        with store.writing(folder):
            store.clear_scratch(folder.parent, folder.name)
        yield
    finally:
        if held:
            path.unlink(missing_ok=True)
        os.close(handle)
        for parent in reversed(made):
            # Goes only if it is empty: the run never began.
            with contextlib.suppress(OSError):
                parent.rmdir()


def _take(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it may have removed the file between open and lock.
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    except OSError:
        return False


def begin(
    begun: Begun, *, overwrite: bool = False, inputs: Sequence[Path | None] = ()
) -> None:
    """Make the run's folder, with its inputs and settings in it, at once."""
    prepared = begun.prepared
    with store.new_directory(
        begun.folder, overwrite=overwrite, inputs=inputs
    ) as scratch:
        prepared.traces.save(scratch / CITY, prepared.city_origin)
        if begun.epidemic is None:
            begun.known.save(scratch / "known", begun.origin)
        else:
            begun.epidemic.save(scratch, begun.origin)
        prepared.save_reported(scratch / REPORTED, begun.reported, begun.seed)
        text = prepared.experiment.to_toml()
        (scratch / SETTINGS).write_text(text, encoding="utf-8")
        meta = {**_meta(begun), "finished": False, "grows": _LATER}
        store.write_manifest(scratch, KIND, meta=meta, origin=begun.origin)


def finish(begun: Begun) -> None:
    """Say that the run in its folder is whole."""
    meta = {**_meta(begun), "finished": True}
    store.write_manifest(begun.folder, KIND, meta=meta, origin=begun.origin)


def finished(folder: Path) -> bool:
    """Whether the run in ``folder`` is whole; raises where there is no run."""
    manifest = store.read_manifest(folder)
    if manifest["kind"] != KIND:
        raise DataError(f"{folder}: holds {manifest['kind']!r}, expected a run")
    return bool(manifest["meta"]["finished"])


def open_run(folder: Path) -> Begun:
    """The inputs of the run in ``folder``, every byte of them checked."""
    finished(folder)
    manifest = store.verify(folder)
    meta, seed = manifest["meta"], manifest["seed"]
    city = store.read_manifest(folder / CITY)
    read_from = meta["city_folder"]
    prepared = Prepared(
        name=meta["name"],
        experiment=Experiment.load(str(folder / SETTINGS)),
        traces=Traces.load(folder / CITY),
        city_origin=store.Origin(city["settings"], city["seed"], city["versions"]),
        city_folder=None if read_from is None else Path(read_from),
        seconds=meta["city_seconds"],
    )
    known = Known.load(folder / "known")
    epidemic = None
    if (folder / "hidden").is_dir():
        labels = Labels(known, Hidden.load(folder / "hidden"))
        took = meta.get("outbreak_seconds", 0.0)
        epidemic = Epidemic(seed, Outbreak.load(folder / "outbreak"), labels, took)
    told = folder / REPORTED
    reported = Traces.load(told) if told.is_dir() else prepared.traces
    threads = meta.get("threads")
    return Begun(folder, prepared, seed, reported, known, epidemic, threads)


def _meta(begun: Begun) -> dict[str, object]:
    prepared = begun.prepared
    place = prepared.city_folder
    return {
        "name": prepared.name,
        "city_folder": None if place is None else str(place),
        "city_seconds": prepared.seconds,
        "outbreak_seconds": None if begun.epidemic is None else begun.epidemic.seconds,
        "threads": begun.threads,
    }
