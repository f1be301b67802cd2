"""The blocks of DSTAGNN: its graph, both attentions, both convolutions.

Lan et al. 2022, "DSTAGNN: Dynamic Spatial-Temporal Aware Graph Neural Network
for Traffic Flow Forecasting" (ICML). Written from the paper's equations; what is
reduced or adapted stands with each block. Rows are (people, days, channels)
throughout.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.hypergraph.contacts import Partners
from epifalcon.hypergraph.fixed import Fixed


@dataclass(frozen=True, eq=False)
class AwareGraph:
    """Who is alike: the paper's STAG and STRG, and the Chebyshev terms on them.

    The support holds both directions of every edge, and each person with itself.
    """

    support: Fixed
    likeness: Tensor
    """(edges,) the relevance A_STRG; 0 on the diagonal."""
    chebyshev: Tensor
    """(orders, edges) T_k of the scaled Laplacian of the graph, on the support."""

    @classmethod
    def of(
        cls, pairs: Tensor, alike: Tensor, people: int, settings: tuple[int, int]
    ) -> "AwareGraph":
        """The graph of ``pairs`` (2, pairs), ``alike`` (pairs,) in [0, 1].

        ``settings`` are how many of the most alike each person keeps, and how
        many Chebyshev terms are made. An edge that either side keeps stays.
        """
        most, orders = settings
        kept = _most_alike(pairs.numpy(), alike.numpy(), people, most)
        one, other = pairs[:, kept]
        own = torch.arange(people)
        ends = torch.cat([one, other, own]), torch.cat([other, one, own])
        support = Fixed.of(torch.stack(ends), people)
        value = torch.cat([alike[kept], alike[kept], torch.zeros(people)])
        return cls(support, value.float(), _chebyshev(support, orders))

    @property
    def own(self) -> slice:
        """The edges of each person with itself, in order."""
        return slice(self.support.edges - self.support.people, None)


def candidate_pairs(partners: Partners) -> Tensor:
    """Each two people of whom one is a partner of the other: (2, pairs), once."""
    pairs = np.sort(partners.edge_index.numpy(), axis=0)
    return torch.from_numpy(np.unique(pairs, axis=1))


def _most_alike(
    pairs: NDArray[np.int64], alike: NDArray[np.floating], people: int, most: int
) -> Tensor:
    """Places of the pairs that are among the ``most`` likest of one of the two."""
    person = np.concatenate([pairs[0], pairs[1]])
    value = np.concatenate([alike, alike])
    order = np.lexsort((-value, person))
    start = np.searchsorted(person[order], np.arange(people))
    rank = np.arange(len(order)) - start[person[order]]
    kept = order[rank < most] % len(alike) if len(alike) else order
    return torch.from_numpy(np.unique(kept))


def _chebyshev(support: Fixed, orders: int) -> Tensor:
    """T_k(L~) on the support, L~ = -D^-1/2 A D^-1/2 (largest eigenvalue as 2).

    A is 1 on each edge and 0 on the diagonal. T_k reaches k steps far, but it is
    only ever multiplied with attention on the support, so no more is kept.
    """
    row, column = support.target, support.source
    edge = (row != column).astype(np.float64)
    shape = (support.people, support.people)
    degree = np.bincount(row, edge, support.people)
    scale = 1 / np.sqrt(np.maximum(degree, 1))
    scaled = sp.csr_array((-edge * scale[row] * scale[column], (row, column)), shape)
    terms = [sp.csr_array(sp.eye_array(support.people)), scaled]
    for _ in range(2, orders):
        terms.append(sp.csr_array(2 * (scaled @ terms[-1]) - terms[-2]))
    wanted = row * np.int64(support.people) + column
    read = [_cells(term, wanted) for term in terms[:orders]]
    return torch.from_numpy(np.stack(read).astype(np.float32))


def _cells(matrix: sp.csr_array, wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cells of ``matrix`` at row x columns + column, 0 where it has none."""
    cells = matrix.tocoo()
    key = cells.row * np.int64(matrix.shape[1]) + cells.col
    # One more cell than there are, so that there is one to look at.
    order = np.append(np.argsort(key), len(key))
    key, data = np.append(key, -1), np.append(cells.data, 0.0)
    found = order[np.searchsorted(key[order[:-1]], wanted)]
    return np.where(key[found] == wanted, data[found], 0.0)


class TemporalAttention(nn.Module):
    """Days attend to days, each day told by the whole city.

    For each channel the day is the vector of all people's values. Q, K and V are
    linear in it (people x heads d), the scores of the block before are added
    (residual attention), and what is met is led back to the people:
        norm(X' + softmax(Q K' / sqrt d + before) V W_o).
    The norm is over people and without parameters.
    """

    def __init__(self, people: int, heads: int, width: int) -> None:
        super().__init__()
        self._heads, self._width = heads, width
        self.inward = nn.Linear(people, 3 * heads * width, bias=False)
        self.outward = nn.Linear(heads * width, people, bias=False)

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """(people, days, channels) in and out, and the scores of this block."""
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
    """How much each person attends to those alike, once for each Chebyshev term.

    P_k = softmax(Q_k K_k' / sqrt d + A_STRG o M_k), Q and K linear in the days of
    a person after the temporal attention, M_k learnt. The softmax runs over the
    support instead of everybody, and M_k has its entries there alone (people x
    people of them could not be held).
    """

    def __init__(self, graph: AwareGraph, history: int, sizes: tuple[int, int]) -> None:
        super().__init__()
        terms, (embedded, width) = len(graph.chebyshev), sizes
        self._graph, self._terms = graph, terms
        self.embed = nn.Linear(history, embedded)
        self.norm = nn.LayerNorm(embedded)
        self.query = nn.Linear(embedded, terms * width, bias=False)
        self.key = nn.Linear(embedded, terms * width, bias=False)
        self.mask = nn.Parameter(0.1 * torch.randn(terms, graph.support.edges))

    def forward(self, x: Tensor) -> list[Tensor]:
        """(people, days, channels) to P_k on the support, (edges,) for each k."""
        graph = self._graph
        person = self.norm(self.embed(x.flatten(1)))
        query = self.query(person).chunk(self._terms, dim=1)
        key = self.key(person).chunk(self._terms, dim=1)
        scale = 1 / math.sqrt(query[0].shape[1])
        return [
            graph.support.softmax(
                graph.support.scores(scale * one, other) + graph.likeness * mask
            )
            for one, other, mask in zip(query, key, self.mask, strict=True)
        ]


class ChebyshevConv(nn.Module):
    """relu(sum over k of (T_k(L~) o P_k) X Theta_k), day by day."""

    def __init__(self, graph: AwareGraph, channels: int) -> None:
        super().__init__()
        self._graph = graph
        terms = len(graph.chebyshev)
        self.mix = nn.Linear(terms * channels, channels)

    def forward(self, x: Tensor, attention: list[Tensor]) -> Tensor:
        """(people, days, channels) in and out."""
        support, terms = self._graph.support, self._graph.chebyshev.to(x.dtype)
        # T_0 is the identity: nothing but the diagonal of P_0 is left.
        spread = [attention[0][self._graph.own][:, None, None] * x]
        spread += [
            support.product(term * weight, x.flatten(1)).view_as(x)
            for term, weight in zip(terms[1:], attention[1:], strict=True)
        ]
        mixed: Tensor = self.mix(torch.cat(spread, dim=2))
        return functional.relu(mixed)


class GatedConv(nn.Module):
    """Gated convolutions over days at several scales: the paper's M-GTU.

    tanh(E) o sigmoid(F), [E, F] a convolution over ``kernel`` days without
    padding, for each kernel; the results, side by side in time, are led back to
    the days of the window by a linear map (the paper pools); then relu of the
    sum with the input. A kernel longer than the window is cut to it.
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
        """(people, days, channels) in and out."""
        image = x.permute(2, 1, 0).contiguous()[None]
        made = []
        for convolve in self.convolve:
            value, gate = convolve(image)[0].chunk(2)
            made.append(value.tanh() * gate.sigmoid())
        told = self.days.weight @ torch.cat(made, dim=1) + self.days.bias[:, None]
        return functional.relu(x + told.permute(2, 1, 0))


class AwareBlock(nn.Module):
    """One block: attention over days and people, both convolutions, residual.

    norm(relu(X W + M-GTU(Cheb(X)))), the norm over channels.
    """

    def __init__(
        self, graph: AwareGraph, shape: "BlockShape", kernels: tuple[int, ...]
    ) -> None:
        super().__init__()
        people, channels = graph.support.people, shape.channels
        self.over_days = TemporalAttention(people, shape.heads, shape.key_width)
        self.over_people = SpatialAttention(
            graph, shape.days * channels, (shape.embedded, shape.key_width)
        )
        self.spread = ChebyshevConv(graph, channels)
        self.in_time = GatedConv(channels, shape.days, kernels)
        self.residual = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """(people, days, channels) in and out; scores over days in and out."""
        attended, score = self.over_days(x, before)
        rows = self.in_time(self.spread(x, self.over_people(attended)))
        return self.norm(functional.relu(self.residual(x) + rows)), score


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """The sizes of a block."""

    channels: int
    days: int
    heads: int
    key_width: int
    embedded: int
