"""Train Falcon or HGNN in one process and score everybody; resumable at any moment.

One process is one site with everybody: preparation and early stopping are those of a
run over sites, so equal settings and seed give the same result in both.

Everything comes from the test results in ``Known``; held-out labels do not occur here.
Two exceptions reproduce the authors' program: ``macro_cases="all"`` reads everybody's
cases, ``selected_on="test"`` chooses the round on test people.

A folder stores region states, checkpoints and the ledger, whose every entry reaches the
disk before a value leaves. Noise, dropout and masks are fixed by seed, round and
person, so a resumed training ends with the same bits.
"""

import contextlib
import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from epifalcon import store
from epifalcon.epidemic.cases import COUNTS, tally_cases
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation import checkpoints, preparing
from epifalcon.federation.checkpoints import Checkpoint, spent_figures
from epifalcon.federation.client import Cohort
from epifalcon.federation.early_stopping import (
    EarlyStopping,
    Look,
    Watch,
    running_log_odds,
)
from epifalcon.federation.engine import RoundReport, VectorisedEngine, train
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.preparing import (
    Division,
    Household,
    Selection,
    StateScaling,
    Surrounding,
)
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.view import ServerView
from epifalcon.machine import pages_reused
from epifalcon.mobility.markov import MobilityModel, tally_mobility
from epifalcon.mobility.traces import Traces
from epifalcon.models.region_model import DcrnnRegionModel
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import read_tensors, write_tensors
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.pseudo_traces import PseudoSettings, PseudoTraces
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, fingerprint
from epifalcon.streams import Streams
from epifalcon.types import Floats, Plain, Probabilities

FEATURES, REGION = "features", "region"
"""Folder of the region states, and of the region model inside it."""
MODEL, WEIGHTS = "model", "model.safetensors"
PREDICTION = "prediction"
LEDGER = "ledger.jsonl"
RATES = "rates"
"""Unfinished trainings with several learning rates, one folder each."""
_HEAD = "ledger_head"
_NO_LEDGER = "put the file back as it was, or begin the run again with --overwrite"
_PROBABILITY, _HELD = "probability", "held"
_TESTS = ("person", "positive", "slot")


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on, with which settings and seed."""

    traces: Traces
    """As reported; the true ones may hold more."""
    known: Known
    settings: PredictionSettings
    seed: int
    all_cases: Floats | None = None
    """(regions, days) of everybody; only for ``macro_cases="all"``."""
    test_people: Selection | None = None
    """Of untested people; only for ``stopping.selected_on="test"``."""

    def __post_init__(self) -> None:
        _ = self.home

    @property
    def home(self) -> Household:
        """Everybody as one site."""
        return Household(self.traces, self.known)

    @property
    def division(self) -> Division:
        """Validation people and folds, by seed and person."""
        return preparing.divide(self.home, self.settings, self.seed)

    @property
    def origin(self) -> store.Origin:
        """The settings and a fingerprint of the data, for stored records."""
        arrays: dict[str, NDArray[Any]] = {
            "by_slot": self.traces.by_slot,
            **{name: getattr(self.known, name) for name in _TESTS},
            **self.traces.regions.pack(),
        }
        if self.all_cases is not None:
            arrays["all_cases"] = self.all_cases
        if self.test_people is not None:
            arrays["test_people"] = self.test_people.infected
        data = {"clock": as_plain(self.traces.clock), "arrays": _digest(arrays)}
        settings = {**as_plain(self.settings), "data_sha256": fingerprint(data)}
        return store.Origin.now(settings, self.seed)


class Recorder(Protocol):
    """Records what a curious server sees of a training."""

    def start(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        resumed: Checkpoint | None,
    ) -> ServerView:
        """Begin a recording, or continue the one in a checkpoint."""

    def checkpoint(self, made: Checkpoint) -> Checkpoint:
        """Return the checkpoint with what is recorded so far."""

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the recording beside the prediction, unless it is there already."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores of everybody, and how they came about."""

    probability: Probabilities
    """(people,)"""
    learning_rate: float
    best_round: int
    validation_auc: float
    """AUC of the people who chose the round: see ``stopping.selected_on``."""
    validation_log_loss: float
    looks: tuple[Look, ...]
    spent: dict[str, Any]
    """``spent_figures`` of the ledger."""
    forecast: dict[str, Any] | None
    seconds: float
    seconds_per_round: float

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        meta = asdict(self)
        arrays = {_PROBABILITY: meta.pop(_PROBABILITY)}
        store.write(folder, PREDICTION, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Prediction":
        """Read what ``save`` wrote."""
        stored = store.read(folder, PREDICTION)
        values = dict(stored.meta)
        try:
            looks = tuple(Look.of(one) for one in values.pop("looks"))
            probability = np.array(stored.arrays[_PROBABILITY])
            for name in ("validation_auc", "validation_log_loss"):
                values[name] = math.nan if values[name] is None else values[name]
            return cls(probability=probability, looks=looks, **values)
        except (KeyError, TypeError) as error:
            raise CorruptFileError(f"{folder}: the record is odd: {error}") from None


@dataclass(frozen=True, eq=False)
class RegionFeatures:
    """Region states, their scaling, and how forecasts were evaluated."""

    states: NDArray[np.float32]
    """(1 + folds, regions, days, width)."""
    scaling: StateScaling
    forecast: dict[str, Any]
    model: DcrnnRegionModel | None = None
    """For people who come later; not read back by ``load``."""

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        arrays: dict[str, NDArray[Any]] = {"states": self.states, **vars(self.scaling)}
        meta = {"forecast": self.forecast}
        store.write(folder, FEATURES, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "RegionFeatures":
        """Read what ``save`` wrote."""
        stored = store.read(folder, FEATURES)
        states, centre, factor = (
            np.array(stored.arrays[name]) for name in ("states", "centre", "factor")
        )
        return cls(states, StateScaling(centre, factor), stored.meta["forecast"])


@dataclass(frozen=True, kw_only=True)
class _Output:
    """Where a training stores its files, and who is informed."""

    folder: Path | None
    checkpoint_seconds: float
    watch: Watch | None
    progress: Progress
    recorder: Recorder | None
    start: float = field(default_factory=perf_counter)

    def of_rate(self, rate: float) -> "_Output":
        """Return the output of a training with one of several learning rates."""
        folder = None
        if self.folder is not None:
            folder = self.folder / RATES / f"{rate:g}"
            folder.mkdir(parents=True, exist_ok=True)
            store.clear_scratch(folder)

        def progress(name: str, done: int, total: int, told: str = "") -> None:
            self.progress(f"{name}, learning rate {rate:g}", done, total, told)

        return replace(self, folder=folder, progress=progress, start=perf_counter())


def fit(
    task: Task,
    *,
    folder: Path | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Watch | None = None,
    progress: Progress = silent,
    recorder: Recorder | None = None,
) -> Prediction:
    """Train on the known tests and score everybody.

    Equal tasks give equal bits on one machine, stopped and resumed or not. With
    privacy, the scores of the best round are those that people hold from it; nothing
    more is released.

    Parameters
    ----------
    folder
        Stores everything that a resumed training needs; None stores nothing.
    checkpoint_seconds
        Minimum time between two checkpoints; 0 writes one after every round.
    watch
        Called with every look at the validation people.
    recorder
        Records what a curious server sees of a sample of people.
    """
    origin = task.origin
    if folder is not None and (folder / PREDICTION).is_dir():
        return _finished(task, folder, origin)
    require_possible(task)
    region = _region_features(task, folder, origin, progress)
    around = surrounding(task, region, progress)
    rng = RunSeeds(task.seed).pseudo(0)
    cohort = preparing.cohort_of(
        task.home, task.division, task.settings, around, rng, progress
    )
    forecast = None if region is None else region.forecast
    output = _Output(
        folder=folder,
        checkpoint_seconds=checkpoint_seconds,
        watch=watch,
        progress=progress,
        recorder=recorder,
    )
    rates, tried = task.settings.learning_rates, []
    for attempt, rate in enumerate(rates):
        one = replace(task, settings=task.settings.with_learning_rate(rate))
        place = output if len(rates) == 1 else output.of_rate(rate)
        # Each has initial weights of its own: some let every unit die at once.
        tried.append(_fit_rate(one, cohort, forecast, place, origin, attempt))
    if len(rates) == 1:
        return tried[0]
    best = min(tried, key=lambda one: one.validation_log_loss)
    found = replace(best, seconds=sum(one.seconds for one in tried))
    if folder is not None:
        # The scores come last: they mark a finished training.
        rate_folder = folder / RATES / f"{rates[tried.index(best)]:g}"
        scores = shutil.ignore_patterns(PREDICTION)
        shutil.copytree(rate_folder, folder, ignore=scores, dirs_exist_ok=True)
        with store.new_directory(folder / PREDICTION) as scratch:
            found.save(scratch, origin)
        shutil.rmtree(folder / RATES)
    return found


def _fit_rate(
    task: Task,
    cohort: Cohort,
    forecast: dict[str, Any] | None,
    output: _Output,
    origin: store.Origin,
    attempt: int = 0,
) -> Prediction:
    """Train with one learning rate; each ``attempt`` draws its own weights."""
    settings, folder, recorder = task.settings, output.folder, output.recorder
    if folder is not None and (folder / PREDICTION).is_dir():
        return _finished(task, folder, origin)
    resumed = None if folder is None else checkpoints.newest(folder, origin)
    seed = task.seed
    if attempt:
        seed = Streams(seed).seed_for(f"falcon training {attempt}")
    plan = PrivacyPlan.for_run(settings, task.traces.clock)
    ledger = Ledger(plan.budget)
    if folder is not None:
        with _advice(_NO_LEDGER, folder / LEDGER):
            ledger = checkpoints.ledger_of(folder / LEDGER, plan.budget, resumed)
    chosen_by = selection(task)
    if resumed is None:
        validation = settings.stopping.selected_on == "validation"
        ledger.record(
            *preparing.unprotected_receipts(plan, settings, validation=validation)
        )
    view = None
    if recorder is not None:
        view = recorder.start(cohort, settings.model, plan, seed, resumed)
    engine = VectorisedEngine(cohort, settings.model, plan, seed, ledger, view)
    training = _Training(engine, chosen_by, settings)
    if resumed is not None:
        engine.restore(resumed.engine)
        training.restore(resumed)
    _train(training, output, origin)
    found = training.prediction(forecast, perf_counter() - output.start)
    if folder is None:
        return found
    if recorder is not None:
        recorder.save(folder, origin)
    meta = {"round": found.best_round, _HEAD: ledger.head}
    with store.new_directory(folder / MODEL, overwrite=True) as scratch:
        write_tensors(scratch / WEIGHTS, training.weights)
        store.write_manifest(scratch, MODEL, meta=meta, origin=origin)
    with store.new_directory(folder / PREDICTION) as scratch:
        found.save(scratch, origin)
    checkpoints.remove_all(folder)
    return found


class _Training:
    """A training and its best look so far."""

    def __init__(
        self,
        engine: VectorisedEngine,
        chosen_by: Selection,
        settings: PredictionSettings,
    ) -> None:
        self.engine = engine
        self.stopping = EarlyStopping(settings.stopping, settings.privacy)
        self.weights: dict[str, Tensor] = {}
        """Of the best look: the model and what people held, without Adam's moments."""
        self._chosen_by, self._probability = chosen_by, np.zeros(0)
        self._memory = settings.stopping.score_memory if engine.plan.is_private else 0
        self._held: Floats | None = None
        self._seconds_before, self._training_seconds = 0.0, 0.0

    def after_round(self, report: RoundReport) -> Look | None:
        """Update what people hold; look at the validation people if it is time."""
        engine, chosen_by = self.engine, self._chosen_by
        self._training_seconds += report.seconds
        if self._memory:
            scores = engine.scores()
            self._held = running_log_odds(self._held, scores, self._memory)
        if not self.stopping.due(engine.round, engine.settings.rounds):
            return None
        scores = engine.scores() if self._held is None else expit(self._held)
        risks, infected = scores[chosen_by.people], chosen_by.infected
        look = Look.at(engine.round, report.loss, risks, infected, self._epsilon())
        if self.stopping.take(look):
            self._probability = scores
            self.weights = {
                name: one.clone()
                for name, one in engine.state().tensors.items()
                if _is_weight(name)
            }
        return look

    def _epsilon(self) -> float:
        """Return the epsilon of a person after the rounds done.

        The ledger of a resumed training may hold later rounds already.
        """
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

    def checkpoint(self, seconds: float) -> Checkpoint:
        """Return everything needed to continue after ``seconds`` of work."""
        remembered = {
            **self.stopping.as_plain(),
            "seconds": self._seconds_before + seconds,
            "training_seconds": self._training_seconds,
        }
        tensors = {**self.weights, _PROBABILITY: torch.from_numpy(self._probability)}
        if self._held is not None:
            tensors[_HELD] = torch.from_numpy(self._held)
        return Checkpoint(self.engine.state(), tensors, remembered)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from ``checkpoint``."""
        remembered, tensors = checkpoint.remembered, checkpoint.tensors
        self.stopping.restore(remembered)
        self._seconds_before = remembered["seconds"]
        self._training_seconds = remembered["training_seconds"]
        self.weights = {name: one for name, one in tensors.items() if _is_weight(name)}
        self._probability = tensors[_PROBABILITY].numpy()
        self._held = tensors[_HELD].numpy() if _HELD in tensors else None

    def prediction(self, forecast: Plain | None, seconds: float) -> Prediction:
        """Return the scores of the best look."""
        engine, best = self.engine, self.stopping.best
        if best is None:
            raise SettingsError("model.rounds: no round was run")
        return Prediction(
            probability=self._probability,
            learning_rate=engine.settings.learning_rate_at(1),
            best_round=best.round,
            validation_auc=best.auc,
            validation_log_loss=best.log_loss,
            looks=tuple(self.stopping.looks),
            spent=spent_figures(engine.plan.mode, engine.ledger),
            forecast=None if forecast is None else dict(forecast),
            seconds=self._seconds_before + seconds,
            seconds_per_round=self._training_seconds / max(engine.round, 1),
        )


def _is_weight(name: str) -> bool:
    return name.startswith("parameter/") or name in ("home/rows", "home/received")


def _train(training: _Training, output: _Output, origin: store.Origin) -> None:
    """Run the remaining rounds, with checkpoints in the folder."""
    engine, stopping, folder = training.engine, training.stopping, output.folder
    due = perf_counter() + output.checkpoint_seconds
    text = ""

    def watch(report: RoundReport) -> bool:
        nonlocal due, text
        reuse_pages()
        look = training.after_round(report)
        if look is not None:
            text = look.told
            if output.watch is not None:
                output.watch(look)
        output.progress("rounds", engine.round, engine.settings.rounds, text)
        now = perf_counter()
        if folder is not None and now >= due and not stopping.ended:
            made = training.checkpoint(now - output.start)
            if output.recorder is not None:
                made = output.recorder.checkpoint(made)
            checkpoints.save(folder, made, origin)
            # Saving takes a twentieth of the time at most, however large the city.
            pause, took = output.checkpoint_seconds, perf_counter() - now
            due = perf_counter() + (max(pause, 19 * took) if pause else 0)
        return stopping.ended

    if not stopping.ended:
        with pages_reused() as reuse_pages:
            train(engine, watch=watch)


def require_possible(task: Task) -> None:
    """Raise what ``fit`` would raise because tests and settings do not fit."""
    settings, traces, clock = task.settings, task.traces, task.traces.clock
    status, division = task.known.status, task.division
    for result, word in ((1, "positive"), (0, "negative")):
        if (count := int((status == result).sum())) < 2:
            raise DataError(
                f"{count} people tested {word}: at least 2 are needed, one to learn "
                "from and one for validation"
            )
        if not (division.training.status == result).any():
            raise SettingsError(
                f"stopping.validation_share={settings.stopping.validation_share} holds "
                f"back all {count} people tested {word}: nobody is left to learn from; "
                "choose a smaller share or another seed"
            )
    selection(task)
    # One person shows as well as all whether windows fit the slots.
    preparing.hypergraph(Traces(traces.by_slot[:, :1], clock, traces.regions), settings)
    tested = int(task.known.tested.sum())
    if settings.macro_cases == "reported" and settings.region.folds > tested // 2:
        raise SettingsError(
            f"region.folds={settings.region.folds} is too many for {tested:,} tested "
            "people: at least two are needed in each"
        )
    if settings.uses_region_model:
        settings.region.training.first_validation_day(clock.days)
    if settings.macro_cases == "all" and task.all_cases is None:
        raise SettingsError(
            "region.macro_cases='all' needs a simulated outbreak: of these people "
            "only the tests are known"
        )
    PrivacyPlan.for_run(settings, clock)


def selection(task: Task) -> Selection:
    """Return the people whose results choose the round."""
    if task.settings.stopping.selected_on == "validation":
        held_back = task.division.held_back
        return Selection(held_back, task.known.status[held_back] == 1)
    if task.test_people is None or not len(task.test_people.people):
        raise SettingsError(
            "stopping.selected_on='test' needs a simulated outbreak: of these people "
            "only the tests are known"
        )
    return task.test_people


def _region_features(
    task: Task, folder: Path | None, origin: store.Origin, progress: Progress
) -> RegionFeatures | None:
    """Read the region features from the folder, or make and store them."""
    if not task.settings.uses_region_model:
        return None
    if folder is None:
        return _fit_region_features(task, progress)
    place = folder / FEATURES
    if not place.is_dir():
        made = _fit_region_features(task, progress)
        with store.new_directory(place) as scratch:
            if made.model is not None:
                regions = task.traces.regions
                made.model.save(scratch / REGION, regions, origin)
            made.save(scratch, origin)
    with _advice(f"delete {place} to make it again"):
        checkpoints.require_same(place, origin)
        return RegionFeatures.load(place)


def _fit_region_features(task: Task, progress: Progress) -> RegionFeatures:
    settings, home, division = task.settings, task.home, task.division
    tally = preparing.count_tally(home, division, settings, progress)
    cases = task.all_cases if settings.macro_cases == "all" else None
    fitted = preparing.fit_region_states(
        tally, task.traces.clock, settings, task.seed, progress, cases
    )
    incidence = preparing.hypergraph(task.traces, settings)
    raw = preparing.raw_state(home, division, incidence, fitted.states)
    scaling = StateScaling.of(preparing.StateMoments.of(raw), settings)
    model = fitted.model if isinstance(fitted.model, DcrnnRegionModel) else None
    return RegionFeatures(fitted.states, scaling, fitted.forecast, model)


def surrounding(
    task: Task, region: RegionFeatures | None, progress: Progress = silent
) -> Surrounding:
    """Return what devices share: mobility model, cases and region states."""
    settings = task.settings
    mobility = cases = None
    if settings.uses_pseudo_traces:
        mobility = public_mobility(task.traces, settings.pseudo, task.seed, progress)
    if settings.pseudo_follows_cases:
        cases = tally_cases(task.division.training, task.traces, COUNTS).cases
    if region is None:
        return Surrounding(mobility, cases)
    return Surrounding(mobility, cases, region.states, region.scaling)


def pseudo_traces_of(task: Task, progress: Progress = silent) -> PseudoTraces:
    """Return the pseudo traces of everybody, as the devices of a run make them."""
    around = surrounding(task, None, progress)
    rng = RunSeeds(task.seed).pseudo(0)
    return preparing.pseudo_traces(task.traces, task.settings, around, rng, progress)


def public_mobility(
    traces: Traces, pseudo: PseudoSettings, seed: int, progress: Progress = silent
) -> MobilityModel:
    """Fit the public mobility model of a run on its sampled group of people.

    Devices draw pseudo traces from it, and attackers have it too: equal arguments
    give the same group.
    """
    people = np.arange(traces.people)
    group = preparing.mobility_group(people, pseudo.people_share, seed)
    return tally_mobility(traces, group, progress).model(traces.regions)


def _finished(task: Task, folder: Path, origin: store.Origin) -> Prediction:
    """Return what a finished training left in ``folder``, if it is this one.

    What was spent is what the ledger holds now, scorings of new people included.
    """
    place = folder / PREDICTION
    checkpoints.require_same(place, origin, exact=False)
    found, ledger = Prediction.load(place), finished_ledger(folder)
    # A kill may have come between the prediction and the end of the checkpoints.
    checkpoints.remove_all(folder)
    shutil.rmtree(folder / RATES, ignore_errors=True)
    return replace(found, spent=spent_figures(task.settings.privacy.mode, ledger))


def finished_ledger(folder: Path) -> Ledger:
    """Open the ledger of a finished training; every line is checked."""
    head = checkpoints.verified(folder / MODEL)["meta"].get(_HEAD)
    with _advice(_NO_LEDGER, folder / LEDGER):
        return Ledger.open(folder / LEDGER, head=head)


def best_model(folder: Path) -> dict[str, Tensor]:
    """Read the model of the best round; every byte is checked."""
    store.verify(folder / MODEL)
    return read_tensors(folder / MODEL / WEIGHTS)


@contextlib.contextmanager
def _advice(way: str, path: Path | None = None) -> Iterator[None]:
    """Add the path and a recovery hint to a ``CorruptFileError``."""
    try:
        yield
    except CorruptFileError as error:
        where = "" if path is None else f"{path}: "
        raise CorruptFileError(f"{where}{error}; {way}") from None


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of arrays by name."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
