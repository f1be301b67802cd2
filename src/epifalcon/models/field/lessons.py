"""What held-out people whose results are known teach the learned correction.

Each person by itself: of a linear layer the gradient of its own loss is the outer
product of what went in and of the slope of what came out, and both are kept apart,
so that whoever adds people up can bound each one first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from epifalcon.checks import same_length
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.models.field.calibrating import odds_of, result_chance
from epifalcon.models.field.correction import (
    MOST_BEND,
    MOST_ODDS,
    MOST_SHIFT,
    passed,
    standardised,
)
from epifalcon.models.field.settings import LAYERS
from epifalcon.types import Floats, Mask, Probabilities


@dataclass(frozen=True, eq=False)
class Lessons:
    """Held-out people; (people,) each, ``numbers`` (people, ``NUMBERS``)."""

    risk: Probabilities
    """By runs that did not know the person's results."""
    numbers: NDArray[np.float32]
    positive: Mask

    def __post_init__(self) -> None:
        same_length(risk=self.risk, numbers=self.numbers, positive=self.positive)

    def __len__(self) -> int:
        return len(self.risk)

    def of(self, some: Mask) -> "Lessons":
        """Those of the people who are in ``some``, (people,)."""
        return Lessons(self.risk[some], self.numbers[some], self.positive[some])


@dataclass(frozen=True, eq=False)
class LayerSlopes:
    """Of a layer y = W x + b: x (people, in), and each loss's slope in y."""

    weight: str
    bias: str
    inputs: Floats
    outputs: Floats
    """(people, out)"""


def slopes_of(
    arrays: Mapping[str, NDArray[np.float64]], lessons: Lessons, errors: TestErrors
) -> list[LayerSlopes]:
    """Every layer's, first to last, for the log loss of each person's own result."""
    inputs, fade = standardised(lessons.numbers, arrays)
    rows = passed(inputs, arrays)
    odds = np.clip(odds_of(lessons.risk), -MOST_ODDS, MOST_ODDS)
    squashed = np.tanh(rows[-1])
    most = np.stack([MOST_BEND * odds, np.full_like(odds, MOST_SHIFT)], axis=1)
    moved = fade[:, None] * most
    told = odds_of(lessons.risk) + (moved * squashed).sum(axis=1)
    pull = _slope(expit(told), lessons.positive, errors)
    slope = pull[:, None] * moved * (1 - squashed**2)
    found = []
    for layer in reversed(range(LAYERS)):
        before, weight = rows[layer], f"weight{layer}"
        found.append(LayerSlopes(weight, f"bias{layer}", before, slope))
        if layer:
            slope = (slope @ arrays[weight]) * (1 - before**2)
    return found[::-1]


def _slope(risk: Probabilities, positive: Mask, errors: TestErrors) -> Floats:
    """Of the log loss in the log odds of ``risk``; p - y where tests are right."""
    # Corrected odds end far from where a chance would be 0 or 1 in floating point.
    chance = result_chance(risk, errors)
    power = 1 - errors.false_positive - errors.false_negative
    pull = np.where(positive, -1 / chance, 1 / (1 - chance))
    return np.asarray(pull * power * risk * (1 - risk))
