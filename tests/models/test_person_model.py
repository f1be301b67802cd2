"""The hand-written passes against autograd on dense matrices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.models import person_model
from epifalcon.models.person_model import (
    ExchangeRules,
    LocalInputs,
    dropout_mask,
    initial_parameters,
    training_pass,
)
from epifalcon.models.settings import FalconSettings
from tests.hypergraph.hypergraphs import by_hand, incidences
from tests.oracles.cities import cities
from tests.oracles.dense_hypergraph import dense_layer, members_by_loop
from tests.oracles.dropout_loop import dropout_by_loop

F64 = torch.float64
quick = settings(deadline=None, derandomize=True, max_examples=25)


def inputs_of(inc, seed, state_width, layers, dropout):
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    operator = dense_layer(inc)
    degree = torch.from_numpy(inc.degree.astype(float))
    share = torch.where(degree > 0, 1 / degree.clamp(min=1), 0.0)
    state = None
    if state_width:
        state = torch.randn(inc.people, state_width, generator=generator, dtype=F64)
    people, keys = np.arange(inc.people), range(seed, seed + layers)
    masks = (dropout_mask(people, 4, dropout, key) for key in keys)
    keep = tuple(torch.from_numpy(mask).double() for mask in masks)
    return LocalInputs(
        torch.randn(inc.people, 4, generator=generator, dtype=F64),
        state,
        rng.integers(-1, 2, inc.people).astype(np.int8),
        share[:, None],
        operator.diag()[:, None],
        keep if dropout else (None,) * layers,
    )


def run(work, operator, share):
    """Carry rows by the dense operator; count the exchanges."""
    seen = []
    symmetric = torch.diag(torch.where(share > 0, 1 / share, 0.0)) @ operator
    try:
        exchange = next(work)
        while True:
            seen.append(exchange.channel)
            matrix = operator if exchange.kind == "upload" else symmetric
            exchange = work.send(matrix @ exchange.rows)
    except StopIteration as stop:
        return stop.value, seen


def by_autograd(parameters, inputs_, operator, weights, local):
    """Loss of everybody, with others' rows as constants if ``local``."""
    own = torch.diag(operator.diag())
    rows = inputs_.rows
    for layer, keep in enumerate(inputs_.keep):
        if local:
            received = own @ rows + (operator - own) @ rows.detach()
        else:
            received = operator @ rows
        inputs = person_model.beside(received, inputs_.state)
        out = inputs @ parameters[f"layer{layer}.weight"].T
        out = torch.relu(out + parameters[f"layer{layer}.bias"])
        rows = out if keep is None else out * keep
    if "cell.weight" in parameters:
        rows = lstm_cell(parameters, rows)
    logits = rows @ parameters["head.weight"].T + parameters["head.bias"]
    target = torch.from_numpy(inputs_.target.astype(np.int64))
    return torch.nn.functional.cross_entropy(
        logits, target, weights, ignore_index=-1, reduction="sum"
    )


def lstm_cell(parameters, rows):
    """One step of torch's LSTM cell from a zero state."""
    cell = torch.nn.LSTMCell(rows.shape[1], person_model.CELL_WIDTH, dtype=F64)
    enter, candidate, leave = parameters["cell.weight"].chunk(3)
    bias = parameters["cell.bias"].chunk(3)
    unused, none = torch.zeros_like(enter), torch.zeros_like(bias[0])
    given = {
        "weight_ih": torch.cat([enter, unused, candidate, leave]),
        "bias_ih": torch.cat([bias[0], none, bias[1], bias[2]]),
        "weight_hh": torch.zeros_like(cell.weight_hh),
        "bias_hh": torch.zeros_like(cell.bias_hh),
    }
    out, _ = torch.func.functional_call(cell, given, rows)
    return out


@quick
@given(
    incidences(),
    st.integers(0, 99),
    st.sampled_from([0, 3]),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
)
def test_gradients_are_those_of_autograd(inc, seed, state_width, layers, drop, local):
    inputs_ = inputs_of(inc, seed, state_width, layers, drop)
    operator = dense_layer(inc)
    head = "lstm" if seed % 3 == 0 else "linear"
    rule = FalconSettings(width=4, layers=layers, precision="double", head=head)
    parameters = initial_parameters(rule, state_width, np.random.default_rng(seed))
    weights = torch.tensor([0.5, 2.0], dtype=F64) if seed % 2 else None
    exchange = ExchangeRules(exchanged=not local)
    work = training_pass(parameters, inputs_, exchange, weights)
    result, seen = run(work, operator, inputs_.share[:, 0])
    assert len(seen) == layers * (1 if local else 2)

    for value in (*parameters.values(), inputs_.rows):
        value.requires_grad_()
    loss = by_autograd(parameters, inputs_, operator, weights, local)
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), rel=1e-12, abs=1e-12)
    found = {use.weight: use.outputs.T @ use.inputs for use in result.uses}
    found |= {use.bias: use.outputs.sum(0) for use in result.uses}
    assert set(found) == set(parameters)
    for name, value in parameters.items():
        assert torch.allclose(found[name], value.grad, rtol=0, atol=1e-12)
    if not local:
        wanted = inputs_.rows.grad
        assert torch.allclose(result.row_gradient, wanted, rtol=0, atol=1e-12)


def test_the_local_gradient_of_a_row_is_that_of_the_own_loss():
    rng = np.random.default_rng(0)
    # Three people who all met: everyone's loss moves with everyone's row.
    operator = torch.full((3, 3), 1 / 3, dtype=F64)
    inputs_ = LocalInputs(
        torch.from_numpy(rng.standard_normal((3, 4))),
        None,
        np.array([1, 0, 1], np.int8),
        torch.ones(3, 1, dtype=F64),
        torch.full((3, 1), 1 / 3, dtype=F64),
        (None, None),
    )
    rule = FalconSettings(width=4, precision="double")
    parameters = initial_parameters(rule, 0, rng)
    work = training_pass(parameters, inputs_, ExchangeRules(exchanged=False))
    result, _ = run(work, operator, inputs_.share[:, 0])
    inputs_.rows.requires_grad_()
    for person in range(3):
        target = np.where(np.arange(3) == person, inputs_.target, -1).astype(np.int8)
        alone = replace(inputs_, target=target)
        loss = by_autograd(parameters, alone, operator, None, True)
        (gradient,) = torch.autograd.grad(loss, inputs_.rows)
        assert torch.allclose(result.row_gradient[person], gradient[person])


def test_scores_are_the_softmax_of_a_pass_without_dropout():
    rng = np.random.default_rng(1)
    rule = FalconSettings(width=4, precision="double")
    parameters = initial_parameters(rule, 0, rng)
    operator = torch.softmax(torch.from_numpy(rng.standard_normal((5, 5))), 1)
    rows = torch.from_numpy(rng.standard_normal((5, 4)))
    ones = torch.ones(5, 1, dtype=F64)
    inputs_ = LocalInputs(rows, None, np.full(5, -1, np.int8), ones, ones, (None, None))
    work = person_model.scoring_pass(parameters, inputs_, ExchangeRules())
    received, seen = run(work, operator, ones[:, 0])
    assert seen == ["upload/0", "upload/1"]
    for layer in range(2):
        out = operator @ rows @ parameters[f"layer{layer}.weight"].T
        rows = torch.relu(out + parameters[f"layer{layer}.bias"])
    logits = rows @ parameters["head.weight"].T + parameters["head.bias"]
    found = person_model.scores(parameters, 2, received, None)
    assert torch.allclose(found, torch.softmax(logits, 1)[:, 1])


@pytest.mark.parametrize("milestones", [(), (5, 11)])
def test_adam_is_torchs(milestones):
    rng = np.random.default_rng(2)
    rule = FalconSettings(learning_rate=0.01, weight_decay=0.1)
    rule = replace(rule, learning_rate_milestones=milestones)
    value = torch.from_numpy(rng.standard_normal((4, 3)))
    theirs = value.clone().requires_grad_()
    optimiser = torch.optim.Adam([theirs], lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.7)
    values, moments = {"rows": value}, {"rows": person_model.Moments.of(value)}
    for step in range(1, 30):
        theirs.grad = torch.from_numpy(rng.standard_normal((4, 3)))
        before = values["rows"].clone()
        given = values, {"rows": theirs.grad}, moments
        new, moments = person_model.adam_step(*given, step, rule)
        assert torch.equal(values["rows"], before)
        values = new
        optimiser.step()
        schedule.step()
        assert torch.allclose(values["rows"], theirs, rtol=0, atol=1e-13)


def test_dropout_has_its_share_and_depends_only_on_person_and_column():
    person = np.arange(4000)
    found = dropout_mask(person, 7, 0.2, key=5)
    assert set(np.unique(found)) == {np.float32(0), np.float32(1.25)}
    # 28,000 draws: the standard error of the share is 0.0024.
    assert abs((found == 0).mean() - 0.2) < 0.01
    assert abs((found == 0).mean(0) - 0.2).max() < 0.03
    some = np.array([17, 3, 3999])
    assert np.array_equal(dropout_mask(some, 7, 0.2, key=5), found[some])
    assert not np.array_equal(dropout_mask(person, 7, 0.2, key=6), found)
    assert (dropout_mask(person, 3, 0.0, key=1) == 1).all()


@pytest.mark.parametrize("width", [1, 2, 7])
@pytest.mark.parametrize("dropout", [0.2, 1 - 2**-32])
def test_dropout_is_that_of_a_plain_loop(width, dropout):
    person, key = np.array([0, 3, 17, 2**40]), 2**63 + 5
    expected = dropout_by_loop(person, width, dropout, key)
    assert np.array_equal(dropout_mask(person, width, dropout, key), expected)


def test_people_without_target_do_not_contribute_to_the_loss():
    logits = torch.tensor([[1.0, 2.0], [torch.inf, 0.0]], dtype=F64)
    loss, weight, gradient = person_model.loss_and_gradient(
        logits[:1].repeat(2, 1), np.array([1, -1], np.int8), None
    )
    assert weight == 1
    assert loss == pytest.approx(float(np.log1p(np.exp(-1))))
    assert torch.equal(gradient[1], torch.zeros(2, dtype=F64))


def test_status_columns():
    rows = person_model.status_inputs(np.array([0, 1, -1], np.int8), F64)
    assert torch.equal(rows, torch.eye(3, dtype=F64))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(cities(), st.booleans(), st.sampled_from([1, 3, 11]))
def test_the_region_state_is_the_mean_over_true_places(traces, by_day, width):
    window = traces.clock.slots_per_day if by_day else 1
    inc = Incidence.of(traces, window_slots=window)
    states = torch.randn(
        len(traces.regions),
        traces.clock.days,
        width,
        dtype=F64,
        generator=torch.Generator().manual_seed(1),
    )
    expected = np.zeros((traces.people, width))
    for key, members in members_by_loop(traces, window).items():
        window_number, region = divmod(key, len(traces.regions))
        day = traces.clock.day_of_slot(window_number * window)
        for person in members:
            expected[person] += states[region, day].numpy()
    expected /= np.maximum(inc.degree, 1)[:, None]
    found = person_model.state_of_people(states, inc, traces.clock)
    assert np.allclose(found, expected)


def test_region_states_of_another_city_are_refused():
    clock, inc = Clock(8, 2), by_hand(2, [[0, 1]] * 6)
    good = torch.zeros(1, 2, 3)
    for other in (torch.zeros(2, 2, 3), torch.zeros(1, 3, 3)):
        with pytest.raises(DataError, match="another city"):
            person_model.state_of_people(other, inc, clock)
    with pytest.raises(DataError, match="NaN"):
        person_model.state_of_people(good * torch.nan, inc, clock)
