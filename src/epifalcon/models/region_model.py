"""The region model as a stage: what it is given, how it is fitted, what it tells.

Paper, section "Macroscopic Model Cooperation", first equation: new cases of the
next days from the cases and flows of the days until now. Only past days are
used, and only the cases that are handed in.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import one_of
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.flows import Flows
from epifalcon.models.dcrnn import FlowGraph
from epifalcon.models.settings import TrainingSettings
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain
from epifalcon.types import Floats, Plain


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


SOURCES = ("reported", "all")
"""Where case counts come from: from test results alone, or from everybody."""

MEASURES = ("count", "share", "presence")
"""What the cases of a region and day are measured in."""

# No region has e^20 cases; without a ceiling a bad step would tell infinity.
_MOST = 20.0


def require_source(source: str) -> None:
    """Raise unless ``source`` says where cases come from in one of our words."""
    one_of(SOURCES, source=source)


@dataclass(frozen=True, eq=False)
class RegionHistory:
    """All that a region model may see: flows and cases of the same days."""

    flows: Flows
    cases: Floats
    """(regions, days), 0 or more; fractions are welcome. Made read-only."""
    source: str = "reported"
    """"reported" (tested people alone) or "all" (hidden people included)."""
    measure: str = "count"
    """What a number is: "count" for cases, "share" for cases in 100 visitors,
    "presence" for slots that cases spent there."""

    def __post_init__(self) -> None:
        require_source(self.source)
        one_of(MEASURES, measure=self.measure)
        wanted = (self.flows.regions, self.flows.days)
        cases = np.array(self.cases, dtype=np.float64)
        if cases.shape != wanted:
            raise DataError(
                f"cases have shape {cases.shape}, expected {wanted} (regions, days)"
            )
        if not (np.isfinite(cases).all() and (cases >= 0).all()):
            raise DataError("cases must be finite numbers of 0 or more")
        cases.setflags(write=False)
        object.__setattr__(self, "cases", cases)

    @property
    def regions(self) -> int:
        """Number of regions."""
        return self.flows.regions

    @property
    def days(self) -> int:
        """Number of days."""
        return self.flows.days

    @cached_property
    def graphs(self) -> tuple[FlowGraph, ...]:
        """The flows of each day, ready to walk on; who stayed is left out."""
        return tuple(FlowGraph.of(self.flows.moves(day)) for day in range(self.days))

    def with_cases(self, cases: Floats) -> "RegionHistory":
        """The same flows with other cases; graphs already made are shared."""
        other = RegionHistory(self.flows, cases, self.source, self.measure)
        other.__dict__["graphs"] = self.graphs
        return other


class RegionModel(Protocol):
    """What the other stages ask of a region model."""

    @property
    def training(self) -> TrainingSettings:
        """How it is fitted, and how far it looks ahead."""
        ...

    @property
    def described(self) -> Plain:
        """Name and settings: equal descriptions and data give equal models."""
        ...

    def fit(
        self,
        history: RegionHistory,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> FitRecord:
        """Learn from the history; its last days choose when to stop."""
        ...

    def states(self, history: RegionHistory) -> NDArray[np.float32]:
        """(regions, days, width): each day's from that day and earlier ones alone."""
        ...

    def forecast(self, history: RegionHistory, origins: Sequence[int]) -> Floats:
        """Cases (origins, regions, horizon) of the days that follow each origin."""
        ...


@dataclass(frozen=True)
class Scaling:
    """Counts to network inputs and back, fixed by the training days."""

    cases: float
    """Root mean square of log1p of the cases that are not 0."""
    visitors: tuple[float, float] | None
    """Mean and deviation of log1p of visitors; none where they are not looked at."""

    @classmethod
    def of(cls, history: RegionHistory, days: int, visitors: bool) -> "Scaling":
        """The scaling of the first ``days`` days."""
        logs = np.log1p(history.cases[:, :days])
        size = math.sqrt(float(np.mean(logs[logs > 0] ** 2))) if logs.any() else 1.0
        if not visitors:
            return cls(size, None)
        crowd = np.log1p(history.flows.visitors[:days])
        return cls(size, (float(crowd.mean()), float(crowd.std()) or 1.0))

    @property
    def channels(self) -> int:
        """How many numbers the network sees of each region and day."""
        return 2 if self.visitors is None else 3

    def inputs(self, history: RegionHistory) -> Tensor:
        """(days, regions, channels): the day's cases, their mean so far, visitors."""
        cases = np.log1p(history.cases.T) / self.cases
        days = np.arange(1, history.days + 1)[:, None]
        channels = [cases, np.cumsum(cases, axis=0) / days]
        if self.visitors is not None:
            mean, deviation = self.visitors
            channels.append((np.log1p(history.flows.visitors) - mean) / deviation)
        return torch.from_numpy(np.stack(channels, axis=2).astype(np.float32))

    def counts(self, told: Tensor) -> Floats:
        """What the network told, as counts of 0 or more."""
        logs = told.double().mul(self.cases).clamp(0.0, _MOST)
        counts: Floats = torch.expm1(logs).numpy()
        return counts


@dataclass(frozen=True, eq=False)
class Fitted:
    """What training made, and for which histories it may be asked."""

    network: RegionNetwork
    scaling: Scaling
    regions: int
    source: str
    """The cases it was trained on: its parameters are made from them."""
    measure: str

    def require(self, history: RegionHistory) -> None:
        """Raise ``DataError`` for other regions, or for cases of another kind."""
        if history.regions != self.regions:
            raise DataError(
                f"the region model was fitted to {self.regions} regions and belongs "
                f"to another city than this history of {history.regions}"
            )
        own, given = (self.source, self.measure), (history.source, history.measure)
        if own != given:
            raise DataError(
                f"the region model was fitted to cases {own} (source, measure), "
                f"this history has {given}: fit it again"
            )


class NetworkRegionModel:
    """A ``RegionModel`` around any ``RegionNetwork``.

    ``build`` makes the network for a number of input channels, its first
    parameters drawn from the generator; ``named`` tells the network from others.
    A fitted model may be asked about any history of the same regions and the
    same source of cases: other people, other days, more of them or fewer.
    """

    def __init__(
        self,
        build: Callable[[int, torch.Generator], RegionNetwork],
        training: TrainingSettings,
        named: Plain,
    ) -> None:
        self._build = build
        self._named = named
        self.training = training
        self._fitted: Fitted | None = None

    @property
    def described(self) -> Plain:
        """Name and settings of network and training."""
        return {"network": self._named, "training": as_plain(self.training)}

    @property
    def fitted(self) -> Fitted:
        """What training made; ``DataError`` before that."""
        if self._fitted is None:
            raise DataError("the region model is not fitted yet: call fit first")
        return self._fitted

    def fit(
        self,
        history: RegionHistory,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> FitRecord:
        """Train anew on the history; equal generators give equal models."""
        settings = self.training
        first = settings.first_validation_day(history.days)
        scaling = Scaling.of(history, first, settings.visitors)
        network = self._build(scaling.channels, generator)
        lesson = Lesson(scaling.inputs(history), history.graphs, first, settings)
        record = train(network, lesson, generator, progress)
        self._fitted = Fitted(
            network, scaling, history.regions, history.source, history.measure
        )
        return record

    def resume(
        self,
        parameters: Mapping[str, Tensor],
        scaling: Scaling,
        regions: int,
        source: str,
        measure: str,
    ) -> None:
        """Be fitted as another of the same description was: see ``region_store``.

        Raises ``DataError`` where the parameters are not those of this network.
        """
        require_source(source)
        one_of(MEASURES, measure=measure)
        network = self._build(scaling.channels, torch.Generator())
        own = network.state_dict()
        wrong = sorted(own.keys() ^ parameters.keys()) or [
            name
            for name, one in own.items()
            if (one.shape, one.dtype)
            != (parameters[name].shape, parameters[name].dtype)
        ]
        if wrong:
            raise DataError(
                f"parameters of another network: {', '.join(wrong)} do not fit"
            )
        network.load_state_dict(dict(parameters))
        self._fitted = Fitted(network, scaling, regions, source, measure)

    def states(self, history: RegionHistory) -> NDArray[np.float32]:
        """The encoder's rows, (regions, days, width)."""
        network, scaling = self._asked(history)
        with torch.no_grad():
            states = network.encode(scaling.inputs(history), history.graphs)
        rows: NDArray[np.float32] = torch.stack(states, dim=1).numpy()
        return rows

    def forecast(self, history: RegionHistory, origins: Sequence[int]) -> Floats:
        """Cases (origins, regions, horizon); nothing after an origin is looked at."""
        network, scaling = self._asked(history)
        for origin in origins:
            if not 0 <= origin < history.days:
                raise DataError(
                    f"origin {origin} must lie between 0 and {history.days - 1}"
                )
        days = max(origins, default=-1) + 1
        inputs = scaling.inputs(history)[:days]
        told = np.zeros((len(origins), history.regions, self.training.horizon))
        with torch.no_grad():
            states = network.encode(inputs, history.graphs[:days])
            for place, day in enumerate(origins):
                ahead = network.decode(
                    states[day],
                    inputs[day],
                    history.graphs[day],
                    self.training.horizon,
                )
                told[place] = scaling.counts(ahead)
        return told

    def _asked(self, history: RegionHistory) -> tuple[RegionNetwork, Scaling]:
        self.fitted.require(history)
        return self.fitted.network, self.fitted.scaling
