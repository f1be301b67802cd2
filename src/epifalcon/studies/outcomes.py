"""Run methods on what a run knows, and judge them by what it hides."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from epifalcon import store
from epifalcon.baselines.contact_tracing import soft_contact_tracing
from epifalcon.epidemic.cases import all_cases
from epifalcon.evaluation.metrics import Metrics, evaluate
from epifalcon.progress import Progress
from epifalcon.studies import fitting
from epifalcon.studies.checkpoints import require_same, verified
from epifalcon.studies.features import Task, hypergraph
from epifalcon.studies.fitting import Desk, Prediction, fit
from epifalcon.studies.method_folder import PREDICTION
from epifalcon.studies.methods import TITLES, Method, PredictionSettings
from epifalcon.studies.run_folder import Begun
from epifalcon.types import Probabilities


@dataclass(frozen=True, eq=False)
class Outcome:
    """One method's scores, and how good they are."""

    method: Method
    probability: Probabilities
    """(people,)"""
    metrics: Metrics | None
    """On hidden people; None where nobody is hidden."""
    seconds: float
    settings: PredictionSettings | None = None
    """Of a method that is trained."""
    trained: Prediction | None = None

    @property
    def title(self) -> str:
        """The method as tables call it, with what must be said of it."""
        title = TITLES[self.method]
        if self.method != "falcon" or self.settings is None:
            return title
        title = f"{title}, {self.settings.privacy.mode}"
        if self.settings.macro_cases == "all":
            title += " (ALL CASES)"
        return title

    def as_plain(self) -> dict[str, Any]:
        """The figures for JSON."""
        plain: dict[str, Any] = {
            "method": self.method,
            "metrics": None if self.metrics is None else self.metrics.as_plain(),
            "seconds": self.seconds,
        }
        if self.settings is None or self.trained is None:
            return plain
        trained = self.trained
        return plain | {
            "macro_cases": self.settings.macro_cases,
            "best_round": trained.best_round,
            "rounds": trained.looks[-1].round,
            "validation_auc": trained.validation_auc,
            "seconds_per_round": trained.seconds_per_round,
            **trained.spent,
            "forecast": trained.forecast,
        }


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who listens to the training of methods, and how often it is kept."""

    progress: Progress
    checkpoint_seconds: float
    log: bool = False
    """Whether to write a log that TensorBoard reads."""


def run_method(begun: Begun, method: Method, listeners: Listeners) -> Outcome:
    """Train or compute ``method`` in the run's folder, then judge it.

    A method that has ended before is read, one that was begun is gone on with,
    with as many threads as the run was begun with.
    """
    folder = begun.method_folder(method)
    with store.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.clear_scratch(folder)
    if method == "contact-tracing":
        return _trace(begun)
    task = _task(begun, method)
    settings = task.settings
    with _threads(begun.threads):
        trained = _fit(task, folder, method, listeners)
    return Outcome(
        method,
        trained.probability,
        judge(begun, trained.probability, TITLES[method]),
        trained.seconds,
        settings,
        trained,
    )


def threads_now() -> int:
    """How many threads torch adds up with: part of what decides the last bits."""
    return torch.get_num_threads()


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_possible(begun: Begun) -> None:
    """Raise now what any method of the run would raise of its tests and settings."""
    experiment = begun.prepared.experiment
    for method in (experiment.method, *experiment.beside):
        if method != "contact-tracing":
            fitting.require_possible(_task(begun, method))


def _task(begun: Begun, method: Method) -> Task:
    settings = begun.prepared.experiment.prediction
    if method == "hgnn":
        settings = settings.central()
    cases = None
    if settings.macro_cases == "all" and begun.epidemic is not None:
        found = all_cases(begun.epidemic.outbreak, begun.prepared.traces)
        cases = found.by_region_and_day[:, -begun.reported.clock.days :]
    # Only the latest days may be reported; the tests stay where they were.
    dropped = begun.prepared.traces.slots - begun.reported.slots
    known = begun.known.since(dropped) if dropped else begun.known
    return Task(begun.reported, known, settings, begun.seed, cases)


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


def _trace(begun: Begun) -> Outcome:
    place = begun.method_folder("contact-tracing") / PREDICTION
    if not place.is_dir():
        start = perf_counter()
        incidence = hypergraph(begun.reported, begun.prepared.experiment.prediction)
        found = soft_contact_tracing(incidence, begun.known.status)
        meta = {"seconds": perf_counter() - start}
        with store.new_directory(place) as scratch:
            arrays = {"probability": found}
            store.write(scratch, PREDICTION, arrays, meta=meta, origin=begun.origin)
    require_same(place, verified(place), begun.origin, exact=False)
    kept = store.read(place, PREDICTION)
    scores = np.array(kept.arrays["probability"])
    metrics = judge(begun, scores, "contact tracing")
    return Outcome("contact-tracing", scores, metrics, kept.meta["seconds"])
