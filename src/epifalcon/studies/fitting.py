"""Train a method on what is known, and score everybody; resumable at any moment.

With a folder, everything that a resumed training needs stands there: features,
checkpoints and the ledger, whose every entry reaches the disk before a value
leaves. Noise, dropout and masks are fixed by seed, round and person, so a
training that is gone on with ends with the same bits.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epifalcon import store
from epifalcon.errors import CorruptFileError
from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.metrics import auc
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import RoundReport, predict, train
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import Mode, StoppingSettings
from epifalcon.federation.vectorised import VectorisedEngine
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.privacy.events import Terms, UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.studies import checkpoints
from epifalcon.studies.features import (
    Features,
    Task,
    make_features,
    pseudo_places,
    training_tests,
)
from epifalcon.studies.looks import Look, Watch
from epifalcon.types import Mask, PersonIds, Probabilities

_PREDICTION = "prediction"
_MODEL = "model"
_WEIGHTS = "model.safetensors"
LEDGER = "ledger.jsonl"
_HELD = "held"


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores of everybody, and how they came about."""

    probability: Probabilities
    """(people,)"""
    best_round: int
    validation_auc: float
    looks: tuple[Look, ...]
    spent: dict[str, Any]
    """``spent_figures`` of the ledger."""
    forecast: dict[str, Any] | None
    seconds: float
    seconds_per_round: float

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        meta = {
            name: getattr(self, name)
            for name in ("best_round", "validation_auc", "spent", "forecast")
        }
        meta |= {name: getattr(self, name) for name in ("seconds", "seconds_per_round")}
        meta["looks"] = [asdict(look) for look in self.looks]
        arrays = {"probability": self.probability}
        store.write(folder, _PREDICTION, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Prediction":
        """Read what ``save`` wrote."""
        stored = store.read(folder, _PREDICTION)
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
    """Least time between two checkpoints; 0 writes one after every look."""
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
    origin = store.Origin.now(as_plain(task.settings), task.seed)
    if desk.folder is not None and (desk.folder / _PREDICTION).is_dir():
        return Prediction.load(desk.folder / _PREDICTION)
    incidence = task.incidence
    features = _features(task, incidence, desk, origin)
    resumed = None
    if desk.folder is not None:
        resumed = checkpoints.newest(desk.folder, origin)
    engine = _engine(task, incidence, features, desk, resumed)
    truth = task.known.status[features.held_back] == 1
    watcher = _Watcher(engine, features.held_back, truth, task.settings.stopping)
    if resumed is not None:
        engine.restore(resumed.engine)
        watcher.restore(resumed)
    _train(engine, watcher, desk, origin)
    found = watcher.prediction(features, perf_counter() - desk.began)
    if desk.folder is not None:
        _keep(desk.folder, watcher, found, origin)
    return found


def spent_figures(mode: Mode, ledger: Ledger) -> dict[str, Any]:
    """What was spent, for JSON: epsilon by unit, None where nothing bounds it."""
    spent = ledger.spent()
    epsilon = {
        unit: value if mode != "off" and np.isfinite(value) else None
        for unit, value in spent.epsilon().items()
    }
    return {
        "mode": mode,
        "epsilon": epsilon,
        "delta": ledger.budget.delta,
        "channels": {
            channel: {unit: one.epsilon for unit, one in units.items()}
            for channel, units in spent.channels.items()
        },
        "relation": spent.total["person"].relation,
        "adversary": spent.total["person"].adversary,
        "unprotected": [
            {"channel": one.channel, "what": one.what, "rounds": one.rounds}
            for one in spent.unprotected
        ],
    }


class _Watcher:
    """Looks at the validation people, keeps the best look, says when to stop."""

    def __init__(
        self,
        engine: VectorisedEngine,
        people: PersonIds,
        infected: Mask,
        stopping: StoppingSettings,
    ) -> None:
        self._engine, self._people, self._infected = engine, people, infected
        self._stopping = stopping
        self._since = 0
        self._rounds_before, self._seconds_before = 0, 0.0
        self.training_seconds = 0.0
        self.looks: list[Look] = []
        self.best: tuple[int, float] = (0, -np.inf)
        self.tensors: dict[str, Tensor] = {}
        self.held: Tensor | None = None
        """(people,) running mean of the log odds that people received."""

    def due(self) -> bool:
        """Whether this is a round to look at."""
        rounds = self._engine.round
        every, last = self._stopping.check_every, self._engine.settings.rounds
        return rounds % every == 0 or rounds == last

    def look(self, loss: float) -> Look:
        """Take the scores of this round if they are the best so far."""
        engine = self._engine
        scores = self._scores()
        found = float(auc(curve(scores[self._people], self._infected)))
        epsilon = engine.ledger.spent().epsilon()["person"]
        if engine.plan.mode == "off":
            epsilon = np.inf
        self.looks.append(Look(engine.round, loss, found, epsilon))
        self._since += 1
        if found > self.best[1]:
            self.best, self._since = (engine.round, found), 0
            self.tensors = _kept(engine.state().tensors)
            self.tensors["probability"] = torch.from_numpy(scores)
        return self.looks[-1]

    def listen(self) -> None:
        """Add what people received in this round to what they hold."""
        memory = self._stopping.score_memory
        if memory == 0 or self._engine.plan.mode == "off":
            return
        now = torch.logit(torch.from_numpy(predict(self._engine)), eps=1e-9)
        held = self.held
        self.held = now if held is None else memory * held + (1 - memory) * now

    def _scores(self) -> Probabilities:
        return (
            predict(self._engine) if self.held is None else self.held.sigmoid().numpy()
        )

    @property
    def ended(self) -> bool:
        """Whether no better look came for long enough."""
        return self._since >= self._stopping.patience

    def checkpoint(self, seconds: float) -> checkpoints.Checkpoint:
        """Everything needed to go on; ``seconds`` of work so far are told too."""
        remembered = {
            "looks": [asdict(look) for look in self.looks],
            "since": self._since,
            "best": list(self.best),
            "seconds": self._seconds_before + seconds,
            "training_seconds": self.training_seconds,
        }
        tensors = dict(self.tensors)
        if self.held is not None:
            tensors[_HELD] = self.held
        return checkpoints.Checkpoint(self._engine.state(), tensors, remembered)

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Go on from ``checkpoint``."""
        told = checkpoint.remembered
        self.looks = [Look.of(one) for one in told["looks"]]
        self._since = told["since"]
        best_round, best_auc = told["best"]
        self.best = best_round, -np.inf if best_auc is None else best_auc
        self._seconds_before = told["seconds"]
        self.training_seconds = told["training_seconds"]
        self.tensors = dict(checkpoint.tensors)
        self.held = self.tensors.pop(_HELD, None)

    def prediction(self, features: Features, seconds: float) -> Prediction:
        """The scores of the best look."""
        return Prediction(
            probability=self.tensors["probability"].numpy(),
            best_round=self.best[0],
            validation_auc=self.best[1],
            looks=tuple(self.looks),
            spent=spent_figures(self._engine.plan.mode, self._engine.ledger),
            forecast=features.forecast,
            seconds=self._seconds_before + seconds,
            seconds_per_round=self.training_seconds / max(self._engine.round, 1),
        )


def _train(
    engine: VectorisedEngine, watcher: _Watcher, desk: Desk, origin: store.Origin
) -> None:
    saved = perf_counter()
    told = ""

    def watch(report: RoundReport) -> bool:
        nonlocal saved, told
        watcher.training_seconds += report.seconds
        watcher.listen()
        if watcher.due():
            look = watcher.look(report.loss)
            told = _told(look)
            if desk.watch is not None:
                desk.watch(look)
        desk.progress("rounds", engine.round, engine.settings.rounds, told)
        late = perf_counter() - saved >= desk.checkpoint_seconds
        if desk.folder is not None and late and not watcher.ended:
            seconds = perf_counter() - desk.began
            checkpoints.save(desk.folder, watcher.checkpoint(seconds), origin)
            saved = perf_counter()
        return watcher.ended

    if not watcher.ended:
        train(engine, watch=watch)


def _told(look: Look) -> str:
    spent = "" if np.isinf(look.epsilon) else f", epsilon {look.epsilon:,.3g} a person"
    return f"loss {look.loss:.3f}, validation AUC {look.auc:.3f}{spent}"


def _features(
    task: Task, incidence: Incidence, desk: Desk, origin: store.Origin
) -> Features:
    if desk.folder is None:
        return make_features(task, incidence, desk.progress)
    place = desk.folder / "features"
    if not place.is_dir():
        made = make_features(task, incidence, desk.progress)
        with store.new_directory(place) as scratch:
            made.save(scratch, origin)
    return Features.load(place)


def _engine(
    task: Task,
    incidence: Incidence,
    features: Features,
    desk: Desk,
    resumed: checkpoints.Checkpoint | None,
) -> VectorisedEngine:
    settings = task.settings
    training = training_tests(task.known, features.held_back)
    pseudo = pseudo_places(task, training, desk.progress)
    state = None if features.state is None else torch.from_numpy(features.state)
    cohort = Cohort.of_city(incidence, training.status, state, pseudo)
    releases = releases_of(task.traces.clock)
    plan = PrivacyPlan.of(settings.privacy, settings.model, releases, len(pseudo))
    ledger = Ledger(plan.budget)
    if desk.folder is not None:
        # Entries after the checkpoint are spent, and made again with equal noise.
        head = ledger.head if resumed is None else resumed.engine.ledger_head
        path = desk.folder / LEDGER
        if path.exists():
            ledger = Ledger.open(path, budget=plan.budget, head=head, replay=True)
        else:
            ledger = Ledger.open(path, budget=plan.budget)
    if resumed is None:
        ledger.record(*_made_in_the_clear(plan, features, len(pseudo)))
    seed = Streams(task.seed).seed_for("falcon training")
    return VectorisedEngine(cohort, settings.model, plan, seed, ledger)


def _made_in_the_clear(
    plan: PrivacyPlan, features: Features, copies: int
) -> list[UnprotectedRelease]:
    """Receipts of what is made from people's data before the rounds, without noise."""
    made = []
    if features.state is not None:
        made.append(("region model", "cases by region and day, and flows"))
    if copies:
        made.append(("mobility model", "visits and moves of all people, added up"))
    return [
        UnprotectedRelease(
            terms=Terms(
                channel=channel, releases=plan.releases, relation=plan.relation
            ),
            what=what,
        )
        for channel, what in made
    ]


def _keep(
    folder: Path, watcher: _Watcher, found: Prediction, origin: store.Origin
) -> None:
    """The model of the best round and the scores; then nothing is to be resumed."""
    weights = {
        name: one for name, one in watcher.tensors.items() if name != "probability"
    }
    with store.new_directory(folder / _MODEL, overwrite=True) as scratch:
        checkpoints.write_tensors(scratch / _WEIGHTS, weights)
        store.write_manifest(
            scratch, _MODEL, meta={"round": found.best_round}, origin=origin
        )
    with store.new_directory(folder / _PREDICTION) as scratch:
        found.save(scratch, origin)
    checkpoints.remove_all(folder)


def _kept(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is worth keeping of the best round: no moments of Adam."""
    return {
        name: one.clone()
        for name, one in tensors.items()
        if name.startswith("parameter/") or name in {"home/rows", "home/received"}
    }
