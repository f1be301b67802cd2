"""A finished run, opened to be read: every byte checked, hidden labels left alone.

The runs of a comparison stay open for more methods; there a method that was
measured is finished.
"""

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epifalcon import store
from epifalcon.baselines.catalogue import entry
from epifalcon.epidemic.known import Known
from epifalcon.errors import (
    CorruptFileError,
    DataError,
    EpifalconError,
    SettingsError,
)
from epifalcon.federation.settings import PredictionSettings
from epifalcon.mobility.traces import Traces
from epifalcon.studies.comparison_plan import KIND as COMPARISON
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.measurements import MEASURED
from epifalcon.studies.method_folder import LEDGER, PREDICTION
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
        if _holds_comparison(folder):
            raise DataError(
                f"{folder}: holds a comparison; name the run of one of its seeds, "
                f"{folder / 'seed-N'}"
            )
        whole = finished(folder)
        seed = store.verify(folder)["seed"]
        experiment = Experiment.load(str(folder / SETTINGS))
        there = (experiment.method, *experiment.beside) if whole else ()
        there = tuple(dict.fromkeys((*there, *_measured(folder))))
        if not there:
            raise DataError(f"{folder}: this run is not finished; {_way_on(folder)}")
        reported = folder / REPORTED
        return cls(
            folder=folder,
            method=_chosen(folder, method or experiment.method, there),
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

    @property
    def tests(self) -> Known:
        """The run's tests on the clock of the reported traces."""
        dropped = Traces.load(self.folder / CITY).slots - self.traces.slots
        return self.known.since(dropped) if dropped else self.known

    def risks(self) -> Risks:
        """The risks of the run's own people, as its training left them."""
        place = self.place / PREDICTION
        if not place.is_dir():
            raise DataError(
                f"{place}: no such folder: the run was made by an earlier version of "
                "epifalcon; run it again"
            )
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


def _measured(folder: Path) -> list[str]:
    """The methods that a comparison has finished there.

    Figures that were adopted from elsewhere are no finished run.
    """
    places = (folder / METHODS_FOLDER).glob(f"*/{MEASURED}")
    return sorted(
        place.parent.name for place in places if (place.parent / PREDICTION).is_dir()
    )


def _chosen(folder: Path, method: str, there: tuple[str, ...]) -> str:
    if method not in there:
        entry(method)
        raise SettingsError(
            f"{folder}: method={method!r} was not run there, only {', '.join(there)}: "
            "choose one with --method"
        )
    return method


def _way_on(folder: Path) -> str:
    home = folder.resolve().parent
    if _holds_comparison(home):
        return f"it is of the comparison in {home}: go on with that one"
    return f"go on with: epifalcon run --resume --out {shlex.quote(str(folder))}"


def _holds_comparison(folder: Path) -> bool:
    with contextlib.suppress(EpifalconError):
        return bool(store.read_manifest(folder)["kind"] == COMPARISON)
    return False
