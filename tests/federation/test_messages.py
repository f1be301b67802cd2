"""Numbers that are none are found in rows of any size and kind."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.federation.messages import all_finite

KINDS = st.sampled_from([torch.float32, torch.float64])
ODD = st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 1.0, 0.0])


@given(st.lists(ODD, max_size=12), KINDS)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_it_says_what_looking_at_each_number_says(values, kind):
    rows = torch.tensor(values, dtype=kind).reshape(-1, 1)
    assert all_finite(rows) == bool(torch.isfinite(rows).all())


@pytest.mark.parametrize("odd", [(math.nan,), (math.inf,), (math.inf, -math.inf)])
def test_one_among_many_is_found(odd):
    rows = torch.ones(1000, 32)
    rows.view(-1)[17 : 17 + len(odd)] = torch.tensor(odd)
    assert not all_finite(rows)


def test_a_sum_past_what_a_number_can_hold_is_no_fault():
    rows = torch.full((1000, 32), 3e38)
    assert math.isinf(float(rows.sum()))
    assert all_finite(rows)
