import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.hypergraph import operator as module
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.merging import merge
from epifalcon.hypergraph.operator import SILENT, Noise, Operator, propagate
from epifalcon.hypergraph.propagate import edge_to_node, node_to_edge
from epifalcon.mobility.clock import Clock
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import random_traces
from tests.oracles.dense_hypergraph import dense_layer

quick = settings(deadline=None, derandomize=True, max_examples=40)


def rows(count: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator)


@quick
@given(incidences(), st.sampled_from([1, 2, 7, 32, 40]))
def test_it_is_the_dense_formula(inc, width):
    operator, x = Operator.of(inc), rows(inc.people, width)
    wanted = dense_layer(inc) @ x
    torch.testing.assert_close(propagate(x, operator), wanted)
    short = propagate(x.float(), operator)
    assert short.dtype == torch.float32
    torch.testing.assert_close(short.double(), wanted, rtol=1e-5, atol=1e-6)


@quick
@given(incidences(), st.sampled_from([1, 2, 8]), st.booleans())
def test_large_groups_and_small_ones_add_up_to_it(inc, small, silent):
    # With noise, be it none, all groups are passed as groups.
    noise = Noise(np.zeros(len(merge(inc))), np.zeros(inc.people), 1)
    x = rows(inc.people, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SMALL", small)
        operator = Operator.of(inc)
        chosen = SILENT if silent else noise
        passed = operator.symmetric(x.numpy(), None, operator.share, chosen)
    wanted = dense_layer(inc) @ x
    torch.testing.assert_close(torch.from_numpy(passed.rows), wanted)


@quick
@given(incidences())
def test_the_gradient_is_the_transposed_dense_formula(inc):
    operator = Operator.of(inc)
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
@given(incidences())
def test_a_constant_stays_and_people_without_edges_get_zeros(inc):
    out = propagate(torch.ones(inc.people, 2), Operator.of(inc))
    seen = torch.from_numpy(inc.degree > 0)
    torch.testing.assert_close(out, seen[:, None].float().expand(-1, 2))


@pytest.mark.parametrize("worth", [(20_000, 10**9, 10**9), (1, 2, 3)])
def test_a_town_of_thousands_goes_through_parts_and_threads_without_a_bit_changed(
    monkeypatch, worth
):
    monkeypatch.setattr(module, "_WORTH_PARTS", worth)
    traces = random_traces(5, 4_000, 60, Clock(2.0, 4))
    inc, before = Incidence.of(traces), torch.get_num_threads()
    x = rows(inc.people, 8).float()
    wanted = edge_to_node(node_to_edge(x.double(), inc), inc)
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            start = x.clone().requires_grad_()
            y = propagate(start, Operator.of(inc))
            y.square().sum().backward()
            found.append((y.detach(), start.grad))
        torch.testing.assert_close(found[0][0].double(), wanted, rtol=1e-5, atol=1e-6)
        for y, gradient in found[1:]:
            assert torch.equal(y, found[0][0])
            assert torch.equal(gradient, found[0][1])
    finally:
        torch.set_num_threads(before)


def test_a_few_who_follow_a_crowd_keep_their_digits():
    crowd = list(range(2_000))
    few = list(range(2_000, 2_006))
    inc = by_hand(2_006, [crowd, crowd[1:], few, few[1:]])
    x, operator = 1 + rows(2_006, 4), Operator.of(inc)
    exact, short = propagate(x, operator), propagate(x.float(), operator).double()
    # What is left of the crowd's sums, some 2,000, would have errors of 1e-4.
    assert (short - exact)[2_000:].abs().max() < 5e-7


def test_the_memory_of_the_sums_is_used_again_unless_an_error_struck(monkeypatch):
    operator = Operator.of(by_hand(3, [[0, 1], [1, 2]]))
    x = torch.ones(3, 2)
    wanted = propagate(x, operator)
    kept = operator.ready(np.dtype(np.float32), silent=True).spare[0]
    assert torch.equal(propagate(x, operator), wanted)
    assert operator.ready(np.dtype(np.float32), silent=True).spare[0] is kept

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "finish_part", stop)
        with pytest.raises(KeyboardInterrupt):
            propagate(x, operator)
    assert torch.equal(propagate(x, operator), wanted)
    assert operator.ready(np.dtype(np.float32), silent=True).spare[0] is not kept


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [3, 32, 40])
def test_a_value_that_is_no_number_is_noticed_whoever_has_it(dtype, width):
    # Person 0 is with others, 3 alone, 4 nowhere.
    operator = Operator.of(by_hand(5, [[0, 1, 2], [0, 1], [3]]))
    x = np.full((5, width), np.finfo(dtype).max / 8, dtype)
    assert operator.symmetric(x, None, operator.share).finite
    for person in (0, 2, 3, 4):
        for wrong in (np.inf, -np.inf, np.nan):
            broken = x.copy()
            broken[person, width - 1] = wrong
            passed = operator.symmetric(broken, None, operator.share)
            assert not passed.finite
            assert not np.isfinite(passed.rows[person, width - 1])
    assert operator.symmetric(x).finite


def test_counts_of_people_alone_and_sizes_of_edges():
    operator = Operator.of(by_hand(4, [[0], [0, 1], [2], [2], [0, 1]]))
    assert operator.alone.tolist() == [1, 0, 2, 0]
    assert operator.size_of_edge.tolist() == [1, 2, 1, 1, 2]
    assert operator.groups.edges.tolist() == [2]
    assert np.array_equal(operator.groups.weight, [1.0])


def test_a_hypergraph_without_edges_gives_zeros():
    operator = Operator.of(by_hand(3, []))
    assert torch.equal(propagate(torch.ones(3, 2), operator), torch.zeros(3, 2))


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match=r"expected \(2, width\)"):
        propagate(torch.zeros(3, 1), Operator.of(by_hand(2, [[0, 1]])))
