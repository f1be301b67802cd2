"""The region model of the authors' program: a GRU that sees no graph.

The program names a graph network, but with Chebyshev order 1 a region sees itself
alone. Each day's state is made from zero over a window of three days. The inputs
are raw numbers, Adam has a learning rate of 0.1, and gradients are never reset, so
that they add up over all steps. The states saturate: they say little more than
whether somebody infectious was there. It serves for comparison with the paper;
``models.dcrnn`` is the network that the paper describes.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from epifalcon.errors import DataError
from epifalcon.models.region_model import FitRecord, RegionHistory
from epifalcon.models.settings import RegionSettings, TrainingSettings
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats

WINDOW_DAYS: Final = 3


class GruRegionModel:
    """A region model whose network is a GRU cell and a linear readout."""

    def __init__(self, settings: RegionSettings) -> None:
        self.training: TrainingSettings = settings.training
        self._width = settings.network.hidden_width
        self._cell: nn.GRUCell | None = None
        self._readout: nn.Linear

    def fit(
        self,
        history: RegionHistory,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> FitRecord:
        """Train for ``training.steps`` steps on the days before validation."""
        settings, width = self.training, self._width
        first = settings.first_validation_day(history.days)
        self._cell, self._readout = nn.GRUCell(1, width), nn.Linear(width, 1)
        parameters = [*self._cell.parameters(), *self._readout.parameters()]
        for parameter in parameters:
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator)
        optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)
        inputs, losses = _inputs(history.cases), []
        days = range(min(WINDOW_DAYS, first - 1) - 1, first - 1)
        for step in range(settings.steps):
            errors = [
                functional.mse_loss(
                    self._next(self._state(inputs, day)), inputs[day + 1]
                )
                for day in days
            ]
            loss = torch.stack(errors).mean()
            # The program does not call zero_grad: gradients add up over steps.
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
            progress("region model", step + 1, settings.steps)
        return FitRecord(tuple(losses), ())

    def states(self, history: RegionHistory) -> NDArray[np.float32]:
        """Return (regions, days, width); zero on days without a whole window."""
        states = np.zeros((history.regions, history.days, self._width), np.float32)
        inputs = _inputs(history.cases)
        with torch.no_grad():
            for day in range(WINDOW_DAYS - 1, history.days):
                states[:, day] = self._state(inputs, day).numpy()
        return states

    def forecast(self, history: RegionHistory, origins: Sequence[int]) -> Floats:
        """Return cases (origins, regions, horizon), each day from the one before."""
        horizon = self.training.horizon
        found = np.zeros((len(origins), history.regions, horizon))
        with torch.no_grad():
            for row, origin in enumerate(origins):
                inputs = _inputs(history.cases[:, : origin + 1])
                for ahead in range(horizon):
                    value = self._next(self._state(inputs, len(inputs) - 1)).clamp(0)
                    found[row, :, ahead] = value[:, 0].numpy()
                    inputs = torch.cat([inputs, value[None]])
        return found

    def _state(self, inputs: Tensor, day: int) -> Tensor:
        """Return the state (regions, width) after the window that ends with ``day``."""
        if self._cell is None:
            raise DataError("the region model is not fitted yet: call fit first")
        state = None
        for x in inputs[max(day - WINDOW_DAYS + 1, 0) : day + 1]:
            state = self._cell(x, state)
        return state  # type: ignore[return-value]

    def _next(self, state: Tensor) -> Tensor:
        """Return the next day's cases (regions, 1)."""
        following: Tensor = self._readout(functional.relu(state))
        return following


def _inputs(cases: Floats) -> Tensor:
    """Return (days, regions, 1) float32 as they are: no logarithm, no scale."""
    return torch.from_numpy(np.ascontiguousarray(cases.T, np.float32))[:, :, None]
