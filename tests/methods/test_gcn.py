import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.gcn import GraphConvolution
from epifalcon.methods.networks import ContactGraphs
from tests.oracles import pyg
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import contacts_by_loop


def slots_together(traces):
    """S of the layer, slot by slot and pair by pair: (people, people)."""
    own = np.maximum((traces.by_slot >= 0).sum(0), 1)
    return contacts_by_loop(traces) + np.diag(own)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.sampled_from([(5, 3), (3, 5)]))
def test_a_layer_is_that_of_pyg_on_the_whole_graph(city, widths):
    torch.manual_seed(0)
    layer = GraphConvolution(ContactGraphs(city), *widths)
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
