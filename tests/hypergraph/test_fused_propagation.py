from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph import fused_propagation
from epifalcon.hypergraph.fused_propagation import (
    ALONE,
    FusedOperator,
    MergedEdges,
    PassNoise,
)
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import random_traces
from tests.oracles.dense_hypergraph import dense_layer

quick = settings(deadline=None, derandomize=True, max_examples=40)

member_lists = st.lists(
    st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True).map(sorted),
    max_size=30,
)


def rows(count, width, seed=0):
    return np.random.default_rng(seed).standard_normal((count, width))


def sets(members):
    return [tuple(one.tolist()) for one in np.split(members.index, members.start[1:-1])]


@quick
@given(member_lists)
def test_groups_are_the_different_sets_of_two_or_more_people(edges):
    merged = MergedEdges.of(by_hand(6, edges))
    expected = Counter(tuple(members) for members in edges if len(members) > 1)
    found = sets(merged.members) if len(merged) else []
    assert dict(zip(found, merged.edges.tolist(), strict=True)) == expected
    for members, group in zip(edges, merged.group_of_edge.tolist(), strict=True):
        assert group == ALONE if len(members) == 1 else found[group] == tuple(members)


@quick
@given(member_lists)
def test_hash_collisions_do_not_merge_different_sets(edges):
    inc = by_hand(6, edges)
    group = np.empty(inc.edges, np.int32)
    bits = int(inc.edges).bit_length()  # as small a table as possible
    order = np.arange(inc.edges, dtype=np.int32)
    rows = inc.by_edge
    first = fused_propagation._merge(rows.start, rows.index, order, bits, group)
    found = Counter(tuple(edges[first[one]]) for one in group if one != ALONE)
    assert found == Counter(tuple(one) for one in edges if len(one) > 1)


@quick
@given(incidences(), st.sampled_from([1, 2, 7, 32, 65, 130]))
def test_the_pass_is_the_dense_formula(inc, width):
    operator, x = FusedOperator.of(inc), rows(inc.people, width)
    expected = dense_layer(inc).numpy() @ x
    np.testing.assert_allclose(operator.apply(x, operator.share), expected, atol=1e-12)
    short = operator.apply(x.astype(np.float32), operator.share)
    assert short.dtype == np.float32
    np.testing.assert_allclose(short, expected, rtol=1e-5, atol=1e-5)


@quick
@given(incidences())
def test_the_transposed_pass_is_the_transposed_dense_formula(inc):
    operator, g = FusedOperator.of(inc), rows(inc.people, 3)
    expected = dense_layer(inc).numpy().T @ g
    found = operator.apply(operator.share[:, None] * g)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_given_counts_replace_the_sizes_of_edges():
    inc = by_hand(3, [[0, 1], [0, 1], [2], [1, 2]])
    counts = np.array([2.0, 4.0, 5.0, 10.0])
    found = FusedOperator.of(inc, counts).apply(np.eye(3))
    expected = np.array([[0.75, 0.75, 0], [0.75, 0.85, 0.1], [0, 0.1, 0.3]])
    np.testing.assert_allclose(found, expected)


def test_the_result_does_not_depend_on_the_number_of_threads(monkeypatch):
    inc = Incidence.of(random_traces(5, 4_000, 60, Clock(2.0, 4)))
    operator, x = FusedOperator.of(inc), rows(inc.people, 8)
    noise = PassNoise(np.ones(len(operator.merged)), np.ones(inc.people), 7)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", threads)
        found.append(operator.apply(x, operator.share, noise))
    assert np.array_equal(*found)


def test_noise_has_the_covariance_of_independent_noise_on_every_edge():
    inc = by_hand(4, [[0, 1], [0, 1], [1, 2], [3], [3], [0, 1, 2]])
    operator = FusedOperator.of(inc)
    variance = np.array([1.0, 2.0, 0.5, 3.0, 1.0, 4.0])
    summed = operator.sum_edges(variance)
    draws = np.concatenate(
        [
            operator.apply(
                np.zeros((4, 200)),
                noise=PassNoise(np.sqrt(summed.group), np.sqrt(summed.person), key),
            )
            for key in range(200)
        ],
        axis=1,
    )
    present = np.zeros((4, inc.edges))
    for edge, members in enumerate(
        np.split(inc.by_edge.index, inc.by_edge.start[1:-1])
    ):
        present[members, edge] = 1
    expected = present @ np.diag(variance) @ present.T
    np.testing.assert_allclose(np.cov(draws), expected, atol=0.2)


def test_equal_keys_give_equal_noise_and_other_keys_other_noise():
    operator = FusedOperator.of(by_hand(3, [[0, 1], [1, 2], [2]]))
    sigma = operator.sum_edges(np.ones(3))

    def drawn(key):
        noise = PassNoise(sigma.group, sigma.person, key)
        return operator.apply(np.zeros((3, 150)), noise=noise)

    assert np.array_equal(drawn(2**63 + 1), drawn(2**63 + 1))
    assert not np.isin(drawn(1), drawn(2)).any()
    assert len(np.unique(drawn(1)[0])) == 150


@pytest.mark.parametrize("edges", [[], [[0], [1]]])
def test_hypergraphs_without_groups(edges):
    operator = FusedOperator.of(by_hand(3, edges))
    expected = [[1.0], [1.0], [0.0]] if edges else [[0.0]] * 3
    assert operator.apply(np.ones((3, 1)), operator.share).tolist() == expected


def test_it_agrees_with_the_two_halves_on_a_town():
    from epifalcon.hypergraph.propagation import edge_to_node, node_to_edge

    inc = Incidence.of(random_traces(3, 500, 40, Clock(2.0, 4)))
    x = rows(inc.people, 16)
    operator = FusedOperator.of(inc)
    expected = edge_to_node(node_to_edge(torch.from_numpy(x), inc), inc).numpy()
    np.testing.assert_allclose(operator.apply(x, operator.share), expected, atol=1e-12)
