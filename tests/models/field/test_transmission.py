import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import gamma

from epifalcon.errors import SettingsError
from epifalcon.mobility.flows import Flows
from epifalcon.mobility.regions import Regions
from epifalcon.models.field.settings import (
    LAWS,
    NetworkSettings,
    TransmissionSettings,
)
from epifalcon.models.field.transmission import Factor, Transmission, nearness

SETTINGS = TransmissionSettings(
    weight=2.0, mild_weight=6.0, common_weight=10.0, reach_km=1.0
)
REGIONS = Regions("area", np.array([[0.0, 0.0], [0.5, 0.0], [90.0, 0.0]]))


def flows_of(moves, days=2):
    counts = sp.csr_array(np.array(moves))
    regions = counts.shape[0]
    none = np.zeros((days, regions), np.int64)
    return Flows(sp.vstack([counts] * days, format="csr"), none, none)


FLOWS = flows_of([[0, 0, 5], [0, 0, 0], [5, 0, 0]])


def factors(law, caught, borne, factor=1.0, settings=SETTINGS, flows=FLOWS):
    """What a law makes of regions' tallies, dealt evenly over the days."""
    regions, days = len(caught), 2
    tally = np.zeros((2, days, 1 + regions))
    tally[0, :, 1:] = np.array(caught) / days
    tally[1, :, 1:] = np.array(borne) * factor / days
    now = np.full((days, 1 + regions), factor)
    places = REGIONS if regions == 3 else Regions("area", np.zeros((regions, 2)))
    made = Transmission.of(law, settings, places, lambda: flows)
    found = made.estimate(tally, Factor(now, np.ones_like(now), now), 3)
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
    assert (estimated("scaled", [0, 0, 0], [0, 0, 0]) == 1).all()
    assert (estimated("scaled", [0, 0, 0], [0.5, 0.2, 0]) == 1).all()
    found = estimated("scaled", [0, 0, 0], [2, 2, 0])
    np.testing.assert_allclose(found, np.sqrt(1 / 4))


def test_each_day_s_rate_is_its_own_and_drawn_to_the_common_one():
    tally = np.zeros((2, 2, 4))
    tally[0, 0, 1:], tally[0, 1, 1:] = [30, 0, 0], [1, 1, 0]
    tally[1, :, 1:] = 5
    even = np.ones((2, 4))
    made = Transmission.of("daily", SETTINGS, REGIONS, lambda: FLOWS)
    found = made.estimate(tally, Factor(even, even, even), 3).mean[:, 1:]
    # All together they are within the doubt of the pathogen's rate.
    wanted = [(30 + 10) / (15 + 10), (2 + 10) / (15 + 10)]
    np.testing.assert_allclose(found, np.sqrt(np.repeat([wanted], 3, 0).T))


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


def test_near_regions_lend_each_other_strength():
    apart = estimated("apart", [30, 0, 0], [5, 0, 0])
    near = estimated("near", [30, 0, 0], [5, 0, 0])
    # Of the second region nothing is known but its neighbour; the third has none.
    assert near[1] > apart[1] + 0.2
    assert near[2] == pytest.approx(apart[2])


def test_regions_between_which_people_go_lend_each_other_strength():
    apart = estimated("apart", [30, 0, 0], [5, 0, 0])
    flows = estimated("flows", [30, 0, 0], [5, 0, 0])
    assert flows[2] > apart[2] + 0.2
    assert flows[1] == pytest.approx(apart[1])


def test_the_network_tells_regions_by_those_people_come_from():
    """Two halves of a city, one with thrice the transmission; flows within halves."""
    rng = np.random.default_rng(0)
    regions = 40
    fast = np.arange(regions) < regions // 2
    moves = rng.poisson(3.0, (regions, regions)) * (fast[:, None] == fast)
    np.fill_diagonal(moves, 0)
    borne = np.full(regions, 6.0)
    caught = rng.poisson(borne * np.where(fast, 1.5, 0.5)).astype(float)
    network = NetworkSettings(steps=80)
    settings = TransmissionSettings(network=network)
    found = factors("dcrnn", caught, borne, settings=settings, flows=flows_of(moves))
    expected = found.expected[0, 1:]
    assert expected[fast].mean() > 1.5 * expected[~fast].mean()
    assert (expected[fast] > expected[~fast].max()).mean() > 0.8


def test_the_network_is_trained_anew_now_and_then_only():
    made = Transmission.of("dcrnn", SETTINGS, REGIONS, lambda: FLOWS)
    tally = np.ones((2, 2, 4))
    before = Factor(np.ones((2, 4)), np.ones((2, 4)), np.full((2, 4), 2.0))
    kept = made.estimate(tally, before, SETTINGS.from_sweep + 1)
    np.testing.assert_array_equal(kept.expected[:, 1:], 2.0)
    anew = made.estimate(tally, before, SETTINGS.from_sweep)
    assert (anew.expected[:, 1:] != 2.0).all()


def test_without_any_infection_or_exposure_rates_stay_near_the_pathogen_s():
    for law in LAWS:
        found = factors(law, [0, 0, 0], [0, 0, 0])
        within = 0.5 if law == "dcrnn" else 1e-9
        np.testing.assert_allclose(found.mean, 1.0, within)


def test_a_region_without_a_place_is_near_none():
    centre = np.array([[0.0, 0.0], [np.nan, np.nan], [0.1, 0.0]])
    found = nearness(Regions("area", centre), 1.0).toarray()
    assert found[0, 2] == pytest.approx(np.exp(-0.1))
    assert not found[1].any()
    assert not found[:, 1].any()
    assert not found.diagonal().any()


@pytest.mark.parametrize(
    "wrong",
    [{"law": "two"}, {"weight": 0.0}, {"from_sweep": 1}, {"among": ("two",)}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TransmissionSettings(**wrong)


def test_a_choice_needs_something_to_choose_from():
    with pytest.raises(SettingsError, match="among"):
        TransmissionSettings(among=())
