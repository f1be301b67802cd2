import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import SettingsError
from epifalcon.hypergraph.contacts import contacts_of, strongest
from epifalcon.mobility.clock import Clock
from tests.methods.tiny import city_of
from tests.oracles.cities import cities, random_traces
from tests.oracles.contacts_loop import closeness_by_loop, contacts_by_loop

quick = settings(deadline=None, derandomize=True, max_examples=40)


def rows(people, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(people, width, dtype=torch.float64, generator=generator)


def crowded(people=120, seed=3):
    """Groups of all sizes, far beyond those that are taken apart."""
    return random_traces(seed, people, 4, Clock(2.0, 3))


@quick
@given(cities(), st.sampled_from([1, 3, 100]))
def test_the_product_is_that_of_counted_slots(traces, width):
    x, wanted = rows(traces.people, width), torch.from_numpy(contacts_by_loop(traces))
    contacts = contacts_of(traces)
    torch.testing.assert_close(contacts.product(x), wanted @ x)
    short = contacts.product(x.float())
    assert short.dtype == torch.float32
    torch.testing.assert_close(short.double(), wanted @ x, rtol=1e-5, atol=1e-5)


@quick
@given(cities())
def test_degrees_are_counted_slots(traces):
    contacts, wanted = contacts_of(traces), contacts_by_loop(traces)
    np.testing.assert_array_equal(contacts.degree.numpy(), wanted.sum(1))
    assert contacts.degree.dtype == torch.float32


@quick
@given(cities())
def test_days_are_their_own_and_add_up(traces):
    parts = [contacts_of(traces, day) for day in range(traces.clock.days)]
    for day, part in enumerate(parts):
        found = part.product(torch.eye(traces.people)).numpy()
        np.testing.assert_array_equal(found, contacts_by_loop(traces, day))
    x = rows(traces.people, 3)
    torch.testing.assert_close(
        sum(part.product(x) for part in parts), contacts_of(traces).product(x)
    )


def test_whole_numbers_in_a_crowd_come_out_whole():
    traces = crowded()
    contacts = contacts_of(traces)
    assert contacts.groups.size.max() > 20
    x = torch.randint(-9, 9, (traces.people, 5)).float()
    found = contacts.product(x)
    wanted = contacts_by_loop(traces) @ x.double().numpy()
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_the_mean_keeps_a_constant_and_is_zero_without_contacts():
    traces = city_of([[0, 0, 1, -1, 0], [2, 0, 1, 1, 1]])
    contacts = contacts_of(traces)
    found = contacts.mean(torch.ones(5, 2))
    torch.testing.assert_close(found, torch.ones(5, 2))
    alone = contacts_of(city_of([[0, 1, -1], [0, 2, -1]]))
    assert not alone.mean(torch.ones(3, 2)).any()
    assert not alone.degree.any()


@settings(deadline=None, derandomize=True, max_examples=10)
@given(cities())
def test_gradients_are_exact_also_of_gradients(traces):
    contacts = contacts_of(traces)
    x = rows(contacts.people, 2).requires_grad_()
    assert torch.autograd.gradcheck(contacts.mean, x)
    assert torch.autograd.gradgradcheck(contacts.product, x)


def ranked(traces, most):
    """Everybody's partners in their order, by sorting whole rows."""
    slots, close = contacts_by_loop(traces), closeness_by_loop(traces)
    found = []
    for person in range(traces.people):
        met = np.flatnonzero(slots[person])
        # Rounded: sums of thirds are the same in any order.
        key = [(-slots[person, o], -round(close[person, o], 9), o) for o in met]
        found.append([other for *_, other in sorted(key)[:most]])
    return found


@pytest.mark.parametrize("most", [1, 5, 59, 1000])
def test_partners_in_a_crowd_are_the_strongest_contacts(most):
    require_strongest(crowded(60), most)
    with pytest.raises(SettingsError, match="most=0"):
        strongest(contacts_of(crowded(60)), 0)


@quick
@given(cities(), st.integers(1, 14))
def test_partners_are_the_strongest_contacts(traces, most):
    require_strongest(traces, most)


def require_strongest(traces, most):
    partners = strongest(contacts_of(traces), most)
    wanted = ranked(traces, most)
    source, target = partners.edge_index.numpy()
    assert target.tolist() == [p for p, some in enumerate(wanted) for _ in some]
    assert source.tolist() == [other for some in wanted for other in some]
    slots = contacts_by_loop(traces)
    np.testing.assert_array_equal(partners.weight.numpy(), slots[target, source])
    assert partners.edge_index.dtype == torch.int64
    assert partners.weight.dtype == torch.float32
