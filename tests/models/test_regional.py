"""One demand, many answers: what every region model must keep."""

import dataclasses

import numpy as np
import pytest
import torch

from epifalcon.errors import DataError, SettingsError
from epifalcon.models.region_model import NetworkRegionModel, RegionHistory, Scaling
from epifalcon.models.settings import DcrnnSettings, RegionSettings
from epifalcon.models.states import dcrnn_model
from tests.models.regions import QUICK, PlainGru, flows_of, small_history

NETWORK = DcrnnSettings(hidden_width=6)
BUILDERS = {
    "dcrnn": lambda training: dcrnn_model(
        RegionSettings(network=NETWORK, training=training)
    ),
    "plain gru": lambda training: NetworkRegionModel(
        PlainGru, training, {"name": "plain gru"}
    ),
}
every_model = pytest.mark.parametrize("name", BUILDERS)
LOOKS = {"cases": QUICK, "visitors": dataclasses.replace(QUICK, visitors=True)}
every_look = pytest.mark.parametrize("look", LOOKS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fitted(name, history, training=QUICK, seed=0):
    model = BUILDERS[name](training)
    model.fit(history, seeded(seed))
    return model


def changed_after(history, day, *, flows_too=True):
    """The history with everything after ``day`` turned into something else."""
    cases = np.array(history.cases)
    cases[:, day + 1 :] = 40 - cases[:, day + 1 :]
    tables = np.stack([history.flows.moves(d).toarray() for d in range(history.days)])
    if flows_too:
        tables[day + 1 :] = tables[day + 1 :, ::-1].transpose(0, 2, 1) + 1
    return RegionHistory(flows_of(tables), cases, history.source)


@every_look
@every_model
def test_the_states_of_a_day_hold_nothing_of_later_days(name, look):
    history = small_history()
    model = fitted(name, history, LOOKS[look])
    before = model.states(history)
    for day in (0, 4, history.days - 2):
        after = model.states(changed_after(history, day))
        assert np.array_equal(before[:, : day + 1], after[:, : day + 1])
        assert not np.array_equal(before[:, day + 1 :], after[:, day + 1 :])


@every_look
@every_model
def test_a_forecast_holds_nothing_of_later_days(name, look):
    history = small_history()
    model = fitted(name, history, LOOKS[look])
    before = model.forecast(history, [2, 5])
    after = model.forecast(changed_after(history, 5), [2, 5])
    assert np.array_equal(before, after)
    assert not np.array_equal(before, model.forecast(changed_after(history, 4), [2, 5]))


@every_model
def test_training_sees_no_value_of_the_validation_days(name):
    # One step cannot stop early, so validation has nothing to choose.
    once = dataclasses.replace(QUICK, steps=2, patience=9)
    history = small_history()
    first = once.first_validation_day(history.days)
    told = [
        BUILDERS[name](once).fit(given, seeded()).training
        for given in (history, changed_after(history, first - 1))
    ]
    assert told[0] == told[1]


@every_look
@every_model
def test_equal_seeds_give_equal_bits_and_other_seeds_other_models(name, look):
    history, look = small_history(), LOOKS[look]
    one = fitted(name, history, look, seed=7).states(history)
    torch.manual_seed(12345)
    again = fitted(name, history, look, seed=7).states(history)
    other = fitted(name, history, look, seed=8).states(history)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@every_model
def test_a_second_fit_starts_anew(name):
    history = small_history()
    model = fitted(name, small_history(seed=11), seed=3)
    model.fit(history, seeded(7))
    assert np.array_equal(
        model.states(history), fitted(name, history, seed=7).states(history)
    )


@every_model
def test_shapes_and_kinds(name):
    history = small_history()
    model = fitted(name, history)
    states = model.states(history)
    assert states.shape[:2] == (history.regions, history.days)
    assert states.dtype == np.float32
    told = model.forecast(history, [3, 11, 0])
    assert told.shape == (3, history.regions, QUICK.horizon)
    assert (told >= 0).all()
    assert np.array_equal(told[1], model.forecast(history, [11])[0])
    assert model.forecast(history, []).shape == (0, history.regions, QUICK.horizon)


@every_model
def test_a_city_without_cases_is_no_trouble(name):
    history = small_history()
    empty = history.with_cases(np.zeros_like(history.cases))
    model = fitted(name, empty)
    assert np.isfinite(model.states(empty)).all()
    assert np.isfinite(model.forecast(empty, [5])).all()


@every_model
def test_later_days_of_the_city_can_be_read_without_fitting_again(name):
    long = small_history(days=14)
    tables = [long.flows.moves(day).toarray() for day in range(10)]
    short = RegionHistory(flows_of(tables), long.cases[:, :10])
    model = fitted(name, short)
    assert np.array_equal(model.states(long)[:, :10], model.states(short))


@every_model
def test_what_is_not_fitted_tells_nothing(name):
    model = BUILDERS[name](QUICK)
    with pytest.raises(DataError, match="call fit first"):
        model.states(small_history())
    with pytest.raises(DataError, match="call fit first"):
        model.forecast(small_history(), [1])


@every_model
def test_a_day_that_is_not_there_cannot_be_forecast_from(name):
    history = small_history()
    model = fitted(name, history)
    for day in (-1, history.days):
        with pytest.raises(DataError, match=f"origin {day} must lie"):
            model.forecast(history, [day])


def test_dcrnn_looks_at_the_flows_and_the_plain_unit_does_not():
    history = small_history()
    tables = [history.flows.moves(day).toarray().T for day in range(history.days)]
    turned = RegionHistory(flows_of(tables), history.cases)
    for name, looks in (("dcrnn", True), ("plain gru", False)):
        model = fitted(name, history)
        same = np.array_equal(model.states(history), model.states(turned))
        assert same is not looks


def test_inputs_and_counts_undo_each_other():
    history = small_history()
    for visitors in (False, True):
        scaling = Scaling.of(history, 8, visitors)
        inputs = scaling.inputs(history)
        assert inputs.shape == (history.days, history.regions, 2 + visitors)
        np.testing.assert_allclose(
            scaling.counts(inputs[:, :, 0]), history.cases.T, rtol=1e-5, atol=1e-6
        )


def test_the_second_channel_is_the_mean_of_the_days_so_far():
    history = small_history()
    inputs = Scaling.of(history, 8, visitors=False).inputs(history)
    for day in range(history.days):
        so_far = inputs[: day + 1, :, 0].mean(dim=0)
        torch.testing.assert_close(inputs[day, :, 1], so_far)


def test_a_model_answers_only_for_the_kind_of_cases_it_knows():
    history = small_history()
    model = fitted("dcrnn", history)
    for other in (
        RegionHistory(history.flows, history.cases, "all"),
        RegionHistory(history.flows, history.cases, "reported", "share"),
    ):
        with pytest.raises(DataError, match="fit it again"):
            model.states(other)
        with pytest.raises(DataError, match="fit it again"):
            model.forecast(other, [2])
    with pytest.raises(DataError, match="another city"):
        model.states(small_history(regions=8))


def test_the_scaling_is_that_of_the_training_days():
    history = small_history()
    later = changed_after(history, 7)
    assert Scaling.of(history, 8, True) == Scaling.of(later, 8, True)


def test_wild_forecasts_stay_finite_counts():
    scaling = Scaling(2.0, None)
    told = scaling.counts(torch.tensor([-5.0, 0.0, 1e9]))
    assert told[0] == told[1] == 0
    assert np.isfinite(told).all()


def test_the_history_is_a_copy_that_cannot_change():
    history = small_history()
    cases = np.array(history.cases)
    given = RegionHistory(history.flows, cases)
    cases[:] = 0
    assert given.cases.any()
    assert not given.cases.flags.writeable
    assert given.with_cases(cases).graphs is given.graphs


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5])
def test_impossible_cases_are_refused(bad):
    history = small_history()
    cases = np.array(history.cases)
    cases[1, 2] = bad
    with pytest.raises(DataError, match="0 or more"):
        RegionHistory(history.flows, cases)


def test_cases_of_other_regions_or_days_are_refused():
    history = small_history()
    with pytest.raises(DataError, match=r"expected \(9, 12\)"):
        RegionHistory(history.flows, history.cases.T)
    with pytest.raises(SettingsError, match="source='everything'"):
        RegionHistory(history.flows, history.cases, "everything")
    with pytest.raises(SettingsError, match="measure='weight'"):
        RegionHistory(history.flows, history.cases, "all", "weight")
    share = RegionHistory(history.flows, history.cases, "reported", "share")
    assert share.with_cases(history.cases).measure == "share"
