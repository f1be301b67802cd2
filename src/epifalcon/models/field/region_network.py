"""A DCRNN of transmission: what each region and day should be like, by the others.

Two recurrent cells of diffusion convolution on the day's flows, one forth through
the days and one back, read what tested people's tallies say of each region and day
and tell log b of every region and day. The objective is that of the closed form:
the infections Q of a cell are Poisson of mean b X, so that

    loss = sum of b X - Q log b

A region must not be told by itself: regions are split into parts, and each part is
told, in training and afterwards, with its own tallies hidden.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from epifalcon.mobility.flows import Flows
from epifalcon.models.diffusion import FlowGraph, glorot
from epifalcon.models.field.settings import NetworkSettings
from epifalcon.models.macro import DiffusionGru
from epifalcon.models.settings import DcrnnSettings
from epifalcon.types import Floats

_CHANNELS = 4
_SEED = 20201
_LEAST_SPREAD = 0.1


class Tallies(NamedTuple):
    """What is known of each day and region, (days, regions) each."""

    caught: Floats
    borne: Floats
    """The hazard borne at the pathogen's rate."""
    mean: float
    """What all regions together show."""


@dataclass(frozen=True, eq=False)
class _Days:
    """Inputs, targets and graphs of all days, as torch wants them."""

    seen: Tensor
    """(days, regions, 3)"""
    caught: Tensor
    borne: Tensor
    graphs: list[FlowGraph]

    def hidden(self, part: Tensor) -> Tensor:
        """The inputs, the regions of ``part`` hidden: (days, regions, channels)."""
        mask = part.to(self.seen.dtype)[None, :, None].expand(len(self.seen), -1, 1)
        return torch.cat([self.seen * (1 - mask), mask], dim=2)


class TransmissionNetwork(nn.Module):
    """Both cells and the readout: inputs to log of b over the mean."""

    def __init__(self, settings: NetworkSettings, generator: torch.Generator) -> None:
        super().__init__()
        cell = DcrnnSettings(
            hidden_width=settings.width, diffusion_steps=settings.diffusion_steps
        )
        self.width = settings.width
        self.forth = DiffusionGru(_CHANNELS, cell, generator)
        self.back = DiffusionGru(_CHANNELS, cell, generator)
        self.readout = nn.Parameter(0.1 * glorot(2 * self.width, 1, generator))
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor, graphs: list[FlowGraph]) -> Tensor:
        """(days, regions, channels) to (days, regions)."""
        forth = self._walk(self.forth, inputs, graphs)
        back = self._walk(self.back, inputs.flip(0), graphs[::-1])[::-1]
        rows = [
            torch.cat(both, dim=1) @ self.readout + self.offset
            for both in zip(forth, back, strict=True)
        ]
        return torch.stack(rows).squeeze(2)

    def _walk(
        self, cell: DiffusionGru, inputs: Tensor, graphs: list[FlowGraph]
    ) -> list[Tensor]:
        state = inputs.new_zeros(inputs.shape[1], self.width)
        states = []
        for x, graph in zip(inputs, graphs, strict=True):
            state = cell(x, state, graph)
            states.append(state)
        return states


def foretold(tallies: Tallies, flows: Flows, settings: NetworkSettings) -> Floats:
    """The factor of each day and region, by the tallies of other regions.

    (days, regions). The same tallies give the same answer.
    """
    generator = torch.Generator().manual_seed(_SEED)
    network = TransmissionNetwork(settings, generator)
    days = _days(tallies, flows)
    order = torch.randperm(flows.regions, generator=generator)
    part = torch.empty(flows.regions, dtype=torch.long)
    part[order] = torch.arange(flows.regions) % settings.masks
    _train(network, days, part, settings)
    found = torch.empty_like(days.caught)
    with torch.no_grad():
        for one in range(settings.masks):
            own = part == one
            found[:, own] = network(days.hidden(own), days.graphs)[:, own]
    return np.asarray(tallies.mean * np.exp(found.numpy().astype(np.float64)))


def _days(tallies: Tallies, flows: Flows) -> _Days:
    caught, borne = tallies.caught, tallies.borne * tallies.mean
    of_region = np.log((caught.sum(0) + 1) / (borne.sum(0) + 1))
    seen = np.stack(
        [
            np.log((caught + 0.5) / (borne + 0.5)),
            np.broadcast_to(of_region, caught.shape),
            np.log1p(borne),
        ],
        axis=2,
    )
    seen -= seen.mean(axis=(0, 1))
    seen /= seen.std(axis=(0, 1)) + _LEAST_SPREAD
    graphs = [FlowGraph.of(flows.moves(day)) for day in range(flows.days)]
    return _Days(_tensor(seen), _tensor(caught), _tensor(borne), graphs)


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _train(
    network: TransmissionNetwork, days: _Days, part: Tensor, settings: NetworkSettings
) -> None:
    optimiser = torch.optim.AdamW(
        network.parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    whole = days.caught.sum() + 1
    for step in range(settings.steps):
        own = part == step % settings.masks
        told = network(days.hidden(own), days.graphs)[:, own]
        borne, caught = days.borne[:, own], days.caught[:, own]
        loss = (told.exp() * borne - caught * told).sum() * settings.masks / whole
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
