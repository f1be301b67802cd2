import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.mobility.regions import Regions
from epifalcon.models.field.settings import LAWS, TransmissionSettings
from epifalcon.models.field.transmission import Transmission, nearness

SETTINGS = TransmissionSettings(weight=2.0, common_weight=10.0, reach_km=1.0)
REGIONS = Regions("area", np.array([[0.0, 0.0], [0.5, 0.0], [90.0, 0.0]]))


def estimated(law, caught, borne, factor=1.0, days=2):
    """The factors of regions by their tallies, dealt over the days."""
    tally = np.zeros((2, days, 4))
    tally[0, :, 1:] = np.array(caught) / days
    tally[1, :, 1:] = np.array(borne) * factor / days
    now = np.full((days, 4), factor)
    made = Transmission.of(law, SETTINGS, REGIONS)
    found = made.estimate(tally, now)
    assert (found == found[0]).all()
    assert found[0, 0] == 1
    return found[0, 1:]


def test_one_common_rate_is_anchored_at_the_pathogen_s():
    found = estimated("scaled", [30, 10, 0], [10, 8, 2])
    np.testing.assert_allclose(found, (40 + 10) / (20 + 10))


def test_each_region_s_own_rate_is_the_closed_form():
    caught, borne = np.array([30.0, 10, 0]), np.array([10.0, 8, 2])
    common = (40 + 10) / (20 + 10)
    around = common
    wanted = (caught + 2) / (borne + 2 / around)
    np.testing.assert_allclose(estimated("apart", caught, borne), wanted)
    # What was borne is counted at the rate that was in force.
    np.testing.assert_allclose(estimated("apart", caught, borne, 3.0), wanted)


def test_near_regions_lend_each_other_strength():
    apart = estimated("apart", [30, 0, 0], [5, 0, 0])
    near = estimated("near", [30, 0, 0], [5, 0, 0])
    # Of the second region nothing is known but its neighbour; the third has none.
    assert near[1] > apart[1] + 0.2
    assert near[2] == pytest.approx(apart[2])


def test_without_any_infection_or_exposure_rates_stay_near_the_pathogen_s():
    for law in LAWS:
        np.testing.assert_allclose(estimated(law, [0, 0, 0], [0, 0, 0]), 1.0)


def test_a_region_without_a_place_is_near_none():
    centre = np.array([[0.0, 0.0], [np.nan, np.nan], [0.1, 0.0]])
    found = nearness(Regions("area", centre), 1.0).toarray()
    assert found[0, 2] == pytest.approx(np.exp(-0.1))
    assert not found[1].any()
    assert not found[:, 1].any()
    assert not found.diagonal().any()


@pytest.mark.parametrize("wrong", [{"law": "two"}, {"weight": 0.0}, {"from_sweep": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TransmissionSettings(**wrong)
