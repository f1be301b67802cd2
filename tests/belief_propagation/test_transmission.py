import numpy as np
import pytest
from scipy.stats import gamma

from epifalcon.belief_propagation.settings import LAWS, TransmissionSettings
from epifalcon.belief_propagation.transmission import Transmission, TransmissionFactor
from epifalcon.errors import SettingsError

SETTINGS = TransmissionSettings(weight=2.0, mild_weight=6.0, common_weight=10.0)


def factors(law, caught, borne, factor=1.0):
    """What a law makes of regions' tallies, dealt evenly over the days."""
    regions, days = len(caught), 2
    tally = np.zeros((2, days, 1 + regions))
    tally[0, :, 1:] = np.array(caught) / days
    tally[1, :, 1:] = np.array(borne) * factor / days
    now = np.full((days, 1 + regions), factor)
    made = Transmission(law, SETTINGS)
    found = made.estimate(tally, TransmissionFactor(now, np.ones_like(now), now))
    assert (found.mean[:, 0] == 1).all()
    return found


def estimated(law, caught, borne, factor=1.0):
    found = factors(law, caught, borne, factor).mean
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape))
    return found[0, 1:]


@pytest.mark.parametrize("borne", [3.0, 35.0, 44.0, 90.0])
def test_one_common_rate_is_the_likeliest_by_a_grid(borne):
    """Half of the way to it is gone in a sweep, from wherever it stands."""
    grid = np.geomspace(0.05, 20, 400_001)
    prior = -np.sqrt(40) * np.abs(np.log(grid))
    wanted = grid[np.argmax(40 * np.log(grid) - borne * grid + prior)]
    for now in (1.0, 3.0, wanted):
        found = estimated("scaled", [30, 10, 0], [borne / 2, borne / 2, 0], now)
        np.testing.assert_allclose(found, np.sqrt(wanted * now), rtol=1e-4)


def test_the_pathogen_s_rate_is_believed_until_tests_speak_against_it():
    assert (estimated("scaled", [30, 10, 0], [20, 20, 5]) == 1).all()
    assert (estimated("scaled", [30, 10, 0], [10, 10, 5]) > 1).all()
    assert (estimated("scaled", [30, 10, 0], [30, 30, 5]) < 1).all()


def test_without_any_infection_a_rate_is_still_one():
    for law in LAWS:
        np.testing.assert_allclose(factors(law, [0] * 3, [0] * 3).mean, 1.0, 1e-9)
    assert (estimated("scaled", [0, 0, 0], [0.5, 0.2, 0]) == 1).all()
    found = estimated("scaled", [0, 0, 0], [2, 2, 0])
    np.testing.assert_allclose(found, np.sqrt(1 / 4))


@pytest.mark.parametrize(("law", "weight"), [("apart", 2.0), ("mild", 6.0)])
def test_each_region_s_rate_is_a_gamma_posterior(law, weight):
    """Mean and mean logarithm by integration; the prior's mean comes to rest."""
    caught, borne = np.array([30.0, 10, 0]), np.array([10.0, 8, 2])
    found = factors(law, caught, borne)
    expected = found.expected[0, 1]
    np.testing.assert_allclose(found.expected[:, 1:], expected)
    grid = np.geomspace(1e-6, 100, 400_001)
    for region in range(3):
        log_posterior = gamma.logpdf(grid, weight, scale=expected / weight)
        log_posterior += caught[region] * np.log(grid) - borne[region] * grid
        chance = np.exp(log_posterior - log_posterior.max()) * grid
        chance /= chance.sum()
        mean = (chance * grid).sum()
        typical = np.exp((chance * np.log(grid)).sum())
        np.testing.assert_allclose(found.mean[0, 1 + region], mean, 1e-4)
        np.testing.assert_allclose(found.typical[0, 1 + region], typical / mean, 1e-3)
    own = (caught + weight) / (borne + weight / expected)
    assert expected == pytest.approx((own.sum() + 10) / (3 + 10), rel=1e-3)
    # What was borne is counted at the rate that was in force.
    again = factors(law, caught, borne, 3.0)
    np.testing.assert_allclose(again.mean, found.mean)


@pytest.mark.parametrize(
    "wrong",
    [
        {"law": "two"},
        {"weight": 0.0},
        {"from_sweep": 1},
        {"among": ("two",)},
        {"among": ()},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TransmissionSettings(**wrong)


def test_a_rate_is_estimated_unless_the_settings_fix_it():
    assert "one" not in TransmissionSettings().laws
    assert TransmissionSettings(law="one").laws == ("one",)
    assert TransmissionSettings(among=("apart", "one")).laws == ("one", "apart")
