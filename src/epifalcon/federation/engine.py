"""In-process training: the vectorised engine, and the training loop of all engines.

The engine computes the result of all messages without creating them: one fused product
replaces uploads and replies, and one Gaussian draw per group of edges replaces one draw
per upload. The joint distribution of all rows that people receive is the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import server
from epifalcon.federation.client import Client, Cohort, PersonalState, all_uses
from epifalcon.federation.messages import require_finite
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds, draw_key
from epifalcon.federation.server import Model
from epifalcon.federation.server_view import Sampling, ServerView
from epifalcon.hypergraph.fused_propagation import EdgeSums, FusedOperator, PassNoise
from epifalcon.hypergraph.propagation import require_rows, view
from epifalcon.models.person_model import Exchange, Moments, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.ledger import Ledger
from epifalcon.streams import Streams
from epifalcon.types import Floats, Probabilities

T = TypeVar("T")
_KINDS = ("upload", "return", "scoring")


@dataclass(frozen=True, eq=False)
class EngineState:
    """State from which a run resumes with bitwise equal results."""

    round: int
    """Number of completed rounds."""
    tensors: dict[str, Tensor]
    ledger_head: str


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """Loss and duration of one round."""

    round: int
    loss: float
    """Mean cross-entropy over tested people; NaN if sites do not send it."""
    seconds: float


def require_loss(loss: float, weight: float, number: int) -> float:
    """Return ``loss / weight``; raise ``DataError`` if it is not finite."""
    mean = loss / weight if weight else 0.0
    require_finite("the loss", torch.tensor(mean), number)
    return mean


def advance(
    work: Generator[Exchange, Tensor, T], sent: Tensor | None
) -> tuple[Exchange | None, T | None]:
    """Advance a pass; return its next exchange, or None and the final result."""
    try:
        return (next(work) if sent is None else work.send(sent)), None
    except StopIteration as stop:
        return None, stop.value


def run_pass(
    work: Generator[Exchange, Tensor, T], carry: Callable[[Exchange], Tensor]
) -> T:
    """Run a pass to its end and return its result; ``carry`` performs each exchange."""
    exchange, result = advance(work, None)
    while exchange is not None:
        exchange, result = advance(work, carry(exchange))
    return cast(T, result)


def pack_state(state: PersonalState) -> dict[str, Tensor]:
    """Return people's embeddings, Adam moments and received rows as tensors by name."""
    tensors = {}
    if state.rows is not None and state.moments is not None:
        tensors["home/rows"] = state.rows
        tensors["home/first"] = state.moments.first
        tensors["home/second"] = state.moments.second
    if state.received is not None:
        tensors["home/received"] = state.received
    return tensors


def unpack_state(tensors: dict[str, Tensor]) -> PersonalState:
    """Rebuild people's state from the tensors of ``pack_state``."""
    found = tensors_under(tensors, "home/")
    moments = None
    if "rows" in found:
        moments = Moments(found["first"], found["second"])
    return PersonalState(found.get("rows"), moments, found.get("received"))


def _require_like(given: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise ``DataError`` if names, shapes or types differ from ``expected``."""
    names = set(given) ^ set(expected)
    if odd := sorted(names - {"home/received"}):
        raise DataError(f"the state belongs to another run: {', '.join(odd)}")
    for name, other in expected.items():
        one = given.get(name, other)
        if one.shape != other.shape or one.dtype != other.dtype:
            wanted = f"{other.dtype} of {tuple(other.shape)}"
            found = f"{one.dtype} of {tuple(one.shape)}"
            raise DataError(f"the state's {name} is {found}, expected {wanted}")


class Engine(ABC):
    """Base class of engines that train the shared model, in one process or over sites.

    A subclass runs the rounds in ``step``; it may add tensors to the state.
    """

    def __init__(
        self,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        ledger: Ledger | None,
        state_width: int,
    ) -> None:
        self.settings, self.plan = settings, plan
        self.ledger = Ledger(plan.budget) if ledger is None else ledger
        # Initial weights are public: they never depend on a secret.
        rng = Streams(seed).numpy("falcon parameters")
        self._model = Model.of(initial_parameters(settings, state_width, rng))
        self.round = 0
        """Number of completed rounds."""

    @abstractmethod
    def step(self) -> float:
        """Record the receipts of one round, run it and return the mean loss."""

    def _record_round(self) -> None:
        """Record the receipts of the next training round."""
        opening = () if self.round else self.plan.opening()
        self.ledger.record(*opening, *self.plan.round_receipts(self.round))

    def _record_scoring(self) -> None:
        """Record the receipts of a scoring pass; mode ``off`` has none."""
        if self.plan.is_private:
            opening = () if self.round else self.plan.opening()
            self.ledger.record(*opening, *self.plan.scoring_receipts(self.round))

    def state(self) -> EngineState:
        """Return the state for a checkpoint; later rounds do not modify its tensors."""
        model = self._model
        tensors = {f"parameter/{name}": one for name, one in model.parameters.items()}
        for name, moments in model.moments.items():
            tensors[f"first/{name}"] = moments.first
            tensors[f"second/{name}"] = moments.second
        return EngineState(self.round, tensors, self.ledger.head)

    def restore(self, state: EngineState) -> None:
        """Restore ``state``, which an engine with equal arguments returned."""
        _require_like(state.tensors, self.state().tensors)
        parameters, first, second = (
            tensors_under(state.tensors, part)
            for part in ("parameter/", "first/", "second/")
        )
        moments = {name: Moments(first[name], second[name]) for name in parameters}
        self._model, self.round = Model(parameters, moments), state.round


def train(
    engine: Engine,
    rounds: int | None = None,
    watch: Callable[[RoundReport], bool | None] | None = None,
) -> list[RoundReport]:
    """Train up to round ``rounds``; stop early if ``watch`` returns True."""
    last = engine.settings.rounds if rounds is None else rounds
    whole(0, rounds=last)
    reports: list[RoundReport] = []
    while engine.round < last:
        number, began = engine.round, perf_counter()
        loss = engine.step()
        seconds = perf_counter() - began
        reports.append(RoundReport(round=number, loss=loss, seconds=seconds))
        if watch is not None and watch(reports[-1]):
            break
    return reports


@dataclass(frozen=True, eq=False)
class EdgeExchange:
    """Propagates rows from people to edges and back, with the noise of all uploads."""

    operator: FusedOperator
    sigma: EdgeSums | None
    """Standard deviation of the noise summed over each group of merged edges, and
    over the edges in which a person was alone; None for no noise."""
    layers: int
    one_value: bool = False
    """If True, all columns of an edge share one noise value, and only uploads after
    round 0 have noise, as in the authors' program."""

    @classmethod
    def of(
        cls, cohort: Cohort, counts: Floats | None, plan: PrivacyPlan
    ) -> "EdgeExchange":
        """Build the exchange; ``counts``, (edges,), is None for exact counts."""
        operator, upload = FusedOperator.of(cohort.incidence, counts), plan.upload
        if upload is None or upload.sigma <= 0:
            return cls(operator, None, plan.layers)
        # In the program the mean of an edge has the noise of a mean of uploads,
        # pseudo uploads included, although these never enter the mean.
        uploads = cohort.uploads
        squared = 1 / uploads if upload.one_value else uploads / operator.counts**2
        variance = operator.sum_edges(squared)
        group, person = np.sqrt(variance.group), np.sqrt(variance.person)
        sigma = EdgeSums(upload.sigma * group, upload.sigma * person)
        return cls(operator, sigma, plan.layers, upload.one_value)

    def carry(
        self, exchange: Exchange, seed: int, kind: str, round_number: int
    ) -> Tensor:
        """Return the rows that people receive, (people, width).

        ``kind`` (upload, return or scoring) selects the noise stream.
        """
        require_rows(exchange.rows, self.operator.people, "people")
        rows, noise = view(exchange.rows), None
        if self.sigma is not None:
            place = _KINDS.index(kind) * self.layers + exchange.layer
            key = draw_key(seed, round_number, place)
            noise = PassNoise(self.sigma.group, self.sigma.person, key)
        upload = exchange.kind == "upload"
        after = self.operator.share if upload else None
        if self.one_value:
            passed = self.operator.apply(rows, after)
            if upload and round_number > 0 and noise is not None:
                zero = np.zeros((len(rows), 1), rows.dtype)
                passed += self.operator.apply(zero, after, noise)
        else:
            passed = self.operator.apply(rows, after, noise)
        found = torch.from_numpy(passed)
        require_finite(exchange.channel, found, round_number)
        return found


class VectorisedEngine(Engine):
    """Engine that trains all people of ``cohort`` as one batch, without messages."""

    def __init__(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        ledger: Ledger | None = None,
        view: ServerView | None = None,
        secret: int | None = None,
    ) -> None:
        """Draw noise from ``secret``; None (simulations only): from ``seed``."""
        _require_plan(cohort, settings, plan)
        width = 0 if cohort.state is None else cohort.state.shape[1]
        super().__init__(settings, plan, seed, ledger, width)
        self._client = Client(cohort, settings, plan, RunSeeds(seed, secret))
        self._people_state = self._client.initial_state()
        self._opened: tuple[EdgeExchange, Tensor] | None = None
        self._sampling = None if view is None else Sampling(self._client, view)

    def step(self) -> float:
        """Record the receipts of one round, run it and return the mean loss."""
        number, settings, client = self.round, self.settings, self._client
        self._record_round()
        edge_exchange, self_weight = self._open()
        state, parameters = self._people_state, self._model.parameters
        work, entry = client.training(state, self_weight, parameters, number)
        if self._sampling is not None:
            self._sampling.broadcast(number, parameters)
        result = run_pass(work, lambda one: self._carry(edge_exchange, one, one.kind))
        loss = require_loss(result.loss, result.weight, number)
        uses = all_uses(result, entry)
        upload = client.gradient_upload(uses, result.weight, number)
        if self._sampling is not None:
            self._sampling.gradients(uses, number)
        model, closing = server.step(self._model, [upload], settings)
        if self.plan.weight_sigma is not None:
            sigma = self.plan.weight_sigma * len(client.cohort.people) ** -0.5
            sigma *= settings.learning_rate_at(number + 1)
            source = client.seeds.gradient(self.plan.gradient_terms(number), 0)
            model = server.noised(model, sigma, source)
        self._people_state = client.close_round(state, result, closing)
        self._model, self.round = model, number + 1
        return loss

    def scores(self, fresh: bool | None = None) -> Probabilities:
        """Return each person's probability of having been infected, (people,).

        If ``fresh``, run a forward pass, which is an additional release; otherwise use
        the rows received last. Default: True in mode ``off`` or before any round.
        """
        if fresh is None:
            fresh = not self.plan.is_private or self.round == 0
        state, parameters = self._people_state, self._model.parameters
        received = state.received
        if fresh:
            self._record_scoring()
            edges, self_weight = self._open()
            work = self._client.scoring(state, self_weight, parameters)
            received = run_pass(work, lambda one: self._carry(edges, one, "scoring"))
        return self._client.probabilities(parameters, received)

    def _carry(
        self, edge_exchange: EdgeExchange, exchange: Exchange, kind: str
    ) -> Tensor:
        noise = self._client.seeds.noise
        came = edge_exchange.carry(exchange, noise, kind, self.round)
        if self._sampling is not None:
            self._sampling.uploads(exchange, self.round, kind)
        return came

    def state(self) -> EngineState:
        """Return the state of the model and of all people."""
        state = super().state()
        return replace(state, tensors=state.tensors | pack_state(self._people_state))

    def restore(self, state: EngineState) -> None:
        """Restore the model and the state of all people."""
        super().restore(state)
        self._people_state = unpack_state(state.tensors)

    def _open(self) -> tuple[EdgeExchange, Tensor]:
        """Return exchange and weights for the counts at true edges, drawn once."""
        if self._opened is None:
            client, cohort = self._client, self._client.cohort
            size, counts = cohort.incidence.size.astype(np.float64), None
            if (presence := self.plan.presence) is not None:
                drawn = client.seeds.of_noise("counts").standard_normal(len(size))
                noise = presence.sigma * np.sqrt(cohort.uploads) * drawn
                counts = np.maximum(size + noise, 1.0)
            self_weight = client.self_weight(size if counts is None else counts)
            edge_exchange = EdgeExchange.of(cohort, counts, self.plan)
            if self._sampling is not None:
                self._sampling.place_totals()
            self._opened = edge_exchange, self_weight
        return self._opened


def _require_plan(cohort: Cohort, settings: FalconSettings, plan: PrivacyPlan) -> None:
    """Raise ``SettingsError`` if the plan does not fit the cohort or the model."""
    if plan.layers != settings.layers:
        raise SettingsError(f"layers={settings.layers}, the plan has {plan.layers}")
    if not plan.is_private:
        return
    if plan.copies != len(cohort.pseudo):
        found = len(cohort.pseudo)
        raise SettingsError(f"{found} pseudo copies, the plan has {plan.copies}")
    most = int(cohort.incidence.degree.max(initial=0))
    if most > plan.releases.person:
        paid = plan.releases.person
        raise SettingsError(f"a person has {most} places, the plan covers {paid}")
