import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.events import ONE_VECTOR, Terms
from epifalcon.privacy.gaussian import (
    NoiseKey,
    NoiseRows,
    add_keyed,
    keyed_normals,
    normals,
)
from tests.oracles.philox_loop import slow_normals

# Two-sided: a correct program fails one in 500 000 times, and the seed is fixed.
SURE = 1e-6


def terms(channel="upload/0", turn=0):
    return Terms(channel=channel, releases=ONE_VECTOR, round=turn)


def some_rows(people=50, seed=0):
    rng = np.random.default_rng(seed)
    person = rng.permutation(10 * people)[:people]
    return NoiseRows(person, rng.integers(0, 2**40, people))


def refuse_wrong_scale(noise, sigma):
    """The chi-square interval of the variance, and normal shape by KS."""
    flat = np.asarray(noise, dtype=np.float64).ravel()
    total = np.sum(flat**2) / sigma**2
    low, high = stats.chi2.ppf([SURE / 2, 1 - SURE / 2], flat.size)
    assert low < total < high
    assert stats.kstest(flat / sigma, "norm").pvalue > SURE


def test_torchs_own_generator_is_not_good_enough():
    with pytest.raises(SettingsError, match="generator"):
        normals((1, 1), None, torch.float32)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**130),
    st.integers(0, 2**40),
    st.integers(1, 11),
    st.lists(st.integers(0, 2**62), min_size=1, max_size=4, unique=True),
)
def test_keyed_noise_is_numpys_philox(seed, turn, width, people):
    key = NoiseKey(seed, terms(turn=turn))
    rows = NoiseRows(np.array(people), np.arange(len(people)) * 977)
    expected = slow_normals(key.words(), turn, rows.person, rows.place, width)
    assert keyed_normals(key, rows, width) == pytest.approx(expected, rel=1e-12)


def test_keyed_noise_has_the_right_size_and_shape():
    rows = NoiseRows(np.repeat(np.arange(500), 20), np.tile(np.arange(20), 500))
    noise = keyed_normals(NoiseKey(11, terms()), rows, 33)
    refuse_wrong_scale(noise, 1.0)
    # Neighbouring columns, places and people must not be related.
    for axis in (1, 0):
        ahead = np.take(noise, range(1, noise.shape[axis]), axis)
        behind = np.take(noise, range(noise.shape[axis] - 1), axis)
        assert abs(np.mean(ahead * behind)) * math.sqrt(ahead.size) < 4.9


def test_nothing_shares_noise_with_anything_else():
    """One changed word of (seed, channel, round, person, place) changes all draws."""
    base = NoiseRows(np.array([3]), np.array([8]))
    draws = [
        keyed_normals(NoiseKey(seed, terms(channel, turn)), rows, 8)
        for seed in (1, 2)
        for channel in ("upload/0", "upload/1", "gradient")
        for turn in (0, 1, 8)
        for rows in (
            base,
            NoiseRows(np.array([8]), np.array([3])),
            NoiseRows(np.array([4]), np.array([8])),
        )
    ]
    values = np.concatenate(draws).ravel()
    assert len(np.unique(values)) == values.size


def test_two_values_never_share_one_noise():
    with pytest.raises(DataError, match="person 4 has place 7"):
        NoiseRows(np.array([4, 5, 4]), np.array([7, 7, 7]))
    with pytest.raises(DataError, match="person 4 has place 7"):
        NoiseRows(np.array([4, 4]), np.array([7, 7]))
    assert NoiseRows(np.array([5, 4, 4]), np.array([7, 8, 7])).place.size == 3


def test_ids_that_are_none_are_refused():
    with pytest.raises(DataError, match="person"):
        NoiseRows(np.array([-1]), np.array([0]))
    with pytest.raises(DataError, match="lengths"):
        NoiseRows(np.array([1]), np.array([0, 1]))
    with pytest.raises(SettingsError, match="seed"):
        NoiseKey(-1, terms())
    with pytest.raises(DataError, match="one row"):
        add_keyed(torch.zeros(2, 2), 1.0, some_rows(3), NoiseKey(1, terms()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keyed_noise_is_added_at_its_scale_in_the_type_of_the_rows(dtype):
    rows, key = some_rows(400), NoiseKey(3, terms())
    value = torch.full((400, 9), 2.0, dtype=dtype)
    noised = add_keyed(value, 0.4, rows, key)
    assert noised.dtype == dtype
    refuse_wrong_scale(noised.double() - 2.0, 0.4)
    assert torch.equal(add_keyed(value, 0.0, rows, key), value)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.83])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_last_bits_do_not_show_what_the_noise_covers(dtype, sigma):
    """Rows of zeros and others end with equally many zeros, also where they are small.

    Without a grid, small sums of a row and its noise have far fewer digits than small
    noise alone, which shows the true places among pseudo places.
    """
    rows, key = some_rows(4000), NoiseKey(3, terms())
    covered = torch.from_numpy(np.random.default_rng(0).normal(0, sigma / 8, (4000, 9)))
    for value in (torch.zeros_like(covered), covered):
        noised = add_keyed(value.to(dtype), sigma, rows, key).double()
        small = noised[noised.abs() < sigma / 50]
        steps = small / 2.0 ** (math.floor(math.log2(sigma)) - 16)
        assert torch.equal(steps, steps.round())
        odd = float((steps % 2 == 1).double().mean())
        assert abs(odd - 0.5) < 4.9 * 0.5 / math.sqrt(len(small))
        assert len(small) > 400
