"""Parameters of estimators: by name, nested, by mode, and in scikit-learn's tools."""

import re

import pytest
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from epifalcon.errors import SettingsError
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.federation.settings import PrivacySettings
from epifalcon.methods.falcon import Falcon
from epifalcon.methods.falcon_field import FalconField
from epifalcon.methods.gcn import Gcn
from epifalcon.models.settings import FalconSettings


def test_a_mode_is_short_for_its_settings():
    model = Falcon(privacy="paper")
    assert model.settings.privacy == PrivacySettings(mode="paper")
    assert model.get_params()["privacy"] == "paper"
    assert repr(model) == "Falcon(privacy='paper')"
    assert clone(model).get_params(deep=False)["privacy"] == "paper"
    sums = FalconField(privacy="sums").settings.privacy
    assert sums == FieldPrivacySettings(mode="sums")
    assert repr(FalconField(privacy="off")) == "FalconField()"
    with pytest.raises(SettingsError, match=r"privacy\.mode='papre'.*'paper'"):
        Falcon(privacy="papre")


def test_settings_may_be_instances_or_mappings():
    model = FalconSettings(rounds=5)
    one, other = Falcon(model=model), Falcon(model={"rounds": 5})
    assert one.settings == other.settings
    assert one.get_params()["model"] is model
    assert repr(one) == "Falcon(model=FalconSettings(rounds=5))"
    with pytest.raises(SettingsError, match=r"falcon\.model.*table of settings"):
        Falcon(model=PrivacySettings())


def test_parameters_are_changed_together_or_not_at_all():
    model = Falcon(privacy="paper", seed=2)
    model.set_params(model__width=8, region__network__hidden_width=4)
    model.set_params(privacy__upload_sigma=0.1)
    settings = model.settings
    assert (settings.model.width, settings.region.network.hidden_width) == (8, 4)
    assert settings.privacy == PrivacySettings(mode="paper", upload_sigma=0.1)
    # The new mode comes before its nested settings.
    model.set_params(privacy__epsilon=3, privacy="local", seed=5)
    assert model.settings.privacy == PrivacySettings(mode="local", epsilon=3.0)
    assert (model.settings.model.width, model.seed) == (8, 5)
    before = model.get_params()
    for wrong, message in (
        ({"seed": 7, "model__widht": 3}, r"model\.widht'.*model\.width"),
        ({"modle__width": 3, "model__width": 3}, "modle'.*model"),
        ({"model__width": 0}, "width"),
        ({"model__width__x": 3}, "whole number"),
    ):
        with pytest.raises(SettingsError, match=message):
            model.set_params(**wrong)
        assert model.get_params() == before


def test_an_unknown_name_is_found_in_its_table():
    for given, near in (
        ({"sweeps": 3}, "did you mean field={'sweeps': 3} or privacy="),
        ({"epsilon": 3}, "did you mean privacy={'mode': 'local', 'epsilon': 3}?"),
        ({"mode": "sums"}, "did you mean privacy={'mode': 'sums'}?"),
    ):
        with pytest.raises(SettingsError, match=re.escape(near)):
            FalconField(**given)


def test_a_grid_of_parameters():
    grid = ParameterGrid({"width": [4, 8], "dropout": [0.0, 0.5]})
    found = [clone(Gcn(seed=3)).set_params(**one) for one in grid]
    shapes = [(one.settings.width, one.settings.dropout) for one in found]
    assert shapes == [(4, 0.0), (8, 0.0), (4, 0.5), (8, 0.5)]
    assert {one.seed for one in found} == {3}
    # The default value is not shown.
    assert repr(Gcn(width=Gcn().settings.width, dropout=0.25)) == "Gcn(dropout=0.25)"
