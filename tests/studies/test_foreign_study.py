"""Runs in foreign worlds: from the world to rows; no method reads its history."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from epifalcon.errors import SettingsError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import create_run_folder
from epifalcon.experiments.run_methods import TrainingOptions, run_method
from epifalcon.methods.base import Context
from epifalcon.methods.oracle import Oracle
from epifalcon.methods.registry import method_class
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.progress import silent
from epifalcon.studies.own import foreign, foreign_runs
from epifalcon.studies.own.foreign_runs import ForeignCity, outbreak_of
from epifalcon.studies.own.foreign_worlds import (
    REGIMES,
    ForeignWorld,
    History,
    draw_world_tests,
    pair_hazards,
    world_labels,
)
from epifalcon.studies.scheduler import Simulations, run_study
from epifalcon.studies.study import Cell, StudyRequest, plan_study
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.worker_pool import WorkerOptions
from tests.studies.invented_world import DAYS, invented_world

PEOPLE, SEED = 180, 21
REGIME = "mixed"
QUICK = ("soft-dct-ratio", "exposure-logistic", "mean-field", "hbp", "falcon-field")
SHORT = (
    "model.rounds=3",
    "model.width=4",
    "rivals.dcrnn.steps=2",
    "rivals.dcrnn.width=4",
)


def cell(regime=REGIME, methods=QUICK):
    city = ForeignCity(kind="towns", regime=regime)
    return Cell(
        label=regime,
        preset="hamlet",
        overrides=(*city.settings(PEOPLE, DAYS), *SHORT),
        world=city,
        methods=methods,
        group=regime,
        facts={"world": "towns", "regime": regime},
    )


def planned(work, *cells):
    study = replace(foreign.STUDY, cells=lambda _scale: cells)
    return plan_study(study, StudyRequest(scale="hamlet", seeds=1), work)


@pytest.fixture(autouse=True)
def not_cached():
    foreign_runs._world.cache_clear()


@pytest.fixture
def simulated(monkeypatch):
    """The seeds simulated so far; the worlds are invented."""
    seeds = []

    def simulate(_kind, people, days, seed):
        assert (people, days) == (PEOPLE, DAYS)
        seeds.append(seed)
        return invented_world(people, seed)

    monkeypatch.setattr(foreign_runs, "simulate_world", simulate)
    monkeypatch.setitem(sys.modules, "covasim", sys)
    monkeypatch.setitem(sys.modules, "starsim", sys)
    return seeds


def test_rows_are_those_of_a_direct_call_in_a_world_simulated_once(simulated, tmp_path):
    methods = ("soft-dct-ratio", "hbp", "oracle")
    cells = [cell(regime, methods) for regime in ("mixed", "random")]
    study_plan = planned(tmp_path, *cells)
    assert len(study_plan.comparisons) == 2
    result = study_result(run_study(study_plan, WorkerOptions(jobs=2), silent))
    assert simulated == [SEED]
    assert not any(row["failed"] for row in result["rows"])
    experiment = study_plan.plans[REGIME].experiment
    world = invented_world(PEOPLE, SEED)
    tests = draw_world_tests(world, REGIME, seed=SEED)
    # Methods do not know why each person was tested.
    blind = {"reason": pl.lit(""), "onset": pl.lit(None, pl.Int64)}
    labels = world_labels(world, tests.with_columns(**blind))
    context = Context(
        pathogen=experiment.pathogen, rule=experiment.outbreak, tested_because="unknown"
    )
    history = replace(context, ground_truth=outbreak_of(world, "towns", experiment))
    truth = labels.hidden.open("test")
    for row in (row for row in result["rows"] if row["cell"] == REGIME):
        method = method_class(row["method"])
        model = method(experiment.settings_of(row["method"]), seed=SEED)
        model.fit(world.traces, labels.known, history if method.sees_truth else context)
        risk = model.predict_proba()[truth.person]
        metrics = evaluate(risk, truth.infected, 0.5)
        (stored,) = row["by_seed"]
        for name in (*foreign.STUDY.metrics, "calibration_slope", "mean_risk"):
            assert stored[name] == pytest.approx(getattr(metrics, name)), name
    # A finished study needs no simulator.
    sys.modules["covasim"] = None
    again = study_result(run_study(study_plan, WorkerOptions(jobs=2), silent))
    assert simulated == [SEED]
    assert again["rows"] == result["rows"]


def test_no_method_reads_the_history_of_untested_people(monkeypatch, tmp_path):
    plan = planned(tmp_path, cell()).plans[REGIME]
    world = invented_world(PEOPLE, SEED)
    tested = np.zeros(PEOPLE, np.bool_)
    tested[draw_world_tests(world, REGIME, seed=SEED)["person"]] = True
    infected = world.history.infected
    other = np.where(tested, infected, np.where(infected >= 0, -1, 3)).astype(np.int32)
    # Only symptoms lead to tests; they stay.
    history = replace(world.history, infected=other, infectious=other, recovered=other)
    found = []
    for name, one in (("true", world), ("flipped", replace(world, history=history))):
        monkeypatch.setattr(
            foreign_runs, "simulate_world", lambda *_, one=one, **__: one
        )
        foreign_runs._world.cache_clear()
        own = replace(plan, folder=tmp_path / name)
        inputs = Simulations().inputs(own, SEED, 1)
        create_run_folder(inputs)
        found.append(inputs)
    first, second = (one.epidemic.labels for one in found)
    for name in ("person", "positive", "slot", "kind"):
        assert np.array_equal(getattr(first.known, name), getattr(second.known, name))
    truths = [one.hidden.open("test").infected for one in (first, second)]
    assert (truths[0] == ~truths[1]).all()
    for method in (*foreign.STUDY.cells("full")[0].methods, "dcrnn"):
        risks = [
            run_method(one, method, TrainingOptions()).scores.risk for one in found
        ]
        assert (risks[0] == risks[1]).all() == (method != "oracle"), method


def test_the_oracle_sums_covasims_hazards_of_contacts():
    homes, days = 40, 12
    rng = np.random.default_rng(2)
    person = np.arange(3 * homes)
    by_slot = np.tile(person // 3, (2 * days, 1)).astype(np.int32)
    infected = np.where(rng.random(len(person)) < 0.4, rng.integers(days, size=120), -1)
    ill = infected >= 0
    infectious = np.where(ill, infected + 2, -1).astype(np.int32)
    recovered = np.where(ill, infected + 6, -1).astype(np.int32)
    regions = Regions("poi", np.full((homes, 2), np.nan))
    world = ForeignWorld(
        Traces(by_slot, Clock(12, days), regions),
        np.zeros(homes, np.int8),
        History(infected.astype(np.int32), infectious, infectious + 2, recovered),
        np.full(len(person), 40.0),
    )
    outbreak = outbreak_of(world, "towns", Experiment())
    hazard = pair_hazards("towns")[0]
    expected = np.zeros(len(person))
    for day in range(days):
        spreads = (infectious >= 0) & (infectious <= day) & (day < recovered)
        for one in person:
            others = (person // 3 == one // 3) & (person != one)
            expected[one] += hazard * (spreads & others).sum()
    labels = world_labels(world, draw_world_tests(world, "random", seed=1))
    oracle = Oracle().fit(world.traces, labels.known, Context(ground_truth=outbreak))
    escaped = (1 - (infected == 0).mean()) * np.exp(-expected)
    assert oracle.predict_proba() == pytest.approx(1 - escaped)
    assert expected.max() > 0.3


def test_an_analyst_knows_random_tests_only():
    because = {
        one: ForeignCity(kind="hybrid", regime=one).tested_because for one in REGIMES
    }
    unknown = {one for one, reason in because.items() if reason == "unknown"}
    assert unknown == {"symptoms", "contact", "mixed"}
    assert set(because.values()) == {"unknown", "random"}
    for plan in planned(Path("w"), cell("contact"), cell("daily")).plans.values():
        labels = plan.experiment.labels
        assert labels.tested_because == because[plan.label]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"kind": "town"}, r"kind='town' must be one of clusters, hybrid, towns"),
        ({"regime": "mixd"}, r"'mixd'.*mixed"),
    ],
)
def test_an_unknown_world_or_regime_is_named(values, expected):
    with pytest.raises(SettingsError, match=expected):
        ForeignCity(**{"kind": "towns", "regime": REGIME, **values})


def test_without_the_extra_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "covasim", None)
    study_plan = planned(tmp_path / "work", cell())
    with pytest.raises(SettingsError, match=r"pip install 'epifalcon\[foreign\]'"):
        run_study(study_plan, WorkerOptions(jobs=1), silent)
    assert not (tmp_path / "work").exists()
