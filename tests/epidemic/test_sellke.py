import dataclasses

import numpy as np
import pytest
from scipy import stats

from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2, Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.sellke import Draws, whole_slots
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock

CLOCK = Clock(2, 365)
PEOPLE = 40_000


def sample(seed=0, pathogen=SARS_COV_2, clock=CLOCK, **changes):
    rng = np.random.default_rng(seed)
    return Draws.sample(PEOPLE, pathogen, OutbreakSettings(**changes), clock, rng)


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


def test_resistance_is_standard_exponential_and_choices_uniform():
    draws = sample()
    assert stats.kstest(draws.resistance, "expon").pvalue > 1e-3
    assert stats.kstest(draws.source_choice, "uniform").pvalue > 1e-3
    assert stats.kstest(draws.seed_order, "uniform").pvalue > 1e-3


def test_the_arrays_are_independent():
    draws = sample(symptomatic_share=1.0)
    correlation = stats.spearmanr(np.column_stack(list(vars(draws).values()))).statistic
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / np.sqrt(PEOPLE)


def test_symptomatic_share_decides_who_ever_has_symptoms():
    share = (sample(symptomatic_share=0.3).onset_slots > 0).mean()
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / PEOPLE))


def test_settings_change_the_translation_not_the_numbers():
    slow, quick = sample(), sample(pathogen=OMICRON, model="sir", chance="linear")
    np.testing.assert_array_equal(slow.resistance, quick.resistance)
    np.testing.assert_array_equal(slow.seed_order, quick.seed_order)
    assert (quick.latent_slots == 1).all()
    assert (sample(pathogen=OMICRON).latent_slots <= slow.latent_slots).all()


def test_waits_past_the_clock_stay_small_numbers():
    never = Pathogen(name="chronic", beta=1, alpha=1e-300, mu=1e-300)
    draws = sample(pathogen=never, clock=Clock(2, 14))
    assert (draws.latent_slots == 169).all()
    assert (draws.infectious_slots == 169).all()


def test_a_certain_event_takes_one_slot():
    times = np.array([0.0, 1e-9, 3.0, 40.0])
    np.testing.assert_array_equal(whole_slots(times, 24.0, "linear", Clock(2, 1)), 1)


def test_impossible_draws_are_refused():
    draws = sample()
    with pytest.raises(DataError, match="resistance must be greater than 0"):
        dataclasses.replace(draws, resistance=np.zeros(PEOPLE))
    with pytest.raises(DataError, match="latent_slots must be greater than 0"):
        dataclasses.replace(draws, latent_slots=np.zeros(PEOPLE, np.int32))
    with pytest.raises(DataError, match="lengths must agree"):
        dataclasses.replace(draws, resistance=np.ones(3))
