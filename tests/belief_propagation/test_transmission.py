import numpy as np
import pytest
from scipy.stats import gamma

from epifalcon.belief_propagation.settings import (
    TRANSMISSION_MODELS,
    FieldSettings,
    TransmissionSettings,
)
from epifalcon.belief_propagation.transmission import Transmission, TransmissionFactor
from epifalcon.errors import SettingsError
from epifalcon.settings import as_plain, build

SETTINGS = TransmissionSettings(weight=2.0, strong_weight=6.0, common_weight=10.0)


def factors(transmission, infections, exposure, factor=1.0):
    """Estimated factors from regions' tallies, spread evenly over the days."""
    regions, days = len(infections), 2
    tally = np.zeros((2, days, 1 + regions))
    tally[0, :, 1:] = np.array(infections) / days
    tally[1, :, 1:] = np.array(exposure) * factor / days
    now = np.full((days, 1 + regions), factor)
    made = Transmission(transmission, SETTINGS)
    found = made.estimate(tally, TransmissionFactor(now, np.ones_like(now), now))
    assert (found.mean[:, 0] == 1).all()
    return found


def estimated(transmission, infections, exposure, factor=1.0):
    found = factors(transmission, infections, exposure, factor).mean
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape))
    return found[0, 1:]


@pytest.mark.parametrize("exposure", [3.0, 35.0, 44.0, 90.0])
def test_one_global_rate_is_the_most_likely_on_a_grid(exposure):
    """A sweep moves half of the way to it, from any start."""
    grid = np.geomspace(0.05, 20, 400_001)
    prior = -np.sqrt(40) * np.abs(np.log(grid))
    wanted = grid[np.argmax(40 * np.log(grid) - exposure * grid + prior)]
    for now in (1.0, 3.0, wanted):
        found = estimated("global", [30, 10, 0], [exposure / 2, exposure / 2, 0], now)
        np.testing.assert_allclose(found, np.sqrt(wanted * now), rtol=1e-4)


def test_the_pathogen_s_rate_is_used_unless_tests_contradict_it():
    assert (estimated("global", [30, 10, 0], [20, 20, 5]) == 1).all()
    assert (estimated("global", [30, 10, 0], [10, 10, 5]) > 1).all()
    assert (estimated("global", [30, 10, 0], [30, 30, 5]) < 1).all()


def test_without_any_infection_a_rate_is_still_one():
    for transmission in TRANSMISSION_MODELS:
        found = factors(transmission, [0] * 3, [0] * 3)
        np.testing.assert_allclose(found.mean, 1.0, 1e-9)
    assert (estimated("global", [0, 0, 0], [0.5, 0.2, 0]) == 1).all()
    found = estimated("global", [0, 0, 0], [2, 2, 0])
    np.testing.assert_allclose(found, np.sqrt(1 / 4))


@pytest.mark.parametrize(
    ("transmission", "weight"), [("regional", 2.0), ("regional-strong", 6.0)]
)
def test_each_region_s_rate_is_a_gamma_posterior(transmission, weight):
    """Mean and mean logarithm by integration; the prior's mean converges."""
    infections, exposure = np.array([30.0, 10, 0]), np.array([10.0, 8, 2])
    found = factors(transmission, infections, exposure)
    expected = found.expected[0, 1]
    np.testing.assert_allclose(found.expected[:, 1:], expected)
    grid = np.geomspace(1e-6, 100, 400_001)
    for region in range(3):
        log_posterior = gamma.logpdf(grid, weight, scale=expected / weight)
        log_posterior += infections[region] * np.log(grid) - exposure[region] * grid
        chance = np.exp(log_posterior - log_posterior.max()) * grid
        chance /= chance.sum()
        mean = (chance * grid).sum()
        geometric_ratio = np.exp((chance * np.log(grid)).sum())
        np.testing.assert_allclose(found.mean[0, 1 + region], mean, 1e-4)
        np.testing.assert_allclose(
            found.geometric_ratio[0, 1 + region], geometric_ratio / mean, 1e-3
        )
    own = (infections + weight) / (exposure + weight / expected)
    assert expected == pytest.approx((own.sum() + 10) / (3 + 10), rel=1e-3)
    # Exposure is counted at the rate of the sweep in which it was measured.
    again = factors(transmission, infections, exposure, 3.0)
    np.testing.assert_allclose(again.mean, found.mean)


@pytest.mark.parametrize(
    "wrong",
    [
        {"transmission": "two"},
        {"weight": 0.0},
        {"from_sweep": 1},
        {"among": ("two",)},
        {"among": ()},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TransmissionSettings(**wrong)


def test_settings_under_their_older_names_still_load():
    older = {
        "renewed": 0.7,
        "caution": 0.5,
        "slower": 0.9,
        "kept": False,
        "region": {"law": "mild", "among": ["one", "apart"], "mild_weight": 3.0},
    }
    region = TransmissionSettings(
        transmission="regional-strong", among=("fixed", "regional"), strong_weight=3.0
    )
    made = build(FieldSettings, older, "field")
    assert made == FieldSettings(
        damping=0.3,
        damping_decay=0.5,
        damping_backoff=0.9,
        save_messages=False,
        region=region,
    )
    assert build(FieldSettings, as_plain(made)) == made
    for wrong in ({"renewed": "much"}, {"renewed": 2}, {"region": {"law": "two"}}):
        with pytest.raises(SettingsError, match=r"renewed|damping|law"):
            build(FieldSettings, wrong, "field")


def test_a_rate_is_estimated_unless_the_settings_fix_it():
    assert "fixed" not in TransmissionSettings().candidates
    assert TransmissionSettings(transmission="fixed").candidates == ("fixed",)
    settings = TransmissionSettings(among=("regional", "fixed"))
    assert settings.candidates == ("fixed", "regional")
