from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2, Pathogen
from epifalcon.epidemic.reproduction_number import (
    empirical_r0,
    expected_cases,
    hazard_r0,
    mean_share_of_others,
    resolve_kappa,
    slot_hazard,
)
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError
from tests.epidemic.worlds import mixing_city, traces_of
from tests.oracles.cities import cities

CASES = settings(max_examples=60, deadline=None, derandomize=True)


@CASES
@given(cities())
def test_mean_share_of_others_equals_the_loop(traces):
    over_all, somebody = [], []
    for here in traces.by_slot.tolist():
        for region in here:
            if region >= 0:
                crowd = here.count(region)
                over_all.append(1 - 1 / crowd)
                somebody.append(crowd > 1)
    if not over_all:
        with pytest.raises(DataError, match="nobody was observed"):
            mean_share_of_others(traces)
        return
    for term, shares in (("I/N", over_all), ("I/S", somebody)):
        found = mean_share_of_others(traces, term)
        assert found == pytest.approx(np.mean(shares), abs=1e-12)


@pytest.mark.parametrize("contact", ["I/N", "I/S"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_kappa_gives_the_hazard_r0_of_the_pathogen(contact, weight):
    traces = mixing_city()
    rule = OutbreakSettings(contact=contact, asymptomatic_weight=weight)
    for pathogen in (SARS_COV_2, OMICRON):
        kappa = resolve_kappa(traces, pathogen, rule)
        assert hazard_r0(traces, pathogen, rule, kappa) == pytest.approx(pathogen.r0)


def test_kappa_is_1_where_no_factor_helps():
    alone = traces_of([[0, 1], [1, 0]])
    assert resolve_kappa(alone, SARS_COV_2, OutbreakSettings()) == 1
    harmless = Pathogen(name="harmless", beta=0, alpha=1, mu=1)
    assert resolve_kappa(mixing_city(), harmless, OutbreakSettings()) == 1


def rng(seed=0):
    return np.random.default_rng(seed)


def first_generation(traces, pathogen, rule, seed):
    """Cases of one random person, by simulation: others are never infectious."""
    stream = rng(seed)
    person = int(stream.integers(traces.people))
    kappa = resolve_kappa(traces, pathogen, rule)
    alone = replace(rule, kappa=kappa, seed_people=(person,))
    slow = Pathogen(name="slow", beta=pathogen.beta, alpha=1e-12, mu=pathogen.mu)
    return simulate(traces, slow, alone, stream).secondary_cases()[person]


@pytest.mark.parametrize(
    "rule",
    [
        OutbreakSettings(),
        OutbreakSettings(chance="linear", kappa=1.0, asymptomatic_weight=0.2),
        OutbreakSettings(contact="I/S", kappa=0.5, onset_rate=1.0),
    ],
)
def test_empirical_r0_is_the_mean_of_simulated_index_people(rule):
    # A long city, so that hardly anybody is infectious beyond its end.
    traces = mixing_city(people=120, regions=20, days=15)
    pathogen = Pathogen(name="short", beta=1.5, alpha=1.0, mu=0.7)
    counted = empirical_r0(traces, pathogen, rule, rng(), index_people=600)
    simulated = [first_generation(traces, pathogen, rule, seed) for seed in range(1500)]
    error = np.hypot(counted.standard_error, np.std(simulated) / np.sqrt(1500))
    assert counted.mean == pytest.approx(np.mean(simulated), abs=4 * error)


def test_empirical_r0_is_below_the_hazard_r0_and_near_it_without_repeated_contacts():
    traces = mixing_city(people=2000, regions=100, days=7)
    pathogen = Pathogen(name="short", beta=0.4, alpha=1.0, mu=0.5)
    rule = OutbreakSettings(kappa="r0")
    counted = empirical_r0(traces, pathogen, rule, rng(), index_people=300)
    # Each infects while observed only: 85 of 100 slots in this city.
    kappa = resolve_kappa(traces, pathogen, rule)
    hazard = 0.85 * hazard_r0(traces, pathogen, rule, kappa)
    assert counted.mean == pytest.approx(hazard, abs=4 * counted.standard_error)
    pair_of_people = traces_of([[0, 0]] * 10)
    pair = empirical_r0(pair_of_people, SARS_COV_2, rule, rng(), index_people=2000)
    # Infected unless recovered first: beta / (beta + mu) of 1 person; hazard R0 is 5.7.
    expected = SARS_COV_2.r0 / (1 + SARS_COV_2.r0)
    assert pair.mean == pytest.approx(expected, abs=0.03)


def test_repeated_traces_give_the_same_empirical_r0():
    # Infectious for 20 days on 2 days of traces: most of the time lies past their end.
    short = mixing_city(people=60, regions=12, days=2)
    rows = np.tile(short.by_slot, (40, 1))
    long = traces_of(rows, regions=12, slot_hours=6.0)
    pathogen = Pathogen(name="long", beta=0.06, alpha=1.0, mu=0.05)
    rule = OutbreakSettings(asymptomatic_weight=0.3, onset_rate=0.1)
    once, often = (
        empirical_r0(traces, pathogen, rule, rng(seed), index_people=500)
        for seed, traces in enumerate((short, long))
    )
    error = np.hypot(once.standard_error, often.standard_error)
    assert once.mean == pytest.approx(often.mean, abs=4 * error)
    assert error < 0.1 < once.mean / 5


@pytest.mark.parametrize("dose", [0.0, 1e-9, 0.3, 0.999, 1.0, 5.0])
def test_slot_hazard_gives_the_probability(dose):
    assert -np.expm1(-slot_hazard(dose, False)) == pytest.approx(1 - np.exp(-dose))
    assert -np.expm1(-slot_hazard(dose, True)) == pytest.approx(min(dose, 1))


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("over_susceptible", [False, True])
def test_expected_cases_against_the_loop(linear, over_susceptible):
    rng = np.random.default_rng(8)
    rows = rng.integers(-1, 3, size=(9, 14))
    traces = traces_of(rows, regions=3)
    visits = rng.integers(0, 3, size=(2, 9)).astype(float)
    force, weight, factors = 0.8, 0.4, np.array([1.0, 0.2, 3.0])
    for person in range(14):
        escape = np.ones(14)
        for slot, here in enumerate(rows):
            if here[person] < 0:
                continue
            there = (here == here[person]) & (np.arange(14) != person)
            crowd = there.sum() + (not over_susceptible)
            if crowd == 0:
                continue
            for kind, factor in enumerate((weight, 1.0)):
                dose = factor * force / crowd * factors[here[person]]
                chance = min(dose, 1) if linear else 1 - np.exp(-dose)
                escape[there] *= (1 - chance) ** visits[kind, slot]
        rule = (force, weight, linear, over_susceptible)
        found = expected_cases(traces.by_slot, person, visits, *rule, factors)
        assert found == pytest.approx((1 - escape).sum())
