"""Where a person goes: region j from region i with chance ~ attraction_j * f(d_ij).

The distance kernel is f(d) = (1 + d/scale)^-exponent exp(-d/cutoff). The draw is
exact without a table of all pairs: a coarse cell is drawn with the kernel's
upper bound between the cells' boxes, a region within it by attraction, and the
pair is kept with chance f(d) / bound. Memory is cells squared, at most
``MOST_CELLS`` squared, however many regions there are.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from epifalcon.mobility.city.draws import State, uniform
from epifalcon.types import Floats

MOST_CELLS = 2048
REGIONS_PER_CELL = 4
_MOST_TRIALS = 2_000


class Kernel(NamedTuple):
    """The parameters of f(d), lengths in kilometres."""

    exponent: float
    scale: float
    cutoff: float


class Destinations(NamedTuple):
    """All that a draw of a destination reads; made by ``destinations``.

    ``cumulative`` (regions,) runs over each cell's ``members`` from the cell's
    start; ``reach`` (cells, cells) is, row by row, the running sum of a cell's
    attraction times the kernel's bound. ``box`` (cells, 4) holds the smallest
    and largest x and y of the members.
    """

    x: Floats
    y: Floats
    cell: NDArray[np.int32]
    members: NDArray[np.int32]
    starts: NDArray[np.int64]
    cumulative: Floats
    reach: Floats
    box: Floats
    kernel: Kernel


@njit(cache=True)
def decay(kernel: Kernel, distance: float) -> float:
    """-log f(d): 0 at distance 0 and growing with it."""
    near = kernel.exponent * math.log1p(distance / kernel.scale)
    return near + distance / kernel.cutoff


@njit(cache=True)
def _gap(box: Floats, here: int, there: int) -> float:
    east = max(0.0, box[there, 0] - box[here, 1], box[here, 0] - box[there, 1])
    north = max(0.0, box[there, 2] - box[here, 3], box[here, 2] - box[there, 3])
    return math.sqrt(east * east + north * north)


@njit(cache=True)
def search(cumulative: Floats, low: int, high: int, target: float) -> int:
    """The first index in [low, high) whose running sum exceeds ``target``."""
    last = high - 1
    while low < last:
        middle = (low + last) // 2
        if cumulative[middle] > target:
            last = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def distance(to: Destinations, here: int, there: int) -> float:
    """Kilometres between the centres of two regions."""
    east = to.x[here] - to.x[there]
    north = to.y[here] - to.y[there]
    return math.sqrt(east * east + north * north)


@njit(cache=True)
def draw(to: Destinations, here: int, state: State) -> int:
    """A region other than ``here``, or ``here`` where no other is within reach.

    Given up after 2,000 tries, which a city of sensible settings never needs.
    """
    row = to.cell[here]
    reach = to.reach[row]
    if to.members.size == 1:
        return to.members[0]
    for _ in range(_MOST_TRIALS):
        cell = search(reach, 0, reach.size, uniform(state) * reach[-1])
        first, end = to.starts[cell], to.starts[cell + 1]
        if first == end:
            continue
        target = uniform(state) * to.cumulative[end - 1]
        region = to.members[search(to.cumulative, first, end, target)]
        lost = decay(to.kernel, distance(to, here, region))
        kept = math.exp(decay(to.kernel, _gap(to.box, row, cell)) - lost)
        if uniform(state) < kept and region != here:
            return region
    return here


def destinations(centre_km: Floats, attraction: Floats, kernel: Kernel) -> Destinations:
    """Prepare draws among the regions with a positive attraction.

    ``centre_km`` (regions, 2), ``attraction`` (regions,) with at least one
    positive value. Origins may be any region.
    """
    x, y = np.ascontiguousarray(centre_km[:, 0]), np.ascontiguousarray(centre_km[:, 1])
    cell = _cells(centre_km)
    order = np.argsort(cell, kind="stable").astype(np.int32)
    drawn = order[attraction[order] > 0]
    count = int(cell.max()) + 1
    starts = np.searchsorted(cell[drawn], np.arange(count + 1)).astype(np.int64)
    box = _boxes(centre_km, cell, count)
    cumulative, total = _running(attraction[drawn], starts)
    reach = _reach(box, total, kernel)
    return Destinations(x, y, cell, drawn, starts, cumulative, reach, box, kernel)


def _cells(centre_km: Floats) -> NDArray[np.int32]:
    """The coarse cell of each region, numbered without empty ones."""
    offset = centre_km - centre_km.min(axis=0)
    wished = min(MOST_CELLS, max(1, len(offset) // REGIONS_PER_CELL))
    low, high = 0.0, float(offset.max()) * 2 + 1e-9
    best = np.zeros(len(offset), dtype=np.int32)
    for _ in range(20):
        size = (low + high) / 2
        grid = (offset / size).astype(np.int64)
        key = grid[:, 0] * (int(grid[:, 1].max()) + 1) + grid[:, 1]
        found, labels = np.unique(key, return_inverse=True)
        if len(found) <= wished:
            high, best = size, labels.reshape(-1).astype(np.int32)
        else:
            low = size
    return best


def _boxes(centre_km: Floats, cell: NDArray[np.int32], count: int) -> Floats:
    box = np.empty((count, 4))
    box[:, [0, 2]], box[:, [1, 3]] = np.inf, -np.inf
    for axis in (0, 1):
        np.minimum.at(box[:, 2 * axis], cell, centre_km[:, axis])
        np.maximum.at(box[:, 2 * axis + 1], cell, centre_km[:, axis])
    return box


@njit(cache=True)
def _running(weight: Floats, starts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Running sums within each cell, and each cell's total."""
    cumulative = np.empty_like(weight)
    total = np.zeros(starts.size - 1)
    for cell in range(total.size):
        for index in range(starts[cell], starts[cell + 1]):
            total[cell] += weight[index]
            cumulative[index] = total[cell]
    return cumulative, total


@njit(cache=True)
def _reach(box: Floats, total: Floats, kernel: Kernel) -> Floats:
    reach = np.empty((total.size, total.size))
    for here in range(total.size):
        running = 0.0
        for there in range(total.size):
            bound = math.exp(-decay(kernel, _gap(box, here, there)))
            running += total[there] * bound
            reach[here, there] = running
    return reach
