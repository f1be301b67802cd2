import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.mobility.validity.crowds import gini
from epifalcon.mobility.validity.lives import entropy_rate, fano

CASES = settings(max_examples=60, deadline=None, derandomize=True)


def plain_rate(row):
    """Shortest strings not seen before, by comparing slices."""
    size, total = len(row), 0
    for here in range(size):
        length = 1
        while here + length <= size and any(
            row[before : before + length] == row[here : here + length]
            for before in range(here - length + 1)
        ):
            length += 1
        total += length
    return size * math.log2(size) / total


@CASES
@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_entropy_rate_equals_the_plain_one(row):
    assert entropy_rate(np.array(row, np.int32)) == pytest.approx(plain_rate(row))


def test_entropy_rate_of_fair_dice():
    row = np.random.default_rng(0).integers(0, 8, 6000).astype(np.int32)
    assert entropy_rate(row) == pytest.approx(3.0, rel=0.12)


@CASES
@given(st.integers(2, 60), st.floats(0.001, 0.999))
def test_fano_is_undone_by_its_equation(places, share):
    p = 1 / places + share * (1 - 1 / places)
    bits = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    bits += (1 - p) * math.log2(places - 1)
    assert fano(bits, places) == pytest.approx(p, abs=1e-6)


def test_fano_at_its_ends():
    assert fano(0.0, 5) == 1
    assert fano(3.0, 1) == 1
    assert fano(99.0, 4) == pytest.approx(0.25)


@CASES
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_gini_equals_mean_difference(amounts):
    amount = np.array(amounts, dtype=float)
    if amount.sum() == 0:
        assert math.isnan(gini(amount))
        return
    plain = np.abs(amount[:, None] - amount).mean() / (2 * amount.mean())
    assert gini(amount) == pytest.approx(plain)
