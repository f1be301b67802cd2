"""Run methods on the tests of a run, and evaluate them on its held-out people."""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from epifalcon import store
from epifalcon.attacks.upload_recorder import UploadRecorder, require_room
from epifalcon.checks import extra_module
from epifalcon.epidemic.cases import all_cases
from epifalcon.epidemic.settings import with_infected_share
from epifalcon.errors import CorruptFileError, SettingsError, StoppedError, WriteError
from epifalcon.evaluation.calibration import fit_isotonic, fit_platt, why_not
from epifalcon.evaluation.metrics import Metrics, RankingCurve, curve, evaluate
from epifalcon.evaluation.tested_people import TestedAccuracy, accuracy_on_tested
from epifalcon.experiments.run_folder import (
    FAILED,
    PREDICTION,
    SCALINGS,
    MethodFailure,
    RunInputs,
    finished,
    secret_of_noise,
)
from epifalcon.federation.checkpoints import require_same
from epifalcon.federation.early_stopping import ValidationCheck, Watch
from epifalcon.federation.preparation import Selection
from epifalcon.methods.base import INSECURE_SEED, STEP_LIMIT, Context, Method, Scores
from epifalcon.methods.hbp import share_infected
from epifalcon.methods.registry import entry, method_class
from epifalcon.methods.training import TRAINING
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import threads
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import Mask, PersonIds, Probabilities

_NOT_SHOWN = ("spent", "looks", "seconds", STEP_LIMIT)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predicted risks and true states of the hidden people, for plots and findings.

    Nothing computed here is passed back to a method. All arrays are (hidden people,).
    """

    method: str
    title: str
    metrics: Metrics
    person: PersonIds
    risk: Probabilities
    infected: Mask
    ranked: Mapping[str, RankingCurve]
    """By ``SCALINGS``; equal to the raw curve if nothing could be recalibrated."""
    left_raw: str | None
    """Reason why nothing could be recalibrated."""
    isotonic: Probabilities | None
    """Risks after isotonic recalibration; None if it was not fitted."""

    @classmethod
    def of(cls, inputs: RunInputs, outcome: "Outcome") -> "Evaluation | None":
        """Compare with the truth, raw and recalibrated; None if nobody is hidden."""
        if inputs.epidemic is None or not len(inputs.epidemic.labels.hidden):
            return None
        truth = inputs.epidemic.labels.hidden.open(f"evaluating {outcome.title}")
        scores = outcome.scores
        risk, masked_risk = scores.risk[truth.person], scores.masked_risk
        recall = inputs.prepared.experiment.pathogen.extinction_recall
        ranked = dict.fromkeys(SCALINGS, curve(risk, truth.infected))
        why: str | None = "the method masks nobody"
        isotonic = None
        if scores.masked is not None and masked_risk is not None:
            positive = inputs.known.status[scores.masked] == 1
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


@dataclass(frozen=True, eq=False)
class Outcome:
    """Scores of one method and their evaluation."""

    method: str
    scores: Scores
    evaluation: Evaluation | None = None
    """On hidden people; None if nobody is hidden."""
    simulated_on_real_people: bool = False
    tested: TestedAccuracy | None = None
    """On tested people if nobody is hidden; None without out-of-fold risks."""

    @property
    def diagnostics(self) -> dict[str, Any]:
        """``Scores.diagnostics`` of the method."""
        return self.scores.diagnostics

    @property
    def seconds(self) -> float:
        """Duration of the fit; of training in rounds, also before it was resumed."""
        trained = entry(self.method).trains_in_rounds
        resumed = self.diagnostics.get("seconds") if trained else None
        return self.scores.seconds if resumed is None else float(resumed)

    @property
    def metrics(self) -> Metrics | None:
        """All metrics on hidden people; None if nobody is hidden."""
        return None if self.evaluation is None else self.evaluation.metrics

    @property
    def title(self) -> str:
        """Title of the method in tables, with privacy mode and known leaks."""
        listed, marks = entry(self.method), []
        title = listed.title
        if self.spent is not None and listed.takes_privacy:
            title = f"{title}, {self.spent['mode']}"
        if self.diagnostics.get("macro_cases") == "all":
            marks.append("ALL CASES")
        if self.diagnostics.get("selected_on") == "test":
            marks.append("selected on test people")
        if self.simulated_on_real_people:
            marks.append("SIMULATED on real people")
        if self.insecure_seed:
            marks.append("NOT PRIVATE: fixed seed")
        return f"{title} ({', '.join(marks)})" if marks else title

    @property
    def spent(self) -> dict[str, Any] | None:
        """``privacy_spent`` of all releases; None if nothing is protected."""
        return self.diagnostics.get("spent")

    @property
    def insecure_seed(self) -> bool:
        """True if privacy noise came from the public seed of the run."""
        return bool(self.diagnostics.get(INSECURE_SEED))

    @property
    def checks(self) -> list[ValidationCheck]:
        """Checks on validation people; empty if not trained in rounds."""
        return [
            ValidationCheck(**values) for values in self.diagnostics.get("looks", ())
        ]

    def as_plain(self) -> dict[str, Any]:
        """Return the values for JSON."""
        plain: dict[str, Any] = {
            "method": self.method,
            "metrics": None if self.metrics is None else self.metrics.as_plain(),
            "seconds": self.seconds,
            "tested_accuracy": None if self.tested is None else asdict(self.tested),
        }
        if not entry(self.method).trains_in_rounds:
            rest = {k: v for k, v in self.diagnostics.items() if k != "spent"}
            return plain | ({"told": rest} if rest else {}) | (self.spent or {})
        shown = {
            key: value
            for key, value in self.diagnostics.items()
            if key not in _NOT_SHOWN
        }
        return plain | shown | (self.spent or {})


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Progress display, checkpoint interval and log of training."""

    progress: Progress = silent
    checkpoint_seconds: float = 10.0
    log: bool = False
    """True to write a log for TensorBoard."""


def run_method(inputs: RunInputs, method: str, options: TrainingOptions) -> Outcome:
    """Fit ``method`` in the run's folder and evaluate it.

    A finished fit is loaded, an interrupted one resumed, with as many threads as the
    run was started with.
    """
    folder = inputs.method_folder(method)
    with store.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.clear_scratch(folder)
    with threads(inputs.threads or torch.get_num_threads()):
        scores = _fit(inputs, method, folder, options)
        mark = inputs.simulated_on_real_people
        outcome = Outcome(method, scores, simulated_on_real_people=mark)
    if (evaluation := Evaluation.of(inputs, outcome)) is not None:
        return replace(outcome, evaluation=evaluation)
    return replace(outcome, tested=_tested(inputs, outcome))


def _tested(inputs: RunInputs, outcome: Outcome) -> TestedAccuracy | None:
    scores = outcome.scores
    if scores.masked is None or scores.masked_risk is None:
        return None
    return accuracy_on_tested(
        scores.masked_risk,
        inputs.known.status[scores.masked] == 1,
        Streams(inputs.seed).numpy("accuracy on tested people"),
        # Only a trained method with a limit selects its best step or round.
        selected=STEP_LIMIT in scores.diagnostics,
    )


def run_other(
    inputs: RunInputs, method: str, options: TrainingOptions
) -> Outcome | MethodFailure:
    """Run an additional method; return its failure instead of raising it.

    Errors that concern all methods (a full disk, an interruption) are raised. In a
    finished run, a stored failure is returned; otherwise the method runs again.
    """
    place = inputs.method_folder(method)
    if finished(inputs.folder) and (failure := MethodFailure.load(place)) is not None:
        return failure
    try:
        outcome = run_method(inputs, method, options)
    except (WriteError, StoppedError, CorruptFileError):
        raise
    except Exception as error:
        failed = MethodFailure.of(error)
        failed.save(place)
        return failed
    (place / FAILED).unlink(missing_ok=True)
    return outcome


def require_possible(inputs: RunInputs) -> None:
    """Raise early if a method cannot run with these tests and settings."""
    experiment = inputs.prepared.experiment
    for method in (experiment.method, *experiment.beside):
        context = context_of(inputs, method)
        estimator, traces = _estimator(inputs, method), traces_of(inputs, method)
        estimator.require_possible(traces, inputs.tests, context)
        if entry(method).trains_in_rounds:
            require_room(experiment.prediction_of(method), traces)


def _estimator(run: RunInputs, name: str) -> Method:
    settings = run.prepared.experiment.settings_of(name)
    return method_class(name)(settings, seed=run.seed)


def _fit(run: RunInputs, name: str, folder: Path, options: TrainingOptions) -> Scores:
    """Fit and store a method, or load it; return its scores."""
    place, method = folder / PREDICTION, _estimator(run, name)
    own_record = entry(name).trains_in_rounds
    if own_record or not place.is_dir():
        log = folder / "log" if options.log and own_record else None
        with training_log(log) as watch:
            context = context_of(run, name, options, watch)
            method.fit(traces_of(run, name), run.tests, context)
    if own_record:
        return method.scores
    if not place.is_dir():
        with store.new_directory(place) as scratch:
            method.save_state(scratch, run.origin)
            method.scores.save(scratch, run.origin)
        shutil.rmtree(folder / TRAINING, ignore_errors=True)
    require_same(place, run.origin, exact=False)
    return Scores.load(place)


def traces_of(inputs: RunInputs, name: str) -> Traces:
    """Return the traces for ``name``: the reported ones, except for the oracle."""
    true = method_class(name).sees_true_traces
    return inputs.prepared.traces if true else inputs.reported


def context_of(
    inputs: RunInputs,
    name: str,
    options: TrainingOptions | None = None,
    watch: Watch | None = None,
) -> Context:
    """Return the inputs of ``name`` besides traces and tests.

    Only a ceiling gets the ground truth; two settings that reproduce the authors'
    program, ``macro_cases="all"`` and ``selected_on="test"``, get a part of it.
    """
    experiment, epidemic = inputs.prepared.experiment, inputs.epidemic
    listed, options = entry(name), options or TrainingOptions()
    if listed.is_ceiling and epidemic is None:
        raise SettingsError(
            f"{name} needs a simulated outbreak: the true infections of these people "
            "are unknown"
        )
    rule, pathogen = experiment.believed_rule, experiment.believed_pathogen
    dropped = inputs.dropped_slots
    if dropped and name not in experiment.private_methods:
        # Seeds are all people infected by then, estimated from all tests, without
        # noise. Private methods use the initial share of the settings.
        rule = with_infected_share(
            rule, share_infected(rule, pathogen, inputs.known, dropped)
        )
    context = Context(
        pathogen=pathogen,
        rule=rule,
        tested_because=experiment.labels.tested_because,
        progress=options.progress,
        folder=inputs.method_folder(name),
        secret=secret_of_noise(inputs.out, name),
        insecure_seed=inputs.insecure_seed,
        checkpoint_seconds=options.checkpoint_seconds,
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
        true_cases = all_cases(epidemic.outbreak, inputs.prepared.traces, measure)
        cases = true_cases.by_region_and_day[:, -inputs.reported.clock.days :]
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
    """Yield a callback that writes TensorBoard files; None without ``folder``."""
    if folder is None:
        yield None
        return
    extra_module("tensorboard", "tensorboard", "--tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = None

    def write(check: ValidationCheck) -> None:
        nonlocal writer
        writer = writer or SummaryWriter(str(folder), purge_step=check.round)
        writer.add_scalar("loss", check.loss, check.round)
        writer.add_scalar("validation/auc", check.auc, check.round)
        if math.isfinite(check.epsilon):
            writer.add_scalar("privacy/epsilon-person", check.epsilon, check.round)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
