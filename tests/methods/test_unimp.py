import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.networks import ContactGraphs
from epifalcon.methods.unimp import GraphTransformer, Results
from tests.oracles import pyg
from tests.oracles.cities import cities


def pygs(layer, near, width_in, shape):
    """PyG's layer with the same numbers, and the edges it is called with."""
    heads, width = shape
    made = pyg.layer("TransformerConv")(width_in, width, heads, beta=True, edge_dim=1)
    for ours, theirs in (
        (layer.query, made.lin_query),
        (layer.key, made.lin_key),
        (layer.value, made.lin_value),
        (layer.residual, made.lin_skip),
    ):
        theirs.load_state_dict(ours.state_dict())
    made.lin_edge.weight.data = layer.close.data.reshape(-1, 1).clone()
    made.lin_beta.weight.data = layer.gate.weight.data.clone()
    return made, torch.stack([near.edges.source, near.edges.target])


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.sampled_from([(1, 4), (3, 2)]), st.integers(1, 12))
def test_a_layer_is_that_of_pyg(city, shape, most):
    torch.manual_seed(0)
    near = ContactGraphs(city).neighbourhood(most, with_self=False)
    layer = GraphTransformer(near, 5, *shape, dropout=0.0)
    theirs, edges = pygs(layer, near, 5, shape)
    x = torch.randn(city.people, 5)
    upstream = torch.randn(city.people, shape[0] * shape[1])
    mine, their = x.clone().requires_grad_(), x.clone().requires_grad_()
    one, two = layer(mine), theirs(their, edges, near.closeness)
    assert torch.allclose(one, two, atol=2e-5)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.allclose(mine.grad, their.grad, atol=5e-5)
    ours = layer.close.grad.reshape(-1, 1)
    assert torch.allclose(ours, theirs.lin_edge.weight.grad, atol=1e-4)
    assert torch.allclose(
        layer.gate.weight.grad, theirs.lin_beta.weight.grad, atol=1e-4
    )


def test_results_are_one_of_two_rows_or_none():
    results = Results(3, hidden=0.5).eval()
    negative, positive = results.rows
    found = results(torch.tensor([1, -1, 0]))
    assert torch.equal(found[0], positive)
    assert torch.equal(found[1], torch.zeros(3))
    assert torch.equal(found[2], negative)


def test_a_step_of_training_hides_results_drawn_anew():
    results = Results(3, hidden=0.25)
    status = torch.arange(20_000) % 2
    torch.manual_seed(0)
    one, two = (results(status).abs().sum(1) > 0 for _ in range(2))
    assert not torch.equal(one, two)
    # Five standard deviations of the share.
    assert one.float().mean() == pytest.approx(0.75, abs=0.0155)
    assert Results(3, hidden=0.0)(status).abs().sum(1).all()
