"""Graph WaveNet: dilated convolutions over days, with a learnt adjacency.

Wu, Pan, Long, Jiang and Zhang 2019, "Graph WaveNet for Deep Spatial-Temporal
Graph Modeling". A layer is a gated causal convolution of two days ``dilation``
apart, then a diffusion over the contacts and over an adjacency learnt from two
free vectors per person; the outputs of all layers for the last day are summed.

Adapted: the given graph is the exact contacts of all days. It is undirected, so the
paper's two walks both equal D^-1 C. The learnt adjacency is of low rank
(``LowRankAdaptive``). The dilations cover the days exactly
(paper: four times 1 and 2, padded with zeros). The sum includes the last layer's graph
convolution, which the authors' program computes but does not use. Channels are 16 in
the layers and 64 in the sum (paper: 32 and 256, then 512); the output is log odds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from epifalcon.checks import Count, CountOrZero
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    NetworkMethod,
    NetworkSettings,
)
from epifalcon.methods.stgcn import side_by_side
from epifalcon.models.dcrnn import Walk, diffuse


@dataclass(frozen=True, kw_only=True)
class GraphWaveNetSettings(NetworkSettings):
    """Settings of Graph WaveNet."""

    width: Count = 16
    skip_width: Count = 64
    """Number of channels of the sum over layers."""
    layers: Count = 8
    """Maximum number of layers, exceeded only if needed to cover all days."""
    diffusion_steps: CountOrZero = 2
    """Number of steps of each random walk per layer."""
    adaptive_width: Count = 10
    """Width of the two trainable vectors per person."""


class LowRankAdaptive(nn.Module):
    """Learnt adjacency A = softmax(E, dim=width) softmax(F, dim=people)^T.

    The paper applies relu and softmax after the product; here softmax is applied to
    both factors, so that A has low rank and is never stored. Rows of A sum to 1. E is
    the membership of people in ``adaptive_width`` groups, F the composition of groups.
    """

    def __init__(self, people: int, width: int) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(people, width))
        self.other = nn.Parameter(torch.randn(people, width))

    def forward(self) -> Walk:
        """Return the function x -> A x."""
        belongs, makes_up = self.one.softmax(dim=1), self.other.softmax(dim=0)
        return lambda x: belongs @ (makes_up.T @ x)


def dilations(days: int, most: int) -> tuple[int, ...]:
    """Return the dilation of each layer; they sum to days - 1.

    Cycles of 1, 2 as in the paper, the last one truncated; if that gives more than
    ``most`` layers, cycles of 1, 2, 4, and so on. Returns (0,) for a single day.
    """
    reach = days - 1
    if not reach:
        return (0,)
    length, found = 2, _cycles(reach, 2)
    while len(found) > most and 2**length <= reach:
        length += 1
        found = _cycles(reach, length)
    return found


def _cycles(reach: int, length: int) -> tuple[int, ...]:
    found: list[int] = []
    while reach:
        step = min(2 ** (len(found) % length), reach)
        found.append(step)
        reach -= step
    return tuple(found)


class WaveLayer(nn.Module):
    """Gated convolution over days, diffusion, residual, batch norm (equations 7, 8)."""

    def __init__(self, dilation: int, settings: GraphWaveNetSettings) -> None:
        super().__init__()
        width, self._steps = settings.width, settings.diffusion_steps
        self.dilation, self.kernel = dilation, 2 if dilation else 1
        self.both = nn.Linear(self.kernel * width, 2 * width)
        self.graph = nn.Linear((1 + 2 * self._steps) * width, width)
        self.dropout = nn.Dropout(settings.dropout)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, walks: Sequence[Walk]) -> Tensor:
        """Map (people, days, width) to (people, days - dilation, width)."""
        made, gate = self.both(side_by_side(x, self.kernel, self.dilation)).chunk(2, 2)
        rows = made.tanh() * gate.sigmoid()
        spread = diffuse(rows, walks, self._steps)
        around: Tensor = self.dropout(self.graph(spread))
        new = around + x[:, self.dilation :]
        return self.norm(new.flatten(0, 1)).view_as(new)


class GraphWaveNetNetwork(nn.Module):
    """Stack of layers whose outputs for the last day are summed, and a head."""

    def __init__(
        self, graphs: ContactGraphs, channels: int, settings: GraphWaveNetSettings
    ) -> None:
        super().__init__()
        width, wide = settings.width, settings.skip_width
        self._contacts = graphs.contacts
        self.adaptive = LowRankAdaptive(graphs.people, settings.adaptive_width)
        spans = dilations(graphs.days, settings.layers)
        self.first = nn.Linear(channels, width)
        self.layers = nn.ModuleList(WaveLayer(span, settings) for span in spans)
        self.skips = nn.ModuleList(nn.Linear(width, wide) for _ in spans)
        self.last = nn.Sequential(
            nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1)
        )

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        walks = self._contacts.mean, self.adaptive()
        x, total = self.first(x), torch.zeros(())
        for layer, skip in zip(self.layers, self.skips, strict=True):
            x = layer(x, walks)
            total = total + skip(x[:, -1])
        return self.last(total)[:, 0]


class GraphWaveNet(NetworkMethod):
    """Graph WaveNet on the contacts of all days and a learnt adjacency."""

    name = "graph-wavenet"
    settings_type = GraphWaveNetSettings
    network_type = GraphWaveNetNetwork
