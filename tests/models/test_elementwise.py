"""The passes over all numbers against torch, operation by operation."""

import numpy as np
import pytest
import torch
from torch import nn

from epifalcon.models import elementwise
from tests.oracles.dropout_loop import kept_by_loop

F32, F64 = torch.float32, torch.float64
SIZES = [(7, 3), (9_001, 32)]
"""One that stays on the calling thread and one that is cut into parts."""


def rows(size, seed, dtype=F64):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=[1, 3])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.usefixtures("_threads")
def test_opening_and_its_gradient_are_those_of_autograd(size, dropped):
    x = rows(size, 1).requires_grad_()
    keep = (rows(size, 2) > 0).double() * 1.25 if dropped else None
    made = torch.relu(x) * (1 if keep is None else keep)
    gradient = rows(size, 3)
    made.backward(gradient)
    found = x.detach().clone()
    elementwise.open_rows(found, keep)
    assert torch.equal(found, made)
    assert torch.equal(elementwise.through_opened(gradient, found, keep), x.grad)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("_threads")
def test_rows_are_scaled_in_place(size):
    x, factor = rows(size, 1), rows((size[0], 1), 2)
    wanted = x * factor
    elementwise.scale_rows(x, factor)
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 2.0)])
@pytest.mark.parametrize(("dtype", "close"), [(F64, 1e-13), (F32, 2e-6)])
def test_cross_entropy_is_torchs(weights, dtype, close):
    logits = (20 * rows((500, 2), 4)).to(dtype).requires_grad_()
    target = np.random.default_rng(0).integers(-1, 2, 500).astype(np.int8)
    wanted = nn.functional.cross_entropy(
        logits.double(),
        torch.from_numpy(target.astype(np.int64)),
        torch.tensor(weights, dtype=F64),
        ignore_index=-1,
        reduction="sum",
    )
    wanted.backward()
    loss, weight, gradient = elementwise.cross_entropy(
        logits, target, np.array(weights)
    )
    assert loss == pytest.approx(wanted.item(), rel=close)
    assert weight == pytest.approx(sum(weights[one] for one in target if one >= 0))
    assert gradient.dtype == dtype
    assert torch.allclose(gradient, logits.grad, rtol=close, atol=close)


def test_extreme_logits_give_finite_losses():
    logits = torch.tensor([[0.0, 3e4], [3e4, 0.0], [-1e30, 1e30]])
    loss, _, gradient = elementwise.cross_entropy(
        logits, np.array([1, 1, -1], np.int8), np.ones(2)
    )
    assert loss == 3e4
    assert gradient.tolist() == [[0, 0], [1, -1], [0, 0]]
    broken = torch.tensor([[torch.nan, 0.0]])
    assert np.isnan(
        elementwise.cross_entropy(broken, np.zeros(1, np.int8), np.ones(2))[0]
    )


@pytest.mark.parametrize("size", [(5,), *SIZES])
@pytest.mark.parametrize(("dtype", "close"), [(F64, 1e-12), (F32, 1e-6)])
@pytest.mark.usefixtures("_threads")
def test_adam_is_torchs_and_overwrites_nothing(size, dtype, close):
    value = rows(size, 1, dtype)
    theirs = value.clone().requires_grad_()
    optimiser = torch.optim.Adam([theirs], lr=0.01, weight_decay=0.1)
    first, second = torch.zeros_like(value), torch.zeros_like(value)
    for step in range(1, 5):
        gradient = rows(size, 10 + step, dtype)
        theirs.grad = 0.5 * gradient
        optimiser.step()
        before = value.clone(), first.clone(), second.clone()
        rates = 0.5, 0.1, 0.01 / (1 - 0.9**step), (1 - 0.999**step) ** -0.5
        state = value, first, second
        new = elementwise.adam(state, gradient, rates)
        assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
        value, first, second = new
        assert torch.allclose(value, theirs, rtol=0, atol=close)


@pytest.mark.parametrize("width", [1, 2, 7, 32])
@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.5, 1 - 2**-32])
def test_dropout_is_that_of_a_plain_loop(width, dropout):
    person = np.array([0, 3, 17, 2**40])
    out = np.empty((4, width), np.float32)
    elementwise.keep_factors(person, dropout, 2**63 + 5, out)
    assert np.array_equal(out, kept_by_loop(person, width, dropout, 2**63 + 5))


@pytest.mark.usefixtures("_threads")
def test_dropout_does_not_depend_on_parts():
    person = np.arange(9_001)
    whole = np.empty((9_001, 32), np.float32)
    elementwise.keep_factors(person, 0.2, 5, whole)
    some = np.empty((1_000, 32), np.float32)
    elementwise.keep_factors(person[8_001:], 0.2, 5, some)
    assert np.array_equal(whole[8_001:], some)
