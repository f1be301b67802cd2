import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.methods.dcrnn import DcrnnNetwork, DcrnnOfPeopleSettings
from epifalcon.methods.graph_networks import ContactGraphs
from tests.oracles.cities import cities
from tests.oracles.contacts_loop import contacts_by_loop


def convolved(walk, rows, conv):
    """The sum over k of W^k rows Theta_k, with every power written out."""
    parts = conv.weight.unflatten(0, (-1, rows.shape[1]))
    powers = (torch.linalg.matrix_power(walk, k) for k in range(len(parts)))
    pairs = zip(powers, parts, strict=True)
    return conv.bias + sum(power @ rows @ part for power, part in pairs)


def dense_state(cell, walk, x, state):
    """The paper's cell."""
    gates = convolved(walk, torch.cat([x, state], 1), cell.gates).sigmoid()
    reset, update = gates.chunk(2, 1)
    selected = convolved(walk, torch.cat([x, reset * state], 1), cell.candidate)
    return update * state + (1 - update) * selected.tanh()


def dense_odds(network, traces, x):
    """The whole network, day by day and layer by layer."""
    people, days, _ = x.shape
    states = [x.new_zeros(people, cell.width) for cell in network.cells]
    for day in range(days):
        contacts = torch.from_numpy(contacts_by_loop(traces, day))
        walk = contacts / contacts.sum(1, keepdim=True).clamp(min=1)
        rows = x[:, day]
        for number, cell in enumerate(network.cells):
            rows = states[number] = dense_state(cell, walk, rows, states[number])
    return network.readout(rows)[:, 0]


def network_of(traces, **more):
    torch.manual_seed(0)
    given_ = DcrnnOfPeopleSettings(**{"width": 4, **more})
    return DcrnnNetwork(ContactGraphs(traces), 3, given_).double().eval()


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.integers(1, 2), st.integers(0, 3))
def test_the_network_is_the_papers_equation_on_dense_walks(city, layers, steps):
    network = network_of(city, layers=layers, diffusion_steps=steps)
    shape = city.people, city.clock.days, 3
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = network(x, torch.zeros(city.people))
    wanted = dense_odds(network, city, x)
    assert torch.allclose(found, wanted)
    weights = [x, *network.parameters()]
    upstream = torch.randn(city.people, dtype=torch.float64)
    mine = torch.autograd.grad(found, weights, upstream, allow_unused=True)
    theirs = torch.autograd.grad(
        wanted, weights, upstream, allow_unused=True, materialize_grads=True
    )
    for one, two in zip(mine, theirs, strict=True):
        assert torch.allclose(torch.zeros_like(two) if one is None else one, two)
