"""DCRNN of people: diffusion over each day's contacts inside a recurrent cell.

Li, Yu, Shahabi and Liu 2018, "Diffusion Convolutional Recurrent Neural Network".
The region model (``models/dcrnn.py``) is the same idea on flows between regions.

Adapted: the graph is the exact contacts of each day. Contacts have no direction, so
both of the paper's walks are one, D^-1 C. Only the encoder is used: log odds come from
the last state. One layer of ``width`` 32 (paper: two of 64).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from epifalcon.checks import Count, CountOrZero
from epifalcon.hypergraph.contacts import Contacts
from epifalcon.methods.networks import ContactGraphs, NetworkMethod, NetworkSettings


@dataclass(frozen=True, kw_only=True)
class DcrnnOfPeopleSettings(NetworkSettings):
    """Settings of DCRNN; ``width`` is that of the state."""

    layers: Count = 1
    diffusion_steps: CountOrZero = 2
    """K: steps of the walk in one day."""


class DcrnnOfPeople(NetworkMethod):
    """A diffusion-convolutional recurrent network on each day's contacts."""

    name = "dcrnn"
    settings_type = DcrnnOfPeopleSettings
    settings: DcrnnOfPeopleSettings

    def network(self, graphs: ContactGraphs, channels: int) -> nn.Module:
        """A new network on the exact contacts of each day."""
        return DcrnnNetwork(channels, graphs.daily, self.settings)


def diffused(x: Tensor, contacts: Contacts, steps: int) -> Tensor:
    """Return rows after 0 to ``steps`` steps of D^-1 C, concatenated.

    (people, width) to (people, (1 + steps) width).
    """
    parts = [x]
    for _ in range(steps):
        parts.append(contacts.mean(parts[-1]))
    return torch.cat(parts, dim=1)


class ContactCell(nn.Module):
    """The gated recurrent cell of the paper's equation 3, on one day's contacts.

    r = sigmoid(Theta_r * [x, h] + b_r), u = sigmoid(Theta_u * [x, h] + b_u),
    c = tanh(Theta_c * [x, r h] + b_c), and the new state is u h + (1 - u) c,
    where Theta * y is the sum over k = 0..K of (D^-1 C)^k y Theta_k. The weights
    of x and h are separate, so that x of all days is multiplied at once.
    """

    def __init__(self, inputs: int, width: int, steps: int) -> None:
        super().__init__()
        terms = 1 + steps
        self.steps = steps
        self.of_input = nn.Linear(terms * inputs, 3 * width)
        self.of_state = nn.Linear(terms * width, 2 * width, bias=False)
        self.of_kept = nn.Linear(terms * width, width, bias=False)
        with torch.no_grad():
            # As in the paper's program: at first the cell keeps its state.
            self.of_input.bias[: 2 * width] = 1.0
            self.of_input.bias[2 * width :] = 0.0

    def forward(self, x: Tensor, state: Tensor | None, contacts: Contacts) -> Tensor:
        """Return the new state (people, width).

        ``x`` (people, 3 width) is ``of_input`` of the day's diffused input, for r, u
        and c; ``state`` that of the day before, None for zeros.
        """
        width = x.shape[1] // 3
        gates, candidate = x[:, : 2 * width], x[:, 2 * width :]
        if state is None:
            return (1 - gates[:, width:].sigmoid()) * candidate.tanh()
        gates = gates + self.of_state(diffused(state, contacts, self.steps))
        reset, update = gates.sigmoid().chunk(2, dim=1)
        kept = diffused(reset * state, contacts, self.steps)
        candidate = (candidate + self.of_kept(kept)).tanh()
        new: Tensor = candidate + update * (state - candidate)
        return new


class DcrnnNetwork(nn.Module):
    """Recurrent cells over the days; log odds from the last state."""

    def __init__(
        self, channels: int, daily: Sequence[Contacts], settings: DcrnnOfPeopleSettings
    ) -> None:
        super().__init__()
        self._daily, self._steps = tuple(daily), settings.diffusion_steps
        width = settings.width
        self.cells = nn.ModuleList(
            ContactCell(width if number else channels, width, self._steps)
            for number in range(settings.layers)
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.readout = nn.Linear(width, 1)

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        """(people, days, channels) to (people,)."""
        days: Sequence[Tensor] = x.unbind(1)
        for cell in self.cells:
            days = self._states(cast(ContactCell, cell), days)
        odds: Tensor = self.readout(self.dropout(days[-1]))
        return odds[:, 0]

    def _states(self, cell: ContactCell, days: Sequence[Tensor]) -> list[Tensor]:
        """Return the states of one cell for the rows of each day, (people, width)."""
        spread = [
            diffused(rows, contacts, self._steps)
            for rows, contacts in zip(days, self._daily, strict=True)
        ]
        state, states = None, []
        for x, contacts in zip(
            cell.of_input(torch.stack(spread)), self._daily, strict=True
        ):
            state = cell(x, state, contacts)
            states.append(state)
        return states
