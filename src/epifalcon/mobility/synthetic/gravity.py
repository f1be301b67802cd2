"""Gravity model of destinations: P(j | i) is proportional to attraction_j * f(d_ij).

The distance kernel is f(d) = (1 + d/scale)^-exponent exp(-d/cutoff). The draw is exact
without a table of all pairs. The nearest regions are drawn from a table. For all
others a coarse cell is drawn with the kernel's upper bound between the cells' boxes, a
region within it by attraction, and the pair is accepted with probability f(d) / bound.
Memory is regions times ``NEAREST`` plus at most ``MOST_CELLS`` squared.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from epifalcon._numba import njit
from epifalcon._random import State, uniform
from epifalcon.types import Floats

MOST_CELLS = 2048
REGIONS_PER_CELL = 4
NEAREST = 48
_MOST_TRIALS = 2_000


class Kernel(NamedTuple):
    """Parameters of the distance kernel f(d), with lengths in kilometres."""

    exponent: float
    scale: float
    cutoff: float


class Destinations(NamedTuple):
    """Tables for drawing destinations for several purposes.

    ``near`` (regions, NEAREST) are the regions closer than ``radius`` (regions,),
    ``near_sum`` (purposes, regions, NEAREST) the running sums of their weights.
    ``cumulative`` (purposes, regions) runs over each cell's ``members``; ``reach``
    (purposes, cells, cells) is, row by row, the running sum of a cell's attraction
    times the kernel's bound. ``box`` (cells, 5) holds the smallest and largest x and
    y of a cell and its smallest ``radius``.
    """

    place: Floats
    near: NDArray[np.int32]
    near_sum: Floats
    radius: Floats
    cell: NDArray[np.int32]
    members: NDArray[np.int32]
    starts: NDArray[np.int64]
    cumulative: Floats
    reach: Floats
    box: Floats
    kernels: tuple[Kernel, ...]


@njit()
def decay(kernel: Kernel, distance: float) -> float:
    """Compute -log f(d) at a distance d in kilometres."""
    near = kernel.exponent * math.log1p(distance / kernel.scale)
    return near + distance / kernel.cutoff


@njit()
def _bound(kernel: Kernel, box: Floats, here: int, there: int) -> float:
    """Compute a lower bound of ``decay`` between far regions of two cells."""
    east = max(0.0, box[there, 0] - box[here, 1], box[here, 0] - box[there, 1])
    north = max(0.0, box[there, 2] - box[here, 3], box[here, 2] - box[there, 3])
    nearest = max(math.sqrt(east * east + north * north), box[here, 4])
    # All regions are near ones; with an exponent of 0 this would be 0 * inf.
    return math.inf if nearest == math.inf else decay(kernel, nearest)


@njit()
def search(cumulative: Floats, low: int, high: int, target: float) -> int:
    """Find the first index in [low, high) whose running sum exceeds ``target``."""
    last = high - 1
    while low < last:
        middle = (low + last) // 2
        if cumulative[middle] > target:
            last = middle
        else:
            low = middle + 1
    return low


@njit()
def distance(to: Destinations, here: int, there: int) -> float:
    """Compute the distance between the centres of two regions in kilometres."""
    east = to.place[here, 0] - to.place[there, 0]
    north = to.place[here, 1] - to.place[there, 1]
    return math.sqrt(east * east + north * north)


@njit()
def draw(to: Destinations, purpose: int, here: int, state: State) -> int:
    """Draw a destination other than ``here``; return ``here`` if there is none."""
    row, kernel = to.cell[here], to.kernels[purpose]
    reach, near_sum = to.reach[purpose, row], to.near_sum[purpose, here]
    total = near_sum[-1] + reach[-1]
    if total <= 0.0:
        return here
    for _ in range(_MOST_TRIALS):
        target = uniform(state) * total
        if target < near_sum[-1]:
            return int(to.near[here, search(near_sum, 0, near_sum.size, target)])
        cell = search(reach, 0, reach.size, target - near_sum[-1])
        first, end = to.starts[cell], to.starts[cell + 1]
        target = uniform(state) * to.cumulative[purpose, end - 1]
        found = search(to.cumulative[purpose], first, end, target)
        region = int(to.members[found])
        far = distance(to, here, region)
        acceptance = math.exp(_bound(kernel, to.box, row, cell) - decay(kernel, far))
        if uniform(state) < acceptance and far >= to.radius[here]:
            return region
    return here


def destinations(
    centre_km: Floats, attractions: Sequence[Floats], kernels: Sequence[Kernel]
) -> Destinations:
    """Build the tables from one attraction (regions,) and one kernel per purpose."""
    near, near_km, radius = _nearest(centre_km)
    cell = _cells(centre_km)
    count = int(cell.max()) + 1
    members = np.argsort(cell, kind="stable").astype(np.int32)
    starts = np.searchsorted(cell[members], np.arange(count + 1)).astype(np.int64)
    box = _boxes(centre_km, cell, radius, count)
    near_sum, cumulative, reach = [], [], []
    for attraction, kernel in zip(attractions, kernels, strict=True):
        near_sum.append(_near_weights(attraction[near], near_km, kernel))
        by_cell = np.split(attraction[members], starts[1:-1])
        running = np.concatenate([np.cumsum(weights) for weights in by_cell])
        cumulative.append(running)
        reach.append(_reach(box, running[starts[1:] - 1], kernel))
    return Destinations(
        place=np.ascontiguousarray(centre_km),
        near=near,
        near_sum=np.stack(near_sum),
        radius=radius,
        cell=cell,
        members=members,
        starts=starts,
        cumulative=np.stack(cumulative),
        reach=np.stack(reach),
        box=box,
        kernels=tuple(kernels),
    )


def _nearest(centre_km: Floats) -> tuple[NDArray[np.int32], Floats, Floats]:
    """Return ids and distances of the regions within each radius, and the radii.

    The radius is the distance of the first region that has no room in the table.
    Unused entries have an infinite distance.
    """
    count = len(centre_km)
    wanted = min(NEAREST + 2, count)
    found = cKDTree(centre_km).query(centre_km, k=[*range(1, wanted + 1)])[1]
    offset = centre_km[found] - centre_km[:, None, :]
    far = np.sqrt(offset[..., 0] * offset[..., 0] + offset[..., 1] * offset[..., 1])
    far[found == np.arange(count)[:, None]] = -1.0
    order = np.argsort(far, axis=1, kind="stable")
    far, found = (np.take_along_axis(part, order, axis=1) for part in (far, found))
    radius = far[:, -1].copy() if wanted < count else np.full(count, np.inf)
    far[(far < 0) | (far >= radius[:, None])] = np.inf
    return found.astype(np.int32), far, radius


@njit()
def _near_weights(weight: Floats, near_km: Floats, kernel: Kernel) -> Floats:
    """Compute running sums of attraction times kernel along each row."""
    running = np.zeros_like(near_km)
    for row in range(near_km.shape[0]):
        total = 0.0
        for column in range(near_km.shape[1]):
            if near_km[row, column] < np.inf:
                lost = decay(kernel, near_km[row, column])
                total += weight[row, column] * math.exp(-lost)
            running[row, column] = total
    return running


def _cells(centre_km: Floats) -> NDArray[np.int32]:
    """Assign each region to a coarse cell, (regions,); only occupied cells count."""
    offset = centre_km - centre_km.min(axis=0)
    wanted = min(MOST_CELLS, max(1, len(offset) // REGIONS_PER_CELL))
    low, high = 0.0, float(offset.max()) * 2 + 1e-9
    best = np.zeros(len(offset), dtype=np.int32)
    for _ in range(20):
        size = (low + high) / 2
        grid = (offset / size).astype(np.int64)
        key = grid[:, 0] * (int(grid[:, 1].max()) + 1) + grid[:, 1]
        found, labels = np.unique(key, return_inverse=True)
        if len(found) <= wanted:
            high, best = size, labels.reshape(-1).astype(np.int32)
        else:
            low = size
    return best


def _boxes(
    centre_km: Floats, cell: NDArray[np.int32], radius: Floats, count: int
) -> Floats:
    box = np.full((count, 5), np.inf)
    box[:, [1, 3]] = -np.inf
    for axis in (0, 1):
        np.minimum.at(box[:, 2 * axis], cell, centre_km[:, axis])
        np.maximum.at(box[:, 2 * axis + 1], cell, centre_km[:, axis])
    np.minimum.at(box[:, 4], cell, radius)
    return box


@njit()
def _reach(box: Floats, mass: Floats, kernel: Kernel) -> Floats:
    reach = np.empty((mass.size, mass.size))
    for here in range(mass.size):
        running = 0.0
        for there in range(mass.size):
            running += mass[there] * math.exp(-_bound(kernel, box, here, there))
            reach[here, there] = running
    return reach
