import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.epidemic.cases import reported_cases
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.outbreak import ASYMPTOMATIC, EXPOSED, SYMPTOMATIC
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import SettingsError
from tests.epidemic.worlds import FAST, mixing_city

CASES = settings(max_examples=40, deadline=None, derandomize=True)
CITY = mixing_city(people=300, regions=12)
LAST = CITY.slots - 1


def outbreak_of(seed=0):
    rule = OutbreakSettings(seed_count=9, kappa=0.6)
    return simulate(CITY, FAST, rule, np.random.default_rng(seed))


OUTBREAK = outbreak_of()


def labels_of(seed=0, outbreak=OUTBREAK, **chosen):
    rng = np.random.default_rng(seed)
    return draw_labels(outbreak, LabelSettings(**chosen), rng)


def label_settings():
    return st.builds(
        LabelSettings,
        label_share=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
        target=st.sampled_from(["ever", "current"]),
        false_positive=st.sampled_from([0.0, 0.2]),
        false_negative=st.sampled_from([0.0, 0.3]),
        test_days=st.sampled_from([None, (0, 5), (2, 3), (5, 5)]),
    )


@CASES
@given(label_settings(), st.integers(0, 2**32))
def test_everybody_is_either_known_or_hidden(chosen, seed):
    labels = draw_labels(OUTBREAK, chosen, np.random.default_rng(seed))
    truth = labels.hidden.open("a test")
    assert len(labels.known.person) == round(chosen.label_share * CITY.people)
    everybody = np.concatenate([labels.known.person, truth.person])
    assert sorted(everybody.tolist()) == list(range(CITY.people))


@CASES
@given(label_settings(), st.integers(0, 2**32))
def test_held_out_labels_do_not_affect_test_results(chosen, seed):
    labels = draw_labels(OUTBREAK, chosen, np.random.default_rng(seed))
    hidden = labels.hidden.open("a test").person
    changed = {}
    for name in ("infection_slot", "infectious_slot", "onset_slot", "recovery_slot"):
        array = getattr(OUTBREAK, name).copy()
        array[hidden] = np.where(array[hidden] >= 0, -1, 0)
        changed[name] = array
    flipped = dataclasses.replace(OUTBREAK, **changed)
    again = draw_labels(flipped, chosen, np.random.default_rng(seed))
    for name in ("people", "person", "positive", "slot", "status"):
        mine, other = getattr(labels.known, name), getattr(again.known, name)
        np.testing.assert_array_equal(mine, other)
    cases, others = (reported_cases(one.known, CITY) for one in (labels, again))
    assert cases.by_region_and_day.tobytes() == others.by_region_and_day.tobytes()
    assert cases.unplaced == others.unplaced
    if len(hidden) and chosen.target == "ever":
        truth = labels.hidden.open("a test").infected
        assert (truth != again.hidden.open("a test").infected).all()


@pytest.mark.parametrize("target", ["ever", "current"])
@pytest.mark.parametrize("test_days", [None, (1, 4)])
def test_perfect_tests_give_the_state_at_their_slot(target, test_days):
    known = labels_of(label_share=1.0, target=target, test_days=test_days).known
    current = (EXPOSED, ASYMPTOMATIC, SYMPTOMATIC)
    tests = known.person, known.positive, known.slot
    for person, positive, slot in zip(*tests, strict=True):
        state = OUTBREAK.state_at(int(slot))[person]
        assert positive == (state > 0 if target == "ever" else state in current)
    if test_days is None:
        assert (known.slot == LAST).all()
    else:
        days = known.slot // CITY.clock.slots_per_day
        assert set(days.tolist()) == {1, 2, 3, 4}


def test_held_out_labels_are_the_state_at_the_end():
    truth = labels_of(label_share=0.0, target="current", test_days=(0, 0)).hidden
    state = OUTBREAK.state_at(LAST)
    opened = truth.open("a test")
    np.testing.assert_array_equal(
        opened.infected, np.isin(state, (EXPOSED, ASYMPTOMATIC, SYMPTOMATIC))
    )


def test_wrong_results_come_at_their_rates():
    wrong = np.zeros(2)
    infected = OUTBREAK.ever_infected()
    for seed in range(60):
        rates = {"false_positive": 0.1, "false_negative": 0.25}
        positive = labels_of(seed, label_share=1.0, **rates).known.positive
        wrong += [(positive & ~infected).sum(), (~positive & infected).sum()]
    tests = 60 * np.array([(~infected).sum(), infected.sum()])
    for count, total, rate in zip(wrong, tests, (0.1, 0.25), strict=True):
        assert stats.binomtest(int(count), int(total), rate).pvalue > 1e-3


def test_held_out_labels_and_others_results_do_not_depend_on_test_errors():
    rates = ({"false_positive": r, "false_negative": 2 * r} for r in (0.0, 0.1))
    right, wrong = (labels_of(**rate) for rate in rates)
    one, other = (each.hidden.open("a test") for each in (right, wrong))
    np.testing.assert_array_equal(one.infected, other.infected)
    np.testing.assert_array_equal(right.known.person, wrong.known.person)
    # More errors only add wrong results.
    worse = labels_of(false_positive=0.3, false_negative=0.4).known
    flipped = right.known.positive != wrong.known.positive
    assert flipped.any()
    assert (worse.positive != right.known.positive)[flipped].all()


def test_everybody_is_as_likely_to_be_tested():
    counts = np.zeros(CITY.people)
    for seed in range(300):
        counts[labels_of(seed, label_share=0.4).known.person] += 1
    # Drawn without return, so the variance is that of a Bernoulli of 0.4.
    scaled = (counts - 120) / np.sqrt(300 * 0.24)
    assert stats.chi2.sf((scaled**2).sum(), CITY.people) > 1e-3
    assert abs(scaled).max() < 4.5


def test_a_larger_share_adds_people_and_changes_nobody():
    few = labels_of(label_share=0.2, test_days=(1, 5), false_negative=0.3).known
    many = labels_of(label_share=0.6, test_days=(1, 5), false_negative=0.3).known
    same = np.isin(many.person, few.person)
    np.testing.assert_array_equal(many.person[same], few.person)
    np.testing.assert_array_equal(many.slot[same], few.slot)
    np.testing.assert_array_equal(many.positive[same], few.positive)


def test_test_days_past_the_clock_are_named():
    with pytest.raises(SettingsError, match=r"test_days.*6.*5"):
        labels_of(test_days=(2, 6))
