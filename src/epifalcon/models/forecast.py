"""How well a region model foretells cases, beside four rivals that learn nothing.

A result of its own: a region model that does not beat "tomorrow is like today"
has little to tell the person model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from epifalcon.errors import DataError
from epifalcon.models.region_model import RegionHistory, RegionModel
from epifalcon.types import Floats

LINE_DAYS = 7
"""The line is laid through a week, so that the rival is not thrown by one day."""

_TINY = 1e-300


@dataclass(frozen=True)
class ForecastScore:
    """Mean errors of one method per region and day, by days ahead."""

    mae: tuple[float, ...]
    rmse: tuple[float, ...]


@dataclass(frozen=True)
class ForecastReport:
    """Errors of the model and its rivals on the same days and regions."""

    source: str
    """"reported" or "all": which cases were given and foretold."""
    measure: str
    """Unit of the errors: "count", cases; "share", cases per 100 visitors;
    "presence", slots spent by cases."""
    days: tuple[int, int]
    """First and last day foretold; none of them was trained on."""
    regions: int
    mean_cases: float
    """Mean of what was to be foretold, to judge the errors by."""
    scores: dict[str, ForecastScore]
    """``model``, ``last``, ``line``, ``mean`` and ``city``."""

    def as_plain(self) -> dict[str, Any]:
        """The report as a mapping that JSON can hold."""
        return {
            "source": self.source,
            "measure": self.measure,
            "days": list(self.days),
            "regions": self.regions,
            "mean_cases": self.mean_cases,
            "scores": {
                name: {"mae": list(score.mae), "rmse": list(score.rmse)}
                for name, score in self.scores.items()
            },
        }


def last_value(past: Floats, ahead: int) -> Floats:
    """The last day again: (regions, days) to (regions, ahead)."""
    return np.repeat(past[:, -1:], ahead, axis=1)


def mean_value(past: Floats, ahead: int) -> Floats:
    """The mean of all days so far: (regions, days) to (regions, ahead)."""
    return np.repeat(past.mean(axis=1, keepdims=True), ahead, axis=1)


def line(past: Floats, ahead: int) -> Floats:
    """The least-squares line through the last week, never below 0.

    (regions, days) to (regions, ahead); a single day goes on as it is.
    """
    return _straight_on(past[:, -LINE_DAYS:], ahead).clip(min=0.0)


def _straight_on(recent: Floats, ahead: int) -> Floats:
    """The least-squares line through each row, for the next ``ahead`` places."""
    day = np.arange(recent.shape[1], dtype=np.float64)
    spread = day - day.mean()
    scale = float(spread @ spread)
    slope = recent @ spread / scale if scale else np.zeros(len(recent))
    later = recent.shape[1] + np.arange(ahead) - day.mean()
    told: Floats = recent.mean(axis=1, keepdims=True) + np.outer(slope, later)
    return told


def city_trend(past: Floats, ahead: int) -> Floats:
    """Each region's part of all cases so far, of a city that grows as it did.

    (regions, days) to (regions, ahead). The city's cases go on along the
    least-squares line through their logarithms in the last week. This is the
    rival for cases with a curve that all regions share; without one it is
    nearly ``mean_value``.
    """
    total = past.sum(axis=0)
    part = past.sum(axis=1) / max(total.sum(), _TINY)
    logs = np.log(np.maximum(total, _TINY))[None, -LINE_DAYS:]
    if logs.min() <= np.log(_TINY):
        return mean_value(past, ahead)
    told: Floats = np.outer(part, np.exp(_straight_on(logs, ahead)[0]))
    return told


RIVALS: dict[str, Callable[[Floats, int], Floats]] = {
    "last": last_value,
    "line": line,
    "mean": mean_value,
    "city": city_trend,
}


def judge(model: RegionModel, history: RegionHistory) -> ForecastReport:
    """Errors on the validation days of a model that was fitted to ``history``.

    Every method is asked for the same days, 1 to ``horizon`` days ahead, and
    sees only what came before the day it forecasts from. These days chose the
    step at which training stopped, which flatters the model a little.
    """
    training = model.training
    first, ahead = training.first_validation_day(history.days), training.horizon
    origins = range(first - ahead, history.days - 1)
    told = {"model": model.forecast(history, origins)}
    wanted = (len(origins), history.regions, ahead)
    if told["model"].shape != wanted:
        raise DataError(f"forecast has shape {told['model'].shape}, expected {wanted}")
    for name, rival in RIVALS.items():
        told[name] = np.stack(
            [rival(history.cases[:, : origin + 1], ahead) for origin in origins]
        )
    truth = history.cases[:, first:].T
    return ForecastReport(
        source=history.source,
        measure=history.measure,
        days=(first, history.days - 1),
        regions=history.regions,
        mean_cases=float(truth.mean()),
        scores={name: _score(values, truth) for name, values in told.items()},
    )


def _score(told: Floats, truth: Floats) -> ForecastScore:
    """Errors by days ahead; row i of ``told`` is from i days after the first origin."""
    days, ahead = len(truth), told.shape[2]
    mae, rmse = [], []
    for lead in range(1, ahead + 1):
        start = ahead - lead
        error = told[start : start + days, :, lead - 1] - truth
        mae.append(float(np.abs(error).mean()))
        rmse.append(float(np.sqrt(np.square(error).mean())))
    return ForecastScore(tuple(mae), tuple(rmse))
