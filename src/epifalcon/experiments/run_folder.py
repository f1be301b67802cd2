"""The folder of a run: names, creation, loading, finishing.

City, outbreak and tests are written first, atomically. Each method then trains in its
own folder, with checkpoints; plots and report are written last. A private run has all
this in the folder ``private``; only values that may be shared are beside it.
``open_run`` loads all inputs, ``FinishedRun`` only those of prediction, without
held-out labels. The folder of a method also stores its results in a comparison
(``MethodResult`` or ``MethodFailure``) and the result of a follow-up
(``FollowUpResult``). Does not import torch.
"""

import contextlib
import json
import logging
import shlex
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from epifalcon import store
from epifalcon.epidemic.ground_truth import GroundTruth
from epifalcon.epidemic.labels import Labels
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.risk_table import OPTIONAL, Risks
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import CorruptFileError, DataError, EpifalconError, SettingsError
from epifalcon.evaluation.metrics import RankingCurve, dep
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import (
    CITY,
    HIDDEN,
    KNOWN,
    OUTBREAK,
    REPORTED,
    CityInputs,
    Epidemic,
    find_folder,
    prepare,
    simulated_on_real_people,
)
from epifalcon.federation.settings import PredictionSettings
from epifalcon.methods.registry import entry
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.mobility.traces import Traces
from epifalcon.settings import as_plain, first_difference, json_text
from epifalcon.streams import NOISE_SECRET, PRIVATE, derived_secret, noise_secret
from epifalcon.types import Floats, Plain

_log = logging.getLogger(__name__)
T = TypeVar("T")
KIND = "run"
COMPARISON = "comparison"
"""Kind of a folder that holds one run per seed."""
METHODS = "methods"
TABLES = "tables"
SETTINGS = "settings.toml"
SUMMARY = "summary.json"
REPORT = "report.html"
RISKS = "risks.csv"
"""Risks of everybody, in runs on test results of real people."""
# Inside the folder of a method:
_RESULT = "measured"
"""The results of a method in a comparison."""
FAILED, _FOUND = "failed.json", "found.json"
_DETAILS = 4000
"""Characters of a traceback that are stored."""
PREDICTION = "prediction"
FIELD_FOLDER, MESSAGES_FOLDER = "field", "messages"
"""Last messages of regions and of people, inside ``PREDICTION``."""
LEDGER = "ledger.jsonl"
_LATER = [f"{METHODS}/", "figures/", f"{TABLES}/", REPORT, RISKS, SUMMARY] + [
    f".{name}.partial" for name in (SETTINGS, SUMMARY, REPORT, RISKS, store.MANIFEST)
]


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run, as stored in its folder."""

    folder: Path
    prepared: CityInputs
    seed: int
    reported: Traces
    """The traces as methods see them."""
    known: TestResults
    epidemic: Epidemic | None
    """None if the tests are of real people, so that the truth is unknown."""
    threads: int | None = None
    """Threads of torch when the run was created; they affect rounding of sums."""
    insecure_seed: bool = False
    """True if privacy noise comes from ``seed``: the results are NOT PRIVATE."""
    shareable: Path | None = None
    """Parent of ``folder`` in a private run, for outputs without exact values."""

    @property
    def origin(self) -> store.Origin:
        """Settings, seed and versions for manifests."""
        return self.prepared.origin(self.seed)

    @property
    def dropped_slots(self) -> int:
        """Number of slots of the outbreak before the reported traces start."""
        return self.prepared.traces.slots - self.reported.slots

    @property
    def tests(self) -> TestResults:
        """The tests on the clock of the reported traces, which may start later."""
        return self.known.since(self.dropped_slots)

    @property
    def simulated_on_real_people(self) -> bool:
        """True if outbreak and tests are simulated, but the traces are not."""
        return self.epidemic is not None and self.prepared.is_imported

    @property
    def out(self) -> Path:
        """Folder of the run as the user gave it."""
        return self.shareable or self.folder

    @property
    def draws_noise(self) -> bool:
        """True if any method of the run adds privacy noise."""
        experiment = self.prepared.experiment
        methods = (experiment.method, *experiment.beside)
        return any(map(experiment.is_private, methods))

    def method_folder(self, method: str) -> Path:
        """Return the folder of ``method``."""
        return self.folder / METHODS / method


def create_run_folder(
    inputs: RunInputs, *, overwrite: bool = False, sources: Sequence[Path | None] = ()
) -> None:
    """Create the run folder with inputs and settings, atomically.

    ``sources`` are folders that were read and must not be overwritten.
    """
    with store.new_directory(
        inputs.out, overwrite=overwrite, inputs=sources
    ) as scratch:
        if inputs.draws_noise and not inputs.insecure_seed:
            noise_secret(scratch)
        if inputs.shareable is None:
            _write_inputs(inputs, scratch)
            return
        with store.owner_only():
            (scratch / PRIVATE).mkdir(exist_ok=True)
            _write_inputs(inputs, scratch / PRIVATE)
        settings = inputs.prepared.experiment.to_toml()
        (scratch / SETTINGS).write_text(settings, encoding="utf-8")
        write_shareable_manifest(inputs, scratch, _LATER)


def write_shareable_manifest(
    inputs: RunInputs, folder: Path, later: Sequence[str] = ()
) -> None:
    """Write the manifest of the shareable files, without hashes of raw data."""
    origin = store.Origin.now(as_plain(inputs.prepared.experiment), inputs.seed)
    meta = {"grows": [f"{PRIVATE}/", *later]}
    store.write_manifest(folder, KIND, meta=meta, origin=origin)


def _write_inputs(inputs: RunInputs, scratch: Path) -> None:
    prepared = inputs.prepared
    prepared.traces.save(scratch / CITY, prepared.city_origin)
    if inputs.epidemic is None:
        inputs.known.save(scratch / KNOWN, inputs.origin)
    else:
        inputs.epidemic.save(scratch, inputs.origin)
    if inputs.reported is not prepared.traces:
        inputs.reported.save(scratch / REPORTED, inputs.origin)
    text = prepared.experiment.to_toml()
    (scratch / SETTINGS).write_text(text, encoding="utf-8")
    meta = {**_meta(inputs), "finished": False, "grows": _LATER}
    store.write_manifest(scratch, KIND, meta=meta, origin=inputs.origin)


def require_settings(folder: Path, stored: Plain, experiment: Experiment) -> None:
    """Raise ``SettingsError`` unless ``folder`` was created with these settings."""
    # Older settings may have older names of keys.
    current = as_plain(Experiment.load(stored))
    difference = first_difference(current, as_plain(experiment))
    if difference is not None:
        key, before, now = difference
        raise SettingsError(
            f"{folder}: was created with {key}={before!r}; it cannot continue with "
            f"{now!r}"
        )


def finish(inputs: RunInputs) -> None:
    """Mark the run as finished in its manifest."""
    meta = {**_meta(inputs), "finished": True}
    store.write_manifest(inputs.folder, KIND, meta=meta, origin=inputs.origin)


def data_folder(folder: Path) -> Path:
    """Return the folder with all data of a run: ``private`` inside a private run."""
    inner = folder / PRIVATE
    return inner if (inner / store.MANIFEST).is_file() else folder


def finished(folder: Path) -> bool:
    """Return True if the run in ``folder`` is finished; raise if there is no run."""
    manifest = store.read_manifest(data_folder(folder))
    if manifest["kind"] != KIND:
        raise DataError(f"{folder}: holds {manifest['kind']!r}, expected a run")
    if "finished" not in manifest["meta"]:
        raise DataError(
            f"{folder}: holds only the shareable files of a private run; commands need "
            f"its folder {PRIVATE} too"
        )
    return bool(manifest["meta"]["finished"])


def open_run(folder: Path) -> RunInputs:
    """Load the inputs of the run in ``folder`` and verify their checksums."""
    finished(folder)
    folder = data_folder(folder)
    manifest = store.verify(folder)
    meta, seed = manifest["meta"], manifest["seed"]
    store.refuse_links(folder.parent if meta.get("private") else folder)
    experiment, read_from = Experiment.load(str(folder / SETTINGS)), meta["city_folder"]
    prepared = replace(
        prepare(meta["name"], experiment, seed, folder=folder),
        city_folder=None if read_from is None else Path(read_from),
        seconds=meta["city_seconds"],
    )
    known = TestResults.load(folder / KNOWN)
    epidemic = None
    if (folder / HIDDEN).is_dir():
        labels = Labels(known, GroundTruth.load(folder / HIDDEN))
        seconds = meta.get("outbreak_seconds", 0.0)
        epidemic = Epidemic(seed, Outbreak.load(folder / OUTBREAK), labels, seconds)
    reported = prepared.traces
    if (folder / REPORTED).is_dir():
        reported = Traces.load(folder / REPORTED)
    return RunInputs(
        folder,
        prepared,
        seed,
        reported,
        known,
        epidemic,
        meta.get("threads"),
        meta.get("insecure_seed", True),
        folder.parent if meta.get("private") else None,
    )


def secret_of_noise(folder: Path, method: str) -> int | None:
    """Return the secret of the noise of a method; None if the run has none.

    A run has a secret if any of its methods adds noise, unless the noise comes from
    the seed.
    """
    if not (folder / PRIVATE / NOISE_SECRET).is_file():
        return None
    return derived_secret(noise_secret(folder), method)


def _meta(run: RunInputs) -> dict[str, object]:
    prepared = run.prepared
    city = prepared.city_folder
    return {
        "name": prepared.name,
        "city_folder": None if city is None else str(city),
        "city_seconds": prepared.seconds,
        "outbreak_seconds": None if run.epidemic is None else run.epidemic.seconds,
        "threads": run.threads,
        "insecure_seed": run.insecure_seed,
        **({} if run.shareable is None else {"private": True}),
    }


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """Inputs and one method of a finished run, for prediction."""

    folder: Path
    method: str
    experiment: Experiment
    seed: int
    traces: Traces
    """Reported traces, as methods see them."""
    known: TestResults
    insecure_seed: bool = False
    """True if privacy noise came from ``seed``, as in all runs of older versions."""
    simulated_on_real_people: bool = False

    @classmethod
    def open(cls, folder: Path, method: str | None = None) -> "FinishedRun":
        """Open the run in ``folder``; ``method`` defaults to the run's own."""
        if _holds_comparison(folder):
            raise DataError(
                f"{folder}: holds a comparison; choose the run of one seed, "
                f"{folder / 'seed-N'}"
            )
        is_finished, data = finished(folder), data_folder(folder)
        store.refuse_links(folder)
        manifest = store.verify(data)
        experiment = Experiment.load(str(data / SETTINGS))
        methods = [experiment.method, *experiment.beside] if is_finished else []
        # Also those that a comparison has finished.
        results = (data / METHODS).glob(f"*/{_RESULT}")
        methods += sorted(path.parent.name for path in results)
        if not methods:
            hint = f"resume with: {resume_command(folder)}"
            if _holds_comparison(parent := folder.resolve().parent):
                hint = f"it belongs to the comparison in {parent}: resume that one"
            raise DataError(f"{folder}: this run is not finished; {hint}")
        method = method or experiment.method
        if method not in methods:
            entry(method)
            raise SettingsError(
                f"{folder}: has no results of method={method!r}, only of "
                f"{', '.join(dict.fromkeys(methods))}: choose one with --method"
            )
        return cls(
            folder=folder,
            method=method,
            experiment=experiment,
            seed=manifest["seed"],
            traces=Traces.load(find_folder(data, REPORTED, CITY)),
            known=TestResults.load(data / KNOWN),
            insecure_seed=manifest["meta"].get("insecure_seed", True),
            simulated_on_real_people=simulated_on_real_people(data),
        )

    @property
    def secret(self) -> int | None:
        """Secret of the method's noise; None if the noise came from the seed."""
        return secret_of_noise(self.folder, self.method)

    @property
    def data(self) -> Path:
        """Folder with all data of the run."""
        return data_folder(self.folder)

    @property
    def is_private(self) -> bool:
        """True if the data must not be shared, unlike the rest of ``folder``."""
        return self.data != self.folder

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """Make files readable only by their owner if the data of the run are."""
        return store.owner_only() if self.is_private else store.as_private_as(self.data)

    @property
    def place(self) -> Path:
        """Folder of the method."""
        return self.data / METHODS / self.method

    @property
    def ledger(self) -> Path:
        """Path of the method's ledger."""
        return self.place / LEDGER

    @property
    def settings(self) -> PredictionSettings:
        """Settings of the method."""
        return self.experiment.prediction_of(self.method)

    @property
    def tests(self) -> TestResults:
        """The run's tests on the clock of the reported traces."""
        dropped = Traces.load(self.data / CITY).slots - self.traces.slots
        return self.known.since(dropped)

    def risks(self) -> Risks:
        """Return the stored risks of the run's own people."""
        place = self.place / PREDICTION
        arrays = store.read(place, PREDICTION).arrays
        scores = arrays.get("probability")
        if scores is None or len(scores) != self.traces.people:
            raise CorruptFileError(f"{place}: does not hold one score per person")
        more = {name: np.array(arrays[name]) for name in OPTIONAL if name in arrays}
        return Risks(
            np.array(scores),
            self.known.status,
            self.traces.names,
            simulated_on_real_people=self.simulated_on_real_people,
            coverage=TraceCoverage.of(self.traces),
            **more,
        )


def resume_command(folder: Path) -> str:
    """Return the command that continues the run in ``folder``."""
    return f"epifalcon run --resume --out {shlex.quote(str(folder))}"


def _holds_comparison(folder: Path) -> bool:
    with contextlib.suppress(EpifalconError):
        return bool(store.read_manifest(folder)["kind"] == COMPARISON)
    return False


SCALINGS: Final = ("raw", "platt", "isotonic")
"""Risks as predicted, and recalibrated by each method."""
CALIBRATED: Final = ("brier", "log_loss", "ece")
"""Metrics of calibration."""
RECALLS: Final = np.arange(5, 101) / 100
"""Recalls at which precision is stored; at lower ones it rests on few people."""
TRAINING: Final = ("learning_rate", "steps", "at_limit")
"""Values of the model selected on validation people; ``at_limit`` is True if it used
all allowed steps. None if unknown or not trained."""


@dataclass(frozen=True, eq=False)
class MethodResult:
    """Results of one method on the hidden people of one seed of a comparison."""

    title: str
    metrics: Mapping[str, Any]
    """All fields of ``evaluation.metrics.Metrics``; None if undefined."""
    seconds: float
    """Duration of the fit."""
    cpu_seconds: float | None
    peak_rss_mb: float | None
    """Of the whole process; both are None if the fit was loaded."""
    recalibrated: Mapping[str, Mapping[str, float]]
    """``CALIBRATED`` by scaling; equal to the raw ones if nothing was fitted."""
    masked: int
    """Number of people on whom the scalings were fitted."""
    left_raw: str | None
    """Reason why no scaling was fitted."""
    source_sha256: str | None
    """Hash of the user's file that defines the method."""
    precision: Floats
    """(recalls,) precision at the highest threshold with each of ``RECALLS``."""
    reliability: Floats
    """(scalings, 3, bins): sum of risks, infected, people, in bins of equal width."""
    training: Plain = field(default_factory=lambda: dict.fromkeys(TRAINING))

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record as ``folder / "measured"``, atomically."""
        meta = {key: value for key, value in vars(self).items() if key not in _ARRAYS}
        arrays = {key: getattr(self, key) for key in _ARRAYS}
        with store.new_directory(folder / _RESULT, overwrite=True) as scratch:
            store.write(scratch, _RESULT, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "MethodResult | None":
        """Load the record and verify its checksums; None if there is none."""
        place = folder / _RESULT
        if not place.is_dir():
            return None
        stored = store.read(place, _RESULT)
        values: dict[str, Any] = dict(stored.meta)
        values |= {key: np.array(array) for key, array in stored.arrays.items()}
        try:
            return cls(**values)
        except TypeError:
            raise CorruptFileError(
                f"{place}: made by another version of epifalcon; delete it"
            ) from None

    @classmethod
    def sound(cls, folder: Path) -> "MethodResult | None":
        """Load the record; delete a damaged one, so that it is measured again."""
        try:
            record = cls.load(folder)
            if record is not None and (folder / PREDICTION).is_dir():
                # Arrays can be gigabytes: their checksums are verified when read.
                store.read_manifest(folder / PREDICTION)
        except (CorruptFileError, DataError) as error:
            _log.warning("%s; measured again", error)
            with store.writing(folder):
                for damaged in (_RESULT, PREDICTION):
                    shutil.rmtree(folder / damaged, ignore_errors=True)
            return None
        return record


_ARRAYS = ("precision", "reliability")


def precision_at_recalls(ranked: RankingCurve) -> Floats:
    """Return precision at each of ``RECALLS``, as DEP is defined; NaN if undefined."""
    return np.array([float(dep(ranked, recall)) for recall in RECALLS])


@dataclass(frozen=True)
class MethodFailure:
    """Reason why a method, or the analysis of a run, has no result."""

    message: str
    details: str = ""
    """The end of the traceback or of the process output."""
    source_sha256: str | None = None
    killed: bool = False
    """True if ended by a signal, often for lack of memory."""

    def save(self, folder: Path) -> None:
        """Write ``failed.json`` into the method's folder."""
        _save_json(folder, FAILED, vars(self))

    @classmethod
    def of(
        cls, error: BaseException, source_sha256: str | None = None
    ) -> "MethodFailure":
        """Describe ``error``, which is being handled, with its traceback."""
        message = str(error)
        if not isinstance(error, EpifalconError):
            message = f"{type(error).__name__}: {error}".removesuffix(": ")
        return cls(message, traceback.format_exc()[-_DETAILS:], source_sha256)

    @classmethod
    def load(cls, folder: Path) -> "MethodFailure | None":
        """Load the failure in a method's folder; None if there is none."""
        path = folder / FAILED
        if not path.is_file():
            return None
        return _read_json(cls, path) or cls(f"{path}: cannot be read")


@dataclass(frozen=True)
class FollowUpResult:
    """The result of a follow-up of a finished run."""

    values: Mapping[str, float | None]
    cpu_seconds: float

    @property
    def row_values(self) -> dict[str, float | None]:
        """Values of a row of the study table, including the CPU seconds."""
        return {**self.values, "follow_up_cpu_seconds": self.cpu_seconds}

    def save(self, folder: Path) -> None:
        """Write ``found.json`` into ``folder``."""
        _save_json(folder, _FOUND, vars(self))

    @classmethod
    def load(cls, folder: Path) -> "FollowUpResult | None":
        """Read ``found.json``; None if it is missing or cannot be read."""
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
