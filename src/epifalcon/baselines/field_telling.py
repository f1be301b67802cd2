"""From what the field believes to the risk that is told, by held-out people alone.

Runs of the field that did not know some people's results show how far the risks of
such people can be believed. What they show is put on the run that knew more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.models.field.calibrating import AS_IT_IS, Bend, choose_bend
from epifalcon.types import Mask, Probabilities

LEAST_FOLDS = 3
"""With fewer, a run without a fold and the next one would know no test at all."""


@dataclass(frozen=True, eq=False)
class Held:
    """A run that did not know some people's results."""

    risk: Probabilities
    """(people,) of everybody, own tests aside."""
    out: Mask
    """(people,) whose results it did not know, and who can be judged by them."""


@dataclass(frozen=True, eq=False)
class Telling:
    """How risks are told, found from held-out people."""

    bend: Bend = AS_IT_IS

    def __call__(self, risk: Probabilities) -> Probabilities:
        """The risks as they are told."""
        return self.bend(risk)

    def as_plain(self) -> dict[str, float]:
        """The figures for the log."""
        return {"slope": self.bend.slope, "offset": self.bend.offset}


def find_telling(
    risk: Probabilities, held: Sequence[Held], known: Known, errors: TestErrors
) -> Telling:
    """How to tell ``risk`` (people,), of a run that knew more than those in ``held``.

    The bend is fitted on people held out. A run that knows more tests can be
    bolder or shyer as a whole; but what is expected of people without test is the
    same before and after a test of others, so their mean is taken from ``held``.
    """
    if not held:
        return Telling()
    told = np.concatenate([one.risk[one.out] for one in held])
    positive = np.concatenate([known.status[one.out] == 1 for one in held])
    bend = choose_bend(told, positive, errors)
    if bend == AS_IT_IS:
        return Telling()
    untested = ~known.tested
    means = [bend(one.risk[untested]).mean() for one in held if untested.any()]
    if means:
        bend = bend.with_mean(risk[untested], float(np.mean(means)))
    return Telling(bend)
