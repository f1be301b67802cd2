"""D2STGNN: decoupled diffusion and inherent signals on a dynamic graph.

Shao et al., "Decoupled Dynamic Spatial-Temporal Graph Neural Network for Traffic
Forecasting" (VLDB 15, 11, 2022). Written from the paper's equations. Rows are (people,
days, width) throughout.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.checks import Count
from epifalcon.hypergraph.edge_attention import EdgeList
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    NetworkMethod,
    NetworkSettings,
)


@dataclass(frozen=True, kw_only=True)
class D2stgnnSettings(NetworkSettings):
    """Settings of D2STGNN."""

    layers: Count = 2
    heads: Count = 4
    """Number of attention heads over days; must divide ``width``."""
    reach: Count = 3
    """Number of days in a diffusion step, including the current one."""
    embedding: Count = 10
    """Width of the day embedding and of each of the two person embeddings."""
    partners: Count = 32
    """Number of strongest contacts per person in the dynamic graph."""
    head_width: Count = 64
    heads_divide_width = True


class D2stgnnNetwork(nn.Module):
    """Network that maps (x, status) to log odds, (people,); status is not used."""

    def __init__(
        self, graphs: ContactGraphs, channels: int, settings: D2stgnnSettings
    ) -> None:
        super().__init__()
        size, width = settings.embedding, settings.width
        partners = graphs.partners(settings.partners)
        edges = EdgeList(partners.edge_index, graphs.people)
        self.start = nn.Linear(channels, width)
        # The paper's E^u, E^d and T.
        self.sender = nn.Parameter(0.1 * torch.randn(graphs.people, size))
        self.receiver = nn.Parameter(0.1 * torch.randn(graphs.people, size))
        self.day = nn.Parameter(0.1 * torch.randn(graphs.days, size))
        self.dynamic = DynamicGraph(
            edges,
            partners.weight,
            history=graphs.days * channels,
            about=2 * size,
            width=width,
        )
        last = settings.layers - 1
        self.layers = nn.ModuleList(
            DecoupledLayer(graphs.days, settings, last=number == last)
            for number in range(settings.layers)
        )
        self.head = nn.Sequential(
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(width, settings.head_width),
            nn.ReLU(),
            nn.Linear(settings.head_width, 1),
        )

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        person = torch.cat([self.sender, self.receiver], dim=1)
        last_day = self.day[-1].expand(len(x), -1)
        graphs = (
            self.dynamic(x, torch.cat([self.sender, last_day], dim=1)),
            LowRankGraph.of(self.receiver, self.sender),
        )
        rows, total = self.start(x), torch.zeros(())
        for layer in self.layers:
            rows, forecast = layer(rows, self.day, person, graphs)
            total = total + forecast
        return self.head(total)[:, 0]


@dataclass(frozen=True, eq=False)
class SparseGraph:
    """Transition matrix P on a list of edges without self-loops."""

    edges: EdgeList
    """Distinct edges from contact to person."""
    value: Tensor
    """Transition probabilities, (edges,); they sum to 1 for each target."""

    def powers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return P x and (P^2 - diag P^2) x, without forming P^2."""
        once = self.edges.product(self.value, x)
        there, back = self.edges.mutual
        to_and_fro = self.value[there] * self.value[back]
        target = self.edges.target[there]
        own = x.new_zeros(len(x)).index_add(0, target, to_and_fro)
        twice = self.edges.product(self.value, once)
        return once, torch.addcmul(twice, own[:, None], x, value=-1)


@dataclass(frozen=True, eq=False)
class LowRankGraph:
    """Transition matrix P: row-normalised U V', with U, V positive, (people, rank)."""

    left: Tensor
    """U, scaled so that each row of U V' sums to 1."""
    right: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> "LowRankGraph":
        """Return the graph with U = softmax(left) and V = softmax(right), by row."""
        u, v = left.softmax(dim=1), right.softmax(dim=1)
        return cls(u / (u @ v.sum(dim=0))[:, None], v)

    def powers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (P - diag P) x and (P^2 - diag P^2) x."""
        middle = self.right.t() @ self.left
        inward = self.right.t() @ x
        made = []
        for left in (self.left, self.left @ middle):
            own = (left * self.right).sum(dim=1, keepdim=True)
            made.append(torch.addcmul(left @ inward, own, x, value=-1))
        return made[0], made[1]


Graph = SparseGraph | LowRankGraph


class DynamicGraph(nn.Module):
    """Random walk on contacts, weighted by attention: the paper's P^dy.

    P^dy = P o softmax(Q K' / sqrt d) with rows normalised to 1, where Q and K are
    linear in each person's features: a two-layer map of the history, the person's
    embedding, and the embedding of the last day. P is 0 except for contacts, so a row
    is the softmax of log P_ij + q_i k_j / sqrt d over the contacts. As in the paper,
    one graph is used for all days of the window.
    """

    def __init__(
        self, edges: EdgeList, weight: Tensor, history: int, about: int, width: int
    ) -> None:
        """Set edge weights (edges,), and the input sizes ``history`` and ``about``."""
        super().__init__()
        self._edges, self._log_weight = edges, weight.log()
        self.history = nn.Sequential(
            nn.Linear(history, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.query = nn.Linear(width + about, width, bias=False)
        self.key = nn.Linear(width + about, width, bias=False)

    def forward(self, x: Tensor, about: Tensor) -> SparseGraph:
        """Return the graph for x (people, days, channels) and ``about`` (people, n)."""
        features = torch.cat([self.history(x.flatten(1)), about], dim=1)
        query, key = self.query(features), self.key(features)
        score = self._edges.scores(query / math.sqrt(query.shape[1]), key)
        value = self._edges.softmax(score + self._log_weight.to(score.dtype))
        return SparseGraph(self._edges, value)


class EstimationGate(nn.Module):
    """Share of diffusion in each row: sigmoid(relu([day, person] W1) W2)."""

    def __init__(self, of_day: int, of_person: int, width: int) -> None:
        super().__init__()
        # [day, person] W1 as a sum: the concatenation is never made.
        self.of_day = nn.Linear(of_day, width)
        self.of_person = nn.Linear(of_person, width, bias=False)
        self.out = nn.Linear(width, 1)

    def forward(self, day: Tensor, person: Tensor) -> Tensor:
        """Return the gates in (0, 1), (people, days, 1), from both embeddings."""
        hidden = self.of_day(day) + self.of_person(person)[:, None]
        return self.out(hidden.relu()).sigmoid()


class Diffusion(nn.Module):
    """Localised convolution over people and days: the paper's diffusion model.

    H_t = sum over graphs and powers k of P~^k Z_t W_k,
    Z_t = sum over j < ``reach`` of relu(X_{t-j} U_j).

    The paper multiplies ``reach`` copies of P~^k with the stacked rows of the last
    ``reach`` days, which is P~^k times their sum. Days before the window are omitted.
    """

    def __init__(self, width: int, reach: int, graphs: int) -> None:
        super().__init__()
        self.lags = nn.ModuleList(nn.Linear(width, width) for _ in range(reach))
        self.mix = nn.ModuleList(
            nn.Linear(width, width, bias=first == 0) for first in range(2 * graphs)
        )

    def forward(self, x: Tensor, graphs: Sequence[Graph]) -> Tensor:
        days = x.shape[1]
        z = self.lags[0](x).relu()
        for lag, linear in enumerate(self.lags[1:days], start=1):
            earlier = linear(x[:, : days - lag]).relu()
            z = z + functional.pad(earlier, (0, 0, lag, 0))
        met = [one.view_as(z) for graph in graphs for one in graph.powers(z.flatten(1))]
        mixed = [mix(one) for mix, one in zip(self.mix, met, strict=True)]
        return sum(mixed)


class Inherent(nn.Module):
    """The paper's inherent model: a GRU, then self-attention over days."""

    def __init__(self, width: int, heads: int, days: int) -> None:
        super().__init__()
        self._heads = heads
        self.gru = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("position", positions(days, width), persistent=False)
        self.position: Tensor

    def forward(self, x: Tensor, last: int) -> Tensor:
        """Return rows (people, last, width) of the last ``last`` days of ``x``."""
        states = self.gru(x)[0] + self.position
        query = self._split(self.query(states[:, -last:]))
        key, value = map(self._split, self.key_value(states).chunk(2, dim=2))
        met = functional.scaled_dot_product_attention(query, key, value)
        return self.out(met.transpose(1, 2).flatten(2))

    def _split(self, rows: Tensor) -> Tensor:
        """Reshape (people, days, width) to (people, heads, days, width / heads)."""
        people, days, width = rows.shape
        apart = rows.reshape(people, days, self._heads, width // self._heads)
        return apart.transpose(1, 2)


def positions(days: int, width: int) -> Tensor:
    """Return sinusoidal positional encodings, (days, width) (Vaswani et al. 2017)."""
    day = torch.arange(days, dtype=torch.float32)[:, None]
    pair = torch.arange(width) // 2
    angle = day / 10_000 ** (2 * pair / width)
    return torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos())


class DecoupledLayer(nn.Module):
    """One layer of the paper's decoupling and residual decomposition.

        X_dif = gate o X,        H_dif = Diffusion(X_dif),
        X_inh = norm(X - relu(H_dif B_dif)),   H_inh = Inherent(X_inh),
        next  = norm(X_inh - relu(H_inh B_inh)).
    Each block's forecast is linear in its hidden row of the last day, because the
    horizon is one step. The last layer has no inherent backcast.
    """

    def __init__(self, days: int, settings: D2stgnnSettings, last: bool) -> None:
        super().__init__()
        width, size = settings.width, settings.embedding
        self._last = last
        self.gate = EstimationGate(size, 2 * size, width)
        self.diffusion = Diffusion(width, settings.reach, graphs=2)
        self.inherent = Inherent(width, settings.heads, days)
        self.backcast_diffusion = nn.Linear(width, width)
        self.norm_diffusion = nn.LayerNorm(width)
        self.forecast = nn.Linear(2 * width, width)
        if not last:
            self.backcast_inherent = nn.Linear(width, width)
            self.norm_inherent = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, day: Tensor, person: Tensor, graphs: Sequence[Graph]
    ) -> tuple[Tensor, Tensor]:
        """Return the rows for the next layer and the forecast (people, width)."""
        spread = self.diffusion(self.gate(day, person) * x, graphs)
        left = self.norm_diffusion(x - self.backcast_diffusion(spread).relu())
        within = self.inherent(left, 1 if self._last else x.shape[1])
        forecast = self.forecast(torch.cat([spread[:, -1], within[:, -1]], dim=1))
        if self._last:
            return left, forecast
        taken = self.backcast_inherent(within).relu()
        return self.norm_inherent(left - taken), forecast


class D2stgnn(NetworkMethod):
    """D2STGNN (Shao et al., VLDB 2022).

    All blocks of the paper: estimation gate, residual decomposition with
    backcasts, localised diffusion on self-excluded powers of the transition
    matrices, GRU with multi-head attention, dynamic graph, static graph.

    Reduced or adapted:
    - two layers of width 32 (paper: five), forecasts of 32 (256), a head of 64 (512),
      gates of 32 (64); dropout in fewer places;
    - the graph has each person's 32 strongest contacts and is undirected, so the
      forward and the backward walk are equal;
    - the static graph is the product of the softmaxed embeddings with rows normalised,
      of rank ``embedding`` (paper: a softmax of their products over everybody);
    - one embedding of the day of the window instead of time of day and day of week;
    - the horizon is one step, and the output one logit per person.
    """

    name = "d2stgnn"
    settings_type = D2stgnnSettings
    network_type = D2stgnnNetwork
