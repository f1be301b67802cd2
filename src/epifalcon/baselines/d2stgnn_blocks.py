"""The blocks of D2STGNN: gate, graphs, diffusion, inherent signal, layer.

Shao et al. 2022, "Decoupled Dynamic Spatial-Temporal Graph Neural Network for
Traffic Forecasting" (VLDB 15, 11). Written from the paper's equations; what is
reduced or adapted stands with each block. Rows are (people, days, width)
throughout.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.hypergraph.fixed import Fixed


class Graph(Protocol):
    """Transition matrices, each power without its diagonal."""

    def powers(self, x: Tensor) -> Sequence[Tensor]:
        """P~ x and the same of P^2, for x (people, width)."""


@dataclass(frozen=True, eq=False)
class Support:
    """The cells of a (people, people) matrix that may differ from 0.

    Row the person, column its partner; none on the diagonal.
    """

    edges: Fixed
    """From partner to person."""
    there: Tensor
    """(mutual,) the edges whose opposite is on the support too."""
    back: Tensor
    """(mutual,) those opposites."""

    @classmethod
    def of(cls, edges: Fixed) -> "Support":
        """The support of ``edges``, each of them given once."""
        forth = edges.target.astype(np.int64) * edges.people + edges.source
        turned = edges.source.astype(np.int64) * edges.people + edges.target
        _, there, back = np.intersect1d(
            forth, turned, assume_unique=True, return_indices=True
        )
        # Of one cell: where it stands itself, and where its opposite does.
        return cls(edges, torch.from_numpy(there), torch.from_numpy(back))


@dataclass(frozen=True, eq=False)
class SparseGraph:
    """Rows that add up to 1 on a fixed support."""

    support: Support
    value: Tensor
    """(edges,)"""

    def powers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """P x and (P^2 - diag P^2) x: what comes from others in one and two steps.

        The diagonal of P^2 is the sum over j of P_ij P_ji; the matrix P^2 is
        never made.
        """
        support = self.support
        once = support.edges.product(self.value, x)
        to_and_fro = self.value[support.there] * self.value[support.back]
        target = torch.from_numpy(support.edges.target)[support.there]
        own = x.new_zeros(len(x)).index_add(0, target, to_and_fro)
        twice = support.edges.product(self.value, once)
        return once, torch.addcmul(twice, own[:, None], x, value=-1)


@dataclass(frozen=True, eq=False)
class LowRankGraph:
    """U V' with rows divided by their sums; U, V positive (people, rank)."""

    left: Tensor
    """U with each row divided by its sum over V."""
    right: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> "LowRankGraph":
        """The graph of U = softmax(left), V = softmax(right), row by row."""
        u, v = left.softmax(dim=1), right.softmax(dim=1)
        return cls(u / (u @ v.sum(dim=0))[:, None], v)

    def powers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(P - diag P) x and (P^2 - diag P^2) x."""
        middle = self.right.t() @ self.left
        told = self.right.t() @ x
        made = []
        for left in (self.left, self.left @ middle):
            own = (left * self.right).sum(dim=1, keepdim=True)
            made.append(torch.addcmul(left @ told, own, x, value=-1))
        return made[0], made[1]


class DynamicGraph(nn.Module):
    """The walk on contacts, weighed anew by attention: the paper's P^dy.

    P^dy = P o softmax(Q K' / sqrt d) with rows brought back to a sum of 1, where
    Q and K are linear in features of each person: what happened to it on all
    days through two linear maps, its embedding, and the embedding of the last
    day. Since P is 0 off the contacts, the sum of the softmax over everybody
    cancels: the row is a softmax of log P_ij + q_i k_j / sqrt d over the
    contacts alone, exactly.

    As in the paper one graph serves all days of the window. Contacts have no
    direction, so the paper's forward and backward walks are one.
    """

    def __init__(
        self, support: Support, weight: Tensor, sizes: tuple[int, int], width: int
    ) -> None:
        """``weight`` (edges,) of the walk; ``sizes`` of a person's days and about."""
        super().__init__()
        history, about = sizes
        self._support = support
        self._log_weight = weight.log()
        self.history = nn.Sequential(
            nn.Linear(history, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.query = nn.Linear(width + about, width, bias=False)
        self.key = nn.Linear(width + about, width, bias=False)

    def forward(self, x: Tensor, about: Tensor) -> SparseGraph:
        """From x (people, days, channels) and ``about`` (people, more) to the graph."""
        features = torch.cat([self.history(x.flatten(1)), about], dim=1)
        query, key = self.query(features), self.key(features)
        score = self._support.edges.scores(query / math.sqrt(query.shape[1]), key)
        value = self._support.edges.softmax(score + self._log_weight.to(score.dtype))
        return SparseGraph(self._support, value)


class EstimationGate(nn.Module):
    """How much of each row is diffusion: the paper's estimation gate.

    sigmoid(relu([day, person] W1) W2): one number for each person and day, from
    embeddings alone. The paper's two embeddings of time (of the day, of the
    week) are one here, of the day of the window.
    """

    def __init__(self, of_day: int, of_person: int, width: int) -> None:
        super().__init__()
        # [day, person] W1 as a sum: the concatenation is never made.
        self.of_day = nn.Linear(of_day, width)
        self.of_person = nn.Linear(of_person, width, bias=False)
        self.out = nn.Linear(width, 1)

    def forward(self, day: Tensor, person: Tensor) -> Tensor:
        """(days, of_day) and (people, of_person) to (people, days, 1) in (0, 1)."""
        hidden = self.of_day(day) + self.of_person(person)[:, None]
        gate: Tensor = self.out(hidden.relu()).sigmoid()
        return gate


class Diffusion(nn.Module):
    """The localised convolution over people and days: the paper's diffusion model.

    H_t = sum over graphs and powers k of P~^k Z_t W_k,
    Z_t = sum over j < ``reach`` of relu(X_{t-j} U_j).

    The paper puts ``reach`` copies of P~^k side by side and the rows of the last
    ``reach`` days below each other; the copies are equal, so their product is
    that of P~^k with the sum. Days before the window are left out.
    """

    def __init__(self, width: int, reach: int, graphs: int) -> None:
        super().__init__()
        self.lags = nn.ModuleList(nn.Linear(width, width) for _ in range(reach))
        self.mix = nn.ModuleList(
            nn.Linear(width, width, bias=first == 0) for first in range(2 * graphs)
        )

    def forward(self, x: Tensor, graphs: Sequence[Graph]) -> Tensor:
        """(people, days, width) in and out."""
        days = x.shape[1]
        z = self.lags[0](x).relu()
        for lag, linear in enumerate(self.lags[1:days], start=1):
            earlier = linear(x[:, : days - lag]).relu()
            z = z + functional.pad(earlier, (0, 0, lag, 0))
        from_others = [one for graph in graphs for one in graph.powers(z.flatten(1))]
        mixed = [
            mix(one.view_as(z)) for mix, one in zip(self.mix, from_others, strict=True)
        ]
        return _sum_of(mixed)


def _sum_of(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total


class Inherent(nn.Module):
    """What goes on within each person: GRU, then attention over the days.

    The paper's inherent model: the GRU's states with sinusoidal positions go
    through multi-head self-attention, so that days far apart meet too.
    """

    def __init__(self, width: int, heads: int, days: int) -> None:
        super().__init__()
        self._heads = heads
        self.gru = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("position", positions(days, width), persistent=False)
        self.position: Tensor

    def forward(self, x: Tensor, asked: int) -> Tensor:
        """(people, days, width) to (people, asked, width): the last ``asked`` days."""
        states = self.gru(x)[0] + self.position
        query = self._split(self.query(states[:, -asked:]))
        key, value = map(self._split, self.key_value(states).chunk(2, dim=2))
        met = functional.scaled_dot_product_attention(query, key, value)
        made: Tensor = self.out(met.transpose(1, 2).flatten(2))
        return made

    def _split(self, rows: Tensor) -> Tensor:
        """(people, days, width) to (people, heads, days, width / heads)."""
        people, days, width = rows.shape
        apart = rows.reshape(people, days, self._heads, width // self._heads)
        return apart.transpose(1, 2)


def positions(days: int, width: int) -> Tensor:
    """Sines and cosines of the day, (days, width), Vaswani et al. 2017."""
    day = torch.arange(days, dtype=torch.float32)[:, None]
    pair = torch.arange(width) // 2
    angle = day / 10_000 ** (2 * pair / width)
    return torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos())


class DecoupledLayer(nn.Module):
    """One layer: what diffusion explains is taken away, then what is inherent.

    The paper's decoupling and residual decomposition:
        X_dif = gate o X,        H_dif = Diffusion(X_dif),
        X_inh = norm(X - relu(H_dif B_dif)),   H_inh = Inherent(X_inh),
        next  = norm(X_inh - relu(H_inh B_inh)).
    Each block's forecast is linear in its hidden row of the last day: the
    horizon is one step, so the paper's autoregression is one step too. The last
    layer has nobody to hand on to and makes no inherent backcast.
    """

    def __init__(self, shape: "LayerShape", last: bool) -> None:
        super().__init__()
        width = shape.width
        self._last = last
        self.gate = EstimationGate(shape.of_day, shape.of_person, width)
        self.diffusion = Diffusion(width, shape.reach, graphs=2)
        self.inherent = Inherent(width, shape.heads, shape.days)
        self.backcast_diffusion = nn.Linear(width, width)
        self.norm_diffusion = nn.LayerNorm(width)
        self.forecast = nn.Linear(2 * width, width)
        if not last:
            self.backcast_inherent = nn.Linear(width, width)
            self.norm_inherent = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, embedded: tuple[Tensor, Tensor], graphs: Sequence[Graph]
    ) -> tuple[Tensor, Tensor]:
        """Rows for the next layer, and the forecast (people, width)."""
        spread = self.diffusion(self.gate(*embedded) * x, graphs)
        left = self.norm_diffusion(x - self.backcast_diffusion(spread).relu())
        within = self.inherent(left, 1 if self._last else x.shape[1])
        told = self.forecast(torch.cat([spread[:, -1], within[:, -1]], dim=1))
        if self._last:
            return left, told
        taken = self.backcast_inherent(within).relu()
        return self.norm_inherent(left - taken), told


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """The sizes of a layer."""

    width: int
    days: int
    reach: int
    heads: int
    of_day: int
    of_person: int
