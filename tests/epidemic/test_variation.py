import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.reproduction_number import counted_r0
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import replay, simulate
from epifalcon.epidemic.sellke import Draws
from epifalcon.epidemic.variation import (
    EVEN,
    Variation,
    draw_factors,
    draw_infectiousness,
)
from epifalcon.errors import DataError, SettingsError
from epifalcon.streams import Streams
from tests.epidemic.worlds import FAST, mixing_city, rules, traces_of

CASES = settings(max_examples=60, deadline=None, derandomize=True)
CITY = mixing_city(people=200, regions=12)
SLOTS = ("infection_slot", "infectious_slot", "onset_slot", "recovery_slot")
UNEVEN = OutbreakSettings(seed_count=6, regional_sigma=1.5, dispersion=0.3)


def rng(seed=0):
    return np.random.default_rng(seed)


def same(one, other, names=(*SLOTS, "source_person", "source_region", "seeds")):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in names
    )


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
def test_an_even_world_takes_nothing_from_the_stream(rule, seed):
    even = dataclasses.replace(rule, kappa=1.0, regional_sigma=0.0, dispersion=None)
    stream = rng(seed)
    draws = Draws.sample(CITY.people, FAST, even, CITY.clock, stream)
    assert Variation.after(CITY, even, stream).arrays() == {}
    again = rng(seed)
    outbreak = simulate(CITY, FAST, even, again)
    assert stream.bit_generator.state == again.bit_generator.state
    assert same(outbreak, replay(CITY, FAST, even, draws))


def test_factors_of_1_are_the_even_world_bit_by_bit():
    even = dataclasses.replace(UNEVEN, regional_sigma=0.0, dispersion=None)
    draws = Draws.sample(CITY.people, FAST, UNEVEN, CITY.clock, rng())
    ones = Variation(np.ones(12), np.ones(CITY.people))
    varied = replay(CITY, FAST, UNEVEN, draws, variation=ones)
    assert varied.infected_share > 0.2
    # With weights of 1 the source is found by another way: only its rank may round.
    assert same(varied, replay(CITY, FAST, even, draws))


def test_each_part_has_a_stream_of_its_own():
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


@CASES
@given(st.integers(0, 2**32), st.sampled_from(["I/N", "I/S"]))
def test_doubled_factors_are_doubled_hazards(seed, contact):
    """Twice the factors against twice the resistance: the same outbreak."""
    rule = OutbreakSettings(
        seed_count=6, kappa=0.6, regional_sigma=1.0, contact=contact
    )
    draws = Draws.sample(CITY.people, FAST, rule, CITY.clock, rng(seed))
    factor = draw_factors(12, rule, rng(seed + 1))
    harder = dataclasses.replace(draws, resistance=2 * draws.resistance)
    one = replay(CITY, FAST, rule, draws, variation=Variation(factor))
    other = replay(CITY, FAST, rule, harder, variation=Variation(2 * factor))
    assert same(one, other)


def test_a_doubled_factor_doubles_the_hazard_of_its_region_alone():
    # One carrier in each of three regions; nine others with rising resistance.
    here = [0] * 10 + [1] * 10 + [2] * 10
    traces = traces_of([here])
    rule = OutbreakSettings(kappa=1.0, seed_people=(0, 10, 20), regional_sigma=1.0)
    draws = Draws.sample(30, FAST, rule, traces.clock, rng())
    dose = FAST.beta / 10
    steps = np.tile(np.linspace(0.5, 2.5, 10), 3) * dose
    draws = dataclasses.replace(draws, resistance=steps)
    for doubled in range(3):
        factor = np.ones(3)
        factor[doubled] = 2
        outbreak = replay(traces, FAST, rule, draws, variation=Variation(factor))
        expected = steps <= dose * factor[here]
        np.testing.assert_array_equal(
            outbreak.ever_infected(), expected | outbreak.seeds
        )


def test_a_person_who_counts_as_two_is_two():
    """Region 0: one carrier who counts as 2.5. Region 1: one who counts as nobody."""
    traces = traces_of([[0] * 10 + [1] * 10])
    rule = OutbreakSettings(kappa=1.0, seed_people=(0, 10), dispersion=1.0)
    draws = Draws.sample(20, FAST, rule, traces.clock, rng())
    steps = np.tile(np.linspace(0.1, 4, 10), 2) * FAST.beta / 10
    draws = dataclasses.replace(draws, resistance=steps)
    counts_as = np.ones(20)
    counts_as[[0, 10]] = 2.5, 0.0
    outbreak = replay(traces, FAST, rule, draws, variation=Variation(None, counts_as))
    expected = (steps <= 2.5 * FAST.beta / 10) & (np.arange(20) < 10)
    np.testing.assert_array_equal(outbreak.ever_infected(), expected | outbreak.seeds)


def test_sources_are_chosen_in_proportion_to_infectiousness():
    people = 4000
    traces = traces_of([[0] * people])
    rule = OutbreakSettings(kappa=1.0, seed_people=(0, 1, 2), dispersion=1.0)
    draws = Draws.sample(people, FAST, rule, traces.clock, rng())
    draws = dataclasses.replace(draws, resistance=np.full(people, 1e-12))
    counts_as = np.ones(people)
    counts_as[:3] = 0.5, 0.0, 2.0
    outbreak = replay(traces, FAST, rule, draws, variation=Variation(None, counts_as))
    seen = np.bincount(outbreak.source_person[3:], minlength=3)
    assert seen[1] == 0
    expected = np.array([0.2, 0.8]) * (people - 3)
    assert stats.chisquare(seen[[0, 2]], expected).pvalue > 1e-3


def test_super_spreaders_make_cases_uneven():
    even = OutbreakSettings(seed_count=20, kappa=0.4)
    few = dataclasses.replace(even, dispersion=0.1)
    city = mixing_city(people=1500, regions=60)

    def share_of_the_top(rule):
        cases = np.sort(simulate(city, FAST, rule, rng(2)).secondary_cases())[::-1]
        return cases[:60].sum() / cases.sum()

    assert share_of_the_top(few) > 2 * share_of_the_top(even)


def test_counted_r0_has_the_mean_of_an_even_world():
    """Of rare infections R0 is linear in factors, and these have the mean 1."""
    rare = Pathogen(name="rare", beta=0.02, alpha=1.0, mu=0.5)
    city = mixing_city(people=400, regions=20)
    even = counted_r0(city, rare, OutbreakSettings(), rng(), 400)
    uneven = OutbreakSettings(regional_sigma=0.8, dispersion=0.5)
    varied = counted_r0(city, rare, uneven, rng(), 400)
    assert varied.standard_error > even.standard_error
    error = np.hypot(even.standard_error, varied.standard_error)
    assert varied.mean == pytest.approx(even.mean, abs=4 * error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regional_factor": np.ones(3)}, "regional_factor has 3 entries, expected 12"),
        ({"infectiousness": np.ones(3)}, "infectiousness has 3 entries, expected 200"),
        ({"regional_factor": None}, "ask for regional_factor"),
        ({"infectiousness": None}, "ask for infectiousness"),
    ],
)
def test_a_variation_that_does_not_fit_is_refused(changes, message):
    draws = Draws.sample(CITY.people, FAST, UNEVEN, CITY.clock, rng())
    good = Variation.sample(CITY, UNEVEN, Streams(0))
    with pytest.raises(DataError, match=message):
        replay(
            CITY, FAST, UNEVEN, draws, variation=dataclasses.replace(good, **changes)
        )


def test_impossible_values_are_refused():
    for wrong in (np.array([1.0, -0.1]), np.array([np.nan]), np.array([np.inf])):
        with pytest.raises(DataError, match="finite and 0 or more"):
            Variation(wrong)
    with pytest.raises(DataError, match="regional_factor is int64 of 1 axes"):
        Variation(np.ones(3, np.int64))
    for name, value in (("regional_sigma", -1.0), ("dispersion", 0.0)):
        with pytest.raises(SettingsError, match=f"{name}={value}"):
            OutbreakSettings(**{name: value})
    even = dataclasses.replace(UNEVEN, regional_sigma=0.0, dispersion=None)
    draws = Draws.sample(CITY.people, FAST, even, CITY.clock, rng())
    with pytest.raises(DataError, match="know no regional_factor"):
        replay(CITY, FAST, even, draws, variation=Variation(np.ones(12)))
    assert not EVEN.arrays()
