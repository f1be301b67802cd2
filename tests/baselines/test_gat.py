import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.gat import Gat, GatSettings, GraphAttention
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.errors import SettingsError
from tests.baselines import tiny
from tests.oracles import pyg
from tests.oracles.cities import cities
from tests.studies import town


def pygs(layer, circle, width_in, shape):
    """PyG's layer with the same numbers, and the edges it is called with."""
    heads, width = shape
    made = pyg.layer("GATConv")(
        width_in, width, heads, add_self_loops=False, edge_dim=1
    )
    made.lin.weight.data = layer.rows.weight.data.clone()
    made.att_src.data = layer.partner.data.clone()
    made.att_dst.data = layer.own.data.clone()
    made.bias.data = layer.bias.data.clone()
    # Ours has one number a head for what PyG writes as the product of two rows.
    made.lin_edge.weight.data.fill_(1.0)
    spread = layer.close.data[:, None].expand(heads, width) / width
    made.att_edge.data = spread[None].clone()
    edges = torch.stack(
        [torch.from_numpy(end) for end in (circle.edges.source, circle.edges.target)]
    ).long()
    return made, edges


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.sampled_from([(1, 4), (3, 2)]), st.integers(1, 12))
def test_a_layer_is_that_of_pyg(city, shape, most):
    torch.manual_seed(0)
    circle = Ground(city).circle(most, with_self=True)
    layer = GraphAttention(circle, 5, shape, dropout=0.0)
    layer.close.data.normal_()
    layer.bias.data.normal_()
    theirs, edges = pygs(layer, circle, 5, shape)
    x, upstream = torch.randn(city.people, 5), torch.randn(city.people, 6)
    upstream = upstream[:, : shape[0] * shape[1]]
    mine, their = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, two = layer(mine), theirs(their, edges, circle.closeness)
    assert torch.allclose(one, two, atol=2e-5)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.allclose(mine.grad, their.grad, atol=2e-5)
    assert torch.allclose(layer.own.grad, theirs.att_dst.grad, atol=1e-4)
    assert torch.allclose(layer.partner.grad, theirs.att_src.grad, atol=1e-4)
    by_head = theirs.att_edge.grad[0].mean(1)
    assert torch.allclose(layer.close.grad, by_head, atol=1e-4)


def test_a_person_attends_to_itself_and_its_strongest_partners():
    ground = Ground(town.traces())
    circle, partners = ground.circle(3, with_self=True), ground.partners(3)
    edges = {
        (int(one), int(two)): float(close)
        for one, two, close in zip(
            circle.edges.source,
            circle.edges.target,
            circle.closeness[:, 0],
            strict=True,
        )
    }
    slots = town.traces().slots
    for person in range(80):
        # Everybody of the town is observed in every slot.
        assert edges.pop((person, person)) == pytest.approx(1.0)
    expected = zip(*partners.edge_index.tolist(), partners.weight.tolist(), strict=True)
    for source, target, weight in expected:
        together = torch.tensor(weight).log1p() / torch.tensor(float(slots)).log1p()
        assert edges.pop((source, target)) == pytest.approx(float(together))
    assert not edges


def test_attention_drops_out_in_training_alone():
    circle = Ground(town.traces()).circle(4, with_self=True)
    layer = GraphAttention(circle, 3, (2, 2), dropout=0.5)
    x = torch.randn(80, 3)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_the_skip_connection_adds_a_linear_map_of_the_own_input():
    ground, x = Ground(town.traces()), torch.randn(80, 5, 4)
    made = []
    for skip in (True, False):
        torch.manual_seed(0)
        method = Gat(Scene(town.traces()), GatSettings(skip=skip))
        made.append(method.network(ground, 4).eval())
    whole, bare = made
    status = torch.zeros(80)
    assert torch.equal(whole(x, status), bare(x, status))
    whole.linear.weight.data.normal_()
    expected = bare(x, status) + x.reshape(80, 20) @ whole.linear.weight[0]
    assert torch.allclose(whole(x, status), expected, atol=1e-5)


def test_with_the_skip_connection_training_finds_what_averages_hide():
    assert tiny.ranks_the_own_input(Gat, GatSettings) > 0.95
    assert tiny.ranks_the_own_input(Gat, GatSettings, skip=False) < 0.9


def test_heads_must_divide_the_width():
    with pytest.raises(SettingsError, match="heads=3 must divide width=32"):
        GatSettings(heads=3)
    with pytest.raises(SettingsError, match="partners=0"):
        GatSettings(partners=0)


@pytest.mark.parametrize("kind", ["exposure", "embedding"])
@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities_have_risks(name, kind):
    settings_ = GatSettings(input=kind, steps=4, learning_rates=(0.01,))
    method = Gat(Scene(tiny.odd_cities()[name]), settings_).fit(tiny.odd_tests())
    assert ((method.predict_proba() >= 0) & (method.predict_proba() <= 1)).all()


def test_who_kept_company_with_the_infected_is_at_risk():
    method = Gat(Scene(tiny.sixteen_houses()), GatSettings(**tiny.SHORT))
    assert tiny.tells_houses_apart(method.fit(tiny.house_tests()).predict_proba())
