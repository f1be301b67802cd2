"""Mobility statistics of any traces, with the bands a believable city keeps.

Works on synthetic and imported traces alike, with gaps (-1), with one person,
one region or one day, and with regions whose place is not known: a statistic
that cannot be computed is NaN and neither holds nor fails.
"""

from dataclasses import dataclass

import numpy as np

from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.mobility.validity.bands import (
    BANDS,
    LEAST_OBSERVED,
    NEEDS_OBSERVATION,
    Band,
)
from epifalcon.mobility.validity.crowds import Crowds, gini, measure_crowds
from epifalcon.mobility.validity.lives import Lives, measure_lives
from epifalcon.mobility.validity.moves import (
    Moves,
    jump_exponent,
    measure_moves,
    stay_exponent,
)
from epifalcon.mobility.validity.sample import Sample, take_sample
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Floats

_ZIPF_RANKS = 10
_BINS = 30


@dataclass(frozen=True)
class Statistic:
    """One value with the band it should lie in.

    ``holds`` is None where there is no value, or where so few slots were
    observed that the band says nothing about it.
    """

    name: str
    value: float
    low: float
    high: float
    holds: bool | None
    unit: str
    source: str


@dataclass(frozen=True, eq=False)
class Curve:
    """A line to draw: ``x`` and ``y`` (points,) with their labels."""

    name: str
    x: Floats
    y: Floats
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, eq=False)
class MobilityStatistics:
    """What ``measure`` found: single values in bands, and curves to plot."""

    statistics: tuple[Statistic, ...]
    curves: tuple[Curve, ...]

    def value(self, name: str) -> float:
        """The value of the statistic called ``name``."""
        return next(item.value for item in self.statistics if item.name == name)

    def curve(self, name: str) -> Curve:
        """The curve called ``name``."""
        return next(item for item in self.curves if item.name == name)


def measure(traces: Traces, progress: Progress = silent) -> MobilityStatistics:
    """Measure the mobility statistics of ``traces`` and judge them by their bands.

    Large cities are measured on 20,000 evenly spaced people, predictability on
    up to 2,000, crowds on everybody during up to 14 days.
    """
    progress("statistics", 0, 4)
    sample = take_sample(traces)
    progress("statistics", 1, 4)
    lives = measure_lives(sample)
    progress("statistics", 2, 4)
    moves = measure_moves(sample)
    progress("statistics", 3, 4)
    crowds = measure_crowds(traces)
    at_home = _at_home(sample)
    progress("statistics", 4, 4)
    values = {
        **_life_values(lives, sample),
        **_move_values(moves, traces.clock),
        **_crowd_values(crowds),
        **_home_values(at_home, traces.clock),
    }
    found = tuple(
        _judge(band, values[band.name], traces.observed_share)
        for band in BANDS[traces.regions.kind]
    )
    curves = (
        *_life_curves(lives, traces.clock),
        *_move_curves(moves, traces.clock),
        _lorenz(crowds),
        _home_curve(at_home, traces.clock),
    )
    return MobilityStatistics(found, curves)


def _judge(band: Band, value: float, observed: float) -> Statistic:
    holds: bool | None = bool(band.low <= value <= band.high)
    source = band.source
    if observed < LEAST_OBSERVED and band.name in NEEDS_OBSERVATION:
        holds = None
        source = f"not judged, only {observed:.0%} of slots observed; {source}"
    if np.isnan(value):
        holds = None
    return Statistic(band.name, value, band.low, band.high, holds, band.unit, source)


def _life_values(lives: Lives, sample: Sample) -> dict[str, float]:
    radius = lives.radius_km[np.isfinite(lives.radius_km)]
    entropy = lives.entropy_bits[np.isfinite(lives.entropy_bits)]
    daily = _distinct_by_day(lives, sample.clock)
    return {
        **_quantiles("radius_of_gyration", radius),
        "distinct_1d": _after(daily, 1),
        "distinct_7d": _after(daily, 7),
        "distinct_14d": _after(daily, 14),
        "distinct_exponent": _growth(daily),
        "zipf_exponent": _zipf(lives.rank_share),
        "entropy": _mean(entropy),
        "predictability": _mean(lives.predictability),
    }


def _move_values(moves: Moves, clock: Clock) -> dict[str, float]:
    hours = clock.slot_minutes / 60
    return {
        "jump_exponent": jump_exponent(moves),
        "stay_exponent": stay_exponent(moves, hours),
        "stay_away_mean": _mean(moves.stay_slots[moves.away] * hours),
        **_quantiles("commute", moves.commute_km),
    }


def _crowd_values(crowds: Crowds) -> dict[str, float]:
    ordered = np.sort(crowds.occupancy)[::-1]
    top = ordered[: max(1, round(len(ordered) / 100))].sum()
    total = ordered.sum()
    return {
        "copresence": crowds.inverse_size,
        "share_alone": crowds.alone,
        "occupancy_gini": gini(crowds.occupancy),
        "occupancy_top_1pct": float(top / total) if total > 0 else float("nan"),
    }


def _at_home(sample: Sample) -> Floats:
    """Share of observed people who are at home, by slot of the day; NaN if none."""
    seen = (sample.by_person != UNKNOWN).sum(axis=0)
    home = (sample.by_person == sample.home[:, None]) & (sample.by_person != UNKNOWN)
    shape = (sample.clock.days, sample.clock.slots_per_day)
    total = seen.reshape(shape).sum(axis=0)
    share = np.full(shape[1], np.nan)
    at_home = home.sum(axis=0).reshape(shape).sum(axis=0)
    np.divide(at_home, total, out=share, where=total > 0)
    return share


def _home_values(at_home: Floats, clock: Clock) -> dict[str, float]:
    middle = (np.arange(clock.slots_per_day) + 0.5) * clock.slot_minutes / 60
    known = np.isfinite(at_home)
    return {
        "at_home_night": _mean(at_home[known & (middle >= 2) & (middle < 5)]),
        "at_home_midday": _mean(at_home[known & (middle >= 11) & (middle < 16)]),
    }


def _quantiles(name: str, values: Floats) -> dict[str, float]:
    names = [f"{name}_q10", f"{name}_median", f"{name}_q90"]
    if len(values) == 0:
        return dict.fromkeys(names, float("nan"))
    found = np.quantile(values, [0.1, 0.5, 0.9])
    return dict(zip(names, map(float, found), strict=True))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _distinct_by_day(lives: Lives, clock: Clock) -> Floats:
    """Mean number of distinct regions at the end of each day (days,)."""
    return lives.distinct[clock.slots_per_day - 1 :: clock.slots_per_day]


def _after(daily: Floats, days: int) -> float:
    if len(daily) < days or daily[-1] <= 0:
        return float("nan")
    return float(daily[days - 1])


def _growth(daily: Floats) -> float:
    """Slope of log S(t) over log t from one day on, at evenly spaced log t."""
    if len(daily) < 3 or daily[0] <= 0:
        return float("nan")
    day = np.unique(np.rint(np.geomspace(1, len(daily), 12)).astype(int))
    return float(np.polyfit(np.log(day), np.log(daily[day - 1]), 1)[0])


def _zipf(rank_share: Floats) -> float:
    """Minus the slope of log share over log rank for ranks 1 to 10."""
    share = rank_share[:_ZIPF_RANKS]
    share = share[share > 0]
    if len(share) < 3:
        return float("nan")
    rank = np.arange(1, len(share) + 1)
    return float(-np.polyfit(np.log(rank), np.log(share), 1)[0])


def _life_curves(lives: Lives, clock: Clock) -> tuple[Curve, ...]:
    ranked = np.flatnonzero(lives.rank_share > 0)
    daily = _distinct_by_day(lives, clock)
    day = np.arange(1, len(daily) + 1, dtype=float)
    return (
        _spread("radius_of_gyration", lives.radius_km, "radius of gyration (km)"),
        Curve("distinct", day, daily, "days", "distinct regions", True, True),
        Curve(
            "zipf",
            np.asarray(ranked + 1, dtype=np.float64),
            lives.rank_share[ranked],
            "rank of the region",
            "share of time",
            True,
            True,
        ),
        _spread("entropy", lives.entropy_bits, "entropy (bits)"),
        _spread("predictability", lives.predictability, "predictability"),
    )


def _spread(name: str, values: Floats, label: str) -> Curve:
    """The share of people at or below each value, in 101 steps."""
    values = values[np.isfinite(values)]
    share = np.linspace(0, 1, 101)
    x = np.quantile(values, share) if len(values) else np.full(101, np.nan)
    return Curve(name, np.asarray(x, float), share, label, "share of people")


def _move_curves(moves: Moves, clock: Clock) -> tuple[Curve, ...]:
    jump_km, density = _log_density(moves.jump_km[moves.jump_km > 0])
    lengths = np.bincount(moves.stay_slots)
    hours = np.flatnonzero(lengths)
    share = lengths[hours] / max(1, lengths.sum())
    jumps = Curve("jumps", jump_km, density, "jump (km)", "density", True, True)
    stay_hours = hours * clock.slot_minutes / 60
    stays = Curve(
        "stays", stay_hours, share, "stay (hours)", "share of stays", True, True
    )
    return jumps, stays


def _log_density(values: Floats) -> tuple[Floats, Floats]:
    if len(values) == 0 or values.min() == values.max():
        return np.empty(0), np.empty(0)
    edges = np.geomspace(values.min(), values.max() * 1.0001, _BINS + 1)
    count, _ = np.histogram(values, edges)
    density = count / np.diff(edges) / len(values)
    middle = np.sqrt(edges[1:] * edges[:-1])
    return middle[count > 0], density[count > 0]


def _lorenz(crowds: Crowds) -> Curve:
    amount = np.sort(crowds.occupancy)
    share = np.append(0.0, np.cumsum(amount) / max(amount.sum(), 1e-300))
    position = np.linspace(0, 1, len(share))
    grid = np.linspace(0, 1, 201)
    return Curve(
        "occupancy",
        grid,
        np.interp(grid, position, share),
        "share of regions",
        "share of people",
    )


def _home_curve(at_home: Floats, clock: Clock) -> Curve:
    hour = np.arange(clock.slots_per_day) * clock.slot_minutes / 60
    return Curve("at_home", hour, at_home, "hour of the day", "share at home")
