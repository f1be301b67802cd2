"""The loop, the errors and the state that every engine shares."""

import dataclasses

import numpy as np
import pytest
import torch

from epifalcon.errors import BudgetExceededError, DataError, SettingsError
from epifalcon.federation import client
from epifalcon.federation.engine import predict, require_loss, train
from epifalcon.privacy.ledger import Budget, Ledger
from tests.federation.small_world import city, engine_of, plan_of, settings_of


def test_training_goes_on_to_the_number_of_rounds_and_reports():
    engine = engine_of(city(), settings_of(rounds=7))
    reports = train(engine)
    assert [report.round for report in reports] == list(range(7))
    assert engine.round == 7
    assert all(report.seconds > 0 for report in reports)
    assert train(engine) == []


def test_the_watcher_can_end_the_training():
    engine = engine_of(city(), settings_of())
    reports = train(engine, watch=lambda report: report.round == 2)
    assert len(reports) == engine.round == 3


def test_the_loss_falls():
    engine = engine_of(city(), settings_of(rounds=150, dropout=0.0))
    reports = train(engine)
    assert reports[-1].loss < 0.5 * reports[0].loss
    status, found = city().status, predict(engine)
    assert found[status == 1].mean() > found[status == 0].mean() + 0.3


def test_probabilities_are_of_everybody_also_of_people_never_seen():
    engine = engine_of(city(30, states=2), settings_of())
    train(engine)
    found = predict(engine)
    assert found.shape == (30,)
    assert found.dtype == np.float64
    assert ((found > 0) & (found < 1)).all()
    degree = city(30).incidence.degree
    assert (degree == 0).any()


def test_scores_without_a_round_need_a_fresh_pass():
    engine = engine_of(city(), settings_of())
    assert len(predict(engine)) == 30
    with pytest.raises(SettingsError, match="no round"):
        predict(engine, fresh=False)


def test_with_privacy_scores_cost_nothing_unless_they_are_fresh():
    settings = settings_of()
    engine = engine_of(city(copies=1), settings, mode="local", scorings=1)
    train(engine)
    head = engine.ledger.head
    first = predict(engine)
    assert np.array_equal(predict(engine), first)
    assert engine.ledger.head == head
    fresh = predict(engine, fresh=True)
    assert engine.ledger.head != head
    assert not np.array_equal(fresh, first)
    with pytest.raises(BudgetExceededError):
        predict(engine, fresh=True)


def test_the_budget_ends_a_run_before_anything_leaves(monkeypatch):
    settings = settings_of()
    engine = engine_of(city(copies=1), settings, mode="local")
    train(engine)
    monkeypatch.setattr(client, "training_inputs", None)
    before = engine.state()
    with pytest.raises(BudgetExceededError):
        engine.step()
    assert engine.round == settings.rounds
    assert torch.equal(engine.state().tensors["home/rows"], before.tensors["home/rows"])


def test_a_ledger_of_the_callers_own_is_used():
    settings = settings_of()
    from epifalcon.federation.engine import VectorisedEngine

    ledger = Ledger(Budget(refuse_unprotected=True))
    engine = VectorisedEngine(city(), settings, plan_of(settings), 1, ledger)
    with pytest.raises(BudgetExceededError, match="without protection"):
        engine.step()
    assert engine.round == 0


def test_after_a_crash_rounds_are_repeated_without_being_paid_twice():
    settings = settings_of()
    wish = {"mode": "local"}
    straight = engine_of(city(copies=1), settings, **wish)
    train(straight)
    crashed = engine_of(city(copies=1), settings, **wish)
    train(crashed, 3)
    kept = crashed.state()
    train(crashed, 6)
    from epifalcon.federation.engine import VectorisedEngine

    ledger = Ledger.from_lines(
        crashed.ledger.to_lines(), head=kept.ledger_head, replay_from=3
    )
    resumed = VectorisedEngine(city(copies=1), settings, crashed.plan, 1, ledger)
    resumed.restore(kept)
    train(resumed)
    assert resumed.ledger.head == straight.ledger.head
    assert np.array_equal(predict(resumed), predict(straight))


@pytest.mark.parametrize("where", ["upload", "loss"])
def test_nan_is_refused_and_the_last_good_state_kept(monkeypatch, where):
    settings = settings_of()
    engine = engine_of(city(), settings)
    train(engine, 2)
    good = {name: one.clone() for name, one in engine.state().tensors.items()}
    real = client.training_inputs

    def broken(*given):
        home, entry = real(*given)
        if where == "upload":
            rows = home.rows.clone()
            rows[0, 0] = torch.nan
            return dataclasses.replace(home, rows=rows), entry
        state = torch.full((len(home.rows), 1), torch.nan)
        return dataclasses.replace(home, state=state[:, :0], share=state), entry

    monkeypatch.setattr(client, "training_inputs", broken)
    with pytest.raises(DataError, match=r"in round 2|round 2"):
        engine.step()
    assert engine.round == 2
    assert all(torch.equal(engine.state().tensors[name], good[name]) for name in good)
    monkeypatch.undo()
    with pytest.raises(BudgetExceededError):
        engine.step()


def test_a_loss_that_is_no_number_is_told():
    assert require_loss(3.0, 2.0, 0) == 1.5
    assert require_loss(0.0, 0.0, 0) == 0
    with pytest.raises(DataError, match="loss of round 4 is nan"):
        require_loss(float("nan"), 2.0, 4)


def test_a_step_that_is_far_too_large_ends_with_an_error_not_with_nan():
    engine = engine_of(city(), settings_of(learning_rate=1e30))
    with pytest.raises(DataError, match="learning_rate"):
        train(engine)
    assert all(torch.isfinite(one).all() for one in engine.state().tensors.values())


def test_a_state_of_another_run_is_refused():
    engine = engine_of(city(), settings_of())
    state = engine.state()
    with pytest.raises(DataError, match=r"another run: .*home/first"):
        engine_of(city(), settings_of(input="status")).restore(state)
    with pytest.raises(DataError, match=r"expected torch\.float32"):
        engine_of(city(), settings_of(width=8)).restore(state)
    with pytest.raises(DataError, match=r"expected torch\.float64"):
        engine_of(city(), settings_of(precision="double")).restore(state)


def test_a_kept_state_does_not_move_with_the_engine():
    engine = engine_of(city(), settings_of())
    train(engine, 2)
    kept = engine.state()
    before = {name: one.clone() for name, one in kept.tensors.items()}
    train(engine)
    assert all(torch.equal(kept.tensors[name], before[name]) for name in before)


def test_a_plan_for_another_model_or_people_is_refused():
    settings = settings_of()
    from epifalcon.federation.engine import VectorisedEngine

    with pytest.raises(SettingsError, match="layers"):
        VectorisedEngine(city(), settings_of(layers=3), plan_of(settings), 1)
    with pytest.raises(SettingsError, match="pseudo copies"):
        VectorisedEngine(city(), settings, plan_of(settings, 2, mode="local"), 1)
