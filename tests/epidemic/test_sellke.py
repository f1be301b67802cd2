import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2, Pathogen
from epifalcon.epidemic.reproduction_number import empirical_r0
from epifalcon.epidemic.seir import replay, simulate
from epifalcon.epidemic.sellke import (
    HOMOGENEOUS,
    SellkeDraws,
    Variation,
    draw_factors,
    draw_infectiousness,
    whole_slots,
)
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.streams import Streams
from tests.epidemic.worlds import FAST, mixing_city, rules

CLOCK = Clock(2, 365)
PEOPLE = 40_000


def sample(seed=0, pathogen=SARS_COV_2, clock=CLOCK, **changes):
    rng = np.random.default_rng(seed)
    return SellkeDraws.sample(PEOPLE, pathogen, OutbreakSettings(**changes), clock, rng)


@pytest.mark.parametrize("chance", ["exponential", "linear"])
@pytest.mark.parametrize(
    ("name", "rate"),
    [("latent_slots", 0.2564), ("infectious_slots", 0.071), ("onset_slots", 0.5)],
)
def test_waits_are_geometric_with_the_chance_of_a_slot(name, rate, chance):
    draws = sample(chance=chance, symptomatic_share=1.0)
    step = rate * CLOCK.slot_days
    p = step if chance == "linear" else 1 - np.exp(-step)
    waits = getattr(draws, name)
    cells = np.unique(stats.geom.ppf(np.linspace(0.05, 0.95, 19), p))
    edges = np.concatenate([[0], cells, [np.inf]])
    seen = np.histogram(waits, np.concatenate([[1], cells + 1, [1e9]]))[0]
    expected = np.diff(stats.geom.cdf(edges, p)) * PEOPLE
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_thresholds_are_standard_exponential_and_choices_uniform():
    draws = sample()
    assert stats.kstest(draws.threshold, "expon").pvalue > 1e-3
    assert stats.kstest(draws.source_choice, "uniform").pvalue > 1e-3
    assert stats.kstest(draws.seed_order, "uniform").pvalue > 1e-3


def test_the_arrays_are_independent():
    draws = sample(symptomatic_share=1.0)
    correlation = stats.spearmanr(np.column_stack(list(vars(draws).values()))).statistic
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / np.sqrt(PEOPLE)


def test_settings_change_the_translation_not_the_numbers():
    slow, quick = sample(), sample(pathogen=OMICRON, model="sir", chance="linear")
    np.testing.assert_array_equal(slow.threshold, quick.threshold)
    np.testing.assert_array_equal(slow.seed_order, quick.seed_order)
    assert (quick.latent_slots == 1).all()
    share = (sample(symptomatic_share=0.3).onset_slots > 0).mean()
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / PEOPLE))
    never = Pathogen(name="chronic", beta=1, alpha=1e-300, mu=1e-300)
    assert (sample(pathogen=never).latent_slots == CLOCK.slots + 1).all()
    assert whole_slots(np.array([0.0, 40.0]), 24.0, "linear", CLOCK).tolist() == [1, 1]
    assert (sample(pathogen=OMICRON).latent_slots <= slow.latent_slots).all()


CASES = settings(max_examples=60, deadline=None, derandomize=True)
CITY = mixing_city(people=200, regions=12)
SLOTS = ("infection_slot", "infectious_slot", "onset_slot", "recovery_slot")
UNEVEN = OutbreakSettings(seed_count=6, regional_sigma=1.5, dispersion=0.3)


def rng(seed=0):
    return np.random.default_rng(seed)


def same(one, other, names=(*SLOTS, "source_person", "source_region", "seeds")):
    pairs = ((getattr(one, name), getattr(other, name)) for name in names)
    return all(np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.5])
def test_factors_are_log_normal_and_of_mean_1(sigma):
    factor = draw_factors(200_000, OutbreakSettings(regional_sigma=sigma), rng(4))
    error = np.sqrt(np.expm1(sigma**2) / len(factor))
    assert factor.mean() == pytest.approx(1, abs=4 * error)
    normal = (np.log(factor[:5000]) + sigma**2 / 2) / sigma
    assert stats.kstest(normal, "norm").pvalue > 1e-3


@pytest.mark.parametrize("shape", [0.1, 0.5, 4.0])
def test_infectiousness_is_gamma_and_of_mean_1(shape):
    rule = OutbreakSettings(dispersion=shape)
    counts_as = draw_infectiousness(200_000, rule, rng(3))
    error = np.sqrt(1 / shape / len(counts_as))
    assert counts_as.mean() == pytest.approx(1, abs=4 * error)
    expected = stats.gamma(shape, scale=1 / shape)
    assert stats.kstest(counts_as[:5000], expected.cdf).pvalue > 1e-3


@CASES
@given(rules(), st.integers(0, 2**32))
def test_a_homogeneous_city_draws_nothing_from_the_stream(rule, seed):
    even = dataclasses.replace(rule, kappa=1.0, regional_sigma=0.0, dispersion=None)
    stream = rng(seed)
    draws = SellkeDraws.sample(CITY.people, FAST, even, CITY.clock, stream)
    again = rng(seed)
    outbreak = simulate(CITY, FAST, even, again)
    assert stream.bit_generator.state == again.bit_generator.state
    assert same(outbreak, replay(CITY, FAST, even, draws))


def test_each_part_has_a_separate_stream():
    both = Variation.sample(CITY, UNEVEN, Streams(5))
    factor, infectiousness = (
        dataclasses.replace(UNEVEN, **change)
        for change in ({"dispersion": None}, {"regional_sigma": 0.0})
    )
    alone = Variation.sample(CITY, factor, Streams(5))
    np.testing.assert_array_equal(alone.regional_factor, both.regional_factor)
    assert alone.infectiousness is None
    alone = Variation.sample(CITY, infectiousness, Streams(5))
    np.testing.assert_array_equal(alone.infectiousness, both.infectiousness)
    assert alone.regional_factor is None
    # The same z whatever the spread.
    small = dataclasses.replace(UNEVEN, regional_sigma=0.5)
    log = np.log(Variation.sample(CITY, small, Streams(5)).regional_factor)
    wide = np.log(both.regional_factor)
    np.testing.assert_allclose((log + 0.125) / 0.5, (wide + 1.125) / 1.5)


def test_empirical_r0_has_the_mean_of_a_homogeneous_city():
    """Of rare infections R0 is linear in factors, and these have the mean 1."""
    rare = Pathogen(name="rare", beta=0.02, alpha=1.0, mu=0.5)
    city = mixing_city(people=400, regions=20)
    even = empirical_r0(city, rare, OutbreakSettings(), rng(), 400)
    uneven = OutbreakSettings(regional_sigma=0.8, dispersion=0.5)
    varied = empirical_r0(city, rare, uneven, rng(), 400)
    assert varied.standard_error > even.standard_error
    error = np.hypot(even.standard_error, varied.standard_error)
    assert varied.mean == pytest.approx(even.mean, abs=4 * error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regional_factor": np.ones(3)}, "regional_factor has 3 entries, expected 12"),
        ({"infectiousness": np.ones(3)}, "infectiousness has 3 entries, expected 200"),
        ({"regional_factor": None}, "require regional_factor"),
        ({"infectiousness": None}, "require infectiousness"),
    ],
)
def test_a_variation_that_does_not_fit_is_refused(changes, message):
    draws = SellkeDraws.sample(CITY.people, FAST, UNEVEN, CITY.clock, rng())
    good = Variation.sample(CITY, UNEVEN, Streams(0))
    variation = dataclasses.replace(good, **changes)
    with pytest.raises(DataError, match=message):
        replay(CITY, FAST, UNEVEN, draws, variation=variation)


def test_impossible_variations_are_refused():
    for wrong in (np.array([1.0, -0.1]), np.array([np.nan]), np.array([np.inf])):
        with pytest.raises(DataError, match="finite and 0 or more"):
            Variation(wrong)
    with pytest.raises(DataError, match="regional_factor is int64 of 1 axes"):
        Variation(np.ones(3, np.int64))
    even = dataclasses.replace(UNEVEN, regional_sigma=0.0, dispersion=None)
    draws = SellkeDraws.sample(CITY.people, FAST, even, CITY.clock, rng())
    with pytest.raises(DataError, match="do not allow regional_factor"):
        replay(CITY, FAST, even, draws, variation=Variation(np.ones(12)))
    assert not HOMOGENEOUS.arrays()
