"""Tested people asked fold by fold, their results masked in everybody's inputs.

For learners that are fitted in one go. What is told of a person in its fold comes
from inputs and a model that never saw a result of that fold.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds, without
from epifalcon.types import Floats, Mask, PersonIds

Features = Callable[[NDArray[np.int8]], Floats]
"""From visible results, (people,), to the inputs of everybody: (people, inputs)."""


@dataclass(frozen=True, eq=False)
class Fold:
    """What is shown to learn from, and who is asked."""

    x: Floats
    """(people learnt from, inputs), each without the person's own result."""
    infected: Mask
    """(people learnt from,)"""
    asked: PersonIds
    """(asked,)"""
    asked_x: Floats
    """(asked, inputs)"""


def folds_of(
    known: Known, features: Features, folds: int, rng: np.random.Generator
) -> Iterator[Fold]:
    """The tested people in ``folds`` parts by lot; parts without people are left out.

    Every tested person is asked once.
    """
    dealt = blind_folds(known, folds, rng)
    for number in range(folds):
        asked = np.flatnonzero(dealt == number).astype(np.int32)
        seen = without(known, asked)
        if len(asked) and seen.tested.any():
            x = features(seen.status)
            yield Fold(x[seen.tested], _infected(seen), asked, x[asked])


def whole_of(known: Known, features: Features) -> Fold:
    """All tests shown, and everybody asked."""
    x = features(known.status)
    everybody = np.arange(known.people, dtype=np.int32)
    return Fold(x[known.tested], _infected(known), everybody, x)


def log_loss(risk: Floats, infected: Mask) -> float:
    """The mean of -log of the probability that was given to what came true."""
    given = np.where(infected, risk, 1 - risk)
    return float(-np.log(np.clip(given, 1e-15, 1)).mean())


def _infected(known: Known) -> Mask:
    return np.equal(known.status[known.tested], 1)
