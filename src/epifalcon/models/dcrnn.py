"""DCRNN: the recurrent network of regions on daily changing flows.

Paper, section "Macroscopic Model Cooperation", second equation. The states of an
encoder cell over the days are the paper's E_m; a decoder cell forecasts the next days.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from epifalcon.checks import whole
from epifalcon.errors import DataError
from epifalcon.hypergraph.propagate import linear
from epifalcon.models.settings import DcrnnSettings


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

    ``forward`` is Do^-1 W, the mean over where a region's people go; ``backward`` is
    Di^-1 W', the mean over where they come from. Rows add up to 1, or to 0 without
    moves.
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
    """Return rows after 0 to ``steps`` steps of both walks, concatenated.

    (regions, width) to (regions, (1 + 2 steps) width): the rows themselves, then 1 to
    ``steps`` steps forward, then 1 to ``steps`` backward.
    """
    if x.ndim != 2 or len(x) != graph.regions:
        raise DataError(
            f"rows have shape {tuple(x.shape)}, expected ({graph.regions}, width)"
        )
    if x.dtype != graph.dtype:
        raise DataError(f"rows are {x.dtype}, the graph is made for {graph.dtype}")
    x = x.contiguous()
    parts = [x]
    for there, back in (
        (graph.forward, graph.forward_turned),
        (graph.backward, graph.backward_turned),
    ):
        row = x
        for _ in range(steps):
            # The gradient by the transposed walk is five times as fast as autograd's.
            row = linear(row, there.times, back.times)
            parts.append(row)
    return torch.cat(parts, dim=1)


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


def _rows_to_one(counts: sp.csr_array) -> sp.csr_array:
    """Each row divided by its sum; a row of zeros stays one."""
    degree = np.asarray(counts.sum(axis=1)).ravel()
    inverse = np.divide(1.0, degree, out=np.zeros(len(degree)), where=degree > 0)
    share = counts.copy()
    share.data = counts.data * np.repeat(inverse, np.diff(counts.indptr))
    return share


class DiffusionGru(nn.Module):
    """The gated recurrent cell of the paper's equation, on one day's graph.

    r = sigmoid(Theta_r * G [x, h] + b_r), u = sigmoid(Theta_u * G [x, h] + b_u),
    c = tanh(Theta_c * G [x, r h] + b_c), and the new state is u h + (1 - u) c.
    """

    def __init__(
        self, inputs: int, settings: DcrnnSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, steps = settings.hidden_width, settings.diffusion_steps
        # A bias of 1, as in the DCRNN program: at first the cell keeps its state.
        self.gates = DiffusionConv(
            inputs + width, 2 * width, steps, generator, bias=1.0
        )
        self.candidate = DiffusionConv(inputs + width, width, steps, generator)

    def forward(self, x: Tensor, state: Tensor, graph: FlowGraph) -> Tensor:
        """(regions, inputs) and (regions, width) to the new (regions, width)."""
        both = torch.cat([x, state], dim=1)
        reset, update = self.gates(both, graph).sigmoid().chunk(2, dim=1)
        kept = torch.cat([x, reset * state], dim=1)
        candidate = self.candidate(kept, graph).tanh()
        new: Tensor = update * state + (1 - update) * candidate
        return new


class Dcrnn(nn.Module):
    """Encoder and decoder.

    ``inputs`` is the number of channels per region and day: first what the decoder
    forecasts, then its mean over the days so far, then any others. A forecast is a
    learnt mixture of the last value and that mean, plus a linear map of the decoder's
    state, so that training starts at the simplest forecasts.
    """

    def __init__(
        self, inputs: int, settings: DcrnnSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        whole(2, inputs=inputs)
        self.width = settings.hidden_width
        self.encoder = DiffusionGru(inputs, settings, generator)
        self.decoder = DiffusionGru(1, settings, generator)
        self.readout = nn.Parameter(0.1 * glorot(self.width, 1, generator))
        self.offset = nn.Parameter(torch.zeros(1))
        self.mixture = nn.Parameter(torch.full((2, 1), 0.5))

    def encode(
        self, inputs: Tensor, graphs: Sequence[FlowGraph], state: Tensor | None = None
    ) -> list[Tensor]:
        """Return the state after each day, (regions, width) each.

        ``inputs`` (days, regions, channels) and ``graphs`` hold the same days;
        ``state`` is that of the day before them, zeros if None.
        """
        if state is None:
            state = inputs.new_zeros(inputs.shape[1], self.width)
        states = []
        for x, graph in zip(inputs, graphs, strict=True):
            state = self.encoder(x, state, graph)
            states.append(state)
        return states

    def decode(
        self, state: Tensor, last: Tensor, graph: FlowGraph, days: int
    ) -> Tensor:
        """Forecast the next ``days`` days from the state of one day: (regions, days).

        ``last`` (regions, channels) are the inputs of that day. Each later step reads
        the previous forecast and the same mean; all use the last known graph.
        """
        value, mean, found = last[:, :1], last[:, 1:2], []
        for _ in range(days):
            state = self.decoder(value, state, graph)
            simple = torch.cat([value, mean], dim=1) @ self.mixture
            value = simple + torch.addmm(self.offset, state, self.readout)
            found.append(value)
        return torch.cat(found, dim=1)
