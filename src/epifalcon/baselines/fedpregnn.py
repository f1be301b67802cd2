"""FedPreGNN: a graph network learnt by devices that share gradients and tokens.

The table of the paper calls it FedPreGNN; it is FedPerGNN of Wu et al., "A
federated graph neural network framework for privacy-preserving personalization"
(Nature Communications 2022). Every person is a client with a graph of its own
(``fedpregnn_client``), a third party lets clients meet who share an item
(``fedpregnn_helper``), and uploads are hidden among pseudo items and under
Laplace noise (``fedpregnn_release``).

Adapted: there, people rate items; here an item is a region, or a region on a
day, and a person's risk is asked for. With ``input="exposure"`` the embedding
that a device sends the helper is its test result (positive, negative, none), and
the vector that it learns stays at home: what a tested person is shown never
holds its own result, not even by way of others; its vector has learnt from it.
``input="embedding"`` is the published way: the learnt vector is what is sent,
results enter by the loss alone.

Log odds are set right by two numbers fitted on the validation people, for
clipping each client's gradient makes the rarer result count for less.

Reduced: 200 pseudo items instead of 1,000, five for each true one, drawn once for
each client instead of anew for every upload; width 32; no dropout.
"""

import math
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from epifalcon.baselines.fedpregnn_client import Gradients, Ids, LocalGraphs, gradients
from epifalcon.baselines.fedpregnn_release import Cover, Noise, Upload, release
from epifalcon.baselines.fedpregnn_task import (
    LEARNT,
    FedPreGnnSettings,
    Task,
    cross_scaled,
    fit_scaling,
)
from epifalcon.baselines.lessons import Keeper, or_infinite
from epifalcon.baselines.method import (
    BEST_STEP,
    LEARNING_RATE,
    STEP_LIMIT,
    Method,
    Scores,
    require_both,
)
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import hold_back, without
from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import tensors_under
from epifalcon.settings import as_plain
from epifalcon.streams import Streams
from epifalcon.types import Mask, PersonIds, Plain


class FedPreGnn(Method):
    """FedPerGNN of Wu et al. 2022: federated, with its own noise and expansion.

    ``found.told`` holds what the uploads of one device cost in privacy, as the
    authors claim it and as it is (``fedpregnn_release.spent``), and what leaves
    a device with no protection at all.
    """

    name = "fedpregnn"
    title = "FedPreGNN"
    kind = "paper"
    settings_type: ClassVar[type] = FedPreGnnSettings
    settings: FedPreGnnSettings

    def score(self, traces: Traces, known: Known) -> Scores:
        """Train round by round, choose by the validation people, tell the risk."""
        require_both(known)
        streams = Streams(self.scene.seed)
        rng = streams.numpy("validation people")
        held_back = hold_back(known, self.settings.validation_share, rng)
        task = Task(traces, without(known, held_back), self.settings, streams)
        training = _Training(
            task,
            (held_back, known.status[held_back] == 1),
            Keeper.of(self.scene, self.name, as_plain(self.settings), (traces, known)),
        )
        training.run()
        best, results = training.best, known.status[held_back] == 1
        looked = task.final_odds(best, held_back.astype(np.int64))
        scaling = fit_scaling(looked, results)
        task.show(known)
        odds = task.final_odds(best, np.arange(traces.people))
        return Scores(
            scaling.risk(odds),
            masked=held_back,
            masked_risk=cross_scaled(looked, results),
            steps=training.done,
            parameters=sum(best[name].numel() for name in LEARNT),
            told={**training.told, **task.privacy(training.uploads)},
        )


class _Training:
    """The server's loop: which learning rate, which round, the best so far."""

    def __init__(
        self, task: Task, looked_at: tuple[PersonIds, Mask], keeper: Keeper
    ) -> None:
        self._task, self._settings, self._keeper = task, task.settings, keeper
        people, infected = looked_at
        self._looked_at = people.astype(np.int64)
        self._infected = infected
        self._sent_times = torch.zeros(task.visits.people, dtype=torch.int64)
        self.rate, self.done = 0, 0
        self.told: dict[str, Any] = {}
        self._best_loss = math.inf
        self._begin()
        self.best = {name: self._state[name].clone() for name in LEARNT}

    @property
    def uploads(self) -> int:
        """The most that one device sent, all learning rates together."""
        return int(self._sent_times.max())

    def run(self) -> None:
        """Train with every learning rate; go on where a training was stopped."""
        kept = self._keeper.load()
        if kept is not None:
            self._restore(*kept)
        while self.rate < len(self._settings.learning_rates):
            self._one_rate()

    def _begin(self) -> None:
        self._state = self._task.first_state(f"first {self.rate}")
        self._round, self._since, self._lowest = 0, 0, math.inf

    def _one_rate(self) -> None:
        settings, due = self._settings, perf_counter() + self._keeper.every_seconds
        if "sent" in self._state:
            self._hear()
        while self._round < settings.rounds and self._since < settings.patience:
            self._one_round()
            last = self._round == settings.rounds
            if self._round % settings.check_every == 0 or last:
                self._look()
            self._tell()
            if perf_counter() >= due:
                self._save()
                due = perf_counter() + self._keeper.every_seconds
        self.rate += 1
        if self.rate < len(settings.learning_rates):
            self._begin()

    def _one_round(self) -> None:
        task, state = self._task, self._state
        if self._round % self._settings.expand_every == 0:
            state["sent"] = torch.from_numpy(task.embeddings(state["own"]))
            self._hear()
        people = self._cohort()
        who = torch.from_numpy(people)
        graphs = task.graphs(people)
        parts = state["items"][graphs.item], state["own"][who], graphs
        found = gradients(
            task.layout, state["model"], parts, task.infected[who], task.base
        )
        state["own"][who] -= self._settings.own_rate * found.own
        total = self._total(people, graphs, found)
        rate = self._settings.learning_rates[self.rate]
        for name, gradient in total.items():
            state[name] *= 1 - rate * self._settings.weight_decay
            state[name] -= gradient * (rate / len(people))
        self._sent_times[who] += 1
        self._round += 1
        self.done += 1

    def _hear(self) -> None:
        """Give the helper what the devices sent last; its draw is the round's."""
        number = self._round // self._settings.expand_every
        self._task.expand(self._state["sent"].numpy(), f"{self.rate} {number}")

    def _cohort(self) -> Ids:
        """The clients of the next round; each has its turn once in every pass."""
        clients = self._task.clients
        parts = math.ceil(len(clients) / self._settings.clients_per_round)
        number, turn = divmod(self._round, parts)
        rng = self._task.streams.numpy(f"fedpregnn pass {self.rate} {number}")
        return np.array_split(rng.permutation(clients), parts)[turn]

    def _total(
        self, people: Ids, graphs: LocalGraphs, found: Gradients
    ) -> dict[str, Tensor]:
        """What the server adds up of the gradients, made private if asked for."""
        task, items = self._task, self._state["items"]
        if task.cover is not None:
            name = f"fedpregnn noise {self.rate} {self._round}"
            draw = self._settings.noise, task.streams.numpy(name)
            return server_sum(_uploads(task.cover, people, found, draw), items)
        if not bool(torch.isfinite(found.model).all()):
            raise DataError("a gradient is not finite: choose smaller learning_rates")
        row = torch.zeros_like(items)
        row.index_add_(0, graphs.item[graphs.present], found.item[graphs.present])
        return {"model": found.model.sum(0), "items": row}

    def _look(self) -> None:
        odds = self._task.odds(self._state, self._looked_at).double().numpy()
        if not np.isfinite(odds).all():
            raise DataError("log odds are not finite: choose smaller learning_rates")
        risk = cross_scaled(odds, self._infected)
        right = np.where(self._infected, risk, 1 - risk)
        loss = float(-np.log(np.maximum(right, 1e-12)).mean())
        self._since += 1
        if loss < self._lowest:
            self._lowest, self._since = loss, 0
        if loss < self._best_loss:
            self._best_loss = loss
            self.best = {name: self._state[name].clone() for name in LEARNT}
            self.told = {
                LEARNING_RATE: self._settings.learning_rates[self.rate],
                BEST_STEP: self._round,
                STEP_LIMIT: self._settings.rounds,
                "validation_log_loss": loss,
            }

    def _tell(self) -> None:
        rounds = self._settings.rounds
        total = rounds * len(self._settings.learning_rates)
        self._keeper.progress(
            f"{self._keeper.name}: rounds",
            rounds * self.rate + self._round,
            total,
            f"validation log loss {self._best_loss:.4f}",
        )

    def _save(self) -> None:
        now = {f"now/{name}": one for name, one in self._state.items()}
        best = {f"best/{name}": one for name, one in self.best.items()}
        remembered = {
            "rate": self.rate,
            "round": self._round,
            "done": self.done,
            "since": self._since,
            "lowest": self._lowest,
            "best_loss": self._best_loss,
            "told": self.told,
        }
        tensors = {**now, **best, "sent_times": self._sent_times}
        self._keeper.save(remembered, tensors)

    def _restore(self, remembered: Plain, tensors: dict[str, Tensor]) -> None:
        self.rate = remembered["rate"]
        self._begin()
        self._state = tensors_under(tensors, "now/")
        self.best = tensors_under(tensors, "best/")
        self._sent_times = tensors["sent_times"]
        self._round, self.done = remembered["round"], remembered["done"]
        self._since = remembered["since"]
        self._lowest = or_infinite(remembered["lowest"])
        self._best_loss = or_infinite(remembered["best_loss"])
        self.told = dict(remembered["told"])


def server_sum(uploads: Iterable[Upload], items: Tensor) -> dict[str, Tensor]:
    """All that the server makes of a round: the sum of what devices sent.

    ``items`` (items, width) is the table of embeddings, for its shape.
    """
    model: np.ndarray | float = 0.0
    row = np.zeros(items.shape, np.float32)
    for upload in uploads:
        model = model + upload.model
        # No device names an item twice, so adding in place misses nothing.
        row[upload.item] += upload.row
    return {
        "model": torch.from_numpy(np.asarray(model, np.float32)),
        "items": torch.from_numpy(row),
    }


def _uploads(
    cover: Cover,
    people: Ids,
    found: Gradients,
    draw: tuple[Noise, np.random.Generator],
) -> Iterator[Upload]:
    """Each device's upload in turn: one at a time stays in the processor's cache."""
    model, item = found.model.numpy(), found.item.numpy()
    noise, rng = draw
    for place, person in enumerate(people):
        named = slice(cover.start[person], cover.start[person + 1])
        true = cover.true[named]
        mine = item[place, : np.count_nonzero(true)]
        yield release(model[place], mine, (cover.item[named], true), noise, rng)
