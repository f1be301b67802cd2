import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.graph_networks import ContactGraphs
from epifalcon.methods.graph_wavenet import (
    GraphWaveNet,
    GraphWaveNetSettings,
    LowRankAdaptive,
    dilations,
)
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import contacts_by_loop


def network_of(traces, **more):
    torch.manual_seed(0)
    given_ = GraphWaveNetSettings(**{"width": 4, "skip_width": 5, **more})
    network = GraphWaveNet(given_).network(ContactGraphs(traces), 3)
    for layer in network.layers:
        layer.norm.running_mean.normal_()
        layer.norm.running_var.uniform_(0.5, 2)
    return network.eval()


def matrix_of(adaptive, people):
    """The learnt matrix, column by column."""
    return adaptive()(torch.eye(people)).detach()


def dense_layer(layer, walks, x):
    """The paper's layer, day by day, with every power of every walk written out."""
    width, found = x.shape[2], []
    a, b = layer.both.weight.chunk(2)
    c, d = layer.both.bias.chunk(2)
    norm, theta = layer.norm, layer.graph.weight
    powers = [torch.eye(len(x))] + [
        torch.linalg.matrix_power(walk, k + 1)
        for walk in walks
        for k in range((theta.shape[1] // width - 1) // len(walks))
    ]
    for day in range(layer.dilation, x.shape[1]):
        seen = x[:, day]
        if layer.dilation:
            seen = torch.cat([x[:, day - layer.dilation], seen], 1)
        rows = (seen @ a.T + c).tanh() * (seen @ b.T + d).sigmoid()
        new = x[:, day] + layer.graph.bias
        for number, power in enumerate(powers):
            new = new + power @ rows @ theta[:, number * width :][:, :width].T
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        found.append((new - norm.running_mean) * scale + norm.bias)
    return torch.stack(found, 1)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.integers(1, 3))
def test_the_network_is_the_papers_on_dense_walks(city, steps):
    network = network_of(city, diffusion_steps=steps)
    contacts = torch.from_numpy(contacts_by_loop(city)).float()
    walks = [contacts / contacts.sum(1, keepdim=True).clamp(min=1)]
    walks.append(matrix_of(network.adaptive, city.people))
    x = torch.randn(city.people, city.clock.days, 3)
    rows, total = network.first(x), 0
    for layer, skip in zip(network.layers, network.skips, strict=True):
        rows = dense_layer(layer, walks, rows)
        total = total + skip(rows[:, -1])
    assert rows.shape[1] == 1
    wanted = network.last(total)[:, 0]
    found = network(x, torch.zeros(city.people))
    assert torch.allclose(found, wanted, atol=1e-5)


def test_the_learnt_matrix_is_a_product_of_two_softmaxes():
    thin = LowRankAdaptive(7, 3)
    found = matrix_of(thin, 7)
    wanted = thin.one.softmax(1) @ thin.other.softmax(0).T
    assert torch.allclose(found, wanted, atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(7))


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 400), st.integers(1, 12))
def test_dilations_reach_from_the_last_day_to_the_first(days, most):
    found = dilations(days, most)
    assert sum(found) == days - 1
    fewest = max((days - 1).bit_length(), 1)
    assert len(found) <= max(most, fewest)
    # No day is jumped over: each layer's step is at most what is seen already.
    for number, step in enumerate(found):
        assert step <= 1 + sum(found[:number])


def test_dilations_are_those_of_the_paper_where_they_fit():
    assert dilations(13, 8) == (1, 2) * 4
    assert dilations(14, 8) == (1, 2, 4, 1, 2, 3)
    assert dilations(14, 9) == (1, 2, 1, 2, 1, 2, 1, 2, 1)
    assert dilations(5, 8) == (1, 2, 1)
    assert dilations(2, 8) == (1,)
    assert dilations(1, 8) == (0,)
    assert dilations(40, 8) == (1, 2, 4, 8, 16, 8)
