import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.hypergraph.incidence import Incidence, distinct_members, sum_of_edges
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import random_traces
from tests.oracles.dense_hypergraph import dense

quick = settings(deadline=None, derandomize=True, max_examples=50)


def places(inc):
    """The (person, key) pairs as a set."""
    keys = np.repeat(inc.edge_key, inc.size)
    return set(zip(inc.by_edge.index.tolist(), keys.tolist(), strict=True))


@quick
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_everybody_is_counted_once_at_each_edge(seed, copies):
    true, *others = (
        Incidence.of(random_traces(seed + number, 8, 5, Clock(8.0, 2)))
        for number in range(1 + copies)
    )
    claimed = set().union(places(true), *(places(one) for one in others))
    wanted = [sum(key == k for _, k in claimed) for key in true.edge_key.tolist()]
    assert distinct_members(true, others).tolist() == wanted


def test_records_without_edges_count_for_nothing():
    inc = by_hand(3, [[0, 1], [2]])
    empty = by_hand(3, [])
    assert distinct_members(inc, [empty]).tolist() == [2, 1]
    assert distinct_members(empty, [inc]).tolist() == []
    assert distinct_members(inc).tolist() == [2, 1]


@quick
@given(incidences(), st.integers(0, 99))
def test_sums_over_the_edges_of_people_are_those_of_the_matrix(inc, seed):
    value = np.random.default_rng(seed).standard_normal(inc.edges)
    wanted = dense(inc).numpy() @ value
    np.testing.assert_allclose(sum_of_edges(value, inc), wanted, rtol=1e-12, atol=1e-13)
