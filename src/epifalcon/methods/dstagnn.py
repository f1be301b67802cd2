"""DSTAGNN: attention over days and people, on a graph of similar histories.

Lan et al., "DSTAGNN: Dynamic Spatial-Temporal Aware Graph Neural Network for Traffic
Flow Forecasting" (ICML 2022). Written from the paper's equations. Rows are (people,
days, channels) throughout.

Similarity of two people: each person is represented by a distribution over days. Day d
has the weight |w_d|, where w_d is the vector of log(1 + others present) over the slots
of the day. Transport from day d of one person to day e of another costs
1 - cos(w_d, w_e); the distance is the Wasserstein distance under this cost. It is
computed from the traces alone, so the graph does not depend on test results.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.checks import Checked, Count, at_least, some
from epifalcon.hypergraph.edge_attention import EdgeList
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    NetworkMethod,
    NetworkSettings,
)
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Floats

_STAGES = (16.0, 4.0, 1.0)
_PAIRS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class SinkhornSettings(Checked):
    """Settings that determine the accuracy of the Wasserstein distances."""

    # Below, exp(-cost / softness) leaves the range of double precision.
    softness: Annotated[float, partial(at_least, 0.002)] = 0.005
    """Entropy weight for costs in [0, 1]; smaller values are closer to the exact
    distance."""
    sweeps: Count = 15
    """Iterations in each of three stages; the first two use 16 and 4 times the
    softness."""


@dataclass(frozen=True, kw_only=True)
class DstagnnSettings(NetworkSettings):
    """Settings of DSTAGNN."""

    width: Count = 16
    """Number of channels, and width of the free embedding."""
    blocks: Count = 2
    heads: Count = 2
    """Number of attention heads over days."""
    key_width: Count = 16
    """Width of queries and keys."""
    orders: Count = 3
    """Number of Chebyshev terms, each with its own attention."""
    kernels: Annotated[tuple[Count, ...], some] = (3, 5, 7)
    """Kernel sizes of the gated convolutions, in days."""
    partners: Count = 32
    """Number of strongest contacts per person whose similarity is computed."""
    relatives: Count = 16
    """Number of most similar contacts per person that become edges of the graph."""
    head_width: Count = 64
    sinkhorn: SinkhornSettings = field(default_factory=SinkhornSettings)


class DstagnnNetwork(nn.Module):
    """Network that maps (x, status) to log odds, (people,); status is not used."""

    def __init__(
        self, graphs: ContactGraphs, channels: int, settings: DstagnnSettings
    ) -> None:
        super().__init__()
        width, days = settings.width, graphs.days
        graph = aware_graph(graphs, settings)
        self.start = nn.Linear(channels, width)
        self.blocks = nn.ModuleList(
            AwareBlock(graph, days, settings) for _ in range(settings.blocks)
        )
        self.head = nn.Sequential(
            nn.Linear(settings.blocks * days * width, settings.head_width),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.head_width, 1),
        )

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        rows, score, parts = self.start(x), None, []
        for block in self.blocks:
            rows, score = block(rows, score)
            parts.append(rows.flatten(1))
        return self.head(torch.cat(parts, dim=1))[:, 0]


@dataclass(frozen=True, eq=False)
class AwareGraph:
    """Graph of similar people (STAG and STRG in the paper) with Chebyshev terms."""

    edges: EdgeList
    similarity: Tensor
    """Relevance A_STRG of each edge, (edges,); 0 for self-loops."""
    chebyshev: Tensor
    """Entries of T_k of the scaled Laplacian on the edges, (orders, edges)."""

    @classmethod
    def of_pairs(
        cls,
        pairs: NDArray[np.int64],
        similarity: Floats,
        people: int,
        relatives: int,
        orders: int,
    ) -> "AwareGraph":
        """Return the graph from distinct ``pairs`` (2, pairs) and their similarities.

        Two people are joined if either is among the ``relatives`` most similar people
        of the other.
        """
        person, value = pairs.ravel(), np.tile(similarity, 2)
        order = np.lexsort((-value, person))
        start = np.searchsorted(person[order], np.arange(people))
        rank = np.arange(len(order)) - start[person[order]]
        selected = np.unique(order[rank < relatives] % max(len(similarity), 1))
        one, other = torch.from_numpy(pairs[:, selected])
        own = torch.arange(people)
        ends = torch.cat([one, other, own]), torch.cat([other, one, own])
        edges = EdgeList(torch.stack(ends), people)
        value = np.concatenate([np.tile(similarity[selected], 2), np.zeros(people)])
        return cls(edges, torch.from_numpy(value).float(), _chebyshev(edges, orders))


@lru_cache(maxsize=1)
def aware_graph(graphs: ContactGraphs, settings: DstagnnSettings) -> AwareGraph:
    """Return the graph of the most similar people among the strongest contacts.

    The last one is stored, because all learning rates share it.
    """
    partners = graphs.partners(settings.partners).edge_index.numpy()
    pairs = np.unique(np.sort(partners, axis=0), axis=1)
    similarity = similarities(day_profiles(graphs.traces), pairs, settings.sinkhorn)
    people, relatives = graphs.people, settings.relatives
    return AwareGraph.of_pairs(pairs, similarity, people, relatives, settings.orders)


def _chebyshev(edges: EdgeList, orders: int) -> Tensor:
    """Return T_k(L~) on the edges, L~ = -D^-1/2 A D^-1/2 (largest eigenvalue as 2).

    A is 1 on each edge and 0 on the diagonal. Only entries on the edges are stored,
    since T_k is multiplied by attention, which is 0 elsewhere.
    """
    row, column = edges.target.numpy().copy(), edges.source.numpy().copy()
    people = edges.people
    edge = (row != column).astype(np.float64)
    scale = 1 / np.sqrt(np.maximum(np.bincount(row, edge, people), 1))
    value = -edge * scale[row] * scale[column]
    scaled = sp.csr_array((value, (row, column)), (people, people))
    terms = [sp.csr_array(sp.eye_array(people)), scaled]
    for _ in range(2, orders):
        terms.append(sp.csr_array(2 * (scaled @ terms[-1]) - terms[-2]))
    read = [np.asarray(term[row, column]).ravel() for term in terms[:orders]]
    return torch.from_numpy(np.stack(read).astype(np.float32))


def day_profiles(traces: Traces) -> NDArray[np.float32]:
    """Return log(1 + others present), (people, days, slots); 0 if not observed."""
    others = np.zeros((traces.slots, traces.people), np.float32)
    for slot, here in enumerate(traces.by_slot):
        seen = here != UNKNOWN
        others[slot, seen] = np.log(traces.occupancy(slot)[here[seen]])
    shape = (traces.people, traces.clock.days, traces.clock.slots_per_day)
    return np.ascontiguousarray(others.T).reshape(shape)


def similarities(
    profiles: NDArray[np.floating[Any]],
    pairs: NDArray[np.int64],
    settings: SinkhornSettings,
) -> Floats:
    """Return 1 - the distance of the two people of each pair, (pairs,), in [0, 1].

    ``profiles`` (people, days, slots) are non-negative; ``pairs`` is (2, pairs). Uses
    Sinkhorn scaling and rounding to a feasible transport plan (Altschuler et al. 2017),
    so the distance is never below the exact one. A day of zeros has cost 1 to every
    day; if all days of a person are zero, they have equal weights.
    """
    length = np.sqrt((np.asarray(profiles, np.float64) ** 2).sum(axis=2))
    total = length.sum(axis=1, keepdims=True)
    even = np.full_like(length, 1 / length.shape[1])
    weight = np.divide(length, total, out=even, where=total > 0)
    direction = profiles / np.where(length > 0, length, 1)[:, :, None]
    found = np.empty(pairs.shape[1])
    for start in range(0, len(found), _PAIRS_AT_ONCE):
        one, other = pairs[:, start : start + _PAIRS_AT_ONCE]
        cost = np.maximum(1 - direction[one] @ direction[other].mT, 0)
        plan = _transport(cost, weight[one], weight[other], settings)
        found[start : start + _PAIRS_AT_ONCE] = 1 - (cost * plan).sum(axis=(1, 2))
    return np.clip(found, 0, 1)


def _transport(
    cost: Floats, mass: Floats, wanted: Floats, settings: SinkhornSettings
) -> Floats:
    """Return transport plans (pairs, days, days) with the given row and column sums."""
    rows, columns = np.zeros_like(mass), np.zeros_like(wanted)
    plan = cost
    with np.errstate(divide="ignore"):
        for stage in _STAGES:
            softness = settings.softness * stage
            gain = rows[:, :, None] + columns[:, None] - cost
            plan = np.exp(gain / softness)
            right = np.ones_like(wanted)
            for _ in range(settings.sweeps):
                left = _ratio(mass, (plan @ right[:, :, None])[:, :, 0])
                right = _ratio(wanted, (left[:, None] @ plan)[:, 0])
            plan = plan * left[:, :, None] * right[:, None]
            rows, columns = (
                price + softness * np.log(factor)
                for price, factor in ((rows, left), (columns, right))
            )
    # Make the sums exact: scale down excess, distribute deficits.
    plan *= np.minimum(_ratio(mass, plan.sum(axis=2)), 1)[:, :, None]
    plan *= np.minimum(_ratio(wanted, plan.sum(axis=1)), 1)[:, None]
    lacking, open_ = mass - plan.sum(axis=2), wanted - plan.sum(axis=1)
    total = np.maximum(lacking.sum(axis=1), 1e-15)
    missing = lacking[:, :, None] * open_[:, None] / total[:, None, None]
    return plan + missing


def _ratio(wanted: Floats, given: Floats) -> Floats:
    return np.divide(wanted, given, out=np.zeros_like(wanted), where=given > 0)


class TemporalAttention(nn.Module):
    """Attention over days for each channel; a day is the vector of all people's values.

    norm(X' + softmax(Q K' / sqrt d + before) V W_o), with Q, K and V linear in X' and
    the scores of the previous block added (residual attention). The norm is over people
    and without parameters.
    """

    def __init__(self, people: int, heads: int, width: int) -> None:
        super().__init__()
        self._heads, self._width = heads, width
        self.inward = nn.Linear(people, 3 * heads * width, bias=False)
        self.outward = nn.Linear(heads * width, people, bias=False)

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        by_channel = x.permute(2, 1, 0).contiguous()
        parts = self.inward(by_channel).unflatten(2, (3, self._heads, self._width))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        score = query @ key.transpose(2, 3) / math.sqrt(self._width)
        if before is not None:
            score = score + before
        met = (score.softmax(dim=3) @ value).transpose(1, 2).flatten(2)
        rows = by_channel + self.outward(met)
        return functional.layer_norm(rows, rows.shape[2:]).permute(2, 1, 0), score


class SpatialAttention(nn.Module):
    """Attention to similar people, separate for each Chebyshev term.

    P_k = softmax(Q_k K_k' / sqrt d + A_STRG o M_k), with Q and K linear in a person's
    days after the temporal attention. Softmax and the learnt M_k cover the edges only.
    """

    def __init__(self, graph: AwareGraph, history: int, inner: int, width: int) -> None:
        super().__init__()
        terms = len(graph.chebyshev)
        self._graph, self._terms = graph, terms
        self.embed = nn.Linear(history, inner)
        self.norm = nn.LayerNorm(inner)
        self.query = nn.Linear(inner, terms * width, bias=False)
        self.key = nn.Linear(inner, terms * width, bias=False)
        self.mask = nn.Parameter(0.1 * torch.randn(terms, len(graph.edges)))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return P_k, (edges,) for each k, from ``x`` (people, days, channels)."""
        graph = self._graph
        person = self.norm(self.embed(x.flatten(1)))
        query = self.query(person).chunk(self._terms, dim=1)
        key = self.key(person).chunk(self._terms, dim=1)
        scale = 1 / math.sqrt(query[0].shape[1])
        return [
            graph.edges.softmax(
                graph.edges.scores(scale * one, other) + graph.similarity * mask
            )
            for one, other, mask in zip(query, key, self.mask, strict=True)
        ]


class MaskedChebyshevConv(nn.Module):
    """Chebyshev convolution relu(sum_k (T_k(L~) o P_k) X Theta_k) of each day."""

    def __init__(self, graph: AwareGraph, channels: int) -> None:
        super().__init__()
        self._graph = graph
        terms = len(graph.chebyshev)
        self.mix = nn.Linear(terms * channels, channels)

    def forward(self, x: Tensor, attention: list[Tensor]) -> Tensor:
        edges, terms = self._graph.edges, self._graph.chebyshev.to(x.dtype)
        # T_0 is the identity: only the diagonal of P_0 is left, the last edges.
        spread = [attention[0][-edges.people :][:, None, None] * x]
        spread += [
            edges.product(term * weight, x.flatten(1)).view_as(x)
            for term, weight in zip(terms[1:], attention[1:], strict=True)
        ]
        mixed: Tensor = self.mix(torch.cat(spread, dim=2))
        return functional.relu(mixed)


class MultiScaleGatedConv(nn.Module):
    """Gated convolutions over days with several kernel sizes: the paper's M-GTU.

    tanh(E) o sigmoid(F), [E, F] an unpadded convolution over ``kernel`` days, for each
    kernel; a linear map from the concatenated results to the days of the window
    (pooling in the paper); then relu of the sum with the input.
    """

    def __init__(self, channels: int, days: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        fitting = [min(kernel, days) for kernel in kernels]
        self.convolve = nn.ModuleList(
            nn.Conv2d(channels, 2 * channels, (kernel, 1)) for kernel in fitting
        )
        made = sum(days - kernel + 1 for kernel in fitting)
        self.days = nn.Linear(made, days)

    def forward(self, x: Tensor) -> Tensor:
        image = x.permute(2, 1, 0).contiguous()[None]
        made = []
        for convolve in self.convolve:
            value, gate = convolve(image)[0].chunk(2)
            made.append(value.tanh() * gate.sigmoid())
        mixed = self.days.weight @ torch.cat(made, dim=1) + self.days.bias[:, None]
        return functional.relu(x + mixed.permute(2, 1, 0))


class AwareBlock(nn.Module):
    """Block of attention over days and people, two convolutions and a residual.

    Returns norm(relu(X W + M-GTU(Cheb(X)))), with the norm over channels.
    """

    def __init__(self, graph: AwareGraph, days: int, settings: DstagnnSettings) -> None:
        super().__init__()
        channels, width = settings.width, settings.key_width
        self.over_days = TemporalAttention(graph.edges.people, settings.heads, width)
        self.over_people = SpatialAttention(graph, days * channels, 2 * channels, width)
        self.spread = MaskedChebyshevConv(graph, channels)
        self.in_time = MultiScaleGatedConv(channels, days, settings.kernels)
        self.residual = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        attended, score = self.over_days(x, before)
        rows = self.in_time(self.spread(x, self.over_people(attended)))
        return self.norm(functional.relu(self.residual(x) + rows)), score


class Dstagnn(NetworkMethod):
    """DSTAGNN (Lan et al., ICML 2022).

    Has all parts of the paper: the graph of similar people by Wasserstein distance,
    attention over days with residual scores, attention over people, Chebyshev
    convolution with that attention, multi-scale gated convolution over days.

    Reduced or adapted:
    - two blocks of 16 channels (paper: four of 32), two heads over days (three or
      four), keys of 16 (32), a head of 64 (128);
    - no learnt embeddings of the day and of the person in the attention, which would be
      a free vector for each person;
    - similarities are not divided by their mean; they are computed by Sinkhorn scaling
      among each person's 32 strongest contacts, and the 16 most similar are edges
      (paper: exact transport, the most similar hundredth of all pairs);
    - the softmax over people and the learnt masks are restricted to that graph;
    - input channels are mapped to 16 before the first block;
    - the concatenated outputs of all blocks give one logit per person.
    """

    name = "dstagnn"
    settings_type = DstagnnSettings
    network_type = DstagnnNetwork
