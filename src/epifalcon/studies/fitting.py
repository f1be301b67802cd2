"""Train a method on what is known, and score everybody; resumable at any moment.

With a folder, everything that a resumed training needs stands there: features,
checkpoints and the ledger, whose every entry reaches the disk before a value
leaves. Noise, dropout and masks are fixed by seed, round and person, so a
training that is gone on with ends with the same bits.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epifalcon import store
from epifalcon.epidemic.splits import without
from epifalcon.errors import CorruptFileError, SettingsError
from epifalcon.federation import checkpoints
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import RoundReport, train
from epifalcon.federation.note_taking import NoteTaker
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.preparing import hypergraph, made_in_the_clear
from epifalcon.federation.spending import spent_figures
from epifalcon.federation.vectorised import VectorisedEngine
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.machine import pages_reused
from epifalcon.mobility.traces import Traces
from epifalcon.models import region_store
from epifalcon.models.tensor_files import read_tensors, write_tensors
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.studies.features import (
    Features,
    Task,
    everybodys_cases,
    make_features,
    pseudo_places,
    selection,
    validation_people,
)
from epifalcon.studies.looks import Look, Watch
from epifalcon.studies.method_folder import (
    FEATURES,
    LEDGER,
    MODEL,
    PREDICTION,
    RATES,
    REGION,
    WEIGHTS,
)
from epifalcon.studies.recording import (
    VIEW,
    checkpointed,
    keep_notes,
    require_room,
    take_notes,
)
from epifalcon.studies.watching import PROBABILITY, Watcher
from epifalcon.types import Plain, Probabilities

_HEAD = "ledger_head"
_NO_LEDGER = "put the file back as it was, or begin the run again with --overwrite"


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
        meta = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in ("probability", "looks")
        }
        meta["looks"] = [asdict(look) for look in self.looks]
        arrays = {"probability": self.probability}
        store.write(folder, PREDICTION, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Prediction":
        """Read what ``save`` wrote."""
        stored = store.read(folder, PREDICTION)
        values = dict(stored.meta)
        try:
            looks = tuple(Look.of(one) for one in values.pop("looks"))
            probability = np.array(stored.arrays["probability"])
            return cls(probability=probability, looks=looks, **values)
        except (KeyError, TypeError) as error:
            raise CorruptFileError(f"{folder}: the record is odd: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where a training keeps its things, and who listens to it."""

    folder: Path | None = None
    """None: in memory alone, nothing can be resumed."""
    checkpoint_seconds: float = 10.0
    """Least time between two checkpoints; 0 writes one after every round."""
    watch: Watch | None = None
    progress: Progress = silent
    began: float = field(default_factory=perf_counter)


def fit(task: Task, desk: Desk | None = None) -> Prediction:
    """Train on the known tests and score everybody.

    Equal tasks give equal bits on one machine, stopped and resumed or not. With
    privacy, the scores of the best round are those that people hold from it;
    nothing more is released.
    """
    desk = desk or Desk()
    origin = task.origin
    if desk.folder is not None and (desk.folder / PREDICTION).is_dir():
        return _ended(task, desk.folder, origin)
    features = _features(task, task.incidence, desk, origin)
    rates = task.settings.learning_rates
    if len(rates) == 1:
        settings = task.settings.with_learning_rate(rates[0])
        return _fit_rate(replace(task, settings=settings), features, desk, origin)
    tried = {}
    for number, rate in enumerate(rates):
        settings = task.settings.with_learning_rate(rate)
        one = replace(task, settings=settings)
        place = _desk_of_rate(desk, rate)
        # Each has initial weights of its own: some let every unit die at once.
        tried[rate] = _fit_rate(one, features, place, origin, number)
    best = min(rates, key=lambda rate: tried[rate].validation_log_loss)
    seconds = sum(one.seconds for one in tried.values())
    found = replace(tried[best], seconds=seconds)
    if desk.folder is not None:
        _keep_best_rate(desk.folder, desk.folder / RATES / f"{best:g}", found, origin)
    return found


def _desk_of_rate(desk: Desk, rate: float) -> Desk:
    """Return where the training with one of several learning rates is kept."""
    folder = None
    if desk.folder is not None:
        folder = desk.folder / RATES / f"{rate:g}"
        folder.mkdir(parents=True, exist_ok=True)
        store.clear_scratch(folder)

    def progress(name: str, done: int, total: int, told: str = "") -> None:
        desk.progress(f"{name}, learning rate {rate:g}", done, total, told)

    return replace(desk, folder=folder, progress=progress, began=perf_counter())


def _keep_best_rate(
    folder: Path, rate: Path, found: Prediction, origin: store.Origin
) -> None:
    """Copy what the best training left into the method's folder, the outcome last."""
    for name in (MODEL, VIEW):
        if (rate / name).is_dir():
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(rate / name, folder / name)
    shutil.copyfile(rate / LEDGER, folder / LEDGER)
    with store.new_directory(folder / PREDICTION) as scratch:
        found.save(scratch, origin)
    shutil.rmtree(folder / RATES)


def _fit_rate(
    task: Task,
    features: Features,
    desk: Desk,
    origin: store.Origin,
    attempt: int = 0,
) -> Prediction:
    """Train with the one learning rate of the task's settings.

    Each ``attempt`` draws its own initial weights.
    """
    if desk.folder is not None and (desk.folder / PREDICTION).is_dir():
        return _ended(task, desk.folder, origin)
    incidence = task.incidence
    resumed = None
    if desk.folder is not None:
        resumed = checkpoints.newest(desk.folder, origin)
    name = f"falcon training {attempt}" if attempt else "falcon training"
    seed = Streams(task.seed).seed_for(name)
    engine, taker = _engine(task, incidence, features, desk, resumed, seed)
    chosen_by = selection(task, features.held_back)
    watcher = Watcher(
        engine, chosen_by.people, chosen_by.infected, task.settings.stopping
    )
    if resumed is not None:
        engine.restore(resumed.engine)
        watcher.restore(resumed)

    def keep(seconds: float) -> None:
        if desk.folder is not None:
            made = watcher.checkpoint(seconds).with_more(*checkpointed(taker))
            checkpoints.save(desk.folder, made, origin)

    _train(engine, watcher, desk, keep)
    found = _prediction(engine, watcher, features, perf_counter() - desk.began)
    if desk.folder is not None:
        meta = {"round": found.best_round, _HEAD: engine.ledger.head}
        keep_notes(desk.folder, taker, origin)
        _keep(desk.folder, watcher, found, meta, origin)
    return found


def require_possible(task: Task) -> None:
    """Raise now what ``fit`` would raise of tests and settings that do not fit."""
    settings, traces = task.settings, task.traces
    clock = traces.clock
    selection(task, validation_people(task))
    # One person shows as well as all whether windows fit the slots.
    first = Traces(traces.by_slot[:, :1], clock, traces.regions)
    one = hypergraph(first, settings)
    tested = int(task.known.tested.sum())
    if settings.macro_cases == "reported" and settings.region.folds > tested // 2:
        raise SettingsError(
            f"region.folds={settings.region.folds} is too many for {tested:,} tested "
            "people: at least two are needed in each"
        )
    if settings.macro_cases != "none":
        settings.region.training.first_validation_day(clock.days)
    if settings.macro_cases == "all":
        everybodys_cases(task)
    copies = settings.pseudo.pseudo_copies
    plan = PrivacyPlan.of(settings.privacy, settings.model, releases_of(clock), copies)
    require_room(settings, one, traces.people, plan)


def _prediction(
    engine: VectorisedEngine, watcher: Watcher, features: Features, seconds: float
) -> Prediction:
    """The scores of the best look."""
    best = watcher.best
    if best is None:
        raise SettingsError("model.rounds: no round was run")
    return Prediction(
        probability=watcher.tensors[PROBABILITY].numpy(),
        learning_rate=engine.settings.learning_rate_at(1),
        best_round=best.round,
        validation_auc=best.auc,
        validation_log_loss=best.log_loss,
        looks=tuple(watcher.looks),
        spent=spent_figures(engine.plan.mode, engine.ledger),
        forecast=features.forecast,
        seconds=watcher.seconds_before + seconds,
        seconds_per_round=watcher.training_seconds / max(engine.round, 1),
    )


def _train(
    engine: VectorisedEngine,
    watcher: Watcher,
    desk: Desk,
    keep: Callable[[float], None],
) -> None:
    due = perf_counter() + desk.checkpoint_seconds
    told = ""

    def watch(report: RoundReport) -> bool:
        nonlocal due, told
        reuse_pages()
        watcher.training_seconds += report.seconds
        watcher.listen()
        if watcher.due():
            look = watcher.look(report.loss)
            told = look.told
            if desk.watch is not None:
                desk.watch(look)
        desk.progress("rounds", engine.round, engine.settings.rounds, told)
        now = perf_counter()
        if desk.folder is not None and now >= due and not watcher.ended:
            keep(now - desk.began)
            due = _next_checkpoint(desk.checkpoint_seconds, now)
        return watcher.ended

    if not watcher.ended:
        with pages_reused() as reuse_pages:
            train(engine, watch=watch)


def _next_checkpoint(pause: float, began: float) -> float:
    """When the next is due, after one that began at ``began`` and has just ended."""
    now = perf_counter()
    # However large the city, saving takes a twentieth of the time at most.
    return now + max(pause, 19 * (now - began) if pause else 0.0)


def _features(
    task: Task, incidence: Incidence, desk: Desk, origin: store.Origin
) -> Features:
    if desk.folder is None:
        return make_features(task, incidence, desk.progress)
    place = desk.folder / FEATURES
    if not place.is_dir():
        made = make_features(task, incidence, desk.progress)
        with store.new_directory(place) as scratch:
            if made.region is not None:
                regions = task.traces.regions
                region_store.save(made.region, regions, scratch / REGION, origin)
            made.save(scratch, origin)
    with _advice(f"delete {place} to make it again"):
        checkpoints.require_same(place, checkpoints.verified(place), origin)
        return Features.load(place)


def _engine(
    task: Task,
    incidence: Incidence,
    features: Features,
    desk: Desk,
    resumed: checkpoints.Checkpoint | None,
    seed: int,
) -> tuple[VectorisedEngine, NoteTaker | None]:
    """Return the engine and, if wanted, what records its messages."""
    settings = task.settings
    training = without(task.known, features.held_back)
    pseudo = pseudo_places(task, training, desk.progress)
    state = None if features.state is None else torch.from_numpy(features.state)
    cohort = Cohort.of_city(incidence, training.status, state, pseudo)
    releases = releases_of(task.traces.clock)
    plan = PrivacyPlan.of(settings.privacy, settings.model, releases, len(pseudo))
    ledger = _ledger(desk.folder, plan.budget, resumed)
    if resumed is None:
        has_states = features.state is not None
        follows, share = settings.pseudo.reads_cases, settings.pseudo.people_share
        ledger.record(*made_in_the_clear(plan, has_states, follows, share))
    taker = take_notes(settings.view, cohort, settings.model, plan, seed, resumed)
    engine = VectorisedEngine(cohort, settings.model, plan, seed, ledger, taker)
    return engine, taker


def _ledger(
    folder: Path | None, budget: Budget, resumed: checkpoints.Checkpoint | None
) -> Ledger:
    if folder is None:
        return Ledger(budget)
    path = folder / LEDGER
    with _advice(_NO_LEDGER, path):
        return checkpoints.ledger_of(path, budget, resumed)


def _keep(
    folder: Path,
    watcher: Watcher,
    found: Prediction,
    meta: Plain,
    origin: store.Origin,
) -> None:
    """The model of the best round and the scores; then nothing is to be resumed."""
    weights = {
        name: one for name, one in watcher.tensors.items() if name != PROBABILITY
    }
    with store.new_directory(folder / MODEL, overwrite=True) as scratch:
        write_tensors(scratch / WEIGHTS, weights)
        store.write_manifest(scratch, MODEL, meta=meta, origin=origin)
    with store.new_directory(folder / PREDICTION) as scratch:
        found.save(scratch, origin)
    checkpoints.remove_all(folder)


def _ended(task: Task, folder: Path, origin: store.Origin) -> Prediction:
    """What a training that has ended left in ``folder``, if it is this one.

    What was spent is what the ledger holds now: scorings of new people too.
    """
    place = folder / PREDICTION
    checkpoints.require_same(place, checkpoints.verified(place), origin, exact=False)
    found, ledger = Prediction.load(place), finished_ledger(folder)
    # A kill may have come between the prediction and the end of the checkpoints.
    checkpoints.remove_all(folder)
    shutil.rmtree(folder / RATES, ignore_errors=True)
    return replace(found, spent=spent_figures(task.settings.privacy.mode, ledger))


def finished_ledger(folder: Path) -> Ledger:
    """All that a finished training has released, every line of it checked."""
    head = checkpoints.verified(folder / MODEL)["meta"].get(_HEAD)
    with _advice(_NO_LEDGER, folder / LEDGER):
        return Ledger.open(folder / LEDGER, head=head)


@contextlib.contextmanager
def _advice(way: str, path: Path | None = None) -> Iterator[None]:
    """Tell with a broken file what can be done, and where it is."""
    try:
        yield
    except CorruptFileError as error:
        where = "" if path is None else f"{path}: "
        raise CorruptFileError(f"{where}{error}; {way}") from None


def best_model(folder: Path) -> dict[str, Tensor]:
    """What ``fit`` kept of the best round, by name; every byte is checked."""
    store.verify(folder / MODEL)
    return read_tensors(folder / MODEL / WEIGHTS)
