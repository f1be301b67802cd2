import dataclasses

import numpy as np
import pytest

from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.sellke import Variation
from epifalcon.epidemic.settings import OutbreakSettings, with_infected_share
from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.methods.hbp import (
    Hbp,
    HbpSettings,
    HbpTrueFactors,
    MeanField,
    MeanFieldSettings,
    share_infected,
)
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.subsample import keep_last_days
from epifalcon.mobility.traces import Traces
from tests.epidemic.worlds import known_of
from tests.methods.encounters import FIERCE, scene_of, world_of
from tests.oracles.cities import random_traces
from tests.oracles.exact_inference import posterior
from tests.scenes import Scene, placed
from tests.studies import town

QUICK = HbpSettings(sweeps=8, folds=2)


def town_scene(traces=None):
    settings = town.experiment()
    traces = town.traces() if traces is None else traces
    return Scene(traces, 3, settings.pathogen, settings.outbreak)


def world(preset, *words, seed=0):
    settings = Experiment.load(preset, words)
    traces = make_city(settings, seed)
    epidemic = next(run_epidemics(settings, traces, seed))
    scene = Scene(traces, seed, settings.pathogen, settings.outbreak)
    return scene, epidemic.labels


def evaluated(risk, labels):
    truth = labels.hidden.open("a test")
    return evaluate(risk[truth.person], truth.infected, 0.8)


@pytest.mark.parametrize("method", [Hbp, MeanField])
def test_nobody_s_own_result_moves_its_own_risk_by_a_bit(method):
    known, settings = town.known(), method.settings_type(sweeps=8, folds=2)

    def fitted(tests):
        return placed(method, town_scene(), settings).fit(tests).predict_proba()

    before = fitted(known)
    for person in known.person[::9]:
        after = fitted(town.flipped(known, [person]))
        assert after[person] == before[person]
        assert (after != before).any()


@pytest.mark.parametrize("tests", [[], [(0, 1, 0)], [(0, 1, 1)]])
def test_who_is_alone_can_only_be_a_seed(tests):
    risk = placed(Hbp, scene_of([[0, 1, 2]] * 2), QUICK).fit(known_of(3, tests))
    np.testing.assert_allclose(risk.predict_proba(), 1 / 3, atol=1e-5)


@pytest.mark.parametrize("preset", ["larger-sars", "larger-omicron"])
def test_the_sweeps_converge_and_the_risks_are_calibrated(preset):
    words = ["city.people=1500", "city.regions=300", "outbreak.seed_count=15"]
    scene, labels = world(preset, *words, seed=1)
    risk, longer = (
        placed(Hbp, scene, HbpSettings(folds=0, sweeps=sweeps))
        .fit(labels.known)
        .predict_proba()
        for sweeps in (HbpSettings().sweeps, 2 * HbpSettings().sweeps)
    )
    assert np.abs(risk - longer).mean() < 0.005
    found = evaluated(risk, labels)
    assert found.mean_risk == pytest.approx(found.prevalence, abs=0.06)
    assert found.ece < 0.06
    assert found.auc > 0.65
    uninformed = -np.log(1 - found.prevalence) * (1 - found.prevalence)
    uninformed -= np.log(found.prevalence) * found.prevalence
    assert found.log_loss < uninformed


# Mean field

FORWARD = MeanFieldSettings(folds=0)
LINE = [[0, 0, -1], [-1, -1, -1], [-1, 0, 0], [-1, -1, -1]]
"""Person 0 meets person 1, who later meets person 2."""


def forward(scene, tests, settings=FORWARD):
    known = known_of(scene.traces.people, tests)
    return placed(MeanField, scene, settings).fit(known).predict_proba()


def test_without_tests_one_meeting_after_the_other_is_exact():
    scene = scene_of(LINE)
    exact = posterior(world_of(scene), [])
    np.testing.assert_allclose(forward(scene, []), exact, atol=1e-5)


def test_known_people_are_infectious_by_their_result():
    wait = scene_of([[-1, -1], [0, 0]])
    # Who is negative infects nobody; who was positive before they met was a seed.
    assert forward(wait, [(0, 1, 0)])[1] == pytest.approx(1 / 2, abs=1e-5)
    still = np.exp(-wait.pathogen.mu / 2)
    infections = 1 - np.exp(-wait.pathogen.beta / 2 / 2)
    wanted = 1 / 2 + 1 / 2 * still * infections
    assert forward(wait, [(0, 0, 1)])[1] == pytest.approx(wanted, abs=1e-4)


def test_later_observations_of_contacts_are_not_used():
    scene = scene_of(LINE)
    blind = forward(scene, [(2, 3, 1)])
    assert blind[0] == pytest.approx(forward(scene, [])[0], abs=1e-5)
    known = known_of(3, [(2, 3, 1)])
    aware = placed(Hbp, scene, HbpSettings(folds=0)).fit(known).predict_proba()
    assert aware[0] > blind[0] + 0.01


def test_the_prior_is_the_mean_of_outbreaks():
    settings = town.experiment()
    traces = town.traces()
    scene = Scene(traces, 0, settings.pathogen, settings.outbreak)
    rng = np.random.default_rng(0)
    share = np.mean(
        [
            simulate(traces, scene.pathogen, scene.rule, rng).ever_infected()
            for _ in range(300)
        ],
        axis=0,
    )
    # Mean field lets people infect back whoever infected them: a little too much.
    error = forward(scene, []) - share
    assert np.abs(error).mean() < 0.03
    assert -0.01 < error.mean() < 0.03


# Ceiling with the true factors of regions

CLOCK = Clock(slot_hours=6, days=3)
WHOLE = HbpSettings(folds=0)
RULE = OutbreakSettings(seed_count=4, kappa=0.1, regional_sigma=1.5)
BELIEVED = dataclasses.replace(RULE, regional_sigma=0.0)


def varied(people=60, regions=6, seed=1, rule=RULE):
    traces = random_traces(4, people, regions, CLOCK)
    truth = simulate(traces, FIERCE, rule, np.random.default_rng(seed))
    share = LabelSettings(label_share=0.4)
    return traces, truth, draw_labels(truth, share, np.random.default_rng(seed))


def risk_of(cls, traces, known, truth=None):
    scene = Scene(traces, 0, FIERCE, BELIEVED, ground_truth=truth)
    return placed(cls, scene, WHOLE).fit(known).predict_proba()


def test_a_factor_for_all_is_a_factor_on_beta():
    traces, truth, labels = varied()
    twice = Variation(np.full(6, 2.0))
    truth = dataclasses.replace(truth, variation=twice)
    fierce = dataclasses.replace(FIERCE, beta=2 * FIERCE.beta)
    scene = Scene(traces, 0, fierce, BELIEVED)
    expected = placed(Hbp, scene, WHOLE).fit(labels.known).predict_proba()
    result = risk_of(HbpTrueFactors, traces, labels.known, truth)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_factors_go_with_their_regions():
    traces, truth, labels = varied()
    before = risk_of(HbpTrueFactors, traces, labels.known, truth)
    assert not np.allclose(before, risk_of(Hbp, traces, labels.known))
    order = np.random.default_rng(2).permutation(6)
    place = np.append(np.argsort(order), -1).astype(np.int32)
    centre = traces.regions.centre_km[order]
    regions = dataclasses.replace(traces.regions, centre_km=centre)
    turned = Traces(place[traces.by_slot], traces.clock, regions)
    factor = truth.variation.regional_factor[order]
    moved = dataclasses.replace(truth, variation=Variation(factor))
    after = risk_of(HbpTrueFactors, turned, labels.known, moved)
    np.testing.assert_allclose(before, after, atol=1e-6)


def test_of_the_truth_it_reads_the_factors_alone():
    traces, truth, labels = varied()
    never = np.full(traces.people, -1, np.int32)
    empty = dataclasses.replace(
        truth,
        **{
            f"{name}_slot": never.copy()
            for name in ("infection", "infectious", "onset", "recovery")
        },
    )
    np.testing.assert_array_equal(
        risk_of(HbpTrueFactors, traces, labels.known, truth),
        risk_of(HbpTrueFactors, traces, labels.known, empty),
    )


def test_it_is_no_method():
    traces, truth, labels = varied()
    with pytest.raises(SettingsError, match="give the context the ground truth"):
        risk_of(HbpTrueFactors, traces, labels.known)
    few = dataclasses.replace(truth, variation=Variation(np.ones(3)))
    with pytest.raises(DataError, match="3 entries, expected 6"):
        risk_of(HbpTrueFactors, traces, labels.known, few)


# Traces that begin later than the outbreak

TEN = OutbreakSettings(seed_count=10)


def results_at(positive, negative, slot, people=1000):
    return known_of(
        people,
        [(person, slot, person < positive) for person in range(positive + negative)],
    )


def share(known, slot, rule=TEN):
    return share_infected(rule, SARS_COV_2, known, slot)


def test_infections_grow_by_one_factor_per_slot_until_the_mean_test():
    known = results_at(200, 300, slot=80)
    found = np.array([share(known, slot) for slot in (0, 20, 40, 60, 80)])
    assert found[0] == pytest.approx(0.01)
    assert found[-1] == pytest.approx(0.4, rel=0.01)
    assert found[1:] / found[:-1] == pytest.approx([found[1] / found[0]] * 4)
    assert share(known, 81) == share(known, 800) == share(known, 80)
    mixed = known_of(1000, [(one, 40 + 80 * (one % 2), one < 99) for one in range(200)])
    assert share(mixed, 30) == share(results_at(99, 101, slot=80), 30)
    assert share(known_of(1000, []), 40) == pytest.approx(0.01)


def test_seeds_that_were_named_are_forgotten():
    named = OutbreakSettings(seed_people=(3, 4), kappa=2.0, model="sir")
    assert with_infected_share(named, 0.3) == OutbreakSettings(
        seed_share=0.3, kappa=2.0, model="sir"
    )
    regional = OutbreakSettings(seed_count=2, seed_regions=(1,))
    assert with_infected_share(regional, 0.3).requested_seeds(SARS_COV_2, 100) == 30


@pytest.mark.parametrize(
    ("method", "settings"), [(Hbp, HbpSettings()), (MeanField, MeanFieldSettings())]
)
def test_risks_from_the_last_days_come_out_right(method, settings):
    """Evaluated on tested people, whose risks are out-of-fold."""
    words = ["city.people=1000", "city.regions=200", "outbreak.seed_count=20"]
    experiment = Experiment.load("hamlet", words)
    whole = make_city(experiment, seed=2)
    tests = next(run_epidemics(experiment, whole, seed=2)).labels.known
    traces = keep_last_days(whole, 4)
    dropped = whole.slots - traces.slots
    pathogen, rule = experiment.pathogen, experiment.outbreak
    later = with_infected_share(rule, share_infected(rule, pathogen, tests, dropped))
    losses, means = [], []
    for given in (rule, later):
        scene = Scene(traces, 2, pathogen, given)
        found = placed(method, scene, settings).fit(tests.since(dropped)).scores
        infected = tests.status[found.masked] == 1
        chance = np.where(infected, found.masked_risk, 1 - found.masked_risk)
        losses.append(-np.log(chance).mean())
        means.append(found.masked_risk.mean() / infected.mean())
    assert losses[1] < losses[0] - 0.02
    assert means[0] < 0.7
    assert 0.8 < means[1] < 1.25
