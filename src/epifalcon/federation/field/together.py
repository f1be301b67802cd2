"""Exchanges in one process: cohorts hear and send, and only sums are opened."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epifalcon.models.field.people import Cohort, add_up
from epifalcon.models.field.reading import Now
from epifalcon.models.field.tables import Manner, Sums, Told
from epifalcon.types import Floats, Probabilities


@dataclass(frozen=True, eq=False)
class Together:
    """Cohorts whose messages are added up as they are; nothing is protected.

    However people are dealt into cohorts, the sums have the same bits.
    """

    cohorts: Sequence[Cohort]

    def crowd(self) -> Floats:
        """How many people were where: (slots, 1 + regions)."""
        total = sum(cohort.crowd() for cohort in self.cohorts)
        return np.asarray(total, np.float64)

    def sweep(self, told: Told, manner: Manner, *, well: bool, tally: bool) -> Sums:
        """Tell everybody, and bring the sums of what they send."""
        return add_up(
            [
                cohort.sweep(told, manner, well=well, tally=tally)
                for cohort in self.cohorts
            ]
        )

    def end(self, told: Told, manner: Manner) -> None:
        """Tell everybody for the last time; nothing is sent."""
        self.sweep(told, manner, well=False, tally=False)

    def now(self, told: Told) -> Now:
        """Who is infected behind the last slot, cohort after cohort."""
        parts = [cohort.now(told) for cohort in self.cohorts]
        return Now(
            np.concatenate([part.aside for part in parts]),
            np.concatenate([part.tested for part in parts]),
            np.concatenate([part.ever for part in parts]),
        )

    @property
    def risk(self) -> Probabilities:
        """(people,) cohort after cohort, own tests aside."""
        return np.concatenate([cohort.risk for cohort in self.cohorts])
