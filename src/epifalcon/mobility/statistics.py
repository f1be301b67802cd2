"""Mobility statistics of any traces, compared with the ranges of realistic cities.

A statistic that cannot be computed, for example without known locations, is NaN and
is not compared. The ranges hold for slots of two hours over a fortnight or
longer. They separate a city from a random walk, not one city from another.

Radius of gyration: González et al., Nature 2008. Predictability: Song et al., Science
2010: the entropy rate by Lempel and Ziv's match lengths, and Fano's bound from it.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import numpy as np
import polars as pl
from scipy.optimize import brentq, minimize_scalar
from scipy.spatial import cKDTree
from scipy.special import entr

from epifalcon._numba import njit
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Counts, Floats, Mask, RegionIds

_SAMPLE_PEOPLE, _SAMPLE_CELLS = 20_000, 40_000_000
_NIGHT, _OFFICE = (0.0, 6.0), (9.0, 17.0)
_WORK_SHARE = 0.2
_CROWD_DAYS = 14
_RANKS, _ZIPF_RANKS, _BINS = 50, 10, 30
_LEAST_MOVES = 50
_SHORTEST_JUMP_KM, _LONGEST_STAY_HOURS = 1.0, 17.0
# Predictability: maximum slots and people, minimum observations.
_ORDER_SLOTS, _ORDER_PEOPLE, _ORDER_LEAST = 1_000, 2_000, 24
_ORDER_WORK = 300_000_000

_FILE = resources.files("epifalcon.mobility") / "statistics.toml"
DEFINITIONS: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    _FILE.read_text(encoding="utf-8")
)
"""What each statistic is, its unit, range and source, in the order of tables."""
_LEAST_OBSERVED = 0.8


@dataclass(frozen=True)
class Statistic:
    """Mobility statistic with the range of realistic values.

    ``holds`` is None if there is no value, or if too few slots were observed for
    the range to apply.
    """

    name: str
    value: float
    low: float
    high: float
    holds: bool | None
    unit: str
    source: str


@dataclass(frozen=True, eq=False)
class StatisticCurve:
    """Curve to plot: ``x`` and ``y`` (points,) with axis labels."""

    name: str
    x: Floats
    y: Floats
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, eq=False)
class MobilityStatistics:
    """Result of ``measure``: statistics with their ranges, and curves."""

    statistics: tuple[Statistic, ...]
    curves: tuple[StatisticCurve, ...]

    def value(self, name: str) -> float:
        """Return the value of the statistic called ``name``."""
        return next(item.value for item in self.statistics if item.name == name)

    def curve(self, name: str) -> StatisticCurve:
        """Return the curve called ``name``."""
        return next(item for item in self.curves if item.name == name)


def measure(traces: Traces, progress: Progress = silent) -> MobilityStatistics:
    """Compute the mobility statistics of ``traces`` and compare them with ranges.

    Large cities are measured on 20,000 evenly spaced people, predictability on up
    to 2,000, crowds on everybody during up to 14 days. Days after the last visit are
    left out.
    """
    traces = traces.with_days(traces.observed_days)
    values: dict[str, float] = {}
    curves: list[StatisticCurve] = []
    sample = _take_sample(traces)
    progress("statistics", 1, 4)
    _measure_people(sample, values, curves)
    progress("statistics", 2, 4)
    _measure_moves(sample, values, curves)
    progress("statistics", 3, 4)
    _measure_crowds(traces, values, curves)
    _measure_time_at_home(sample, values, curves)
    progress("statistics", 4, 4)
    return MobilityStatistics(tuple(_compare(traces, values)), tuple(curves))


def home_regions(traces: Traces) -> RegionIds:
    """Find the region in which each person spends most night slots: (people,).

    Uses the most frequent region of any hour if no night was observed; -1 for people
    who were never observed. Works in blocks of people to limit memory.
    """
    blocks = []
    for first in range(0, traces.people, _SAMPLE_PEOPLE):
        by_person = traces.by_person[first : first + _SAMPLE_PEOPLE]
        blocks.append(_homes(_visits(by_person), len(by_person), traces.clock))
    return np.concatenate(blocks)


def _compare(traces: Traces, values: dict[str, float]) -> Iterator[Statistic]:
    observed = traces.observed_share
    kind = "range" if traces.regions.kind == "area" else "poi_range"
    for name, known in DEFINITIONS.items():
        value, source = values[name], known["source"]
        low, high = known.get(kind, known["range"])
        holds = None if math.isnan(value) else low <= value <= high
        if observed < _LEAST_OBSERVED and known.get("biased_by_gaps"):
            holds = None
            source = f"not compared, only {observed:.0%} of slots observed; {source}"
        yield Statistic(name, value, low, high, holds, known.get("unit", ""), source)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Traces of a sample of people, (people, slots), with home and work regions.

    Home and work are (people,), -1 for none. Work is a region other than home in
    which at least a fifth of the slots from 9 to 17 h were spent.
    """

    by_person: RegionIds
    visits: pl.DataFrame
    home: RegionIds
    work: RegionIds
    clock: Clock
    regions: Regions


def _take_sample(traces: Traces) -> _Sample:
    most = min(_SAMPLE_PEOPLE, max(100, _SAMPLE_CELLS // traces.slots))
    chosen = _evenly(traces.people, most)
    by_person = np.ascontiguousarray(traces.by_slot[:, chosen].T, dtype=np.int32)
    visits, clock = _visits(by_person), traces.clock
    home = _homes(visits, len(by_person), clock)
    office = visits.filter(_hours_within(clock, _OFFICE)[visits["slot"]])
    seen = np.bincount(office["person"], minlength=len(by_person))
    away = office.filter(office["region"] != home[office["person"]])
    best = _most_frequent(away)
    best = best.filter(best["count"] >= _WORK_SHARE * seen[best["person"]])
    work = np.full(len(by_person), UNKNOWN, np.int32)
    work[best["person"]] = best["region"]
    return _Sample(by_person, visits, home, work, clock, traces.regions)


def _visits(by_person: RegionIds) -> pl.DataFrame:
    """Return a table of all observations: ``person``, ``slot``, ``region``."""
    person, slot = np.nonzero(by_person != UNKNOWN)
    region = by_person[person, slot]
    return pl.DataFrame({"person": person, "slot": slot, "region": region})


def _homes(visits: pl.DataFrame, people: int, clock: Clock) -> RegionIds:
    home = np.full(people, UNKNOWN, np.int32)
    chosen = visits.filter(_hours_within(clock, _NIGHT)[visits["slot"]])
    for _ in range(2):
        best = _most_frequent(chosen)
        home[best["person"]] = best["region"]
        # The second pass: people without an observed night.
        chosen = visits.filter(home[visits["person"]] == UNKNOWN)
    return home


def _most_frequent(visits: pl.DataFrame) -> pl.DataFrame:
    """Find each person's most visited region; ties go to the first to reach it."""
    groups = visits.group_by("person", "region")
    counted = groups.agg(pl.len().alias("count"), pl.max("slot"))
    order = counted.sort("count", "slot", descending=[True, False])
    return order.unique("person", keep="first", maintain_order=True)


def _hours_within(clock: Clock, span: tuple[float, float]) -> Mask:
    """Return a mask of the slots that begin at an hour within ``span``: (slots,)."""
    hour = np.tile(_slot_hours(clock), clock.days)
    return np.asarray((hour >= span[0]) & (hour < span[1]))


def _slot_hours(clock: Clock) -> Floats:
    """Return the hour at which each slot of the day begins."""
    return np.arange(clock.slots_per_day) * clock.slot_minutes / 60


def _evenly(count: int, most: int) -> Counts:
    """Choose at most ``most`` evenly spaced indices below ``count``."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.int64)


def _measure_people(
    sample: _Sample, values: dict[str, float], curves: list[StatisticCurve]
) -> None:
    """Compute radius of gyration, visited regions, ranks, entropy, predictability."""
    groups = sample.visits.group_by("person", "region")
    places = groups.agg(pl.len().alias("share"), pl.min("slot").alias("first"))
    places = places.sort("person", "region")
    x, y = sample.regions.centre_km[places["region"]].T
    total = pl.col("share").sum().over("person")
    places = places.with_columns(pl.col("share") / total, x=x, y=y)
    off = [pl.col(axis) - (pl.col(axis) * pl.col("share")).sum() for axis in "xy"]
    spread = (pl.col("share") * (off[0] ** 2 + off[1] ** 2)).sum()
    people = places.group_by("person", maintain_order=True).agg(
        radius=spread.sqrt(), entropy=pl.col("share").entropy(2, normalize=False)
    )
    radius, entropy = people["radius"].to_numpy(), people["entropy"].to_numpy()
    order = pl.col("share").rank("ordinal", descending=True).over("person") - 1
    at = places.select(order)["share"]
    ranks = np.bincount(at, places["share"], _RANKS)[:_RANKS] / max(1, len(people))
    distinct = np.bincount(places["first"], minlength=sample.clock.slots).cumsum()
    distinct = distinct / max(1, len(people))
    slots = min(sample.by_person.shape[1], _ORDER_SLOTS)
    most = min(_ORDER_PEOPLE, max(50, _ORDER_WORK // slots**2))
    chosen = _evenly(len(sample.by_person), most)
    rows = (row[row != UNKNOWN] for row in sample.by_person[chosen, :slots])
    rows = (row for row in rows if len(row) >= _ORDER_LEAST)
    bound = np.array([fano(entropy_rate(row), len(np.unique(row))) for row in rows])

    per_day = sample.clock.slots_per_day
    daily = distinct[per_day - 1 :: per_day]
    day = np.arange(1, len(daily) + 1, dtype=float)
    values |= _quantiles("radius_of_gyration", radius[np.isfinite(radius)])
    for wait in (1, 7, 14):
        known = len(daily) >= wait and daily[-1] > 0
        values[f"distinct_{wait}d"] = float(daily[wait - 1]) if known else math.nan
    values["distinct_exponent"] = math.nan
    if len(daily) >= 3 and daily[0] > 0:
        # At evenly spaced log t.
        days = np.unique(np.rint(np.geomspace(1, len(daily), 12)).astype(int))
        values["distinct_exponent"] = _log_slope(days, daily[days - 1])
    share = ranks[:_ZIPF_RANKS][ranks[:_ZIPF_RANKS] > 0]
    values["zipf_exponent"] = -_log_slope(np.arange(1, len(share) + 1), share)
    values["entropy"] = _mean(entropy)
    values["predictability"] = _mean(bound)

    used = np.flatnonzero(ranks > 0)
    rank = np.asarray(used + 1.0, np.float64)
    curves += [
        _spread("radius_of_gyration", radius, "radius of gyration (km)"),
        StatisticCurve("distinct", day, daily, "days", "distinct regions", True, True),
        StatisticCurve(
            "zipf", rank, ranks[used], "rank of the region", "share of time", True, True
        ),
        _spread("entropy", entropy, "entropy (bits)"),
    ]


@njit()
def entropy_rate(row: RegionIds) -> float:
    """Estimate the entropy rate in bits per slot by Lempel-Ziv match lengths.

    It is n log2(n) / sum of l_i, where l_i is one more than the longest match of the
    string from position i with a string that begins and ends before i.
    """
    total = 0
    for here in range(row.size):
        longest = 0
        for before in range(here):
            most = min(row.size - here, here - before)
            length = 0
            while length < most and row[before + length] == row[here + length]:
                length += 1
            longest = max(longest, length)
        total += longest + 1
    return row.size * math.log2(row.size) / total


def fano(bits: float, places: int) -> float:
    """Compute Fano's bound p, which solves bits = H(p) + (1 - p) log2(places - 1)."""
    if places < 2 or bits <= 0.0:
        return 1.0

    def excess(p: float) -> float:
        unsure = float(entr([p, 1 - p]).sum()) / math.log(2)
        return unsure + (1 - p) * math.log2(places - 1) - bits

    low = 1 / places
    return low if excess(low) <= 0 else float(brentq(excess, low, 1.0, xtol=1e-15))


def _measure_moves(
    sample: _Sample, values: dict[str, float], curves: list[StatisticCurve]
) -> None:
    """Compute statistics of jumps between regions, stays in them, and commutes.

    A jump is a pair of consecutive observed slots in different regions. A stay counts
    if the slots before and after it were observed.
    """
    regions, home, work = sample.regions, sample.home, sample.work
    here, there = sample.by_person[:, :-1], sample.by_person[:, 1:]
    jumped = (here != there) & (here != UNKNOWN) & (there != UNKNOWN)
    jump_km, commute_km, shortest = np.empty(0), np.empty(0), _SHORTEST_JUMP_KM
    if regions.placed:
        jump_km = regions.distance_km(here[jumped], there[jumped])
        works = work != UNKNOWN
        commute_km = regions.distance_km(home[works], work[works])
        shortest = max(shortest, _spacing_km(regions))
    stay, away = _stays(sample)
    hours = np.float64(sample.clock.slot_minutes / 60)
    values["jump_exponent"] = jump_exponent(jump_km, shortest)
    values["stay_exponent"] = stay_exponent(stay[away], hours)
    values["stay_away_mean"] = _mean(stay[away] * hours)
    values |= _quantiles("commute", commute_km)

    x, density = np.empty(0), np.empty(0)
    far = jump_km[jump_km > 0]
    if len(far) and far.min() < far.max():
        edges = np.geomspace(far.min(), far.max() * 1.0001, _BINS + 1)
        count = np.histogram(far, edges)[0]
        x = np.sqrt(edges[1:] * edges[:-1])[count > 0]
        density = (count / np.diff(edges) / len(far))[count > 0]
    lengths = np.bincount(stay)
    used = np.flatnonzero(lengths)
    share, label = lengths[used] / max(1, lengths.sum()), "share of stays"
    curves += [
        StatisticCurve("jumps", x, density, "jump (km)", "density", True, True),
        StatisticCurve("stays", used * hours, share, "stay (hours)", label, True, True),
    ]


def jump_exponent(jump_km: Floats, shortest_km: float) -> float:
    """Fit the exponent of a power law to the distances of jumps.

    Maximum likelihood over the jumps of at least ``shortest_km``: 1 km, or the
    median distance of neighbouring regions if that is larger.
    """
    jump = jump_km[jump_km >= shortest_km]
    high = float(jump.max()) / shortest_km if len(jump) else 1.0
    if len(jump) < _LEAST_MOVES or high <= 1.0:
        return math.nan
    mean_log = float(np.log(jump / shortest_km).mean())

    def loss(exponent: float) -> float:
        power = 1.0 - exponent
        mass = np.log(high)
        if abs(power) >= 1e-9:
            mass = np.expm1(power * np.log(high)) / power
        return float(np.log(mass)) + exponent * mean_log

    return _best_exponent(loss)


def stay_exponent(stay: Counts, slot_hours: float) -> float:
    """Fit the exponent of a power law to the durations of stays away from home.

    Maximum likelihood for whole numbers of slots up to 17 hours, the cutoff of
    Song et al. (2010).
    """
    most = int(_LONGEST_STAY_HOURS / slot_hours)
    stay = stay[stay <= most]
    if len(stay) < _LEAST_MOVES or most < 3:
        return math.nan
    log_length = np.log(np.arange(1, most + 1))
    mean_log = float(np.log(stay).mean())

    def loss(exponent: float) -> float:
        return float(np.log(np.exp(-exponent * log_length).sum())) + exponent * mean_log

    return _best_exponent(loss)


def _best_exponent(loss: Callable[[float], float]) -> float:
    return float(minimize_scalar(loss, bounds=(0.0, 6.0), method="bounded").x)


def _stays(sample: _Sample) -> tuple[Counts, Mask]:
    """Return lengths of complete stays in slots, and a mask of those not at home."""
    people, slots = sample.by_person.shape
    begins = np.ones((people, slots), dtype=bool)
    begins[:, 1:] = sample.by_person[:, :-1] != sample.by_person[:, 1:]
    start = np.flatnonzero(begins)
    length = np.diff(np.append(start, people * slots))
    place = sample.by_person.ravel()[start]
    person, slot = np.divmod(start, slots)
    known = place != UNKNOWN
    before = np.append(False, known[:-1]) & (slot > 0)
    after = np.append(known[1:], False) & (slot + length < slots)
    whole = known & before & after
    return length[whole], (place != sample.home[person])[whole]


def _spacing_km(regions: Regions) -> float:
    """Compute the median distance of a region to its nearest neighbour."""
    centre = regions.centre_km
    if len(centre) < 2:
        return 0.0
    near, _ = cKDTree(centre).query(centre[:: max(1, len(centre) // 2000)], k=2)
    return float(np.median(np.asarray(near)[:, 1]))


def _measure_time_at_home(
    sample: _Sample, values: dict[str, float], curves: list[StatisticCurve]
) -> None:
    """Compute the share of observed people who are at home, by slot of the day."""
    seen = sample.by_person != UNKNOWN
    home = seen & (sample.by_person == sample.home[:, None])
    hour = _slot_hours(sample.clock)
    by_slot = (part.sum(axis=0).reshape(-1, len(hour)) for part in (seen, home))
    total, at_home = (part.sum(axis=0) for part in by_slot)
    share = np.full(len(hour), np.nan)
    np.divide(at_home, total, out=share, where=total > 0)
    middle, known = hour + sample.clock.slot_minutes / 120, np.isfinite(share)
    for name, low, high in (("night", 2, 5), ("midday", 11, 16)):
        chosen = known & (middle >= low) & (middle < high)
        values[f"at_home_{name}"] = _mean(share[chosen])
    label = "share at home"
    curves.append(StatisticCurve("at_home", hour, share, "hour of the day", label))


def _measure_crowds(
    traces: Traces, values: dict[str, float], curves: list[StatisticCurve]
) -> None:
    """Compute co-presence and occupancy over all observations of up to 14 days.

    With N people in the region and slot of an observation, ``copresence`` is the mean
    of 1/N and ``share_alone`` the share with N = 1.
    """
    presence = np.zeros(len(traces.regions))
    seen = cells = singles = slots = 0
    for day in _evenly(traces.clock.days, _CROWD_DAYS):
        span = traces.clock.slots_of_day(int(day))
        for slot in range(span.start, span.stop):
            crowd = traces.occupancy(slot)
            presence += crowd
            seen += int(crowd.sum())
            cells += int(np.count_nonzero(crowd))
            singles += int(np.count_nonzero(crowd == 1))
            slots += 1
    occupancy = np.sort(presence / slots)
    total, size = float(occupancy.sum()), len(occupancy)
    values["copresence"] = cells / seen if seen else math.nan
    values["share_alone"] = singles / seen if seen else math.nan
    values["occupancy_gini"] = values["occupancy_top_1pct"] = math.nan
    if total > 0:
        rank = 2 * np.arange(1, size + 1) - size - 1
        values["occupancy_gini"] = float(rank @ occupancy / (size * total))
        top = occupancy[::-1][: max(1, round(size / 100))].sum()
        values["occupancy_top_1pct"] = float(top / total)
    share = np.append(0.0, np.cumsum(occupancy) / max(total, 1e-300))
    grid = np.linspace(0, 1, 201)
    lorenz = np.interp(grid, np.linspace(0, 1, len(share)), share)
    label = "share of regions"
    curves.append(StatisticCurve("occupancy", grid, lorenz, label, "share of people"))


def _quantiles(name: str, values: Floats) -> dict[str, float]:
    found = np.quantile(values, [0.1, 0.5, 0.9]) if len(values) else [math.nan] * 3
    parts = ("q10", "median", "q90")
    return {f"{name}_{part}": float(q) for part, q in zip(parts, found, strict=True)}


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _log_slope(x: Counts, y: Floats) -> float:
    """Fit the slope of log y against log x; NaN for fewer than 3 points."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) >= 3 else math.nan


def _spread(name: str, values: Floats, label: str) -> StatisticCurve:
    """Return the cumulative distribution of ``values`` over people, at 101 points."""
    values = values[np.isfinite(values)]
    share = np.linspace(0, 1, 101)
    x = np.quantile(values, share) if len(values) else np.full(101, np.nan)
    return StatisticCurve(name, np.asarray(x, float), share, label, "share of people")
