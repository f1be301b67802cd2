import numpy as np
import pytest

from epifalcon.baselines.hbp import Hbp, HbpSettings
from epifalcon.baselines.mean_field import MeanField, MeanFieldSettings
from epifalcon.baselines.method import Scene
from epifalcon.baselines.started import begun_by, share_infected
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.mobility.reporting import keep_last_days
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics
from tests.baselines.encounters import known_of

TEN = OutbreakSettings(seed_count=10)


def results_at(positive, negative, slot, people=1000):
    return known_of(
        people,
        [(person, slot, person < positive) for person in range(positive + negative)],
    )


def share(known, slot, rule=TEN):
    return share_infected(rule, SARS_COV_2, known, slot)


def test_infections_grow_by_one_factor_a_slot():
    known = results_at(200, 300, slot=80)
    found = np.array([share(known, slot) for slot in (0, 20, 40, 60, 80)])
    assert found[0] == pytest.approx(0.01)
    assert found[-1] == pytest.approx(0.4, rel=0.01)
    assert found[1:] / found[:-1] == pytest.approx([found[1] / found[0]] * 4)


def test_nobody_is_thought_infected_after_the_tests_by_growth_alone():
    known = results_at(200, 300, slot=80)
    assert share(known, 81) == share(known, 800) == share(known, 80)


def test_tests_of_several_slots_count_in_their_mean():
    mixed = known_of(1000, [(one, 40 + 80 * (one % 2), one < 99) for one in range(200)])
    assert share(mixed, 30) == share(results_at(99, 101, slot=80), 30)


@pytest.mark.parametrize(
    ("known", "rule"),
    [
        (known_of(1000, []), TEN),
        (results_at(0, 300, slot=9), TEN),
        (results_at(300, 0, slot=9), TEN),
        (results_at(5, 5, slot=0), TEN),
        (results_at(5, 5, slot=9), OutbreakSettings(seed_count=0)),
        (results_at(1, 0, slot=9, people=1), OutbreakSettings()),
        (results_at(5, 5, slot=9), OutbreakSettings(seed_share=1.0)),
    ],
)
def test_it_is_a_share_whatever_is_known(known, rule):
    for slot in (1, 5, 50):
        found = share(known, slot, rule)
        assert 0 < found <= 1
        assert begun_by(rule, found).wished_seeds(SARS_COV_2, 500) >= 1


def test_without_tests_it_is_the_seeds():
    assert share(known_of(1000, []), 40) == pytest.approx(0.01)


def test_seeds_that_were_named_are_forgotten():
    named = OutbreakSettings(seed_people=(3, 4), kappa=2.0, model="sir")
    assert begun_by(named, 0.3) == OutbreakSettings(
        seed_share=0.3, kappa=2.0, model="sir"
    )
    placed = OutbreakSettings(seed_count=2, seed_regions=(1,))
    assert begun_by(placed, 0.3).wished_seeds(SARS_COV_2, 100) == 30


@pytest.mark.parametrize(
    ("method", "settings"),
    [(Hbp, HbpSettings()), (MeanField, MeanFieldSettings())],
)
def test_risks_from_the_last_days_come_out_right(method, settings):
    """Judged by tested people, whose risks are told without their own fold."""
    words = ["city.people=1000", "city.regions=200", "outbreak.seed_count=20"]
    experiment = Experiment.load("hamlet", words)
    whole = make_city(experiment, seed=2)
    tests = next(run_epidemics(experiment, whole, seed=2)).labels.known
    traces = keep_last_days(whole, 4)
    dropped = whole.slots - traces.slots
    pathogen, rule = experiment.pathogen, experiment.outbreak
    later = begun_by(rule, share_infected(rule, pathogen, tests, dropped))
    losses, means = [], []
    for given in (rule, later):
        scene = Scene(traces, 2, pathogen, given)
        found = method(scene, settings).fit(tests.since(dropped)).found
        infected = tests.status[found.masked] == 1
        chance = np.where(infected, found.masked_risk, 1 - found.masked_risk)
        losses.append(-np.log(chance).mean())
        means.append(found.masked_risk.mean() / infected.mean())
    assert losses[1] < losses[0] - 0.02
    assert means[0] < 0.7
    assert 0.8 < means[1] < 1.25
