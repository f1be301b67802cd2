"""The fast engine against torch's autograd and Adam, its errors, and the loop."""

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from epifalcon.errors import BudgetExceededError, DataError, SettingsError
from epifalcon.federation.client import Client
from epifalcon.federation.engine import EdgeExchange, VectorisedEngine, train
from epifalcon.federation.privacy_plan import RunSeeds
from epifalcon.models.person_model import Exchange, status_inputs
from tests.federation.small_world import PAPER, city, engine_of, plan_of, settings_of
from tests.oracles.dense_hypergraph import dense, dense_layer, inverse


def central(engine, whole, weights=None):
    """The same model in torch, all in one place; returns a function of one round."""
    start = engine.state().tensors
    names = [name for name in start if name.startswith(("parameter/", "home/rows"))]
    values = {name: start[name].clone().requires_grad_() for name in names}
    operator = dense_layer(whole.incidence).to(next(iter(values.values())).dtype)
    rule = engine.settings
    rates = {"lr": rule.learning_rate, "weight_decay": rule.weight_decay}
    optimiser = torch.optim.Adam(values.values(), **rates)
    client = Client(whole, rule, engine.plan, RunSeeds(1))

    def linear(name, rows):
        parts = (values[f"parameter/{name}.{part}"] for part in ("weight", "bias"))
        return nn.functional.linear(rows, *parts)

    def forward(status=whole.status):
        rows = values.get("home/rows")
        if rows is None:
            inputs = status_inputs(status, operator.dtype)
            rows = inputs @ values["parameter/input.weight"].T
        for layer in range(rule.layers):
            received = operator @ rows
            if whole.state is not None:
                received = torch.cat([received, whole.state.to(rows.dtype)], 1)
            rows = torch.relu(linear(f"layer{layer}", received))
        return linear("head", rows)

    def step():
        shown = target = whole.status
        if rule.input == "status":
            shown, target = client.masked_status(engine.round)
        target = torch.from_numpy(target.astype(np.int64))
        logits = forward(shown)
        loss = nn.functional.cross_entropy(logits, target, weights, ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.item()

    return step, forward, values


@pytest.mark.parametrize(
    ("kind", "precision", "close"),
    [
        ("embedding", "single", 1e-5),
        ("embedding", "double", 1e-12),
        ("status", "double", 1e-12),
    ],
)
@pytest.mark.parametrize("class_weights", [None, (0.3, 2.0)])
def test_exchanged_rounds_are_those_of_a_central_model(
    kind, precision, close, class_weights
):
    whole = city(30, states=3)
    given = {"input": kind, "precision": precision, "class_weights": class_weights}
    settings = settings_of(dropout=0.0, **given)
    engine, weights = engine_of(whole, settings), None
    if class_weights is not None:
        weights = torch.tensor(class_weights, dtype=settings.dtype)
    step, forward, values = central(engine, whole, weights)
    for _ in range(settings.rounds):
        wanted = step()
        assert engine.step() == pytest.approx(wanted, rel=100 * close)
    now = engine.state().tensors
    for name, value in values.items():
        assert torch.allclose(now[name], value, rtol=0, atol=close)
    found = torch.softmax(forward(), 1)[:, 1].detach().double()
    assert np.abs(engine.scores() - found.numpy()).max() < close


def edge_exchange_of(whole, sigma, counts=None):
    plan = plan_of(settings_of(), 2, **{**PAPER, "upload_sigma": sigma})
    return EdgeExchange.of(whole, counts, plan)


def test_counts_of_any_source_divide_the_edges_and_scale_their_noise():
    whole, rng = city(20, 2), np.random.default_rng(0)
    counts = rng.uniform(1, 9, whole.incidence.edges)
    h = dense(whole.incidence)
    share = inverse(h.sum(1)).diag()[:, None]
    edge_exchange = edge_exchange_of(whole, 0.0, counts)
    rows = torch.from_numpy(rng.standard_normal((20, 5)))
    summed = h @ torch.diag(torch.from_numpy(1 / counts)) @ h.T @ rows
    for kind, expected in (("upload", share * summed), ("return", summed)):
        came = edge_exchange.carry(Exchange(kind, 0, rows), 0, kind, 0)
        assert torch.allclose(came, expected, rtol=0, atol=1e-12)
    zero = Exchange("return", 0, torch.zeros(20, 2000, dtype=torch.float64))
    noise = edge_exchange_of(whole, 0.5, counts).carry(zero, 7, "return", 0)
    variance = h @ torch.from_numpy(whole.uploads / counts**2) * 0.25
    seen = variance > 0
    ratio = noise.square().mean(1)[seen] / variance[seen]
    # 2,000 draws each: the standard error of a variance is sqrt(2 / 2000).
    assert (ratio - 1).abs().max() < 4.5 * (2 / 2000) ** 0.5
    assert noise[~seen].abs().max() == 0


def test_every_exchange_of_a_run_has_noise_of_its_own():
    edge_exchange, zero = edge_exchange_of(city(20, 2), 0.5), torch.zeros(20, 4)
    drawn = []
    for kind, layer, number in product(("upload", "return", "scoring"), (0, 1), (0, 1)):
        way = "return" if kind == "return" else "upload"
        drawn.append(edge_exchange.carry(Exchange(way, layer, zero), 7, kind, number))
    for place, one in enumerate(drawn):
        assert not any(torch.equal(one, other) for other in drawn[:place])


@pytest.mark.parametrize("kind", ["upload", "return"])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_rows_that_are_no_numbers_are_not_passed_on(kind, sigma):
    edge_exchange = edge_exchange_of(city(20, 2), sigma)
    for wrong in (torch.nan, torch.inf):
        rows = torch.ones(20, 4)
        rows[7, 3] = wrong
        message = f"{kind}/1 in round 3 holds NaN or infinity"
        with pytest.raises(DataError, match=message):
            edge_exchange.carry(Exchange(kind, 1, rows), 0, kind, 3)


def test_training_ends_after_all_rounds_or_when_the_watcher_says_so():
    engine = engine_of(city(), settings_of(rounds=7))
    reports = train(engine, watch=lambda report: report.round == 2)
    assert len(reports) == engine.round == 3
    assert [report.round for report in train(engine)] == [3, 4, 5, 6]
    assert train(engine) == []


def test_with_privacy_scores_cost_nothing_unless_fresh_and_the_budget_ends_all(
    monkeypatch,
):
    settings = settings_of()
    engine = engine_of(city(copies=1), settings, mode="local", scorings=1)
    train(engine)
    head = engine.ledger.head
    first = engine.scores()
    assert np.array_equal(engine.scores(), first)
    assert engine.ledger.head == head
    fresh = engine.scores(fresh=True)
    assert engine.ledger.head != head
    assert not np.array_equal(fresh, first)
    # Past the budget nothing is computed, let alone released.
    for name in ("training", "scoring"):
        monkeypatch.setattr(Client, name, None)
    for release in (engine.step, lambda: engine.scores(fresh=True)):
        with pytest.raises(BudgetExceededError):
            release()
    assert engine.round == settings.rounds
    assert np.array_equal(engine.scores(), first)


def test_nan_is_refused_and_the_last_good_state_kept(monkeypatch):
    settings = settings_of()
    engine = engine_of(city(), settings)
    train(engine, 2)
    good = {name: one.clone() for name, one in engine.state().tensors.items()}
    real = Client._inputs

    def broken(*given):
        inputs = real(*given)
        state = torch.full((len(inputs.rows), 1), torch.nan)
        return dataclasses.replace(inputs, state=state[:, :0], share=state)

    monkeypatch.setattr(Client, "_inputs", broken)
    with pytest.raises(DataError, match=r"in round 2|round 2"):
        engine.step()
    assert engine.round == 2
    assert all(torch.equal(engine.state().tensors[name], good[name]) for name in good)
    monkeypatch.undo()
    with pytest.raises(BudgetExceededError):
        engine.step()


def test_a_state_or_a_plan_of_another_run_is_refused():
    engine = engine_of(city(), settings_of())
    state = engine.state()
    for change, message in (
        ({"input": "status"}, r"another run: .*home/first"),
        ({"width": 8}, r"expected torch\.float32"),
        ({"precision": "double"}, r"expected torch\.float64"),
    ):
        with pytest.raises(DataError, match=message):
            engine_of(city(), settings_of(**change)).restore(state)
    settings = settings_of()
    with pytest.raises(SettingsError, match="layers"):
        VectorisedEngine(city(), settings_of(layers=3), plan_of(settings), 1)
    with pytest.raises(SettingsError, match="pseudo copies"):
        VectorisedEngine(city(), settings, plan_of(settings, 2, mode="local"), 1)
