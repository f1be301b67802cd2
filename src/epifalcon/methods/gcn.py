"""GCN: graph convolution on the contact graph.

Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional
Networks" (ICLR 2017), equation 2.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.methods.graph_networks import (
    ContactGraphs,
    NetworkMethod,
    NetworkSettings,
    SkipSettings,
)


class Convolutions(nn.Module):
    """ReLU graph convolutions followed by a linear head."""

    def __init__(
        self, graphs: ContactGraphs, inputs: int, settings: NetworkSettings
    ) -> None:
        super().__init__()
        widths = (inputs, *[settings.width] * getattr(settings, "layers", 2))
        self._dropout = settings.dropout
        self.layers = nn.ModuleList(
            GraphConvolution(graphs, *both) for both in pairwise(widths)
        )
        self.head = nn.Linear(settings.width, 1)

    def forward(self, rows: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        for layer in self.layers:
            rows = functional.relu(layer(rows))
            rows = functional.dropout(rows, self._dropout, self.training)
        return self.head(rows)[:, 0]


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
        if self._narrow_first:
            return self._spread(x @ self.weight) + self.bias
        return self._spread(x) @ self.weight + self.bias

    def _spread(self, x: Tensor) -> Tensor:
        scaled = self._scale * x
        return self._scale * (self._contacts.product(scaled) + self._own * scaled)


class Gcn(NetworkMethod):
    """Two graph convolutions and a linear head, plus a linear skip connection.

    The graph covers all slots and all contacts: the weight of an edge is the number
    of slots that two people spent in one region. Differences from the paper:

    - The days of the input are concatenated.
    - The weight of a self-loop is the number of slots in which the person was
      observed, the diagonal of the same product. The paper adds 1, which is
      negligible compared with some thousand slots together.
    - A linear head follows the second layer, and dropout follows each layer.
    - A linear map of the person's own input is added to the log odds; ``skip=False``
      is the paper's network. AUC .694 without and .708 with it; logistic regression
      on the same input: .710 (``epifalcon compare --preset larger-sars --methods
      gcn,exposure-logistic --seeds 1``).
    """

    name = "gcn"
    settings_type = SkipSettings
    network_type = Convolutions
    static = True
