"""UniMP: graph transformer whose input includes the visible test results.

Shi et al., "Masked Label Prediction: Unified Message Passing Model for
Semi-Supervised Classification" (IJCAI 2021), section 3.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.checks import Count, Share
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    Neighbourhood,
    NetworkMethod,
    NetworkSettings,
)


@dataclass(frozen=True, kw_only=True)
class UnimpSettings(NetworkSettings):
    """Settings of UniMP."""

    layers: Count = 2
    heads: Count = 2
    """Number of heads of each layer, each of width ``width / heads``."""
    partners: Count = 32
    """Number of strongest contacts that a person attends to."""
    hidden_results: Share = 0.1
    """Share of visible results masked in each training step, besides the targets."""
    heads_divide_width = True


@dataclass(frozen=True, kw_only=True)
class UnimpBareSettings(UnimpSettings):
    """Settings of UniMP whose input has no test results; by default an embedding."""

    input: Literal["exposure", "embedding"] = "embedding"


class UnimpNetwork(nn.Module):
    """Transformer layers, each followed by a norm, and a linear head."""

    def __init__(
        self, graphs: ContactGraphs, inputs: int, settings: UnimpSettings
    ) -> None:
        super().__init__()
        near = graphs.neighbourhood(settings.partners, with_self=False)
        width, each = settings.width, settings.width // settings.heads
        self._dropout = settings.dropout
        self.first = nn.Linear(inputs, width)
        reads = not isinstance(settings, UnimpBareSettings)
        self.results = Results(width, settings.hidden_results) if reads else None
        self.layers = nn.ModuleList(
            GraphTransformer(near, width, settings.heads, each, settings.dropout)
            for _ in range(settings.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in self.layers)
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor, status: Tensor) -> Tensor:
        rows = self.first(rows)
        if self.results is not None:
            rows = rows + self.results(status)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            rows = functional.dropout(rows, self._dropout, self.training)
            rows = functional.relu(norm(layer(rows)))
        return self.head(rows)[:, 0]


class Results(nn.Module):
    """Embedding of visible results: maps status (people,) to (people, width).

    Unknown results map to zeros. In training, each call masks a share ``hidden`` of the
    known ones.
    """

    def __init__(self, width: int, hidden: float) -> None:
        super().__init__()
        self._hidden = hidden
        self.rows = nn.Parameter(torch.randn(2, width) / math.sqrt(width))

    def forward(self, status: Tensor) -> Tensor:
        shown = status >= 0
        if self.training:
            shown = shown & (torch.rand(len(status)) >= self._hidden)
        kinds = functional.one_hot(status.clamp(min=0), 2) * shown[:, None]
        return kinds.to(self.rows.dtype) @ self.rows


class GraphTransformer(nn.Module):
    """The paper's layer: attention with queries and keys, and a gated residual.

    share_ij is the softmax over j of q_i . (k_j + e_ij) / sqrt(width), with
    dropout; m_i = sum_j share_ij (v_j + e_ij), e_ij = close_ij e; r_i = W x_i + b;
    the output is g r_i + (1 - g) m_i with g = sigmoid(w . [m_i, r_i, m_i - r_i]).
    Maps (people, width_in) to (people, heads x width).
    """

    def __init__(
        self, near: Neighbourhood, width_in: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self._near, self._shape, self._dropout = near, (heads, width), dropout
        self.query = nn.Linear(width_in, heads * width)
        self.key = nn.Linear(width_in, heads * width)
        self.value = nn.Linear(width_in, heads * width)
        self.residual = nn.Linear(width_in, heads * width)
        self.close = nn.Parameter(torch.empty(heads, width))
        self.gate = nn.Linear(3 * heads * width, 1, bias=False)
        nn.init.xavier_uniform_(self.close)

    def forward(self, x: Tensor) -> Tensor:
        edges, closeness = self._near.edges, self._near.closeness
        maps = (self.query, self.key, self.value)
        query, key, value = (made(x).view(-1, *self._shape) for made in maps)
        # e_ij has one direction, so its part of the score is one number per person.
        towards = (query * self.close).sum(-1)
        score = edges.scores(query, key) + closeness * towards[edges.target]
        share = edges.softmax(score / math.sqrt(self._shape[1]))
        share = functional.dropout(share, self._dropout, self.training)
        near = torch.zeros_like(towards).index_add(0, edges.target, share * closeness)
        found = (edges.product(share, value) + near[..., None] * self.close).flatten(1)
        residual = self.residual(x)
        parts = [found, residual, found - residual]
        gate = self.gate(torch.cat(parts, dim=-1)).sigmoid()
        return gate * residual + (1 - gate) * found


class Unimp(NetworkMethod):
    """Transformer layers with a gated residual and an embedding of the results.

    Masked label prediction: the results of the targets are masked and the others are
    inputs; the final prediction uses all. Reduced: two layers of 32 with two heads
    (paper: three of 128); a person attends to the 32 strongest contacts. Adapted: the
    targets are the folds of all networks, one per step (random in the paper), and a
    share ``hidden_results`` is masked in addition; score and value of an edge have a
    term for log(1 + slots together); the input days are concatenated; a linear head
    follows.
    """

    name = "unimp"
    settings_type: ClassVar[type] = UnimpSettings
    network_type = UnimpNetwork
    static = True
    reads_results = True


class UnimpBare(Unimp):
    """UniMP as in the authors' program: a free embedding as input, no results."""

    name = "unimp-bare"
    settings_type: ClassVar[type] = UnimpBareSettings
    reads_results = False
