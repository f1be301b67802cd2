"""Run methods on the tests of a run, and evaluate them on its held-out people."""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from epifalcon import store
from epifalcon.epidemic.cases import all_cases
from epifalcon.errors import CorruptFileError, SettingsError, StoppedError, WriteError
from epifalcon.evaluation.attacks.upload_recorder import UploadRecorder, require_room
from epifalcon.evaluation.calibration import fit_isotonic, fit_platt, why_not
from epifalcon.evaluation.metrics import Curve, Metrics, curve, evaluate
from epifalcon.experiments.run_folder import (
    FAILED,
    PREDICTION,
    SCALINGS,
    Begun,
    Failed,
    finished,
)
from epifalcon.federation.checkpoints import require_same
from epifalcon.federation.early_stopping import Look, Watch
from epifalcon.federation.preparing import Selection
from epifalcon.methods.base import STEP_LIMIT, Context, Method, Scores
from epifalcon.methods.hbp import begun_by, share_infected
from epifalcon.methods.registry import entry, method_class
from epifalcon.methods.training import TRAINING
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import threads
from epifalcon.progress import Progress, silent
from epifalcon.types import Mask, PersonIds, Probabilities

_FIGURES = ("seconds", "steps", "parameters")
_ARRAYS = ("masked", "masked_risk", "now", "now_tested", "low", "high")
"""Fields of ``Scores`` that are stored, besides the risk."""
_NOT_SHOWN = ("spent", "looks", "seconds", STEP_LIMIT)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predicted risks beside the truth of the hidden people, for plots and findings.

    Nothing computed here goes back to a method. All arrays are (hidden people,).
    """

    method: str
    title: str
    metrics: Metrics
    person: PersonIds
    risk: Probabilities
    infected: Mask
    ranked: Mapping[str, Curve]
    """By ``SCALINGS``; equal to the raw one if nothing could be recalibrated."""
    left_raw: str | None
    """Why nothing could be recalibrated."""
    isotonic: Probabilities | None
    """The risks after isotonic recalibration, where it was fitted."""

    @classmethod
    def of(cls, begun: Begun, outcome: "Outcome") -> "Evaluation | None":
        """Compare with the truth, raw and recalibrated; None if nobody is hidden."""
        if begun.epidemic is None or not len(begun.epidemic.labels.hidden):
            return None
        truth = begun.epidemic.labels.hidden.open(f"evaluating {outcome.title}")
        risk = outcome.probability[truth.person]
        recall = begun.prepared.experiment.pathogen.extinction_recall
        ranked = dict.fromkeys(SCALINGS, curve(risk, truth.infected))
        why: str | None = "the method masks nobody"
        masked_risk, isotonic = outcome.masked_risk, None
        if outcome.masked is not None and masked_risk is not None:
            positive = begun.known.status[outcome.masked] == 1
            if (why := why_not(masked_risk, positive)) is None:
                isotonic = fit_isotonic(masked_risk, positive)(risk)
                platt = fit_platt(masked_risk, positive)(risk)
                ranked["platt"] = curve(platt, truth.infected)
                ranked["isotonic"] = curve(isotonic, truth.infected)
        return cls(
            method=outcome.method,
            title=outcome.title,
            metrics=evaluate(risk, truth.infected, recall),
            person=truth.person,
            risk=risk,
            infected=truth.infected,
            ranked=ranked,
            left_raw=why,
            isotonic=isotonic,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """One method's scores, and how good they are."""

    method: str
    probability: Probabilities
    """(people,)"""
    seconds: float
    evaluation: Evaluation | None = None
    """On hidden people; None where nobody is hidden."""
    masked: PersonIds | None = None
    """(masked people,) tested, but unseen by what made ``masked_risk``."""
    masked_risk: Probabilities | None = None
    """(masked people,)"""
    told: dict[str, Any] = field(default_factory=dict)
    """``Scores.diagnostics`` of the method."""

    @property
    def metrics(self) -> Metrics | None:
        """All metrics on hidden people; None where nobody is hidden."""
        return None if self.evaluation is None else self.evaluation.metrics

    @property
    def title(self) -> str:
        """The method as tables call it, with privacy mode and known leaks."""
        listed, marks = entry(self.method), []
        title = listed.title
        if self.spent is not None and listed.takes_privacy:
            title = f"{title}, {self.spent['mode']}"
        if self.told.get("macro_cases") == "all":
            marks.append("ALL CASES")
        if self.told.get("selected_on") == "test":
            marks.append("selected on test people")
        return f"{title} ({', '.join(marks)})" if marks else title

    @property
    def spent(self) -> dict[str, Any] | None:
        """``spent_figures`` of what left devices; None where nothing is promised."""
        return self.told.get("spent")

    @property
    def looks(self) -> list[Look]:
        """Checks of the validation people; empty if it is not trained in rounds."""
        return [Look(**one) for one in self.told.get("looks", ())]

    def as_plain(self) -> dict[str, Any]:
        """The figures for JSON."""
        plain: dict[str, Any] = {
            "method": self.method,
            "metrics": None if self.metrics is None else self.metrics.as_plain(),
            "seconds": self.seconds,
        }
        if not entry(self.method).trains_in_rounds:
            return plain | ({"told": self.told} if self.told else {})
        shown = {key: one for key, one in self.told.items() if key not in _NOT_SHOWN}
        return plain | shown | (self.spent or {})


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who observes the training of methods, and how often it is stored."""

    progress: Progress = silent
    checkpoint_seconds: float = 10.0
    log: bool = False
    """Whether to write a log that TensorBoard reads."""


def run_method(begun: Begun, method: str, listeners: Listeners) -> Outcome:
    """Fit ``method`` in the run's folder and evaluate it.

    A fit that has ended before is read, one that was interrupted is resumed, with as
    many threads as the run was started with.
    """
    folder = begun.method_folder(method)
    with store.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.clear_scratch(folder)
    with threads(begun.threads or torch.get_num_threads()):
        scores, seconds = _fit(begun, method, folder, listeners)
    outcome = Outcome(
        method=method,
        probability=scores.risk,
        seconds=seconds,
        masked=scores.masked,
        masked_risk=scores.masked_risk,
        told=scores.diagnostics,
    )
    return replace(outcome, evaluation=Evaluation.of(begun, outcome))


def run_guest(begun: Begun, method: str, listeners: Listeners) -> Outcome | Failed:
    """Run a method beside the run's own: its failure is returned, not raised.

    What stops every method (a full disk, an interruption) is raised. A finished run
    has its failures stored; an unfinished one tries again.
    """
    place = begun.method_folder(method)
    if finished(begun.folder) and (failure := Failed.load(place)) is not None:
        return failure
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


def require_possible(begun: Begun) -> None:
    """Raise now what any method of the run would raise of its tests and settings."""
    experiment = begun.prepared.experiment
    for method in (experiment.method, *experiment.beside):
        context = context_of(begun, method)
        estimator, traces = _estimator(begun, method), traces_of(begun, method)
        estimator.require_possible(traces, begun.tests, context)
        if entry(method).trains_in_rounds:
            require_room(experiment.prediction_of(method), traces)


def _estimator(begun: Begun, name: str) -> Method:
    settings = begun.prepared.experiment.settings_of(name)
    return method_class(name)(settings, seed=begun.seed)


def _fit(
    begun: Begun, name: str, folder: Path, listeners: Listeners
) -> tuple[Scores, float]:
    """Return the scores of a method, stored by now, and the seconds of its fit."""
    place, method = folder / PREDICTION, _estimator(begun, name)
    own_record = entry(name).trains_in_rounds
    if own_record or not place.is_dir():
        log = folder / "log" if listeners.log and own_record else None
        with training_log(log) as watch:
            context = context_of(begun, name, listeners, watch)
            method.fit(traces_of(begun, name), begun.tests, context)
    if own_record:
        return method.scores, method.scores.diagnostics["seconds"]
    if not place.is_dir():
        found = {name: getattr(method.scores, name) for name in _ARRAYS}
        arrays = {name: one for name, one in found.items() if one is not None}
        arrays["probability"] = method.scores.risk
        meta = {name: getattr(method.scores, name) for name in _FIGURES}
        meta["told"] = method.scores.diagnostics
        with store.new_directory(place) as scratch:
            method.save_state(scratch, begun.origin)
            store.write(scratch, PREDICTION, arrays, meta=meta, origin=begun.origin)
        shutil.rmtree(folder / TRAINING, ignore_errors=True)
    require_same(place, begun.origin, exact=False)
    record = store.read(place, PREDICTION)
    arrays = {name: np.array(one) for name, one in record.arrays.items()}
    arrays["risk"] = np.array(record.arrays["probability"])
    del arrays["probability"]
    scores = Scores(**arrays, diagnostics=record.meta["told"])
    return scores, record.meta["seconds"]


def traces_of(begun: Begun, name: str) -> Traces:
    """Return the traces for ``name``: the reported ones, except for the oracle."""
    true = method_class(name).sees_true_traces
    return begun.prepared.traces if true else begun.reported


def context_of(
    begun: Begun,
    name: str,
    listeners: Listeners | None = None,
    watch: Watch | None = None,
) -> Context:
    """Return what ``name`` is given besides traces and tests.

    Only a ceiling gets the ground truth; two settings that reproduce the authors'
    program, ``macro_cases="all"`` and ``selected_on="test"``, get a part of it.
    """
    experiment, epidemic = begun.prepared.experiment, begun.epidemic
    listed, listeners = entry(name), listeners or Listeners()
    if listed.is_ceiling and epidemic is None:
        raise SettingsError(
            f"{name} needs a simulated outbreak: of these people only the tests are "
            "known"
        )
    rule, pathogen = experiment.believed_rule, experiment.believed_pathogen
    if dropped := begun.dropped_slots:
        # Seeds are all who were infected by then, estimated from all tests together.
        rule = begun_by(rule, share_infected(rule, pathogen, begun.known, dropped))
    context = Context(
        pathogen=pathogen,
        rule=rule,
        test_errors=experiment.labels.test_errors,
        progress=listeners.progress,
        folder=begun.method_folder(name),
        checkpoint_seconds=listeners.checkpoint_seconds,
    )
    if listed.is_ceiling and epidemic is not None:
        true = method_class(name).sees_true_traces
        rule = experiment.outbreak if true else context.rule
        return replace(context, rule=rule, ground_truth=epidemic.outbreak)
    if not listed.trains_in_rounds:
        return context
    settings, cases, selection = experiment.prediction_of(name), None, None
    if settings.macro_cases == "all" and epidemic is not None:
        measure = settings.region.cases.measure
        found = all_cases(epidemic.outbreak, begun.prepared.traces, measure)
        cases = found.by_region_and_day[:, -begun.reported.clock.days :]
    if settings.stopping.selected_on == "test" and epidemic is not None:
        truth = epidemic.labels.hidden.open("choosing the round on test people")
        selection = Selection(truth.person, truth.infected)
    return replace(
        context,
        all_cases=cases,
        test_people=selection,
        watch=watch,
        recorder=UploadRecorder.of(settings),
    )


@contextlib.contextmanager
def training_log(folder: Path | None) -> Iterator[Watch | None]:
    """Yield a listener that writes TensorBoard's files into ``folder``."""
    if folder is None:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SettingsError(
            "--tensorboard needs the package tensorboard: "
            "pip install 'epifalcon[tensorboard]'"
        ) from None
    writers: list[SummaryWriter] = []

    def write(look: Look) -> None:
        if not writers:
            writers.append(SummaryWriter(str(folder), purge_step=look.round))
        writer = writers[0]
        writer.add_scalar("loss", look.loss, look.round)
        writer.add_scalar("validation/auc", look.auc, look.round)
        if math.isfinite(look.epsilon):
            writer.add_scalar("privacy/epsilon-person", look.epsilon, look.round)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
