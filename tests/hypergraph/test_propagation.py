import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.hypergraph.propagation import (
    edge_to_node,
    node_to_edge,
    sum_to_edges,
    sum_to_people,
)
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.dense_hypergraph import dense, dense_layer, inverse

quick = settings(deadline=None, derandomize=True, max_examples=40)
WIDTHS = st.sampled_from([1, 3, 16, 33])


def rows(count: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator)


@quick
@given(incidences(), WIDTHS)
def test_each_half_is_the_dense_formula(inc, width):
    h = dense(inc)
    x, edges = rows(inc.people, width), rows(inc.edges, width)
    torch.testing.assert_close(sum_to_edges(x, inc), h.T @ x)
    torch.testing.assert_close(sum_to_people(edges, inc), h @ edges)
    torch.testing.assert_close(node_to_edge(x, inc), inverse(h.sum(0)) @ h.T @ x)
    torch.testing.assert_close(edge_to_node(edges, inc), inverse(h.sum(1)) @ h @ edges)
    short = edge_to_node(node_to_edge(x.float(), inc), inc)
    assert short.dtype == torch.float32
    wanted = dense_layer(inc) @ x
    torch.testing.assert_close(short.double(), wanted, rtol=1e-5, atol=1e-6)


@quick
@given(incidences())
def test_both_halves_are_pygs_hypergraph_convolution(inc):
    convolution = pytest.importorskip("torch_geometric.nn").HypergraphConv
    conv = convolution(4, 3, bias=False).double()
    x = rows(inc.people, 4)
    person = torch.from_numpy(inc.by_edge.index.copy()).long()
    edge = torch.repeat_interleave(torch.from_numpy(inc.size.copy()).long())
    theirs = conv(x, torch.stack([person, edge]), num_edges=inc.edges)
    ours = edge_to_node(node_to_edge(x @ conv.lin.weight.T, inc), inc)
    torch.testing.assert_close(ours, theirs)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(incidences(most_people=6))
def test_gradients_are_exact_also_of_gradients(inc):
    x = rows(inc.people, 2).requires_grad_()
    edges = rows(inc.edges, 2).requires_grad_()
    for half, start in (
        (sum_to_edges, x),
        (node_to_edge, x),
        (sum_to_people, edges),
        (edge_to_node, edges),
    ):
        if start.numel():
            assert torch.autograd.gradcheck(lambda v, f=half: f(v, inc), start)
            assert torch.autograd.gradgradcheck(lambda v, f=half: f(v, inc), start)


@quick
@given(incidences(), st.integers(1, 4))
def test_sums_of_cohorts_add_up_to_the_sums_of_all(inc, cohorts):
    x = rows(inc.people, 3)
    total, count = (torch.zeros(inc.edges, width).double() for width in (3, 1))
    views = [
        (ids, inc.restrict(ids))
        for first in range(cohorts)
        if (ids := list(range(first, inc.people, cohorts)))
    ]
    for ids, view in views:
        place = torch.from_numpy(view.places_in(inc.edge_key))
        total[place] += sum_to_edges(x[ids], view)
        count[place, 0] += torch.from_numpy(view.size.copy())
    torch.testing.assert_close(total / count, node_to_edge(x, inc))
    whole = edge_to_node(total / count, inc)
    for ids, view in views:
        own = (total / count)[torch.from_numpy(view.places_in(inc.edge_key))]
        torch.testing.assert_close(edge_to_node(own, view), whole[ids])


def test_rows_of_any_layout_are_read_as_they_are_seen():
    inc = by_hand(3, [[0, 1], [1, 2]])
    x = rows(3, 4)
    wanted = node_to_edge(x, inc)
    assert torch.equal(node_to_edge(x.T.contiguous().T, inc), wanted)
    assert torch.equal(node_to_edge(torch.cat([x, x], 1)[:, :4], inc), wanted)
    start = x.clone().requires_grad_()
    node_to_edge(start, inc).sum().backward()  # an expanded gradient, stride 0
    assert start.grad is not None
    torch.testing.assert_close(start.grad[:, 0], torch.tensor([0.5, 1, 0.5]).double())


@pytest.mark.parametrize(
    ("x", "result"),
    [
        (torch.zeros(3, 2), r"\(3, 2\), expected \(2, width\)"),
        (torch.zeros(2), r"\(2,\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(x, result):
    with pytest.raises(DataError, match=result):
        node_to_edge(x, by_hand(2, [[0, 1]]))
