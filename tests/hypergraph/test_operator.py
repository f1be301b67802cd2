import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.multiplied import worth_it
from epifalcon.hypergraph.operator import Operator, propagate
from epifalcon.hypergraph.propagate import edge_to_node, node_to_edge
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import random_traces
from tests.oracles.dense_hypergraph import dense_layer

quick = settings(deadline=None, derandomize=True, max_examples=40)
WAYS = ("auto", "merged", "multiplied")
every_way = st.sampled_from(WAYS)


def rows(count: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator)


@quick
@given(incidences(), every_way, st.sampled_from([1, 2, 7, 32]))
def test_it_is_the_dense_formula(inc, way, width):
    operator, x = Operator.of(inc, way), rows(inc.people, width)
    wanted = dense_layer(inc) @ x
    torch.testing.assert_close(propagate(x, operator), wanted)
    short = propagate(x.float(), operator)
    assert short.dtype == torch.float32
    torch.testing.assert_close(short.double(), wanted, rtol=1e-5, atol=1e-6)


@quick
@given(incidences(), every_way)
def test_the_gradient_is_the_transposed_dense_formula(inc, way):
    operator = Operator.of(inc, way)
    x, g = rows(inc.people, 3), rows(inc.people, 3, seed=1)
    wanted = dense_layer(inc).T @ g
    for dtype, slack in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        start = x.to(dtype, copy=True).requires_grad_()
        propagate(start, operator).backward(g.to(dtype))
        assert start.grad is not None
        torch.testing.assert_close(start.grad.double(), wanted, rtol=slack, atol=slack)


@settings(deadline=None, derandomize=True, max_examples=10)
@given(incidences(most_people=6))
def test_gradients_are_exact_also_of_gradients(inc):
    operator, x = Operator.of(inc), rows(inc.people, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: propagate(v, operator), x)
    assert torch.autograd.gradgradcheck(lambda v: propagate(v, operator), x)


@quick
@given(incidences(), every_way)
def test_a_constant_stays_and_people_without_edges_get_zeros(inc, way):
    out = propagate(torch.ones(inc.people, 2), Operator.of(inc, way))
    seen = torch.from_numpy(inc.degree > 0)
    torch.testing.assert_close(out, seen[:, None].float().expand(-1, 2))


def test_a_town_of_thousands_goes_through_parts_and_threads_without_a_bit_changed():
    traces = random_traces(5, 4_000, 60, Clock(2.0, 4))
    inc, before = Incidence.of(traces), torch.get_num_threads()
    x = rows(inc.people, 8).float()
    wanted = edge_to_node(node_to_edge(x.double(), inc), inc)
    try:
        for way in WAYS:
            found = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                start = x.clone().requires_grad_()
                y = propagate(start, Operator.of(inc, way))
                y.square().sum().backward()
                found.append((y.detach(), start.grad))
            torch.testing.assert_close(
                found[0][0].double(), wanted, rtol=1e-4, atol=1e-5
            )
            for y, gradient in found[1:]:
                assert torch.equal(y, found[0][0])
                assert torch.equal(gradient, found[0][1])
    finally:
        torch.set_num_threads(before)


def test_the_faster_way_is_chosen():
    # A large crowd that meets once: the product would hold every two of them.
    crowd = Operator.of(by_hand(60, [list(range(60))]))
    assert crowd.multiplied is None
    # The same six people in ever other groups: 36 entries do for hundreds of pairs.
    groups = [
        [person for person in range(6) if number >> person & 1] for number in range(64)
    ]
    again = by_hand(6, [members for members in groups if len(members) > 1])
    assert Operator.of(again).multiplied is not None
    assert not worth_it(Operator.of(by_hand(3, [])).groups, 3)


def test_counts_of_people_alone_and_sizes_of_edges():
    operator = Operator.of(by_hand(4, [[0], [0, 1], [2], [2], [0, 1]]))
    assert operator.alone.tolist() == [1, 0, 2, 0]
    assert operator.size_of_edge.tolist() == [1, 2, 1, 1, 2]
    assert operator.groups.edges.tolist() == [2]
    assert np.array_equal(operator.groups.weight, [1.0])


def test_a_hypergraph_without_edges_gives_zeros():
    for way in WAYS:
        operator = Operator.of(by_hand(3, []), way)
        assert torch.equal(propagate(torch.ones(3, 2), operator), torch.zeros(3, 2))


def test_an_unknown_way_is_refused():
    with pytest.raises(SettingsError, match="way='quick'"):
        Operator.of(by_hand(2, [[0, 1]]), "quick")  # type: ignore[arg-type]


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"expected \(2, width\)"):
        propagate(torch.zeros(3, 1), Operator.of(by_hand(2, [[0, 1]])))
