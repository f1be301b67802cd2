"""FedPerGNN's settings, and a city of its devices with their helper."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit
from torch import Tensor

from epifalcon.baselines.fedpregnn_client import (
    Ids,
    ItemKind,
    Layout,
    LocalGraphs,
    Rows,
    local_graphs,
    log_odds,
    post_of,
    visits_at,
    visits_of,
)
from epifalcon.baselines.fedpregnn_helper import TokenHelper
from epifalcon.baselines.fedpregnn_release import Cover, Noise, cover_of, spent
from epifalcon.checks import non_negative, one_of, positive, unit_interval, whole
from epifalcon.epidemic.known import Known
from epifalcon.errors import SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, Probabilities

LEARNT = ("model", "items", "own")
State = dict[str, Tensor]
_CHUNK = 512
_UNPROTECTED = (
    "the items that an upload names: true among pseudo",
    "the embedding, which tells the test result, to the helper and to partners",
    "whether two people have an item in common: seen by the helper",
    "the log odds and the result of each validation person",
)


@dataclass(frozen=True, kw_only=True)
class FedPreGnnSettings:
    """Of FedPreGNN; where the authors chose otherwise, their value stands beside."""

    input: Literal["exposure", "embedding"] = "exposure"
    """What a device sends the helper: its test result, or the vector it learns."""
    item: ItemKind = "region-day"
    width: int = 32
    """As with all rivals here; 64 in the authors' program."""
    partners: int = 100
    """Most embeddings that the helper returns for one item."""
    expand_every: int = 20
    """Rounds until the helper is asked again; there once, after two passes."""
    private: bool = True
    """Off: no pseudo items, no clip, no noise. Shows what privacy costs."""
    noise: Noise = field(default_factory=Noise)
    pseudo_items: int = 200
    """1,000 there; five for each true one here."""
    clients_per_round: int = 256
    """128 there."""
    learning_rates: tuple[float, ...] = (1.0, 0.3)
    """Of the server's plain steps; each is tried, and each costs uploads. 0.01
    there, where a client has many ratings."""
    own_rate: float = 0.01
    """Of a device for its own vector."""
    weight_decay: float = 0.0005
    rounds: int = 400
    """At most, for each learning rate; three passes over all clients there."""
    check_every: int = 10
    patience: int = 8
    """Looks at the validation people without a better one until the end."""
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        one_of(("exposure", "embedding"), input=self.input)
        one_of(("region", "region-day"), item=self.item)
        whole(0, partners=self.partners, pseudo_items=self.pseudo_items)
        whole(
            1,
            width=self.width,
            expand_every=self.expand_every,
            clients_per_round=self.clients_per_round,
            rounds=self.rounds,
            check_every=self.check_every,
            patience=self.patience,
        )
        if not self.learning_rates:
            raise SettingsError("learning_rates must name at least one")
        for rate in self.learning_rates:
            positive(learning_rates=rate)
        non_negative(own_rate=self.own_rate, weight_decay=self.weight_decay)
        unit_interval(validation_share=self.validation_share)


class Task:
    """The city's devices and their helper: all that does not change in training."""

    def __init__(
        self,
        traces: Traces,
        training: Known,
        settings: FedPreGnnSettings,
        streams: Streams,
    ) -> None:
        self.settings, self.streams = settings, streams
        self.visits = visits_of(traces, settings.item)
        exposed = settings.input == "exposure"
        self.layout = Layout(settings.width, 2 if exposed else settings.width)
        self._post = post_of(self.visits, streams.numpy("fedpregnn post"))
        self._helper = TokenHelper(self._post.letters, settings.partners)
        self.clients = np.flatnonzero(training.tested)
        self.infected = torch.from_numpy((training.status == 1).astype(np.float32))
        self.cover: Cover | None = None
        if settings.private:
            rng = streams.numpy("fedpregnn pseudo items")
            self.cover = cover_of(self.visits, self.clients, settings.pseudo_items, rng)
        share = (training.status == 1).sum() / training.tested.sum()
        self.base = float(logit(np.clip(share, 1e-3, 1 - 1e-3)))
        self.show(training)

    def show(self, known: Known) -> None:
        """Let devices know the results of their own tests in ``known``."""
        self._status = known.status

    def first_state(self, name: str) -> State:
        """What training begins with."""
        generator = torch.Generator()
        generator.manual_seed(self.streams.seed_for(f"fedpregnn {name}"))
        shape = (self.visits.items, self.settings.width)
        return {
            "model": self.layout.first(generator),
            "items": 0.1 * torch.randn(shape, generator=generator),
            "own": torch.zeros(self.visits.people, self.settings.width),
        }

    def embeddings(self, own: Tensor) -> Rows:
        """What each device sends the helper: (people, sent width)."""
        if self.settings.input == "embedding":
            return own.numpy().copy()
        kinds = np.stack([self._status == 1, self._status == 0], axis=1)
        return kinds.astype(np.float32)

    def expand(self, sent: Rows, what: str) -> None:
        """Send every device's embedding to the helper; partners are drawn anew."""
        by_box = np.empty_like(sent)
        by_box[self._post.box] = sent
        self._helper.receive(by_box, self.streams.numpy(f"fedpregnn partners {what}"))

    def graphs(self, people: Ids) -> LocalGraphs:
        """The graphs of ``people`` with the partners that the helper returns."""
        places = visits_at(self.visits, people)
        heard = self._helper.answer(self._post.number[places])
        return local_graphs(self.visits, people, heard)

    def odds(self, state: State, people: Ids) -> Tensor:
        """Log odds of ``people`` with the partners of the last expansion."""
        found = [torch.empty(0)]
        for some in np.split(people, range(_CHUNK, len(people), _CHUNK)):
            graphs = self.graphs(some)
            weights = self.layout.views(state["model"].expand(len(some), -1))
            embedding = state["items"][graphs.item]
            own = state["own"][torch.from_numpy(some)]
            found.append(log_odds(weights, embedding, own, graphs) + self.base)
        return torch.cat(found)

    def final_odds(self, state: State, people: Ids) -> Floats:
        """Log odds of ``people``, all devices having sent the helper anew."""
        self.expand(self.embeddings(state["own"]), "at the end")
        return self.odds(state, people).double().numpy()

    def privacy(self, uploads: int) -> dict[str, Any]:
        """What is told of the privacy of a device that sent ``uploads``."""
        if self.cover is None:
            return {"private": False, "uploads": uploads, "epsilon_total": math.inf}
        named = int(self.cover.count.max())
        numbers = self.layout.size + named * self.settings.width
        cost = spent(self.settings.noise, numbers, uploads)
        return {
            "private": True,
            "uploads": uploads,
            "numbers_per_upload": numbers,
            "epsilon_claimed": cost.claimed,
            "epsilon_round_naive": cost.round_naive,
            "epsilon_round": cost.round,
            "epsilon_total_naive": cost.total_naive,
            "epsilon_total": cost.total,
            "delta": cost.delta,
            "unprotected": list(_UNPROTECTED),
        }


@dataclass(frozen=True)
class Scaling:
    """Two numbers that set log odds right.

    Clipping shrinks large gradients more than small ones, and those of the rarer
    result are larger, so they count for less than they should.
    """

    slope: float = 1.0
    shift: float = 0.0

    def risk(self, odds: Floats) -> Probabilities:
        """Probabilities from log odds, in the same order: the slope is positive."""
        return np.asarray(expit(self.slope * odds + self.shift))


def fit_scaling(odds: Floats, infected: Mask) -> Scaling:
    """Platt's scaling of ``odds`` (people,), drawn to no change like by one person.

    The pull keeps it finite where few people, or only one result, are known.
    """

    def loss(numbers: Floats) -> tuple[float, Floats]:
        log_slope, shift = numbers
        scaled = math.exp(log_slope) * odds
        total = np.logaddexp(0, scaled + shift) - infected * (scaled + shift)
        off = expit(scaled + shift) - infected
        slopes = np.array([off @ scaled, off.sum()])
        return float(total.sum() + numbers @ numbers / 2), slopes + numbers

    bounds = [(-5.0, 5.0), (-20.0, 20.0)]
    found = minimize(loss, np.zeros(2), jac=True, bounds=bounds, method="L-BFGS-B")
    return Scaling(math.exp(found.x[0]), float(found.x[1]))


def cross_scaled(odds: Floats, infected: Mask) -> Probabilities:
    """The risk of each person by a scaling that did not see that person's result.

    Two halves, each with its share of positives, scale each other.
    """
    half = np.empty(len(odds), np.int64)
    for kind in (True, False):
        some = np.flatnonzero(infected == kind)
        half[some] = np.arange(len(some)) % 2
    risk = np.empty(len(odds))
    for number in (0, 1):
        mine, others = half == number, half != number
        risk[mine] = fit_scaling(odds[others], infected[others]).risk(odds[mine])
    return risk
