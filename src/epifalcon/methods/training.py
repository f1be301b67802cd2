"""Training loop of all trained methods: early stopping, checkpoints, progress."""

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, Literal, Protocol

from torch import Tensor

from epifalcon import store
from epifalcon.checks import Checked, Count, NonNegative, Positive, Share, some
from epifalcon.epidemic.test_results import TestResults, draw_validation_people
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation.checkpoints import require_same
from epifalcon.federation.network.site_files import digest
from epifalcon.federation.preparation import SiteData
from epifalcon.machine import pages_reused
from epifalcon.methods.base import (
    BEST_STEP,
    LEARNING_RATE,
    STEP_LIMIT,
    Context,
    Method,
    require_both,
)
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import (
    read_tensors,
    tensors_under,
    threads,
    write_tensors,
)
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.types import PersonIds, Plain

TRAINING = "training"
"""Name of the folder with the checkpoint of an unfinished training."""
_KIND = "rival-checkpoint"
_TENSORS = "tensors.safetensors"


LearningRates = Annotated[tuple[Positive, ...], some]


@dataclass(frozen=True, kw_only=True)
class LearnerSettings(Checked):
    """Settings shared by all trained methods."""

    input: Literal["exposure", "embedding"] = "exposure"
    width: Count = 32
    """Width of the hidden layers and of the embedding."""
    learning_rates: LearningRates = (0.01, 0.003)
    """Candidate learning rates; the lowest validation loss selects one."""
    weight_decay: NonNegative = 0.0005
    check_every: Count = 5
    patience: Count = 8
    """Number of validations without improvement before training stops."""
    validation_share: Share = 0.1


def validation_people(method: Method, known: TestResults) -> PersonIds:
    """Draw the validation people; without both kinds of results, raise."""
    require_both(known)
    rng = Streams(method.seed).numpy("validation people")
    return draw_validation_people(known, method.settings.validation_share, rng)


class Learner(Protocol):
    """Interface of models for ``train``."""

    def restart(self, rate_number: int, learning_rate: float) -> None:
        """Initialise new parameters for the given learning rate."""

    def step(self, number: int) -> None:
        """Run training step ``number``, counted from 0."""

    def validate(self) -> float:
        """Return the log loss on the validation people."""

    def parameters(self) -> dict[str, Tensor]:
        """Return the current parameters; ``train`` copies them."""

    def state(self) -> dict[str, Tensor]:
        """Return the state needed to resume training."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by ``state``."""


@dataclass(eq=False)
class Trained:
    """Parameters with the lowest validation loss, and the training progress."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    loss: float = math.inf
    steps: int = 0
    """Number of steps over all learning rates."""
    diagnostics: dict[str, Any] = field(default_factory=dict)
    rate: int = 0
    """Index of the current learning rate."""
    step: int = 0
    """Number of steps with the current learning rate."""
    since: int = 0
    """Number of validations since ``lowest``, the lowest loss at this rate."""
    lowest: float = math.inf


@dataclass(frozen=True, eq=False)
class Checkpointer:
    """Periodically stores the training state in ``context.folder / TRAINING``."""

    context: Context
    origin: store.Origin
    """Method, settings, seed and data of the training."""

    @classmethod
    def of(cls, method: Method, traces: Traces, known: TestResults) -> "Checkpointer":
        """Return a checkpointer for training ``method`` on these data."""
        arrays = SiteData(traces, known).arrays
        data = digest(as_plain(traces.clock), arrays=arrays)
        own = {"method": method.name, "data_sha256": data}
        settings = own | as_plain(method.settings)
        return cls(method.context, store.Origin.now(settings, method.seed))

    def save(self, best: Trained, state: dict[str, Tensor]) -> None:
        """Replace the checkpoint on disk."""
        if self.context.folder is None:
            return
        meta = dict(vars(best))
        tensors = {f"best/{key}": one for key, one in meta.pop("parameters").items()}
        tensors |= {f"now/{key}": one for key, one in state.items()}
        with store.new_directory(
            self.context.folder / TRAINING, overwrite=True
        ) as scratch:
            write_tensors(scratch / _TENSORS, tensors)
            store.write_manifest(scratch, _KIND, meta=meta, origin=self.origin)

    def load(self) -> tuple[Plain, dict[str, Tensor]] | None:
        """Return the stored checkpoint, if any; ``DataError`` if from another run."""
        folder = self.context.folder
        if folder is None or not folder.is_dir():
            return None
        store.clear_scratch(folder)
        place = folder / TRAINING
        if not place.is_dir():
            return None
        try:
            manifest = require_same(place, self.origin)
            return manifest["meta"], read_tensors(place / _TENSORS)
        except (CorruptFileError, DataError) as error:
            advice = f"delete {place} to restart the training"
            raise type(error)(f"{error}; {advice}") from None


def train(
    learner: Learner,
    checkpointer: Checkpointer,
    settings: LearnerSettings,
    steps: int,
    unit: str = "steps",
) -> Trained:
    """Train with each learning rate; return the parameters with the lowest loss.

    Each rate stops after ``steps``, or after ``patience`` validations without
    improvement. Random numbers depend only on seed and step, and training uses one
    thread, so a resumed training gives bitwise equal results.
    """
    best, resumed = Trained(), checkpointer.load()
    learning_rates, check_every = settings.learning_rates, settings.check_every
    if resumed is not None:
        # JSON has no infinity.
        figures: dict[str, Any] = {
            name: math.inf if one is None else one for name, one in resumed[0].items()
        }
        best = Trained(tensors_under(resumed[1], "best/"), **figures)
    context, name = checkpointer.context, checkpointer.origin.settings["method"]
    due = perf_counter() + context.checkpoint_seconds
    with threads(1), pages_reused() as reuse_pages:
        for number in range(best.rate, len(learning_rates)):
            learner.restart(number, learning_rates[number])
            if resumed is not None:
                learner.load_state(tensors_under(resumed[1], "now/"))
                resumed = None
            else:
                best.rate, best.step, best.since, best.lowest = number, 0, 0, math.inf
            if not best.parameters:
                best.parameters = _copied(learner.parameters())
            while best.step < steps and best.since < settings.patience:
                learner.step(best.step)
                reuse_pages()
                best.step += 1
                best.steps += 1
                if best.step % check_every == 0 or best.step == steps:
                    loss = learner.validate()
                    best.since = 0 if loss < best.lowest else best.since + 1
                    best.lowest = min(best.lowest, loss)
                    if loss < best.loss:
                        best.loss = loss
                        best.parameters = _copied(learner.parameters())
                        best.diagnostics = {
                            LEARNING_RATE: learning_rates[number],
                            BEST_STEP: best.step,
                            STEP_LIMIT: steps,
                            "validation_log_loss": loss,
                        }
                stopped = best.since >= settings.patience
                context.progress(
                    f"{name}: {unit}",
                    steps * number + (steps if stopped else best.step),
                    steps * len(learning_rates),
                    f"validation log loss {best.loss:.4f}",
                )
                if perf_counter() >= due:
                    checkpointer.save(best, learner.state())
                    due = perf_counter() + context.checkpoint_seconds
    return best


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in tensors.items()}
