import math

import numpy as np
import pytest

from epifalcon.epidemic.known import Known
from epifalcon.models.field.at_home import (
    NUMBERS,
    OF_THE_CITY,
    PERSONAL,
    Situation,
    numbers_at_home,
)
from epifalcon.models.field.disease import rates_of
from epifalcon.models.field.places import told_by
from tests.baselines.test_hbp import town_scene
from tests.models.field import fields
from tests.studies import town


@pytest.fixture(scope="module")
def swept():
    """The town after four sweeps: home, what was told, factors and situation."""
    scene, known = town_scene(), town.known()
    together = fields.together_of(scene, known)
    city = fields.city_of(scene, together)
    rates = rates_of(scene.traces, scene.pathogen, scene.rule)
    start = fields.Start.of(known, rates, scene.traces.slots)
    wish = fields.TransmissionSettings(from_sweep=2)
    regions, flows = scene.traces.regions, fields.count_flows
    law = fields.Transmission.of("apart", wish, regions, lambda: flows(scene.traces))
    settings = fields.FieldSettings(sweeps=4)
    stage = fields.infer(together, city, start, settings, law, lambda _: None)
    told = told_by(city, stage.places, stage.factor)
    situation = Situation(known, rates, scene.test_errors)
    return together.cohorts[0].home, told, stage.factor.mean, situation


def column(numbers, name):
    return numbers[:, NUMBERS.index(name)]


def plainly(person, home, told, factor):
    """Slot by slot: the hazard, its crowd and factor, and the evidence."""
    hazards, crowds, factors, news, seen = [], [], [], 0.0, 0
    for slot, here in enumerate(home.here[:, person]):
        if here < 0:
            hazards.append(0.0)
            continue
        force, others, ill, evidence = told.edges[slot, here + 1]
        seen += 1
        others = max(others, 1)
        ill = min(max(ill - home.infectious[slot, person], 0), others)
        hazards.append(-others * math.log(1 - force * ill / others))
        crowds.append(hazards[-1] * math.log(others))
        factors.append(hazards[-1] * math.log(factor[told.day[slot], here + 1]))
        heard = 1 + force * (evidence - home.evidence[slot, person]) / others
        news += home.infectious[slot, person] * others * math.log(max(heard, 1e-6))
    return np.array(hazards), sum(crowds), sum(factors), news, seen


def test_numbers_equal_those_of_one_person_after_another(swept):
    home, told, factor, situation = swept
    numbers = numbers_at_home(*swept)
    for person in range(0, 80, 7):
        hazards, crowd, factors, news, seen = plainly(person, home, told, factor)
        total = hazards.sum()
        quarters = hazards.reshape(4, -1).sum(axis=1) / total
        by_day = np.bincount(told.day, hazards)
        caught = 1 - (1 - situation.rates.seeded) * math.exp(-total)
        wanted = {
            "hazard odds": math.log(caught / (1 - caught)),
            "second quarter": quarters[1],
            "last quarter": quarters[3],
            "worst day": by_day.max() / total,
            "evidence": news,
            "observed": seen / len(hazards),
            "crowd of the hazard": crowd / total,
            "factor of the hazard": factors / total,
        }
        found = {name: column(numbers, name)[person] for name in wanted}
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_the_city_s_numbers_are_everybody_s_and_of_its_tests(swept):
    numbers, tests = numbers_at_home(*swept), swept[3].tests
    assert (numbers[:, len(PERSONAL) :] == numbers[0, len(PERSONAL) :]).all()
    assert numbers.shape == (80, len(PERSONAL) + len(OF_THE_CITY))
    share = column(numbers, "label share")[0]
    assert share == pytest.approx(np.log((tests.tested.sum() + 1) / 80))


@pytest.mark.parametrize("tested", [0, 80])
def test_no_test_or_everybody_s_no_trace_and_sure_risks_are_numbers(swept, tested):
    home, told, factor, situation = swept
    person = np.arange(tested, dtype=np.int32)
    positive = np.ones(tested, np.bool_)
    tests = Known(80, person, positive, np.zeros(tested, np.int32))
    nowhere = home._replace(here=np.full_like(home.here, -1), risk=np.ones(80))
    odd = Situation(tests, situation.rates, situation.errors)
    for one in (home, nowhere):
        assert np.isfinite(numbers_at_home(one, told, factor, odd)).all()
