"""Run methods on what a run knows, and judge them by what it hides."""

import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from epifalcon import store
from epifalcon.baselines.catalogue import entry
from epifalcon.epidemic.cases import all_cases
from epifalcon.errors import (
    CorruptFileError,
    EpifalconError,
    StoppedError,
    WriteError,
)
from epifalcon.evaluation.metrics import Metrics, evaluate
from epifalcon.federation.settings import PredictionSettings
from epifalcon.models.threads import threads
from epifalcon.progress import Progress
from epifalcon.studies import fitting, rivals
from epifalcon.studies.features import Selection, Task, validation_people
from epifalcon.studies.fitting import Desk, Prediction, fit
from epifalcon.studies.measurements import FAILED, Failed
from epifalcon.studies.methods import FALCONS, FIELD
from epifalcon.studies.run_folder import Begun, finished
from epifalcon.types import PersonIds, Probabilities

_DETAILS = 4000
"""Characters kept of what a failing method told."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One method's scores, and how good they are."""

    method: str
    probability: Probabilities
    """(people,)"""
    metrics: Metrics | None
    """On hidden people; None where nobody is hidden."""
    seconds: float
    settings: PredictionSettings | None = None
    """Of Falcon and HGNN."""
    trained: Prediction | None = None
    masked: PersonIds | None = None
    """(masked people,) tested, but unseen by what made ``masked_risk``."""
    masked_risk: Probabilities | None = None
    """(masked people,)"""
    told: dict[str, Any] = field(default_factory=dict)
    """Of other methods: what they say of themselves."""

    @property
    def title(self) -> str:
        """The method as tables call it, with what must be said of it."""
        title = entry(self.method).title
        if self.method == FIELD and self.spent is not None:
            title = f"{title}, {self.spent['mode']}"
        if self.settings is None:
            return title
        if self.method != "falcon":
            return title + _marks(self.settings)
        title = f"{title}, {self.settings.privacy.mode}"
        return title + _marks(self.settings)

    @property
    def spent(self) -> dict[str, Any] | None:
        """``spent_figures`` of what left devices; None where nothing is promised."""
        if self.trained is not None:
            return self.trained.spent
        return self.told.get("spent")

    def as_plain(self) -> dict[str, Any]:
        """The figures for JSON."""
        plain: dict[str, Any] = {
            "method": self.method,
            "metrics": None if self.metrics is None else self.metrics.as_plain(),
            "seconds": self.seconds,
        }
        if self.settings is None or self.trained is None:
            return plain | ({"told": self.told} if self.told else {})
        trained = self.trained
        return plain | {
            "macro_cases": self.settings.macro_cases,
            "selected_on": self.settings.stopping.selected_on,
            "learning_rate": trained.learning_rate,
            "best_round": trained.best_round,
            "rounds": trained.looks[-1].round,
            "validation_auc": trained.validation_auc,
            "seconds_per_round": trained.seconds_per_round,
            **trained.spent,
            "forecast": trained.forecast,
        }


def _marks(settings: PredictionSettings) -> str:
    """What a title must say of settings that show a method its test people."""
    marks = ["ALL CASES"] if settings.macro_cases == "all" else []
    if settings.stopping.selected_on == "test":
        marks.append("selected on test people")
    return f" ({', '.join(marks)})" if marks else ""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who listens to the training of methods, and how often it is kept."""

    progress: Progress
    checkpoint_seconds: float
    log: bool = False
    """Whether to write a log that TensorBoard reads."""


def run_method(begun: Begun, method: str, listeners: Listeners) -> Outcome:
    """Train or compute ``method`` in the run's folder, then judge it.

    A method that has ended before is read, one that was begun is gone on with,
    with as many threads as the run was begun with.
    """
    folder = begun.method_folder(method)
    with store.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.clear_scratch(folder)
    with threads(begun.threads or threads_now()):
        if method not in FALCONS:
            return _rival(begun, method, listeners)
        task = _task(begun, method)
        trained = _fit(task, folder, method, listeners)
    people = validation_people(task)
    return Outcome(
        method,
        trained.probability,
        judge(begun, trained.probability, entry(method).title),
        trained.seconds,
        task.settings,
        trained,
        people if len(people) else None,
        trained.probability[people] if len(people) else None,
    )


def run_guest(begun: Begun, method: str, listeners: Listeners) -> Outcome | Failed:
    """``run_method`` of a method beside the run's own: its failure is told, not raised.

    What stops every method (a full disk, an interruption) is raised. A finished run
    keeps what was told; an unfinished one tries again.
    """
    place = begun.method_folder(method)
    if finished(begun.folder) and (told := Failed.load(place)) is not None:
        return told
    try:
        outcome = run_method(begun, method, listeners)
    except (WriteError, StoppedError, CorruptFileError):
        raise
    except Exception as error:
        why = str(error)
        if not isinstance(error, EpifalconError):
            why = f"{type(error).__name__}: {error}"
        failed = Failed(why, traceback.format_exc()[-_DETAILS:])
        failed.save(place)
        return failed
    (place / FAILED).unlink(missing_ok=True)
    return outcome


def threads_now() -> int:
    """How many threads torch adds up with: part of what decides the last bits."""
    return torch.get_num_threads()


def require_possible(begun: Begun) -> None:
    """Raise now what any method of the run would raise of its tests and settings."""
    experiment = begun.prepared.experiment
    for method in (experiment.method, *experiment.beside):
        if method in FALCONS:
            fitting.require_possible(_task(begun, method))
        else:
            rivals.require_possible(begun, method)


def _task(begun: Begun, method: str) -> Task:
    settings = begun.prepared.experiment.prediction
    if method == "hgnn":
        settings = settings.central()
    cases = None
    if settings.macro_cases == "all" and begun.epidemic is not None:
        measure = settings.region.cases.measure
        found = all_cases(begun.epidemic.outbreak, begun.prepared.traces, measure)
        cases = found.by_region_and_day[:, -begun.reported.clock.days :]
    chosen_by = None
    if settings.stopping.selected_on == "test" and begun.epidemic is not None:
        truth = begun.epidemic.labels.hidden.open("choosing the round on test people")
        chosen_by = Selection(truth.person, truth.infected)
    known = rivals.known_of(begun)
    return Task(begun.reported, known, settings, begun.seed, cases, chosen_by)


def judge(begun: Begun, probability: Probabilities, what: str) -> Metrics | None:
    """All metrics on the hidden people; None where there are none."""
    if begun.epidemic is None or not len(begun.epidemic.labels.hidden):
        return None
    truth = begun.epidemic.labels.hidden.open(f"judging {what}")
    recall = begun.prepared.experiment.pathogen.extinction_recall
    return evaluate(probability[truth.person], truth.infected, recall)


def _fit(task: Task, folder: Path, method: str, listeners: Listeners) -> Prediction:
    desk = Desk(
        folder=folder,
        checkpoint_seconds=listeners.checkpoint_seconds,
        progress=lambda name, done, total, told="": listeners.progress(
            f"{method}: {name}", done, total, told
        ),
    )
    if not listeners.log:
        return fit(task, desk)
    from epifalcon.studies.training_log import training_log

    with training_log(folder / "log") as watch:
        return fit(task, replace(desk, watch=watch))


def _rival(begun: Begun, method: str, listeners: Listeners) -> Outcome:
    found = rivals.run_rival(
        begun, method, listeners.progress, listeners.checkpoint_seconds
    )
    return Outcome(
        method,
        found.probability,
        judge(begun, found.probability, entry(method).title),
        found.seconds,
        masked=found.masked,
        masked_risk=found.masked_risk,
        told=found.told,
    )
