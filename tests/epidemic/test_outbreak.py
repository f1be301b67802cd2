import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.epidemic.outbreak import (
    ASYMPTOMATIC,
    EXPOSED,
    STATES,
    SUSCEPTIBLE,
    SYMPTOMATIC,
    Outbreak,
)
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.store import Origin
from tests.epidemic.worlds import FAST, mixing_city, rules

CASES = settings(max_examples=40, deadline=None, derandomize=True)
CITY = mixing_city(people=120, regions=9)
RULE = OutbreakSettings(seed_count=6, onset_rate=3.0)


def outbreak_of(seed=1, rule=RULE):
    return simulate(CITY, FAST, rule, np.random.default_rng(seed))


def plain_state(outbreak, person, slot):
    """The state at the end of a slot, one person at a time."""
    latest = SUSCEPTIBLE
    newly = ASYMPTOMATIC if outbreak.settings.model == "sir" else EXPOSED
    steps = (
        (outbreak.infection_slot, newly),
        (outbreak.infectious_slot, ASYMPTOMATIC),
        (outbreak.onset_slot, SYMPTOMATIC),
        (outbreak.recovery_slot, 4),
    )
    for when, state in steps:
        if 0 <= when[person] <= slot:
            latest = state
    return latest


@CASES
@given(rules(), st.integers(0, 2**32))
def test_states_are_conserved_and_only_move_forward(rule, seed):
    rule = dataclasses.replace(rule, kappa=1.0)
    outbreak = outbreak_of(seed, rule)
    states = np.stack([outbreak.state_at(slot) for slot in range(CITY.slots)])
    assert (np.diff(states, axis=0) >= 0).all()
    if rule.model == "sir":
        assert not (states == EXPOSED).any()
    for slot in (0, 7, CITY.slots - 1):
        expected = [plain_state(outbreak, who, slot) for who in range(CITY.people)]
        np.testing.assert_array_equal(states[slot], expected)
    counts = outbreak.counts_by_day()
    ends = states[CITY.clock.slots_per_day - 1 :: CITY.clock.slots_per_day]
    expected = [(ends == state).sum(axis=1) for state in range(len(STATES))]
    np.testing.assert_array_equal(counts.T, expected)
    cumulative = outbreak.seeds.sum() + outbreak.new_cases_by_day().cumsum()
    np.testing.assert_array_equal(CITY.people - counts[:, SUSCEPTIBLE], cumulative)


def test_people_with_a_state_at_the_end_are_infected():
    outbreak = outbreak_of()
    states = outbreak.state_at(-1)
    np.testing.assert_array_equal(states > 0, outbreak.ever_infected())
    assert outbreak.infected_share == (states > 0).mean()
    secondary = outbreak.secondary_cases()
    assert secondary.sum() == outbreak.new_cases_by_day().sum() > 20
    busiest = secondary.argmax()
    assert secondary[busiest] == (outbreak.source_person == busiest).sum()
    with pytest.raises(SettingsError, match="slot=24 must lie between 0 and 23"):
        outbreak.state_at(24)


def test_regions_against_the_loop():
    outbreak = outbreak_of()
    regions, days = len(CITY.regions), CITY.clock.days
    expected = np.zeros((regions, days), int)
    for slot, here in enumerate(CITY.by_slot):
        for person, region in enumerate(here):
            begin = outbreak.infectious_slot[person]
            end = outbreak.recovery_slot[person]
            if region >= 0 <= begin <= slot and (end < 0 or slot < end):
                expected[region, CITY.clock.day_of_slot(slot)] += 1
    found = outbreak.infectious_by_region_and_day(CITY)
    np.testing.assert_array_equal(found, expected)


UNEVEN = dataclasses.replace(RULE, regional_sigma=1.5, dispersion=0.5)


@pytest.mark.parametrize("rule", [RULE, UNEVEN], ids=["even", "uneven"])
def test_saved_and_loaded(rule, tmp_path):
    outbreak = outbreak_of(rule=rule)
    outbreak.save(tmp_path / "o", Origin.now({}, 1))
    again = Outbreak.load(tmp_path / "o")
    for field in dataclasses.fields(Outbreak):
        mine, read = getattr(outbreak, field.name), getattr(again, field.name)
        if field.name != "variation":
            assert np.array_equal(mine, read), field.name
    mine, read = outbreak.variation.arrays(), again.variation.arrays()
    assert mine.keys() == read.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, read[name])
    with pytest.raises(ValueError, match="read-only"):
        again.infection_slot[0] = 3


def saved_otherwise(outbreak, folder, without, arrays=()):
    """The record with some settings and arrays left out."""
    outbreak.save(folder / "whole", Origin.now({}, 1))
    stored = store.read(folder / "whole", "outbreak")
    selected = {key: each for key, each in stored.arrays.items() if key not in arrays}
    meta = dict(stored.meta)
    old = meta["settings"].items()
    meta["settings"] = {key: value for key, value in old if key not in without}
    store.write(folder / "o", "outbreak", selected, meta=meta, origin=stored.origin)
    return folder / "o"


def test_a_record_from_before_regions_differed_is_read(tmp_path):
    outbreak = outbreak_of()
    old = saved_otherwise(outbreak, tmp_path, ("regional_sigma", "dispersion"))
    again = Outbreak.load(old)
    assert again.settings == outbreak.settings
    assert again.variation.arrays() == {}


def test_a_record_that_lost_its_factors_is_refused(tmp_path):
    whole = outbreak_of(rule=UNEVEN)
    poor = saved_otherwise(whole, tmp_path, (), ("regional_factor",))
    with pytest.raises(DataError, match="require regional_factor"):
        Outbreak.load(poor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": np.zeros(3, bool)}, "lengths must agree"),
        ({"infection_slot": np.zeros(120)}, "infection_slot is float64"),
        (
            {"infection_slot": np.full(120, 24, np.int32)},
            "infection_slot has values from 24",
        ),
        ({"source_person": np.full(120, 120, np.int32)}, "source_person has values"),
    ],
)
def test_impossible_records_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(outbreak_of(), **changes)
