"""Region model: forecast the cases of the next days from past cases and flows.

Paper, section "Macroscopic Model Cooperation", first equation. A fitted model returns
forecasts and one state per region and day (the paper's E_m), an input of the person
model. For tested people, run it on a history without their own cases; otherwise their
labels leak into the states of their regions.
"""

import copy
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.adam import adam

from epifalcon import store
from epifalcon.checks import present
from epifalcon.epidemic.cases import CaseMeasure, CaseSource
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.flows import Flows
from epifalcon.mobility.regions import Regions
from epifalcon.models.dcrnn import Dcrnn, FlowGraph, flow_graph
from epifalcon.models.person_model import ADAM
from epifalcon.models.settings import RegionSettings, TrainingSettings
from epifalcon.models.tensor_files import read_tensors, write_tensors
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, build
from epifalcon.store import pack_strings
from epifalcon.types import Floats

WINDOW_DAYS: Final = 3
"""Length of the window of ``GruRegionModel``, in days."""
_KIND = "region-model"
_PARAMETERS = "parameters.safetensors"
_NOT_FITTED = "the region model is not fitted yet: call fit first"
_MOST = 20.0
"""Upper bound of log(1 + forecast): no region has e^20 cases."""


@dataclass(frozen=True, eq=False)
class RegionHistory:
    """Inputs of a region model: flows and cases of the same days."""

    flows: Flows
    cases: Floats
    """Cases, (regions, days), non-negative."""
    source: CaseSource = "reported"
    """Cases counted: "reported" (tested people only) or "all" (including held-out
    people)."""
    measure: CaseMeasure = "count"
    """Unit of ``cases``: "count" for cases, "share" for cases per 100 visitors,
    "presence" for slots spent by cases."""

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
        """Return the flow graph of each day, excluding people who stayed in place."""
        return tuple(flow_graph(self.flows.moves(day)) for day in range(self.days))


@dataclass(frozen=True)
class Scaling:
    """Conversion of counts to network inputs and back, fitted on the training days."""

    cases: float
    """Root mean square of log(1 + cases) over nonzero cases."""
    visitors: tuple[float, float] | None
    """Mean and standard deviation of log(1 + visitors); None if not used."""

    @classmethod
    def of(cls, history: RegionHistory, days: int, visitors: bool) -> "Scaling":
        """Fit the scaling to the first ``days`` days."""
        logs = np.log1p(history.cases[:, :days])
        size = math.sqrt(float(np.mean(logs[logs > 0] ** 2))) if logs.any() else 1.0
        if not visitors:
            return cls(size, None)
        crowd = np.log1p(history.flows.visitors[:days])
        return cls(size, (float(crowd.mean()), float(crowd.std()) or 1.0))

    @property
    def channels(self) -> int:
        """Return the number of network inputs per region and day."""
        return 2 if self.visitors is None else 3

    def inputs(self, history: RegionHistory) -> Tensor:
        """Return cases, their mean so far and visitors, (days, regions, channels)."""
        cases = np.log1p(history.cases.T) / self.cases
        days = np.arange(1, history.days + 1)[:, None]
        channels = [cases, np.cumsum(cases, axis=0) / days]
        if self.visitors is not None:
            mean, deviation = self.visitors
            channels.append((np.log1p(history.flows.visitors) - mean) / deviation)
        return torch.from_numpy(np.stack(channels, axis=2).astype(np.float32))

    def counts(self, outputs: Tensor) -> Floats:
        """Convert network outputs to non-negative counts."""
        logs = outputs.double().mul(self.cases).clamp(0.0, _MOST)
        return torch.expm1(logs).numpy()


@dataclass(frozen=True)
class FitRecord:
    """Losses of each training step, on the scale of the network."""

    training: tuple[float, ...]
    validation: tuple[float, ...]
    """Validation error of the parameters before each step."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Inputs and graphs of all days, split into training and validation days."""

    inputs: Tensor
    graphs: Sequence[FlowGraph]
    first_validation_day: int
    settings: TrainingSettings

    def error(self, model: Dcrnn, state: Tensor, origin: int, targets: range) -> Tensor:
        """Compute the mean squared error over regions, summed over target days."""
        ahead = model.decode(
            state, self.inputs[origin], self.graphs[origin], targets.stop - 1 - origin
        )
        truth = self.inputs[:, :, 0][targets.start : targets.stop].T
        forecast = ahead[:, targets.start - origin - 1 :]
        return (forecast - truth).square().mean(dim=0).sum()

    def targets(self, origin: int, *, validation: bool) -> range:
        """Return the training or validation days to forecast from ``origin``."""
        border, horizon = self.first_validation_day, self.settings.horizon
        if validation:
            last = min(origin + horizon, len(self.inputs) - 1)
            return range(max(origin + 1, border), last + 1)
        return range(origin + 1, min(origin + horizon, border - 1) + 1)

    @cached_property
    def origins(self) -> tuple[int, ...]:
        """Return training days with a case within the horizon; all days if none has."""
        border, ahead = self.first_validation_day, self.settings.horizon
        busy = self.inputs[:border, :, 0].any(dim=1)
        days = range(border - 1)
        some = tuple(day for day in days if busy[day : day + 1 + ahead].any())
        return some or tuple(days)

    def draw(self, generator: torch.Generator) -> list[int]:
        """Draw the forecast origins of one training step, ascending."""
        mixed = torch.randperm(len(self.origins), generator=generator).tolist()
        drawn = mixed[: self.settings.origins_per_step]
        return sorted(self.origins[place] for place in drawn)


class _Adam:
    """Adam optimiser; ``torch.optim.Adam`` would import torch's compiler (1.5 s)."""

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self._values, self._rate = list(parameters), learning_rate
        moments = [[torch.zeros_like(value) for value in self._values] for _ in "mv"]
        self._state: Any = (*moments, [], [torch.tensor(0.0) for _ in self._values])

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters from their gradients."""
        gradients = [value.grad for value in self._values if value.grad is not None]
        rule = ADAM | {"lr": self._rate, "weight_decay": 0.0, "foreach": False}
        adam(self._values, gradients, *self._state, **rule)


def train(
    network: Dcrnn, data: TrainingData, generator: torch.Generator, progress: Progress
) -> FitRecord:
    """Train with Adam and early stopping; load the best parameters into ``network``."""
    settings = data.settings
    optimiser = _Adam(network.parameters(), settings.learning_rate)
    training: list[float] = []
    validation: list[float] = []
    best, best_step, parameters = math.inf, 0, copy.deepcopy(network.state_dict())
    for step in range(settings.steps):
        network.zero_grad()
        loss, states = _accumulate_gradient(network, data, data.draw(generator))
        error = _validate(network, data, states)
        if not (math.isfinite(loss) and math.isfinite(error)):
            raise SettingsError(
                f"learning_rate={settings.learning_rate} is too large: the loss of "
                f"the region model is {loss} at step {step}, {error} in validation"
            )
        training.append(loss)
        validation.append(error)
        if error < best:
            best, best_step = error, step
            parameters = copy.deepcopy(network.state_dict())
        elif step - best_step >= settings.patience:
            break
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.gradient_clip)
        optimiser.step()
        progress("region model", step + 1, settings.steps)
    progress("region model", settings.steps, settings.steps)
    network.load_state_dict(parameters)
    return FitRecord(tuple(training), tuple(validation))


def _accumulate_gradient(
    network: Dcrnn, data: TrainingData, origins: Sequence[int]
) -> tuple[float, list[Tensor]]:
    """Accumulate the gradient of the error of forecasts from ``origins``.

    Returns the error and the detached states of all possible training origins.
    """
    days = data.first_validation_day - 1
    states = network.encoder.states(data.inputs[:days], data.graphs[:days])
    # Backpropagate each origin to its state, to hold one decoder graph in memory.
    leaves = {day: states[day].detach().requires_grad_() for day in origins}
    pairs = sum(len(data.targets(day, validation=False)) for day in origins)
    total = 0.0
    for day, leaf in leaves.items():
        targets = data.targets(day, validation=False)
        error = data.error(network, leaf, day, targets) / pairs
        error.backward()  # type: ignore[no-untyped-call]
        total += error.item()
    gradients = [leaf.grad for leaf in leaves.values()]
    torch.autograd.backward([states[day] for day in leaves], gradients)
    return total, [state.detach() for state in states]


def _validate(network: Dcrnn, data: TrainingData, states: Sequence[Tensor]) -> float:
    """Compute the validation error; ``states`` are the encoder states of training."""
    known, days = len(states), len(data.inputs) - 1
    total, pairs = 0.0, 0
    with torch.no_grad():
        rest = slice(known, days)
        later = network.encoder.states(data.inputs[rest], data.graphs[rest], states[-1])
        for origin, state in enumerate([*states, *later]):
            targets = data.targets(origin, validation=True)
            if targets:
                total += data.error(network, state, origin, targets).item()
                pairs += len(targets)
    return total / pairs


class DcrnnRegionModel:
    """Region model of the paper, a DCRNN.

    A fitted model applies to any history of the same regions and the same kind of
    cases, with other people or another number of days.
    """

    def __init__(self, settings: RegionSettings) -> None:
        self._settings = settings.network
        self.training: TrainingSettings = settings.training
        self._network: Dcrnn | None = None
        self._scaling: Scaling

    def fit(
        self,
        history: RegionHistory,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> FitRecord:
        """Train from new random parameters; equal generators give equal models."""
        settings = self.training
        first = settings.first_validation_day(history.days)
        scaling = Scaling.of(history, first, settings.visitors)
        network = Dcrnn(scaling.channels, self._settings, generator)
        data = TrainingData(scaling.inputs(history), history.graphs, first, settings)
        record = train(network, data, generator, progress)
        self._network, self._scaling = network, scaling
        return record

    def states(self, history: RegionHistory) -> NDArray[np.float32]:
        """Return the states of the encoder, (regions, days, width)."""
        network = present(self._network, _NOT_FITTED)
        inputs = self._scaling.inputs(history)
        with torch.no_grad():
            states = network.encoder.states(inputs, history.graphs)
        return torch.stack(states, dim=1).numpy()

    def forecast(self, history: RegionHistory, origins: Sequence[int]) -> Floats:
        """Forecast cases (origins, regions, horizon) from days up to each origin."""
        network, horizon = present(self._network, _NOT_FITTED), self.training.horizon
        days = max(origins, default=-1) + 1
        inputs = self._scaling.inputs(history)[:days]
        forecasts = np.zeros((len(origins), history.regions, horizon))
        with torch.no_grad():
            states = network.encoder.states(inputs, history.graphs[:days])
            for row, day in enumerate(origins):
                graph = history.graphs[day]
                ahead = network.decode(states[day], inputs[day], graph, horizon)
                forecasts[row] = self._scaling.counts(ahead)
        return forecasts

    def save(self, folder: Path, regions: Regions, origin: store.Origin) -> None:
        """Write the fitted model and a fingerprint of ``regions`` into ``folder``."""
        fitted, network = present(self._network, _NOT_FITTED), as_plain(self._settings)
        network = {"name": network.pop("kind"), **network}
        meta = {
            "model": {"network": network, "training": as_plain(self.training)},
            "scaling": as_plain(self._scaling),
            "regions": len(regions),
            "regions_sha256": regions_sha256(regions),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / _PARAMETERS, fitted.state_dict())
        store.write_manifest(folder, _KIND, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, regions: Regions) -> "DcrnnRegionModel":
        """Read a model written by ``save``.

        Raises ``DataError`` if the folder has no model, or a model of another city or
        version, and ``CorruptFileError`` if a file has changed.
        """
        meta = store.read(folder, _KIND).meta
        if meta["regions_sha256"] != regions_sha256(regions):
            raise DataError(
                f"{folder}: this region model belongs to another city, of "
                f"{meta['regions']} regions: fit the region model again"
            )
        network = dict(meta["model"]["network"])
        network = {"kind": network.pop("name"), **network}
        try:
            settings = build(RegionSettings, {**meta["model"], "network": network})
        except SettingsError as error:
            raise DataError(
                f"{folder}: written by another version of epifalcon: {error}"
            ) from None
        scaling = build(Scaling, meta["scaling"])
        dcrnn = Dcrnn(scaling.channels, settings.network, torch.Generator())
        dcrnn.load_state_dict(read_tensors(folder / _PARAMETERS))
        model = cls(settings)
        model._network, model._scaling = dcrnn, scaling
        return model


def regions_sha256(regions: Regions) -> str:
    """Compute a fingerprint of a city's regions: their number, order and location.

    It covers longitude and latitude if known, plane coordinates otherwise, and names
    only if some location is unknown. Visits do not affect it.
    """
    placed = regions.centre_km if regions.lonlat is None else regions.lonlat
    arrays: list[NDArray[Any]] = [placed]
    if not regions.placed and regions.names is not None:
        arrays += pack_strings("name", regions.names).values()
    digest = hashlib.sha256()
    for array in arrays:
        kind = "<i8" if np.issubdtype(array.dtype, np.integer) else "<f8"
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return digest.hexdigest()


class GruRegionModel:
    """Region model of the authors' program: a GRU cell and a linear readout.

    Provided for comparison with the paper. The program uses a graph network, but with
    Chebyshev order 1, so regions do not interact. The state of a day is computed from
    zero over a window of three days. The inputs are not scaled, Adam has a learning
    rate of 0.1, and gradients are never reset, so they accumulate over all steps. The
    states saturate: they encode little more than whether an infectious person was
    present.
    """

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
        optimiser = _Adam(parameters, settings.learning_rate)
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
            # The program does not call zero_grad: gradients accumulate over steps.
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
            progress("region model", step + 1, settings.steps)
        return FitRecord(tuple(losses), ())

    def states(self, history: RegionHistory) -> NDArray[np.float32]:
        """Return states (regions, days, width), zero on days without a full window."""
        states = np.zeros((history.regions, history.days, self._width), np.float32)
        inputs = _inputs(history.cases)
        with torch.no_grad():
            for day in range(WINDOW_DAYS - 1, history.days):
                states[:, day] = self._state(inputs, day).numpy()
        return states

    def forecast(self, history: RegionHistory, origins: Sequence[int]) -> Floats:
        """Forecast cases day by day from each origin: (origins, regions, horizon)."""
        horizon = self.training.horizon
        forecasts = np.zeros((len(origins), history.regions, horizon))
        with torch.no_grad():
            for row, origin in enumerate(origins):
                inputs = _inputs(history.cases[:, : origin + 1])
                for ahead in range(horizon):
                    value = self._next(self._state(inputs, len(inputs) - 1)).clamp(0)
                    forecasts[row, :, ahead] = value[:, 0].numpy()
                    inputs = torch.cat([inputs, value[None]])
        return forecasts

    def _state(self, inputs: Tensor, day: int) -> Tensor:
        """Return the state (regions, width) after the window that ends with ``day``."""
        cell, state = present(self._cell, _NOT_FITTED), None
        for x in inputs[max(day - WINDOW_DAYS + 1, 0) : day + 1]:
            state = cell(x, state)
        return state  # type: ignore[return-value]

    def _next(self, state: Tensor) -> Tensor:
        """Forecast the next day's cases, (regions, 1)."""
        return self._readout(functional.relu(state))


def _inputs(cases: Floats) -> Tensor:
    """Return raw cases as (days, regions, 1) float32, without log or scaling."""
    return torch.from_numpy(np.ascontiguousarray(cases.T, np.float32))[:, :, None]
