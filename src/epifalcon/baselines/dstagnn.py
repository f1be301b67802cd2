"""DSTAGNN: attention over days and people, on a graph of like histories."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from epifalcon.baselines.dstagnn_blocks import (
    AwareBlock,
    AwareGraph,
    BlockShape,
    candidate_pairs,
)
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.networks import NetworkMethod, NetworkSettings
from epifalcon.baselines.wasserstein import SinkhornSettings, day_profiles, likeness
from epifalcon.checks import whole
from epifalcon.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class DstagnnSettings(NetworkSettings):
    """Settings of DSTAGNN."""

    width: int = 16
    """Channels of the rows, and of the free embedding."""
    blocks: int = 2
    heads: int = 2
    """Of the attention over days."""
    key_width: int = 16
    """Numbers in each query and key."""
    orders: int = 3
    """Chebyshev terms, each with an attention of its own."""
    kernels: tuple[int, ...] = (3, 5, 7)
    """Days of each gated convolution."""
    partners: int = 32
    """Strongest contacts of each person whose likeness is measured."""
    relatives: int = 16
    """The most alike of them: the edges of the graph."""
    head_width: int = 64
    sinkhorn: SinkhornSettings = field(default_factory=SinkhornSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(
            1,
            blocks=self.blocks,
            heads=self.heads,
            key_width=self.key_width,
            orders=self.orders,
            partners=self.partners,
            relatives=self.relatives,
            head_width=self.head_width,
        )
        if not self.kernels:
            raise SettingsError("kernels must name at least one number of days")
        for kernel in self.kernels:
            whole(1, kernels=kernel)


class Dstagnn(NetworkMethod):
    """DSTAGNN (Lan et al., ICML 2022).

    All blocks of the paper: the graph of alike people by Wasserstein distance,
    attention over days with residual scores, attention over people, Chebyshev
    convolution under that attention, multi-scale gated convolution over days.

    Reduced or adapted here:
    - two blocks of 16 channels (originally four of 32), two heads over days
      (originally three or four), keys of 16 (32), a head of 64 (128);
    - rows enter attention as they are, without learnt embeddings of the day and of
      the person's number, which would be a free vector for each person;
    - likenesses are not divided by their mean;
    - likeness is measured by Sinkhorn's scaling among each person's 32 strongest
      contacts, not by exact transport among all pairs, and the 16 most alike are
      kept (originally the most alike hundredth of everybody);
    - the softmax over people and the learnt masks stand on that graph alone;
    - input channels are lifted to 16 before the first block;
    - the outputs of all blocks, side by side, tell one logit a person.
    """

    name = "dstagnn"
    title = "DSTAGNN"
    settings_type = DstagnnSettings
    settings: DstagnnSettings
    _made: tuple[Ground, AwareGraph] | None = None

    def network(self, ground: Ground, channels: int) -> nn.Module:
        """A new network on the graph of the people of ``ground``."""
        return DstagnnNetwork(self._graph(ground), ground.days, channels, self.settings)

    def _graph(self, ground: Ground) -> AwareGraph:
        """The graph, made once for each ground."""
        if self._made is None or self._made[0] is not ground:
            self._made = (ground, aware_graph(ground, self.settings))
        return self._made[1]


def aware_graph(ground: Ground, settings: DstagnnSettings) -> AwareGraph:
    """Who is alike among the strongest contacts; from the traces alone."""
    pairs = candidate_pairs(ground.partners(settings.partners))
    alike = likeness(day_profiles(ground.traces), pairs, settings.sinkhorn)
    return AwareGraph.of(
        pairs,
        torch.from_numpy(alike).float(),
        ground.people,
        (settings.relatives, settings.orders),
    )


class DstagnnNetwork(nn.Module):
    """(x, status) to log odds (people,); status is not read."""

    def __init__(
        self, graph: AwareGraph, days: int, channels: int, settings: DstagnnSettings
    ) -> None:
        super().__init__()
        width = settings.width
        shape = BlockShape(
            channels=width,
            days=days,
            heads=settings.heads,
            key_width=settings.key_width,
            embedded=2 * width,
        )
        self.start = nn.Linear(channels, width)
        self.blocks = nn.ModuleList(
            AwareBlock(graph, shape, settings.kernels) for _ in range(settings.blocks)
        )
        self.head = nn.Sequential(
            nn.Linear(settings.blocks * days * width, settings.head_width),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.head_width, 1),
        )

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        """From x (people, days, channels) to log odds (people,)."""
        rows, score, told = self.start(x), None, []
        for block in self.blocks:
            rows, score = block(rows, score)
            told.append(rows.flatten(1))
        odds: Tensor = self.head(torch.cat(told, dim=1))
        return odds[:, 0]
