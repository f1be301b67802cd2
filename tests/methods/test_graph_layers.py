"""The layers of GCN, GAT and UniMP against PyG's, with the same numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.gat import GraphAttention
from epifalcon.methods.gcn import GraphConvolution
from epifalcon.methods.graph_networks import ContactGraphs
from epifalcon.methods.unimp import GraphTransformer, Results
from tests.oracles import pyg
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import contacts_by_loop
from tests.studies import town

CASES = settings(deadline=None, derandomize=True, max_examples=25)
SHAPES = st.sampled_from([(1, 4), (3, 2)])
"""Heads and width of each."""


def require_equal(layer, theirs, city, widths, *graph, atol=2e-5):
    """Outputs and gradients of the inputs are equal; backward was called on both."""
    x, upstream = (torch.randn(city.people, width) for width in widths)
    mine, their = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, two = layer(mine), theirs(their, *graph)
    assert torch.allclose(one, two, atol=2e-5)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.allclose(mine.grad, their.grad, atol=atol)


def edge_index(near):
    return torch.stack([near.edges.source, near.edges.target])


@CASES
@given(cities(), st.sampled_from([(5, 3), (3, 5)]))
def test_gcn_is_that_of_pyg_on_the_whole_graph(city, widths):
    torch.manual_seed(0)
    layer = GraphConvolution(ContactGraphs(city), *widths)
    layer.bias.data.normal_()
    theirs = pyg.layer("GCNConv")(*widths, add_self_loops=False)
    theirs.lin.weight.data = layer.weight.data.T.clone()
    theirs.bias.data = layer.bias.data.clone()
    # S of the layer, slot by slot and pair by pair.
    own = np.maximum((city.by_slot >= 0).sum(0), 1)
    dense = torch.from_numpy(contacts_by_loop(city) + np.diag(own)).float()
    edges = dense.nonzero().T
    require_equal(layer, theirs, city, widths, edges, dense[tuple(edges)])
    assert torch.allclose(layer.weight.grad.T, theirs.lin.weight.grad, atol=1e-4)


@CASES
@given(cities(), SHAPES, st.integers(1, 12))
def test_gat_is_that_of_pyg(city, shape, most):
    torch.manual_seed(0)
    heads, width = shape
    near = ContactGraphs(city).neighbourhood(most, with_self=True)
    layer = GraphAttention(near, 5, *shape, dropout=0.0)
    layer.close.data.normal_()
    layer.bias.data.normal_()
    theirs = pyg.layer("GATConv")(5, width, heads, add_self_loops=False, edge_dim=1)
    theirs.lin.weight.data = layer.rows.weight.data.clone()
    theirs.att_src.data = layer.partner.data.clone()
    theirs.att_dst.data = layer.own.data.clone()
    theirs.bias.data = layer.bias.data.clone()
    # Ours has one number a head for what PyG writes as the product of two rows.
    theirs.lin_edge.weight.data.fill_(1.0)
    spread = layer.close.data[:, None].expand(heads, width) / width
    theirs.att_edge.data = spread[None].clone()
    sizes, edges = (5, heads * width), edge_index(near)
    require_equal(layer, theirs, city, sizes, edges, near.closeness)
    assert torch.allclose(layer.own.grad, theirs.att_dst.grad, atol=1e-4)
    assert torch.allclose(layer.partner.grad, theirs.att_src.grad, atol=1e-4)
    by_head = theirs.att_edge.grad[0].mean(1)
    assert torch.allclose(layer.close.grad, by_head, atol=1e-4)


def test_in_gat_people_attend_to_themselves_and_their_strongest_partners():
    graphs, slots = ContactGraphs(town.traces()), town.traces().slots
    near, partners = graphs.neighbourhood(3, with_self=True), graphs.partners(3)
    # Everybody of the town is observed in every slot.
    everybody = torch.arange(80).expand(2, -1)
    expected = torch.cat([everybody, partners.edge_index], 1)
    assert torch.equal(edge_index(near), expected)
    together = torch.cat([torch.full((80,), float(slots)), partners.weight])
    expected = together.log1p() / torch.tensor(float(slots)).log1p()
    torch.testing.assert_close(near.closeness[:, 0], expected)


@CASES
@given(cities(), SHAPES, st.integers(1, 12))
def test_unimp_is_that_of_pyg(city, shape, most):
    torch.manual_seed(0)
    heads, width = shape
    near = ContactGraphs(city).neighbourhood(most, with_self=False)
    layer = GraphTransformer(near, 5, *shape, dropout=0.0)
    theirs = pyg.layer("TransformerConv")(5, width, heads, beta=True, edge_dim=1)
    for mine, their in (
        (layer.query, theirs.lin_query),
        (layer.key, theirs.lin_key),
        (layer.value, theirs.lin_value),
        (layer.residual, theirs.lin_skip),
    ):
        their.load_state_dict(mine.state_dict())
    theirs.lin_edge.weight.data = layer.close.data.reshape(-1, 1).clone()
    theirs.lin_beta.weight.data = layer.gate.weight.data.clone()
    sizes, edges = (5, heads * width), edge_index(near)
    require_equal(layer, theirs, city, sizes, edges, near.closeness, atol=5e-5)
    ours, gate = layer.close.grad.reshape(-1, 1), theirs.lin_beta.weight.grad
    assert torch.allclose(ours, theirs.lin_edge.weight.grad, atol=1e-4)
    assert torch.allclose(layer.gate.weight.grad, gate, atol=1e-4)


def test_results_are_one_of_two_rows_or_none():
    results = Results(3, hidden=0.5).eval()
    negative, positive = results.rows
    found = results(torch.tensor([1, -1, 0]))
    expected = torch.stack([positive, torch.zeros(3), negative])
    assert torch.equal(found, expected)


def test_each_training_step_masks_newly_drawn_results():
    results = Results(3, hidden=0.25)
    status = torch.arange(20_000) % 2
    torch.manual_seed(0)
    one, two = (results(status).abs().sum(1) > 0 for _ in range(2))
    assert not torch.equal(one, two)
    # Five standard deviations of the share.
    assert one.float().mean() == pytest.approx(0.75, abs=0.0155)
    assert Results(3, hidden=0.0)(status).abs().sum(1).all()
