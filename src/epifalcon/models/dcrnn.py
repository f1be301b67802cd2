"""DCRNN: diffusion convolution, its recurrent cell, and the region network.

Paper, section "Macroscopic Model Cooperation", second equation; Li, Yu, Shahabi and Liu
2018, "Diffusion Convolutional Recurrent Neural Network". The daily states of the
encoder are the paper's E_m; the decoder forecasts the next days.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from epifalcon.hypergraph.propagation import inverse, linear
from epifalcon.models.settings import DcrnnSettings

Walk = Callable[[Tensor], Tensor]
"""Product with a row-normalised matrix; maps (rows, width) to (rows, width)."""
FlowGraph = tuple[Walk, ...]


def flow_graph(moves: sp.csr_array, dtype: torch.dtype = torch.float32) -> FlowGraph:
    """Return the two random walks on the flows of one day.

    ``moves`` (regions, regions) counts moves from row to column. The first walk,
    Do^-1 W, averages over the destinations of a region's people, the second, Di^-1 W',
    over their origins. Rows sum to 1, or to 0 for regions without moves.
    """
    walks = []
    for counts in (moves.astype(np.float64), moves.astype(np.float64).T):
        walk = sp.diags_array(inverse(counts.sum(axis=1))) @ counts
        there, back = _product(walk.tocsr(), dtype), _product(walk.T.tocsr(), dtype)
        # Using the transposed walk for the gradient is five times as fast as autograd.
        walks.append(partial(linear, there=there, back=back))
    return tuple(walks)


def _product(matrix: sp.csr_array, dtype: torch.dtype) -> Walk:
    start = torch.from_numpy(matrix.indptr.astype(np.int32))
    index = torch.from_numpy(matrix.indices.astype(np.int32))
    weight = torch.from_numpy(matrix.data).to(dtype)
    # The fastest sparse product in torch for rows of this width.
    bag = partial(F.embedding_bag, mode="sum", include_last_offset=True)
    return lambda x: bag(index, x.contiguous(), start, per_sample_weights=weight)


def diffuse(x: Tensor, walks: Sequence[Walk], steps: int) -> Tensor:
    """Return rows after 0 to ``steps`` steps of each walk, concatenated.

    Maps (rows, ..., width) to (rows, ..., (1 + walks * steps) * width): the rows
    themselves, then 1 to ``steps`` steps of each walk.
    """
    parts = [x]
    for walk in walks:
        row = x.flatten(1)
        for _ in range(steps):
            row = walk(row)
            parts.append(row.view_as(x))
    return torch.cat(parts, dim=-1)


class DiffusionConv(nn.Module):
    """Diffusion convolution with bias; maps (rows, inputs) to (rows, outputs)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        steps: int,
        generator: torch.Generator | None,
        bias: float = 0.0,
        walks: int = 2,
    ) -> None:
        super().__init__()
        self.steps, terms = steps, 1 + walks * steps
        self.weight = nn.Parameter(glorot(terms * inputs, outputs, generator))
        self.bias = nn.Parameter(torch.full((outputs,), bias))

    def forward(self, x: Tensor, walks: Sequence[Walk]) -> Tensor:
        """Convolve the rows with the graph of the day."""
        return torch.addmm(self.bias, diffuse(x, walks, self.steps), self.weight)


def glorot(inputs: int, outputs: int, generator: torch.Generator | None) -> Tensor:
    """Draw Glorot-uniform weights, within sqrt(6 / (inputs + outputs))."""
    bound = (6 / (inputs + outputs)) ** 0.5
    return torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator)


class DiffusionGru(nn.Module):
    """Diffusion GRU cell on the graph of one day.

    r = sigmoid(Theta_r * G [x, h] + b_r), u = sigmoid(Theta_u * G [x, h] + b_u),
    c = tanh(Theta_c * G [x, r h] + b_c), and the new state is u h + (1 - u) c, where
    Theta * G y is the sum of W^k y Theta_k over all walks W and k = 0..``steps``. A
    graph has 2 ``walks``, or 1 if moves are undirected.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        steps: int,
        walks: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.width, both = width, inputs + width
        # Bias 1, as in the DCRNN program: initially the cell retains its state.
        self.gates = DiffusionConv(both, 2 * width, steps, generator, 1.0, walks)
        self.candidate = DiffusionConv(both, width, steps, generator, 0.0, walks)

    def forward(self, x: Tensor, state: Tensor, walks: Sequence[Walk]) -> Tensor:
        """Compute the next state (rows, width) from ``x`` (rows, inputs)."""
        both = torch.cat([x, state], dim=1)
        reset, update = self.gates(both, walks).sigmoid().chunk(2, dim=1)
        gated = torch.cat([x, reset * state], dim=1)
        candidate = self.candidate(gated, walks).tanh()
        return update * state + (1 - update) * candidate

    def states(
        self,
        inputs: Iterable[Tensor],
        graphs: Sequence[Sequence[Walk]],
        state: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the state after each day, (rows, width) each.

        ``inputs`` holds (rows, inputs) of each day; ``state`` is the initial state,
        zeros if None.
        """
        states = []
        for x, walks in zip(inputs, graphs, strict=True):
            if state is None:
                state = x.new_zeros(len(x), self.width)
            state = self(x, state, walks)
            states.append(state)
        return states


class Dcrnn(nn.Module):
    """Encoder and decoder for region forecasts.

    ``inputs`` is the number of channels per region and day: the value to forecast, its
    mean over the days so far, then others. A forecast is a learned mixture of the
    last value and that mean, plus a linear map of the decoder's state, so training
    starts from simple forecasts.
    """

    def __init__(
        self, inputs: int, settings: DcrnnSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.width = settings.hidden_width
        steps = settings.diffusion_steps
        self.encoder, self.decoder = (
            DiffusionGru(channels, self.width, steps, generator=generator)
            for channels in (inputs, 1)
        )
        self.readout = nn.Parameter(0.1 * glorot(self.width, 1, generator))
        self.offset = nn.Parameter(torch.zeros(1))
        self.mixture = nn.Parameter(torch.full((2, 1), 0.5))

    def decode(
        self, state: Tensor, last: Tensor, graph: FlowGraph, days: int
    ) -> Tensor:
        """Forecast the next ``days`` days from the state of one day: (regions, days).

        ``last`` (regions, channels) holds the inputs of that day. Each later step reads
        the previous forecast and the same mean; all use the last known graph.
        """
        value, mean, forecasts = last[:, :1], last[:, 1:2], []
        for _ in range(days):
            state = self.decoder(value, state, graph)
            simple = torch.cat([value, mean], dim=1) @ self.mixture
            value = simple + torch.addmm(self.offset, state, self.readout)
            forecasts.append(value)
        return torch.cat(forecasts, dim=1)
