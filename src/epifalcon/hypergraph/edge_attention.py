"""Attention on a fixed list of edges: weighted sums, scores and softmax.

Sums and scores are two numba kernels, each the gradient of the other: torch's index
operations take 3 to 9 times as long for several hundred thousand edges.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon._numba import compiled, njit
from epifalcon.hypergraph.propagation import differentiable

Ids = NDArray[np.int64]


class EdgeList:
    """Directed edges between people, from source to target.

    Rows of people are (people, width) or (people, heads, width); values of edges are
    (edges,) or (edges, heads), respectively, of the same float type.
    """

    def __init__(self, edge_index: Tensor, people: int) -> None:
        """Store the edges; ``edge_index`` (2, edges) has sources, then targets."""
        self.people = people
        self.source, self.target = edge_index.long().contiguous()

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def _by_target(self) -> "_Sorted":
        return _Sorted(self.source, self.target, self.people)

    @cached_property
    def _by_source(self) -> "_Sorted":
        return _Sorted(self.target, self.source, self.people)

    @cached_property
    def mutual(self) -> Tensor:
        """Edges whose reverse is also listed, and the reverse ones, (2, mutual)."""
        forth = self.target * self.people + self.source
        opposite = self.source * self.people + self.target
        _, *both = np.intersect1d(
            forth.numpy(), opposite.numpy(), assume_unique=True, return_indices=True
        )
        return torch.from_numpy(np.stack(both))

    def product(self, value: Tensor, x: Tensor) -> Tensor:
        """Return, for each target, the sum over its edges of value * x[source]."""
        return _product(value, x, self._by_target, self._by_source)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Return query[target] . key[source] for each edge."""
        return _scores(query, key, self._by_target, self._by_source)

    def softmax(self, score: Tensor) -> Tensor:
        """Return the softmax over the edges of each target, shaped like ``score``."""
        return segment_softmax(score, self.target, self.people)


def segment_softmax(score: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Return the softmax of ``score`` (n, ...) within each of the ``segments``."""
    shape = (segments, *score.shape[1:])
    places = segment.view(-1, *[1] * (score.ndim - 1)).expand_as(score)
    top = score.new_full(shape, -torch.inf)
    top = top.scatter_reduce(0, places, score.detach(), "amax")
    mass = (score - top[segment]).exp()
    total = score.new_zeros(shape).index_add(0, segment, mass)
    return mass / total[segment]


class _Sorted:
    """Edges sorted by one endpoint: ``start`` (people + 1,), ``edge``, ``other``."""

    def __init__(self, other: Tensor, end: Tensor, people: int) -> None:
        self.start = np.zeros(people + 1, np.int64)
        np.cumsum(np.bincount(end.numpy(), minlength=people), out=self.start[1:])
        self.edge = np.argsort(end.numpy(), kind="stable")
        self.other = other.numpy()[self.edge]


def _product(value: Tensor, x: Tensor, there: _Sorted, back: _Sorted) -> Tensor:
    def run() -> Tensor:
        rows, out = _with_heads(x), np.empty(x.shape, _array(x).dtype)
        heads = _array(value).reshape(len(value), rows.shape[1])
        result = out.reshape(rows.shape)
        _sum_edges(there.start, there.edge, there.other, heads, rows, result)
        return torch.from_numpy(out)

    gradients = (
        lambda grad: _scores(grad, x, there, back),
        lambda grad: _product(value, grad, back, there),
    )
    return differentiable(run, gradients, value, x)


def _scores(query: Tensor, key: Tensor, there: _Sorted, back: _Sorted) -> Tensor:
    def run() -> Tensor:
        rows = _with_heads(query)
        out = np.empty((len(there.edge), rows.shape[1]), rows.dtype)
        _score_edges(there.start, there.edge, there.other, rows, _with_heads(key), out)
        return torch.from_numpy(out.reshape(len(out), *query.shape[1:-1]))

    gradients = (
        lambda grad: _product(grad, key, there, back),
        lambda grad: _product(grad, query, back, there),
    )
    return differentiable(run, gradients, query, key)


def _array(x: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(x.detach().resolve_neg().numpy())


def _with_heads(x: Tensor) -> NDArray[Any]:
    """Return (people, heads, width), with one head if ``x`` has no head axis."""
    return _array(x).reshape(len(x), -1, x.shape[-1])


@compiled
def _sum_edges(
    start: Ids,
    edge: Ids,
    other: Ids,
    value: NDArray[Any],
    x: NDArray[Any],
    out: NDArray[Any],
) -> None:
    heads, width = x.shape[1:]
    for person in range(len(out)):
        out[person] = 0
        for place in range(start[person], start[person + 1]):
            for head in range(heads):
                factor = value[edge[place], head]
                for column in range(width):
                    out[person, head, column] += factor * x[other[place], head, column]


@njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
def _score_edges(
    start: Ids,
    edge: Ids,
    other: Ids,
    query: NDArray[Any],
    key: NDArray[Any],
    out: NDArray[Any],
) -> None:
    heads, width = query.shape[1:]
    for person in range(len(start) - 1):
        for place in range(start[person], start[person + 1]):
            for head in range(heads):
                total = query.dtype.type(0)
                for column in range(width):
                    total += (
                        query[person, head, column] * key[other[place], head, column]
                    )
                out[edge[place], head] = total
