"""The folder of a run: names, creation, loading, finishing.

First city, outbreak and tests appear in it, atomically; then each method trains in a
folder of its own and leaves checkpoints; plots and report come last. ``open_run`` loads
everything to train on, ``FinishedRun`` what prediction sees: no held-out labels. A
method's folder also holds its results in a comparison: ``Measured`` or ``Failed``, and
``Followed`` of an analysis. Free of torch.
"""

import contextlib
import json
import logging
import shlex
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from epifalcon import store
from epifalcon.epidemic.hidden import Hidden
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.labels import Labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.errors import CorruptFileError, DataError, EpifalconError, SettingsError
from epifalcon.evaluation.metrics import Curve, dep
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.risks import Risks
from epifalcon.experiments.simulation import CITY, REPORTED, Epidemic, Prepared
from epifalcon.federation.settings import PredictionSettings
from epifalcon.methods.registry import entry
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, first_difference, json_text
from epifalcon.types import Floats, Plain

_log = logging.getLogger(__name__)
T = TypeVar("T")
KIND = "run"
COMPARISON = "comparison"
"""Kind of a folder that holds one run per seed."""
KNOWN = "known"
METHODS = "methods"
TABLES = "tables"
SETTINGS = "settings.toml"
SUMMARY = "summary.json"
_REPORT = "report.html"
# Inside the folder of a method:
MEASURED = "measured"
"""The results of a method in a comparison."""
FAILED, _FOUND = "failed.json", "found.json"
_DETAILS = 4000
"""Characters of a traceback that are stored."""
PREDICTION = "prediction"
FIELD_FOLDER, MESSAGES_FOLDER = "field", "messages"
"""Last messages of regions and of people, inside ``PREDICTION``."""
LEDGER = "ledger.jsonl"
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

    @property
    def dropped_slots(self) -> int:
        """Slots of the outbreak before the reported traces begin."""
        return self.prepared.traces.slots - self.reported.slots

    @property
    def tests(self) -> Known:
        """The tests on the clock of the reported traces, which may begin later."""
        return (
            self.known.since(self.dropped_slots) if self.dropped_slots else self.known
        )

    def method_folder(self, method: str) -> Path:
        """Where ``method`` keeps its things."""
        return self.folder / METHODS / method


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
            begun.known.save(scratch / KNOWN, begun.origin)
        else:
            begun.epidemic.save(scratch, begun.origin)
        if begun.reported is not prepared.traces:
            begun.reported.save(scratch / REPORTED, begun.origin)
        text = prepared.experiment.to_toml()
        (scratch / SETTINGS).write_text(text, encoding="utf-8")
        meta = {**_meta(begun), "finished": False, "grows": _LATER}
        store.write_manifest(scratch, KIND, meta=meta, origin=begun.origin)


def require_settings(folder: Path, stored: Plain, experiment: Experiment) -> None:
    """Raise ``SettingsError`` unless ``folder`` was begun with these settings."""
    found = first_difference(stored, as_plain(experiment))
    if found is not None:
        key, before, now = found
        raise SettingsError(
            f"{folder}: was begun with {key}={before!r}, it cannot go on with {now!r}"
        )


def tests_folder(folder: Path) -> Path:
    """Return ``folder``, or the folder of tests inside it where there is one."""
    inner = folder / KNOWN
    return inner if inner.is_dir() else folder


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
    known = Known.load(folder / KNOWN)
    epidemic = None
    if (folder / "hidden").is_dir():
        labels = Labels(known, Hidden.load(folder / "hidden"))
        took = meta.get("outbreak_seconds", 0.0)
        epidemic = Epidemic(seed, Outbreak.load(folder / "outbreak"), labels, took)
    reported = prepared.traces
    if (folder / REPORTED).is_dir():
        reported = Traces.load(folder / REPORTED)
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


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run as prediction sees it: what its methods saw, and one of them."""

    folder: Path
    method: str
    experiment: Experiment
    seed: int
    traces: Traces
    """As reported to the methods."""
    known: Known

    @classmethod
    def open(cls, folder: Path, method: str | None = None) -> "FinishedRun":
        """The run in ``folder``, every byte checked; its own method unless told."""
        if _holds_comparison(folder):
            raise DataError(
                f"{folder}: holds a comparison; name the run of one of its seeds, "
                f"{folder / 'seed-N'}"
            )
        whole = finished(folder)
        seed = store.verify(folder)["seed"]
        experiment = Experiment.load(str(folder / SETTINGS))
        there = [experiment.method, *experiment.beside] if whole else []
        # Those that a comparison has finished, too.
        measured = (folder / METHODS).glob(f"*/{MEASURED}")
        there += sorted(place.parent.name for place in measured)
        if not there:
            raise DataError(f"{folder}: this run is not finished; {_way_on(folder)}")
        method = method or experiment.method
        if method not in there:
            entry(method)
            raise SettingsError(
                f"{folder}: method={method!r} was not run there, only "
                f"{', '.join(dict.fromkeys(there))}: choose one with --method"
            )
        cut = (folder / REPORTED).is_dir()
        return cls(
            folder=folder,
            method=method,
            experiment=experiment,
            seed=seed,
            traces=Traces.load(folder / (REPORTED if cut else CITY)),
            known=Known.load(folder / KNOWN),
        )

    @property
    def place(self) -> Path:
        """Where the method keeps its things."""
        return self.folder / METHODS / self.method

    @property
    def ledger(self) -> Path:
        """Where the method's ledger is kept."""
        return self.place / LEDGER

    @property
    def settings(self) -> PredictionSettings:
        """Of the method."""
        return self.experiment.prediction_of(self.method)

    @property
    def tests(self) -> Known:
        """The run's tests on the clock of the reported traces."""
        dropped = Traces.load(self.folder / CITY).slots - self.traces.slots
        return self.known.since(dropped) if dropped else self.known

    def risks(self) -> Risks:
        """The risks of the run's own people, as its training left them."""
        place = self.place / PREDICTION
        arrays = store.read(place, PREDICTION).arrays
        scores = arrays.get("probability")
        if scores is None or len(scores) != self.traces.people:
            raise CorruptFileError(f"{place}: holds no score for each person")
        more = {
            name: np.array(arrays[name])
            for name in ("now", "now_tested", "low", "high")
            if name in arrays
        }
        return Risks(np.array(scores), self.known.status, self.traces.names, **more)


def _way_on(folder: Path) -> str:
    home = folder.resolve().parent
    if _holds_comparison(home):
        return f"it is of the comparison in {home}: go on with that one"
    return f"go on with: epifalcon run --resume --out {shlex.quote(str(folder))}"


def _holds_comparison(folder: Path) -> bool:
    with contextlib.suppress(EpifalconError):
        return bool(store.read_manifest(folder)["kind"] == COMPARISON)
    return False


SCALINGS: Final = ("raw", "platt", "isotonic")
"""Risks as predicted, and after each way to recalibrate them."""
CALIBRATED: Final = ("brier", "log_loss", "ece")
"""The metrics that recalibration is for."""
RECALLS: Final = np.arange(5, 101) / 100
"""Where precision is stored: below lies the luck of a few people."""
TRAINING: Final = ("learning_rate", "steps", "at_limit")
"""Of the model that was chosen on validation people; ``at_limit`` is True if these are
all the steps allowed. None for what is unknown or not trained."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Figures of one method on the hidden people of one seed of a comparison."""

    title: str
    metrics: Mapping[str, Any]
    """Every field of ``evaluation.metrics.Metrics``, None where undefined."""
    seconds: float
    """Of the fit."""
    cpu_seconds: float | None
    peak_rss_mb: float | None
    """Of the whole process; both None where it found the fit done."""
    recalibrated: Mapping[str, Mapping[str, float]]
    """``CALIBRATED`` by scaling; what could not be fitted is as the raw one."""
    masked: int
    """People on whom the scalings were fitted."""
    left_raw: str | None
    """Why nothing could be fitted."""
    source_sha256: str | None
    """Of the user's file that the method is from."""
    precision: Floats
    """(recalls,) at the highest threshold that reaches each of ``RECALLS``."""
    reliability: Floats
    """(scalings, 3, bins): sum of risks, infected, people, in bins of one width."""
    training: Plain = field(default_factory=lambda: dict.fromkeys(TRAINING))

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record as ``folder / "measured"``, atomically."""
        meta = {key: value for key, value in vars(self).items() if key not in _ARRAYS}
        arrays = {key: getattr(self, key) for key in _ARRAYS}
        with store.new_directory(folder / MEASURED, overwrite=True) as scratch:
            store.write(scratch, MEASURED, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Measured | None":
        """Load the record, every byte checked; None where there is none."""
        place = folder / MEASURED
        if not place.is_dir():
            return None
        stored = store.read(place, MEASURED)
        values: dict[str, Any] = dict(stored.meta)
        values |= {key: np.array(array) for key, array in stored.arrays.items()}
        try:
            return cls(**values)
        except TypeError:
            raise CorruptFileError(
                f"{place}: made by another version of epifalcon; delete it"
            ) from None

    @classmethod
    def sound(cls, folder: Path) -> "Measured | None":
        """Load the record; remove a damaged one, so that it is measured again."""
        try:
            found = cls.load(folder)
            if found is not None and (folder / PREDICTION).is_dir():
                # Its files may be gigabytes: whoever reads them checks them.
                store.read_manifest(folder / PREDICTION)
        except (CorruptFileError, DataError) as error:
            _log.warning("%s; measured again", error)
            with store.writing(folder):
                for damaged in (MEASURED, PREDICTION):
                    shutil.rmtree(folder / damaged, ignore_errors=True)
            return None
        return found


_ARRAYS = ("precision", "reliability")


def precision_at_recalls(ranked: Curve) -> Floats:
    """Return precision at each of ``RECALLS``, as DEP is defined; NaN if undefined."""
    return np.array([float(dep(ranked, recall)) for recall in RECALLS])


@dataclass(frozen=True)
class Failed:
    """Why a method, or the analysis of a run, has no result."""

    message: str
    details: str = ""
    """The last output of the process, for whoever repairs it."""
    source_sha256: str | None = None
    killed: bool = False
    """By a signal: often because memory ran out."""

    def save(self, folder: Path) -> None:
        """Write ``failed.json`` into the method's folder."""
        _save_json(folder, FAILED, vars(self))

    @classmethod
    def of(cls, error: BaseException, source_sha256: str | None = None) -> "Failed":
        """Describe ``error``, which is being handled, with its traceback."""
        message = str(error)
        if not isinstance(error, EpifalconError):
            message = f"{type(error).__name__}: {error}".removesuffix(": ")
        return cls(message, traceback.format_exc()[-_DETAILS:], source_sha256)

    @classmethod
    def load(cls, folder: Path) -> "Failed | None":
        """Load the failure of a method's folder; None where nothing failed."""
        path = folder / FAILED
        if not path.is_file():
            return None
        return _read_json(cls, path) or cls(f"{path}: cannot be read")


@dataclass(frozen=True)
class Followed:
    """The result of a follow-up of a finished run."""

    values: Mapping[str, float | None]
    cpu_seconds: float

    @property
    def figures(self) -> dict[str, float | None]:
        """The values, and what they cost."""
        return {**self.values, "follow_up_cpu_seconds": self.cpu_seconds}

    def save(self, folder: Path) -> None:
        """Write ``found.json`` into ``folder``."""
        _save_json(folder, _FOUND, vars(self))

    @classmethod
    def load(cls, folder: Path) -> "Followed | None":
        """Read ``found.json``; None where it is missing or cannot be read."""
        return _read_json(cls, folder / _FOUND)


def _save_json(folder: Path, name: str, values: Plain) -> None:
    with store.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.replace_text(folder / name, json_text(values, indent=2) + "\n")


def _read_json(cls: type[T], path: Path) -> T | None:
    try:
        return cls(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
