import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from epifalcon.baselines.wasserstein import SinkhornSettings, day_profiles, likeness
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines import tiny
from tests.oracles.cities import cities
from tests.studies import town

EXACT = SinkhornSettings(sweeps=300)


def least_cost(one, other):
    """The distance by a linear programme, straight from the paper's definition."""
    days = len(one)
    lengths = [np.linalg.norm(each, axis=1) for each in (one, other)]
    masses = [
        length / length.sum() if length.any() else np.full(days, 1 / days)
        for length in lengths
    ]
    cost = np.ones((days, days))
    for here in range(days):
        for there in range(days):
            both = lengths[0][here] * lengths[1][there]
            if both:
                cost[here, there] -= one[here] @ other[there] / both
    rows = np.kron(np.eye(days), np.ones(days))
    columns = np.kron(np.ones(days), np.eye(days))
    found = linprog(
        cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate(masses)
    )
    return found.fun


def all_pairs(people):
    return torch.combinations(torch.arange(people)).t()


@settings(deadline=None, derandomize=True, max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 14]), st.floats(0, 0.9))
def test_likeness_is_that_of_the_linear_programme(seed, days, empty):
    rng = np.random.default_rng(seed)
    profiles = rng.exponential(size=(3, days, 6)) * (rng.random((3, days, 6)) > empty)
    pairs = all_pairs(3)
    found = 1 - likeness(profiles, pairs, EXACT)
    exact = [least_cost(profiles[one], profiles[other]) for one, other in pairs.t()]
    # Never below, and above by no more than what the entropy may cost.
    assert (found >= np.array(exact) - 1e-6).all()
    assert (found <= np.array(exact) + EXACT.softness * (1 + np.log(days))).all()


def test_the_usual_settings_are_near_enough_on_a_town_s_company():
    profiles, pairs = day_profiles(town.traces()).astype(float), all_pairs(12)
    usual = 1 - likeness(profiles, pairs, SinkhornSettings())
    exact = [least_cost(profiles[one], profiles[other]) for one, other in pairs.t()]
    assert np.abs(usual - exact).mean() < 0.04 * np.mean(exact)
    assert np.corrcoef(usual, exact)[0, 1] > 0.999


def test_equal_people_are_quite_alike_and_strangers_not_at_all():
    days = np.eye(4)[None].repeat(2, 0)
    other = np.zeros((1, 4, 8))
    other[0, :, 4:] = np.eye(4)
    profiles = np.concatenate([np.pad(days, ((0, 0), (0, 0), (0, 4))), other])
    found = likeness(profiles, all_pairs(3), EXACT)
    np.testing.assert_allclose(found, [1, 0, 0], atol=1e-9)


def test_a_pair_is_as_alike_as_its_reverse():
    profiles = np.random.default_rng(1).exponential(size=(6, 7, 4))
    pairs = all_pairs(6)
    there, back = (likeness(profiles, one, EXACT) for one in (pairs, pairs.flip(0)))
    np.testing.assert_allclose(there, back, atol=0.01)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(cities())
def test_profiles_hold_the_log_of_company(city):
    found = day_profiles(city)
    per_day = city.clock.slots_per_day
    assert found.shape == (city.people, city.clock.days, per_day)
    for slot, here in enumerate(city.by_slot):
        for person, region in enumerate(here):
            others = (here == region).sum() - 1 if region >= 0 else 0
            seen = found[person, slot // per_day, slot % per_day]
            assert seen == pytest.approx(np.log1p(others), abs=1e-6)


def test_nobody_met_means_nobody_alike():
    alone = tiny.city(np.tile(np.arange(3), (8, 1)), Clock(6.0, 2), 3)
    found = likeness(day_profiles(alone), all_pairs(3), EXACT)
    np.testing.assert_allclose(found, 0, atol=1e-12)
    assert likeness(day_profiles(alone), torch.empty(2, 0).long(), EXACT).shape == (0,)


@pytest.mark.parametrize("wrong", [{"softness": 0.001}, {"sweeps": 0}])
def test_settings_are_checked(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        SinkhornSettings(**wrong)
