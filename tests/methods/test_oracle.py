from dataclasses import replace

import numpy as np
import pytest

from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.methods.base import Context
from epifalcon.methods.hbp import Hbp
from epifalcon.methods.oracle import Oracle
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.subsample import keep_last_days
from tests.epidemic.worlds import known_of
from tests.methods.encounters import FIERCE
from tests.oracles.cities import random_traces

CLOCK = Clock(slot_hours=6, days=3)
RULES = [
    OutbreakSettings(seed_count=4),
    OutbreakSettings(seed_count=4, kappa=0.5, contact="I/S"),
    OutbreakSettings(
        seed_count=4, kappa=0.4, chance="linear", asymptomatic_weight=0.25
    ),
    OutbreakSettings(seed_count=4, model="sir", seed_state="exposed"),
    OutbreakSettings(seed_count=4, kappa=0.5, regional_sigma=1.5, dispersion=0.5),
]


def outbreak(rule=RULES[0], seed=0, people=30):
    traces = random_traces(4, people, 5, CLOCK)
    truth = simulate(traces, FIERCE, rule, np.random.default_rng(seed))
    return traces, truth


def oracle(traces, truth):
    context = Context(ground_truth=truth)
    fitted = Oracle().fit(traces, known_of(traces.people, []), context)
    return fitted.predict_proba()


def risk_by_loop(traces, truth, person):
    """The oracle's risk of one person, meeting by meeting."""
    rule, escaped = truth.settings, 1 - 4 / traces.people
    force = truth.kappa * FIERCE.beta * traces.clock.slot_days
    counts_as = truth.variation.infectiousness
    factor = truth.variation.factors(5)
    for slot, here in enumerate(traces.by_slot):
        if here[person] < 0:
            continue
        others = [one for one in np.flatnonzero(here == here[person]) if one != person]
        weight, healthy = 0.0, 0
        for one in others:
            when = truth.infection_slot[one]
            healthy += not truth.seeds[one] and (when < 0 or when >= slot)
            began, ended = truth.infectious_slot[one], truth.recovery_slot[one]
            if 0 <= began <= slot and (ended < 0 or slot < ended):
                ill = 0 <= truth.onset_slot[one] <= slot
                own = 1 if counts_as is None else counts_as[one]
                weight += own * (1 if ill else rule.asymptomatic_weight)
        among = 1 + (len(others) if rule.contact == "I/N" else healthy)
        dose = force * weight / among * factor[here[person]]
        chance = min(dose, 1) if rule.chance == "linear" else 1 - np.exp(-dose)
        escaped *= 1 - chance
    return 1 - escaped


@pytest.mark.parametrize("rule", RULES, ids=["paper", "I/S", "linear", "sir", "uneven"])
def test_hazards_are_added_up_meeting_by_meeting(rule):
    traces, truth = outbreak(rule)
    wanted = [risk_by_loop(traces, truth, one) for one in range(traces.people)]
    np.testing.assert_allclose(oracle(traces, truth), wanted, atol=1e-9)


def test_nobody_s_own_infection_enters_its_own_risk():
    traces, truth = outbreak()
    before = oracle(traces, truth)
    for person in np.flatnonzero(truth.ever_infected())[::3]:
        changed = {}
        for name in ("infection", "infectious", "onset", "recovery"):
            slots = getattr(truth, f"{name}_slot").copy()
            slots[person] = -1
            changed[f"{name}_slot"] = slots
        healthy = replace(truth, **changed)
        assert oracle(traces, healthy)[person] == before[person]


def test_it_is_above_methods_that_use_tests_alone():
    settings = Experiment.load("hamlet", ["city.people=600", "city.regions=120"])
    traces = make_city(settings, seed=0)
    epidemic = next(run_epidemics(settings, traces, seed=0))
    context = Context(pathogen=settings.pathogen, rule=settings.outbreak)
    known, truth = epidemic.labels.known, epidemic.labels.hidden.open("a test")
    result = Hbp(folds=0).fit(traces, known, context).predict_proba()
    best, found = (
        evaluate(risk[truth.person], truth.infected, 0.8)
        for risk in (oracle(traces, epidemic.outbreak), result)
    )
    assert best.auc > found.auc
    assert best.log_loss < found.log_loss


def test_its_risks_are_calibrated():
    risk, infected = [], []
    for seed in range(40):
        traces, truth = outbreak(OutbreakSettings(seed_count=4, kappa=0.05), seed, 60)
        risk.append(oracle(traces, truth).mean())
        infected.append(truth.ever_infected().mean())
    assert np.mean(risk) == pytest.approx(np.mean(infected), abs=0.02)


def test_late_traces_are_read_in_the_slots_of_the_outbreak():
    traces, truth = outbreak()
    late = keep_last_days(traces, 1)
    unseen = traces.by_slot.copy()
    unseen[: -late.slots] = -1
    blank = type(traces)(unseen, traces.clock, traces.regions)
    np.testing.assert_array_equal(oracle(late, truth), oracle(blank, truth))


def test_another_city_s_truth_is_refused():
    _, truth = outbreak()
    with pytest.raises(DataError, match="30 people"):
        oracle(random_traces(1, 20, 5, CLOCK), truth)
    with pytest.raises(DataError, match="slots"):
        oracle(random_traces(1, 30, 5, Clock(slot_hours=6, days=9)), truth)
