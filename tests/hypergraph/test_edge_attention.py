import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph.edge_attention import EdgeList

quick = settings(deadline=None, derandomize=True, max_examples=40)


@st.composite
def supports(draw):
    """Edges in any order, some twice, people without any."""
    people, edges = draw(st.integers(1, 9)), draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    index = torch.from_numpy(rng.integers(0, people, (2, edges)))
    return EdgeList(index, people), index


def some(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def with_grad(*tensors):
    return [one.clone().requires_grad_() for one in tensors]


@quick
@given(supports(), st.sampled_from([(3,), (2, 3), (4, 17)]))
def test_products_and_scores_are_gathered_ones(case, shape):
    edges, (source, target) = case
    x, key = some(edges.people, *shape), some(edges.people, *shape, seed=1)
    value = some(len(edges), *shape[:-1], seed=2)
    found = edges.product(value, x)
    wanted = torch.zeros_like(x).index_add(0, target, value[..., None] * x[source])
    torch.testing.assert_close(found, wanted)
    found = edges.scores(x, key)
    torch.testing.assert_close(found, (x[target] * key[source]).sum(-1))
    short = edges.product(value.float(), x.float())
    assert short.dtype == torch.float32
    torch.testing.assert_close(short.double(), wanted, rtol=1e-5, atol=1e-5)


@quick
@given(supports(), st.sampled_from([(), (3,)]))
def test_softmax_is_that_of_each_target(case, heads):
    edges, (_, target) = case
    score, given = with_grad(*(30 * some(len(edges), *heads),) * 2)
    wanted = torch.zeros_like(given)
    for person in range(edges.people):
        own = (target == person).nonzero()[:, 0]
        wanted = wanted.index_add(0, own, given[own].softmax(0))
    found = edges.softmax(score)
    torch.testing.assert_close(found, wanted)
    push = some(*found.shape, seed=5)
    found.backward(push)
    wanted.backward(push)
    torch.testing.assert_close(score.grad, given.grad, atol=1e-12, rtol=1e-7)


@settings(deadline=None, derandomize=True, max_examples=10)
@given(supports())
def test_gradients_are_exact(case):
    edges, _ = case
    x, key = with_grad(some(edges.people, 2, 2), some(edges.people, 2, 2, seed=1))
    (value,) = with_grad(some(len(edges), 2))
    if len(edges):
        assert torch.autograd.gradcheck(edges.product, (value, x))
        assert torch.autograd.gradcheck(edges.scores, (x, key))
        assert torch.autograd.gradgradcheck(edges.product, (value, x))
        assert torch.autograd.gradgradcheck(edges.scores, (x, key))
        assert torch.autograd.gradcheck(edges.softmax, (value,))


def test_rows_may_lie_anyhow_in_memory():
    edges = EdgeList(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
    x, value = some(4, 3).T, some(2, 3)[0]
    wanted = edges.product(value.clone(), x.contiguous())
    assert torch.equal(edges.product(value, x), wanted)
