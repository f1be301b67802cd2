"""Falcon Field over people who may be anywhere: one result, however they are split."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.falcon_field import FalconField
from epifalcon.baselines.ordering import own_order
from epifalcon.errors import SettingsError
from epifalcon.federation.field.course import Course, Gathered, Setting
from epifalcon.federation.field.home import FieldHome
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.field.task import FieldTask
from epifalcon.federation.preparing import Household
from epifalcon.federation.sites.one_process import split
from epifalcon.models.field.choosing import choose
from epifalcon.models.field.settings import ALIKE, LAWS
from epifalcon.streams import Streams
from tests.baselines.test_hbp import town_scene
from tests.federation.field.field_sites import (
    PLAIN,
    PRIVATE,
    QUICK,
    gathered,
    task_of,
)
from tests.studies import town


def risks(task, sites):
    return gathered(task, split(town.traces(), town.known(), sites))


@pytest.mark.parametrize("field", [QUICK, replace(PLAIN, folds=0)], ids=["auto", "one"])
def test_any_split_into_sites_gives_the_same_bits(field):
    task = task_of(field)
    whole, found = risks(task, 1)
    for sites in (3, 17):
        risk, told = risks(task, sites)
        np.testing.assert_array_equal(risk, whole)
        assert (told.law, told.laws_of_folds) == (found.law, found.laws_of_folds)


@pytest.mark.parametrize("law", ["one", "apart"])
def test_without_folds_it_is_the_method_in_one_process_to_the_bit(law):
    field = replace(QUICK, folds=0, region=replace(QUICK.region, law=law))
    method = FalconField(town_scene(), FieldWishes(field=field)).fit(town.known())
    risk, _ = risks(task_of(field), 4)
    np.testing.assert_array_equal(risk, method.predict_proba())


def test_a_tested_person_s_own_result_moves_its_own_risk_by_no_bit():
    known, task = town.known(), task_of(QUICK)
    homes = split(town.traces(), known, 2)
    before, _ = gathered(task, homes)
    for person in np.unique(known.person)[::9]:
        flipped = split(town.traces(), town.flipped(known, [person]), 2)
        after, _ = gathered(task, flipped)
        assert after[person] == before[person]
        assert (after != before).any()


@pytest.mark.parametrize("cells", ["slot", "window"])
def test_each_site_s_sums_carry_the_whole_noise_and_each_site_s_another(cells):
    task = task_of(privacy=replace(PRIVATE["sums"], cells=cells))
    clear = replace(PRIVATE["sums"], cells=cells, epsilon=1e12)
    apart = []
    for home in split(town.traces(), town.known(), 2):
        bare = FieldHome(home, task_of(privacy=clear), 3, 5).count().crowd
        noised = FieldHome(home, task, 3, 5)
        rest = (noised.count().crowd - bare)[:, 1:]
        apart.append(rest.ravel() / noised.scale["presence", 0])
        assert apart[-1].std() == pytest.approx(1.0, abs=0.45)
    assert abs(np.corrcoef(*apart)[0, 1]) < 0.6


def test_everybody_adds_noise_to_the_count_of_tests():
    """Else whoever adds noise was tested."""
    task, none = task_of(privacy=PRIVATE["local"]), town.known().of_people
    homes = split(town.traces(), none(np.zeros(town.traces().people, bool)), 1)
    noises = [FieldHome(homes[0], task, 3, key).count().tests[0] for key in range(30)]
    sigma = FieldPlan.of(PRIVATE["local"], town.traces().clock).sigma("tests")
    spread = sigma * np.sqrt(town.traces().people)
    assert np.std(noises) == pytest.approx(spread, rel=0.35)


@pytest.mark.parametrize("mode", ["sums", "local"])
@pytest.mark.parametrize("cells", ["slot", "window"])
def test_one_private_site_is_the_method_in_one_process(mode, cells):
    """But for the rounding of noise, and what the server thinks of contacts."""
    scene = town_scene()
    scene = replace(scene, rule=replace(scene.rule, kappa=1.0))
    wishes = FieldWishes(field=PLAIN, privacy=replace(PRIVATE[mode], cells=cells))
    task = FieldTask.of(wishes, scene.pathogen, scene.rule, scene.test_errors)
    order = own_order(scene.traces, town.known())
    home = Household(order.traces(scene.traces), order.known(town.known()), 0)
    noise = Streams(scene.seed).seed_for("falcon-field noise")
    people = Gathered([FieldHome(home, task, scene.seed, noise)])
    traces = home.traces
    Course(people, task, Setting(traces.people, traces.clock, traces.regions)).go()
    risk = np.empty(traces.people)
    risk[order.people] = people.risk
    method = FalconField(scene, wishes).fit(town.known())
    if mode == "sums":
        np.testing.assert_allclose(risk, method.predict_proba(), atol=1e-4)
    else:
        # Noise of tests is drawn person by person there.
        assert np.corrcoef(risk, method.predict_proba())[0, 1] > 0.9


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_a_law_chosen_by_sums_is_the_law_chosen_by_people(people, seed, parts):
    lost = np.random.default_rng(seed).gamma(1.0, 0.5, (people, len(LAWS)))
    lost[:, 2] -= 0.2 * np.random.default_rng(seed + 1).random(people)
    lost = np.rint(np.abs(lost) * 2**20) / 2**20
    split_up = [Judgement.of(some) for some in np.array_split(lost, parts)]
    whole = Judgement.of(lost)
    total = sum(split_up, Judgement.none())
    np.testing.assert_array_equal(total.products, whole.products)
    by_law = {law: lost[:, place] for place, law in enumerate(LAWS)}
    assert total.best() == choose(by_law, ALIKE)
    among = [law for law in LAWS if law in ("scaled", "mild", "apart")]
    expected = choose({law: by_law[law] for law in among}, ALIKE)
    assert total.best(among) == expected


def test_who_the_seeds_were_is_told_to_nobody():
    scene = town_scene()
    rule = replace(scene.rule, seed_count=None, seed_people=(1, 5, 9))
    task = FieldTask.of(FieldWishes(), scene.pathogen, rule, scene.test_errors)
    assert (task.rule.seed_people, task.rule.seed_count) == ((), 3)
    with pytest.raises(SettingsError, match="only their number"):
        FieldTask(rule=rule)
