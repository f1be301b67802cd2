"""Training: what is learned from, when it stops, what it refuses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.errors import DataError, SettingsError
from epifalcon.models.dcrnn import Dcrnn, FlowGraph
from epifalcon.models.region_model import Lesson, Scaling, train
from epifalcon.models.settings import DcrnnSettings, TrainingSettings
from tests.models.regions import small_history


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def silent(name, done, total):
    pass


def lesson_of(training, history=None):
    history = history or small_history()
    first = training.first_validation_day(history.days)
    inputs = Scaling.of(history, first, training.visitors).inputs(history)
    return Lesson(inputs, history.graphs, first, training)


def network():
    return Dcrnn(2, DcrnnSettings(hidden_width=6), seeded())


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(1, 60), st.integers(1, 5), st.sampled_from([0.01, 0.2, 0.5]))
def test_every_pair_of_days_is_on_one_side_of_the_border(days, horizon, share):
    training = TrainingSettings(horizon=horizon, validation_share=share)
    try:
        first = training.first_validation_day(days)
    except DataError:
        assert days - max(1, round(days * share)) <= horizon
        return
    lesson = Lesson(torch.zeros(days, 1, 1), (), first, training)
    for origin in range(days - 1):
        early = lesson.targets(origin, validation=False)
        late = lesson.targets(origin, validation=True)
        assert all(origin < day < first for day in early)
        assert all(max(origin + 1, first) <= day < days for day in late)
        wanted = {day for day in range(origin + 1, origin + horizon + 1) if day < days}
        assert {*early, *late} == wanted
    # Every length of forecast is trained, and every origin drawn has a target.
    assert len(lesson.targets(0, validation=False)) == horizon
    for day in lesson.draw(seeded()):
        assert lesson.targets(day, validation=False)


def test_days_long_before_the_first_case_are_not_learned_from():
    training = TrainingSettings(horizon=2, origins_per_step=3)
    inputs = torch.zeros(20, 4, 1)
    inputs[9, 1] = 1
    lesson = Lesson(inputs, (), 16, training)
    assert lesson.origins == (7, 8, 9)
    inputs[14, 0] = 1
    lesson = Lesson(inputs, (), 16, training)
    assert lesson.origins == (7, 8, 9, 12, 13, 14)
    drawn = [lesson.draw(generator) for generator in map(seeded, range(40))]
    assert {day for days in drawn for day in days} == set(lesson.origins)
    assert all(len(set(days)) == 3 and days == sorted(days) for days in drawn)
    assert Lesson(torch.zeros(20, 4, 1), (), 16, training).origins == tuple(range(15))


def test_a_fifth_of_the_days_is_for_validation():
    training = TrainingSettings()
    assert training.first_validation_day(14) == 11
    assert training.first_validation_day(40) == 32


def test_the_gradient_is_that_of_the_whole_error():
    # Cutting at the states saves memory and must change nothing.
    training = TrainingSettings(horizon=2, origins_per_step=99, steps=1)
    lesson = lesson_of(training)
    model = network().double()
    graphs = tuple(
        FlowGraph.of(small_history().flows.moves(day), torch.float64)
        for day in range(12)
    )
    lesson = Lesson(
        lesson.inputs.double(), graphs, lesson.first_validation_day, training
    )
    states = model.encode(lesson.inputs, graphs)
    border, pieces = lesson.first_validation_day, []
    for origin in range(border - 1):
        last = lesson.inputs[origin]
        told = model.decode(states[origin], last, graphs[origin], 2)
        for lead in range(2):
            if origin + 1 + lead < border:
                truth = lesson.inputs[origin + 1 + lead, :, 0]
                pieces.append((told[:, lead] - truth).square().mean())
    whole = torch.stack(pieces).mean()
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    record = train(model, lesson, seeded(), silent)
    assert record.training[0] == pytest.approx(whole.item(), rel=1e-12)
    norm = math.sqrt(sum(float(g.square().sum()) for g in wanted))
    scale = min(1.0, training.gradient_clip / norm)
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad * scale, rtol=1e-5, atol=1e-9)


def test_training_learns():
    training = TrainingSettings(steps=30, horizon=2, patience=30)
    record = train(network(), lesson_of(training), seeded(), silent)
    assert min(record.validation) < record.validation[0] / 2
    assert record.training[-1] < record.training[0] / 2


def test_the_parameters_of_the_best_step_are_kept():
    training = TrainingSettings(steps=25, horizon=2, learning_rate=0.2, patience=25)
    lesson, model = lesson_of(training), network()
    record = train(model, lesson, seeded(), silent)
    assert 0 < record.best_step < 24
    again = TrainingSettings(steps=1, horizon=2)
    lesson = Lesson(lesson.inputs, lesson.graphs, lesson.first_validation_day, again)
    after = train(model, lesson, seeded(), silent)
    assert after.validation[0] == min(record.validation)


def test_it_stops_when_validation_no_longer_gets_better():
    training = TrainingSettings(steps=500, horizon=2, learning_rate=0.2, patience=5)
    told = []
    record = train(
        network(), lesson_of(training), seeded(), lambda *said: told.append(said)
    )
    assert len(record.validation) == record.best_step + 6 < 500
    assert told[-1] == ("region model", 500, 500)
    done = [step for _, step, _ in told]
    assert done == sorted(done)


def test_a_learning_rate_that_blows_up_is_named():
    training = TrainingSettings(steps=30, horizon=2, learning_rate=1e30)
    with pytest.raises(SettingsError, match=r"learning_rate=1e\+30 is too large"):
        train(network(), lesson_of(training), seeded(), silent)


def test_too_few_days_are_refused_with_a_remedy():
    with pytest.raises(
        DataError, match=r"4 days leave 3 for training.*smaller horizon"
    ):
        TrainingSettings().first_validation_day(4)
    assert TrainingSettings().first_validation_day(5) == 4
    assert TrainingSettings(horizon=1).first_validation_day(3) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"learning_rate": 0.0},
        {"learning_rate": np.nan},
        {"gradient_clip": -1.0},
        {"horizon": 0},
        {"validation_share": 0.0},
        {"validation_share": 1.5},
        {"patience": 0},
        {"origins_per_step": 0},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TrainingSettings(**wrong)
