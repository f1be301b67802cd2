import dataclasses
import math

import numpy as np
import pytest

from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation.field import private
from epifalcon.federation.field.plan import INFECTIOUS, PRESENCE, TESTS, FieldPlan
from epifalcon.federation.field.private import Noised
from epifalcon.federation.field.reading import Noisy, Profile
from epifalcon.federation.field.sending import Sent
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.models.field.places import told_at_first
from epifalcon.models.field.tables import Manner
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.ledger import Ledger
from tests.baselines.test_hbp import town_scene
from tests.models.field.fields import city_of, part_of, together_of
from tests.studies import town

MODES = pytest.mark.parametrize("mode", ["sums", "local"])
CELLS = pytest.mark.parametrize("cells", ["slot", "day", "window"])
UNITS = pytest.mark.parametrize("unit", ["visit", "day", "person"])


def wish(**more):
    return FieldPrivacySettings(**{"mode": "sums", "sweeps": 2, **more})


def noised_of(settings, seed=1, together=None, ledger=None):
    together = together or together_of(town_scene(), town.known())
    plan = FieldPlan.of(settings, town.traces().clock)
    ledger = ledger or Ledger(plan.budget)
    return Noised(together, plan, ledger, seed)


def at_first(together):
    city = city_of(town_scene(), together)
    slots = city.clock.slots
    told = told_at_first(city, np.full(slots, 0.002))
    return told, Manner(1.0, np.ones(slots), 16.0)


def brought(noised):
    told, manner = at_first(noised._together)
    return noised.sweep(told, manner, well=False, tally=False)


@MODES
@CELLS
@UNITS
def test_all_that_leaves_costs_what_was_promised(mode, cells, unit):
    settings = wish(mode=mode, cells=cells, unit=unit, epsilon=3.0, sweeps=3)
    noised = noised_of(settings)
    for _ in range(3):
        brought(noised)
    spent = noised.ledger.spent()
    assert spent.total[unit].epsilon == pytest.approx(3.0, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        brought(noised)


@UNITS
def test_the_promise_is_what_a_plain_account_says(unit):
    """Two exchanges: a message is moved by 1, then replaced by any other."""
    plan = FieldPlan.of(wish(unit=unit), town.traces().clock)
    squared = (1 / plan.sigma(INFECTIOUS, 1)) ** 2
    squared += (2 / plan.sigma(INFECTIOUS, 2)) ** 2
    squared += (1 / plan.sigma(PRESENCE)) ** 2
    squared += 2 * (1 / plan.sigma(TESTS)) ** 2
    assert epsilon_of(math.sqrt(squared), 1e-6) == pytest.approx(8.0, rel=1e-9)


def without(traces, slots, person):
    """The traces with these slots of a person not observed."""
    by_slot = traces.by_slot.copy()
    by_slot[slots, person] = -1
    return dataclasses.replace(traces, by_slot=by_slot)


def sent_by(traces, known, settings):
    """What one person sends, before noise: presence and the first message."""
    scene = dataclasses.replace(town_scene(), traces=traces)
    found = []
    noised = noised_of(settings, together=together_of(scene, known))

    def keep(sent, _channel, _number, reach):
        found.append(sent.total[:, 1:] / reach)
        return Noisy(sent.total[:, 1:], np.ones_like(sent.total[:, 1:]))

    noised._noised = keep
    noised._presence()
    told, manner = at_first(noised._together)
    noised.sweep(told, manner, well=False, tally=False)
    return found


@CELLS
@UNITS
def test_nobody_moves_a_release_by_more_than_its_receipt_says(cells, unit):
    """Person, days and visits against not observed, in L2, in units of the reach."""
    settings = wish(cells=cells, unit=unit, sweeps=1)
    clock = town.traces().clock
    plan = FieldPlan.of(settings, clock)
    known = town.known()
    whom = [*known.person[known.positive][:2].tolist(), int(known.person[0])]
    day = slice(0, clock.slots_per_day)
    last = slice(clock.slots - clock.slots_per_day, clock.slots)
    parts = {"person": [slice(None)], "day": [day, last], "visit": [-1]}
    for person in whom:
        traces, tests = part_of(town.traces(), known, [person])
        whole = sent_by(traces, tests, settings)
        for name, listed in parts.items():
            for slots in listed:
                less = sent_by(without(traces, slots, 0), tests, settings)
                for channel, one, other in zip(
                    (PRESENCE, INFECTIOUS), whole, less, strict=True
                ):
                    receipt = plan.receipt(channel, 1)
                    most = math.sqrt(receipt.terms.releases.of(name))
                    moved = np.linalg.norm(one - other)
                    assert moved <= receipt.clip * most + 1e-6


@MODES
def test_noise_has_the_size_that_the_receipt_says(mode):
    """Of many draws, in units of the promised noise: mean 0, deviation 1."""
    settings = wish(mode=mode, unit="person", epsilon=0.5, sweeps=1)
    noised = noised_of(settings)
    shape = (4, 1 + 5000)
    senders = np.tile(np.arange(shape[1]) % 3, (4, 1)).astype(float)
    sent = Sent(np.full(shape, 7.0), senders)
    reach = 0.25
    told = noised._noised(sent, INFECTIOUS, 1, reach)
    (receipt,) = noised._plan.exchange(1)
    noises = senders[:, 1:] if mode == "local" else 1.0
    scale = receipt.sigma / receipt.clip * reach * np.sqrt(noises)
    np.testing.assert_allclose(told.sigma, np.broadcast_to(scale, told.sigma.shape))
    some = told.sigma > 0
    apart = (told.total - 7.0)[some] / told.sigma[some]
    assert apart.mean() == pytest.approx(0, abs=4 / math.sqrt(apart.size))
    assert apart.std() == pytest.approx(1, abs=4 / math.sqrt(2 * apart.size))
    assert abs(np.corrcoef(apart[:-1], apart[1:])[0, 1]) < 4 / math.sqrt(apart.size)
    # Where nobody sends nothing arrives, not even noise.
    np.testing.assert_array_equal(told.total[~some], 7.0)


def test_each_channel_and_exchange_has_noise_of_its_own():
    noised = noised_of(wish(sweeps=3))
    sent = Sent(np.zeros((1, 400)), np.ones((1, 400)))
    seen = [
        noised._noised(sent, channel, number, 1.0)
        for channel, number in ((PRESENCE, 0), (INFECTIOUS, 1), (INFECTIOUS, 2))
    ]
    rows = np.stack([(one.total / one.sigma)[0] for one in seen])
    assert np.abs(np.corrcoef(rows) - np.eye(3)).max() < 0.2


@MODES
def test_the_server_knows_noised_sums_alone(mode):
    """Other people with the same noised sums: all that is told is the same."""
    settings = wish(mode=mode, sweeps=1)
    known = town.known()
    towns = [
        together_of(town_scene(), known),
        together_of(town_scene(), town.flipped(known, known.person[::2])),
    ]
    kept, told = {}, []
    for together in towns:
        noised = Noised.__new__(Noised)

        def same(sent, channel, number, reach, noised=noised):
            made = Noised._noised(noised, sent, channel, number, reach)
            return kept.setdefault((channel, number), made)

        noised._noised = same
        plan = FieldPlan.of(settings, town.traces().clock)
        noised.__init__(together, plan, Ledger(plan.budget), 3)
        told.append((noised.crowd(), brought(noised)))
    crowds, sums = zip(*told, strict=True)
    np.testing.assert_array_equal(*crowds)
    for name in ("infectious", "evidence", "well", "tally"):
        first, second = (getattr(one, name) for one in sums)
        np.testing.assert_array_equal(first, second)
    # The people did differ.
    messages = [one.cohorts[0].home.infectious for one in towns]
    assert (messages[0] != messages[1]).any()


def test_crowds_in_the_clear_are_of_the_places_of_most_time():
    noised = noised_of(wish(mode="local", places=1))
    traces = town.traces()
    senders = np.zeros(len(traces.regions))
    for person in range(traces.people):
        here = traces.by_slot[:, person]
        times = np.bincount(here[here >= 0], minlength=len(senders))
        ties = np.flatnonzero(times == times.max())
        first = min(ties, key=lambda region: int(np.argmax(here == region)))
        senders[first] += 1
    np.testing.assert_allclose(noised.crowd()[0, 1:] - 1, np.maximum(senders, 0.5))


def test_the_same_seed_draws_the_same_and_a_second_run_is_not_counted_twice(tmp_path):
    plan = FieldPlan.of(wish(), town.traces().clock)
    found = []
    for _ in range(2):
        ledger = Ledger.open(tmp_path / "ledger", budget=plan.budget, replay_from=0)
        noised = noised_of(wish(), ledger=ledger)
        found.append(brought(noised).infectious)
        assert len(ledger.releases) == 3
    np.testing.assert_array_equal(*found)
    assert (brought(noised_of(wish(), seed=2)).infectious != found[0]).any()


@CELLS
def test_much_noise_leaves_the_mean_and_little_leaves_the_cells(cells):
    """What is told of each cell: all of its sum, or what everybody expects."""
    plain = together_of(town_scene(), town.known())
    told, manner = at_first(plain)
    true = plain.sweep(told, manner, well=False, tally=False).infectious
    rates, clock = plain.cohorts[0].rates, town.traces().clock
    profile = Profile.of(told, rates, clock, manner.bound)
    usual = profile.usual[:, None]
    more = true - usual * plain.crowd()
    length = FieldPlan.of(wish(cells=cells), clock).length
    cell = np.arange(clock.slots) // length
    more = np.stack([more[cell == one].sum(axis=0) for one in cell])
    size = np.array([profile.excess[cell == one].sum() for one in cell])
    noised = {
        epsilon: noised_of(wish(cells=cells, epsilon=epsilon, sweeps=1, bound=2.0))
        for epsilon in (1e9, 0.05)
    }
    others = noised[1e9].crowd() - 1
    share = (profile.excess / size)[:, None] / np.maximum(others, 0.5)
    wanted = np.clip(usual + share * more, 1e-5, 1)[:, 1:]
    found = (brought(noised[1e9]).infectious / np.maximum(others, 0.5))[:, 1:]
    np.testing.assert_allclose(found, wanted, atol=5e-3)
    assert (wanted / usual).std() > 0.2
    # Of much noise as good as nothing comes through.
    others = noised[0.05].crowd() - 1
    found = (brought(noised[0.05]).infectious / np.maximum(others, 0.5))[:, 1:]
    assert np.abs(found / usual - 1).mean() < 0.1 * (wanted / usual).std()


@MODES
def test_more_exchanges_are_read_together(mode):
    """Each by its precision: their sum tells as much as all of them."""
    noised = noised_of(wish(mode=mode, sweeps=3))
    for _ in range(3):
        brought(noised)
    first, second, third = noised._heard
    np.testing.assert_allclose(second.sigma, 2 * first.sigma)
    np.testing.assert_allclose(third.sigma, second.sigma)
    pooled = private._pooled(noised._heard)
    mean = (first.total + second.total / 4 + third.total / 4) / 1.5
    np.testing.assert_allclose(pooled.total, mean)
    np.testing.assert_allclose(pooled.sigma, first.sigma / math.sqrt(1.5))


def test_more_sums_than_are_paid_for_are_refused():
    noised = noised_of(wish())
    with pytest.raises(SettingsError, match="one sum"):
        noised.sweep(None, None, well=False, tally=True)
    assert len(noised.ledger.releases) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "paper"},
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"cells": "week"},
        {"bound": 0.0},
        {"places": 0},
        {"sweeps": 0},
        {"presence_share": 1.0},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        FieldPrivacySettings(**wrong)
