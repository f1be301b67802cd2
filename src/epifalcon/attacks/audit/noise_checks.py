"""Check that noise is fresh for every value, uncorrelated and as large as claimed.

The difference of two values with equal noise contains no noise, so there is no
guarantee. The auditor checks blanks, which contain only noise, part by part: a small
part without noise would not be detected in the total.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

from epifalcon.privacy.gaussian import GRID
from epifalcon.types import Floats

_AXES = ("rounds", "people", "places", "coordinates")
_BY_CHANCE = 1e-9
TOO_FAR = 6.0
"""Threshold in standard errors, exceeded by chance once in a billion tests."""


@dataclass(frozen=True)
class NoiseStatistics:
    """Statistics of the noise of blanks."""

    repeats: int
    """Number of vectors bitwise equal to another one; 0 if chance explains them."""
    correlation: float
    """Largest correlation found, in standard errors."""
    along: str
    """Axis of ``correlation``: channels, rounds, people, places or coordinates."""
    sigma: float
    """Observed standard deviation of the noise where the shortfall is largest."""
    shortfall: float
    """Claimed minus observed ``sigma``, in standard errors."""
    parts: tuple[str, ...] = ()
    """Names of the parts with repeated or too little noise."""

    @property
    def repeated(self) -> bool:
        """True if noise was used more than once, completely or in part."""
        return self.repeats > 0 or self.correlation > TOO_FAR

    @property
    def short(self) -> bool:
        """True if there is less noise than claimed."""
        return self.shortfall > TOO_FAR


NOTHING_FOUND = NoiseStatistics(0, 0.0, "", 0.0, 0.0)


def check_noise(blank: Floats, sigma: float) -> NoiseStatistics:
    """Check the noise in ``blank`` (rounds, people, places, width), part of a channel.

    Counts vectors that occur twice. Correlations are computed between any two
    rounds and between neighbours along the other axes, which also detects partly
    reused noise, such as one number for all coordinates of a row. The noise scale is
    checked in total and for each round, place and coordinate. With ``sigma`` 0 nothing
    is checked.
    """
    if sigma == 0:
        return NOTHING_FOUND
    rounds = [_correlated(one, other) for one, other in combinations(blank, 2)]
    found = [(max(rounds, default=0.0), _AXES[0])]
    for axis, name in enumerate(_AXES[1:], start=1):
        moved = np.moveaxis(blank, axis, 0)
        found.append((_correlated(moved[:-1], moved[1:]), name))
    strongest, along = max(found)
    seen, shortfall = _furthest_short(blank, sigma)
    return NoiseStatistics(_repeats(blank), strongest, along, seen, shortfall)


def shared_noise(one: Floats, other: Floats) -> NoiseStatistics:
    """Check whether two channels of the same shape share noise."""
    mine, theirs = _whole_rows(one), _whole_rows(other)
    again = len(np.intersect1d(mine, theirs))
    again = _unlikely(again, len(mine) * len(theirs), one.shape[-1])
    correlation = _correlated(one, other)
    return NoiseStatistics(again, correlation, "channels", math.inf, 0.0)


def worst(found: Sequence[NoiseStatistics], parts: Sequence[str]) -> NoiseStatistics:
    """Combine the statistics of several parts; keep the worst value of each."""
    closest = max(found, key=lambda one: one.correlation)
    shortest = max(found, key=lambda one: one.shortfall)
    pairs = zip(parts, found, strict=True)
    wrong = [name for name, one in pairs if name and (one.repeated or one.short)]
    return NoiseStatistics(
        sum(one.repeats for one in found),
        closest.correlation,
        closest.along,
        shortest.sigma,
        shortest.shortfall,
        tuple(dict.fromkeys(wrong)),
    )


def _furthest_short(blank: Floats, sigma: float) -> tuple[float, float]:
    """Return the smallest noise scale and its shortfall in standard errors.

    Computed for all values and for each slice along every axis except people; the
    worst case is returned.
    """
    squares = blank**2
    worst_seen, worst_shortfall = 0.0, -math.inf
    for axes in ((0, 1, 2, 3), (1, 2, 3), (0, 1, 3), (0, 1, 2)):
        seen = np.sqrt(squares.mean(axis=axes)).reshape(-1)
        error = sigma / math.sqrt(2 * blank.size / len(seen))
        least = float(seen.min())
        if (shortfall := (sigma - least) / error) > worst_shortfall:
            worst_seen, worst_shortfall = least, shortfall
    return worst_seen, worst_shortfall


def _correlated(here: Floats, there: Floats) -> float:
    size = float(np.sum(here**2 * there**2))
    return abs(float(np.sum(here * there))) / math.sqrt(size) if size else 0.0


def _repeats(blank: Floats) -> int:
    vectors = _whole_rows(blank)
    _, times = np.unique(vectors, return_counts=True)
    equal = int(times[times > 1].sum())
    return _unlikely(equal, math.comb(len(vectors), 2), blank.shape[-1])


def _unlikely(equal: int, pairs: int, width: int) -> int:
    """Return ``equal``, or 0 if as many vectors are equal on a grid by chance."""
    expected = pairs * (GRID / (2 * math.sqrt(math.pi))) ** width
    return equal if equal > 2 * poisson.isf(_BY_CHANCE, expected) else 0


def _whole_rows(blank: Floats) -> NDArray[np.void]:
    """Return every vector as one comparable value (a view of its bytes)."""
    vectors = np.ascontiguousarray(blank.reshape(-1, blank.shape[-1]))
    kind = np.dtype((np.void, vectors.itemsize * vectors.shape[1]))
    return vectors.view(kind).ravel()
