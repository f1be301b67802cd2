"""DCRNN against the paper's equations on dense matrices, and its gradients."""

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.models.dcrnn import (
    Dcrnn,
    DiffusionConv,
    DiffusionGru,
    diffuse,
    flow_graph,
)
from epifalcon.models.settings import DcrnnSettings
from tests.models.regions import seeded, small_history
from tests.oracles import dense_diffusion

SMALL = DcrnnSettings(hidden_width=4, diffusion_steps=2)
many = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def move_tables(draw: st.DrawFn):
    """Square counts, often with regions that nobody leaves or reaches."""
    regions = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.2, 0.7, 1.0]))
    size = (regions, regions)
    table = rng.integers(1, 9, size) * (rng.random(size) < density)
    if draw(st.booleans()):
        table[rng.integers(regions)] = 0
        table[:, rng.integers(regions)] = 0
    return table.astype(np.float64)


def graph_of(table, dtype=torch.float64):
    return flow_graph(sp.csr_array(table), dtype)


def rows(regions, width):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(regions, width)))


def conv_of(inputs, outputs, steps):
    return DiffusionConv(inputs, outputs, steps, seeded(5), bias=0.3).double()


@many
@given(move_tables(), st.integers(1, 40), st.integers(0, 3))
def test_it_is_the_dense_formula(table, width, steps):
    x, conv = rows(len(table), width), conv_of(width, 3, steps)
    weight = conv.weight.detach().numpy().reshape(1 + 2 * steps, width, 3)
    bias = conv.bias.detach().numpy()
    wanted = dense_diffusion.convolve(x.numpy(), table, weight, bias)
    found = conv(x, graph_of(table)).detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    single = conv.float()(x.float(), graph_of(table, torch.float32))
    np.testing.assert_allclose(single.detach(), wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(move_tables(), st.integers(1, 3))
def test_the_gradient_is_exact(table, steps):
    conv, graph = conv_of(2, 2, steps), graph_of(table)

    def found(x, weight, bias):
        given = {"weight": weight, "bias": bias}
        return torch.func.functional_call(conv, given, (x, graph))

    inputs = (rows(len(table), 2).requires_grad_(), *conv.parameters())
    assert torch.autograd.gradcheck(found, inputs)


def test_stored_zeros_are_no_moves_and_views_are_read_right():
    stored = sp.csr_array((np.array([0.0, 2.0]), np.array([1, 0]), np.array([0, 1, 2])))
    parts = diffuse(rows(2, 1), flow_graph(stored, torch.float64), 2)
    assert torch.isfinite(parts).all()
    assert (parts[0, 1:3] == 0).all()
    graph, x = graph_of([[0, 1, 1], [1, 0, 0], [0, 2, 0]]), rows(3, 4)
    turned = x.T.contiguous().T
    assert torch.equal(diffuse(turned, graph, 2), diffuse(x, graph, 2))


def blocks(conv, inputs, columns):
    """Weight by walk and bias of some output columns, for the dense formula."""
    weight = conv.weight.detach().numpy()
    parts = weight.reshape(1 + 2 * conv.steps, inputs, -1)
    return parts[:, :, columns], conv.bias.detach().numpy()[columns]


def random_biases(module):
    for parameter in module.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, -1, 1, generator=seeded(9))


def test_the_cell_is_the_papers_equation():
    history, width = small_history(regions=6), 4
    cell = DiffusionGru(2, 4, 2, generator=seeded()).double()
    random_biases(cell)
    theta = {
        "r": blocks(cell.gates, 2 + width, slice(0, width)),
        "u": blocks(cell.gates, 2 + width, slice(width, None)),
        "c": blocks(cell.candidate, 2 + width, slice(None)),
    }
    rng = np.random.default_rng(0)
    x, state = rng.normal(size=(6, 2)), rng.normal(size=(6, width))
    moves = history.flows.moves(3)
    graph = flow_graph(moves, torch.float64)
    found = cell(torch.from_numpy(x), torch.from_numpy(state), graph)
    wanted = dense_diffusion.gated_step(x, state, moves.toarray(), theta)
    np.testing.assert_allclose(found.detach().numpy(), wanted, atol=1e-12)


def test_days_in_two_parts_are_as_in_one_and_each_uses_its_own_graph():
    history = small_history()
    inputs = torch.rand(6, 9, 2, generator=seeded())
    network = Dcrnn(2, SMALL, seeded())
    whole = network.encoder.states(inputs, history.graphs[:6])
    first = network.encoder.states(inputs[:4], history.graphs[:4])
    rest = network.encoder.states(inputs[4:], history.graphs[4:6], first[-1])
    assert all(torch.equal(a, b) for a, b in zip(whole, [*first, *rest], strict=True))
    graphs = [*history.graphs[:4], history.graphs[9], history.graphs[5]]
    changed = network.encoder.states(inputs, graphs)
    assert [torch.equal(a, b) for a, b in zip(whole, changed, strict=True)] == [
        True
    ] * 4 + [False] * 2


def test_the_decoder_continues_from_its_own_forecast():
    history = small_history()
    network = Dcrnn(2, SMALL, seeded())
    torch.nn.init.uniform_(network.mixture, -1, 1, generator=seeded(5))
    random_biases(network)
    state = torch.rand(9, 4, generator=seeded())
    last = torch.rand(9, 2, generator=seeded(1))
    graph = history.graphs[2]
    three = network.decode(state, last, graph, 3)
    value, mean = last[:, :1], last[:, 1:]
    for day in range(3):
        state = network.decoder(value, state, graph)
        simple = network.mixture[0] * value + network.mixture[1] * mean
        value = simple + state @ network.readout + network.offset
        torch.testing.assert_close(three[:, day : day + 1], value)
