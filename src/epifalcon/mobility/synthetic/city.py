"""A synthetic city: settings, layout of its regions, and traces of its people.

Replaces the mobility data of the paper's experiments (section "Data"), which is not
public. Areas are cells of a distorted honeycomb, so that they tile the plane; points of
interest lie in blocks along towns. Both follow one settlement field: a main centre and
smaller towns, each falling off exponentially. The number of homes and the attraction of
a region are lognormal around that field (sigma 1.58 was measured for attraction in the
paper's released data).
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Annotated, Literal

import numpy as np
from numba import get_num_threads
from scipy.optimize import brentq

from epifalcon.checks import (
    Checked,
    CountOrZero,
    NonNegative,
    Positive,
    Share,
    positive,
    whole,
    within,
)
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.synthetic.gravity import Kernel, destinations
from epifalcon.mobility.synthetic.schedule import (
    Behaviour,
    Coverage,
    Memory,
    World,
    simulate_people,
)
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.types import UNKNOWN, Floats, RegionIds

Number = Annotated[int, partial(whole, 1), partial(within, 1, 2**31 - 1)]
Spread = Annotated[float, partial(within, 0, 5)]
StayHours = Annotated[float, partial(within, 0.25, 24)]
BLOCK_PEOPLE = 256

# Probability per hour of leaving home for an outing, by hour of the day: low at
# night, a peak before noon and another after work, later on days off.
_LEAVING = np.array(
    [
        [.01, .01, .005, .005, .01, .03, .1, .2, .25, .28, .28, .24,
         .2, .22, .25, .26, .28, .32, .36, .3, .18, .1, .05, .02],
        [.02, .01, .01, .005, .005, .01, .03, .08, .18, .28, .34, .32,
         .26, .28, .32, .32, .3, .3, .32, .26, .18, .1, .06, .04],
    ]
)  # fmt: skip
_KERNEL = ("exponent", "scale_km", "cutoff_km")

_TOWN_REACH = 0.18
_MAIN_REACH = 0.3
_EDGE_NOISE = 0.35
_DISTORTION = 0.22
_BLOCK_REGIONS = 10
_BLOCK_KM = 0.08
_RESIDENTIAL_VISITS = 0.1
_SHARED_ATTRACTION = 0.7
_FOLLOW = 0.7
_LARGEST = 6.0


@dataclass(frozen=True, kw_only=True)
class CitySettings(Checked):
    """Settings of a synthetic city; the defaults suit areas, presets other kinds.

    Lengths are in kilometres, times in hours, shares in [0, 1].
    """

    people: Number = 2_000
    regions: Number = 400
    kind: Literal["poi", "area"] = "area"
    days: Number = 14
    slot_hours: float = 2.0
    start: str | None = None
    """ISO date of day 0, which sets its weekday; by default a Monday."""

    region_radius_km: Positive = 0.79
    """Radius of a disc with the area of one region."""
    built_share: Annotated[Share, positive] = 0.45
    """Share of the circular extent of the city covered by regions."""
    towns: CountOrZero = 24
    """Number of towns around the main centre."""
    home_sigma: Spread = 0.95
    """Standard deviation of the log number of homes per region."""
    attraction_sigma: Spread = 1.9
    """Standard deviation of the log attraction of a region for workers and visitors."""
    home_share: Share = 1.0
    """Share of the regions in which people live."""

    commuter_share: Share = 0.66
    """Share of people with a fixed place of work or study outside their home."""
    commute_exponent: NonNegative = 1.5
    commute_scale_km: Positive = 2.5
    commute_cutoff_km: Positive = 20.0
    """Cutoff of commutes: a workplace at d km has the weight (1 + d/scale)^-exponent
    exp(-d/cutoff) times its attraction."""
    visit_exponent: NonNegative = 4.5
    visit_scale_km: Positive = 1.0
    visit_cutoff_km: Positive = 30.0
    """Cutoff of first visits to new places, with the same weights as commutes."""
    exploration: Share = 0.6
    exploration_decay: NonNegative = 0.21
    """Decay of exploration: after S known places, the next one is new with probability
    exploration * S^-exploration_decay."""
    outings: NonNegative = 1.2
    """Factor on the built-in hourly rates of outings."""
    outing_sigma: Spread = 0.4
    """Standard deviation, between people, of the log rate of outings."""
    chain_share: Share = 0.4
    """Probability that a stop of an outing is followed by another one."""
    stay_exponent: Annotated[float, partial(within, math.nextafter(1, 2), 10)] = 2.0
    stay_min_hours: StayHours = 0.5
    stay_max_hours: StayHours = 12.0
    """Maximum duration of a stop; the density at t hours is t^-stay_exponent."""
    traveller_share: Share = 0.2
    """Share of people who make excursions."""
    excursion_share: Share = 0.25
    """Probability of an excursion of such people on a day off; half on workdays."""
    excursion_cutoff_km: Positive = 60.0
    """Cutoff of excursions: a destination at d km has weight exp(-d/cutoff) times its
    attraction."""
    overnight_share: Share = 0.25
    """Probability that an excursion lasts overnight."""

    observed_share: Share = 1.0
    """Mean share of slots in which a person is observed; other slots are -1."""
    observed_sigma: Spread = 1.0
    """Standard deviation, between people, of the log odds of being observed."""
    gap_hours: Positive = 6.0
    """Mean number of hours until being observed or not is drawn again."""
    fill_gaps: bool = False
    """Replace each unobserved slot by the last observed region, and the slots before
    the first observation by the first, as in the authors' Larger data set. The
    outbreak spreads along these traces."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stay_min_hours > self.stay_max_hours:
            raise SettingsError(
                f"stay_min_hours={self.stay_min_hours} must be at most "
                f"stay_max_hours={self.stay_max_hours}"
            )
        self.clock  # noqa: B018  refuses impossible slots and dates

    @property
    def clock(self) -> Clock:
        """The clock of the city's traces."""
        return Clock(slot_hours=self.slot_hours, days=self.days, start=self.start)

    @property
    def first_weekday(self) -> int:
        """Weekday of day 0; 0 is Monday."""
        return 0 if self.start is None else date.fromisoformat(self.start).weekday()


@dataclass(frozen=True, eq=False)
class CityLayout:
    """Regions of a city with their weights as home, workplace and destination."""

    regions: Regions
    home: Floats
    work: Floats
    visit: Floats


@dataclass(frozen=True, eq=False)
class TownField:
    """Settlement field: towns at ``centre_km`` (towns, 2) with weight and reach."""

    centre_km: Floats
    weight: Floats
    reach_km: Floats

    def log_density(self, point_km: Floats) -> Floats:
        """Compute the log settlement density at points (points, 2)."""
        density = np.full(len(point_km), 1e-4)
        towns = self.centre_km, self.weight, self.reach_km
        for centre, weight, reach in zip(*towns, strict=True):
            offset = np.hypot(*(point_km - centre).T)
            density += weight * np.exp(-offset / reach)
        return np.asarray(np.log(density))


def lay_out(settings: CitySettings, rng: np.random.Generator) -> CityLayout:
    """Place the regions of the city and compute their weights."""
    discs = settings.regions / settings.built_share
    extent_km = settings.region_radius_km * math.sqrt(discs)
    field = _towns(settings.towns, extent_km, rng)
    if settings.kind == "area":
        regions = _honeycomb(settings, extent_km, field, rng)
        rough = np.zeros(len(regions))
    else:
        regions, rough = _blocks(settings, field, rng)
    return _weigh(regions, field, rough, settings, rng)


def _towns(count: int, extent_km: float, rng: np.random.Generator) -> TownField:
    angle = rng.uniform(0, 2 * math.pi, count)
    radius = extent_km * np.sqrt(rng.uniform(0.05, 1, count))
    around = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    size = 0.5 * np.arange(1, count + 1) ** -0.5
    reach = extent_km * _TOWN_REACH * np.sqrt(size)
    return TownField(
        centre_km=np.vstack([np.zeros((1, 2)), around]),
        weight=np.append(1.0, size),
        reach_km=np.append(extent_km * _MAIN_REACH, reach),
    )


def _honeycomb(
    settings: CitySettings, extent_km: float, field: TownField, rng: np.random.Generator
) -> Regions:
    """Choose the most densely settled cells of a honeycomb with shifted corners."""
    pitch = settings.region_radius_km * math.sqrt(2 * math.pi / math.sqrt(3))
    rings = math.ceil(extent_km / pitch * 1.2) + 1
    row, column = np.divmod(np.arange((2 * rings + 1) ** 2), 2 * rings + 1)
    row, column = row - rings, column - rings
    centre = np.column_stack([column + (row % 2) / 2, row * math.sqrt(3) / 2]) * pitch
    score = field.log_density(centre) + rng.gumbel(0, _EDGE_NOISE, len(centre))
    score[np.hypot(*centre.T) > max(extent_km, pitch)] -= 100
    taken = np.argsort(-score, kind="stable")[: settings.regions]
    taken = taken[_nearby_order(centre[taken], 4 * pitch)]
    corners = _shifted_corners(centre[taken], pitch, rng)
    return Regions(
        kind="area",
        centre_km=corners.mean(axis=1),
        outline_km=corners.reshape(-1, 2),
        outline_ends=np.arange(6, 6 * len(taken) + 1, 6, dtype=np.int64),
    )


def _shifted_corners(centre: Floats, pitch: float, rng: np.random.Generator) -> Floats:
    """Compute shifted corners of cells, (regions, 6, 2); shared corners stay shared."""
    angle = np.radians(30 + 60 * np.arange(6))
    around = np.column_stack([np.cos(angle), np.sin(angle)]) * pitch / math.sqrt(3)
    corners = centre[:, None, :] + around
    # Corners lie on a lattice of half a pitch by half a side, so integers index them.
    grid = np.array([pitch / 2, pitch / (2 * math.sqrt(3))])
    key = np.rint(corners / grid).astype(np.int64).reshape(-1, 2)
    named, label = np.unique(key, axis=0, return_inverse=True)
    shift = rng.uniform(-_DISTORTION, _DISTORTION, (len(named), 2)) * pitch
    return np.asarray(corners + shift[label.reshape(-1)].reshape(corners.shape))


def _blocks(
    settings: CitySettings, field: TownField, rng: np.random.Generator
) -> tuple[Regions, Floats]:
    """Draw points in blocks around towns; also return the roughness of their blocks."""
    count = max(1, settings.regions // _BLOCK_REGIONS)
    mass = field.weight * field.reach_km**2
    town = rng.choice(len(mass), size=count, p=mass / mass.sum())
    # Twice-exponential radii: the density of each town falls off exponentially.
    radius = rng.gamma(2.0, 1.0, count) * field.reach_km[town]
    angle = rng.uniform(0, 2 * math.pi, count)
    offset = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    block_km = field.centre_km[town] + offset
    rough = rng.normal(0, 1, count)
    block = rng.integers(count, size=settings.regions)
    point = block_km[block] + rng.normal(0, _BLOCK_KM, (settings.regions, 2))
    order = _nearby_order(point, 0.5)
    return Regions(kind="poi", centre_km=point[order]), rough[block][order]


def _nearby_order(point_km: Floats, size_km: float) -> np.ndarray:
    """Return an order of points in which nearby points mostly have nearby indices."""
    grid = np.floor(point_km / size_km).astype(np.int64)
    grid -= grid.min(axis=0)
    east = np.where(grid[:, 1] % 2, -grid[:, 0], grid[:, 0])
    return np.lexsort((east, grid[:, 1]))


def _weigh(
    regions: Regions,
    field: TownField,
    rough: Floats,
    settings: CitySettings,
    rng: np.random.Generator,
) -> CityLayout:
    count = len(regions)
    dense = field.log_density(regions.centre_km)
    dense = dense - dense.mean()
    shared, work, visit = rng.normal(0, 1, (3, count))
    own = math.sqrt(1 - _SHARED_ATTRACTION**2)
    lived_in = rng.permutation(count) < max(1, round(settings.home_share * count))
    home = settings.home_sigma * _skewed(count, rng) + _FOLLOW * dense
    draws = [
        settings.attraction_sigma * (_SHARED_ATTRACTION * shared + own * extra)
        + _FOLLOW * dense
        + 0.5 * settings.attraction_sigma * rough
        for extra in (work, visit)
    ]
    weight = [np.exp(value - value.max()) for value in (home, *draws)]
    if settings.home_share < 1:
        for goal in weight[1:]:
            goal[lived_in] *= _RESIDENTIAL_VISITS
    return CityLayout(regions, np.where(lived_in, weight[0], 0.0), weight[1], weight[2])


def _skewed(count: int, rng: np.random.Generator) -> Floats:
    """Draw exponential numbers below 6, the logarithms of bounded Pareto numbers.

    Unlike a lognormal distribution of equal variance it leaves few regions empty
    while the largest hold many people, as in the released data.
    """
    return np.asarray(-np.log1p(rng.random(count) * np.expm1(-_LARGEST)))


def build_city(
    settings: CitySettings, rng: np.random.Generator, progress: Progress = silent
) -> Traces:
    """Build a synthetic city and return the traces of all its people.

    Equal settings and state of ``rng`` give the same city on any number of threads.
    Cities that differ only in days or people agree on their common part, and another
    slot length gives the same stays at another resolution.
    """
    progress("city", 0, settings.people)
    seed = np.uint64(rng.integers(2**63))
    layout = lay_out(settings, rng)
    world = make_world(layout, settings)
    coverage = make_coverage(settings)
    clock, days = settings.clock, settings.days
    by_slot = np.empty((clock.slots, settings.people), dtype=np.int32)

    def simulate(first: int) -> int:
        last = min(first + BLOCK_PEOPLE, settings.people)
        # People are written row by row and transposed at the end: a column at a time
        # would touch a new cache line for every slot.
        rows, memory = np.empty((last - first, clock.slots), np.int32), Memory.of(days)
        simulate_people(world, coverage, memory, seed, first, clock.slot_minutes, rows)
        by_slot[:, first:last] = (_filled(rows) if settings.fill_gaps else rows).T
        return last

    with ThreadPoolExecutor(get_num_threads()) as pool:
        for last in pool.map(simulate, range(0, settings.people, BLOCK_PEOPLE)):
            progress("city", last, settings.people)
    return Traces(by_slot, clock, layout.regions)


def make_world(layout: CityLayout, settings: CitySettings) -> World:
    """Build the inputs of the simulation that are equal for all people."""
    kernels = [
        Kernel(*(float(getattr(settings, f"{name}_{part}")) for part in _KERNEL))
        for name in ("commute", "visit")
    ]
    kernels.append(Kernel(0.0, 1.0, float(settings.excursion_cutoff_km)))
    goals = layout.work, layout.visit, layout.visit
    behaviour = (float(getattr(settings, name)) for name in Behaviour._fields)
    return World(
        home=np.cumsum(layout.home),
        destinations=destinations(layout.regions.centre_km, goals, kernels),
        rate=np.asarray(_LEAVING * settings.outings / 60),
        behaviour=Behaviour(*behaviour),
    )


def make_coverage(settings: CitySettings) -> Coverage:
    """Return the observation model whose mean share is ``observed_share``."""
    share, sigma = float(settings.observed_share), float(settings.observed_sigma)
    renewal = min(1.0, settings.slot_hours / settings.gap_hours)
    if share in (0.0, 1.0):
        return Coverage(share == 1.0, -700.0, 0.0, renewal)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()

    def excess(centre: float) -> float:
        return float(weights @ (1 / (1 + np.exp(-(centre + sigma * nodes))))) - share

    reach = 40.0 + 12.0 * sigma
    centre = float(brentq(excess, -reach, reach))
    return Coverage(False, centre, sigma, renewal)


def _filled(rows: RegionIds) -> RegionIds:
    """Replace each -1 in (people, slots) by the last known region, or the first."""
    known = rows != UNKNOWN
    last = np.where(known, np.arange(rows.shape[1]), known.argmax(axis=1)[:, None])
    return np.take_along_axis(rows, np.maximum.accumulate(last, axis=1), axis=1)
