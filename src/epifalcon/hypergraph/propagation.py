"""The two halves of a hypergraph layer, as pure functions with exact gradients.

``node_to_edge`` is computed by the server (paper, section "Detached Hypergraph
Propagation", first equation: W De^-1 H' X with W the identity), and ``edge_to_node``
by each client (second equation: Dv^-1 H E, before Theta and the activation). Gradients
can be differentiated again. Sums are computed in the dtype of the rows, in the order
of the ids.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.types import Floats

RowsOf = NDArray[np.floating]
"""Rows (rows, width), float32 or float64."""
Map = Callable[[Tensor], Tensor]


def sum_to_edges(x: Tensor, inc: Incidence) -> Tensor:
    """Return H' x, the sums over members: (people, width) to (edges, width).

    Sums of cohorts may be added at equal edge keys; means may not.
    """
    require_rows(x, inc.people, "people")
    return linear(x, _times(inc.matrix), _times(inc.matrix.T))


def sum_to_people(edges: Tensor, inc: Incidence) -> Tensor:
    """Return H e, sums over own edges: (edges, width) to (people, width)."""
    require_rows(edges, inc.edges, "edges")
    return linear(edges, _times(inc.matrix.T), _times(inc.matrix))


def node_to_edge(x: Tensor, inc: Incidence) -> Tensor:
    """Return De^-1 H' x, the means over members: (people, width) to (edges, width).

    The mean is over the members in ``inc``; for a cohort, over the cohort only.
    """
    return sum_to_edges(x, inc) * torch.from_numpy(inverse(inc.size)).to(x)[:, None]


def edge_to_node(edges: Tensor, inc: Incidence) -> Tensor:
    """Return Dv^-1 H e, means over own edges: (edges, width) to (people, width)."""
    share = torch.from_numpy(inverse(inc.degree)).to(edges)
    return sum_to_people(edges, inc) * share[:, None]


def _times(matrix: sp.csr_array | sp.csc_array) -> Map:
    return lambda x: torch.from_numpy(matrix @ view(x))


def linear(x: Tensor, there: Map, back: Map) -> Tensor:
    """Apply the linear map ``there`` to x, with its transpose ``back`` as gradient."""
    gradient = partial(linear, there=back, back=there)
    return differentiable(lambda: there(x), (gradient,), x)


def differentiable(
    run: Callable[[], Tensor], gradients: Sequence[Map], *inputs: Tensor
) -> Tensor:
    """Return ``run()``, linear in each of ``inputs``, with the given ``gradients``."""
    result: Tensor = _Function.apply(run, gradients, *inputs)  # type: ignore[no-untyped-call]
    return result


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        run: Callable[[], Tensor],
        gradients: Sequence[Map],
        *_inputs: Tensor,
    ) -> Tensor:
        ctx.gradients = gradients
        return run()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        pairs = zip(ctx.needs_input_grad[2:], ctx.gradients, strict=True)
        return (None, None, *(make(grad) if needed else None for needed, make in pairs))


def inverse(count: NDArray[np.integer]) -> Floats:
    """Return 1 / count, 0 where the count is 0."""
    return np.asarray(np.divide(1.0, count, out=np.zeros(len(count)), where=count > 0))


def require_rows(x: Tensor, rows: int, what: str) -> None:
    """Raise unless ``x`` has shape (rows, width)."""
    if x.ndim != 2 or len(x) != rows:
        raise DataError(
            f"rows have shape {tuple(x.shape)}, expected ({rows}, width) for {what}"
        )


def view(x: Tensor) -> RowsOf:
    """Return the tensor as a C-contiguous NumPy array, copied only if necessary."""
    if x.requires_grad or x.is_neg() or not x.is_contiguous():
        x = x.detach().contiguous().resolve_neg()
    array: RowsOf = x.numpy()
    return array
