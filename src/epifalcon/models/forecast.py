"""Forecast errors of a region model and of four simple baselines.

A region model that does not beat persistence (tomorrow equals today) adds little to
the person model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from epifalcon.models.region_model import (
    DcrnnRegionModel,
    GruRegionModel,
    RegionHistory,
)
from epifalcon.types import Floats

LINE_DAYS = 7
_TINY = 1e-300


@dataclass(frozen=True)
class ForecastScore:
    """Errors of one method, averaged over regions and days, by days ahead."""

    mae: list[float]
    rmse: list[float]


@dataclass(frozen=True)
class ForecastReport:
    """Errors of the model and the baselines on the same days and regions."""

    source: str
    """Cases used as input and target: "reported" or "all"."""
    measure: str
    """Unit of the errors: "count" for cases, "share" for cases per 100 visitors,
    "presence" for slots spent by cases."""
    days: list[int]
    """First and last forecast day; training used none of these days."""
    regions: int
    mean_cases: float
    """Mean of the true values, as a scale for the errors."""
    scores: dict[str, ForecastScore]
    """Scores by method: ``model``, ``last``, ``line``, ``mean`` and ``city``."""


def mean_value(past: Floats, ahead: int) -> Floats:
    """Repeat the mean of all days so far: map (regions, days) to (regions, ahead)."""
    return np.repeat(past.mean(axis=1, keepdims=True), ahead, axis=1)


def line(past: Floats, ahead: int) -> Floats:
    """Extrapolate the least-squares line through the last week, clipped at 0."""
    return _extended(past[:, -LINE_DAYS:], ahead).clip(min=0.0)


def _extended(recent: Floats, ahead: int) -> Floats:
    """Extrapolate the least-squares line through each row by ``ahead`` days."""
    day = np.arange(recent.shape[1], dtype=np.float64)
    spread = day - day.mean()
    scale = float(spread @ spread)
    slope = recent @ spread / scale if scale else np.zeros(len(recent))
    later = recent.shape[1] + np.arange(ahead) - day.mean()
    return recent.mean(axis=1, keepdims=True) + np.outer(slope, later)


def city_trend(past: Floats, ahead: int) -> Floats:
    """Distribute the city's trend over regions by their shares of all cases so far.

    The trend is the least-squares line through the log cases of the city in the last
    week; if a day has no cases, the result is ``mean_value``.
    """
    total = past.sum(axis=0)
    part = past.sum(axis=1) / max(total.sum(), _TINY)
    logs = np.log(np.maximum(total, _TINY))[None, -LINE_DAYS:]
    if logs.min() <= np.log(_TINY):
        return mean_value(past, ahead)
    return np.outer(part, np.exp(_extended(logs, ahead)[0]))


BASELINES: dict[str, Callable[[Floats, int], Floats]] = {
    "last": lambda past, ahead: np.repeat(past[:, -1:], ahead, axis=1),
    "line": line,
    "mean": mean_value,
    "city": city_trend,
}


def forecast_errors(
    model: DcrnnRegionModel | GruRegionModel, history: RegionHistory
) -> ForecastReport:
    """Compute forecast errors of a model fitted to ``history`` on the validation days.

    All methods forecast the same days, 1 to ``horizon`` days ahead, from earlier days
    only. The validation days were used for early stopping, which slightly favours the
    model.
    """
    training = model.training
    first, ahead = training.first_validation_day(history.days), training.horizon
    origins = range(first - ahead, history.days - 1)
    forecasts = {"model": model.forecast(history, origins)}
    for name, baseline in BASELINES.items():
        pasts = (history.cases[:, : origin + 1] for origin in origins)
        forecasts[name] = np.stack([baseline(past, ahead) for past in pasts])
    truth = history.cases[:, first:].T
    return ForecastReport(
        source=history.source,
        measure=history.measure,
        days=[first, history.days - 1],
        regions=history.regions,
        mean_cases=float(truth.mean()),
        scores={name: _score(values, truth) for name, values in forecasts.items()},
    )


def _score(forecast: Floats, truth: Floats) -> ForecastScore:
    """Compute errors by days ahead; forecast i starts i days after the first origin."""
    days, ahead = len(truth), forecast.shape[2]
    ends = range(ahead - 1, -1, -1)
    errors = [forecast[k : k + days, :, ahead - 1 - k] - truth for k in ends]
    return ForecastScore(
        mae=[float(np.abs(error).mean()) for error in errors],
        rmse=[float(np.sqrt(np.square(error).mean())) for error in errors],
    )
