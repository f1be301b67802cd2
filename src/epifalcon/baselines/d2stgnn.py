"""D2STGNN: diffusion and inherent signals told apart, on a changing graph."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from epifalcon.baselines.d2stgnn_blocks import (
    DecoupledLayer,
    DynamicGraph,
    LayerShape,
    LowRankGraph,
    Support,
)
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.networks import NetworkMethod, NetworkSettings
from epifalcon.checks import whole
from epifalcon.errors import SettingsError
from epifalcon.hypergraph.fixed import Fixed


@dataclass(frozen=True, kw_only=True)
class D2stgnnSettings(NetworkSettings):
    """Settings of D2STGNN."""

    layers: int = 2
    heads: int = 4
    """Of the attention over days; they divide ``width``."""
    reach: int = 3
    """Days that a diffusion step looks back, its own among them."""
    embedding: int = 10
    """Numbers in the embedding of a day, and in each of a person's two."""
    partners: int = 32
    """Strongest contacts of each person that the changing graph weighs."""
    head_width: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(
            1,
            layers=self.layers,
            heads=self.heads,
            reach=self.reach,
            embedding=self.embedding,
            partners=self.partners,
            head_width=self.head_width,
        )
        if self.width % self.heads:
            raise SettingsError(
                f"heads={self.heads} must divide width={self.width} evenly"
            )


class D2stgnn(NetworkMethod):
    """D2STGNN (Shao et al., VLDB 2022).

    All blocks of the paper: estimation gate, residual decomposition with
    backcasts, localised diffusion on self-excluded powers of the transition
    matrices, GRU with multi-head attention, dynamic graph, static graph.

    Reduced or adapted here:
    - two layers of width 32 (originally five of 32); narrower beside them: forecasts
      of 32 (256), a head of 64 (512), gates of 32 (64); dropout in fewer places;
    - the graph holds each person's 32 strongest contacts, and since contacts
      have no direction the forward and the backward walk are one, from the
      listed partners to the person;
    - the static graph, a softmax of products of the two embeddings over
      everybody, is the product of the softmaxed embeddings with rows brought to
      1: rank ``embedding`` instead of people;
    - one embedding of time, of the day of the window, stands for the paper's
      time of day and day of week;
    - the horizon is one step and what is told is one logit a person.
    """

    name = "d2stgnn"
    title = "D2STGNN"
    settings_type = D2stgnnSettings
    settings: D2stgnnSettings

    def network(self, ground: Ground, channels: int) -> nn.Module:
        """A new network on the strongest contacts of ``ground``."""
        return D2stgnnNetwork(ground, channels, self.settings)


class D2stgnnNetwork(nn.Module):
    """(x, status) to log odds (people,); status is not read."""

    def __init__(
        self, ground: Ground, channels: int, settings: D2stgnnSettings
    ) -> None:
        super().__init__()
        size, width = settings.embedding, settings.width
        partners = ground.partners(settings.partners)
        support = Support.of(Fixed.of(partners.edge_index, ground.people))
        self.start = nn.Linear(channels, width)
        # The paper's E^u and E^d, and T.
        self.sender = nn.Parameter(0.1 * torch.randn(ground.people, size))
        self.receiver = nn.Parameter(0.1 * torch.randn(ground.people, size))
        self.day = nn.Parameter(0.1 * torch.randn(ground.days, size))
        self.dynamic = DynamicGraph(
            support,
            partners.weight,
            (ground.days * channels, 2 * size),
            width,
        )
        shape = LayerShape(
            width=width,
            days=ground.days,
            reach=settings.reach,
            heads=settings.heads,
            of_day=size,
            of_person=2 * size,
        )
        count = settings.layers
        self.layers = nn.ModuleList(
            DecoupledLayer(shape, last=number == count - 1) for number in range(count)
        )
        self.head = nn.Sequential(
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(width, settings.head_width),
            nn.ReLU(),
            nn.Linear(settings.head_width, 1),
        )

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        """From x (people, days, channels) to log odds (people,)."""
        person = torch.cat([self.sender, self.receiver], dim=1)
        last_day = self.day[-1].expand(len(x), -1)
        graphs = (
            self.dynamic(x, torch.cat([self.sender, last_day], dim=1)),
            LowRankGraph.of(self.receiver, self.sender),
        )
        rows, told = self.start(x), []
        for layer in self.layers:
            rows, forecast = layer(rows, (self.day, person), graphs)
            told.append(forecast)
        odds: Tensor = self.head(torch.stack(told).sum(dim=0))
        return odds[:, 0]
