import dataclasses

import numpy as np
import pytest

from epifalcon.baselines.hbp import Hbp, HbpSettings
from epifalcon.baselines.hbp_true_factors import HbpTrueFactors
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.labels import LabelSettings, draw_labels
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.variation import Variation
from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics
from tests.baselines.encounters import FIERCE
from tests.baselines.test_ordering import placed
from tests.oracles.cities import random_traces

CLOCK = Clock(slot_hours=6, days=3)
WHOLE = HbpSettings(folds=0)
RULE = OutbreakSettings(seed_count=4, kappa=0.1, regional_sigma=1.5)
BELIEVED = dataclasses.replace(RULE, regional_sigma=0.0)


def world(people=60, regions=6, seed=1, rule=RULE):
    traces = placed(random_traces(4, people, regions, CLOCK))
    truth = simulate(traces, FIERCE, rule, np.random.default_rng(seed))
    share = LabelSettings(label_share=0.4)
    return traces, truth, draw_labels(truth, share, np.random.default_rng(seed))


def risk(cls, traces, known, truth=None):
    scene = Scene(traces, 0, FIERCE, BELIEVED, everybody=truth)
    return cls(scene, WHOLE).fit(known).predict_proba()


def test_with_factors_of_1_it_is_hbp():
    traces, truth, labels = world(rule=BELIEVED)
    told = risk(HbpTrueFactors, traces, labels.known, truth)
    np.testing.assert_array_equal(told, risk(Hbp, traces, labels.known))


def test_a_factor_for_all_is_a_factor_on_beta():
    traces, truth, labels = world()
    twice = Variation(np.full(6, 2.0))
    truth = dataclasses.replace(truth, variation=twice)
    fierce = dataclasses.replace(FIERCE, beta=2 * FIERCE.beta)
    scene = Scene(traces, 0, fierce, BELIEVED)
    expected = Hbp(scene, WHOLE).fit(labels.known).predict_proba()
    told = risk(HbpTrueFactors, traces, labels.known, truth)
    np.testing.assert_allclose(told, expected, atol=1e-6)


def test_factors_go_with_their_regions():
    traces, truth, labels = world()
    before = risk(HbpTrueFactors, traces, labels.known, truth)
    assert not np.allclose(before, risk(Hbp, traces, labels.known))
    order = np.random.default_rng(2).permutation(6)
    place = np.append(np.argsort(order), -1).astype(np.int32)
    regions = dataclasses.replace(
        traces.regions, centre_km=traces.regions.centre_km[order]
    )
    turned = Traces(place[traces.by_slot], traces.clock, regions)
    factor = truth.variation.regional_factor[order]
    moved = dataclasses.replace(truth, variation=Variation(factor))
    after = risk(HbpTrueFactors, turned, labels.known, moved)
    np.testing.assert_array_equal(before, after)


def test_of_the_truth_it_reads_the_factors_alone():
    traces, truth, labels = world()
    never = np.full(traces.people, -1, np.int32)
    empty = dataclasses.replace(
        truth,
        **{
            f"{name}_slot": never.copy()
            for name in ("infection", "infectious", "onset", "recovery")
        },
    )
    np.testing.assert_array_equal(
        risk(HbpTrueFactors, traces, labels.known, truth),
        risk(HbpTrueFactors, traces, labels.known, empty),
    )


def test_to_know_the_factors_helps():
    words = ["city.people=800", "city.regions=150", "outbreak.seed_count=16"]
    settings = Experiment.load("hamlet+regional-1.5", words)
    gaps = []
    for seed in range(4):
        traces = make_city(settings, seed)
        epidemic = next(run_epidemics(settings, traces, seed))
        hidden = epidemic.labels.hidden.open("a test")
        scene = Scene(traces, 0, settings.pathogen, settings.believed_rule)
        told = dataclasses.replace(scene, everybody=epidemic.outbreak)
        found = (HbpTrueFactors(told, WHOLE), Hbp(scene, WHOLE))
        risks = [one.fit(epidemic.labels.known).predict_proba() for one in found]
        best, plain = (
            evaluate(one[hidden.person], hidden.infected, 0.8).auc for one in risks
        )
        gaps.append(best - plain)
    assert np.mean(gaps) > 0.03


def test_it_is_no_method():
    traces, truth, labels = world()
    assert HbpTrueFactors.kind == "ceiling"
    assert "no method" in HbpTrueFactors.title
    with pytest.raises(SettingsError, match="give the scene the truth"):
        risk(HbpTrueFactors, traces, labels.known)
    few = dataclasses.replace(truth, variation=Variation(np.ones(3)))
    with pytest.raises(DataError, match="3 entries, expected 6"):
        risk(HbpTrueFactors, traces, labels.known, few)
