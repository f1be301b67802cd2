import pytest

from epifalcon.errors import SettingsError
from epifalcon.mobility.synthetic import CitySettings
from epifalcon.settings import as_plain, build


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("people", 0),
        ("people", -3),
        ("people", 2**31),
        ("people", 10.5),
        ("people", True),
        ("regions", 0),
        ("regions", 2**31 + 5),
        ("days", 0),
        ("towns", -1),
        ("kind", "village"),
        ("slot_hours", 5.0),
        ("slot_hours", 0.0),
        ("start", "yesterday"),
        ("region_radius_km", 0.0),
        ("built_share", 0.0),
        ("built_share", 1.5),
        ("home_sigma", -0.1),
        ("commuter_share", 1.1),
        ("observed_share", -0.1),
        ("observed_share", float("nan")),
        ("visit_scale_km", 0.0),
        ("commute_cutoff_km", float("inf")),
        ("stay_exponent", 1.0),
        ("stay_exponent", float("nan")),
        ("stay_exponent", float("inf")),
        ("stay_min_hours", 0.0),
        ("stay_min_hours", 13.0),
        ("stay_max_hours", 25.0),
        ("exploration", 2.0),
        ("home_sigma", 60.0),
        ("attraction_sigma", 60.0),
    ],
)
def test_impossible_values_are_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=name):
        CitySettings(**{name: value})


def test_settings_survive_plain_text():
    settings = CitySettings(people=7, kind="poi", start="2020-03-05")
    assert build(CitySettings, as_plain(settings)) == settings
    assert settings.first_weekday == 3
    assert CitySettings().first_weekday == 0
