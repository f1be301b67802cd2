"""Both halves of a layer in one: y = Dv^-1 H De^-1 H' x, made ready once.

The paper's equation of HGNN without Theta and activation. Between the halves
nothing is stored, so this is the way wherever nobody needs to see the edges;
otherwise there is ``propagate.py``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.hypergraph import pairs
from epifalcon.hypergraph.compiled import each_part
from epifalcon.hypergraph.incidence import Incidence, Rows
from epifalcon.hypergraph.meetings import meetings_of
from epifalcon.hypergraph.merging import ALONE, Groups, merge
from epifalcon.hypergraph.pairs import Ids
from epifalcon.hypergraph.propagate import equal_parts, inverse, require_rows, view
from epifalcon.hypergraph.spreading import (
    MeetingArrays,
    RowsOf,
    finish_part,
    spread_part,
)
from epifalcon.hypergraph.stays import Stays, stays_of
from epifalcon.hypergraph.vectors import aligned, aligned_zeros, lanes
from epifalcon.types import Floats, Mask

_PARTS = 4
_WORTH_PARTS = (20_000, 5_000_000, 10_000_000)
"""Stays from which on there are two, three and four parts."""
_SMALL = 4
"""Members of a group up to which it is taken apart."""
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


class Passed(NamedTuple):
    """Rows that came back, and whether every value of them is finite."""

    rows: RowsOf
    finite: bool


SILENT = Noise(_NO_NOISE, _NO_NOISE, 0)


@dataclass(frozen=True, eq=False)
class Ready:
    """All that a pass over rows of one type needs, and memory to use again."""

    stays: Stays
    """Of the groups that are passed as groups."""
    weight: RowsOf
    """Of these groups."""
    own: RowsOf
    """(people,) what each person gets of its own row otherwise."""
    meetings: MeetingArrays
    """Of the other groups."""
    spare: list[RowsOf] = field(default_factory=list)
    """Arrays of zeros, (parts, people, width), that nobody uses now."""

    @cached_property
    def blocks(self) -> list[int]:
        """Where the parts begin among the blocks, and the number of blocks.

        Each part costs an array of sums, so there are few in a small city.
        """
        parts = 1 + sum(len(self.stays) > most for most in _WORTH_PARTS)
        return [int(one) for one in equal_parts(self.stays.start, parts)]

    @cached_property
    def people(self) -> list[int]:
        """Where the parts begin among the people, and the number of people."""
        start, _, _ = self.meetings
        work = start + np.arange(len(start), dtype=np.int64)
        return [int(one) for one in equal_parts(work, _PARTS)]

    @contextmanager
    def zeros(self, shape: tuple[int, ...]) -> Iterator[RowsOf]:
        """An array of zeros, which must be left as zeros.

        Fresh memory costs more than all arithmetic on it, so the last array is
        kept. One that was in use when an error struck is let go.
        """
        # Two threads never get the same array: each takes it off the list.
        found = self.spare.pop() if self.spare else None
        if found is None or found.shape != shape:
            found = aligned_zeros(shape, self.weight.dtype)
        yield found
        self.spare[:] = [found]


@dataclass(frozen=True, eq=False)
class Operator:
    """Dv^-1 H De^-1 H', by groups of people and their stays in them."""

    groups: Groups
    person_alone: Ids
    """(edges of one person,) that person, in the order of the edges."""
    degree: Ids
    """(people,) deg(v)."""

    @classmethod
    def of(cls, inc: Incidence) -> "Operator":
        """Make the operator of ``inc``; takes about as long as ``Incidence.of``."""
        groups = merge(inc)
        single = inc.by_edge.start[:-1][groups.group_of_edge == ALONE]
        return cls(groups, inc.by_edge.index[single], inc.degree)

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

    @cached_property
    def _made_ready(self) -> dict[tuple[str, bool], Ready]:
        return {}

    def ready(self, kind: np.dtype[np.floating], silent: bool) -> Ready:
        """What a pass needs, made at the first one of its kind.

        Without noise small groups are taken apart. With it they cannot be: what
        two people get of one draw is no sum over people.
        """
        name = kind.str, silent
        if name not in self._made_ready:
            size = self.groups.size
            small = (size <= _SMALL) & silent
            stays = stays_of(self._rows_of(~small), self.people)
            weight = self.groups.weight
            met = meetings_of(self._rows_of(small), weight[small], self.people)
            own = (self.alone + met.own).astype(kind)
            meetings = met.start, met.person, met.weight.astype(kind)
            large = weight[~small].astype(kind)
            self._made_ready[name] = Ready(stays, large, own, meetings)
        return self._made_ready[name]

    def _rows_of(self, chosen: Mask) -> Rows:
        """The members of some groups."""
        rows = self.groups.rows
        if chosen.all():
            return rows
        start = np.append(0, np.cumsum(self.groups.size[chosen]))
        number = np.flatnonzero(chosen).astype(np.int32)
        return Rows(start, pairs.select_rows(rows.start, rows.index, number, start))

    def symmetric(
        self,
        x: RowsOf,
        before: Floats | None = None,
        after: Floats | None = None,
        noise: Noise = SILENT,
    ) -> Passed:
        """The rows of after * (H De^-1 H' (before * x) + noise): (people, width).

        A row of ``x`` that is not finite comes back so, whoever else gets of it.
        Blocks are shared out to parts by their number, not by that of the
        threads, and the parts are added in order.
        """
        kind, used = x.dtype, x.shape[1]
        ready = self.ready(kind, silent=not (len(noise.group) or len(noise.person)))
        rows, key = _packed(x, before), np.uint64(noise.key)
        out = aligned(rows.shape, kind)
        groups = ready.weight, noise.group.astype(kind)
        last = np.ones(len(x), kind) if after is None else after.astype(kind)
        scales = ready.own, noise.person.astype(kind), last
        block, person, finite = ready.blocks, ready.people, [True] * _PARTS
        with ready.zeros((len(block) - 1, *rows.shape)) as sums:

            def spread(part: int) -> None:
                some, draw = (block[part], block[part + 1]), (key, used)
                spread_part(ready.stays.arrays, groups, some, draw, (rows, sums[part]))

            def finish(part: int) -> None:
                some = person[part], person[part + 1]
                draw = key, len(self.groups), used
                finite[part] = finish_part(
                    sums, some, scales, ready.meetings, draw, (rows, out)
                )

            each_part(spread, len(sums), len(ready.stays) * used)
            each_part(finish, _PARTS, len(x) * used)
        if out.shape[1] > used:
            out = np.ascontiguousarray(out[:, :used])
        return Passed(out, all(finite))


def _packed(x: RowsOf, factor: Floats | None) -> RowsOf:
    """``factor * x`` with rows of whole vectors, zeros at their end."""
    people, width = x.shape
    step = lanes(x.dtype)
    if factor is None and width % step == 0:
        return x
    rows = aligned_zeros((people, -(-width // step) * step), x.dtype)
    if factor is None:
        rows[:, :width] = x
    else:
        np.multiply(x, factor.astype(x.dtype)[:, None], out=rows[:, :width])
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
        before, after = (operator.share, None) if turned else (None, operator.share)
        passed = operator.symmetric(view(x), before, after, noise)
        return torch.from_numpy(passed.rows)

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
