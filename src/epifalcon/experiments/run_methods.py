"""Run methods on the tests of a run, and evaluate them on its held-out people.

Methods are fitted through the estimator interface (``methods.base``); those that train
in rounds by ``federation.training``, which can be resumed, recorded and logged.
"""

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.epidemic.cases import all_cases
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.errors import (
    CorruptFileError,
    SettingsError,
    StoppedError,
    WriteError,
)
from epifalcon.evaluation.attacks.upload_recorder import UploadRecorder, require_room
from epifalcon.evaluation.metrics import Metrics, evaluate
from epifalcon.experiments.measurements import FAILED, Failed
from epifalcon.experiments.run_folder import PREDICTION, Begun, finished
from epifalcon.federation import training
from epifalcon.federation.checkpoints import require_same, verified
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.training import (
    Prediction,
    Selection,
    Task,
    validation_people,
)
from epifalcon.methods.base import Context, Scores
from epifalcon.methods.hbp import begun_by, share_infected
from epifalcon.methods.registry import entry, method_class
from epifalcon.methods.training import TRAINING
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import threads
from epifalcon.progress import Progress
from epifalcon.types import PersonIds, Probabilities


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
        title, mode = entry(self.method).title, None
        if self.settings is not None:
            mode = self.settings.privacy.mode
        elif self.spent is not None:
            mode = self.spent["mode"]
        if mode is not None and entry(self.method).takes_privacy:
            title = f"{title}, {mode}"
        return title if self.settings is None else title + _marks(self.settings)

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
        if not entry(method).trains_in_rounds:
            return _fit_method(begun, method, listeners)
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
        failed = Failed.of(error)
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
        if entry(method).trains_in_rounds:
            task = _task(begun, method)
            training.require_possible(task)
            require_room(task.settings, task.traces)
        else:
            _require_truth(begun, method)


def _task(begun: Begun, method: str) -> Task:
    settings = begun.prepared.experiment.prediction_of(method)
    cases = None
    if settings.macro_cases == "all" and begun.epidemic is not None:
        measure = settings.region.cases.measure
        found = all_cases(begun.epidemic.outbreak, begun.prepared.traces, measure)
        cases = found.by_region_and_day[:, -begun.reported.clock.days :]
    chosen_by = None
    if settings.stopping.selected_on == "test" and begun.epidemic is not None:
        truth = begun.epidemic.labels.hidden.open("choosing the round on test people")
        chosen_by = Selection(truth.person, truth.infected)
    known = known_of(begun)
    return Task(begun.reported, known, settings, begun.seed, cases, chosen_by)


def judge(begun: Begun, probability: Probabilities, what: str) -> Metrics | None:
    """All metrics on the hidden people; None where there are none."""
    if begun.epidemic is None or not len(begun.epidemic.labels.hidden):
        return None
    truth = begun.epidemic.labels.hidden.open(f"judging {what}")
    recall = begun.prepared.experiment.pathogen.extinction_recall
    return evaluate(probability[truth.person], truth.infected, recall)


def _fit(task: Task, folder: Path, method: str, listeners: Listeners) -> Prediction:
    def progress(name: str, done: int, total: int, told: str = "") -> None:
        listeners.progress(f"{method}: {name}", done, total, told)

    with contextlib.ExitStack() as stack:
        watch = None
        if listeners.log:
            from epifalcon.experiments.training_log import training_log

            watch = stack.enter_context(training_log(folder / "log"))
        return training.fit(
            task,
            folder=folder,
            checkpoint_seconds=listeners.checkpoint_seconds,
            watch=watch,
            progress=progress,
            recorder=UploadRecorder.of(task.settings),
        )


def _fit_method(begun: Begun, name: str, listeners: Listeners) -> Outcome:
    """Fit ``name`` through the estimator interface, or read what an earlier call left.

    A training that was stopped is resumed.
    """
    folder = begun.method_folder(name)
    place = folder / PREDICTION
    if not place.is_dir():
        settings = begun.prepared.experiment.settings_of(name)
        method = method_class(name)(settings, seed=begun.seed)
        progress, pause = listeners.progress, listeners.checkpoint_seconds
        context = context_of(begun, name, progress, pause)
        method.fit(traces_of(begun, name), known_of(begun), context)
        meta = {**vars(method.cost), "told": method.scores.diagnostics}
        with store.new_directory(place) as scratch:
            method.save_state(scratch, begun.origin)
            arrays = _arrays(method.scores)
            store.write(scratch, PREDICTION, arrays, meta=meta, origin=begun.origin)
        shutil.rmtree(folder / TRAINING, ignore_errors=True)
    require_same(place, verified(place), begun.origin, exact=False)
    kept = store.read(place, PREDICTION)
    arrays = {key: np.array(value) for key, value in kept.arrays.items()}
    if "probability" not in arrays:
        raise CorruptFileError(f"{place}: the record lacks 'probability'")
    return Outcome(
        name,
        arrays["probability"],
        judge(begun, arrays["probability"], entry(name).title),
        kept.meta["seconds"],
        masked=arrays.get("masked"),
        masked_risk=arrays.get("masked_risk"),
        told=dict(kept.meta["told"]),
    )


def known_of(begun: Begun) -> Known:
    """The run's tests on the clock of the reported traces.

    Only the latest days may be reported; the tests stay where they were.
    """
    dropped = _dropped(begun)
    return begun.known.since(dropped) if dropped else begun.known


def rule_of(begun: Begun) -> OutbreakSettings:
    """How methods are told that the disease passes on.

    It has as many seeds as the reported traces show.
    Where only the latest days are reported, these are all who were infected by
    then: as many as the tests let expect. That one number is of all tests together.
    """
    experiment, dropped = begun.prepared.experiment, _dropped(begun)
    rule = experiment.believed_rule
    if not dropped:
        return rule
    share = share_infected(rule, experiment.believed_pathogen, begun.known, dropped)
    return begun_by(rule, share)


def _dropped(begun: Begun) -> int:
    """Slots of the outbreak before the reported traces begin."""
    return begun.prepared.traces.slots - begun.reported.slots


def _require_truth(begun: Begun, name: str) -> None:
    if entry(name).kind == "ceiling" and begun.epidemic is None:
        raise SettingsError(
            f"{name} needs a simulated outbreak: of these people only the tests are "
            "known"
        )


def traces_of(begun: Begun, name: str) -> Traces:
    """Return the traces for ``name``: the reported ones, except for the oracle."""
    true = method_class(name).sees_true_traces
    return begun.prepared.traces if true else begun.reported


def context_of(
    begun: Begun, name: str, progress: Progress, checkpoint_seconds: float
) -> Context:
    """Return what ``name`` is given besides traces and tests.

    Only a ceiling gets the ground truth.
    """
    experiment = begun.prepared.experiment
    _require_truth(begun, name)
    truth, rule = None, rule_of(begun)
    if entry(name).kind == "ceiling" and begun.epidemic is not None:
        truth = begun.epidemic.outbreak
        if method_class(name).sees_true_traces:
            rule = experiment.outbreak
    return Context(
        pathogen=experiment.believed_pathogen,
        rule=rule,
        test_errors=experiment.labels.test_errors,
        progress=progress,
        folder=begun.method_folder(name),
        checkpoint_seconds=checkpoint_seconds,
        ground_truth=truth,
    )


def _arrays(found: Scores) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"probability": found.risk}
    if found.masked is not None and found.masked_risk is not None:
        arrays["masked"] = found.masked
        arrays["masked_risk"] = np.asarray(found.masked_risk, np.float64)
    if found.now is not None and found.now_tested is not None:
        arrays |= {"now": found.now, "now_tested": found.now_tested}
    if found.low is not None and found.high is not None:
        arrays |= {"low": found.low, "high": found.high}
    return arrays
