"""DCRNN of people: diffusion over each day's contacts inside a recurrent cell.

Li, Yu, Shahabi and Liu 2018, "Diffusion Convolutional Recurrent Neural Network".
The region model (``models/macro.py``) is the same idea on flows between regions.

What is ours:

- The graph is the exact contacts of each day, so it changes from day to day.
- Contacts have no direction: both of the paper's walks are one and the same, so
  there is one, D^-1 C. Hence a cell of our own and not that of the regions,
  which would walk twice and hold the transposes of each day.
- The encoder alone, since nothing is forecast: log odds come from the last
  state. One layer of ``width`` 32 (paper: two of 64).
- What the walk makes of inputs that are not learnt is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from epifalcon.hypergraph.contacts import Contacts
from epifalcon.methods.networks import ContactGraphs, NetworkMethod, NetworkSettings


@dataclass(frozen=True, kw_only=True)
class DcrnnOfPeopleSettings(NetworkSettings):
    """Of DCRNN; ``width`` is that of the state."""

    layers: int = 1
    """Cells one upon the other."""
    diffusion_steps: int = 2
    """K: how far the walk goes in one day."""


class DcrnnOfPeople(NetworkMethod):
    """A diffusion-convolutional recurrent network on each day's contacts."""

    name = "dcrnn"
    title = "DCRNN"
    settings_type = DcrnnOfPeopleSettings
    settings: DcrnnOfPeopleSettings

    def network(self, graphs: ContactGraphs, channels: int) -> nn.Module:
        """A new network on the exact contacts of each day."""
        return DcrnnNetwork(channels, graphs.daily, self.settings)


def diffused(x: Tensor, contacts: Contacts, steps: int) -> Tensor:
    """Rows after 0 to ``steps`` steps of D^-1 C, side by side.

    (people, width) to (people, (1 + steps) width). A step takes each person to
    the mean of those it met, weighted by slots, and to 0 without any.
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
    of x and h stand apart, so that x of all days goes through at once.
    """

    def __init__(self, inputs: int, width: int, steps: int) -> None:
        super().__init__()
        terms = 1 + steps
        self.steps = steps
        self.of_input = nn.Linear(terms * inputs, 3 * width)
        self.of_state = nn.Linear(terms * width, 2 * width, bias=False)
        self.of_kept = nn.Linear(terms * width, width, bias=False)
        with torch.no_grad():
            # As in the paper's program: at first the cell rather remembers.
            self.of_input.bias[: 2 * width] = 1.0
            self.of_input.bias[2 * width :] = 0.0

    def forward(self, told: Tensor, state: Tensor | None, contacts: Contacts) -> Tensor:
        """The new state (people, width).

        ``told`` (people, 3 width) is ``of_input`` of the day's diffused input:
        for r, for u, for c. ``state`` is that of the day before, None for zeros.
        """
        width = told.shape[1] // 3
        gates, candidate = told[:, : 2 * width], told[:, 2 * width :]
        if state is None:
            return (1 - gates[:, width:].sigmoid()) * candidate.tanh()
        gates = gates + self.of_state(diffused(state, contacts, self.steps))
        reset, update = gates.sigmoid().chunk(2, dim=1)
        kept = diffused(reset * state, contacts, self.steps)
        candidate = (candidate + self.of_kept(kept)).tanh()
        new: Tensor = candidate + update * (state - candidate)
        return new


class DcrnnNetwork(nn.Module):
    """Cells that walk through the days; log odds from the last state."""

    def __init__(
        self,
        channels: int,
        daily: Sequence[Contacts],
        settings: DcrnnOfPeopleSettings,
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
        self._walked: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def forward(self, x: Tensor, status: Tensor) -> Tensor:  # noqa: ARG002
        """(people, days, channels) to (people,)."""
        walked = self._inputs(x)
        states: list[Tensor] = []
        for number, cell in enumerate(self.cells):
            if number:
                walked = self._walk(states)
            states = self._through(cast(ContactCell, cell), walked)
        odds: Tensor = self.readout(self.dropout(states[-1]))
        return odds[:, 0]

    def _through(self, cell: ContactCell, walked: Tensor) -> list[Tensor]:
        """The states of one cell, day by day: (people, width) each."""
        told, state, states = cell.of_input(walked), None, []
        for day, contacts in zip(told, self._daily, strict=True):
            state = cell(day, state, contacts)
            states.append(state)
        return states

    def _walk(self, days: Sequence[Tensor]) -> Tensor:
        """Each day's rows diffused on its contacts: (days, people, ...)."""
        return torch.stack(
            [
                diffused(rows, contacts, self._steps)
                for rows, contacts in zip(days, self._daily, strict=True)
            ]
        )

    def _inputs(self, x: Tensor) -> Tensor:
        """``_walk`` of the days of x, kept for an x that is not learnt."""
        if x.requires_grad:
            return self._walk(x.unbind(1))
        if x not in self._walked:
            self._walked[x] = self._walk(x.unbind(1))
        kept: Tensor = self._walked[x]
        return kept
