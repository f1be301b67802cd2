"""Noise that repeats, leans or falls short is found; fresh noise is left alone."""

import numpy as np
import pytest

from epifalcon.attacks.audit.noise_checks import check_noise, shared_noise, worst
from epifalcon.privacy.gaussian import on_grid

SHAPE = (4, 100, 2, 8)
AXES = ("rounds", "people", "places", "coordinates")


def fresh(seed=0, shape=SHAPE):
    return 0.3 * np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("seed", range(5))
def test_fresh_noise_is_left_alone(seed):
    found = check_noise(fresh(seed), 0.3)
    assert found.repeats == 0
    assert not found.repeated
    assert not found.short
    assert found.sigma == pytest.approx(0.3, rel=0.15)


@pytest.mark.parametrize("axis", range(4))
def test_noise_that_is_the_same_along_an_axis_is_found(axis):
    noise = fresh()
    noise[:] = np.take(noise, [0], axis=axis)
    found = check_noise(noise, 0.3)
    assert found.repeated
    assert found.along == AXES[axis]


def test_vectors_that_are_equal_or_partly_shared_are_found():
    noise = fresh()
    noise[3, 7, 1] = noise[0, 41, 0]
    found = check_noise(noise, 0.3)
    assert (found.repeats, found.repeated) == (2, True)
    noise = fresh()
    # Not neighbours.
    noise[3] = 0.6 * noise[0] + 0.8 * noise[3]
    found = check_noise(noise, 0.3)
    assert (found.repeats, found.repeated, found.along) == (0, True, "rounds")


def test_equal_numbers_on_the_grid_of_noise_are_no_repeats():
    """Of 3,600 numbers on the grid, as the counts of an audit, some are equal."""
    noise = on_grid(fresh(shape=(1, 60, 60, 1)), 0.3)
    assert len(np.unique(noise)) < noise.size
    assert not check_noise(noise, 0.3).repeated
    assert not shared_noise(noise, on_grid(fresh(1, (1, 60, 60, 1)), 0.3)).repeated
    noise[0, 30:40] = noise[0, 10:20]
    assert check_noise(noise, 0.3).repeats >= 1200


def test_a_little_less_noise_than_claimed_is_found():
    assert check_noise(fresh() * 0.9, 0.3).short
    assert not check_noise(fresh() * 1.1, 0.3).short


@pytest.mark.parametrize("where", [(2,), (..., 1, slice(None)), (..., 5)])
def test_less_noise_in_one_round_place_or_coordinate_is_found(where):
    noise = fresh()
    noise[where] *= 0.4
    found = check_noise(noise, 0.3)
    assert found.short
    assert not found.repeated
    assert found.sigma == pytest.approx(0.12, rel=0.1)


def test_noise_of_another_channel_is_found_anywhere():
    one, other = fresh(0), fresh(1)
    assert not shared_noise(one, other).repeated
    other[2, 30, 1] = one[0, 5, 0]
    assert shared_noise(one, other).repeats == 1
    found = shared_noise(one, 0.6 * one + 0.8 * fresh(2))
    assert found.repeats == 0
    assert found.repeated
    assert found.along == "channels"


def test_the_worst_of_several_parts_is_told_with_their_names():
    parts = ("a", "b", "c")
    noise = [fresh(0), fresh(1) * 0.7, fresh(2) * 0.5]
    found = [check_noise(one, 0.3) for one in noise]
    whole = worst(found, parts)
    assert whole.parts == ("b", "c")
    assert (whole.sigma, whole.shortfall) == (found[2].sigma, found[2].shortfall)


def test_where_no_noise_is_claimed_nothing_is_looked_for():
    assert not check_noise(np.zeros(SHAPE), 0.0).repeated
    assert check_noise(np.zeros(SHAPE), 0.3).repeated
