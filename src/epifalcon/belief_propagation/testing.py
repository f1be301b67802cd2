"""Why people were tested: evidence from being tested, and from not being tested.

Everybody is tested at a background rate per day, and at an additional rate in the days
after the onset of symptoms, until the first positive test. Both rates are estimated
between sweeps by expectation maximisation from sums over people: tests and people, in
all and in the days after an onset, by day. Tests for reasons that do not depend on
infection are left out; a stated onset is of this disease or of another cause. Onset
follows infection by the latent time and the time to symptoms, for the share of people
who develop any.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_kinds import IGNORABLE, REASONS
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats, Mask

SYMPTOM_DAYS = 7
"""Days after the onset of symptoms in which people are tested because of them."""
_DELAY_DAYS = 28
_BACKGROUND, _SYMPTOMATIC = 0.002, 0.15
"""Initial rates per day; the second one is also the centre of its prior."""
_PRIOR_WEIGHT = 0.5
"""Weight of the prior of the log symptomatic rate. The tests determine the product of
this rate and the size of the outbreak much better than either alone."""
_PRIOR_DAYS = 5.0
"""Weight of the mean background rate in that of a day, in expected tests."""
IN_WINDOW, TESTS, WINDOW_DAYS, PERSON_DAYS = range(4)
"""Rows of a tally: tests in the days after an onset, all tests, and numbers of people
in these days and in all."""


def initial_rates(days: int) -> Floats:
    """Return background rates by day, then the symptomatic rate, (days + 1,)."""
    return np.append(np.full(days, _BACKGROUND), _SYMPTOMATIC)


RANDOM: Floats = np.empty(0)
"""Rates where tests are random, and nothing is estimated."""


def updated_rates(rates: Floats, tally: Floats) -> Floats:
    """Return the rates after one step of expectation maximisation."""
    if not tally.size:
        return rates
    background, symptomatic = rates[:-1], rates[-1]
    either = 1 - (1 - background) * (1 - symptomatic)
    because = tally[IN_WINDOW] * symptomatic / either
    found = because.sum() / max(tally[WINDOW_DAYS].sum(), 1.0)
    found = np.clip(found, 1e-3, 0.9) ** (1 - _PRIOR_WEIGHT)
    found *= _SYMPTOMATIC**_PRIOR_WEIGHT
    others = tally[TESTS] - tally[IN_WINDOW] * (1 - background / either)
    mean = max(others.sum(), 1.0) / max(tally[PERSON_DAYS].sum(), 1.0)
    by_day = (others + _PRIOR_DAYS) / (tally[PERSON_DAYS] + _PRIOR_DAYS / mean)
    return np.append(np.clip(by_day, 1e-7, 0.9), found)


@dataclass(frozen=True, eq=False)
class TestHistories:
    """On which days people were tested; untested people share the first history.

    The last history is that of people whose tests are excluded, and is no evidence.
    """

    # Not a class of tests: pytest must not collect it.
    __test__ = False

    of_person: NDArray[np.int32]
    """History of each person, (people,)."""
    tested: Floats
    """1 on days with a test, (histories, days)."""
    at_risk: Floats
    """1 until the first positive test, (histories, days); 0 for excluded people."""
    onset: Floats
    """Probability of an onset of symptoms k days after infection; sums to the share of
    people who develop symptoms."""
    stated: NDArray[np.int64]
    """History, day of the test and stated day of onset, (tests with an onset, 3).
    Symptoms of this disease, or of other causes, began on that day."""

    @classmethod
    def of(
        cls,
        known: TestResults,
        clock: Clock,
        pathogen: Pathogen,
        rule: OutbreakSettings,
        excluded: Mask,
    ) -> "TestHistories":
        """Collect the histories; ``excluded`` (people,) are no evidence."""
        people, which = np.unique(known.person, return_inverse=True)
        day = known.slot // clock.slots_per_day
        counts = ~np.isin(known.reason, [REASONS.index(one) for one in IGNORABLE])
        of_person = np.zeros(known.people, np.int32)
        of_person[people] = 1 + np.arange(len(people))
        of_person[excluded] = 1 + len(people)
        tested = np.zeros((2 + len(people), clock.days))
        tested[1 + which[counts], day[counts]] = 1
        last = np.full(len(tested), clock.days)
        np.minimum.at(last, 1 + which[known.positive], day[known.positive])
        at_risk = (np.arange(clock.days) <= last[:, None]).astype(np.float64)
        at_risk[-1] = 0
        # The latent time, then the time to symptoms, in steps of a day.
        days = np.arange(_DELAY_DAYS)
        latent, wait = np.exp(-np.outer([pathogen.alpha, rule.onset_rate], days))
        onset = np.convolve(latent, wait)[:_DELAY_DAYS]
        onset *= rule.symptomatic_share / onset.sum()
        tested *= at_risk
        first = known.onset // clock.slots_per_day
        stated = np.stack([1 + which, day, first], axis=1)[counts & (known.onset >= 0)]
        stated = np.unique(stated[tested[stated[:, 0], stated[:, 1]] > 0], axis=0)
        return cls(of_person, tested, at_risk, onset, stated)

    def likelihood(self, rates: Floats) -> Floats:
        """Return the likelihood by day of infection, (histories, days + 1).

        It is relative to that without infection, which is the last column.
        """
        by_day = self._by_infection(self._by_onset(rates))
        rest = 1 - self.onset.sum()
        return np.pad(rest + by_day, ((0, 0), (0, 1)), constant_values=1.0)

    def log_never(self, rates: Floats) -> Floats:
        """Return the log likelihood without infection, (people,)."""
        background = rates[:-1]
        by_day = np.where(self.tested > 0, np.log(background), np.log1p(-background))
        return np.asarray((self.at_risk * by_day).sum(axis=1)[self.of_person])

    def tally(self, infected: Floats, rates: Floats) -> Floats:
        """Sum tests and people by day, (4, days).

        ``infected`` (histories, days) are the expected infections by day.
        """
        days, by_onset = infected.shape[1], self._by_onset(rates)
        share = infected / (1 - self.onset.sum() + self._by_infection(by_onset))
        onsets = np.zeros_like(infected)
        for delay, chance in enumerate(self.onset[:days]):
            onsets[:, delay:] += chance * share[:, : days - delay]
        onsets *= by_onset[:, :days]
        total = np.pad(onsets.cumsum(axis=1), ((0, 0), (1, 0)))
        begin = np.maximum(np.arange(days) + 1 - SYMPTOM_DAYS, 0)
        window = (total[:, 1:] - total[:, begin]) * self.at_risk
        count = np.bincount(self.of_person, minlength=len(self.tested))[:, None]
        in_window = window * self._without_onset
        history, day, onset = self.stated.T
        np.add.at(in_window, (history, day), onsets[history, onset])
        return np.stack(
            [
                in_window.sum(axis=0),
                (count * self.tested).sum(axis=0),
                window.sum(axis=0),
                (count * self.at_risk).sum(axis=0),
            ]
        )

    @property
    def _without_onset(self) -> Floats:
        """1 on days with a test without a stated onset, (histories, days)."""
        found = self.tested.copy()
        found[self.stated[:, 0], self.stated[:, 1]] = 0
        return found

    def _by_onset(self, rates: Floats) -> Floats:
        """Return the relative likelihood by onset, (histories, days + delays)."""
        background, symptomatic = rates[:-1], rates[-1]
        either = 1 - (1 - background) * (1 - symptomatic)
        gain = np.where(self.tested > 0, 0.0, np.log1p(-symptomatic))
        gain += self._without_onset * np.log(either / background)
        total = np.pad((gain * self.at_risk).cumsum(axis=1), ((0, 0), (1, 0)))
        day = np.arange(len(background))
        end = np.minimum(day + SYMPTOM_DAYS, len(background))
        found = np.exp(total[:, end] - total[:, day])
        # Symptoms of other causes began on any of the days before the test.
        history, test, first = self.stated.T
        np.multiply.at(
            found, (history, first), 1 + symptomatic * SYMPTOM_DAYS / background[test]
        )
        return np.pad(found, ((0, 0), (0, len(self.onset))), constant_values=1.0)

    def _by_infection(self, by_onset: Floats) -> Floats:
        """Return the mean over onsets of each day of infection, (histories, days)."""
        days = by_onset.shape[1] - len(self.onset)
        found = np.zeros((len(by_onset), days))
        for delay, chance in enumerate(self.onset):
            found += chance * by_onset[:, delay : delay + days]
        return found
