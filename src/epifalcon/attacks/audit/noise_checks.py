"""Check that noise is fresh for every value, uncorrelated and as large as claimed.

Two values under the same noise differ by exactly what the noise should hide, and no
epsilon is left. The auditor looks at blanks, where noise is all that was sent: part
by part, since one small part without noise would drown in all the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.types import Floats

_AXES = ("rounds", "people", "places", "coordinates")
TOO_FAR = 6.0
"""Standard errors that chance does not reach: once in a billion tests."""


@dataclass(frozen=True)
class NoiseStatistics:
    """What the noise of blanks looks like."""

    repeats: int
    """Vectors that are equal, bit by bit, to another one."""
    correlation: float
    """The strongest correlation, in standard errors."""
    along: str
    """Between what: channels, rounds, people, places or coordinates."""
    sigma: float
    """The noise's standard deviation where it falls furthest short."""
    shortfall: float
    """How far ``sigma`` lies under the one claimed, in standard errors."""
    parts: tuple[str, ...] = ()
    """Those in which it repeats or falls short."""

    @property
    def repeated(self) -> bool:
        """Whether noise was used more than once, whole or in part."""
        return self.repeats > 0 or self.correlation > TOO_FAR

    @property
    def short(self) -> bool:
        """Whether there is less noise than claimed."""
        return self.shortfall > TOO_FAR


NOTHING_FOUND = NoiseStatistics(0, 0.0, "", 0.0, 0.0)


def look_at_noise(blank: Floats, sigma: float, part: str = "") -> NoiseStatistics:
    """Check ``blank``, (rounds, people, places, width), one part of one channel.

    Equal vectors are looked for among all; correlation between any two rounds and
    between neighbours along the other axes, which also shows noise that is used
    again in part, such as one number for all coordinates of a row. Less noise is
    looked for in all, and in each round, place and coordinate by itself. Without
    noise claimed there is nothing to find.
    """
    if blank.ndim != len(_AXES):
        raise DataError(f"blanks of {blank.ndim} axes must have {len(_AXES)}")
    if sigma == 0:
        return NOTHING_FOUND
    rounds = [_correlated(one, other) for one, other in combinations(blank, 2)]
    found = [(max(rounds, default=0.0), _AXES[0])]
    for axis, name in enumerate(_AXES[1:], start=1):
        moved = np.moveaxis(blank, axis, 0)
        found.append((_correlated(moved[:-1], moved[1:]), name))
    strongest, along = max(found)
    seen, shortfall = _furthest_short(blank, sigma)
    return worst(
        [NoiseStatistics(_repeats(blank), strongest, along, seen, shortfall)], [part]
    )


def shared_noise(one: Floats, other: Floats) -> NoiseStatistics:
    """Find noise of one channel that is used again in another of the same shape."""
    if one.shape != other.shape:
        raise DataError(f"blanks of {one.shape} and {other.shape} must be alike")
    again = np.intersect1d(_whole_rows(one), _whole_rows(other))
    correlation = _correlated(one, other)
    return NoiseStatistics(len(again), correlation, "channels", math.inf, 0.0)


def worst(found: Sequence[NoiseStatistics], parts: Sequence[str]) -> NoiseStatistics:
    """Combine what was found in several parts."""
    closest = max(found, key=lambda one: one.correlation)
    shortest = max(found, key=lambda one: one.shortfall)
    wrong = [
        name
        for name, one in zip(parts, found, strict=True)
        if name and (one.repeated or one.short)
    ]
    return NoiseStatistics(
        sum(one.repeats for one in found),
        closest.correlation,
        closest.along,
        shortest.sigma,
        shortest.shortfall,
        tuple(dict.fromkeys(wrong)),
    )


def _furthest_short(blank: Floats, sigma: float) -> tuple[float, float]:
    """Return the smallest noise seen, and by how many standard errors it falls short.

    Of all values and of every slice along an axis but people's, the worst. The lower
    tail of so many squares is lighter than that of a normal.
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
    _, times = np.unique(_whole_rows(blank), return_counts=True)
    return int(times[times > 1].sum())


def _whole_rows(blank: Floats) -> NDArray[np.void]:
    """View every vector as one value that can be compared."""
    vectors = np.ascontiguousarray(blank.reshape(-1, blank.shape[-1]))
    kind = np.dtype((np.void, vectors.itemsize * vectors.shape[1]))
    return vectors.view(kind).ravel()
