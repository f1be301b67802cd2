"""Watch a training: look at the validation people, keep the best look, stop."""

import math
from dataclasses import asdict

import numpy as np
import torch
from sklearn.metrics import log_loss
from torch import Tensor

from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.metrics import auc
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.engine import Engine, predict
from epifalcon.federation.settings import StoppingSettings
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.events import GaussianRelease
from epifalcon.studies.looks import Look
from epifalcon.types import Mask, PersonIds, Probabilities

PROBABILITY = "probability"
_HELD = "held"


class Watcher:
    """Looks at the validation people, keeps the best look, says when to stop."""

    seconds_before: float
    """Of work before the checkpoint that was gone on from."""
    training_seconds: float
    """Of all rounds."""
    looks: list[Look]
    best: Look | None
    """None before the first."""
    tensors: dict[str, Tensor]
    """Of the best look: the model, what people held, and ``PROBABILITY``."""
    held: Tensor | None
    """(people,) running mean of the log odds that people received."""

    def __init__(
        self,
        engine: Engine,
        people: PersonIds,
        infected: Mask,
        stopping: StoppingSettings,
    ) -> None:
        self._engine, self._people, self._infected = engine, people, infected
        self._stopping = stopping
        self._since = 0
        self._counted, self._squared_mu = 0, 0.0
        self.seconds_before = 0.0
        self.training_seconds = 0.0
        self.looks = []
        self.best = None
        self.tensors = {}
        self.held = None

    def due(self) -> bool:
        """Whether this is a round to look at."""
        rounds = self._engine.round
        every, last = self._stopping.check_every, self._engine.settings.rounds
        return rounds % every == 0 or rounds == last

    def look(self, loss: float) -> Look:
        """Take the scores of this round if they are the best so far."""
        engine = self._engine
        scores = self._scores()
        risks = scores[self._people]
        found = float(auc(curve(risks, self._infected)))
        held_out = float(log_loss(self._infected, risks, labels=[False, True]))
        look = Look(engine.round, loss, found, self._epsilon(), held_out)
        self.looks.append(look)
        self._since += 1
        if self.best is None or self._is_better(look, self.best):
            self.best, self._since = look, 0
            self.tensors = _kept(engine.state().tensors)
            self.tensors[PROBABILITY] = torch.from_numpy(scores)
        return look

    def _is_better(self, look: Look, best: Look) -> bool:
        """Compare by log loss; where test people choose, by AUC as the authors did."""
        if self._stopping.selected_on == "test":
            return look.auc > best.auc
        return look.log_loss < best.log_loss

    def listen(self) -> None:
        """Add what people received in this round to what they hold."""
        memory = self._stopping.score_memory
        if memory == 0 or self._engine.plan.mode == "off":
            return
        now = torch.logit(torch.from_numpy(predict(self._engine)), eps=1e-9)
        held = self.held
        self.held = now if held is None else memory * held + (1 - memory) * now

    def _epsilon(self) -> float:
        """Of a person, by the rounds done.

        The ledger of a training that is gone on with may hold later rounds
        already, and looks must not depend on where it was stopped.
        """
        engine = self._engine
        if engine.plan.mode == "off":
            return np.inf
        for release in engine.ledger.releases[self._counted :]:
            if release.terms.round >= engine.round:
                break
            self._counted += 1
            if isinstance(release, GaussianRelease):
                self._squared_mu += release.squared_mu("person")
        return epsilon_of(math.sqrt(self._squared_mu), engine.ledger.budget.delta)

    def _scores(self) -> Probabilities:
        return (
            predict(self._engine) if self.held is None else self.held.sigmoid().numpy()
        )

    @property
    def ended(self) -> bool:
        """Whether no better look came for long enough."""
        return self._since >= self._stopping.patience

    def checkpoint(self, seconds: float) -> Checkpoint:
        """Everything needed to go on; ``seconds`` of work so far are told too."""
        remembered = {
            "looks": [asdict(look) for look in self.looks],
            "since": self._since,
            "best": None if self.best is None else self.looks.index(self.best),
            "seconds": self.seconds_before + seconds,
            "training_seconds": self.training_seconds,
        }
        tensors = dict(self.tensors)
        if self.held is not None:
            tensors[_HELD] = self.held
        return Checkpoint(self._engine.state(), tensors, remembered)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from ``checkpoint``."""
        told = checkpoint.remembered
        self.looks = [Look.of(one) for one in told["looks"]]
        self._since = told["since"]
        self.best = None if told["best"] is None else self.looks[told["best"]]
        self.seconds_before = told["seconds"]
        self.training_seconds = told["training_seconds"]
        self.tensors = {
            name: one for name, one in checkpoint.tensors.items() if _is_ours(name)
        }
        self.held = self.tensors.pop(_HELD, None)


def _kept(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is worth keeping of the best round: no moments of Adam."""
    return {
        name: one.clone()
        for name, one in tensors.items()
        if name.startswith("parameter/") or name in {"home/rows", "home/received"}
    }


def _is_ours(name: str) -> bool:
    return name.startswith(("parameter/", "home/")) or name in (PROBABILITY, _HELD)
