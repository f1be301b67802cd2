"""The land: where regions lie, how many live in each and how much each draws.

Areas are cells of a bent honeycomb, so that they tile the plane; points of
interest lie in blocks along towns. Both follow one settlement field: a main
centre and smaller towns, each falling off exponentially. Homes and attraction
are lognormal around that field (sigma 1.58 was measured for attraction in the
released data of the paper), which makes them concentrated and clustered.
"""

import math
from dataclasses import dataclass

import numpy as np

from epifalcon.mobility.regions import Regions
from epifalcon.mobility.synthetic.settings import CitySettings
from epifalcon.types import Floats

_TOWN_REACH = 0.18
_MAIN_REACH = 0.3
_EDGE_NOISE = 0.35
_BEND = 0.22
_BLOCK_REGIONS = 10
_BLOCK_KM = 0.08
_RESIDENTIAL_VISITS = 0.1
_SHARED_ATTRACTION = 0.7
_FOLLOW = 0.7
_LARGEST = 6.0


@dataclass(frozen=True, eq=False)
class Layout:
    """The regions and, for each, its weight as home, workplace and goal."""

    regions: Regions
    home: Floats
    work: Floats
    visit: Floats


@dataclass(frozen=True, eq=False)
class Field:
    """Towns at ``centre_km`` (towns, 2), their weights and their reach in km."""

    centre_km: Floats
    weight: Floats
    reach_km: Floats

    def log_density(self, point_km: Floats) -> Floats:
        """The logarithm of the settlement density at points (points, 2)."""
        density = np.full(len(point_km), 1e-4)
        for centre, weight, reach in zip(
            self.centre_km, self.weight, self.reach_km, strict=True
        ):
            offset = np.hypot(*(point_km - centre).T)
            density += weight * np.exp(-offset / reach)
        return np.asarray(np.log(density))


def lay_out(settings: CitySettings, rng: np.random.Generator) -> Layout:
    """Place the regions of the city and weigh them."""
    extent_km = settings.region_radius_km * math.sqrt(
        settings.regions / settings.built_share
    )
    field = _towns(settings.towns, extent_km, rng)
    if settings.kind == "area":
        regions = _honeycomb(settings, extent_km, field, rng)
        rough = np.zeros(len(regions))
    else:
        regions, rough = _blocks(settings, field, rng)
    return _weigh(regions, field, rough, settings, rng)


def _towns(count: int, extent_km: float, rng: np.random.Generator) -> Field:
    angle = rng.uniform(0, 2 * math.pi, count)
    radius = extent_km * np.sqrt(rng.uniform(0.05, 1, count))
    around = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    size = 0.5 * np.arange(1, count + 1) ** -0.5
    reach = extent_km * _TOWN_REACH * np.sqrt(size)
    return Field(
        centre_km=np.vstack([np.zeros((1, 2)), around]),
        weight=np.append(1.0, size),
        reach_km=np.append(extent_km * _MAIN_REACH, reach),
    )


def _honeycomb(
    settings: CitySettings, extent_km: float, field: Field, rng: np.random.Generator
) -> Regions:
    """The most settled cells of a honeycomb whose corners are bent."""
    pitch = settings.region_radius_km * math.sqrt(2 * math.pi / math.sqrt(3))
    rings = math.ceil(extent_km / pitch * 1.2) + 1
    row, column = np.divmod(np.arange((2 * rings + 1) ** 2), 2 * rings + 1)
    row, column = row - rings, column - rings
    centre = np.column_stack([column + (row % 2) / 2, row * math.sqrt(3) / 2]) * pitch
    score = field.log_density(centre) + rng.gumbel(0, _EDGE_NOISE, len(centre))
    score[np.hypot(*centre.T) > max(extent_km, pitch)] -= 100
    taken = np.argsort(-score, kind="stable")[: settings.regions]
    taken = taken[_nearby_order(centre[taken], 4 * pitch)]
    corners = _bent_corners(centre[taken], pitch, rng)
    return Regions(
        kind="area",
        centre_km=corners.mean(axis=1),
        outline_km=corners.reshape(-1, 2),
        outline_ends=np.arange(6, 6 * len(taken) + 1, 6, dtype=np.int64),
    )


def _bent_corners(centre: Floats, pitch: float, rng: np.random.Generator) -> Floats:
    """Corners (regions, 6, 2); a corner shared by cells is bent the same way."""
    angle = np.radians(30 + 60 * np.arange(6))
    around = np.column_stack([np.cos(angle), np.sin(angle)]) * pitch / math.sqrt(3)
    corners = centre[:, None, :] + around
    # Corners lie on a lattice of half a pitch by half a side: whole numbers name them.
    grid = np.array([pitch / 2, pitch / (2 * math.sqrt(3))])
    key = np.rint(corners / grid).astype(np.int64).reshape(-1, 2)
    named, label = np.unique(key, axis=0, return_inverse=True)
    bend = rng.uniform(-_BEND, _BEND, (len(named), 2)) * pitch
    return np.asarray(corners + bend[label.reshape(-1)].reshape(corners.shape))


def _blocks(
    settings: CitySettings, field: Field, rng: np.random.Generator
) -> tuple[Regions, Floats]:
    """Points in blocks around towns, and each block's share of the roughness."""
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
    """An order in which neighbours in space are mostly neighbours in memory."""
    grid = np.floor(point_km / size_km).astype(np.int64)
    grid -= grid.min(axis=0)
    east = np.where(grid[:, 1] % 2, -grid[:, 0], grid[:, 0])
    return np.lexsort((east, grid[:, 1]))


def _weigh(
    regions: Regions,
    field: Field,
    rough: Floats,
    settings: CitySettings,
    rng: np.random.Generator,
) -> Layout:
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
    return Layout(regions, np.where(lived_in, weight[0], 0.0), weight[1], weight[2])


def _skewed(count: int, rng: np.random.Generator) -> Floats:
    """Exponential numbers below 6: the logarithms of a bounded Pareto law.

    Unlike a lognormal law of equal spread it leaves few regions empty while
    the largest hold many people, as in the released data.
    """
    return np.asarray(-np.log1p(rng.random(count) * np.expm1(-_LARGEST)))
