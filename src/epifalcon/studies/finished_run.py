"""A finished run, opened to be read: every byte checked, hidden labels left alone."""

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.checks import one_of
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.settings import fingerprint, json_text
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.method_folder import LEDGER, PREDICTION
from epifalcon.studies.methods import METHODS, Method, PredictionSettings
from epifalcon.studies.pipeline import CITY, REPORTED
from epifalcon.studies.risks import Risks
from epifalcon.studies.run_folder import METHODS as METHODS_FOLDER
from epifalcon.studies.run_folder import SETTINGS, finished


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run as prediction sees it: what its methods saw, and one of them."""

    folder: Path
    method: Method
    experiment: Experiment
    seed: int
    traces: Traces
    """As reported to the methods."""
    known: Known

    @classmethod
    def open(cls, folder: Path, method: str | None = None) -> "FinishedRun":
        """The run in ``folder``, every byte checked; its own method unless told."""
        if not finished(folder):
            raise DataError(
                f"{folder}: this run is not finished; go on with: epifalcon run "
                f"--resume --out {shlex.quote(str(folder))}"
            )
        seed = _verified(folder)["seed"]
        experiment = Experiment.load(str(folder / SETTINGS))
        reported = folder / REPORTED
        return cls(
            folder=folder,
            method=_chosen(folder, experiment, method),
            experiment=experiment,
            seed=seed,
            traces=Traces.load(reported if reported.is_dir() else folder / CITY),
            known=Known.load(folder / "known"),
        )

    @property
    def place(self) -> Path:
        """Where the method keeps its things."""
        return self.folder / METHODS_FOLDER / self.method

    @property
    def ledger(self) -> Path:
        """Where the method's ledger is kept."""
        return self.place / LEDGER

    @property
    def settings(self) -> PredictionSettings:
        """Of the method."""
        settings = self.experiment.prediction
        return settings.central() if self.method == "hgnn" else settings

    def risks(self) -> Risks:
        """The risks of the run's own people, as its training left them."""
        place = self.place / PREDICTION
        if not place.is_dir():
            raise DataError(
                f"{place}: no such folder: the run was made by an earlier version of "
                "epifalcon; run it again"
            )
        scores = store.read(place, PREDICTION).arrays.get("probability")
        if scores is None or len(scores) != self.traces.people:
            raise CorruptFileError(f"{place}: holds no score for each person")
        return Risks(np.array(scores), self.known.status, self.traces.names)

    def seal_ledger(self) -> None:
        """Put the ledger, which has grown, into the manifest as it is now.

        Whoever is stopped before this has a ledger that is longer than the
        manifest says: ``open`` allows that.
        """
        place = self.folder / store.MANIFEST
        manifest = store.read_manifest(self.folder)
        name = self.ledger.relative_to(self.folder).as_posix()
        manifest["files"][name] = store.describe(self.ledger)
        manifest.pop("manifest_sha256")
        manifest["manifest_sha256"] = fingerprint(manifest)
        with store.writing(place):
            store.replace_text(place, json_text(manifest, indent=2) + "\n")


def _verified(folder: Path) -> dict[str, Any]:
    """The manifest, after every file was checked; ledgers may have grown since.

    What was added to a ledger is vouched for by its own chain.
    """
    manifest = store.read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise CorruptFileError(f"{path}: is missing")
        found = store.describe(path)
        if path.name == LEDGER:
            found = _beginning(path, expected["bytes"])
        if found != expected:
            raise CorruptFileError(f"{path}: content differs from its SHA-256")
    return manifest


def _beginning(path: Path, size: int) -> dict[str, Any]:
    """``store.describe`` of the first ``size`` bytes."""
    with path.open("rb") as file:
        content = file.read(size)
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _chosen(folder: Path, experiment: Experiment, method: str | None) -> Method:
    if method is None:
        return experiment.method
    one_of(METHODS, method=method)
    there = (experiment.method, *experiment.beside)
    if method not in there:
        raise SettingsError(
            f"{folder}: method={method!r} was not run there, only {', '.join(there)}"
        )
    return method
