"""DCRNN: its cell against the paper's equation, and what it may look at."""

import numpy as np
import pytest
import torch

from epifalcon.errors import SettingsError
from epifalcon.models.dcrnn import Dcrnn, DiffusionGru, FlowGraph
from epifalcon.models.settings import DcrnnSettings
from tests.models.regions import small_history
from tests.oracles import dense_diffusion

SMALL = DcrnnSettings(hidden_width=4, diffusion_steps=2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def blocks(conv, inputs, columns):
    """Weight by walk and bias of some output columns, for the dense formula."""
    weight = conv.weight.detach().numpy()
    parts = weight.reshape(1 + 2 * conv.steps, inputs, -1)
    return parts[:, :, columns], conv.bias.detach().numpy()[columns]


def random_biases(module):
    for parameter in module.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, -1, 1, generator=seeded(9))


def test_the_cell_is_the_papers_equation():
    history, width = small_history(regions=6), 4
    cell = DiffusionGru(2, SMALL, seeded()).double()
    random_biases(cell)
    theta = {
        "r": blocks(cell.gates, 2 + width, slice(0, width)),
        "u": blocks(cell.gates, 2 + width, slice(width, None)),
        "c": blocks(cell.candidate, 2 + width, slice(None)),
    }
    rng = np.random.default_rng(0)
    x, state = rng.normal(size=(6, 2)), rng.normal(size=(6, width))
    moves = history.flows.moves(3)
    graph = FlowGraph.of(moves, torch.float64)
    told = cell(torch.from_numpy(x), torch.from_numpy(state), graph)
    wanted = dense_diffusion.gated_step(x, state, moves.toarray(), theta)
    np.testing.assert_allclose(told.detach().numpy(), wanted, atol=1e-12)


def test_the_gradient_through_days_and_decoder_is_exact():
    history = small_history(regions=4, days=5)
    graphs = [FlowGraph.of(history.flows.moves(d), torch.float64) for d in range(3)]
    network = Dcrnn(2, DcrnnSettings(hidden_width=2), seeded()).double()

    def told(inputs):
        states = network.encode(inputs, graphs)
        return network.decode(states[-1], inputs[-1], graphs[-1], 2)

    inputs = torch.rand(3, 4, 2, generator=seeded(), dtype=torch.float64)
    assert torch.autograd.gradcheck(told, (inputs.requires_grad_(),))


def test_each_day_walks_on_its_own_graph():
    history = small_history()
    inputs = torch.rand(3, 9, 2, generator=seeded())
    network = Dcrnn(2, SMALL, seeded())
    given = list(history.graphs[:3])
    before = network.encode(inputs, given)
    given[1] = history.graphs[7]
    after = network.encode(inputs, given)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_going_on_from_a_state_is_going_through():
    history = small_history()
    inputs = torch.rand(6, 9, 2, generator=seeded())
    network = Dcrnn(2, SMALL, seeded())
    through = network.encode(inputs, history.graphs[:6])
    first = network.encode(inputs[:4], history.graphs[:4])
    rest = network.encode(inputs[4:], history.graphs[4:6], first[-1])
    assert all(torch.equal(a, b) for a, b in zip(through, [*first, *rest], strict=True))


def test_the_decoder_goes_on_from_what_it_told():
    history = small_history()
    network = Dcrnn(2, SMALL, seeded())
    torch.nn.init.uniform_(network.mixture, -1, 1, generator=seeded(5))
    random_biases(network)
    state = torch.rand(9, 4, generator=seeded())
    last = torch.rand(9, 2, generator=seeded(1))
    graph = history.graphs[2]
    three = network.decode(state, last, graph, 3)
    assert torch.equal(three[:, :1], network.decode(state, last, graph, 1))
    value, mean = last[:, :1], last[:, 1:]
    for day in range(3):
        state = network.decoder(value, state, graph)
        simple = network.mixture[0] * value + network.mixture[1] * mean
        value = simple + state @ network.readout + network.offset
        torch.testing.assert_close(three[:, day : day + 1], value)


def test_at_first_a_forecast_is_near_the_last_value_and_the_mean():
    # Training then goes into what the simplest forecasts do not know.
    network = Dcrnn(3, DcrnnSettings(), seeded())
    graph = small_history().graphs[0]
    last = torch.rand(9, 3, generator=seeded())
    state = torch.rand(9, 32, generator=seeded()) * 2 - 1
    told = network.decode(state, last, graph, 1)[:, 0]
    torch.testing.assert_close(told, last[:, :2].mean(dim=1), atol=0.3, rtol=0)


def test_a_network_without_the_mean_is_refused():
    with pytest.raises(SettingsError, match="inputs=1"):
        Dcrnn(1, SMALL, seeded())


def test_without_steps_there_is_no_graph():
    history = small_history()
    network = Dcrnn(2, DcrnnSettings(diffusion_steps=0), seeded())
    inputs = torch.rand(2, 9, 2, generator=seeded())
    one = network.encode(inputs, history.graphs[:2])
    other = network.encode(inputs, history.graphs[5:7])
    assert torch.equal(one[1], other[1])


def test_parameters_come_from_the_generator_alone():
    torch.manual_seed(1)
    one = Dcrnn(2, SMALL, seeded(4))
    state = torch.get_rng_state()
    torch.manual_seed(2)
    other = Dcrnn(2, SMALL, seeded(4))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "wrong", [{"hidden_width": 0}, {"diffusion_steps": -1}, {"hidden_width": 1.5}]
)
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        DcrnnSettings(**wrong)
