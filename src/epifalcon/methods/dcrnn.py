"""DCRNN of people: diffusion over each day's contacts in a recurrent cell.

Li, Yu, Shahabi and Liu 2018, "Diffusion Convolutional Recurrent Neural Network". The
cell is that of the region model (``models/dcrnn.py``).

Adapted: the graph is the exact contacts of each day. It is undirected, so both of the
paper's walks equal D^-1 C. Only the encoder is used: log odds are computed from the
last state. One layer of ``width`` 32 (paper: two of 64).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from epifalcon.checks import Count, CountOrZero
from epifalcon.methods.graph_networks import (
    ContactGraphs,
    NetworkMethod,
    NetworkSettings,
)
from epifalcon.models.dcrnn import DiffusionGru


@dataclass(frozen=True, kw_only=True)
class DcrnnOfPeopleSettings(NetworkSettings):
    """Settings of DCRNN; ``width`` is the width of the state."""

    layers: Count = 1
    diffusion_steps: CountOrZero = 2
    """Number K of steps of the random walk per day."""


class DcrnnNetwork(nn.Module):
    """Recurrent cell over the days and a linear map of the last state to log odds."""

    def __init__(
        self, graphs: ContactGraphs, channels: int, settings: DcrnnOfPeopleSettings
    ) -> None:
        super().__init__()
        self._walks = [[contacts.mean] for contacts in graphs.daily]
        width, steps = settings.width, settings.diffusion_steps
        self.cells = nn.ModuleList(
            DiffusionGru(width if number else channels, width, steps, walks=1)
            for number in range(settings.layers)
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.readout = nn.Linear(width, 1)

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        days: Sequence[Tensor] = x.unbind(1)
        for cell in self.cells:
            days = cast(DiffusionGru, cell).states(days, self._walks)
        return self.readout(self.dropout(days[-1]))[:, 0]


class DcrnnOfPeople(NetworkMethod):
    """Diffusion-convolutional recurrent network on the contacts of each day."""

    name = "dcrnn"
    settings_type = DcrnnOfPeopleSettings
    network_type = DcrnnNetwork
