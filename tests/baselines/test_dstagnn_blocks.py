import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from epifalcon.baselines.dstagnn_blocks import (
    AwareBlock,
    AwareGraph,
    BlockShape,
    ChebyshevConv,
    GatedConv,
    SpatialAttention,
    TemporalAttention,
    candidate_pairs,
)
from epifalcon.hypergraph.contacts import Partners
from tests.oracles.dense_graphs import chebyshev, matrix, off_diagonal

SHAPE = BlockShape(channels=4, days=5, heads=2, key_width=3, embedded=6)


def graph_of(seed, people, most=3, orders=3):
    """A graph among random pairs, and the pairs with their likeness."""
    rng = np.random.default_rng(seed)
    pairs = torch.combinations(torch.arange(people)).t()
    pairs = pairs[:, rng.random(pairs.shape[1]) < 0.6]
    alike = torch.from_numpy(rng.random(pairs.shape[1])).float()
    return AwareGraph.of(pairs, alike, people, (most, orders)), pairs, alike


GRAPHS = (st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(*GRAPHS)
def test_an_edge_stays_where_either_side_is_among_the_likest(seed, people, most):
    graph, pairs, alike = graph_of(seed, people, most)
    whole = torch.zeros(people, people)
    whole[pairs[0], pairs[1]] = whole[pairs[1], pairs[0]] = alike
    rank = (-whole).argsort(stable=True, dim=1).argsort(1)
    keeps = (rank < most) & (whole > 0)
    expected = torch.where(keeps | keeps.t(), whole, 0.0)
    torch.testing.assert_close(matrix(graph.support, graph.likeness), expected)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(*GRAPHS, st.integers(1, 4))
def test_chebyshev_terms_are_the_dense_ones_on_the_support(seed, people, most, orders):
    graph, _, _ = graph_of(seed, people, most, orders)
    on = matrix(graph.support, torch.ones(graph.support.edges))
    dense = chebyshev(off_diagonal(on).double(), orders)
    assert len(graph.chebyshev) == orders
    for term, whole in zip(graph.chebyshev, dense, strict=True):
        found = matrix(graph.support, term).double()
        torch.testing.assert_close(found, whole * on, atol=1e-6, rtol=1e-5)


def test_pairs_are_named_once():
    edges = torch.tensor([[1, 0, 2, 4], [0, 1, 0, 3]])
    found = candidate_pairs(Partners(edges, torch.ones(4)))
    assert found.tolist() == [[0, 0, 3], [1, 2, 4]]


def test_the_diagonal_is_where_it_is_said_to_be():
    graph, _, _ = graph_of(3, 7)
    assert graph.support.source[graph.own].tolist() == list(range(7))
    assert graph.support.target[graph.own].tolist() == list(range(7))


def test_attention_over_days_is_torch_s_with_the_scores_of_the_block_before():
    torch.manual_seed(0)
    people, days, channels = 7, 5, 3
    block = TemporalAttention(people, 2, 4)
    x, before = torch.randn(people, days, channels), torch.randn(3, 2, days, days)
    found, score = block(x, before)
    for channel in range(channels):
        rows = x[:, :, channel].t()
        query, key, value = (
            part.reshape(days, 2, 4).transpose(0, 1)
            for part in (rows @ block.inward.weight.t()).split(8, dim=1)
        )
        met = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=before[channel]
        )
        made = rows + met.transpose(0, 1).flatten(1) @ block.outward.weight.t()
        expected = functional.layer_norm(made, (people,)).t()
        torch.testing.assert_close(found[:, :, channel], expected)
    fresh = block(x, None)[1]
    torch.testing.assert_close(score, fresh + before)


def test_attention_over_people_is_the_dense_softmax_on_the_support():
    torch.manual_seed(0)
    graph, _, _ = graph_of(2, 8)
    block, x = SpatialAttention(graph, 5 * 4, (6, 3)), torch.randn(8, 5, 4)
    on = matrix(graph.support, torch.ones(graph.support.edges)) > 0
    person = block.norm(block.embed(x.flatten(1)))
    for term, found in enumerate(block(x)):
        query, key = (
            one(person)[:, 3 * term : 3 * term + 3] for one in (block.query, block.key)
        )
        bias = matrix(graph.support, graph.likeness * block.mask[term])
        score = query @ key.t() / 3**0.5 + bias
        expected = score.masked_fill(~on, -torch.inf).softmax(1)
        torch.testing.assert_close(matrix(graph.support, found), expected)


@pytest.mark.parametrize("orders", [1, 2, 3])
def test_the_convolution_is_the_dense_one(orders):
    torch.manual_seed(0)
    graph, _, _ = graph_of(4, 8, orders=orders)
    block, x = ChebyshevConv(graph, 4), torch.randn(8, 5, 4)
    attention = [torch.rand(graph.support.edges) for _ in range(orders)]
    on = matrix(graph.support, torch.ones(graph.support.edges))
    terms = chebyshev(off_diagonal(on), orders)
    expected = block.mix.bias
    for number, (term, weight) in enumerate(zip(terms, attention, strict=True)):
        theta = block.mix.weight[:, 4 * number : 4 * number + 4]
        spread = term * matrix(graph.support, weight)
        expected = expected + torch.einsum("ij,jdc,oc->ido", spread, x, theta)
    torch.testing.assert_close(block(x, attention), expected.relu(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("days", [1, 4, 9])
def test_the_gated_convolution_is_a_loop_over_days(days):
    torch.manual_seed(0)
    block, x = GatedConv(3, days, (3, 5)), torch.randn(6, days, 3)
    made = []
    for convolve in block.convolve:
        kernel = convolve.weight.shape[2]
        for day in range(days - kernel + 1):
            window = x[:, day : day + kernel]
            both = torch.einsum("nkc,ock->no", window, convolve.weight[..., 0])
            value, gate = (both + convolve.bias).chunk(2, dim=1)
            made.append(value.tanh() * gate.sigmoid())
    led_back = torch.stack(made, dim=2) @ block.days.weight.t() + block.days.bias
    expected = (x + led_back.transpose(1, 2)).relu()
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-5)


def test_a_block_is_its_parts_and_a_residual():
    torch.manual_seed(0)
    graph, _, _ = graph_of(5, 8)
    block, x = AwareBlock(graph, SHAPE, (3, 5)), torch.randn(8, 5, 4)
    found, score = block(x, None)
    attended, expected_score = block.over_days(x, None)
    inner = block.in_time(block.spread(x, block.over_people(attended)))
    expected = functional.layer_norm((block.residual(x) + inner).relu(), (4,))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(score, expected_score)
