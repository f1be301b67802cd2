import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.clipping import clip_factors, clip_rows, row_norms

DTYPES = [torch.float32, torch.float64]
quick = settings(max_examples=150, deadline=None, derandomize=True)
bounds = st.sampled_from([1e-6, 0.1, 1.0, 3.0, 1e4])


@st.composite
def rows(draw):
    dtype = draw(st.sampled_from(DTYPES))
    width = 32 if dtype == torch.float32 else 64
    finite = st.floats(
        allow_nan=False, allow_infinity=False, width=width, allow_subnormal=False
    )
    size = draw(st.integers(1, 6))
    table = draw(st.lists(st.lists(finite, min_size=size, max_size=size), max_size=5))
    return torch.tensor(table, dtype=dtype).reshape(-1, size)


def exact_norm(row):
    return math.hypot(*row.tolist())


@quick
@given(rows(), bounds)
def test_no_row_is_longer_than_the_bound_however_extreme(update, bound):
    clipped = clip_rows(update, bound)
    assert clipped.dtype == update.dtype
    assert clipped.shape == update.shape
    for row in clipped:
        # Not approximately: the noise was calibrated to this number.
        assert exact_norm(row) <= bound


@quick
@given(rows(), bounds)
def test_rows_within_the_bound_come_back_bit_for_bit(update, bound):
    clipped = clip_rows(update, bound)
    for before, after in zip(update, clipped, strict=True):
        if exact_norm(before) <= bound * (1 - 1e-12):
            assert torch.equal(before, after)
    assert torch.equal(clip_rows(clipped, bound), clipped)


@quick
@given(rows(), bounds)
def test_clipping_keeps_the_direction(update, bound):
    for before, after in zip(update, clip_rows(update, bound), strict=True):
        if exact_norm(before) > bound:
            assert exact_norm(after) == pytest.approx(bound, rel=1e-5)
            largest = int(before.abs().argmax())
            ratio = float(after[largest]) / float(before[largest])
            assert after.tolist() == pytest.approx(
                [ratio * value for value in before.tolist()], rel=1e-5, abs=1e-30
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_stay_zero_and_the_input_is_left_alone(dtype):
    update = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype)
    before = update.clone()
    clipped = clip_rows(update, 1.0)
    assert torch.equal(update, before)
    assert torch.equal(clipped[0], update[0])
    assert clipped[1].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    within = clip_rows(update, 10.0)
    within[0, 0] = 7.0
    assert torch.equal(update, before)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_poisoned_row_is_named(poison, dtype):
    update = torch.zeros(4, 3, dtype=dtype)
    update[2, 1] = poison
    with pytest.raises(DataError, match=r"1 of 4 rows.*row 2"):
        clip_rows(update, 1.0)
    with pytest.raises(DataError):
        row_norms(update)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_must_bound(bound):
    with pytest.raises(SettingsError):
        clip_rows(torch.ones(1, 1), bound)
    with pytest.raises(SettingsError):
        clip_factors(torch.ones(1), bound)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_norm_that_is_none_is_refused(wrong):
    with pytest.raises(DataError, match="position 1"):
        clip_factors(torch.tensor([1.0, wrong]), 1.0)
