import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.hypergraph.fixed import Fixed

quick = settings(deadline=None, derandomize=True, max_examples=40)


@st.composite
def supports(draw):
    """Edges in any order, some twice, people without any."""
    people, edges = draw(st.integers(1, 9)), draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    index = torch.from_numpy(rng.integers(0, people, (2, edges)))
    return Fixed.of(index, people), index


def some(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def with_grad(*tensors):
    return [one.clone().requires_grad_() for one in tensors]


@quick
@given(supports(), st.sampled_from([(3,), (2, 3), (4, 17)]))
def test_products_and_scores_are_gathered_ones(case, shape):
    fixed, (source, target) = case
    x, key = some(fixed.people, *shape), some(fixed.people, *shape, seed=1)
    value = some(fixed.edges, *shape[:-1], seed=2)
    found = fixed.product(value, x)
    wanted = torch.zeros_like(x).index_add(0, target, value[..., None] * x[source])
    torch.testing.assert_close(found, wanted)
    found = fixed.scores(x, key)
    torch.testing.assert_close(found, (x[target] * key[source]).sum(-1))
    short = fixed.product(value.float(), x.float())
    assert short.dtype == torch.float32
    torch.testing.assert_close(short.double(), wanted, rtol=1e-5, atol=1e-5)


@quick
@given(supports(), st.sampled_from([(), (3,)]))
def test_softmax_is_that_of_each_target(case, heads):
    fixed, (_, target) = case
    score, given = with_grad(*(30 * some(fixed.edges, *heads),) * 2)
    wanted = torch.zeros_like(given)
    for person in range(fixed.people):
        own = (target == person).nonzero()[:, 0]
        wanted = wanted.index_add(0, own, given[own].softmax(0))
    found = fixed.softmax(score)
    torch.testing.assert_close(found, wanted)
    push = some(*found.shape, seed=5)
    found.backward(push)
    wanted.backward(push)
    torch.testing.assert_close(score.grad, given.grad, atol=1e-12, rtol=1e-7)


@settings(deadline=None, derandomize=True, max_examples=10)
@given(supports())
def test_gradients_are_exact(case):
    fixed, _ = case
    x, key = with_grad(some(fixed.people, 2, 2), some(fixed.people, 2, 2, seed=1))
    (value,) = with_grad(some(fixed.edges, 2))
    if fixed.edges:
        assert torch.autograd.gradcheck(fixed.product, (value, x))
        assert torch.autograd.gradcheck(fixed.scores, (x, key))
        assert torch.autograd.gradgradcheck(fixed.product, (value, x))
        assert torch.autograd.gradgradcheck(fixed.scores, (x, key))
        assert torch.autograd.gradcheck(fixed.softmax, (value,))


def test_scores_are_those_of_sampled_addmm():
    rng = np.random.default_rng(1)
    dense = torch.from_numpy(rng.random((20, 20)) < 0.3)
    target, source = dense.nonzero().T
    fixed = Fixed.of(torch.stack([source, target]), 20)
    query, key = some(20, 6), some(20, 6, seed=1)
    wanted = (query @ key.T)[dense]
    torch.testing.assert_close(fixed.scores(query, key), wanted)


def test_rows_may_lie_anyhow_in_memory():
    fixed = Fixed.of(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
    x, value = some(4, 3).T, some(2, 3)[0]
    wanted = fixed.product(value.clone(), x.contiguous())
    assert torch.equal(fixed.product(value, x), wanted)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr("epifalcon.hypergraph.compiled._WORTH_THREADS", 0)
    rng = np.random.default_rng(2)
    fixed = Fixed.of(torch.from_numpy(rng.integers(0, 200, (2, 3000))), 200)
    query, key = some(200, 2, 8).float(), some(200, 2, 8, seed=1).float()
    before, found = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            (start,) = with_grad(query)
            out = fixed.product(fixed.softmax(fixed.scores(start, key)), key)
            out.backward(query)
            found.add((out.detach().numpy().tobytes(), start.grad.numpy().tobytes()))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f: f.product(torch.zeros(3), torch.zeros(4, 2)), r"values .* \(2,\)"),
        (lambda f: f.product(torch.zeros(2), torch.zeros(4)), "rows are"),
        (lambda f: f.product(torch.zeros(2), torch.zeros(4, 2, 2)), r"\(2, 2\)"),
        (lambda f: f.product(torch.zeros(2).double(), torch.zeros(4, 2)), "float32"),
        (lambda f: f.scores(torch.zeros(4, 2), torch.zeros(4, 3)), "keys are"),
        (lambda f: f.softmax(torch.zeros(3)), "scores are"),
        (lambda _: Fixed.of(torch.tensor([[4], [0]]), 4), "expected 0 to 3"),
        (lambda _: Fixed.of(torch.zeros(3, 2), 4), r"expected \(2, edges\)"),
    ],
)
def test_what_does_not_fit_is_refused(call, told):
    with pytest.raises(DataError, match=told):
        call(Fixed.of(torch.tensor([[0, 1], [1, 2]]), 4))
