"""What every engine can do, and the one loop that trains any of them."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.client import Home
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.federation.server import Model
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.models.micro import Exchange, Moments, scores
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Probabilities

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class EngineState:
    """Everything that a run needs to go on bit by bit, as plain tensors.

    Engines read each other's states: people stand in the order of the city.
    """

    round: int
    """Rounds done."""
    tensors: dict[str, Tensor]
    ledger_head: str


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What one round did."""

    round: int
    loss: float
    """Mean cross-entropy of the people asked; known to the simulation, with
    protection not to the server."""
    seconds: float


class Rounds(Protocol):
    """Federated rounds, however they are carried out."""

    settings: FalconSettings

    @property
    def round(self) -> int:
        """Rounds done."""

    def step(self) -> float:
        """Do one round and return its mean loss.

        Receipts are in the ledger before anything leaves. If it raises, model
        and homes are as they were before.
        """


class Engine(Rounds, Protocol):
    """Rounds over people whose scores can be asked for here."""

    plan: PrivacyPlan
    ledger: Ledger

    def scores(self, fresh: bool) -> Probabilities:
        """Probability of infection of everybody, (people,).

        ``fresh``: by a forward pass of its own, which is a release of its own.
        Otherwise from what each person received in the last round, at no cost.
        """

    def state(self) -> EngineState:
        """All that a checkpoint must hold, beside the ledger's lines."""

    def restore(self, state: EngineState) -> None:
        """Go on from ``state``; the engine must be made as the first one was."""


def train(
    engine: Rounds,
    rounds: int | None = None,
    watch: Callable[[RoundReport], bool | None] | None = None,
) -> list[RoundReport]:
    """Run rounds until ``rounds`` are done (the settings' number by default).

    ``watch`` gets the report of every round and ends the training by returning
    True. The reports of this call's rounds are returned.
    """
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


def predict(engine: Engine, fresh: bool | None = None) -> Probabilities:
    """Probability of infection of everybody, (people,).

    By default a fresh forward pass without privacy, and with it what the last
    round left at home, which costs nothing more.
    """
    if fresh is None:
        fresh = not engine.plan.is_private or engine.round == 0
    return engine.scores(fresh)


def require_loss(loss: float, weight: float, number: int) -> float:
    """The mean loss; raises ``DataError`` where it is no number."""
    mean = loss / weight if weight else 0.0
    if not np.isfinite(mean):
        raise DataError(
            f"the loss of round {number} is {mean}; the state stays that of the "
            "round before. Is learning_rate too large?"
        )
    return mean


def advance(
    work: Generator[Exchange, Tensor, T], sent: Tensor | None
) -> tuple[Exchange | None, T | None]:
    """Run a pass up to its next exchange, or to its result."""
    try:
        return (next(work) if sent is None else work.send(sent)), None
    except StopIteration as stop:
        return None, stop.value


def run_pass(
    work: Generator[Exchange, Tensor, T], carry: Callable[[Exchange], Tensor]
) -> T:
    """Run a pass to its result, every exchange carried by ``carry``."""
    exchange, result = advance(work, None)
    while exchange is not None:
        exchange, result = advance(work, carry(exchange))
    return cast(T, result)


def pack(model: Model, home: Home) -> dict[str, Tensor]:
    """Model and homes by name; the tensors are not copied and never change."""
    tensors = {f"parameter/{name}": one for name, one in model.parameters.items()}
    for name, moments in model.moments.items():
        tensors[f"first/{name}"] = moments.first
        tensors[f"second/{name}"] = moments.second
    if home.rows is not None and home.moments is not None:
        tensors["home/rows"] = home.rows
        tensors["home/first"] = home.moments.first
        tensors["home/second"] = home.moments.second
    if home.received is not None:
        tensors["home/received"] = home.received
    return tensors


def unpack(state: EngineState, model: Model, home: Home) -> tuple[Model, Home]:
    """What ``pack`` packed; ``model`` and ``home`` tell names, shapes and types."""
    expected = pack(model, home)
    given = dict(state.tensors)
    received = given.pop("home/received", None)
    expected.pop("home/received", None)
    if set(given) != set(expected):
        odd = sorted(set(given) ^ set(expected))
        raise DataError(f"the state is of another run: {', '.join(odd)}")
    for name, one in expected.items():
        if given[name].shape != one.shape or given[name].dtype != one.dtype:
            raise DataError(
                f"the state's {name} is {given[name].dtype} of "
                f"{tuple(given[name].shape)}, expected {one.dtype} of "
                f"{tuple(one.shape)}"
            )
    owned = {name: one.clone() for name, one in given.items()}
    names = list(model.parameters)
    loaded = Model(
        {name: owned[f"parameter/{name}"] for name in names},
        {
            name: Moments(owned[f"first/{name}"], owned[f"second/{name}"])
            for name in names
        },
    )
    if received is not None:
        received = torch.clone(received)
    if home.rows is None:
        return loaded, Home(None, None, received)
    moments = Moments(owned["home/first"], owned["home/second"])
    return loaded, Home(owned["home/rows"], moments, received)


def class_weights(settings: FalconSettings) -> Tensor | None:
    """The class weights as a tensor."""
    weights = settings.class_weights
    return None if weights is None else torch.tensor(weights, dtype=settings.dtype)


def probabilities(
    model: Model,
    settings: FalconSettings,
    plan: PrivacyPlan,
    received: Tensor | None,
    state: Tensor | None,
) -> Probabilities:
    """Scores from what the last layer received, (people,)."""
    if received is None:
        raise SettingsError(
            "no round has been run yet: ask for a fresh pass or train first"
        )
    if state is not None:
        state = state.to(settings.dtype)
    read = plan.way.upload.read(received)
    found = scores(model.parameters, settings.layers, read, state)
    return found.double().numpy()


def record_scoring(ledger: Ledger, plan: PrivacyPlan, number: int) -> None:
    """Enter a forward pass beside the rounds; without privacy nothing is counted."""
    if not plan.is_private:
        return
    opening = () if number else plan.opening()
    ledger.record(*opening, *plan.scoring_receipts(number))


def require_plan(
    inc: Incidence, settings: FalconSettings, plan: PrivacyPlan, copies: int
) -> None:
    """Refuse a plan that was made for other people or another model."""
    if plan.layers != settings.layers:
        raise SettingsError(
            f"the plan is for {plan.layers} layers, the model has {settings.layers}"
        )
    if not plan.is_private:
        return
    if plan.copies != copies:
        raise SettingsError(
            f"the plan is for {plan.copies} pseudo copies, people have {copies}"
        )
    most = int(inc.degree.max(initial=0))
    if most > plan.releases.person:
        raise SettingsError(
            f"a person has {most} places, the plan pays for {plan.releases.person}"
        )
