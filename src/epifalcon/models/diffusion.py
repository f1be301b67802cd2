"""Diffusion convolution on a graph that is an argument, so it may change daily.

Paper, section "Macroscopic Model Cooperation" (the star in the second
equation); Li et al. 2018, "Diffusion Convolutional Recurrent Neural Network":

    X * G = sum over k = 0..K of (Do^-1 W)^k X A_k + (Di^-1 W')^k X B_k

with W the flows (row from, column to), Do and Di its row and column sums, and
A_k, B_k learned. The term k = 0 is the same for both walks and stands once.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from epifalcon.checks import whole
from epifalcon.errors import DataError


@dataclass(frozen=True, eq=False)
class Walk:
    """One sparse square matrix in CSR form, as ``embedding_bag`` reads it."""

    start: Tensor
    """(regions + 1,) int32."""
    index: Tensor
    """(cells,) int32."""
    weight: Tensor
    """(cells,) of the dtype of the rows."""

    @classmethod
    def of(cls, matrix: sp.csr_array, dtype: torch.dtype) -> "Walk":
        """The matrix, with int32 ids."""
        return cls(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(matrix.data.astype(np.float64)).to(dtype),
        )

    def times(self, x: Tensor) -> Tensor:
        """The product with ``x`` (regions, width); a row without cells gives zeros."""
        # The quickest sparse product that torch has for rows of this width.
        return F.embedding_bag(
            self.index,
            x,
            self.start,
            mode="sum",
            per_sample_weights=self.weight,
            include_last_offset=True,
        )


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Both random walks on the flows of one day, and their transposes.

    ``forward`` is Do^-1 W: what a region gets is the mean over where its people
    go. ``backward`` is Di^-1 W': the mean over where they come from. Rows add
    up to 1, or to 0 where nobody goes or comes.
    """

    forward: Walk
    backward: Walk
    forward_turned: Walk
    backward_turned: Walk

    @classmethod
    def of(cls, moves: sp.csr_array, dtype: torch.dtype = torch.float32) -> "FlowGraph":
        """The graph of the counts ``moves`` (regions, regions): row from, column to."""
        if moves.ndim != 2 or moves.shape[0] != moves.shape[1]:
            raise DataError(f"moves have shape {moves.shape}, expected a square")
        if not (np.isfinite(moves.data).all() and (moves.data >= 0).all()):
            raise DataError("moves must be finite counts of 0 or more")
        counts = sp.csr_array(moves.astype(np.float64))
        turned = sp.csr_array(counts.T)
        forward, backward = _rows_to_one(counts), _rows_to_one(turned)
        return cls(
            Walk.of(forward, dtype),
            Walk.of(backward, dtype),
            Walk.of(sp.csr_array(forward.T), dtype),
            Walk.of(sp.csr_array(backward.T), dtype),
        )

    @property
    def regions(self) -> int:
        """Number of regions."""
        return len(self.forward.start) - 1

    @property
    def dtype(self) -> torch.dtype:
        """The type of number that rows must have."""
        return self.forward.weight.dtype


def diffuse(x: Tensor, graph: FlowGraph, steps: int) -> Tensor:
    """Rows after 0 to ``steps`` steps of both walks, side by side.

    (regions, width) to (regions, (1 + 2 steps) width): the rows themselves,
    then 1 to ``steps`` steps forward, then 1 to ``steps`` backward. The gradient
    is exact.
    """
    if x.ndim != 2 or len(x) != graph.regions:
        raise DataError(
            f"rows have shape {tuple(x.shape)}, expected ({graph.regions}, width)"
        )
    if x.dtype != graph.dtype:
        raise DataError(f"rows are {x.dtype}, the graph is made for {graph.dtype}")
    made: Tensor = _Diffusion.apply(x, graph, steps)  # type: ignore[no-untyped-call]
    return made


class DiffusionConv(nn.Module):
    """X * G plus a bias: (regions, inputs) and a graph to (regions, outputs).

    >>> graph = FlowGraph.of(sp.csr_array(np.array([[0, 2], [1, 0]])))
    >>> conv = DiffusionConv(3, 4, steps=2, generator=torch.Generator())
    >>> conv(torch.ones(2, 3), graph).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        steps: int,
        generator: torch.Generator,
        bias: float = 0.0,
    ) -> None:
        super().__init__()
        whole(1, inputs=inputs, outputs=outputs)
        whole(0, steps=steps)
        self.steps = steps
        self.weight = nn.Parameter(glorot((1 + 2 * steps) * inputs, outputs, generator))
        self.bias = nn.Parameter(torch.full((outputs,), bias))

    def forward(self, x: Tensor, graph: FlowGraph) -> Tensor:
        """Convolve the rows with the graph of their day."""
        return torch.addmm(self.bias, diffuse(x, graph, self.steps), self.weight)


def glorot(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """A matrix (inputs, outputs), uniform within sqrt(6 / (inputs + outputs))."""
    bound = (6 / (inputs + outputs)) ** 0.5
    return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)


class _Diffusion(torch.autograd.Function):
    """All steps of both walks; the gradient goes the transposed walks back."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        graph: FlowGraph,
        steps: int,
    ) -> Tensor:
        ctx.graph = graph  # type: ignore[attr-defined]
        ctx.steps = steps  # type: ignore[attr-defined]
        x = x.contiguous()
        parts = [x]
        for walk in (graph.forward, graph.backward):
            row = x
            for _ in range(steps):
                row = walk.times(row)
                parts.append(row)
        return torch.cat(parts, dim=1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, None, None]:
        graph: FlowGraph = ctx.graph  # type: ignore[attr-defined]
        steps: int = ctx.steps  # type: ignore[attr-defined]
        parts = grad.chunk(1 + 2 * steps, dim=1)
        total = parts[0].clone()
        turned = (graph.forward_turned, graph.backward_turned)
        for walk, own in zip(
            turned, (parts[1 : 1 + steps], parts[1 + steps :]), strict=True
        ):
            back = torch.zeros_like(total)
            for part in reversed(own):
                back = walk.times(back + part)
            total += back
        return total, None, None


def _rows_to_one(counts: sp.csr_array) -> sp.csr_array:
    """Each row divided by its sum; a row of zeros stays one."""
    degree = np.asarray(counts.sum(axis=1)).ravel()
    inverse = np.divide(1.0, degree, out=np.zeros(len(degree)), where=degree > 0)
    share = counts.copy()
    share.data = counts.data * np.repeat(inverse, np.diff(counts.indptr))
    return share
