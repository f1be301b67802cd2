"""Region models: what they may read, how they are trained, how they are stored."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.regions import Regions
from epifalcon.models.dcrnn import Dcrnn, flow_graph
from epifalcon.models.region_model import (
    DcrnnRegionModel,
    GruRegionModel,
    RegionHistory,
    Scaling,
    TrainingData,
    regions_sha256,
    train,
)
from epifalcon.models.settings import DcrnnSettings, RegionSettings, TrainingSettings
from epifalcon.progress import silent
from tests.models.regions import QUICK, flows_of, seeded, small_history

MODELS = {"dcrnn": DcrnnRegionModel, "gru": GruRegionModel}
every_model = pytest.mark.parametrize("name", MODELS)


def model_of(name, training=QUICK):
    network = DcrnnSettings(hidden_width=6)
    return MODELS[name](RegionSettings(network=network, training=training))


def fitted(name="dcrnn", history=None, training=QUICK, seed=0):
    model = model_of(name, training)
    model.fit(history or small_history(), seeded(seed))
    return model


def changed_after(history, day):
    """The history with all cases and flows after ``day`` changed."""
    cases = np.array(history.cases)
    cases[:, day + 1 :] = 40 - cases[:, day + 1 :]
    tables = np.stack([history.flows.moves(d).toarray() for d in range(history.days)])
    tables[day + 1 :] = tables[day + 1 :, ::-1].transpose(0, 2, 1) + 1
    return RegionHistory(flows_of(tables), cases, history.source)


VISITORS = dataclasses.replace(QUICK, visitors=True)


@pytest.mark.parametrize(
    ("name", "training"), [("dcrnn", QUICK), ("dcrnn", VISITORS), ("gru", QUICK)]
)
def test_states_and_forecasts_of_a_day_hold_nothing_of_later_days(name, training):
    history = small_history()
    model = fitted(name, history, training)
    before = model.states(history)
    for day in (0, 4, history.days - 2):
        changed = changed_after(history, day)
        after = model.states(changed)
        assert np.array_equal(before[:, : day + 1], after[:, : day + 1])
        assert not np.array_equal(before[:, day + 1 :], after[:, day + 1 :])
        if name == "dcrnn":
            found, other = (
                model.forecast(one, [day, day + 1]) for one in (history, changed)
            )
            assert (found >= 0).all()
            assert np.array_equal(found[0], other[0])
            assert not np.array_equal(found[1], other[1])


@every_model
def test_training_sees_no_value_of_the_validation_days(name):
    # Two steps cannot stop early, so validation has nothing to choose.
    once = dataclasses.replace(QUICK, steps=2, patience=9)
    history = small_history()
    first = once.first_validation_day(history.days)
    losses = [
        model_of(name, once).fit(given, seeded()).training
        for given in (history, changed_after(history, first - 1))
    ]
    assert losses[0] == losses[1]


@every_model
def test_a_fit_depends_on_data_and_seed_alone(name):
    history = small_history()
    one = fitted(name, history, seed=7).states(history)
    torch.manual_seed(12345)
    again = fitted(name, small_history(seed=11), seed=3)
    again.fit(history, seeded(7))
    assert np.array_equal(one, again.states(history))
    assert not np.array_equal(one, fitted(name, history, seed=8).states(history))


@every_model
def test_a_city_without_cases_has_finite_states(name):
    history = small_history()
    empty = RegionHistory(history.flows, np.zeros_like(history.cases))
    model = fitted(name, empty)
    assert np.isfinite(model.states(empty)).all()
    assert np.isfinite(model.forecast(empty, [5])).all()


def test_dcrnn_reads_the_flows_and_the_gru_does_not():
    history = small_history()
    tables = [history.flows.moves(day).toarray().T for day in range(history.days)]
    turned = RegionHistory(flows_of(tables), history.cases)
    for name in MODELS:
        model = fitted(name, history)
        same = np.array_equal(model.states(history), model.states(turned))
        assert same == (name == "gru")


@every_model
def test_an_unfitted_model_is_refused(name):
    with pytest.raises(DataError, match="call fit first"):
        model_of(name).states(small_history())
    with pytest.raises(DataError, match="call fit first"):
        model_of(name).forecast(small_history(), [1])


@pytest.mark.parametrize("visitors", [False, True])
def test_inputs_are_scaled_by_the_training_days(visitors):
    history = small_history()
    scaling = Scaling.of(history, 8, visitors)
    assert scaling == Scaling.of(changed_after(history, 7), 8, visitors)
    inputs = scaling.inputs(history)
    assert inputs.shape[2] == scaling.channels == 2 + visitors
    np.testing.assert_allclose(
        scaling.counts(inputs[:, :, 0]), history.cases.T, rtol=1e-5, atol=1e-6
    )
    for day in range(history.days):
        so_far = inputs[: day + 1, :, 0].mean(dim=0)
        torch.testing.assert_close(inputs[day, :, 1], so_far)
    counts = scaling.counts(torch.tensor([-5.0, 0.0, 1e9]))
    assert counts[0] == counts[1] == 0
    assert np.isfinite(counts).all()


# Training


def data_of(training, history=None):
    history = history or small_history()
    first = training.first_validation_day(history.days)
    inputs = Scaling.of(history, first, training.visitors).inputs(history)
    return TrainingData(inputs, history.graphs, first, training)


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
    data = TrainingData(torch.zeros(days, 1, 1), (), first, training)
    for origin in range(days - 1):
        early = data.targets(origin, validation=False)
        late = data.targets(origin, validation=True)
        assert all(origin < day < first for day in early)
        assert all(max(origin + 1, first) <= day < days for day in late)
        wanted = {day for day in range(origin + 1, origin + horizon + 1) if day < days}
        assert {*early, *late} == wanted
    # Every length of forecast is trained, and every origin drawn has a target.
    assert len(data.targets(0, validation=False)) == horizon
    for day in data.draw(seeded()):
        assert data.targets(day, validation=False)


def test_days_long_before_the_first_case_are_not_learned_from():
    training = TrainingSettings(horizon=2, origins_per_step=3)
    inputs = torch.zeros(20, 4, 1)
    inputs[9, 1] = inputs[14, 0] = 1
    data = TrainingData(inputs, (), 16, training)
    assert data.origins == (7, 8, 9, 12, 13, 14)
    drawn = [data.draw(generator) for generator in map(seeded, range(40))]
    assert {day for days in drawn for day in days} == set(data.origins)
    assert all(len(set(days)) == 3 and days == sorted(days) for days in drawn)
    data = TrainingData(torch.zeros(20, 4, 1), (), 16, training)
    assert data.origins == tuple(range(15))


def test_the_gradient_is_that_of_the_whole_error():
    # Cutting at the states saves memory and must change nothing.
    training = TrainingSettings(horizon=2, origins_per_step=99, steps=1)
    data, moves = data_of(training), small_history().flows.moves
    model = network().double()
    graphs = tuple(flow_graph(moves(day), torch.float64) for day in range(12))
    border, pieces = data.first_validation_day, []
    data = TrainingData(data.inputs.double(), graphs, border, training)
    states = model.encoder.states(data.inputs, graphs)
    for origin in range(border - 1):
        last = data.inputs[origin]
        ahead = model.decode(states[origin], last, graphs[origin], 2)
        for lead in range(2):
            if origin + 1 + lead < border:
                truth = data.inputs[origin + 1 + lead, :, 0]
                pieces.append((ahead[:, lead] - truth).square().mean())
    whole = torch.stack(pieces).mean()
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    record = train(model, data, seeded(), silent)
    assert record.training[0] == pytest.approx(whole.item(), rel=1e-12)
    norm = math.sqrt(sum(float(g.square().sum()) for g in wanted))
    scale = min(1.0, training.gradient_clip / norm)
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad * scale, rtol=1e-5, atol=1e-9)


def test_it_stops_early_with_the_parameters_of_the_best_step():
    training = TrainingSettings(steps=500, horizon=2, learning_rate=0.2, patience=5)
    data, model, calls = data_of(training), network(), []
    record = train(model, data, seeded(), lambda *call: calls.append(call))
    assert len(record.validation) == np.argmin(record.validation) + 6 < 500
    done = [step for _, step, _ in calls]
    assert done == sorted(done)
    assert done[-1] == 500
    again = TrainingSettings(steps=1, horizon=2)
    data = TrainingData(data.inputs, data.graphs, data.first_validation_day, again)
    after = train(model, data, seeded(), silent)
    assert after.validation[0] == min(record.validation)


def test_a_learning_rate_that_blows_up_is_named():
    training = TrainingSettings(steps=30, horizon=2, learning_rate=1e30)
    with pytest.raises(SettingsError, match=r"learning_rate=1e\+30 is too large"):
        train(network(), data_of(training), seeded(), silent)


# Storage


def regions_of(count=9, seed=0):
    centre = np.random.default_rng(seed).normal(size=(count, 2))
    return Regions("area", centre)


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture
def folder(tmp_path, model):
    model.save(tmp_path / "model", regions_of(), store.Origin())
    return tmp_path / "model"


@pytest.mark.parametrize("source", ["reported", "all"])
@pytest.mark.parametrize("training", [QUICK, VISITORS])
def test_a_loaded_model_gives_the_same_bits(tmp_path, training, source):
    model = fitted(history=small_history(source=source), training=training)
    model.save(tmp_path / "one", regions_of(), store.Origin.now({"a": 1}, 7))
    back = DcrnnRegionModel.load(tmp_path / "one", regions_of())
    for days, seed in ((12, 3), (5, 8), (20, 9)):
        history = small_history(days=days, seed=seed, source=source)
        assert np.array_equal(back.states(history), model.states(history))
        found = back.forecast(history, range(days))
        assert np.array_equal(found, model.forecast(history, range(days)))
    back.save(tmp_path / "two", regions_of(), store.Origin.now({"a": 1}, 7))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_another_city_and_an_unfitted_model_are_refused(folder):
    with pytest.raises(DataError, match=r"another city, of 9 regions"):
        DcrnnRegionModel.load(folder, regions_of(seed=1))
    with pytest.raises(DataError, match=r"another city, of 9 regions"):
        DcrnnRegionModel.load(folder, regions_of(count=8))
    with pytest.raises(DataError, match="call fit first"):
        model_of("dcrnn").save(folder / "new", regions_of(), store.Origin())
    assert not (folder / "new").exists()


def test_damaged_parameters_and_another_version_are_refused(folder):
    manifest = json.loads((folder / store.MANIFEST).read_text())
    file, meta = folder / "parameters.safetensors", manifest["meta"]
    whole = file.read_bytes()
    file.write_bytes(whole[:7])
    with pytest.raises(CorruptFileError, match="bytes, expected"):
        DcrnnRegionModel.load(folder, regions_of())
    file.write_bytes(whole)
    for change, message in (({"heads": 3}, "heads"), ({"hidden_width": 0}, "width=0")):
        (folder / store.MANIFEST).unlink()
        network = meta["model"]["network"] | change
        model = meta["model"] | {"network": network}
        store.write_manifest(
            folder, "region-model", meta=meta | {"model": model}, origin=store.Origin()
        )
        with pytest.raises(DataError, match=f"another version of epifalcon.*{message}"):
            DcrnnRegionModel.load(folder, regions_of())


def test_regions_are_identified_by_place_and_by_name_only_without_one():
    centre = np.arange(6.0).reshape(3, 2)
    here, lonlat = Regions("area", centre), centre / 10
    names = ("a", "b", "c")
    mark = regions_sha256
    assert mark(here) == mark(Regions("area", centre.copy(), names=names))
    assert mark(here) != mark(Regions("area", centre[::-1].copy()))
    # Plane coordinates depend on the projection, degrees do not.
    placed = [Regions("poi", centre + shift, lonlat) for shift in (0.0, 1.0)]
    assert mark(placed[0]) == mark(placed[1]) != mark(here)
    nowhere = np.full((3, 2), np.nan)
    bare = [Regions("poi", nowhere, names=given) for given in (names, names[::-1])]
    assert mark(bare[0]) != mark(bare[1])
    assert mark(bare[0]) == mark(Regions("poi", nowhere.copy(), names=names))
