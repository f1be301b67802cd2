import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch.nn import functional

from epifalcon.methods.dstagnn import (
    AwareBlock,
    AwareGraph,
    DstagnnSettings,
    MaskedChebyshevConv,
    MultiScaleGatedConv,
    SinkhornSettings,
    SpatialAttention,
    TemporalAttention,
    day_profiles,
    similarities,
)
from tests.oracles.cities import cities
from tests.oracles.dense_graphs import chebyshev, matrix, off_diagonal
from tests.studies import town

SMALL = DstagnnSettings(width=4, heads=2, key_width=3, kernels=(3, 5))


def graph_of(seed, people, most=3, orders=3):
    """A graph among random pairs, and the pairs with their likeness."""
    rng = np.random.default_rng(seed)
    pairs = torch.combinations(torch.arange(people)).t()
    pairs = pairs[:, rng.random(pairs.shape[1]) < 0.6]
    alike = torch.from_numpy(rng.random(pairs.shape[1])).float()
    graph = AwareGraph.of_pairs(pairs.numpy(), alike.numpy(), people, most, orders)
    return graph, pairs, alike


GRAPHS = (st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(*GRAPHS)
def test_an_edge_connects_either_of_the_most_similar(seed, people, most):
    graph, pairs, alike = graph_of(seed, people, most)
    whole = torch.zeros(people, people)
    whole[pairs[0], pairs[1]] = whole[pairs[1], pairs[0]] = alike
    rank = (-whole).argsort(stable=True, dim=1).argsort(1)
    keeps = (rank < most) & (whole > 0)
    expected = torch.where(keeps | keeps.t(), whole, 0.0)
    torch.testing.assert_close(matrix(graph.edges, graph.similarity), expected)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(*GRAPHS, st.integers(1, 4))
def test_chebyshev_terms_are_the_dense_ones_on_the_support(seed, people, most, orders):
    graph, _, _ = graph_of(seed, people, most, orders)
    on = matrix(graph.edges, torch.ones(len(graph.edges)))
    dense = chebyshev(off_diagonal(on).double(), orders)
    assert len(graph.chebyshev) == orders
    for term, whole in zip(graph.chebyshev, dense, strict=True):
        found = matrix(graph.edges, term).double()
        torch.testing.assert_close(found, whole * on, atol=1e-6, rtol=1e-5)


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
    block, x = SpatialAttention(graph, 5 * 4, 6, 3), torch.randn(8, 5, 4)
    on = matrix(graph.edges, torch.ones(len(graph.edges))) > 0
    person = block.norm(block.embed(x.flatten(1)))
    for term, found in enumerate(block(x)):
        columns = slice(3 * term, 3 * term + 3)
        query, key = (one(person)[:, columns] for one in (block.query, block.key))
        bias = matrix(graph.edges, graph.similarity * block.mask[term])
        score = query @ key.t() / 3**0.5 + bias
        expected = score.masked_fill(~on, -torch.inf).softmax(1)
        torch.testing.assert_close(matrix(graph.edges, found), expected)


@pytest.mark.parametrize("orders", [1, 2, 3])
def test_the_convolution_is_the_dense_one(orders):
    torch.manual_seed(0)
    graph, _, _ = graph_of(4, 8, orders=orders)
    block, x = MaskedChebyshevConv(graph, 4), torch.randn(8, 5, 4)
    attention = [torch.rand(len(graph.edges)) for _ in range(orders)]
    on = matrix(graph.edges, torch.ones(len(graph.edges)))
    terms = chebyshev(off_diagonal(on), orders)
    expected = block.mix.bias
    for number, (term, weight) in enumerate(zip(terms, attention, strict=True)):
        theta = block.mix.weight[:, 4 * number : 4 * number + 4]
        spread = term * matrix(graph.edges, weight)
        expected = expected + torch.einsum("ij,jdc,oc->ido", spread, x, theta)
    torch.testing.assert_close(block(x, attention), expected.relu(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("days", [1, 4, 9])
def test_the_gated_convolution_is_a_loop_over_days(days):
    torch.manual_seed(0)
    block, x = MultiScaleGatedConv(3, days, (3, 5)), torch.randn(6, days, 3)
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
    block, x = AwareBlock(graph, 5, SMALL), torch.randn(8, 5, 4)
    found, score = block(x, None)
    attended, expected_score = block.over_days(x, None)
    inner = block.in_time(block.spread(x, block.over_people(attended)))
    expected = functional.layer_norm((block.residual(x) + inner).relu(), (4,))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(score, expected_score)


EXACT = SinkhornSettings(sweeps=300)


def least_cost(one, other):
    """The distance by a linear programme, straight from the paper's definition."""
    days = len(one)
    lengths = [np.linalg.norm(each, axis=1) for each in (one, other)]
    masses = [
        length / length.sum() if length.any() else np.full(days, 1 / days)
        for length in lengths
    ]
    cost = np.ones((days, days))
    for here in range(days):
        for there in range(days):
            both = lengths[0][here] * lengths[1][there]
            if both:
                cost[here, there] -= one[here] @ other[there] / both
    rows = np.kron(np.eye(days), np.ones(days))
    columns = np.kron(np.ones(days), np.eye(days))
    equal = np.vstack([rows, columns])
    found = linprog(cost.ravel(), A_eq=equal, b_eq=np.concatenate(masses))
    return found.fun


def all_pairs(people):
    return torch.combinations(torch.arange(people)).t().numpy()


@settings(deadline=None, derandomize=True, max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 14]), st.floats(0, 0.9))
def test_similarity_is_that_of_the_linear_programme(seed, days, empty):
    rng = np.random.default_rng(seed)
    profiles = rng.exponential(size=(3, days, 6)) * (rng.random((3, days, 6)) > empty)
    pairs = all_pairs(3)
    found = 1 - similarities(profiles, pairs, EXACT)
    exact = [least_cost(profiles[one], profiles[other]) for one, other in pairs.T]
    # Never below, and above by no more than what the entropy may cost.
    assert (found >= np.array(exact) - 1e-6).all()
    assert (found <= np.array(exact) + EXACT.softness * (1 + np.log(days))).all()


def test_default_settings_are_accurate_on_a_town():
    profiles, pairs = day_profiles(town.traces()).astype(float), all_pairs(12)
    usual = 1 - similarities(profiles, pairs, SinkhornSettings())
    exact = [least_cost(profiles[one], profiles[other]) for one, other in pairs.T]
    assert np.abs(usual - exact).mean() < 0.04 * np.mean(exact)
    assert np.corrcoef(usual, exact)[0, 1] > 0.999


@settings(deadline=None, derandomize=True, max_examples=20)
@given(cities())
def test_profiles_hold_the_log_of_others_present(city):
    found = day_profiles(city)
    per_day = city.clock.slots_per_day
    assert found.shape == (city.people, city.clock.days, per_day)
    for slot, here in enumerate(city.by_slot):
        for person, region in enumerate(here):
            others = (here == region).sum() - 1 if region >= 0 else 0
            seen = found[person, slot // per_day, slot % per_day]
            assert seen == pytest.approx(np.log1p(others), abs=1e-6)
