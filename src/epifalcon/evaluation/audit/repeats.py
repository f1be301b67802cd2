"""Noise must be drawn anew for every value: does it repeat, lean or fall short?

Two values under the same noise differ by exactly what the noise should hide, and no
epsilon is left. The auditor looks at blanks, where noise is all that was sent.
"""

import math
from dataclasses import dataclass

import numpy as np

from epifalcon.errors import DataError
from epifalcon.types import Floats

_AXES = ("channels", "rounds", "people", "places", "coordinates")
TOO_FAR = 6.0
"""Standard errors that chance does not reach: once in a billion tests."""


@dataclass(frozen=True)
class NoiseFound:
    """What the noise of blanks looks like."""

    repeats: int
    """Vectors that are equal, bit by bit, to another one."""
    correlation: float
    """The strongest correlation of neighbours, in standard errors."""
    along: str
    """Between what: channels, rounds, people, places or coordinates."""
    sigma: float
    """The noise's standard deviation as seen."""
    shortfall: float
    """How far ``sigma`` lies under the one claimed, in standard errors."""

    @property
    def repeated(self) -> bool:
        """Whether noise was used more than once, whole or in part."""
        return self.repeats > 0 or self.correlation > TOO_FAR

    @property
    def short(self) -> bool:
        """Whether there is less noise than claimed."""
        return self.shortfall > TOO_FAR


def look_at_noise(blank: Floats, sigma: float) -> NoiseFound:
    """Judge ``blank``, (channels, rounds, people, places, width), under one sigma.

    Equal vectors are looked for among all; correlation between neighbours along
    each axis, which also shows noise that is used again in part, such as one number
    for all coordinates of a row. Without noise claimed there is nothing to find.
    """
    if blank.ndim != len(_AXES):
        raise DataError(f"blanks of {blank.ndim} axes must have {len(_AXES)}")
    if sigma == 0:
        return NoiseFound(0, 0.0, "", 0.0, 0.0)
    seen = math.sqrt(float(np.mean(blank**2)))
    error = sigma / math.sqrt(2 * blank.size)
    strongest, along = max(
        (_correlation(blank, axis), name) for axis, name in enumerate(_AXES)
    )
    return NoiseFound(_repeats(blank), strongest, along, seen, (sigma - seen) / error)


def _correlation(blank: Floats, axis: int) -> float:
    """Of neighbours along an axis, in standard errors; 0 without neighbours."""
    moved = np.moveaxis(blank, axis, 0)
    here, there = moved[:-1], moved[1:]
    size = float(np.sum(here**2 * there**2))
    return abs(float(np.sum(here * there))) / math.sqrt(size) if size else 0.0


def _repeats(blank: Floats) -> int:
    vectors = np.ascontiguousarray(blank.reshape(-1, blank.shape[-1]))
    whole_rows = np.dtype((np.void, vectors.itemsize * vectors.shape[1]))
    _, times = np.unique(vectors.view(whole_rows), return_counts=True)
    return int(times[times > 1].sum())
