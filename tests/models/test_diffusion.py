"""Diffusion convolution against the dense formula, and its gradient."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.models.dcrnn import DiffusionConv, FlowGraph, diffuse
from tests.models.regions import move_tables
from tests.oracles import dense_diffusion

many = settings(max_examples=60, deadline=None, derandomize=True)


def graph_of(table, dtype=torch.float64):
    return FlowGraph.of(sp.csr_array(table), dtype)


def rows(regions, width, seed=0):
    made = np.random.default_rng(seed).normal(size=(regions, width))
    return torch.from_numpy(made)


def conv_of(inputs, outputs, steps, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    conv = DiffusionConv(inputs, outputs, steps, generator, bias=0.3)
    return conv.to(dtype)


@many
@given(move_tables(), st.integers(1, 4), st.integers(0, 3))
def test_it_is_the_dense_formula(table, width, steps):
    x, conv = rows(len(table), width), conv_of(width, 3, steps)
    weight = conv.weight.detach().numpy().reshape(1 + 2 * steps, width, 3)
    wanted = dense_diffusion.convolve(
        x.numpy(), table, weight, conv.bias.detach().numpy()
    )
    told = conv(x, graph_of(table)).detach().numpy()
    np.testing.assert_allclose(told, wanted, rtol=1e-12, atol=1e-12)


@many
@given(move_tables(), st.integers(1, 40))
def test_in_32_bits_too(table, width):
    x = rows(len(table), width)
    told = diffuse(x.float(), graph_of(table, torch.float32), 2)
    wanted = diffuse(x, graph_of(table), 2)
    assert torch.allclose(told.double(), wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(move_tables(), st.integers(1, 3))
def test_the_gradient_is_exact(table, steps):
    x = rows(len(table), 2).requires_grad_()
    graph = graph_of(table)
    assert torch.autograd.gradcheck(lambda rows: diffuse(rows, graph, steps), (x,))


def test_the_gradient_of_weight_and_bias_is_exact():
    table = np.array([[0, 3, 1], [0, 0, 0], [2, 5, 0]])
    conv, graph = conv_of(2, 2, 2), graph_of(table)

    def told(x, weight, bias):
        given = {"weight": weight, "bias": bias}
        return torch.func.functional_call(conv, given, (x, graph))

    inputs = (rows(3, 2).requires_grad_(), *conv.parameters())
    assert torch.autograd.gradcheck(told, inputs)


@many
@given(move_tables())
def test_a_constant_stays_where_people_move_and_is_zero_elsewhere(table):
    parts = diffuse(torch.ones(len(table), 1).double(), graph_of(table), 1)
    assert torch.isfinite(parts).all()
    leaves, arrives = table.sum(axis=1) > 0, table.sum(axis=0) > 0
    np.testing.assert_allclose(parts[:, 1].numpy(), leaves, atol=1e-12)
    np.testing.assert_allclose(parts[:, 2].numpy(), arrives, atol=1e-12)


def test_forward_looks_where_people_go_and_backward_where_they_come_from():
    # All who leave region 0 go to region 1.
    parts = diffuse(rows(2, 1), graph_of([[0, 4], [0, 0]]), 1)
    assert parts[0, 1] == parts[1, 0]
    assert parts[1, 2] == parts[0, 0]
    assert parts[1, 1] == 0
    assert parts[0, 2] == 0


def test_stored_zeros_are_no_moves():
    stored = sp.csr_array((np.array([0.0, 2.0]), np.array([1, 0]), np.array([0, 1, 2])))
    parts = diffuse(rows(2, 1), FlowGraph.of(stored, torch.float64), 2)
    assert torch.isfinite(parts).all()
    assert (parts[0, 1:3] == 0).all()


def test_the_result_does_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(1)
    table = sp.random_array((400, 400), density=0.05, rng=rng, format="csr")
    graph, x = FlowGraph.of(table), rows(400, 33).float().requires_grad_()
    told, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = diffuse(x, graph, 2)
            (grad,) = torch.autograd.grad(out.square().sum(), x)
            told.append((out, grad))
    finally:
        torch.set_num_threads(before)
    for out, grad in told[1:]:
        assert torch.equal(out, told[0][0])
        assert torch.equal(grad, told[0][1])


def test_views_that_are_not_contiguous_are_read_right():
    graph, x = graph_of([[0, 1, 1], [1, 0, 0], [0, 2, 0]]), rows(3, 4)
    turned = x.T.contiguous().T
    assert torch.equal(diffuse(turned, graph, 2), diffuse(x, graph, 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_impossible_counts_are_refused(bad):
    with pytest.raises(DataError, match="counts of 0 or more"):
        graph_of([[0, bad], [1, 0]])


def test_wrong_shapes_and_types_are_refused():
    graph = graph_of([[0, 1], [1, 0]])
    with pytest.raises(DataError, match="square"):
        graph_of([[0, 1, 1], [1, 0, 1]])
    with pytest.raises(DataError, match=r"expected \(2, width\)"):
        diffuse(rows(3, 2), graph, 1)
    with pytest.raises(DataError, match="float32"):
        diffuse(rows(2, 2).float(), graph, 1)
    with pytest.raises(SettingsError, match="steps=-1"):
        conv_of(2, 2, -1)
