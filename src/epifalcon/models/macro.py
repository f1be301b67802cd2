"""DCRNN: the recurrent network of regions on daily changing flows.

Paper, section "Macroscopic Model Cooperation", second equation. An encoder
cell walks through the days and keeps one row per region; a decoder cell goes on
from there and tells the next days' cases. The encoder's rows are the paper's
E_m, which the person model puts beside the hyperedges.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from epifalcon.checks import whole
from epifalcon.models.diffusion import DiffusionConv, FlowGraph, glorot
from epifalcon.models.settings import DcrnnSettings

_QUIET = 0.1
"""At first the rows say little, and the mixture most."""


class DiffusionGru(nn.Module):
    """The gated recurrent cell of the paper's equation, on one day's graph.

    r = sigmoid(Theta_r * G [x, h] + b_r), u = sigmoid(Theta_u * G [x, h] + b_u),
    c = tanh(Theta_c * G [x, r h] + b_c), and the new state is u h + (1 - u) c.
    """

    def __init__(
        self, inputs: int, settings: DcrnnSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, steps = settings.hidden_width, settings.diffusion_steps
        # A bias of 1, as in the DCRNN program: at first the cell rather remembers.
        self.gates = DiffusionConv(
            inputs + width, 2 * width, steps, generator, bias=1.0
        )
        self.candidate = DiffusionConv(inputs + width, width, steps, generator)

    def forward(self, x: Tensor, state: Tensor, graph: FlowGraph) -> Tensor:
        """(regions, inputs) and (regions, width) to the new (regions, width)."""
        both = torch.cat([x, state], dim=1)
        reset, update = self.gates(both, graph).sigmoid().chunk(2, dim=1)
        kept = torch.cat([x, reset * state], dim=1)
        candidate = self.candidate(kept, graph).tanh()
        new: Tensor = update * state + (1 - update) * candidate
        return new


class Dcrnn(nn.Module):
    """Encoder and decoder; a ``RegionNetwork``.

    ``inputs`` is the number of channels a day has for each region: first what
    the decoder foretells, then its mean over the days so far, then any others.
    A forecast is a mixture of the last value and that mean, with learned
    weights, plus what the decoder's rows say: so it begins where the simplest
    forecasts are, and training goes into what they do not know.
    """

    def __init__(
        self, inputs: int, settings: DcrnnSettings, generator: torch.Generator
    ) -> None:
        super().__init__()
        whole(2, inputs=inputs)
        self.width = settings.hidden_width
        self.encoder = DiffusionGru(inputs, settings, generator)
        self.decoder = DiffusionGru(1, settings, generator)
        self.readout = nn.Parameter(_QUIET * glorot(self.width, 1, generator))
        self.offset = nn.Parameter(torch.zeros(1))
        self.mixture = nn.Parameter(torch.full((2, 1), 0.5))

    def encode(
        self,
        inputs: Tensor,
        graphs: Sequence[FlowGraph],
        state: Tensor | None = None,
    ) -> list[Tensor]:
        """The state after each day, (regions, width) each.

        ``inputs`` (days, regions, channels) and ``graphs`` hold the same days;
        ``state`` is that of the day before them, zeros where there is none. The
        state of a day depends on that day and those before it alone.
        """
        if state is None:
            state = inputs.new_zeros(inputs.shape[1], self.width)
        states = []
        for x, graph in zip(inputs, graphs, strict=True):
            state = self.encoder(x, state, graph)
            states.append(state)
        return states

    def decode(
        self, state: Tensor, last: Tensor, graph: FlowGraph, days: int
    ) -> Tensor:
        """The next ``days`` days from the state and inputs of one day: (regions, days).

        ``last`` (regions, channels) are the inputs of that day; each later step
        is told what the step before it foretold, and the same mean. Flows of
        days to come are not known, so every step walks on the last graph.
        """
        value, mean, told = last[:, :1], last[:, 1:2], []
        for _ in range(days):
            state = self.decoder(value, state, graph)
            simple = torch.cat([value, mean], dim=1) @ self.mixture
            value = simple + torch.addmm(self.offset, state, self.readout)
            told.append(value)
        return torch.cat(told, dim=1)
