"""The floor of the mobility model: max(1, d)^-2 between any two regions.

It is never stored as a table of regions by regions. Values and rows come from
the closed form, totals and draws from sums over groups of regions, all exact.
"""

from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from epifalcon.mobility.regions import Regions
from epifalcon.types import Floats, RegionIds

_PAIRS_AT_ONCE = 2**18


@dataclass(frozen=True, eq=False)
class DistanceFloor:
    """The kernel max(1, d(r, r'))^-2, d in kilometres (paper: aggregate model).

    A region whose place is not known counts as 1 km away from every other, so
    its kernel is 1: the most, since nothing says that the two are far apart.
    """

    regions: Regions

    def between(self, here: RegionIds, there: RegionIds) -> Floats:
        """The kernel of pairs, element by element; shapes broadcast."""
        # fmax, unlike maximum, takes the 1 where the distance is NaN.
        apart = np.fmax(1.0, self.regions.distance_km(here, there))
        return np.asarray(1.0 / (apart * apart))

    def row(self, region: int) -> Floats:
        """The kernel from one region to all: (regions,)."""
        return self.between(np.asarray(region, dtype=np.int32), self._everywhere)

    @cached_property
    def totals(self) -> Floats:
        """The sum of each region's row: (regions,)."""
        return np.asarray(self._group_totals.sum(axis=1))

    def draw(self, here: RegionIds, rng: np.random.Generator) -> RegionIds:
        """A region for each of ``here`` (people,), by the kernel from there.

        First a group of regions by its total, then a region of the group: about
        2 sqrt(regions) steps for a draw instead of the whole row.
        """
        made = np.empty(here.size, dtype=np.int32)
        block = max(1, _PAIRS_AT_ONCE // self._group_size)
        for first in range(0, here.size, block):
            part = slice(first, first + block)
            made[part] = self._draw_block(here[part], rng)
        return made

    def _draw_block(self, here: RegionIds, rng: np.random.Generator) -> RegionIds:
        group = _choose(self._group_totals[here], rng)
        member = group[:, None] * self._group_size + np.arange(self._group_size)
        exists = member < len(self.regions)
        member = np.where(exists, member, 0).astype(np.int32)
        weight = self.between(here[:, None], member) * exists
        return np.asarray(member[np.arange(here.size), _choose(weight, rng)])

    @cached_property
    def _group_totals(self) -> Floats:
        """(regions, groups): sums of each row over groups of neighbouring ids.

        The one place that looks at every pair, in blocks of rows.
        """
        count = len(self.regions)
        starts = np.arange(0, count, self._group_size)
        made = np.empty((count, starts.size))
        block = max(1, _PAIRS_AT_ONCE // count)
        for first in range(0, count, block):
            part = slice(first, first + block)
            rows = self.between(self._everywhere[part, None], self._everywhere)
            made[part] = np.add.reduceat(rows, starts, axis=1)
        return made

    @property
    def _group_size(self) -> int:
        return max(1, isqrt(len(self.regions)))

    @cached_property
    def _everywhere(self) -> RegionIds:
        return np.arange(len(self.regions), dtype=np.int32)


def _choose(weight: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    """A column of each row of ``weight`` (rows, columns), by its weight."""
    heap = np.cumsum(weight, axis=1)
    # random() is at most 1 - 2^-53, so the product rounds to less than the total.
    target = rng.random(len(weight)) * heap[:, -1]
    return np.asarray((heap <= target[:, None]).sum(axis=1))
