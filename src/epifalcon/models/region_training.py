"""Training of a region network: on past days, stopped by the days after them."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import SettingsError
from epifalcon.models.diffusion import FlowGraph
from epifalcon.models.settings import TrainingSettings
from epifalcon.progress import Progress


class RegionNetwork(Protocol):
    """A recurrent network of regions; to put another in DCRNN's place, write this.

    It must be a ``torch.nn.Module`` as well. See ``Dcrnn`` for the promises.
    """

    width: int

    def encode(
        self, inputs: Tensor, graphs: Sequence[FlowGraph], state: Tensor | None = None
    ) -> list[Tensor]: ...

    def decode(
        self, state: Tensor, last: Tensor, graph: FlowGraph, days: int
    ) -> Tensor: ...

    def parameters(self) -> Any: ...  # noqa: ANN401

    def state_dict(self) -> Any: ...  # noqa: ANN401

    def load_state_dict(self, state_dict: Any) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True)
class FitRecord:
    """How training went: one loss per step, on the scale of the network."""

    training: tuple[float, ...]
    validation: tuple[float, ...]
    """Error of the parameters that the step began with."""

    @property
    def best_step(self) -> int:
        """The step whose parameters were kept."""
        return int(np.argmin(self.validation))


@dataclass(frozen=True, eq=False)
class Lesson:
    """The days to learn from, and where validation begins."""

    inputs: Tensor
    graphs: Sequence[FlowGraph]
    first_validation_day: int
    settings: TrainingSettings

    def error(
        self, network: RegionNetwork, state: Tensor, origin: int, targets: range
    ) -> Tensor:
        """Sum over the target days of the mean squared error, told from ``origin``."""
        ahead = network.decode(
            state, self.inputs[origin], self.graphs[origin], targets.stop - 1 - origin
        )
        truth = self.inputs[:, :, 0][targets.start : targets.stop].T
        told = ahead[:, targets.start - origin - 1 :]
        return (told - truth).square().mean(dim=0).sum()

    def targets(self, origin: int, *, validation: bool) -> range:
        """The days to be told from ``origin``: before or after the border."""
        border, horizon = self.first_validation_day, self.settings.horizon
        if validation:
            last = min(origin + horizon, len(self.inputs) - 1)
            return range(max(origin + 1, border), last + 1)
        return range(origin + 1, min(origin + horizon, border - 1) + 1)

    @cached_property
    def origins(self) -> tuple[int, ...]:
        """The days to learn from: those with a case on them or ahead of them.

        Days before the first case teach nothing but zero; if there is no case
        at all, every day is one of them.
        """
        border, ahead = self.first_validation_day, self.settings.horizon
        busy = self.inputs[:border, :, 0].any(dim=1)
        days = range(border - 1)
        some = tuple(day for day in days if busy[day : day + 1 + ahead].any())
        return some or tuple(days)

    def draw(self, generator: torch.Generator) -> list[int]:
        """Some days to forecast from in one step, in their order."""
        mixed = torch.randperm(len(self.origins), generator=generator).tolist()
        return sorted(
            self.origins[place] for place in mixed[: self.settings.origins_per_step]
        )


def train(
    network: RegionNetwork,
    lesson: Lesson,
    generator: torch.Generator,
    progress: Progress,
) -> FitRecord:
    """Adam until the validation error no longer falls; the best parameters stay."""
    settings = lesson.settings
    optimiser = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    training: list[float] = []
    validation: list[float] = []
    best, best_step, kept = math.inf, 0, copy.deepcopy(network.state_dict())
    for step in range(settings.steps):
        optimiser.zero_grad()
        loss, states = _learn(network, lesson, lesson.draw(generator))
        error = _validate(network, lesson, states)
        if not (math.isfinite(loss) and math.isfinite(error)):
            raise SettingsError(
                f"learning_rate={settings.learning_rate} is too large: the loss of "
                f"the region model is {loss} at step {step}, {error} in validation"
            )
        training.append(loss)
        validation.append(error)
        if error < best:
            best, best_step = error, step
            kept = copy.deepcopy(network.state_dict())
        elif step - best_step >= settings.patience:
            break
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_clip)
        optimiser.step()
        progress("region model", step + 1, settings.steps)
    progress("region model", settings.steps, settings.steps)
    network.load_state_dict(kept)
    return FitRecord(tuple(training), tuple(validation))


def _learn(
    network: RegionNetwork, lesson: Lesson, origins: Sequence[int]
) -> tuple[float, list[Tensor]]:
    """Put the gradient of the error from ``origins`` into the parameters.

    Returns the error and the states of the days before validation, cut off.
    """
    days = lesson.first_validation_day - 1
    states = network.encode(lesson.inputs[:days], lesson.graphs[:days])
    # One origin at a time, down to its state: the memory of one decoder, not of all.
    leaves = {day: states[day].detach().requires_grad_() for day in origins}
    pairs = sum(len(lesson.targets(day, validation=False)) for day in origins)
    total = 0.0
    for day, leaf in leaves.items():
        targets = lesson.targets(day, validation=False)
        error = lesson.error(network, leaf, day, targets) / pairs
        error.backward()  # type: ignore[no-untyped-call]
        total += error.item()
    torch.autograd.backward(
        [states[day] for day in leaves], [leaf.grad for leaf in leaves.values()]
    )
    return total, [state.detach() for state in states]


def _validate(
    network: RegionNetwork, lesson: Lesson, states: Sequence[Tensor]
) -> float:
    """The error of the validation days, going on from ``states``."""
    known, days = len(states), len(lesson.inputs) - 1
    total, pairs = 0.0, 0
    with torch.no_grad():
        later = network.encode(
            lesson.inputs[known:days], lesson.graphs[known:days], states[-1]
        )
        for origin, state in enumerate([*states, *later]):
            targets = lesson.targets(origin, validation=True)
            if targets:
                total += lesson.error(network, state, origin, targets).item()
                pairs += len(targets)
    return total / pairs
