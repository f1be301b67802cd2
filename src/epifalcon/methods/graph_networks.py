"""Training of all graph networks on tested people.

Every network gets the same split, inputs, learning rates and early stopping, so that
results differ only by the network. ``input="exposure"`` is the daily exposure to tested
contacts. Each step masks the results of one fold of the tested people in all inputs and
uses them in the loss; otherwise a person's own result would leak through the inputs of
neighbours. ``input="embedding"`` is the authors' input: a trainable vector per person,
with results in the loss only.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.checks import Count, Share, whole
from epifalcon.epidemic.test_results import TestResults, exclude_people, random_folds
from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph.contacts import (
    Contacts,
    NeighbourList,
    contacts_of,
    strongest,
)
from epifalcon.hypergraph.edge_attention import EdgeList
from epifalcon.methods.base import Method, Scores
from epifalcon.methods.contact_tracing import daily_exposure
from epifalcon.methods.training import (
    Checkpointer,
    LearnerSettings,
    train,
    validation_people,
)
from epifalcon.mobility.traces import Traces
from epifalcon.models.tensor_files import tensors_under, threads
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN, PersonIds, Probabilities


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(LearnerSettings):
    """Settings shared by all networks."""

    dropout: Share = 0.2
    steps: Count = 300
    """Maximum number of steps per learning rate."""
    folds: Annotated[int, partial(whole, 2)] = 4
    heads_divide_width: ClassVar[bool] = False
    """True if the setting ``heads`` of a subclass must divide ``width``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        heads = getattr(self, "heads", 1)
        if self.heads_divide_width and self.width % heads:
            raise SettingsError(f"heads={heads} must divide width={self.width}")


@dataclass(frozen=True, kw_only=True)
class SkipSettings(NetworkSettings):
    """Settings of a network with a linear skip connection."""

    skip: bool = True
    """Add a linear map of the input to the log odds; False is the paper's network."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Contacts that each person attends to, with their closeness."""

    edges: EdgeList
    """Edges from contact to person."""
    closeness: Tensor
    """log(1 + slots together), (edges, 1) float32, scaled to 1 for all slots."""


class ContactGraphs:
    """Contact graphs of a city, overall and per day, computed on demand."""

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self.people = traces.people
        self.days = traces.clock.days
        self._partners: dict[int, NeighbourList] = {}

    @cached_property
    def contacts(self) -> Contacts:
        return contacts_of(self.traces)

    @cached_property
    def daily(self) -> tuple[Contacts, ...]:
        """Contacts of each day, one graph per day."""
        return tuple(contacts_of(self.traces, day) for day in range(self.days))

    @cached_property
    def observed(self) -> Tensor:
        """Number of slots in which each person was observed, (people,) float32."""
        seen = (self.traces.by_slot != UNKNOWN).sum(axis=0)
        return torch.from_numpy(seen.astype(np.float32))

    def partners(self, most: int) -> NeighbourList:
        """Return each person's strongest contacts, at most ``most``."""
        if most not in self._partners:
            self._partners[most] = strongest(self.contacts, most)
        return self._partners[most]

    def neighbourhood(self, most: int, with_self: bool) -> Neighbourhood:
        """Return each person's strongest contacts, with self-loops if requested."""
        found = self.partners(most)
        edges, slots = found.edge_index, found.weight
        if with_self:
            everybody = torch.arange(self.people).expand(2, -1)
            edges = torch.cat([everybody, edges], dim=1)
            slots = torch.cat([self.observed, slots])
        closeness = slots.log1p() / np.log1p(self.traces.slots)
        return Neighbourhood(EdgeList(edges, self.people), closeness[:, None])


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Inputs of all people, and the people in the loss."""

    x: Tensor | None
    """Features, (people, days, channels); None if the network has a free embedding."""
    status: Tensor
    """Visible results, (people,): 1, 0, or -1 if unknown or masked."""
    people: Tensor
    """Indices of the people in the loss, (targets,)."""
    infected: Tensor
    """Results of the people in the loss, (targets,) float32: 0 or 1."""


@dataclass(frozen=True, eq=False)
class Batches:
    """All batches of a training."""

    folds: tuple[TrainingBatch, ...]
    """Training batches, used in rotation; inputs exclude the results in the loss."""
    validation: TrainingBatch
    """Batch with all training results as inputs; the loss is over the validation
    people."""
    final: TrainingBatch
    """Batch with all tests as inputs, for the risks of untested people."""
    base: float
    """Log odds of the share of positive tests."""


class NetworkMethod(Method):
    """Base class of methods that train a network; subclasses define ``network``."""

    settings_type: ClassVar[type] = NetworkSettings
    settings: NetworkSettings
    reads_results: ClassVar[bool] = False
    """True if the visible results themselves are an input of the network."""
    network_type: ClassVar[Callable[..., nn.Module]]
    """Function that creates a network from graphs, channels and settings."""
    static: ClassVar[bool] = False
    """True for a network without time: its channels are those of all days together."""

    def network(self, graphs: ContactGraphs, channels: int) -> nn.Module:
        """Return a new network, which maps (x, status) to log odds (people,).

        x is (people, days, channels) float32, or (people, channels) if ``static``;
        status (people,) int64 is the visible result: 1, 0, or -1 if unknown or masked.
        The global generator of torch is seeded before this call and before every step.
        """
        return type(self).network_type(graphs, channels, self.settings)

    def features(self, traces: Traces, known: TestResults) -> Tensor:
        """Return the network's input x given the visible tests ``known``.

        A method whose features include the person's own result sets ``reads_results``.
        """
        return torch.from_numpy(daily_exposure(traces, known.status))

    def score(self, traces: Traces, known: TestResults) -> Scores:
        held_back, settings = validation_people(self, known), self.settings
        batches = self.batches(traces, known, held_back)
        learner = _NetworkLearner(self, batches, ContactGraphs(traces))
        checkpointer = Checkpointer.of(self, traces, known)
        best = train(learner, checkpointer, settings, settings.steps)
        learner.network.load_state_dict(best.parameters)
        risk = learner.risk(batches.final)
        # The final input contains the tested people's own results.
        for batch in (*batches.folds, batches.validation):
            risk[batch.people.numpy()] = learner.risk(batch)[batch.people.numpy()]
        return Scores(
            risk,
            masked=held_back,
            masked_risk=risk[held_back],
            steps=best.steps,
            parameters=sum(one.numel() for one in learner.network.parameters()),
            diagnostics=best.diagnostics,
        )

    def batches(self, traces: Traces, known: TestResults, held: PersonIds) -> Batches:
        """Return the batches for the folds, validation and prediction."""
        training = exclude_people(known, held)
        rng = Streams(self.seed).numpy("folds")
        fold = random_folds(training, self.settings.folds, rng)
        embedded = self.settings.input == "embedding"

        def batch(seen: TestResults, targets: NDArray[np.integer]) -> TrainingBatch:
            x = None if embedded else self.features(traces, seen)
            truth = torch.from_numpy((known.status[targets] == 1).astype(np.float32))
            status = torch.from_numpy(seen.status.astype(np.int64))
            people = torch.from_numpy(targets.astype(np.int64))
            return TrainingBatch(x, status, people, truth)

        if embedded and not self.reads_results:
            folds = [batch(training, np.flatnonzero(training.tested))]
        else:
            parts = [np.flatnonzero(fold == one) for one in range(self.settings.folds)]
            folds = [
                batch(exclude_people(training, people.astype(np.int32)), people)
                for people in parts
                if len(people)
            ]
        share = (training.status == 1).sum() / training.tested.sum()
        return Batches(
            folds=tuple(folds),
            validation=batch(training, held),
            final=batch(known, np.flatnonzero(known.tested)),
            base=float(logit(np.clip(share, 1e-3, 1 - 1e-3))),
        )


class _NetworkLearner:
    """Learner that trains a network by Adam, one fold per step."""

    def __init__(
        self, method: NetworkMethod, batches: Batches, graphs: ContactGraphs
    ) -> None:
        self._method, self._batches, self._graphs = method, batches, graphs

    def restart(self, rate_number: int, learning_rate: float) -> None:
        self._rate = rate_number
        with self._seeded("first"):
            self.network = RiskNetwork(self._method, self._batches, self._graphs)
        decay = self._method.settings.weight_decay
        parameters = self.network.parameters()
        self._optimiser = torch.optim.Adam(
            parameters, learning_rate, weight_decay=decay
        )

    def step(self, number: int) -> None:
        batch = self._batches.folds[number % len(self._batches.folds)]
        self.network.train()
        with self._seeded(f"step {number}"):
            odds = self.network(batch)[batch.people]
            loss = functional.binary_cross_entropy_with_logits(odds, batch.infected)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self._optimiser.step()
        if not math.isfinite(float(loss.detach())):
            raise DataError(
                f"{self._method.name}: the loss of step {number + 1} is not a finite "
                "number: choose smaller learning_rates"
            )

    def validate(self) -> float:
        batch = self._batches.validation
        odds = self._odds(batch)[batch.people]
        return float(functional.binary_cross_entropy_with_logits(odds, batch.infected))

    def risk(self, batch: TrainingBatch) -> Probabilities:
        """Return the infection probabilities of all people, (people,)."""
        return self._odds(batch).double().sigmoid().numpy()

    def parameters(self) -> dict[str, Tensor]:
        return self.network.state_dict()

    def state(self) -> dict[str, Tensor]:
        moments = {
            f"adam/{index}/{name}": torch.as_tensor(one)
            for index, state in self._optimiser.state_dict()["state"].items()
            for name, one in state.items()
        }
        network = self.network.state_dict()
        return {**moments, **{f"network/{name}": one for name, one in network.items()}}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(tensors_under(state, "network/"))
        moments = self._optimiser.state_dict()
        for name, one in tensors_under(state, "adam/").items():
            index, _, moment = name.partition("/")
            moments["state"].setdefault(int(index), {})[moment] = one
        self._optimiser.load_state_dict(moments)

    def _odds(self, batch: TrainingBatch) -> Tensor:
        self.network.eval()
        with torch.no_grad(), threads(1):
            return self.network(batch)

    @contextmanager
    def _seeded(self, what: str) -> Iterator[None]:
        """Seed torch's global generator; restore it on exit."""
        name = f"{self._method.name} {self._rate} {what}"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Streams(self._method.seed).seed_for(name))
            yield


class RiskNetwork(nn.Module):
    """Network of a method, with the base rate and what its settings add.

    ``input="embedding"`` adds a free vector per person as input. ``skip`` adds a linear
    map of the input, which starts at zero, so logistic regression is included.
    """

    def __init__(
        self, method: NetworkMethod, batches: Batches, graphs: ContactGraphs
    ) -> None:
        super().__init__()
        x, width = batches.validation.x, method.settings.width
        self._base, self._static = batches.base, method.static
        self._days = 1 if method.static else graphs.days
        channels = width if x is None else x.shape[2]
        if x is not None and method.static:
            channels = x[0].numel()
        self.network = method.network(graphs, channels)
        self.linear = self.rows = None
        if getattr(method.settings, "skip", False):
            self.linear = nn.Linear(channels, 1, bias=False)
            nn.init.zeros_(self.linear.weight)
        if x is None:
            self.rows = nn.Parameter(0.1 * torch.randn(graphs.people, width))

    def forward(self, batch: TrainingBatch) -> Tensor:
        x = batch.x
        if self.rows is not None:
            x = self.rows[:, None, :].expand(-1, self._days, -1)
        if self._static and x is not None:
            x = x.flatten(1)
        odds: Tensor = self.network(x, batch.status)
        if self.linear is not None:
            odds = odds + self.linear(x)[:, 0]
        return odds + self._base
