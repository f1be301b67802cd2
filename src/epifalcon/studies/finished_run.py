"""A finished run, opened to be read: every byte checked, hidden labels left alone."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epifalcon import store
from epifalcon.baselines.catalogue import entry
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.method_folder import LEDGER, PREDICTION
from epifalcon.studies.methods import PredictionSettings
from epifalcon.studies.pipeline import CITY, REPORTED
from epifalcon.studies.risks import Risks
from epifalcon.studies.run_folder import METHODS as METHODS_FOLDER
from epifalcon.studies.run_folder import SETTINGS, finished


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
        if not finished(folder):
            raise DataError(
                f"{folder}: this run is not finished; go on with: epifalcon run "
                f"--resume --out {shlex.quote(str(folder))}"
            )
        seed = store.verify(folder)["seed"]
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


def _chosen(folder: Path, experiment: Experiment, method: str | None) -> str:
    if method is None:
        return experiment.method
    entry(method)
    there = (experiment.method, *experiment.beside)
    if method not in there:
        raise SettingsError(
            f"{folder}: method={method!r} was not run there, only {', '.join(there)}"
        )
    return method
