import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from epifalcon.hypergraph.edge_attention import EdgeList
from epifalcon.methods.d2stgnn import (
    D2stgnnSettings,
    DecoupledLayer,
    Diffusion,
    DynamicGraph,
    EstimationGate,
    Inherent,
    LowRankGraph,
    SparseGraph,
    positions,
)
from epifalcon.methods.graph_networks import ContactGraphs
from tests.oracles.cities import cities
from tests.oracles.dense_graphs import dynamic, matrix, off_diagonal

SMALL = D2stgnnSettings(width=4, reach=2, heads=2, embedding=3)


@pytest.fixture(autouse=True)
def _in_double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def partners_of(city, most):
    found = ContactGraphs(city).partners(most)
    return EdgeList(found.edge_index, city.people), found.weight.double()


@settings(deadline=None, derandomize=True, max_examples=30)
@given(cities(), st.integers(1, 5))
def test_powers_on_a_support_are_dense_powers_without_their_diagonal(city, most):
    edges, weight = partners_of(city, most)
    value = torch.rand(len(weight), requires_grad=True)
    x = torch.randn(city.people, 6, requires_grad=True)
    whole = matrix(edges, value)
    expected = (whole @ x, off_diagonal(whole @ whole) @ x)
    upstream = torch.randn(2, city.people, 6)
    found = SparseGraph(edges, value).powers(x)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)
    for one, two in zip(
        torch.autograd.grad(torch.stack(found), (value, x), upstream),
        torch.autograd.grad(torch.stack(expected), (value, x), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


def test_powers_of_the_low_rank_graph_are_dense_powers_without_their_diagonal():
    left, right, x = torch.randn(7, 3), torch.randn(7, 3), torch.randn(7, 5)
    whole = left.softmax(1) @ right.softmax(1).t()
    whole = whole / whole.sum(1, keepdim=True)
    once, twice = LowRankGraph.of(left, right).powers(x)
    torch.testing.assert_close(once, off_diagonal(whole) @ x)
    torch.testing.assert_close(twice, off_diagonal(whole @ whole) @ x)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(cities(), st.integers(1, 5))
def test_the_dynamic_graph_is_the_masked_softmax_over_everybody(city, most):
    edges, weight = partners_of(city, most)
    graph = DynamicGraph(edges, weight, history=3 * 2, about=4, width=8)
    x, about = torch.randn(city.people, 3, 2), torch.randn(city.people, 4)
    features = torch.cat([graph.history(x.flatten(1)), about], dim=1)
    walk = matrix(edges, weight)
    walk = walk / walk.sum(1, keepdim=True).clamp(min=1)
    expected = dynamic(walk, graph.query(features), graph.key(features))
    torch.testing.assert_close(matrix(edges, graph(x, about).value), expected)


def test_the_gate_is_the_paper_s_equation():
    gate = EstimationGate(3, 5, 4)
    day, person = torch.randn(6, 3), torch.randn(7, 5)
    weight = torch.cat([gate.of_day.weight, gate.of_person.weight], dim=1)
    for here in range(7):
        for when in range(6):
            both = torch.cat([day[when], person[here]])
            hidden = torch.relu(weight @ both + gate.of_day.bias)
            expected = torch.sigmoid(gate.out(hidden))
            torch.testing.assert_close(gate(day, person)[here, when], expected)


class Whole:
    """A graph held as a matrix."""

    def __init__(self, made):
        self.made = made

    def powers(self, x):
        return [off_diagonal(one) @ x for one in (self.made, self.made @ self.made)]


@pytest.mark.parametrize("days", [1, 2, 5])
def test_diffusion_is_the_localised_convolution(days):
    people, width, reach = 6, 4, 3
    graphs = [Whole(torch.rand(people, people)) for _ in range(2)]
    block, x = Diffusion(width, reach, 2), torch.randn(people, days, width)
    found = block(x, graphs)
    for day in range(days):
        # The paper's form: copies of the matrix beside each other, days below.
        back = range(min(reach, day + 1))
        stacked = torch.cat([block.lags[lag](x[:, day - lag]).relu() for lag in back])
        expected = block.mix[0].bias
        powers = [
            one @ one if k else one
            for g in graphs
            for k, one in ((0, g.made), (1, g.made))
        ]
        for power, mix in zip(powers, block.mix, strict=True):
            local = torch.cat([off_diagonal(power)] * len(back), dim=1)
            expected = expected + local @ stacked @ mix.weight.t()
        torch.testing.assert_close(found[:, day], expected)


@pytest.mark.parametrize(("days", "requested"), [(1, 1), (5, 5), (14, 1)])
def test_the_inherent_block_is_gru_and_torch_s_attention(days, requested):
    block, x = Inherent(8, 2, days), torch.randn(3, days, 8)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.in_proj_weight.data = torch.cat([block.query.weight, block.key_value.weight])
    theirs.in_proj_bias.data = torch.cat([block.query.bias, block.key_value.bias])
    theirs.out_proj.load_state_dict(block.out.state_dict())
    states = block.gru(x)[0] + positions(days, 8)
    expected = theirs(states[:, -requested:], states, states, need_weights=False)[0]
    torch.testing.assert_close(block(x, requested), expected)


def test_a_layer_takes_away_what_its_blocks_explain():
    graphs = [Whole(torch.rand(6, 6)) for _ in range(2)]
    layer, x = DecoupledLayer(3, SMALL, last=False), torch.randn(6, 3, 4)
    embedded = torch.randn(3, 3), torch.randn(6, 6)
    rows, result = layer(x, *embedded, graphs)
    spread = layer.diffusion(layer.gate(*embedded) * x, graphs)
    left = functional.layer_norm(x - layer.backcast_diffusion(spread).relu(), (4,))
    within = layer.inherent(left, 3)
    after = functional.layer_norm(left - layer.backcast_inherent(within).relu(), (4,))
    torch.testing.assert_close(rows, after)
    last = torch.cat([spread[:, 2], within[:, 2]], dim=1)
    torch.testing.assert_close(result, layer.forecast(last))


def test_the_last_layer_gives_the_same_forecast_and_no_backcast():
    graphs = [Whole(torch.rand(6, 6)) for _ in range(2)]
    inner, last = (DecoupledLayer(3, SMALL, last=one) for one in (False, True))
    last.load_state_dict(inner.state_dict(), strict=False)
    x, embedded = torch.randn(6, 3, 4), (torch.randn(3, 3), torch.randn(6, 6))
    result = [layer(x, *embedded, graphs)[1] for layer in (inner, last)]
    torch.testing.assert_close(*result)
