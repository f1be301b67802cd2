"""The region model of the authors' program against a plain loop."""

import numpy as np
import pytest
import torch
from torch import nn

from epifalcon.models.region_model import WINDOW_DAYS, GruRegionModel, RegionHistory
from epifalcon.models.settings import DcrnnSettings, RegionSettings, TrainingSettings
from tests.models.regions import flows_of

DAYS, REGIONS, WIDTH = 9, 6, 5


def settings_of(**training):
    given = {"steps": 4, "learning_rate": 0.1, "horizon": 2, **training}
    return RegionSettings(
        network=DcrnnSettings(kind="gru", hidden_width=WIDTH),
        training=TrainingSettings(**given),
    )


def history_of(cases):
    flows = flows_of(np.zeros((DAYS, REGIONS, REGIONS)))
    return RegionHistory(flows, cases, "all", "presence")


@pytest.fixture
def cases():
    return np.random.default_rng(3).poisson(4.0, (REGIONS, DAYS)).astype(float)


def fitted(cases, seed=1, **training):
    model = GruRegionModel(settings_of(**training))
    record = model.fit(history_of(cases), torch.Generator().manual_seed(seed))
    return model, record


def plain_training(cases, steps, seed=1):
    """The same by ``nn.GRU`` over explicit windows, gradients added up by hand."""
    torch.manual_seed(0)
    gru, readout = nn.GRU(1, WIDTH), nn.Linear(WIDTH, 1)
    generator = torch.Generator().manual_seed(seed)
    parameters = [
        *(getattr(gru, f"{kind}_l0") for kind in ("weight_ih", "weight_hh")),
        *(getattr(gru, f"{kind}_l0") for kind in ("bias_ih", "bias_hh")),
        *readout.parameters(),
    ]
    for one in parameters:
        nn.init.uniform_(one, -(WIDTH**-0.5), WIDTH**-0.5, generator)
    optimiser = torch.optim.Adam(parameters, lr=0.1)
    x = torch.tensor(cases.T, dtype=torch.float32)[:, :, None]
    first, total = DAYS - 2, [torch.zeros_like(one) for one in parameters]
    for _ in range(steps):
        errors = []
        for last in range(WINDOW_DAYS - 1, first - 1):
            _, state = gru(x[last - WINDOW_DAYS + 1 : last + 1])
            errors.append(((readout(state[0].relu()) - x[last + 1]) ** 2).mean())
        found = torch.autograd.grad(torch.stack(errors).mean(), parameters)
        for place, one in enumerate(found):
            total[place] = total[place] + one
            parameters[place].grad = total[place].clone()
        optimiser.step()
    with torch.no_grad():
        states = np.zeros((REGIONS, DAYS, WIDTH), np.float32)
        for last in range(WINDOW_DAYS - 1, DAYS):
            _, state = gru(x[last - WINDOW_DAYS + 1 : last + 1])
            states[:, last] = state[0].numpy()
    return states


def test_states_are_those_of_a_plain_loop_whose_gradients_add_up(cases):
    model, record = fitted(cases)
    found = model.states(history_of(cases))
    assert len(record.training) == 4
    np.testing.assert_allclose(found, plain_training(cases, 4), atol=1e-5)


def test_a_state_depends_on_its_region_and_three_days_only(cases):
    model, _ = fitted(cases)
    before = model.states(history_of(cases))
    changed = cases.copy()
    changed[2, 4] += 50
    after = model.states(history_of(changed))
    moved = (before != after).any(axis=2)
    assert moved[2, 4:7].all()
    moved[2, 4:7] = False
    assert not moved.any()
    assert not before[:, : WINDOW_DAYS - 1].any()


def test_forecasts_see_no_day_after_their_origin(cases):
    model, _ = fitted(cases)
    found = model.forecast(history_of(cases), [4, 6])
    assert (found >= 0).all()
    later = cases.copy()
    later[:, 5:] += 9
    again = model.forecast(history_of(later), [4, 6])
    np.testing.assert_array_equal(found[0], again[0])
    assert (found[1] != again[1]).any()
