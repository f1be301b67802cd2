from dataclasses import replace

import pytest

from epifalcon.federation.settings import PredictionSettings, PrivacySettings
from epifalcon.models.settings import FalconSettings, RegionSettings

FALCON = PredictionSettings(
    model=FalconSettings(rounds=9), privacy=PrivacySettings(mode="local")
)


@pytest.mark.parametrize(
    ("wanted", "mode", "found"),
    [
        ("auto", "off", "reported"),
        ("auto", "paper", "reported"),
        ("auto", "local", "none"),
        ("reported", "local", "reported"),
        ("all", "local", "all"),
        ("none", "off", "none"),
    ],
)
def test_which_cases_the_region_model_sees(wanted, mode, found):
    settings = replace(
        FALCON,
        privacy=PrivacySettings(mode=mode),
        region=RegionSettings(macro_cases=wanted),
    )
    assert settings.macro_cases == found


def test_the_central_model_has_neither_privacy_nor_region_model():
    central = FALCON.central()
    assert central.privacy.mode == "off"
    assert central.macro_cases == "none"
    assert central.model == FALCON.model
    assert central.stopping == FALCON.stopping
    assert central.central() == central
