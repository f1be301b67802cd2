"""Falcon Field over people who may be anywhere: one result, however they are split."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.field.inference_schedule import InferenceSchedule, LocalSites
from epifalcon.federation.field.privacy_plan import FieldPlan
from epifalcon.federation.field.settings import FalconFieldSettings, FieldTask
from epifalcon.federation.field.site_people import FieldRun, FieldSite, HeldOutFold
from epifalcon.federation.preparation import split_sites
from epifalcon.methods.falcon_field import FalconField
from tests.federation.field.field_sites import (
    PLAIN,
    PRIVATE,
    QUICK,
    SEED,
    run_locally,
    task_of,
)
from tests.methods.test_hbp import town_scene
from tests.studies import town


def risks(task, sites):
    return run_locally(task, split_sites(town.traces(), town.known(), sites))


TASKS = [task_of(QUICK), task_of(replace(PLAIN, folds=0)), task_of(QUICK, "unknown")]


@pytest.mark.parametrize("task", TASKS)
def test_any_split_into_sites_gives_the_same_risks(task):
    whole, found = risks(task, 1)
    for sites in (3, 17):
        risk, result = risks(task, sites)
        np.testing.assert_allclose(risk, whole, 0, 1e-6)
        assert result.transmission == found.transmission
        assert result.transmission_of_folds == found.transmission_of_folds


@pytest.mark.parametrize("mode", ["off", "sums", "sealed", "local"])
def test_one_site_is_the_method_in_one_process(mode):
    """The same settings and seed give the same risks."""
    privacy = {} if mode == "off" else {"privacy": PRIVATE[mode]}
    scene, task = town_scene(), task_of(QUICK, **privacy)
    method = FalconField(task.settings, seed=scene.seed)
    method.fit(scene.traces, town.known(), scene)
    risk, _ = risks(task, 1)
    np.testing.assert_array_equal(risk, method.predict_proba())


@pytest.mark.parametrize("because", ["random", "unknown"])
def test_a_tested_person_s_own_result_moves_its_own_risk_by_no_bit(because):
    known, task = town.known(), task_of(QUICK, because)
    sites_data = split_sites(town.traces(), known, 2)
    before, _ = run_locally(task, sites_data)
    for person in np.unique(known.person)[::9]:
        flipped = split_sites(town.traces(), town.flipped(known, [person]), 2)
        after, _ = run_locally(task, flipped)
        assert after[person] == before[person]
        assert (after != before).any()


@pytest.mark.parametrize("cells", ["slot", "window"])
def test_each_site_s_sums_carry_the_whole_noise_and_each_site_s_another(cells):
    task = task_of(privacy=replace(PRIVATE["sums"], cells=cells))
    clear = replace(PRIVATE["sums"], cells=cells, epsilon=1e12)
    apart = []
    for data in split_sites(town.traces(), town.known(), 2):
        bare = FieldSite(data, task_of(privacy=clear), 3, 5).count().crowd
        noised = FieldSite(data, task, 3, 5)
        rest = (noised.count().crowd - bare)[:, 1:]
        apart.append(rest.ravel() / noised.scale["presence", 0])
        assert apart[-1].std() == pytest.approx(1.0, abs=0.45)
    assert abs(np.corrcoef(*apart)[0, 1]) < 0.6


def test_everybody_adds_noise_to_the_count_of_tests():
    """Else whoever adds noise was tested."""
    task, traces = task_of(privacy=PRIVATE["local"]), town.traces()
    none = town.known().of_people(np.zeros(traces.people, bool))
    (data,) = split_sites(traces, none, 1)
    noises = [FieldSite(data, task, 3, key).count().tests[0] for key in range(30)]
    sigma = FieldPlan(PRIVATE["local"], town.traces().clock).sigma("tests")
    spread = sigma * np.sqrt(town.traces().people)
    assert np.std(noises) == pytest.approx(spread, rel=0.35)


def test_who_the_seeds_were_is_told_to_nobody():
    scene = town_scene()
    rule = replace(scene.rule, seed_count=None, seed_people=(1, 5, 9))
    task = FieldTask.of(FalconFieldSettings(), scene.pathogen, rule)
    assert (task.rule.seed_people, task.rule.seed_count) == ((), 3)
    with pytest.raises(SettingsError, match="set seed_count"):
        FieldTask(rule=rule)


class Watching(LocalSites):
    """Sites in one process that note the runs they are asked for."""

    def __init__(self, sites_data):
        super().__init__(sites_data)
        self.runs = []

    def begin(self, run):
        self.runs.append(run)
        super().begin(run)


@pytest.mark.parametrize("folds", [0, 1, 2, 3, 4, 5])
def test_every_run_starts_from_one_that_knew_a_subset_of_its_tests(folds):
    task = task_of(replace(QUICK, folds=folds))
    (data,) = split_sites(town.traces(), town.known(), 1)
    people = Watching([FieldSite(data, task, SEED, 0)])
    schedule = InferenceSchedule(people, task, data.traces.people, data.traces.clock)
    schedule.run()
    base = last = None
    for run in people.runs:
        before = {"cold": run, "base": base, "last": last}[run.start]
        assert set(run.without) <= set(before.without)
        base = run if run.purpose == "base" else base
        last = run
    finals = [run.without for run in people.runs if run.purpose == "final"]
    assert sorted(finals) == [(), *((fold,) for fold in range(folds))]
    for pair in schedule.pairs():
        for fold in pair.owned:
            partner = pair.partner(fold)
            assert {fold, partner} - {None} == set(pair.folds)
            assert (partner is None) == (folds < 3)


def test_a_site_refuses_to_start_from_tests_that_a_run_excludes():
    (data,) = split_sites(town.traces(), town.known(), 1)
    people = FieldSite(data, task_of(QUICK), SEED, 0)
    with pytest.raises(DataError, match="does not have"):
        people.begin(FieldRun((0,), start="base"))
    people.begin(FieldRun((0,), purpose="base"))
    people.begin(FieldRun((0,), start="base"))
    for start in ("base", "last"):
        with pytest.raises(DataError, match="used tests it excludes"):
            people.begin(FieldRun((1,), start=start))
    with pytest.raises(DataError, match="not held out of any run"):
        people.losses([HeldOutFold(1, (0,))], ("fixed",))
