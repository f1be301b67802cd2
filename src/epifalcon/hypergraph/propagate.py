"""The two halves of a hypergraph layer, as pure functions with exact gradients.

``node_to_edge`` is what the server computes (paper, section "Detached
Hypergraph Propagation", first equation: W De^-1 H' X with W the identity), and
``edge_to_node`` what each client computes (second equation: Dv^-1 H E, before
Theta and the activation). Gradients may be taken of gradients.

Sums run in the type of the rows, in the order of the ids, on as many threads as
torch may use; the result is the same bit by bit for any number of threads.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon._numba import compiled, each_part
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Ends, Ids, Incidence, Rows
from epifalcon.types import Floats

_PARTS = 16

RowsOf = NDArray[np.floating]
"""(rows, width) in 32 or 64 bits."""


def sum_to_edges(x: Tensor, inc: Incidence) -> Tensor:
    """H' x: the sum of the members' rows, (people, width) to (edges, width).

    Sums of cohorts may be added up at equal edge keys; means may not.
    """
    require_rows(x, inc.people, "people")
    return _Product.of(x, Scaled(inc.by_edge, inc.by_person))


def sum_to_people(edges: Tensor, inc: Incidence) -> Tensor:
    """H e: the sum of the rows of a person's edges, (edges, width) to (people, width).

    A person without edges gets zeros.
    """
    require_rows(edges, inc.edges, "edges")
    return _Product.of(edges, Scaled(inc.by_person, inc.by_edge))


def node_to_edge(x: Tensor, inc: Incidence) -> Tensor:
    """De^-1 H' x: the mean of the members' rows, (people, width) to (edges, width).

    The mean is over the members in ``inc``: of a cohort, that is the cohort's.
    """
    require_rows(x, inc.people, "people")
    return _Product.of(x, Scaled(inc.by_edge, inc.by_person, row=inverse(inc.size)))


def edge_to_node(edges: Tensor, inc: Incidence) -> Tensor:
    """Dv^-1 H e: the mean of a person's edges, (edges, width) to (people, width).

    A person without edges gets zeros.
    """
    require_rows(edges, inc.edges, "edges")
    scale = inverse(inc.degree)
    return _Product.of(edges, Scaled(inc.by_person, inc.by_edge, row=scale))


def inverse(count: Ids) -> Floats:
    """1 / count, 0 where the count is 0."""
    return np.divide(1.0, count, out=np.zeros(len(count)), where=count > 0)


def require_rows(x: Tensor, rows: int, what: str) -> None:
    """Raise unless ``x`` is (rows, width), of 32 or 64 bit floats, on the CPU."""
    if x.ndim != 2 or len(x) != rows:
        raise DataError(
            f"rows have shape {tuple(x.shape)}, expected ({rows}, width) for {what}"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise DataError(f"rows are {x.dtype}, expected float32 or float64")
    if x.device.type != "cpu":
        raise DataError(f"rows are on {x.device}, expected the CPU: call .cpu() first")


def view(x: Tensor) -> RowsOf:
    """The tensor's memory as a NumPy array, row by row; copied only if it must be."""
    if x.requires_grad or x.is_neg() or not x.is_contiguous():
        x = x.detach().contiguous().resolve_neg()
    array: RowsOf = x.numpy()
    return array


@dataclass(frozen=True, eq=False)
class Scaled:
    """A matrix of pairs with a factor for each row and one for each column."""

    rows: Rows
    turned: Rows
    """The same pairs by column."""
    row: Floats | None = None
    column: Floats | None = None

    @property
    def transposed(self) -> "Scaled":
        """The matrix with rows and columns exchanged."""
        return Scaled(self.turned, self.rows, self.column, self.row)

    def times(self, x: RowsOf, out: RowsOf) -> None:
        """Write the product with ``x`` into ``out``."""
        start, index = self.rows.start, self.rows.index
        bound = equal_parts(start, _PARTS)
        row, column = (
            np.ones(length, x.dtype) if scale is None else scale.astype(x.dtype)
            for scale, length in ((self.row, len(out)), (self.column, len(x)))
        )

        def work(part: int) -> None:
            _sum_part(start, index, bound[part : part + 2], (row, column), x, out)

        each_part(work, _PARTS, len(index) * x.shape[1])


class _Product(torch.autograd.Function):
    """The product of a sparse matrix and rows; its gradient is the transposed one."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, matrix: Scaled
    ) -> Tensor:
        ctx.matrix = matrix  # type: ignore[attr-defined]
        out = torch.empty(len(matrix.rows.start) - 1, x.shape[1], dtype=x.dtype)
        matrix.times(view(x), out.numpy())
        return out

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None]:
        return _Product.of(grad, ctx.matrix.transposed), None  # type: ignore[attr-defined]

    @classmethod
    def of(cls, x: Tensor, matrix: Scaled) -> Tensor:
        """``apply`` with its types."""
        product: Tensor = cls.apply(x, matrix)  # type: ignore[no-untyped-call]
        return product


def equal_parts(start: Ends, parts: int) -> NDArray[np.int64]:
    """Bounds (parts + 1,) that cut the rows into parts of about equal pairs."""
    quota = np.linspace(0, start[-1], parts + 1)
    bound = np.searchsorted(start, quota)
    # Rows without pairs may stand at either end.
    bound[0], bound[-1] = 0, len(start) - 1
    return bound


@compiled
def _sum_part(
    start: Ends,
    index: Ids,
    bound: NDArray[np.int64],
    scale: tuple[RowsOf, RowsOf],
    x: RowsOf,
    out: RowsOf,
) -> None:
    """The scaled sums of the rows from bound[0] to bound[1]."""
    row_scale, column_scale = scale
    width = x.shape[1]
    for row in range(bound[0], bound[1]):
        for column in range(width):
            out[row, column] = 0
        for pair in range(start[row], start[row + 1]):
            other = index[pair]
            factor = column_scale[other]
            for column in range(width):
                out[row, column] += factor * x[other, column]
        for column in range(width):
            out[row, column] *= row_scale[row]
