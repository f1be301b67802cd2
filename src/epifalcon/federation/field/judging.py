"""How well laws tell held-out people, as sums that may leave: exact, without names.

A law is chosen by the mean of what it gains on held-out people and by the standard
error of that (``models.field.choosing``). Both follow from sums over people: of each
law's losses and of the products of any two. Losses are whole multiples of a power of
two, so these sums are exact however people are split.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from epifalcon.models.field.choosing import wins
from epifalcon.models.field.settings import ALIKE, LAWS, Law
from epifalcon.types import Floats

STEPS = 2.0**24


@dataclass(frozen=True, eq=False)
class Judgement:
    """Sums of held-out people's losses under each law, in the order of ``LAWS``."""

    people: int
    total: Floats
    """(laws,)"""
    products: Floats
    """(laws, laws)"""

    @classmethod
    def of(cls, lost: Floats) -> "Judgement":
        """Of losses (people, laws)."""
        lost = _on_grid(lost)
        products = _on_grid(lost[:, :, None] * lost[:, None, :])
        return cls(len(lost), lost.sum(axis=0), products.sum(axis=0))

    @classmethod
    def none(cls) -> "Judgement":
        """Of nobody."""
        return cls.of(np.zeros((0, len(LAWS))))

    def __add__(self, other: "Judgement") -> "Judgement":
        return Judgement(
            self.people + other.people,
            self.total + other.total,
            self.products + other.products,
        )

    def best(self, among: Collection[Law] = LAWS) -> Law:
        """The law that loses least; the simpler one in doubt.

        As ``choosing.choose`` has it: a richer one must win by a standard error
        over the best of the simpler ones.
        """
        best, *richer = (number for number, law in enumerate(LAWS) if law in among)
        for law in richer:
            if self.people >= 2 and self._wins(law, best):
                best = law
        return LAWS[best]

    def _wins(self, law: int, best: int) -> bool:
        gain = float(self.total[best] - self.total[law]) / self.people
        both = self.products[best, law]
        squares = self.products[best, best] + self.products[law, law] - 2 * both
        spread = max(float(squares) - self.people * gain * gain, 0.0)
        error = np.sqrt(spread / (self.people - 1) / self.people)
        richer = not {LAWS[law], LAWS[best]} <= ALIKE
        return wins(gain, float(error), richer=richer)


def _on_grid(values: Floats) -> Floats:
    return np.asarray(np.rint(values * STEPS) / STEPS)
