"""Both halves of a layer in one: y = Dv^-1 H De^-1 H' x, made ready once.

The paper's equation of HGNN without Theta and activation. Between the halves
nothing is stored, so this is the way wherever nobody needs to see the edges;
otherwise there is ``propagate.py``.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import one_of
from epifalcon.hypergraph import pairs, spreading
from epifalcon.hypergraph.compiled import each_part
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.merging import ALONE, Groups, merge
from epifalcon.hypergraph.multiplied import Multiplied, multiply_out, worth_it
from epifalcon.hypergraph.pairs import Ids
from epifalcon.hypergraph.propagate import equal_parts, inverse, require_rows, view
from epifalcon.hypergraph.spreading import RowsOf
from epifalcon.hypergraph.vectors import aligned_zeros, lanes
from epifalcon.types import Floats

Way = Literal["auto", "merged", "multiplied"]

_PARTS = 4
_WORTH_PARTS = 50_000
_NO_NOISE = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Noise:
    """Standard deviations of what is added on the way, and where it is drawn."""

    group: Floats
    """(groups,) on what a group passes on; empty for no noise."""
    person: Floats
    """(people,) on what a person gets from edges of its own; empty for no noise."""
    key: int
    """The 64-bit key of the draws."""


SILENT = Noise(_NO_NOISE, _NO_NOISE, 0)


@dataclass(frozen=True, eq=False)
class Operator:
    """Dv^-1 H De^-1 H', as merged groups and, where it pays, multiplied out."""

    groups: Groups
    person_alone: Ids
    """(edges of one person,) that person, in the order of the edges."""
    degree: Ids
    """(people,) deg(v)."""
    multiplied: Multiplied | None = None
    """Used for rows of 32 bits without noise, if there."""

    @classmethod
    def of(cls, inc: Incidence, way: Way = "auto") -> "Operator":
        """Make the operator of ``inc``; takes about as long as ``Incidence.of``.

        ``way`` chooses between adding by groups (``"merged"``) and by people
        met (``"multiplied"``); ``"auto"`` takes the one that will be faster.
        """
        one_of(("auto", "merged", "multiplied"), way=way)
        groups = merge(inc)
        single = inc.by_edge.start[:-1][groups.group_of_edge == ALONE]
        made = cls(groups, inc.by_edge.index[single], inc.degree)
        if way == "merged" or (way == "auto" and not worth_it(groups, inc.people)):
            return made
        return replace(made, multiplied=multiply_out(groups, made.alone))

    @property
    def people(self) -> int:
        """Number of people."""
        return len(self.degree)

    @cached_property
    def alone(self) -> Ids:
        """The number of edges in which each person was the only one: (people,)."""
        return pairs.count_ids(self.person_alone, self.people)

    @property
    def size_of_edge(self) -> NDArray[np.int64]:
        """|e| of every edge of the hypergraph: (edges,)."""
        group = self.groups.group_of_edge
        # The group -1 of edges of one person reads the 1 at the end.
        return np.append(self.groups.size, 1)[group]

    @cached_property
    def share(self) -> Floats:
        """1 / deg(v), 0 for people without edges: (people,)."""
        return inverse(self.degree)

    def symmetric(
        self, x: RowsOf, before: Floats | None, after: Floats, noise: Noise = SILENT
    ) -> RowsOf:
        """The rows of after * (H De^-1 H' (before * x) + noise): (people, width).

        Groups are cut into parts by their number, not by that of the threads,
        and the parts are added in order.
        """
        index, kind = self.groups.rows.index, x.dtype
        used, groups = x.shape[1], len(self.groups)
        rows = _packed(x, before)
        arrays = (
            self.groups.rows.start,
            index.view(np.uint32),
            self.groups.weight.astype(kind),
            noise.group.astype(kind),
        )
        count = _PARTS if len(index) > _WORTH_PARTS else 1
        bound = equal_parts(self.groups.rows.start, count)
        sums = aligned_zeros((count, *rows.shape), kind)
        key = np.uint64(noise.key)

        def spread(part: int) -> None:
            some, draw = bound[part : part + 2], (key, used)
            spreading.spread_part(arrays, some, draw, rows, sums[part])

        each_part(spread, count, len(index) * used)
        out = np.empty_like(x)
        own = np.linspace(0, len(x), _PARTS + 1).astype(np.int64)
        scales = (
            self.alone.astype(kind),
            noise.person.astype(kind),
            after.astype(kind),
        )

        def finish(part: int) -> None:
            some, draw = own[part : part + 2], (key, groups)
            spreading.finish_part(sums, some, scales, draw, rows, out)

        each_part(finish, _PARTS, len(x) * used)
        return out


def _packed(x: RowsOf, factor: Floats | None) -> RowsOf:
    """``factor * x`` with rows of whole vectors, zeros at their end."""
    people, width = x.shape
    step = lanes(x.dtype)
    if factor is None and width % step == 0:
        return x
    rows = aligned_zeros((people, -(-width // step) * step), x.dtype)
    scale = np.ones(people) if factor is None else factor
    np.multiply(x, scale.astype(x.dtype)[:, None], out=rows[:, :width])
    return rows


def propagate(x: Tensor, operator: Operator) -> Tensor:
    """Dv^-1 H De^-1 H' x, (people, width) to (people, width), differentiable.

    Equal to ``edge_to_node(node_to_edge(x))`` up to rounding. People without
    edges get zeros. The result is the same bit by bit for any number of threads.
    """
    require_rows(x, operator.people, "people")
    return Propagation.of(x, operator)


class Propagation(torch.autograd.Function):
    """The product with the operator, or with its transpose.

    The operator is symmetric up to its 1/deg(v), so the gradient is the same
    product of the gradient scaled first.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        operator: Operator,
        noise: Noise,
        turned: bool,
    ) -> Tensor:
        ctx.made_with = operator, turned  # type: ignore[attr-defined]
        ones = np.ones(operator.people)
        before, after = (operator.share, ones) if turned else (None, operator.share)
        fast = operator.multiplied
        if fast is None or noise is not SILENT or x.dtype != torch.float32:
            return torch.from_numpy(operator.symmetric(view(x), before, after, noise))
        share = torch.from_numpy(operator.share).float()[:, None]
        if turned:
            return fast.times(x.detach() * share)
        return fast.times(x.detach().contiguous()).mul_(share)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None, None, None]:
        operator, turned = ctx.made_with  # type: ignore[attr-defined]
        return Propagation.of(grad, operator, turned=not turned), None, None, None

    @classmethod
    def of(
        cls,
        x: Tensor,
        operator: Operator,
        noise: Noise = SILENT,
        turned: bool = False,
    ) -> Tensor:
        """``apply`` with its types."""
        made = cls.apply(x, operator, noise, turned)  # type: ignore[no-untyped-call]
        return cast(Tensor, made)
