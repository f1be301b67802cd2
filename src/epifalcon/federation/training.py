"""Resumable training of Falcon or HGNN in one process.

In-process training uses one site with everybody: preparation and early stopping are
those of a run over sites, so equal settings and seed give the same result in both.

Training uses only the results in ``TestResults``, never held-out labels. Two exceptions
reproduce the authors' program: ``macro_cases="all"`` reads everybody's cases, and
``selected_on="test"`` selects the round on test people.

A folder stores region states, checkpoints and the ledger. Each ledger entry is on disk
before the value is released. Noise, dropout and masks are determined by seed or secret,
round and person, so a resumed training gives bitwise equal results.
"""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation import checkpoints, preparation
from epifalcon.federation.checkpoints import Checkpoint, privacy_spent
from epifalcon.federation.client import Cohort
from epifalcon.federation.early_stopping import (
    EarlyStopping,
    ValidationCheck,
    Watch,
    running_log_odds,
)
from epifalcon.federation.engine import RoundReport, VectorisedEngine, train
from epifalcon.federation.network.site_files import digest
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds
from epifalcon.federation.server_view import ServerView
from epifalcon.federation.settings import PredictionSettings
from epifalcon.machine import pages_reused
from epifalcon.mobility.mobility_model import MobilityModel, tally_mobility
from epifalcon.mobility.traces import Traces
from epifalcon.models.region_model import DcrnnRegionModel
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import read_tensors, write_tensors
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.pseudo_traces import PseudoSettings, PseudoTraces
from epifalcon.privacy.spending import SpendingRecord
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.types import Floats, Plain, Probabilities

REGION = "region"
"""Folder of the region model, inside the folder of the region states."""
MODEL, WEIGHTS = "model", "model.safetensors"
PREDICTION = "prediction"
LEDGER = "ledger.jsonl"
RATES = "rates"
"""Folder of unfinished training runs, one per learning rate."""
_HEAD = "ledger_head"
_NO_LEDGER = "restore the file, or restart the run with --overwrite"
_NEEDS_TRUTH = "needs a simulated outbreak: true infections are unknown"
_PROBABILITY, _LOG_ODDS = "probability", "held"
_CHECKS = "looks"
"""Key of the validation checks in stored predictions."""


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """Data, settings and seed of a training run."""

    traces: Traces
    """Traces as reported; unreported visits are missing."""
    known: TestResults
    settings: PredictionSettings
    seed: int
    all_cases: Floats | None = None
    """Cases of all people, (regions, days); only for ``macro_cases="all"``."""
    test_people: preparation.Selection | None = None
    """Test people and their true states; only for ``stopping.selected_on="test"``."""
    secret: int | None = None
    """Secret of privacy noise; None (simulations only): noise comes from ``seed``."""

    def __post_init__(self) -> None:
        _ = self.site_data

    @property
    def site_data(self) -> preparation.SiteData:
        """Data of one site with all people."""
        return preparation.SiteData(self.traces, self.known)

    @property
    def seeds(self) -> RunSeeds:
        """Random streams of the training; without noise only the seed matters."""
        private = self.settings.privacy.is_private
        return RunSeeds(self.seed, self.secret if private else None)

    @property
    def split(self) -> preparation.ValidationSplit:
        """Validation people and folds, which depend only on seed and person."""
        return preparation.validation_split(self.site_data, self.settings, self.seed)

    @property
    def origin(self) -> store.Origin:
        """Settings, seed and data digest, stored with each record as its provenance."""
        arrays = {**self.site_data.arrays, **self.traces.regions.pack()}
        if self.all_cases is not None:
            arrays["all_cases"] = self.all_cases
        if self.test_people is not None:
            arrays["test_people"] = self.test_people.infected
        data = digest(as_plain(self.traces.clock), arrays=arrays)
        settings = {**as_plain(self.settings), "data_sha256": data}
        return store.Origin.now(settings, self.seed)


class Recorder(Protocol):
    """Interface of a recorder of the server's view during training."""

    def start(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        resumed: Checkpoint | None,
    ) -> ServerView:
        """Start a recording, or resume the one of a checkpoint."""

    def checkpoint(self, made: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the current recording added."""

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the recording to ``folder`` if it is not there yet."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores, validation results and privacy cost of a training run."""

    probability: Probabilities
    """Probability of having been infected, (people,)."""
    learning_rate: float
    best_round: int
    validation_auc: float
    """AUC of the people who selected the round (``stopping.selected_on``)."""
    validation_log_loss: float
    checks: tuple[ValidationCheck, ...]
    spent: dict[str, Any]
    """Recorded privacy cost, as returned by ``privacy_spent``."""
    forecast: dict[str, Any] | None
    seconds: float
    seconds_per_round: float

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record to ``folder``."""
        meta = asdict(self)
        meta[_CHECKS] = meta.pop("checks")
        arrays = {_PROBABILITY: meta.pop(_PROBABILITY)}
        store.write(folder, PREDICTION, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Prediction":
        """Read a record written by ``save``."""
        stored = store.read(folder, PREDICTION)
        values = {**stored.meta}
        values["checks"] = tuple(map(ValidationCheck.of, values.pop(_CHECKS)))
        for name in ("validation_auc", "validation_log_loss"):
            values[name] = math.nan if values[name] is None else values[name]
        return cls(np.array(stored.arrays[_PROBABILITY]), **values)


@dataclass(frozen=True)
class _Output:
    """Output folder, callbacks and recorder of a training run."""

    folder: Path | None
    checkpoint_seconds: float
    watch: Watch | None
    progress: Progress
    recorder: Recorder | None
    start: float = field(default_factory=perf_counter)

    def of_rate(self, rate: float) -> "_Output":
        """Return the output of the training run with learning rate ``rate``."""
        folder = None
        if self.folder is not None:
            folder = self.folder / RATES / f"{rate:g}"
            folder.mkdir(parents=True, exist_ok=True)
            store.clear_scratch(folder)

        def progress(name: str, done: int, total: int, message: str = "") -> None:
            self.progress(f"{name}, learning rate {rate:g}", done, total, message)

        return replace(self, folder=folder, progress=progress, start=perf_counter())


def fit(
    task: TrainingTask,
    *,
    folder: Path | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Watch | None = None,
    progress: Progress = silent,
    recorder: Recorder | None = None,
) -> Prediction:
    """Train on the test results and predict everybody's probability of infection.

    Equal tasks give bitwise equal results on one machine, also if resumed. Checkpoints
    are written to ``folder``, at most every ``checkpoint_seconds``; ``watch`` is called
    with every validation check; ``recorder`` records the server's view.
    """
    origin = task.origin
    if folder is not None and (folder / PREDICTION).is_dir():
        return _finished(task, folder, origin)
    require_possible(task)
    region = _region_features(task, folder, origin, progress)
    shared = shared_statistics(task, region, progress)
    rng, data, split = task.seeds.pseudo(0), task.site_data, task.split
    cohort = preparation.cohort_of(data, split, task.settings, shared, rng, progress)
    forecast = None if region is None else region.forecast
    output = _Output(folder, checkpoint_seconds, watch, progress, recorder)
    rates, tried = task.settings.learning_rates, []
    for attempt, rate in enumerate(rates):
        one = replace(task, settings=task.settings.with_learning_rate(rate))
        place = output if len(rates) == 1 else output.of_rate(rate)
        # Each has its own initial weights: with some, all units are inactive at once.
        tried.append(_fit_rate(one, cohort, forecast, place, origin, attempt))
    if len(rates) == 1:
        return tried[0]
    best = min(tried, key=lambda one: one.validation_log_loss)
    found = replace(best, seconds=sum(one.seconds for one in tried))
    if folder is not None:
        # Scores are written last: they mark a finished training.
        rate_folder = folder / RATES / f"{rates[tried.index(best)]:g}"
        scores = shutil.ignore_patterns(PREDICTION)
        shutil.copytree(rate_folder, folder, ignore=scores, dirs_exist_ok=True)
        with store.new_directory(folder / PREDICTION) as scratch:
            found.save(scratch, origin)
        shutil.rmtree(folder / RATES)
    return found


def _fit_rate(
    task: TrainingTask,
    cohort: Cohort,
    forecast: Plain | None,
    output: _Output,
    origin: store.Origin,
    attempt: int = 0,
) -> Prediction:
    """Train with one learning rate; ``attempt`` selects the initial weights."""
    folder, recorder = output.folder, output.recorder
    if folder is not None and (folder / PREDICTION).is_dir():
        return _finished(task, folder, origin)
    training = _Training(task, cohort, output, origin, attempt)
    training.run()
    found = training.prediction(forecast)
    if folder is None:
        return found
    if recorder is not None:
        recorder.save(folder, origin)
    meta = {"round": found.best_round, _HEAD: training.engine.ledger.head}
    with store.new_directory(folder / MODEL, overwrite=True) as scratch:
        write_tensors(scratch / WEIGHTS, training.weights)
        store.write_manifest(scratch, MODEL, meta=meta, origin=origin)
    with store.new_directory(folder / PREDICTION) as scratch:
        found.save(scratch, origin)
    checkpoints.remove_all(folder)
    return found


class _Training:
    """A training run, resumed from its newest checkpoint if there is one."""

    def __init__(
        self,
        task: TrainingTask,
        cohort: Cohort,
        output: _Output,
        origin: store.Origin,
        attempt: int,
    ) -> None:
        settings, folder, seed = task.settings, output.folder, task.seed
        secret = task.seeds.secret
        self._output, self._origin = output, origin
        self._selection = selection(task)
        self.stopping = EarlyStopping(settings.stopping, settings.privacy)
        self.weights: dict[str, Tensor] = {}
        """Model and people's state at the best check, without Adam's moments."""
        self._probability = np.zeros(0)
        self._log_odds: Floats | None = None
        self._seconds_before, self._training_seconds = 0.0, 0.0
        if attempt:
            # Private trainings have one attempt: the secret is used once.
            seed = Streams(seed).seed_for(f"falcon training {attempt}")
        plan = PrivacyPlan.for_run(settings, task.traces.clock)
        self._memory = settings.stopping.score_memory if plan.is_private else 0
        ledger, resumed, view = Ledger(plan.budget), None, None
        if folder is not None:
            resumed = checkpoints.newest(folder, origin)
            with _advice(_NO_LEDGER, folder / LEDGER):
                record = SpendingRecord.of_user(task.seeds.secret)
                ledger = checkpoints.ledger_of(
                    folder / LEDGER, plan.budget, resumed, record
                )
        if resumed is None:
            validation = settings.stopping.selected_on == "validation"
            made = preparation.unprotected_receipts(plan, settings, validation)
            ledger.record(*made)
        if output.recorder is not None:
            view = output.recorder.start(cohort, settings.model, plan, seed, resumed)
        self.engine = VectorisedEngine(
            cohort, settings.model, plan, seed, ledger, view, secret
        )
        if resumed is not None:
            self._restore(resumed)

    def run(self) -> None:
        """Run the remaining rounds and write checkpoints to the output folder."""
        engine, output, folder = self.engine, self._output, self._output.folder
        due = perf_counter() + output.checkpoint_seconds
        text = ""

        def watch(report: RoundReport) -> bool:
            nonlocal due, text
            reuse_pages()
            check = self._after_round(report)
            if check is not None:
                text = check.progress_text
                if output.watch is not None:
                    output.watch(check)
            ended = self.stopping.ended
            last = engine.round if ended else engine.settings.rounds
            output.progress("rounds", engine.round, last, text)
            now = perf_counter()
            if folder is not None and now >= due and not ended:
                checkpoints.save(folder, self._checkpoint(), self._origin)
                # Saving takes at most a twentieth of the time in cities of any size.
                pause, took = output.checkpoint_seconds, perf_counter() - now
                due = perf_counter() + (max(pause, 19 * took) if pause else 0)
            return ended

        if not self.stopping.ended:
            with pages_reused() as reuse_pages:
                train(engine, watch=watch)

    def _after_round(self, report: RoundReport) -> ValidationCheck | None:
        """Update the mean log odds; run a validation check if one is due."""
        engine, selected = self.engine, self._selection
        self._training_seconds += report.seconds
        if self._memory:
            scores = engine.scores()
            self._log_odds = running_log_odds(self._log_odds, scores, self._memory)
        if not self.stopping.due(engine.round, engine.settings.rounds):
            return None
        scores = engine.scores() if self._log_odds is None else expit(self._log_odds)
        risks, infected = scores[selected.people], selected.infected
        number, epsilon = engine.round, self._epsilon()
        check = ValidationCheck.at(number, report.loss, risks, infected, epsilon)
        if self.stopping.add(check):
            self._probability = scores
            tensors = engine.state().tensors
            self.weights = {n: one.clone() for n, one in _weights(tensors).items()}
        return check

    def _epsilon(self) -> float:
        """Return the epsilon spent per person so far; infinite in mode ``off``."""
        engine = self.engine
        if not engine.plan.is_private:
            return math.inf
        squared_mu = sum(
            release.squared_mu("person")
            for release in engine.ledger.releases
            if isinstance(release, GaussianRelease)
            and release.terms.round < engine.round
        )
        return epsilon_of(math.sqrt(squared_mu), engine.ledger.budget.delta)

    @property
    def _seconds(self) -> float:
        return self._seconds_before + perf_counter() - self._output.start

    def _checkpoint(self) -> Checkpoint:
        """Return a checkpoint of the whole state."""
        values = {
            **self.stopping.as_plain(),
            "seconds": self._seconds,
            "training_seconds": self._training_seconds,
        }
        tensors = {**self.weights, _PROBABILITY: torch.from_numpy(self._probability)}
        if self._log_odds is not None:
            tensors[_LOG_ODDS] = torch.from_numpy(self._log_odds)
        made = Checkpoint(self.engine.state(), tensors, values)
        recorder = self._output.recorder
        return made if recorder is None else recorder.checkpoint(made)

    def _restore(self, checkpoint: Checkpoint) -> None:
        values, tensors = checkpoint.values, checkpoint.tensors
        self.engine.restore(checkpoint.engine)
        self.stopping.restore(values)
        self._seconds_before = values["seconds"]
        self._training_seconds = values["training_seconds"]
        self.weights = _weights(tensors)
        self._probability = tensors[_PROBABILITY].numpy()
        self._log_odds = tensors[_LOG_ODDS].numpy() if _LOG_ODDS in tensors else None

    def prediction(self, forecast: Plain | None) -> Prediction:
        """Return the prediction of the best round."""
        engine, best = self.engine, self.stopping.best
        rounds = engine.settings.rounds
        if best is None:
            raise SettingsError(f"model.rounds={rounds}: no round was run")
        return Prediction(
            probability=self._probability,
            learning_rate=engine.settings.learning_rate_at(1),
            best_round=best.round,
            validation_auc=best.auc,
            validation_log_loss=best.log_loss,
            checks=tuple(self.stopping.checks),
            spent=privacy_spent(engine.plan.mode, engine.ledger),
            forecast=None if forecast is None else dict(forecast),
            seconds=self._seconds,
            seconds_per_round=self._training_seconds / max(engine.round, 1),
        )


def _weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the parameters, embeddings and received rows."""
    names = ("parameter/", "home/rows", "home/received")
    return {name: one for name, one in tensors.items() if name.startswith(names)}


def require_possible(task: TrainingTask) -> None:
    """Raise an error if ``fit`` is impossible with these tests and settings."""
    settings, traces, clock = task.settings, task.traces, task.traces.clock
    status, split = task.known.status, task.split
    if settings.privacy.is_private:
        preparation.require_places(traces)
    for result, word in ((1, "positive"), (0, "negative")):
        if (count := int((status == result).sum())) < 2:
            raise DataError(
                f"{count} people tested {word}: at least 2 are needed, one for "
                "training and one for validation"
            )
        if not (split.training.status == result).any():
            raise SettingsError(
                f"stopping.validation_share={settings.stopping.validation_share} holds "
                f"back all {count} people tested {word}: nobody is left for training; "
                "choose a smaller share or another seed"
            )
    selection(task)
    # One person is enough to check that the windows divide the slots.
    one = Traces(traces.by_slot[:, :1], clock, traces.regions)
    preparation.hypergraph(one, settings)
    tested = int(task.known.tested.sum())
    if settings.macro_cases == "reported" and settings.region.folds > tested // 2:
        raise SettingsError(
            f"region.folds={settings.region.folds} is too many for {tested:,} tested "
            "people: at least two are needed in each"
        )
    if settings.uses_region_model:
        settings.region.training.first_validation_day(clock.days)
    if settings.macro_cases == "all" and task.all_cases is None:
        raise SettingsError(f"region.macro_cases='all' {_NEEDS_TRUTH}")
    PrivacyPlan.for_run(settings, clock)


def selection(task: TrainingTask) -> preparation.Selection:
    """Return the people whose results select the best round."""
    if task.settings.stopping.selected_on == "validation":
        held_back = task.split.held_back
        return preparation.Selection(held_back, task.known.status[held_back] == 1)
    if task.test_people is None or not len(task.test_people.people):
        raise SettingsError(f"stopping.selected_on='test' {_NEEDS_TRUTH}")
    return task.test_people


def _region_features(
    task: TrainingTask, folder: Path | None, origin: store.Origin, progress: Progress
) -> preparation.RegionFeatures | None:
    """Read the region features from ``folder``, or compute and store them."""
    if not task.settings.uses_region_model:
        return None
    if folder is None:
        return _fit_region_features(task, progress)
    place = folder / preparation.FEATURES
    if not place.is_dir():
        made = _fit_region_features(task, progress)
        with store.new_directory(place) as scratch:
            if isinstance(made.model, DcrnnRegionModel):
                regions = task.traces.regions
                made.model.save(scratch / REGION, regions, origin)
            made.save(scratch, origin)
    with _advice(f"delete {place} to compute it again"):
        checkpoints.require_same(place, origin)
        return preparation.RegionFeatures.load(place)


def _fit_region_features(
    task: TrainingTask, progress: Progress
) -> preparation.RegionFeatures:
    settings, site_data, split = task.settings, task.site_data, task.split
    public = preparation.public_names(settings)
    names = [one for one in preparation.tally_names(settings) if one not in public]
    tally = preparation.count_tally(site_data, split, settings, progress, names)
    cases = task.all_cases if settings.macro_cases == "all" else None
    clock, seed = task.traces.clock, task.seed
    fitted = preparation.fit_region_states(
        tally, clock, settings, seed, progress, cases
    )
    incidence = preparation.hypergraph(task.traces, settings)
    raw = preparation.raw_state(site_data, split, incidence, fitted.states)
    moments = preparation.StateMoments.of(raw)
    return replace(fitted, scaling=preparation.StateScaling.of(moments, settings))


def shared_statistics(
    task: TrainingTask,
    region: preparation.RegionFeatures | None,
    progress: Progress = silent,
) -> preparation.SharedStatistics:
    """Compute the statistics over all people that every site receives."""
    data, split, settings = task.site_data, task.split, task.settings
    names = preparation.public_names(settings)
    tally = preparation.count_tally(data, split, settings, progress, names)
    shared = preparation.SharedStatistics.of(tally, task.traces.regions)
    if region is None:
        return shared
    return replace(shared, states=region.states, scaling=region.scaling)


def pseudo_traces_of(task: TrainingTask, progress: Progress = silent) -> PseudoTraces:
    """Return everybody's pseudo traces, identical to those of a training run."""
    shared = shared_statistics(task, None, progress)
    rng = task.seeds.pseudo(0)
    return preparation.pseudo_traces(task.traces, task.settings, shared, rng, progress)


def public_mobility(
    traces: Traces, pseudo: PseudoSettings, seed: int, progress: Progress = silent
) -> MobilityModel:
    """Fit the mobility model of a run, which is public and known to attackers."""
    people = np.arange(traces.people)
    group = preparation.mobility_group(people, pseudo.people_share, seed)
    return tally_mobility(traces, group, progress).model(traces.regions)


def _finished(task: TrainingTask, folder: Path, origin: store.Origin) -> Prediction:
    """Read the prediction of a finished training run; update its privacy cost."""
    place = folder / PREDICTION
    checkpoints.require_same(place, origin, exact=False)
    found, ledger = Prediction.load(place), finished_ledger(folder)
    # The process may have been killed before it removed the checkpoints.
    checkpoints.remove_all(folder)
    shutil.rmtree(folder / RATES, ignore_errors=True)
    return replace(found, spent=privacy_spent(task.settings.privacy.mode, ledger))


def finished_ledger(folder: Path) -> Ledger:
    """Open and verify the ledger of a finished training run."""
    head = checkpoints.verify_folder(folder / MODEL)["meta"].get(_HEAD)
    with _advice(_NO_LEDGER, folder / LEDGER):
        return Ledger.open(folder / LEDGER, head=head)


def best_model(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of the best round and verify their checksum."""
    store.verify(folder / MODEL)
    return read_tensors(folder / MODEL / WEIGHTS)


@contextlib.contextmanager
def _advice(way: str, path: Path | None = None) -> Iterator[None]:
    """Context manager that adds path and recovery hint to a ``CorruptFileError``."""
    try:
        yield
    except CorruptFileError as error:
        where = "" if path is None else f"{path}: "
        raise CorruptFileError(f"{where}{error}; {way}") from None
