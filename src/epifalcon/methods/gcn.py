"""GCN: graph convolution on the contact graph.

Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional
Networks" (ICLR 2017), equation 2.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.methods.graph_networks import (
    ContactGraphs,
    Flat,
    NetworkMethod,
    Skip,
    SkipSettings,
)


class Gcn(NetworkMethod):
    """Two graph convolutions and a linear head, plus a linear skip connection.

    The graph covers all slots and all contacts: the weight of an edge is the number
    of slots that two people spent in one region. Differences from the paper:

    - The days of the input are concatenated.
    - The weight of a self-loop is the number of slots in which the person was
      observed, the diagonal of the same product. The paper adds 1, which is
      negligible compared with some thousand slots together.
    - A linear head follows the second layer, and dropout follows each layer.
    - A linear map of the person's own input is added to the log odds
      (``graph_networks.Skip``); ``skip=False`` is the paper's network. AUC .694 without
      and .708 with it; logistic regression on the same input: .710 (``epifalcon compare
      --preset larger-sars --methods gcn,exposure-logistic --seeds 1``).
    """

    name = "gcn"
    settings_type: ClassVar[type] = SkipSettings
    settings: SkipSettings

    def network(self, graphs: ContactGraphs, channels: int) -> nn.Module:
        """Return a network of two layers of ``settings.width``."""
        flat = self.flat(graphs, channels)
        widths = (flat.width, self.settings.width, self.settings.width)
        network = Convolutions(graphs, flat, widths, self.settings.dropout)
        return Skip(network, flat) if self.settings.skip else network


class Convolutions(nn.Module):
    """ReLU graph convolutions followed by a linear head."""

    def __init__(
        self, graphs: ContactGraphs, flat: Flat, widths: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self._flat, self._dropout = flat, dropout
        self.layers = nn.ModuleList(
            GraphConvolution(graphs, *widths[at : at + 2])
            for at in range(len(widths) - 1)
        )
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        """Compute log odds, (people,), from ``x`` (people, days, channels)."""
        rows = self._flat(x)
        for layer in self.layers:
            rows = functional.relu(layer(rows))
            rows = functional.dropout(rows, self._dropout, self.training)
        odds: Tensor = self.head(rows)[:, 0]
        return odds


class GraphConvolution(nn.Module):
    """Graph convolution D^-1/2 S D^-1/2 x W + b.

    S_ij is the number of slots that i and j spent together, S_ii the number of slots in
    which i was observed (at least 1), and D the diagonal matrix of the row sums of S.
    Maps (people, width_in) to (people, width_out).
    """

    def __init__(self, graphs: ContactGraphs, width_in: int, width_out: int) -> None:
        super().__init__()
        self._contacts = graphs.contacts
        own = graphs.observed.clamp(min=1)
        self._own = own[:, None]
        self._scale = (graphs.contacts.degree + own).rsqrt()[:, None]
        self._narrow_first = width_out < width_in
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution to ``x`` (people, width_in)."""
        if self._narrow_first:
            return self._spread(x @ self.weight) + self.bias
        return self._spread(x) @ self.weight + self.bias

    def _spread(self, x: Tensor) -> Tensor:
        scaled = self._scale * x
        return self._scale * (self._contacts.product(scaled) + self._own * scaled)
