"""Testing histories as evidence, against enumeration of the day of onset."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.belief_propagation.testing import (
    SYMPTOM_DAYS,
    TestHistories,
    initial_rates,
    updated_rates,
)
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_kinds import REASONS
from epifalcon.mobility.clock import Clock
from tests.epidemic.worlds import known_of

DAYS = 20
CLOCK = Clock(slot_hours=12, days=DAYS)
# Untested; negative; positive; negative, then positive; excluded.
TESTS = [(1, 9, 0), (2, 30, 1), (3, 7, 0), (3, 21, 1), (4, 11, 1)]
RATES = np.append(np.linspace(0.01, 0.05, DAYS), 0.2)


def histories(tests=TESTS, people=5, excluded=(4,)):
    mask = np.isin(np.arange(people), excluded)
    known = known_of(people, tests)
    return TestHistories.of(known, CLOCK, SARS_COV_2, OutbreakSettings(), mask)


def chance(found, history, onset, rates):
    """The probability of a history, of which symptoms begin on day ``onset``."""
    chance = 1.0
    for day in range(DAYS):
        rate = rates[day]
        if onset is not None and onset <= day < onset + SYMPTOM_DAYS:
            rate = 1 - (1 - rate) * (1 - rates[-1])
        if found.at_risk[history, day]:
            chance *= rate if found.tested[history, day] else 1 - rate
    return chance


def test_the_likelihood_is_the_mean_over_onsets():
    found = histories()
    table = found.likelihood(RATES)
    assert found.onset.sum() == pytest.approx(0.65)
    for person, day in itertools.product(range(5), range(DAYS)):
        history = found.of_person[person]
        never = chance(found, history, None, RATES)
        wanted = (1 - found.onset.sum()) * never
        for delay, probability in enumerate(found.onset):
            onset = day + delay if day + delay < DAYS else None
            wanted += probability * chance(found, history, onset, RATES)
        assert table[history, day] == pytest.approx(wanted / never)
        assert table[history, -1] == 1
    assert (table[found.of_person[4]] == 1).all()


def test_nobody_is_at_risk_of_a_test_after_a_positive_one():
    found = histories()
    assert found.at_risk[found.of_person[2]].sum() == 16
    assert found.at_risk[found.of_person[1]].sum() == DAYS
    assert found.tested[found.of_person[:4]].sum() == 4


def test_the_tally_counts_tests_and_days_of_known_onsets():
    """With one onset for certain, the expected numbers are counts."""
    found = histories()
    sure = np.zeros(28)
    sure[3] = 1.0
    object.__setattr__(found, "onset", sure)
    infected = np.zeros((len(found.tested), DAYS))
    infected[found.of_person[1], 1] = 1
    tally = found.tally(infected, RATES)
    window = np.zeros(DAYS)
    window[4 : 4 + SYMPTOM_DAYS] = 1
    np.testing.assert_allclose(tally[2], window)
    np.testing.assert_allclose(tally[0], window * found.tested[found.of_person[1]])
    assert tally[1].sum() == 4
    assert tally[3].sum() == found.at_risk[[0, 1, 2, 3]].sum()


def test_the_rates_of_a_known_outbreak_are_found():
    rng, people = np.random.default_rng(1), 20_000
    true = np.append(np.full(DAYS, 0.004), 0.1)
    infected = rng.integers(2 * DAYS, size=people)
    onset = infected + rng.exponential(1 / SARS_COV_2.alpha, people)
    onset = np.floor(onset + rng.exponential(2, people) + 0.5)
    onset[(infected >= DAYS) | (rng.random(people) > 0.65)] = 10**6
    tests = []
    for day in range(DAYS):
        ill = (onset <= day) & (day < onset + SYMPTOM_DAYS)
        rate = 1 - (1 - true[day]) * (1 - true[-1] * ill)
        tests += [
            (one, 2 * day, 0) for one in np.flatnonzero(rng.random(people) < rate)
        ]
    found = histories(tests, people, ())
    table = np.zeros((len(found.tested), DAYS))
    early = infected < DAYS
    np.add.at(table, (found.of_person[early], infected[early]), 1)
    rates = initial_rates(DAYS)
    for _ in range(30):
        rates = updated_rates(rates, found.tally(table, rates))
    assert rates[:-1].mean() == pytest.approx(0.004, rel=0.1)
    # Half way, in logarithms, between the data and the prior's 0.15.
    assert rates[-1] == pytest.approx((0.1 * 0.15) ** 0.5, rel=0.1)


def known_with(tests, people=3, **columns):
    """Tests (person, slot, result) with columns ``reason`` and ``onset``."""
    known = known_of(people, tests)
    return replace(known, **{key: np.array(one) for key, one in columns.items()})


def test_tests_for_ignorable_reasons_are_no_evidence():
    tests = [(0, 9, 0), (1, 11, 0), (1, 15, 0), (2, 20, 1)]
    number = [REASONS.index(one) for one in ("random", "symptoms", "contact", "random")]
    known = known_with(tests, reason=np.array(number, np.int8))
    nobody = np.zeros(3, np.bool_)
    found = TestHistories.of(known, CLOCK, SARS_COV_2, OutbreakSettings(), nobody)
    assert found.tested[found.of_person].sum(axis=1).tolist() == [0, 1, 0]
    # After a positive test, whatever its reason, nobody is at risk of another.
    assert found.at_risk[found.of_person[2]].sum() == 11


def test_a_stated_onset_is_of_this_disease_or_another_cause():
    """Against the sum over onsets, other causes having begun on any of seven days."""
    known = known_with([(0, 24, 0)], people=1, onset=np.array([20], np.int32))
    nobody = np.zeros(1, np.bool_)
    found = TestHistories.of(known, CLOCK, SARS_COV_2, OutbreakSettings(), nobody)
    (history,), test, stated = found.of_person, 12, 10

    def joint(onset):
        """Probability of the days of tests and of the stated onset."""
        chance = 1.0
        for day in range(DAYS):
            ill = onset is not None and onset <= day < onset + SYMPTOM_DAYS
            if day != test:
                chance *= (1 - RATES[day]) * (1 - RATES[-1] * ill)
            else:
                chance *= RATES[day] / SYMPTOM_DAYS + RATES[-1] * (onset == stated)
        return chance

    table = found.likelihood(RATES)
    for day in range(DAYS):
        wanted = (1 - found.onset.sum()) * joint(None)
        for delay, probability in enumerate(found.onset):
            onset = day + delay if day + delay < DAYS else None
            wanted += probability * joint(onset)
        assert table[history, day] == pytest.approx(wanted / joint(None))


def test_the_likelihood_without_infection_is_that_of_the_background_rates():
    found = histories()
    wanted = [chance(found, history, None, RATES) for history in found.of_person]
    np.testing.assert_allclose(np.exp(found.log_never(RATES)), wanted)
