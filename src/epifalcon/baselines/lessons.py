"""The training loop of all networks: lessons, looks at validation, checkpoints."""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon import store
from epifalcon.baselines.method import BEST_STEP, LEARNING_RATE, STEP_LIMIT, Scene
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.machine import pages_reused
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import read_tensors, tensors_under, write_tensors
from epifalcon.models.threads import threads
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import Plain, Probabilities

_KIND = "rival-checkpoint"
TRAINING = "training"
"""Where a training that is not finished is kept."""
_TENSORS = "tensors.safetensors"


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a network is shown, and whose results are asked for."""

    x: Tensor | None
    """(people, days, channels); None where the network has rows of its own."""
    status: Tensor
    """(people,) visible results: 1, 0, or -1."""
    people: Tensor
    """(asked,) whose results the loss compares."""
    infected: Tensor
    """(asked,) float32, 0 or 1."""


@dataclass(frozen=True, eq=False)
class Lessons:
    """All lessons of one training."""

    parts: tuple[Lesson, ...]
    """Taken in turn; none shows a result that it asks for."""
    look: Lesson
    """Shows all training results, asks the validation people."""
    final: Lesson
    """Shows every test; what it tells of people without one is the outcome."""
    base: float
    """Log odds of the share of positive tests."""


class LoopSettings(Protocol):
    """What the loop reads of a network's settings."""

    @property
    def learning_rates(self) -> tuple[float, ...]: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def check_every(self) -> int: ...
    @property
    def patience(self) -> int: ...


@dataclass(eq=False)
class Best:
    """The network at its best look."""

    network: nn.Module
    loss: float = math.inf
    """Log loss of the validation people."""
    steps: int = 0
    """Of training in all, every learning rate together."""
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers the network learnt."""
        return sum(one.numel() for one in self.network.parameters())

    def risk(self, lesson: Lesson) -> Probabilities:
        """Everybody's probability: (people,)."""
        return _odds(self.network, lesson).double().sigmoid().numpy()


@dataclass(frozen=True, eq=False)
class Keeper:
    """Keeps a training on disk now and then, so that it can go on bit by bit.

    It stands in ``folder / TRAINING`` and is left there at the end: whoever
    keeps the outcome removes it then, so that no moment is without either.
    """

    folder: Path | None
    origin: store.Origin
    every_seconds: float = 20.0
    progress: Progress = silent
    name: str = "network"

    @classmethod
    def of(
        cls, scene: Scene, name: str, settings: Plain, data: tuple[Traces, Known]
    ) -> "Keeper":
        """The keeper of the training of method ``name`` on ``data``."""
        traces, known = data
        digest = hashlib.sha256()
        for array in (traces.by_slot, known.person, known.positive, known.slot):
            digest.update(f"{traces.clock.slots_per_day} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        told = {"method": name, **settings, "data_sha256": digest.hexdigest()}
        origin = store.Origin.now(told, scene.seed)
        return cls(scene.folder, origin, scene.checkpoint_seconds, scene.progress, name)

    def save(self, remembered: Plain, tensors: dict[str, Tensor]) -> None:
        """Put the state on disk, whole, in place of the one before."""
        if self.folder is None:
            return
        with store.new_directory(self.folder / TRAINING, overwrite=True) as scratch:
            write_tensors(scratch / _TENSORS, tensors)
            store.write_manifest(scratch, _KIND, meta=remembered, origin=self.origin)

    def load(self) -> tuple[Plain, dict[str, Tensor]] | None:
        """The state on disk; ``DataError`` where it is of another training."""
        if self.folder is None or not self.folder.is_dir():
            return None
        place = self.folder / TRAINING
        store.clear_scratch(self.folder, TRAINING)
        if not place.is_dir():
            return None
        try:
            manifest = store.verify(place)
            tensors = read_tensors(place / _TENSORS)
        except (CorruptFileError, DataError) as error:
            raise CorruptFileError(
                f"{error}; delete {place} to begin the training again"
            ) from None
        kept = store.Origin(
            manifest["settings"], manifest["seed"], manifest["versions"]
        )
        wanted = store.Origin(
            dict(self.origin.settings), self.origin.seed, dict(self.origin.versions)
        )
        if manifest["kind"] != _KIND or kept != wanted:
            raise DataError(
                f"{place}: belongs to a training with other data, settings, seed or "
                "versions; delete it to begin again"
            )
        return manifest["meta"], tensors


def learn(
    build: Callable[[], nn.Module],
    lessons: Lessons,
    settings: LoopSettings,
    keeper: Keeper,
) -> Best:
    """Train a network for each learning rate; the best of all looks is kept.

    Random numbers come from the seed and the step alone, so a training that was
    stopped and gone on with ends in the same bits. One thread trains: with more,
    torch rounds norms, softmax and thin products otherwise, after some hundred steps
    that is the third digit of an AUC, and a table would depend on how many methods
    ran side by side.
    """
    loop = _Loop(build, lessons, settings, keeper)
    kept = keeper.load()
    if kept is not None:
        loop.restore(*kept)
    with threads(1), pages_reused() as reuse_pages:
        while loop.rate < len(settings.learning_rates):
            loop.train_one_rate(reuse_pages)
    return loop.best


class _Loop:
    """The state of a training: which learning rate, which step, the best so far."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        lessons: Lessons,
        settings: LoopSettings,
        keeper: Keeper,
    ) -> None:
        self._build, self._lessons = build, lessons
        self._settings, self._keeper = settings, keeper
        self._streams = Streams(keeper.origin.seed or 0)
        self.rate = 0
        self._begin()
        # Built again, not copied: what it stands on is then shared.
        with self._seeded("first"):
            self.best = Best(self._build())

    def _begin(self) -> None:
        """A new network, for the learning rate whose turn it is."""
        with self._seeded("first"):
            self._network = self._build()
        rate = self._settings.learning_rates[self.rate]
        self._optimiser = torch.optim.Adam(
            self._network.parameters(), rate, weight_decay=self._settings.weight_decay
        )
        self._step, self._since, self._lowest = 0, 0, math.inf

    def train_one_rate(self, after_a_step: Callable[[], None]) -> None:
        """Go on with this learning rate to its end, then turn to the next."""
        settings, due = self._settings, perf_counter() + self._keeper.every_seconds
        while self._step < settings.steps and self._since < settings.patience:
            self._learn_once()
            after_a_step()
            if self._step % settings.check_every == 0 or self._step == settings.steps:
                self._look()
            self._tell()
            if perf_counter() >= due:
                self._save()
                due = perf_counter() + self._keeper.every_seconds
        self.rate += 1
        if self.rate < len(settings.learning_rates):
            self._begin()

    def _learn_once(self) -> None:
        parts = self._lessons.parts
        lesson = parts[self._step % len(parts)]
        self._network.train()
        with self._seeded(f"step {self._step}"):
            odds = self._network(lesson)[lesson.people]
            loss = functional.binary_cross_entropy_with_logits(odds, lesson.infected)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._network.parameters(), 5.0)
        self._optimiser.step()
        self._step += 1
        self.best.steps += 1
        if not math.isfinite(float(loss.detach())):
            raise DataError(
                f"{self._keeper.name}: the loss of step {self._step} is not a finite "
                "number: choose smaller learning_rates"
            )

    def _look(self) -> None:
        lesson = self._lessons.look
        odds = _odds(self._network, lesson)[lesson.people]
        found = functional.binary_cross_entropy_with_logits(odds, lesson.infected)
        loss = float(found)
        self._since += 1
        if loss < self._lowest:
            self._lowest, self._since = loss, 0
        if loss < self.best.loss:
            self.best.loss = loss
            self.best.network.load_state_dict(self._network.state_dict())
            self.best.told = {
                LEARNING_RATE: self._settings.learning_rates[self.rate],
                BEST_STEP: self._step,
                STEP_LIMIT: self._settings.steps,
                "validation_log_loss": loss,
            }

    def _tell(self) -> None:
        rates = self._settings.learning_rates
        total = self._settings.steps * len(rates)
        done = self._settings.steps * self.rate + self._step
        told = f"validation log loss {self.best.loss:.4f}"
        self._keeper.progress(f"{self._keeper.name}: steps", done, total, told)

    def _save(self) -> None:
        moments = {
            f"adam/{index}/{name}": torch.as_tensor(one)
            for index, state in self._optimiser.state_dict()["state"].items()
            for name, one in state.items()
        }
        now = {f"now/{name}": one for name, one in self._network.state_dict().items()}
        best = self.best.network.state_dict()
        kept = {f"best/{name}": one for name, one in best.items()}
        remembered = {
            "rate": self.rate,
            "step": self._step,
            "since": self._since,
            "lowest": self._lowest,
            "best_loss": self.best.loss,
            "best_steps": self.best.steps,
            "told": self.best.told,
        }
        self._keeper.save(remembered, {**moments, **now, **kept})

    def restore(self, remembered: Plain, tensors: dict[str, Tensor]) -> None:
        """Go on from what ``_save`` kept."""
        self.rate = remembered["rate"]
        self._begin()
        self._network.load_state_dict(tensors_under(tensors, "now/"))
        self.best.network.load_state_dict(tensors_under(tensors, "best/"))
        state = self._optimiser.state_dict()
        for name, one in tensors_under(tensors, "adam/").items():
            index, _, moment = name.partition("/")
            state["state"].setdefault(int(index), {})[moment] = one
        self._optimiser.load_state_dict(state)
        self._step, self._since = remembered["step"], remembered["since"]
        self._lowest = or_infinite(remembered["lowest"])
        self.best.loss = or_infinite(remembered["best_loss"])
        self.best.steps = remembered["best_steps"]
        self.best.told = dict(remembered["told"])

    @contextmanager
    def _seeded(self, what: str) -> Iterator[None]:
        """Torch's global numbers from this training's seed, for a while."""
        with torch.random.fork_rng(devices=[]):
            name = f"{self._keeper.name} {self.rate} {what}"
            torch.manual_seed(self._streams.seed_for(name))
            yield


def _odds(network: nn.Module, lesson: Lesson) -> Tensor:
    network.eval()
    with torch.no_grad(), threads(1):
        odds: Tensor = network(lesson)
    return odds


def or_infinite(value: float | None) -> float:
    """A loss that was remembered; JSON has no word for "none yet"."""
    return math.inf if value is None else value
