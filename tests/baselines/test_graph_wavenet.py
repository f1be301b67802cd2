import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines import graph_wavenet
from epifalcon.baselines.graph_wavenet import (
    DenseAdaptive,
    EdgeAdaptive,
    GraphWaveNet,
    GraphWaveNetSettings,
    LowRankAdaptive,
    WaveLayer,
    dilations,
)
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines import tiny
from tests.oracles.cities import cities, random_traces

FORMS = ["low-rank", "edges", "dense", "none"]
QUICK = {"steps": 4, "check_every": 2, "learning_rates": (0.01,), "width": 6}


def walk_of(traces):
    """D^-1 C of all days, slot by slot and pair by pair: (people, people)."""
    found = np.zeros((traces.people, traces.people))
    for here in traces.by_slot:
        seen = here >= 0
        found += (here[:, None] == here) & seen[:, None] & seen
    np.fill_diagonal(found, 0)
    total = found.sum(1, keepdims=True)
    return torch.from_numpy(found / np.maximum(total, 1)).float()


def network_of(traces, **more):
    torch.manual_seed(0)
    given_ = GraphWaveNetSettings(**{"width": 4, "skip_width": 5, **more})
    network = GraphWaveNet(Scene(traces), given_).network(Ground(traces), 3)
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
@given(cities(), st.sampled_from(FORMS), st.integers(1, 3))
def test_the_network_is_the_papers_on_dense_walks(city, form, steps):
    network = network_of(city, adaptive=form, diffusion_steps=steps)
    walks = [walk_of(city)]
    if network.adaptive is not None:
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


@settings(deadline=None, derandomize=True, max_examples=20)
@given(cities(), st.integers(1, 4))
def test_the_learnt_matrices_are_what_they_say(city, most):
    torch.manual_seed(0)
    people, partners = city.people, Ground(city).partners(most)
    dense = DenseAdaptive(people, 5)
    edges = EdgeAdaptive(people, 5, partners)
    thin = LowRankAdaptive(people, 5)
    e, f = dense.one.data, dense.other.data
    every = torch.softmax(torch.relu(e @ f.T), dim=1)
    assert torch.allclose(matrix_of(dense, people), every, atol=1e-6)
    edges.load_state_dict(dense.state_dict())
    on = torch.zeros(people, people)
    on[partners.edge_index[1], partners.edge_index[0]] = 1
    # A softmax on fewer cells is the whole one on these, made to add up to 1.
    some = every * on
    some = some / some.sum(1, keepdim=True).clamp(min=1e-12)
    assert torch.allclose(matrix_of(edges, people), some, atol=1e-5)
    thin.load_state_dict(dense.state_dict())
    found = matrix_of(thin, people)
    assert torch.allclose(found, e.softmax(1) @ f.softmax(0).T, atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(people))
    assert (found >= 0).all()


@pytest.mark.parametrize("form", ["low-rank", "edges", "dense"])
def test_gradients_reach_the_learnt_matrix(form):
    traces = random_traces(4, 6, 2, Clock(8.0, 3))
    network = network_of(traces, adaptive=form, adaptive_width=2).double()
    x, status = torch.randn(6, 3, 3).double(), torch.zeros(6)
    weights = network.adaptive.one, network.adaptive.other
    given_ = [one.detach().clone().requires_grad_() for one in weights]
    names = [f"adaptive.{name}" for name in ("one", "other")]

    def odds(*both):
        new = dict(zip(names, both, strict=True))
        return torch.func.functional_call(network, new, (x, status))

    assert torch.autograd.gradcheck(odds, given_, atol=1e-4)
    network(x, status).sum().backward()
    assert all(one.grad.abs().max() > 0 for one in weights)


def test_a_large_city_is_too_much_for_every_pair(monkeypatch):
    monkeypatch.setattr(graph_wavenet, "MOST_DENSE", 11)
    traces = random_traces(4, 12, 3, Clock(8.0, 3))
    with pytest.raises(SettingsError, match=r"12 x 12 .* at most 11 people"):
        network_of(traces, adaptive="dense")
    network_of(traces, adaptive="low-rank")


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


@pytest.mark.parametrize("days", [1, 2, 5, 14, 40])
def test_every_day_counts(days):
    traces = random_traces(4, 12, 3, Clock(8.0, days))
    network = network_of(traces, skip_width=32).double()
    x, status = torch.randn(12, days, 3).double(), torch.zeros(12)
    before = network(x, status)
    for day in range(days):
        other = x.clone()
        other[:, day] += 1
        assert not torch.equal(network(other, status), before)


@pytest.mark.parametrize("days", [1, 4])
def test_contacts_count_in_every_layer_the_last_one_too(days):
    traces = random_traces(4, 12, 3, Clock(8.0, days))
    network = network_of(traces, adaptive="none")
    x, status = torch.randn(12, days, 3), torch.zeros(12)
    before = network(x, status)
    for layer in network.layers:
        kept = layer.graph.weight.data.clone()
        layer.graph.weight.data[:, 4:] = 0
        assert not torch.equal(network(x, status), before)
        layer.graph.weight.data = kept


def test_batch_norm_runs_over_people_and_days():
    traces = random_traces(4, 12, 3, Clock(8.0, 6))
    torch.manual_seed(0)
    layer = WaveLayer(1, 1, GraphWaveNetSettings(width=4, adaptive="none"))
    found = layer(torch.randn(12, 6, 4), [Ground(traces).contacts.mean])
    assert found.shape == (12, 5, 4)
    assert torch.allclose(found.mean((0, 1)), torch.zeros(4), atol=1e-5)
    assert torch.allclose(found.var((0, 1), correction=0), torch.ones(4), atol=1e-3)
    assert found.mean(0).abs().max() > 0.01


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities_get_a_risk(form, name):
    kind = "embedding" if form == "edges" else "exposure"
    given_ = GraphWaveNetSettings(adaptive=form, input=kind, **QUICK)
    method = GraphWaveNet(Scene(tiny.odd_cities()[name]), given_)
    risk = method.fit(tiny.odd_tests()).predict_proba()
    assert np.isfinite(risk).all()
    assert ((risk >= 0) & (risk <= 1)).all()


@pytest.mark.parametrize("form", FORMS[:2])
def test_it_learns_where_the_infected_live(form):
    given_ = GraphWaveNetSettings(
        adaptive=form, width=8, learning_rates=(0.03,), steps=40
    )
    method = GraphWaveNet(Scene(tiny.sixteen_houses()), given_)
    risk = method.fit(tiny.house_tests()).predict_proba()
    assert tiny.tells_houses_apart(risk)


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ("adaptive", "sparse"),
        ("diffusion_steps", -1),
        ("layers", 0),
        ("skip_width", 0),
        ("adaptive_width", 0),
        ("partners", 0),
    ],
)
def test_settings_are_checked(wrong, value):
    with pytest.raises(SettingsError, match=wrong):
        GraphWaveNetSettings(**{wrong: value})
