import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from epifalcon.epidemic.outbreak import EXPOSED
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.seir import replay, simulate
from epifalcon.epidemic.sellke import HOMOGENEOUS, SellkeDraws, Variation
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.streams import Streams
from tests.epidemic.worlds import FAST, mixing_city, pathogens, rules, traces_of
from tests.oracles.cities import cities
from tests.oracles.seir_loop import loop_with_draws, world_of

CASES = settings(max_examples=150, deadline=None, derandomize=True)
FIELDS = (
    "infection_slot",
    "infectious_slot",
    "onset_slot",
    "recovery_slot",
    "source_person",
    "source_region",
)


def rng(seed=0):
    return np.random.default_rng(seed)


def run(traces, pathogen, rule, seed):
    """Draws and outbreak; kappa "r0" needs people to observe, and infectious ones."""
    harmless = rule.asymptomatic_weight == rule.symptomatic_share == 0
    if harmless or (traces.by_slot < 0).all():
        rule = dataclasses.replace(rule, kappa=1.0)
    stream = rng(seed)
    draws = SellkeDraws.sample(traces.people, pathogen, rule, traces.clock, stream)
    variation = HOMOGENEOUS
    if not rule.even:
        seed = int(stream.integers(2**63))
        variation = Variation.sample(traces, rule, Streams(seed))
    return draws, replay(traces, pathogen, rule, draws, variation)


def require_equal(traces, draws, outbreak):
    story = loop_with_draws(world_of(traces, outbreak), draws)
    for name in FIELDS:
        expected = getattr(story, name)
        np.testing.assert_array_equal(getattr(outbreak, name), expected, name)


@CASES
@given(cities(), pathogens(), rules(), st.integers(0, 2**32))
def test_equals_the_loop_with_the_same_draws(traces, pathogen, rule, seed):
    require_equal(traces, *run(traces, pathogen, rule, seed))


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("contact", ["I/N", "I/S"])
@pytest.mark.parametrize("uneven", [{}, {"regional_sigma": 0.7, "dispersion": 1.5}])
def test_equals_the_loop_in_a_larger_city(contact, weight, uneven):
    traces = mixing_city(people=600, regions=25, days=7)
    rule = OutbreakSettings(
        contact=contact, asymptomatic_weight=weight, seed_count=9, **uneven
    )
    draws, outbreak = run(traces, FAST, rule, 3)
    assert outbreak.infected_share > 0.1
    require_equal(traces, draws, outbreak)


def test_sources_are_chosen_in_proportion_to_weight():
    # Three carriers, of whom the last has symptoms, and many who are infected at once.
    people = 4000
    traces = traces_of([[0] * people] * 2)
    draws = SellkeDraws(
        threshold=np.full(people, 1e-12),
        seed_order=np.arange(people, dtype=float),
        source_choice=rng(1).random(people),
        latent_slots=np.ones(people, np.int32),
        infectious_slots=np.full(people, 9, np.int32),
        onset_slots=np.zeros(people, np.int32),
    )
    draws.onset_slots[2] = 1
    draws.threshold[:2000] = np.inf
    rule = OutbreakSettings(seed_count=3, asymptomatic_weight=0.25, kappa=1.0)
    first = replay(traces, FAST, rule, draws).source_person[2000:]
    assert stats.chisquare(np.bincount(first, minlength=3)).pvalue > 1e-3
    draws.threshold[2000:] = FAST.beta * 0.75 / people * 1.5
    second = replay(traces, FAST, rule, draws)
    assert (second.infection_slot[2000:] == 1).all()
    seen = np.bincount(second.source_person[2000:], minlength=3)
    expected = np.array([0.25, 0.25, 1]) / 1.5 * 2000
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_a_worked_example():
    """Four people, one day a slot, beta 1: every number can be checked by hand."""
    traces = traces_of([[0, 0, 1, 0], [0, 0, 0, -1], [0, 1, 0, 1], [2, 1, 2, 1]])
    draws = SellkeDraws(
        threshold=np.array([1.0, 0.6, 0.3, 0.9]),
        seed_order=np.array([0.0, 0.5, 0.5, 0.5]),
        source_choice=np.array([0.0, 0.0, 0.0, 0.0]),
        latent_slots=np.array([1, 1, 2, 1], np.int32),
        infectious_slots=np.array([3, 2, 1, 1], np.int32),
        onset_slots=np.array([2, 5, 0, 1], np.int32),
    )
    pathogen = Pathogen(name="daily", beta=1, alpha=1, mu=1)
    rule = OutbreakSettings(kappa=1.0, seed_count=1)
    outbreak = replay(traces, pathogen, rule, draws)
    # Slot 0: 0, 1 and 3 gather 1/3. Slot 1: 1 and 2 gather 1/3: both infected.
    # Slot 2: 1 and 3 are together, 1 infectious: 3 has 1/3 + 1/2 of its 0.9.
    # Slot 3: again together: 3 gathers 1/2 more and is infected by 1.
    np.testing.assert_array_equal(outbreak.infection_slot, [0, 1, 1, 3])
    np.testing.assert_array_equal(outbreak.infectious_slot, [0, 2, 3, -1])
    np.testing.assert_array_equal(outbreak.onset_slot, [2, -1, -1, -1])
    np.testing.assert_array_equal(outbreak.recovery_slot, [3, -1, -1, -1])
    np.testing.assert_array_equal(outbreak.source_person, [-1, 0, 0, 1])
    np.testing.assert_array_equal(outbreak.source_region, [-1, 0, 0, 1])


class TestSeeds:
    def seeds(self, traces=None, seed=0, **chosen):
        traces = mixing_city(people=200) if traces is None else traces
        rule = OutbreakSettings(kappa=1.0, **chosen)
        return np.flatnonzero(simulate(traces, FAST, rule, rng(seed)).seeds)

    def test_by_count_share_and_list(self):
        assert len(self.seeds(seed_count=7)) == 7
        assert len(self.seeds(seed_share=0.05)) == 10
        assert len(self.seeds(seed_share=1.0)) == 200
        assert self.seeds(seed_people=(9, 4)).tolist() == [4, 9]

    def test_everybody_is_as_likely(self):
        counts = np.zeros(200)
        for seed in range(400):
            counts[self.seeds(seed_count=10, seed=seed)] += 1
        assert stats.chisquare(counts).pvalue > 1e-3

    def test_more_seeds_keep_the_fewer(self):
        assert set(self.seeds(seed_count=5)) < set(self.seeds(seed_count=50))

    def test_by_region_of_the_first_observation(self):
        traces = traces_of([[0, 1, -1, -1, 1], [1, 1, 1, -1, 0]])
        chosen = self.seeds(traces, seed_regions=(1,), seed_share=1.0)
        assert chosen.tolist() == [1, 2, 4]

    @pytest.mark.parametrize(
        ("chosen", "message"),
        [
            ({"seed_count": 201}, "seed_count=201 is more than the 200 people"),
            ({"seed_people": (200,)}, "seed_people holds 200, the city has 200"),
            ({"seed_regions": (6,)}, "seed_regions holds 6, the city has 6"),
        ],
    )
    def test_impossible_seeds_are_named(self, chosen, message):
        with pytest.raises(SettingsError, match=message):
            self.seeds(**chosen)

    def test_exposed_seeds_infect_nobody_in_slot_0(self):
        traces = mixing_city(people=200)
        rule = OutbreakSettings(kappa=1e9, seed_count=20, seed_state="exposed")
        outbreak = simulate(traces, FAST, rule, rng())
        assert (outbreak.state_at(0) > 0).sum() == 20
        assert (outbreak.state_at(0)[outbreak.seeds] == EXPOSED).all()


def test_draws_of_another_city_are_refused():
    traces, rule = mixing_city(), OutbreakSettings(seed_count=1)
    draws = SellkeDraws.sample(3, FAST, rule, traces.clock, rng())
    with pytest.raises(DataError, match="draws are for 3 people, the traces have 40"):
        replay(traces, FAST, rule, draws)
