"""Falcon Field over people who may be anywhere: one result, however they are split."""

from dataclasses import replace

import numpy as np
import pytest
from epifalcon.federation.field.cells import CellShape, shrunk_means
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.baselines.falcon_field import FalconField
from epifalcon.errors import SettingsError
from epifalcon.federation.field.home import FieldHome
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.settings import FieldWishes
from epifalcon.federation.field.task import FieldTask
from epifalcon.federation.sites.one_process import split
from epifalcon.models.field.choosing import choose
from epifalcon.models.field.settings import LAWS
from epifalcon.privacy.ledger import Ledger
from tests.baselines.test_hbp import town_scene
from tests.federation.field.field_sites import (
    PLAIN,
    PRIVATE,
    QUICK,
    gathered,
    task_of,
)
from tests.models.field.fields import together_of
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


def test_noise_of_people_is_the_same_however_they_are_split():
    task = task_of(privacy=PRIVATE["local"])
    np.testing.assert_array_equal(risks(task, 1)[0], risks(task, 5)[0])


def test_each_site_s_sums_carry_the_whole_noise_and_each_site_s_another():
    task = task_of(privacy=PRIVATE["sums"])
    homes = split(town.traces(), town.known(), 2)
    apart = []
    for home in homes:
        clear = FieldHome(home, task_of(), 3, 5).count()
        noised = FieldHome(home, task, 3, 5)
        cells = noised.shape.totals(clear.crowd)
        scale = noised.plan.sigma["presence"] * noised.shape.slots_per_cell
        apart.append(((noised.count().crowd - cells) / scale)[:, 1:])
        assert apart[-1].std() == pytest.approx(1.0, abs=0.25)
    assert abs(np.corrcoef(apart[0].ravel(), apart[1].ravel())[0, 1]) < 0.4


def test_everybody_adds_noise_to_the_count_of_tests():
    """Else whoever adds noise was tested."""
    task, none = task_of(privacy=PRIVATE["local"]), town.known().of_people
    homes = split(town.traces(), none(np.zeros(town.traces().people, bool)), 1)
    noises = [FieldHome(homes[0], task, 3, key).count().tests[0] for key in range(60)]
    sigma = FieldPlan.of(PRIVATE["local"], town.traces().clock).sigma["tests"]
    spread = sigma * np.sqrt(town.traces().people)
    assert np.std(noises) == pytest.approx(spread, rel=0.3)


@pytest.mark.parametrize("cells", ["slot", "day"])
def test_cells_are_read_as_in_one_process(cells):
    wish = replace(PRIVATE["sums"], cells=cells)
    together = together_of(town_scene(), town.known())
    plan = FieldPlan.of(wish, town.traces().clock)
    noised = Noised(together, plan, Ledger(plan.budget), seed=4)
    shape = CellShape(town.traces().clock, cells)
    np.testing.assert_allclose(shape.crowd(noised._present), noised.crowd())
    rng = np.random.default_rng(0)
    totals = shape.totals(rng.random(together.crowd().shape) * together.crowd())
    means = totals / shape.slots_per_cell
    sigma = plan.sigma["infectious"] * np.sqrt(noised._noises)
    mine = shrunk_means(noised._noised(means, "infectious", 0), noised._present, sigma)
    np.testing.assert_allclose(mine, noised._means(means, "infectious"))
    local = replace(wish, mode="local")
    everybody = Noised(
        together, FieldPlan.of(local, town.traces().clock), Ledger(), seed=4
    )
    np.testing.assert_array_equal(shape.senders(town.traces()), everybody._noises)


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
    expected = choose({law: lost[:, place] for place, law in enumerate(LAWS)})
    assert total.best() == expected


def test_who_the_seeds_were_is_told_to_nobody():
    scene = town_scene()
    rule = replace(scene.rule, seed_count=None, seed_people=(1, 5, 9))
    task = FieldTask.of(FieldWishes(), scene.pathogen, rule, scene.test_errors)
    assert (task.rule.seed_people, task.rule.seed_count) == ((), 3)
    with pytest.raises(SettingsError, match="only their number"):
        FieldTask(rule=rule)
