import numpy as np
import pytest

from epifalcon.epidemic.calibrate import ShareGoal, counted_r0, kappa_for_share
from epifalcon.epidemic.hazard import hazard_r0, resolve_kappa
from epifalcon.epidemic.pathogen import SARS_COV_2, Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import simulate
from epifalcon.errors import SettingsError
from tests.epidemic.worlds import FAST, mixing_city, traces_of

CITY = mixing_city(people=400, regions=40, days=7)
RULE = OutbreakSettings(seed_count=8)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_share_is_reached_on_the_same_draws(share):
    goal = ShareGoal(share=share, runs=6, tolerance=0.01)
    found = kappa_for_share(CITY, FAST, RULE, goal, rng())
    assert found.mean_share == pytest.approx(share, abs=0.01)
    # The first run of the calibration, drawn again from the same stream.
    rule = OutbreakSettings(seed_count=8, kappa=found.kappa)
    again = simulate(CITY, FAST, rule, rng())
    assert again.infected_share == found.infected_shares[0]


def test_the_share_holds_on_other_draws():
    goal = ShareGoal(share=0.3, runs=20, tolerance=0.005)
    found = kappa_for_share(CITY, FAST, RULE, goal, rng())
    rule = OutbreakSettings(seed_count=8, kappa=found.kappa)
    shares = [
        simulate(CITY, FAST, rule, rng(100 + k)).infected_share for k in range(60)
    ]
    error = np.std(found.infected_shares) / np.sqrt(20) + np.std(shares) / np.sqrt(60)
    assert np.mean(shares) == pytest.approx(0.3, abs=4 * error)


def test_the_kappa_for_the_seeds_alone_is_nothing():
    found = kappa_for_share(CITY, FAST, RULE, ShareGoal(share=8 / 400), rng())
    assert found.kappa == 0


def test_shares_out_of_reach_are_named():
    with pytest.raises(SettingsError, match=r"share=0.01 is less than the seeds"):
        kappa_for_share(CITY, FAST, RULE, ShareGoal(share=0.01), rng())
    apart = traces_of([[0, 0, 1, 2, 3]] * 9)
    rule = OutbreakSettings(seed_people=(0,), kappa=1.0)
    with pytest.raises(SettingsError, match=r"the most on these traces is 0.4"):
        kappa_for_share(apart, FAST, rule, ShareGoal(share=0.9), rng())
    harmless = Pathogen(name="harmless", beta=0, alpha=1, mu=1)
    with pytest.raises(SettingsError, match=r"the most on these traces is 0.02"):
        kappa_for_share(CITY, harmless, RULE, ShareGoal(share=0.9), rng())


def test_progress_is_told():
    told = []
    goal = ShareGoal(share=0.31, tolerance=0.002)
    kappa_for_share(CITY, FAST, RULE, goal, rng(), lambda *what: told.append(what))
    assert told
    assert told[0][0] == "kappa"


def first_generation(traces, pathogen, rule, seed):
    """Cases of one random person, by simulation: others are never infectious."""
    stream = rng(seed)
    person = int(stream.integers(traces.people))
    alone = OutbreakSettings(
        kappa=resolve_kappa(traces, pathogen, rule),
        contact=rule.contact,
        chance=rule.chance,
        asymptomatic_weight=rule.asymptomatic_weight,
        symptomatic_share=rule.symptomatic_share,
        onset_rate=rule.onset_rate,
        seed_people=(person,),
    )
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
def test_counted_r0_is_what_index_people_cause(rule):
    # A long city, so that hardly anybody is infectious beyond its end.
    traces = mixing_city(people=120, regions=20, days=15)
    pathogen = Pathogen(name="short", beta=1.5, alpha=1.0, mu=0.7)
    counted = counted_r0(traces, pathogen, rule, rng(), index_people=600)
    simulated = [first_generation(traces, pathogen, rule, seed) for seed in range(1500)]
    error = np.hypot(counted.standard_error, np.std(simulated) / np.sqrt(1500))
    assert counted.mean == pytest.approx(np.mean(simulated), abs=4 * error)


def test_counted_r0_is_below_the_hazard_r0_and_near_it_where_all_is_new():
    traces = mixing_city(people=2000, regions=100, days=7)
    pathogen = Pathogen(name="short", beta=0.4, alpha=1.0, mu=0.5)
    rule = OutbreakSettings(kappa="r0")
    counted = counted_r0(traces, pathogen, rule, rng(), index_people=300)
    # Each infects while observed only: 85 of 100 slots in this city.
    hazard = 0.85 * hazard_r0(
        traces, pathogen, rule, resolve_kappa(traces, pathogen, rule)
    )
    assert counted.mean == pytest.approx(hazard, abs=4 * counted.standard_error)
    household = traces_of([[0, 0]] * 10)
    pair = counted_r0(household, SARS_COV_2, rule, rng(), index_people=2000)
    # Infected unless recovered first: beta / (beta + mu) of 1 person; hazard R0 is 5.7.
    expected = SARS_COV_2.r0 / (1 + SARS_COV_2.r0)
    assert pair.mean == pytest.approx(expected, abs=0.03)


def test_impossible_goals_are_named():
    with pytest.raises(SettingsError, match=r"share=1.5"):
        ShareGoal(share=1.5)
    with pytest.raises(SettingsError, match="runs=0"):
        ShareGoal(share=0.5, runs=0)
    with pytest.raises(SettingsError, match="index_people=0"):
        counted_r0(CITY, FAST, RULE, rng(), index_people=0)


def test_traces_repeated_give_the_same_counted_r0():
    # Infectious for 20 days on 2 days of traces: most of the time lies past their end.
    short = mixing_city(people=60, regions=12, days=2)
    rows = np.tile(short.by_slot, (40, 1))
    long = traces_of(rows, regions=12, slot_hours=6.0)
    pathogen = Pathogen(name="long", beta=0.06, alpha=1.0, mu=0.05)
    rule = OutbreakSettings(asymptomatic_weight=0.3, onset_rate=0.1)
    once, often = (
        counted_r0(traces, pathogen, rule, rng(seed), index_people=500)
        for seed, traces in enumerate((short, long))
    )
    error = np.hypot(once.standard_error, often.standard_error)
    assert once.mean == pytest.approx(often.mean, abs=4 * error)
    assert error < 0.1 < once.mean / 5
