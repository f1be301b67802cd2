import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph.contacts import contacts_of
from epifalcon.methods.stgcn import ChebyshevConv, GatedConv, kernel_for
from tests.oracles import pyg
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import contacts_by_loop


@settings(deadline=None, derandomize=True, max_examples=15)
@given(cities(), st.integers(1, 4))
def test_the_graph_convolution_is_that_of_pyg_day_by_day(city, terms):
    torch.manual_seed(0)
    layer = ChebyshevConv(3, 2, terms, contacts_of(city))
    layer.bias.data.normal_()
    theirs = pyg.layer("ChebConv")(3, 2, terms)
    for number, one in enumerate(theirs.lins):
        one.weight.data = layer.theta.weight.data.view(terms, 2, 3)[number].clone()
    theirs.bias.data = layer.bias.data.clone()
    dense = torch.from_numpy(contacts_by_loop(city)).float()
    edges = dense.nonzero().T
    mine = torch.randn(city.people, 3, 3, requires_grad=True)
    their = mine.detach().clone().requires_grad_()
    one = layer(mine)
    days = [theirs(day, edges, dense[tuple(edges)]) for day in their.unbind(1)]
    two = torch.stack(days, dim=1)
    assert torch.allclose(one, two, atol=1e-5)
    upstream = torch.randn(one.shape)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.allclose(mine.grad, their.grad, atol=1e-5)


@pytest.mark.parametrize("inputs", [2, 3, 5])
@pytest.mark.parametrize("kernel", [1, 2, 4])
def test_a_gated_convolution_is_its_equation(inputs, kernel):
    torch.manual_seed(0)
    layer, x = GatedConv(inputs, 3, kernel), torch.randn(2, 4, inputs)
    weight = layer.both.weight.view(2, 3, kernel, inputs)
    bias = layer.both.bias.view(2, 3)
    found = layer(x)
    for day in range(4 - kernel + 1):
        seen = x[:, day : day + kernel]
        sums = torch.einsum("pkc,hekc->hpe", seen, weight)
        p, q = (sums + bias[:, None]).detach()
        if inputs <= 3:
            p[:, :inputs] += x[:, day + kernel - 1]
        assert torch.allclose(found[:, day], p * q.sigmoid(), atol=1e-6)
    assert found.shape == (2, 4 - kernel + 1, 3)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 90), st.integers(1, 5), st.integers(1, 6))
def test_kernels_leave_a_day_and_are_as_long_as_they_may(days, blocks, most):
    kernel = kernel_for(days, blocks, most)
    assert 1 <= kernel <= most
    assert days - 2 * blocks * (kernel - 1) >= 1
    assert kernel == most or days - 2 * blocks * kernel < 1
