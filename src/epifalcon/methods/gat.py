"""GAT: graph attention on the strongest contacts (Velickovic et al., ICLR 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.checks import Count
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    Neighbourhood,
    NetworkMethod,
    SkipSettings,
)

_SLOPE = 0.2


@dataclass(frozen=True, kw_only=True)
class GatSettings(SkipSettings):
    """Settings of the GAT."""

    heads: Count = 4
    """Number of heads of the first layer, each of width ``width / heads``."""
    last_width: Count = 16
    """Width of the second layer, which has one head."""
    partners: Count = 32
    """Number of strongest contacts that a person attends to, besides itself."""
    heads_divide_width = True


class GatNetwork(nn.Module):
    """Both attention layers and the head."""

    def __init__(
        self, graphs: ContactGraphs, inputs: int, settings: GatSettings
    ) -> None:
        super().__init__()
        near = graphs.neighbourhood(settings.partners, with_self=True)
        width, heads, last = settings.width, settings.heads, settings.last_width
        self._dropout = dropout = settings.dropout
        self.first = GraphAttention(near, inputs, heads, width // heads, dropout)
        self.second = GraphAttention(near, width, 1, last, dropout)
        self.head = nn.Linear(last, 1)

    def forward(self, rows: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        rows = functional.elu(self.first(rows))
        rows = functional.dropout(rows, self._dropout, self.training)
        rows = functional.elu(self.second(rows))
        return self.head(rows)[:, 0]


class GraphAttention(nn.Module):
    """Multi-head attention: each head sums share_ij W x_j over the neighbours j of i.

    share_ij is the softmax over j of LeakyReLU(a . W x_i + b . W x_j + c close_ij),
    with dropout. Maps (people, width_in) to (people, heads x width).
    """

    def __init__(
        self, near: Neighbourhood, width_in: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self._near, self._heads, self._dropout = near, heads, dropout
        self.rows = nn.Linear(width_in, heads * width, bias=False)
        self.own = nn.Parameter(torch.empty(1, heads, width))
        self.partner = nn.Parameter(torch.empty(1, heads, width))
        self.close = nn.Parameter(torch.zeros(heads))
        self.bias = nn.Parameter(torch.zeros(heads * width))
        for weight in (self.rows.weight, self.own, self.partner):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        edges, closeness = self._near.edges, self._near.closeness
        rows = self.rows(x).unflatten(1, (self._heads, -1))
        own, partner = (rows * self.own).sum(-1), (rows * self.partner).sum(-1)
        both = own[edges.target] + partner[edges.source]
        score = functional.leaky_relu(both + closeness * self.close, _SLOPE)
        share = edges.softmax(score)
        share = functional.dropout(share, self._dropout, self.training)
        return edges.product(share, rows).flatten(1) + self.bias


class Gat(NetworkMethod):
    """Two attention layers and a linear head, plus a linear skip connection.

    The first layer has 4 heads of width 8, the second one head of width 16.
    Differences from the paper:

    - Four heads of width 8 instead of eight.
    - A person attends to itself and its 32 strongest contacts instead of all
      neighbours.
    - The score of an edge has a term for log(1 + slots together), as with
      ``edge_dim=1`` in PyTorch Geometric.
    - The days of the input are concatenated, and a linear head follows the second
      layer.
    - A linear map of the person's own input is added to the log odds; ``skip=False``
      is the paper's network. AUC .682 without and .706 with it; logistic regression
      on the same input: .710 (``epifalcon compare --preset larger-sars --methods
      gat,exposure-logistic --seeds 1``).
    """

    name = "gat"
    settings_type = GatSettings
    network_type = GatNetwork
    static = True
