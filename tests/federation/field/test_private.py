import dataclasses

import numpy as np
import pytest

from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.models.field.chains import Manner
from epifalcon.models.field.places import told_at_first
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.ledger import Ledger
from tests.baselines.test_hbp import town_scene
from tests.models.field.fields import city_of, part_of, together_of
from tests.studies import town

MODES = pytest.mark.parametrize("mode", ["sums", "local"])
CELLS = pytest.mark.parametrize("cells", ["slot", "day"])


def wish(**more):
    return FieldPrivacySettings(**{"mode": "sums", "sweeps": 2, **more})


def noised_of(settings, seed=1, together=None, ledger=None):
    together = together or together_of(town_scene(), town.known())
    plan = FieldPlan.of(settings, town.traces().clock)
    ledger = ledger or Ledger(plan.budget)
    return Noised(together, plan, ledger, seed)


def brought(noised, together=None, known=None):
    together = together or together_of(town_scene(), known or town.known())
    city = city_of(town_scene(), together)
    slots = city.clock.slots
    told = told_at_first(city, np.full(slots, 0.002))
    manner = Manner(1.0, np.ones(slots), 1.0)
    return noised.sweep(told, manner, well=False, tally=False)


@MODES
@CELLS
@pytest.mark.parametrize("unit", ["visit", "day", "person"])
def test_all_that_leaves_costs_what_was_promised(mode, cells, unit):
    settings = wish(mode=mode, cells=cells, unit=unit, epsilon=3.0, sweeps=3)
    noised = noised_of(settings)
    for _ in range(3):
        brought(noised)
    spent = noised.ledger.spent()
    assert spent.total[unit].epsilon == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(BudgetExceededError):
        brought(noised)


def test_the_promise_is_what_a_plain_account_says():
    plan = FieldPlan.of(wish(cells="slot", sweeps=2), town.traces().clock)
    slots = town.traces().slots
    squared = 2 * slots * (1 / plan.sigma["infectious"]) ** 2
    squared += 2 * slots * (1 / plan.sigma["evidence"]) ** 2
    squared += slots * (1 / plan.sigma["presence"]) ** 2
    squared += 2 * (1 / plan.sigma["tests"]) ** 2
    assert epsilon_of(np.sqrt(squared), 1e-6) == pytest.approx(8.0, rel=1e-6)


@CELLS
def test_nobody_moves_a_release_by_more_than_its_clip(cells):
    """What one person adds to the cells of a unit of time, in L2."""
    noised = noised_of(wish(cells=cells))
    for person in (0, 17, 41):
        alone = part_of(town.traces(), town.known(), [person])
        scene = dataclasses.replace(town_scene(), traces=alone[0])
        together = together_of(scene, alone[1])
        city = city_of(scene, together)
        slots = city.clock.slots
        told = told_at_first(city, np.full(slots, 0.05))
        manner = Manner(1.0, np.ones(slots), 1.0)
        sums = together.sweep(told, manner, well=False, tally=False)
        for sent in (together.crowd(), sums.infectious, sums.evidence):
            rows = noised._cells(sent)
            assert (np.linalg.norm(rows, axis=1) <= 1 + 1e-9).all()
            assert len(rows) == noised._plan.releases.person


def test_noise_has_the_planned_size():
    noised = noised_of(wish(epsilon=0.5))
    true = noised._cells(noised._together.crowd())
    apart = (noised._present - true) / noised._plan.sigma["presence"]
    assert apart.std() == pytest.approx(1.0, abs=0.06)


def test_local_noise_adds_up_over_those_who_send():
    noised = noised_of(wish(mode="local", cells="day"))
    traces = town.traces()
    senders = np.zeros_like(noised._noises)
    for person in range(traces.people):
        for slot in range(traces.slots):
            region = traces.by_slot[slot, person]
            day = slot // traces.clock.slots_per_day
            if region >= 0:
                before = traces.by_slot[day * traces.clock.slots_per_day : slot, person]
                senders[day, region + 1] += region not in before
    np.testing.assert_array_equal(noised._noises, senders)


def test_the_same_seed_draws_the_same_and_a_second_run_is_not_counted_twice(tmp_path):
    plan = FieldPlan.of(wish(), town.traces().clock)
    found = []
    for _ in range(2):
        ledger = Ledger.open(tmp_path / "ledger", budget=plan.budget, replay_from=0)
        noised = noised_of(wish(), ledger=ledger)
        found.append(brought(noised).infectious)
        assert len(ledger.releases) == 4
    np.testing.assert_array_equal(*found)
    assert (brought(noised_of(wish(), seed=2)).infectious != found[0]).any()


def test_much_noise_leaves_the_mean_and_little_leaves_the_cells():
    plain = together_of(town_scene(), town.known())
    true = brought(plain).infectious
    crowd = plain.crowd()
    met = crowd[:, 1:] > 1
    means = (true / np.maximum(crowd, 1))[:, 1:]
    spread = []
    for epsilon in (1e9, 0.05):
        noised = noised_of(wish(cells="slot", epsilon=epsilon))
        others = np.maximum(noised.crowd() - 1, 1e-9)
        spread.append((brought(noised).infectious / others)[:, 1:])
    np.testing.assert_allclose(spread[0][met], means[met], atol=0.01)
    assert means[met].std() > 0.03
    # Of much noise as good as nothing comes through.
    assert np.abs(spread[1] - means.mean()).std() < 10 * means.std()


def test_more_sums_than_are_paid_for_are_refused():
    noised = noised_of(wish())
    with pytest.raises(SettingsError, match="two sums"):
        noised.sweep(None, None, well=False, tally=True)
    assert len(noised.ledger.releases) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "paper"},
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"cells": "week"},
        {"evidence_bound": 0.5},
        {"sweeps": 0},
        {"evidence_share": 0.9},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        FieldPrivacySettings(**wrong)
