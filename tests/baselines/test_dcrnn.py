import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.dcrnn import (
    DcrnnNetwork,
    DcrnnOfPeople,
    DcrnnOfPeopleSettings,
    diffused,
)
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines import tiny
from tests.oracles.cities import cities, random_traces

QUICK = {"steps": 4, "check_every": 2, "learning_rates": (0.01,), "width": 6}


def walk_of_day(traces, day):
    """D^-1 C of one day, slot by slot and pair by pair: (people, people)."""
    found = np.zeros((traces.people, traces.people))
    for here in traces.by_slot[traces.clock.slots_of_day(day)]:
        seen = here >= 0
        found += (here[:, None] == here) & seen[:, None] & seen
    np.fill_diagonal(found, 0)
    total = found.sum(1, keepdims=True)
    return torch.from_numpy(found / np.maximum(total, 1)).double()


def convolved(walk, rows, weight):
    """The sum over k of W^k rows Theta_k, with every power written out.

    ``weight`` (outputs, (1 + K) inputs) has Theta_0 to Theta_K side by side.
    """
    inputs = rows.shape[1]
    return sum(
        torch.linalg.matrix_power(walk, k)
        @ rows
        @ weight[:, k * inputs :][:, :inputs].T
        for k in range(weight.shape[1] // inputs)
    )


def dense_state(cell, walk, x, state):
    """The paper's cell, with one convolution for each gate and each of its inputs."""
    width = state.shape[1]
    reset_x, update_x, candidate_x = (
        convolved(walk, x, cell.of_input.weight[place : place + width])
        + cell.of_input.bias[place : place + width]
        for place in range(0, 3 * width, width)
    )
    reset_h, update_h = (
        convolved(walk, state, cell.of_state.weight[place : place + width])
        for place in (0, width)
    )
    reset, update = (reset_x + reset_h).sigmoid(), (update_x + update_h).sigmoid()
    kept = convolved(walk, reset * state, cell.of_kept.weight)
    return update * state + (1 - update) * (candidate_x + kept).tanh()


def dense_odds(network, traces, x):
    """The whole network, day by day and layer by layer."""
    people, days, _ = x.shape
    states = [x.new_zeros(people, cell.of_kept.out_features) for cell in network.cells]
    for day in range(days):
        walk, rows = walk_of_day(traces, day), x[:, day]
        for number, cell in enumerate(network.cells):
            rows = states[number] = dense_state(cell, walk, rows, states[number])
    return network.readout(rows)[:, 0]


def network_of(traces, **more):
    torch.manual_seed(0)
    given_ = DcrnnOfPeopleSettings(**{"width": 4, **more})
    return DcrnnNetwork(3, Ground(traces).daily, given_).double().eval()


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


def test_a_constant_stays_one_for_those_who_meet():
    traces = random_traces(4, 12, 3, Clock(8.0, 1))
    contacts = Ground(traces).contacts
    found = diffused(torch.ones(12, 1), contacts, 3)
    meets = (contacts.degree > 0).float()
    assert meets.min() < meets.max()
    assert torch.allclose(found[:, 1:], meets[:, None].expand(-1, 3))


@pytest.mark.parametrize("days", [1, 2, 14])
def test_every_day_and_its_own_contacts_count(days):
    traces = random_traces(4, 12, 3, Clock(8.0, days))
    network, every = network_of(traces), Ground(traces).daily
    strange = Ground(random_traces(9, 12, 3, Clock(8.0, 1))).contacts
    x, status = torch.randn(12, days, 3).double(), torch.zeros(12)
    before = network(x, status)
    for day in range(days):
        other = x.clone()
        other[:, day] += 1
        assert not torch.equal(network(other, status), before)
        daily = [*every[:day], strange, *every[day + 1 :]]
        moved = DcrnnNetwork(3, daily, DcrnnOfPeopleSettings(width=4)).double().eval()
        moved.load_state_dict(network.state_dict())
        assert not torch.equal(moved(x, status), before)


def test_what_is_kept_of_an_input_is_that_inputs_own():
    traces = random_traces(4, 12, 3, Clock(8.0, 3))
    network, status = network_of(traces), torch.zeros(12)
    inputs = [torch.randn(12, 3, 3).double() for _ in range(3)]
    first = [network(x, status) for x in inputs]
    for x, found in zip(inputs, first, strict=True):
        assert torch.equal(network(x, status), found)
        assert torch.allclose(found, dense_odds(network, traces, x))
    again = copy.deepcopy(network)
    del inputs[0], x
    fresh = torch.randn(12, 3, 3).double()
    assert torch.allclose(again(fresh, status), dense_odds(again, traces, fresh))


@pytest.mark.parametrize("kind", ["exposure", "embedding"])
@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities_get_a_risk(kind, name):
    given_ = DcrnnOfPeopleSettings(input=kind, **QUICK)
    method = DcrnnOfPeople(Scene(tiny.odd_cities()[name]), given_)
    risk = method.fit(tiny.odd_tests()).predict_proba()
    assert np.isfinite(risk).all()
    assert ((risk >= 0) & (risk <= 1)).all()


@pytest.mark.parametrize("kind", ["exposure", "embedding"])
def test_it_learns_where_the_infected_live(kind):
    given_ = DcrnnOfPeopleSettings(
        input=kind, width=8, learning_rates=(0.03,), steps=40
    )
    method = DcrnnOfPeople(Scene(tiny.sixteen_houses()), given_)
    risk = method.fit(tiny.house_tests()).predict_proba()
    assert tiny.tells_houses_apart(risk)


@pytest.mark.parametrize(
    ("wrong", "value"), [("layers", 0), ("diffusion_steps", -1), ("width", 0)]
)
def test_settings_are_checked(wrong, value):
    with pytest.raises(SettingsError, match=wrong):
        DcrnnOfPeopleSettings(**{wrong: value})
