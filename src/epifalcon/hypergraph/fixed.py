"""A graph whose edges stay and whose weights change: attention on listed partners.

The edges are sorted once by either end. A product then walks them by target and
its gradient by source, so nothing is gathered into (edges, width) and nothing is
scattered: results are the same bit by bit for any number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.hypergraph.incidence import Rows
from epifalcon.hypergraph.pairs import Ends, Ids
from epifalcon.hypergraph.propagate import equal_parts

Cube = NDArray[np.floating]
"""(people, heads, width of a head), or (edges, heads), in 32 or 64 bits."""
_PARTS = 16
_KINDS = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Fixed:
    """Directed edges between people, in the order given: source to target.

    Rows of people are (people, width), or (people, heads, width of a head) for
    several heads; values of edges then are (edges,) or (edges, heads). All types
    are 32 or 64 bits, the same for all arguments. Gradients are exact.
    """

    people: int
    source: Ids
    """(edges,)"""
    target: Ids
    """(edges,)"""

    @classmethod
    def of(cls, edge_index: Tensor, people: int) -> "Fixed":
        """The support of ``edge_index`` (2, edges): sources, then targets."""
        if edge_index.ndim != 2 or len(edge_index) != 2:
            raise DataError(
                f"edges have shape {tuple(edge_index.shape)}, expected (2, edges)"
            )
        ends = edge_index.numpy()
        if ends.size and (ends.min() < 0 or ends.max() >= people):
            raise DataError(
                f"edges join people {ends.min()} to {ends.max()}, "
                f"expected 0 to {people - 1}"
            )
        source, target = np.ascontiguousarray(ends.astype(np.int32))
        return cls(people, source, target)

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.source)

    @cached_property
    def by_target(self) -> Rows:
        """The numbers of each target's edges."""
        return _sorted_by(self.target, self.people)

    @cached_property
    def by_source(self) -> Rows:
        """The numbers of each source's edges: the stored transpose."""
        return _sorted_by(self.source, self.people)

    def product(self, value: Tensor, x: Tensor) -> Tensor:
        """For each target the sum over its edges of value * x[source].

        ``value`` (edges,) and ``x`` (people, width), or (edges, heads) and
        (people, heads, width of a head); the result is shaped like ``x``.
        """
        self._require(x, value=value)
        return _Product.of(value, x, _Way(self, turned=False))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """For each edge query[target] . key[source]: (edges,), or (edges, heads).

        What ``torch.sparse.sampled_addmm`` computes, with heads.
        """
        self._require(query, key=key)
        return _Scores.of(query, key, _Way(self, turned=False))

    def softmax(self, score: Tensor) -> Tensor:
        """The softmax over the edges of each target, shaped like ``score``.

        Differentiable once.
        """
        if len(score) != self.edges or score.ndim > 2 or score.dtype not in _KINDS:
            raise DataError(
                f"scores are {score.dtype} of shape {tuple(score.shape)}, expected "
                f"float32 or float64 of ({self.edges},) or ({self.edges}, heads)"
            )
        made = _Softmax.apply(score, self)  # type: ignore[no-untyped-call]
        return cast(Tensor, made)

    def _require(
        self, x: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> None:
        """Raise unless the arguments of a product or of scores fit each other."""
        if x.ndim not in (2, 3) or len(x) != self.people or x.dtype not in _KINDS:
            raise DataError(
                f"rows are {x.dtype} of shape {tuple(x.shape)}, expected float32 or "
                f"float64 of ({self.people}, width) or ({self.people}, heads, width)"
            )
        other = x if key is None else key
        if other.shape != x.shape or other.dtype != x.dtype:
            raise DataError(
                f"keys are {other.dtype} of shape {tuple(other.shape)}, expected "
                f"{x.dtype} of {tuple(x.shape)} as the queries"
            )
        wanted = (self.edges, *x.shape[1:-1])
        if value is not None and (value.shape != wanted or value.dtype != x.dtype):
            raise DataError(
                f"values are {value.dtype} of shape {tuple(value.shape)}, expected "
                f"{x.dtype} of {wanted}"
            )


@dataclass(frozen=True, eq=False)
class _Way:
    """A support, walked from source to target or turned round."""

    fixed: Fixed
    turned: bool

    @property
    def back(self) -> "_Way":
        return _Way(self.fixed, not self.turned)

    @property
    def ends(self) -> tuple[Ids, Ids]:
        """Where edges come from and where they lead, this way."""
        fixed = self.fixed
        ends = fixed.source, fixed.target
        return ends[::-1] if self.turned else ends

    @property
    def rows(self) -> Rows:
        return self.fixed.by_source if self.turned else self.fixed.by_target


class _Product(torch.autograd.Function):
    """Sums over edges; the gradients are sums the other way, and scores."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, value: Tensor, x: Tensor, way: _Way
    ) -> Tensor:
        ctx.save_for_backward(value, x)
        ctx.way = way  # type: ignore[attr-defined]
        given, rows, (start, index) = _flat(value), _cube(x), _parts(way.rows)
        out, bound = np.empty_like(rows), equal_parts(start, _PARTS)

        def work(part: int) -> None:
            for head in range(rows.shape[1]):
                some = int(bound[part]), int(bound[part + 1]), head
                _sum_part((start, index, way.ends[0]), some, given, (rows, out))

        each_part(work, _PARTS, len(index) * x[0].numel() if len(x) else 0)
        return torch.from_numpy(out.reshape(x.shape))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        value, x = ctx.saved_tensors  # type: ignore[attr-defined]
        way: _Way = ctx.way  # type: ignore[attr-defined]
        needed = ctx.needs_input_grad  # type: ignore[attr-defined]
        return (
            _Scores.of(grad, x, way) if needed[0] else None,
            _Product.of(value, grad, way.back) if needed[1] else None,
            None,
        )

    @classmethod
    def of(cls, value: Tensor, x: Tensor, way: _Way) -> Tensor:
        """``apply`` with its types."""
        return cast(Tensor, cls.apply(value, x, way))  # type: ignore[no-untyped-call]


class _Scores(torch.autograd.Function):
    """Inner products of the rows at both ends of each edge."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, query: Tensor, key: Tensor, way: _Way
    ) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.way = way  # type: ignore[attr-defined]
        rows = _cube(query), _cube(key)
        ends, edges = way.ends, way.fixed.edges
        out = np.empty((edges, rows[0].shape[1]), rows[0].dtype)

        def work(part: int) -> None:
            some = edges * part // _PARTS, edges * (part + 1) // _PARTS
            _score_part(ends, some, rows, out)

        each_part(work, _PARTS, edges * query[0].numel() if len(query) else 0)
        return torch.from_numpy(out.reshape(edges, *query.shape[1:-1]))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        query, key = ctx.saved_tensors  # type: ignore[attr-defined]
        way: _Way = ctx.way  # type: ignore[attr-defined]
        needed = ctx.needs_input_grad  # type: ignore[attr-defined]
        return (
            _Product.of(grad, key, way) if needed[0] else None,
            _Product.of(grad, query, way.back) if needed[1] else None,
            None,
        )

    @classmethod
    def of(cls, query: Tensor, key: Tensor, way: _Way) -> Tensor:
        """``apply`` with its types."""
        return cast(Tensor, cls.apply(query, key, way))  # type: ignore[no-untyped-call]


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, score: Tensor, fixed: Fixed
    ) -> Tensor:
        given = _flat(score)
        out = np.empty_like(given)
        _over_targets(fixed, _softmax_part, (given, out))
        made = torch.from_numpy(out.reshape(score.shape))
        ctx.fixed = fixed  # type: ignore[attr-defined]
        ctx.save_for_backward(made)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors  # type: ignore[attr-defined]
        fixed: Fixed = ctx.fixed  # type: ignore[attr-defined]
        given, back = (_flat(made), _flat(grad)), np.empty_like(_flat(made))
        _over_targets(fixed, _softmax_back, (given, back))
        return torch.from_numpy(back.reshape(made.shape)), None


def _sorted_by(end: Ids, people: int) -> Rows:
    start = np.zeros(people + 1, np.int64)
    np.cumsum(np.bincount(end, minlength=people), out=start[1:])
    return Rows(start, np.argsort(end, kind="stable").astype(np.int32))


def _over_targets(
    fixed: Fixed, work_on: Callable[..., None], values: tuple[object, Cube]
) -> None:
    """Call a kernel for some targets at a time."""
    rows = fixed.by_target
    bound = equal_parts(rows.start, _PARTS)

    def work(part: int) -> None:
        some = int(bound[part]), int(bound[part + 1])
        work_on((rows.start, rows.index), some, values)

    each_part(work, _PARTS, values[1].size * 8)


def _parts(rows: Rows) -> tuple[Ends, Ids]:
    return rows.start, rows.index


def _array(x: Tensor) -> Cube:
    found: Cube = x.detach().contiguous().resolve_neg().numpy()
    return found


def _cube(x: Tensor) -> Cube:
    """Rows of people with a place for heads."""
    array = _array(x)
    return array if array.ndim == 3 else array[:, None, :]


def _flat(value: Tensor) -> Cube:
    """Values of edges with a place for heads."""
    array = _array(value)
    return array if array.ndim == 2 else array[:, None]


@compiled
def _sum_part(
    edges: tuple[Ends, Ids, Ids],
    bound: tuple[int, int, int],
    value: Cube,
    rows: tuple[Cube, Cube],
) -> None:
    """The sums of the people from bound[0] to bound[1], of the head bound[2]."""
    start, index, origin = edges
    x, out = rows
    head, width = bound[2], x.shape[2]
    total = np.empty(width, x.dtype)
    for person in range(bound[0], bound[1]):
        total[:] = 0
        for place in range(start[person], start[person + 1]):
            edge = index[place]
            other, factor = origin[edge], value[edge, head]
            for column in range(width):
                total[column] += factor * x[other, head, column]
        out[person, head, :] = total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc"})
def _inner(one: Cube, other: Cube) -> np.floating:
    """The inner product, added up in the order that suits vectors."""
    total = one.dtype.type(0)
    for column in range(len(one)):
        total += one[column] * other[column]
    return total


@compiled
def _score_part(
    ends: tuple[Ids, Ids], bound: tuple[int, int], rows: tuple[Cube, Cube], out: Cube
) -> None:
    """The scores of the edges from bound[0] to bound[1]."""
    origin, goal = ends
    query, key = rows
    for edge in range(bound[0], bound[1]):
        for head in range(query.shape[1]):
            out[edge, head] = _inner(query[goal[edge], head], key[origin[edge], head])


@compiled
def _softmax_part(
    edges: tuple[Ends, Ids], bound: tuple[int, int], values: tuple[Cube, Cube]
) -> None:
    """The softmax of the edges of the targets from bound[0] to bound[1]."""
    start, index = edges
    score, out = values
    for person in range(bound[0], bound[1]):
        own = index[start[person] : start[person + 1]]
        for head in range(score.shape[1]):
            _softmax_row(own, score, head, out)


@compiled
def _softmax_row(own: Ids, score: Cube, head: int, out: Cube) -> None:
    most = -np.inf
    for edge in own:
        most = max(most, score[edge, head])
    total = 0.0
    for edge in own:
        out[edge, head] = np.exp(score[edge, head] - most)
        total += out[edge, head]
    for edge in own:
        out[edge, head] /= total


@compiled
def _softmax_back(
    edges: tuple[Ends, Ids],
    bound: tuple[int, int],
    values: tuple[tuple[Cube, Cube], Cube],
) -> None:
    """The gradient p (g - sum of p g), with p the softmax and g what is given."""
    start, index = edges
    (made, grad), out = values
    for person in range(bound[0], bound[1]):
        own = index[start[person] : start[person + 1]]
        for head in range(made.shape[1]):
            _softmax_row_back(own, (made, grad), head, out)


@compiled
def _softmax_row_back(own: Ids, given: tuple[Cube, Cube], head: int, out: Cube) -> None:
    made, grad = given
    total = 0.0
    for edge in own:
        total += made[edge, head] * grad[edge, head]
    for edge in own:
        out[edge, head] = made[edge, head] * (grad[edge, head] - total)
