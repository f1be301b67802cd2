import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.gcn import Gcn, GcnSettings, GraphConvolution
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from tests.baselines import tiny
from tests.oracles import pyg
from tests.oracles.cities import cities
from tests.studies import town


def slots_together(traces):
    """S of the layer, slot by slot and pair by pair: (people, people)."""
    found = np.zeros((traces.people, traces.people))
    for here in traces.by_slot:
        seen = here >= 0
        found += (here[:, None] == here) & seen[:, None] & seen
    unseen = np.diag(found) == 0
    return found + np.diag(unseen.astype(float))


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.sampled_from([(5, 3), (3, 5)]))
def test_a_layer_is_that_of_pyg_on_the_whole_graph(city, widths):
    torch.manual_seed(0)
    layer = GraphConvolution(Ground(city), *widths)
    layer.bias.data.normal_()
    theirs = pyg.layer("GCNConv")(*widths, add_self_loops=False)
    theirs.lin.weight.data = layer.weight.data.T.clone()
    theirs.bias.data = layer.bias.data.clone()
    dense = torch.from_numpy(slots_together(city)).float()
    edges = dense.nonzero().T
    x, upstream = (torch.randn(city.people, width) for width in widths)
    mine, their = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, two = layer(mine), theirs(their, edges, dense[tuple(edges)])
    assert torch.allclose(one, two, atol=2e-5)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.allclose(mine.grad, their.grad, atol=2e-5)
    assert torch.allclose(layer.weight.grad.T, theirs.lin.weight.grad, atol=1e-4)


def test_a_loop_of_one_is_pygs_own_where_slots_are_the_unit():
    """Everybody observed in all slots: PyG's loop of 1 after a division by them."""
    traces = town.traces()
    layer = GraphConvolution(Ground(traces), 4, 4)
    theirs = pyg.layer("GCNConv")(4, 4)
    theirs.lin.weight.data = layer.weight.data.T.clone()
    dense = torch.from_numpy(slots_together(traces)).float().fill_diagonal_(0)
    edges = dense.nonzero().T
    x = torch.randn(80, 4)
    found = theirs(x, edges, dense[tuple(edges)] / traces.slots)
    assert torch.allclose(layer(x), found, atol=1e-5)


def test_days_stand_side_by_side_and_a_free_vector_stands_once():
    ground = Ground(town.traces())
    for kind, width in (("exposure", 5 * 4), ("embedding", 4)):
        method = Gcn(Scene(town.traces()), GcnSettings(input=kind, width=6))
        network = method.network(ground, 4)
        assert network.network.layers[0].weight.shape == (width, 6)
        assert network.linear.weight.shape == (1, width)
        assert network(torch.randn(80, 5, 4), torch.zeros(80)).shape == (80,)


def test_the_skip_connection_adds_a_linear_map_of_the_own_input():
    ground, x = Ground(town.traces()), torch.randn(80, 5, 4)
    made = []
    for skip in (True, False):
        torch.manual_seed(0)
        method = Gcn(Scene(town.traces()), GcnSettings(skip=skip))
        made.append(method.network(ground, 4).eval())
    whole, bare = made
    status = torch.zeros(80)
    assert torch.equal(whole(x, status), bare(x, status))
    whole.linear.weight.data.normal_()
    expected = bare(x, status) + x.reshape(80, 20) @ whole.linear.weight[0]
    assert torch.allclose(whole(x, status), expected, atol=1e-5)


def test_with_the_skip_connection_training_finds_what_averages_hide():
    assert tiny.ranks_the_own_input(Gcn, GcnSettings) > 0.95
    assert tiny.ranks_the_own_input(Gcn, GcnSettings, skip=False) < 0.7


def test_every_day_counts():
    network = Gcn(Scene(town.traces())).network(Ground(town.traces()), 4).eval()
    x = torch.randn(80, 5, 4)
    before = network(x, torch.zeros(80))
    for day in range(5):
        other = x.clone()
        other[:, day] += 1
        assert not torch.equal(network(other, torch.zeros(80)), before)


@pytest.mark.parametrize("kind", ["exposure", "embedding"])
@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities_have_risks(name, kind):
    settings_ = GcnSettings(input=kind, steps=4, learning_rates=(0.01,))
    method = Gcn(Scene(tiny.odd_cities()[name]), settings_).fit(tiny.odd_tests())
    assert ((method.predict_proba() >= 0) & (method.predict_proba() <= 1)).all()


def test_who_kept_company_with_the_infected_is_at_risk():
    method = Gcn(Scene(tiny.sixteen_houses()), GcnSettings(**tiny.SHORT))
    assert tiny.tells_houses_apart(method.fit(tiny.house_tests()).predict_proba())
