import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.gat import GraphAttention
from epifalcon.methods.networks import ContactGraphs
from tests.oracles import pyg
from tests.oracles.cities import cities
from tests.studies import town


def pygs(layer, near, width_in, shape):
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
    return made, torch.stack([near.edges.source, near.edges.target])


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.sampled_from([(1, 4), (3, 2)]), st.integers(1, 12))
def test_a_layer_is_that_of_pyg(city, shape, most):
    torch.manual_seed(0)
    near = ContactGraphs(city).neighbourhood(most, with_self=True)
    layer = GraphAttention(near, 5, *shape, dropout=0.0)
    layer.close.data.normal_()
    layer.bias.data.normal_()
    theirs, edges = pygs(layer, near, 5, shape)
    x, upstream = torch.randn(city.people, 5), torch.randn(city.people, 6)
    upstream = upstream[:, : shape[0] * shape[1]]
    mine, their = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, two = layer(mine), theirs(their, edges, near.closeness)
    assert torch.allclose(one, two, atol=2e-5)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.allclose(mine.grad, their.grad, atol=2e-5)
    assert torch.allclose(layer.own.grad, theirs.att_dst.grad, atol=1e-4)
    assert torch.allclose(layer.partner.grad, theirs.att_src.grad, atol=1e-4)
    by_head = theirs.att_edge.grad[0].mean(1)
    assert torch.allclose(layer.close.grad, by_head, atol=1e-4)


def test_a_person_attends_to_itself_and_its_strongest_partners():
    graphs, slots = ContactGraphs(town.traces()), town.traces().slots
    near, partners = graphs.neighbourhood(3, with_self=True), graphs.partners(3)
    # Everybody of the town is observed in every slot.
    everybody = torch.arange(80).expand(2, -1)
    edges = torch.stack([near.edges.source, near.edges.target])
    assert torch.equal(edges, torch.cat([everybody, partners.edge_index], 1))
    together = torch.cat([torch.full((80,), float(slots)), partners.weight])
    expected = together.log1p() / torch.tensor(float(slots)).log1p()
    torch.testing.assert_close(near.closeness[:, 0], expected)
