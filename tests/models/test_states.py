"""Region states: kept, refused on another city, and free of a fold's own cases."""

import dataclasses

import numpy as np
import pytest
import torch

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.flows import Flows
from epifalcon.models.settings import DcrnnSettings, RegionSettings
from epifalcon.models.states import (
    RegionStates,
    cross_fitted_states,
    dcrnn_model,
    fit_states,
    flows_sha256,
    without_fold,
)
from epifalcon.settings import as_plain, build
from tests.models.regions import QUICK, small_history

SETTINGS = RegionSettings(network=DcrnnSettings(hidden_width=5), training=QUICK)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fit(history=None):
    return fit_states(dcrnn_model(SETTINGS), history or small_history(), seeded())


def split(history, folds=4, seed=2):
    """The history's cases dealt to folds."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.ones(folds), size=history.cases.shape)
    return np.moveaxis(share, 2, 0) * history.cases


def test_a_saved_record_comes_back_as_it_was(tmp_path):
    history = small_history(source="all")
    states = fit(history).states
    states.save(tmp_path / "states", store.Origin.now({"a": 1}, 7))
    back = RegionStates.load(tmp_path / "states", history.flows)
    assert np.array_equal(back.hidden, states.hidden)
    assert back.width == 5
    for name in ("source", "flows_sha256", "cases_sha256", "settings_sha256"):
        assert getattr(back, name) == getattr(states, name)
    assert back.source == "all"


def test_states_of_another_city_are_refused(tmp_path):
    fit().states.save(tmp_path, store.Origin())
    other = small_history(seed=4).flows
    with pytest.raises(DataError, match=r"another city.*fit the region model again"):
        RegionStates.load(tmp_path, other)
    with pytest.raises(DataError, match="these flows of 8 regions"):
        RegionStates.load(tmp_path, small_history(regions=8).flows)


def test_a_flipped_bit_is_noticed(tmp_path):
    history = small_history()
    fit(history).states.save(tmp_path, store.Origin())
    file = tmp_path / "hidden.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.raises(CorruptFileError):
        RegionStates.load(tmp_path, history.flows)


def test_the_fingerprint_is_of_the_content(tmp_path):
    flows = small_history().flows
    flows.save(tmp_path, store.Origin())
    assert flows_sha256(Flows.load(tmp_path)) == flows_sha256(flows)
    for name in ("stays", "visitors"):
        changed = np.array(getattr(flows, name))
        changed[0, 0] += 1
        other = dataclasses.replace(flows, **{name: changed})
        assert flows_sha256(other) != flows_sha256(flows)
    between = flows.between.copy()
    between.data[0] += 1
    other = dataclasses.replace(flows, between=between)
    assert flows_sha256(other) != flows_sha256(flows)


def test_other_cases_and_other_settings_leave_their_mark():
    history = small_history()
    states = fit(history).states
    more = fit(history.with_cases(history.cases + 1)).states
    assert more.cases_sha256 != states.cases_sha256
    assert more.flows_sha256 == states.flows_sha256
    longer = dataclasses.replace(QUICK, steps=7)
    wider = RegionSettings(network=DcrnnSettings(hidden_width=5), training=longer)
    other = fit_states(dcrnn_model(wider), history, seeded()).states
    assert other.settings_sha256 != states.settings_sha256


@pytest.mark.parametrize(
    ("hidden", "told"),
    [
        (np.zeros((2, 3), np.float32), "of 2 axes"),
        (np.zeros((2, 3, 1)), "float64"),
        (np.full((2, 3, 1), np.nan, np.float32), "not finite"),
    ],
)
def test_what_are_no_states_is_refused(hidden, told):
    with pytest.raises(DataError, match=told):
        RegionStates(hidden, "reported", "", "", "")


def test_states_name_their_source():
    with pytest.raises(SettingsError, match="source"):
        RegionStates(np.zeros((1, 1, 1), np.float32), "some", "", "", "")


def test_the_others_history_is_blind_to_the_folds_own_cases():
    history = small_history()
    parts = split(history)
    for fold in range(4):
        changed = parts.copy()
        changed[fold] = changed[fold, ::-1] * 3 + 1
        other = history.with_cases(changed.sum(axis=0))
        one = without_fold(history, parts)
        two = without_fold(other, changed)
        for place in range(4):
            same = np.array_equal(one[place].cases, two[place].cases)
            assert same is (place == fold)


def test_the_others_are_scaled_to_the_whole():
    history = small_history()
    equal = np.repeat(history.cases[None] / 4, 4, axis=0)
    for other in without_fold(history, equal):
        np.testing.assert_allclose(other.cases, history.cases)
        assert other.source == history.source


def test_by_default_the_model_is_trained_once_and_run_on_the_others():
    history = small_history()
    parts, model = split(history), dcrnn_model(SETTINGS)
    made = cross_fitted_states(model, history, parts, seeded())
    assert np.array_equal(made.whole.states.hidden, fit(history).states.hidden)
    for states, other in zip(made.folds, without_fold(history, parts), strict=True):
        assert np.array_equal(states.hidden, model.states(other))
        assert not np.array_equal(states.hidden, made.whole.states.hidden)


def test_trained_for_each_fold_nothing_of_its_own_cases_is_left():
    history = small_history()
    parts, fold = split(history, folds=2), 1
    changed = parts.copy()
    changed[fold] = changed[fold, ::-1] * 3 + 1
    one, two = (
        cross_fitted_states(
            dcrnn_model(SETTINGS),
            history.with_cases(given.sum(axis=0)),
            given,
            seeded(),
            train_per_fold=True,
        )
        for given in (parts, changed)
    )
    assert not np.array_equal(one.folds[0].hidden, two.folds[0].hidden)
    assert np.array_equal(one.folds[fold].hidden, two.folds[fold].hidden)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda parts: parts[:1], "2 folds or more"),
        (lambda parts: parts[:, :-1], "expected"),
        (lambda parts: parts[0], "expected"),
        (lambda parts: parts * 2, "add up"),
        (lambda parts: parts[:3], "add up"),
        (lambda parts: -parts, "0 or more"),
        (lambda parts: parts * np.nan, "finite"),
    ],
)
def test_folds_that_are_not_the_history_are_refused(wrong, told):
    history = small_history()
    with pytest.raises(DataError, match=told):
        without_fold(history, wrong(split(history)))


def test_settings_go_through_plain_words():
    assert build(RegionSettings, as_plain(SETTINGS)) == SETTINGS
    with pytest.raises(SettingsError, match=r"did you mean 'network.hidden_width'"):
        build(RegionSettings, {"network": {"hiden_width": 3}})
