"""Results of one method in one run of a comparison, in the method's folder.

``measured`` of a process that succeeded, ``failed.json`` of one that failed. Tables
and figures of a comparison read nothing else. Free of torch.
"""

import hashlib
import json
import logging
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, EpifalconError
from epifalcon.evaluation.metrics import (
    Curve,
    brier,
    calibration_error,
    dep,
    log_loss,
    sums_by_bin,
)
from epifalcon.experiments.run_folder import MEASURED, PREDICTION
from epifalcon.methods.registry import entry, names
from epifalcon.settings import json_text
from epifalcon.types import Floats, Plain

_log = logging.getLogger(__name__)
FAILED = "failed.json"
FOUND = "found.json"
SCALINGS: Final = ("raw", "platt", "isotonic")
"""Risks as told, and after each way to recalibrate them."""
CALIBRATED: Final = ("brier", "log_loss", "ece")
"""The metrics that recalibration is for."""
RECALLS: Final = np.arange(5, 101) / 100
"""Where precision is kept: below lies the luck of a few people."""
BINS: Final = 20
_DETAILS = 4000
"""Characters of a traceback that are stored."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a method was trained in one run; None for what is unknown or not trained."""

    learning_rate: float | None = None
    """Chosen on the validation people."""
    steps: int | None = None
    """Training steps, or rounds, of the model that was chosen."""
    at_limit: bool | None = None
    """True if these are all the steps allowed: more might have been better."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Training":
        """Read the fields from ``values``, where other keys are ignored."""
        return cls(**{key: values.get(key) for key in TRAINING})


TRAINING: Final = tuple(one.name for one in fields(Training))
"""Names of the columns that tables have for ``Training``."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Figures of one method on the hidden people of one seed."""

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
    training: Training = Training()

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record as ``folder / "measured"``, at once."""
        meta = {key: value for key, value in vars(self).items() if key not in _ARRAYS}
        meta["training"] = vars(self.training)
        arrays = {key: getattr(self, key) for key in _ARRAYS}
        with store.new_directory(folder / MEASURED, overwrite=True) as scratch:
            store.write(scratch, MEASURED, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Measured | None":
        """The record in a method's folder, every byte checked; None without one."""
        place = folder / MEASURED
        if not place.is_dir():
            return None
        kept = store.read(place, MEASURED)
        values: dict[str, Any] = dict(kept.meta)
        values |= {key: np.array(array) for key, array in kept.arrays.items()}
        try:
            values["training"] = Training.of(values.get("training") or {})
            return cls(**values)
        except (TypeError, KeyError):
            raise CorruptFileError(
                f"{place}: made by another version of epifalcon; delete it"
            ) from None

    @classmethod
    def sound(cls, folder: Path) -> "Measured | None":
        """The same; a damaged record is thrown away, so that it is made again.

        So is one whose prediction has a damaged manifest: epsilons are read from there.
        """
        try:
            found = cls.load(folder)
            if found is not None and (folder / PREDICTION).is_dir():
                # Its files are left to those who read them: they may be gigabytes.
                store.read_manifest(folder / PREDICTION)
        except (CorruptFileError, DataError) as error:
            _log.warning("%s; measured again", error)
            with store.writing(folder):
                for damaged in (MEASURED, PREDICTION):
                    shutil.rmtree(folder / damaged, ignore_errors=True)
            return None
        return found


_ARRAYS = ("precision", "reliability")


@dataclass(frozen=True)
class Failed:
    """Why a method has no figures for a seed."""

    message: str
    details: str = ""
    """What the process told at its end, for whoever mends it."""
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
        """What stands in a method's folder; None where nothing failed."""
        path = folder / FAILED
        if not path.is_file():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, OSError, TypeError):
            return cls(f"{path}: cannot be read")


@dataclass(frozen=True)
class Followed:
    """The result of a follow-up of a finished run."""

    values: Mapping[str, float | None]
    cpu_seconds: float

    def save(self, folder: Path) -> None:
        """Write ``found.json`` into ``folder``."""
        _save_json(folder, FOUND, vars(self))

    @classmethod
    def load(cls, folder: Path) -> "Followed | None":
        """Read ``found.json``; None where it is missing or cannot be read."""
        try:
            return cls(**json.loads((folder / FOUND).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def _save_json(folder: Path, name: str, values: Plain) -> None:
    with store.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.replace_text(folder / name, json_text(values, indent=2) + "\n")


def source_sha256(method: str, sources: Sequence[Path]) -> str | None:
    """The hash of the user's file that registered ``method``; None for ours."""
    if method not in names():
        return None
    module = sys.modules.get(entry(method).target.partition(":")[0])
    home = getattr(module, "__file__", None)
    for source in sources:
        if home is not None and source.resolve() == Path(home).resolve():
            return hashlib.sha256(source.read_bytes()).hexdigest()
    return None


def precision_at_recalls(ranked: Curve) -> Floats:
    """Precision at each of ``RECALLS``, as DEP is defined; NaN without infected."""
    return np.array([float(dep(ranked, recall)) for recall in RECALLS])


def calibrated_figures(ranked: Curve, bins: int) -> dict[str, float]:
    """``CALIBRATED`` of one ranking whose scores are risks."""
    return {
        "brier": brier(ranked),
        "log_loss": log_loss(ranked),
        "ece": calibration_error(ranked, bins, "width"),
    }


def reliability_sums(ranked: Curve) -> Floats:
    """Sum of risks, infected and people in each bin: (3, bins).

    Sums, because those of several seeds can be added.
    """
    return sums_by_bin(ranked, BINS, "width")
