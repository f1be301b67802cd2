import dataclasses
import math

import numpy as np
import pytest

from epifalcon.belief_propagation.seir_chain import SweepOptions
from epifalcon.epidemic.test_kinds import EVER, PCR
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import BudgetExceededError, SettingsError
from epifalcon.federation.field import denoising
from epifalcon.federation.field.denoising import ExpectedProfile
from epifalcon.federation.field.inference_schedule import InferenceSchedule, LocalSites
from epifalcon.federation.field.privacy_plan import (
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
)
from epifalcon.federation.field.settings import FieldPrivacySettings
from epifalcon.federation.field.site_people import (
    FieldRun,
    FieldSite,
    Sent,
    excess_clipping,
    presence_clipping,
    send,
)
from epifalcon.federation.preparation import SiteData
from epifalcon.privacy.accounting import epsilon_of
from epifalcon.privacy.ledger import Ledger
from tests.belief_propagation.graphs import cohorts_of, graph_of, part_of
from tests.federation.field.field_sites import task_of
from tests.methods.test_hbp import town_scene
from tests.studies import town

MODES = pytest.mark.parametrize("mode", ["sums", "sealed", "local"])
CELLS = pytest.mark.parametrize("cells", ["slot", "day", "window"])
UNITS = pytest.mark.parametrize("unit", ["visit", "day", "person"])
SLOTS = town.traces().slots


def private_settings(**more):
    return FieldPrivacySettings(**{"mode": "sums", "sweeps": 2, **more})


def site_of(settings, traces=None, known=None, noise=1):
    site = SiteData(traces or town.traces(), known or town.known(), 0)
    task, people = task_of(privacy=settings), town.traces().people
    return FieldSite(site, task, 3, noise, people)


def first_messages():
    """The first messages of a run, and how to damp."""
    graph = graph_of(town_scene(), cohorts_of(town_scene(), town.known()).crowd())
    received = graph.first_messages(np.full(SLOTS, 0.002))
    return received, SweepOptions(1.0, np.ones(SLOTS), 16.0)


class Private:
    """The town behind noise: its home, course and exchange."""

    def __init__(self, settings, known=None, ledger=None):
        self.site = site_of(settings, known=known)
        people = LocalSites([self.site], ledger)
        traces = self.site.data.traces
        task, clock = self.site.task, traces.clock
        self.schedule = InferenceSchedule(people, task, traces.people, clock)
        people.begin(FieldRun())
        self.exchange = self.schedule._private

    def sweep(self):
        received, options = first_messages()
        return self.exchange.sweep(received, options)

    @property
    def others(self):
        return self.schedule.graph.present - 1


@MODES
@CELLS
@UNITS
def test_all_that_leaves_costs_the_budget(mode, cells, unit):
    where = {"mode": mode, "cells": cells, "unit": unit}
    settings = private_settings(**where, epsilon=3.0, sweeps=3)
    ledger = Ledger(FieldPlan(settings, town.traces().clock).budget)
    private = Private(settings, ledger=ledger)
    for _ in range(3):
        private.sweep()
    assert ledger.spent().total[unit].epsilon == pytest.approx(3.0, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        private.sweep()


@UNITS
def test_the_promise_is_what_a_plain_account_says(unit):
    """Two exchanges: a message is moved by 1, then replaced by any other."""
    plan = FieldPlan(private_settings(unit=unit), town.traces().clock)
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
    site = site_of(settings, traces, known)
    received, options = first_messages()
    site.cohort.sweep(received, options)
    profile = ExpectedProfile.of(received, site.rates, traces.clock, options.bound)
    cuts = presence_clipping(site.plan), excess_clipping(site.plan, profile, 1)
    return [send(site.cohort, cut).total[:, 1:] / cut.reach for cut in cuts]


@CELLS
@UNITS
@pytest.mark.parametrize("mode", ["sums", "sealed"])
def test_nobody_moves_a_release_by_more_than_its_receipt_says(mode, cells, unit):
    """Person, days and visits against not observed, in L2, in units of the reach."""
    settings = private_settings(mode=mode, cells=cells, unit=unit, sweeps=1)
    clock = town.traces().clock
    plan = FieldPlan(settings, clock)
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
                channels = PRESENCE, INFECTIOUS
                for channel, one, other in zip(channels, whole, less, strict=True):
                    receipt = plan.receipt(channel, 1)
                    most = math.sqrt(receipt.terms.releases.of(name))
                    moved = np.linalg.norm(one - other)
                    assert moved <= receipt.clip * most + 1e-6


@MODES
@CELLS
@pytest.mark.parametrize("unit", ["visit", "day"])
def test_one_visit_does_not_decide_about_the_rest_of_a_message(mode, cells, unit):
    """A person spends equal time in two regions, of which a message has one."""
    settings = private_settings(mode=mode, cells=cells, unit=unit, places=1, sweeps=1)
    known = town.known()
    traces, tests = part_of(
        town.traces(), known, [int(known.person[known.positive][0])]
    )
    by_slot = np.arange(SLOTS, dtype=np.int32)[:, None] % 2
    traces = dataclasses.replace(traces, by_slot=by_slot)
    whole, less = (
        sent_by(one, tests, settings) for one in (traces, without(traces, 0, 0))
    )
    for one, other in zip(whole, less, strict=True):
        assert 0 < np.linalg.norm(one - other) <= 1 + 1e-6


def test_a_test_of_one_person_changes_nothing_of_others():
    """Half of the others have a positive and then a negative test without errors."""
    people = town.traces().people
    others = np.repeat(np.arange(1, people, 2), 2)
    slots = np.tile([SLOTS - 50, SLOTS - 1], len(others) // 2)
    positive, kind = slots < SLOTS - 1, np.zeros(len(others), np.int8)
    before = TestResults.from_tests(people, others, positive, slots)
    after = TestResults.from_tests(
        people,
        np.append(others, 0),
        np.append(positive, False),
        np.append(slots, SLOTS - 1),
        kind=np.append(kind, 1),
        kinds=(EVER, PCR),
    )
    settings = private_settings(sweeps=1)
    sent = [sent_by(town.traces(), tests, settings) for tests in (before, after)]
    for one, other in zip(*sent, strict=True):
        assert np.linalg.norm(one - other) <= 1 + 1e-6


@MODES
def test_noise_has_the_scale_of_the_receipt(mode):
    settings = private_settings(mode=mode, unit="person", epsilon=0.5, sweeps=1)
    site = site_of(settings)
    shape = (4, 1 + 5000)
    senders = np.tile(np.arange(shape[1]) % 3, (4, 1)).astype(float)
    sent = Sent(np.full(shape, 7.0), senders)
    clipping = presence_clipping(site.plan)._replace(reach=0.25)
    total = site._noised(sent, INFECTIOUS, 1, clipping)[:, 1:]
    (receipt,) = site.plan.exchange(1)
    count = 2.0 if mode == "sealed" else 1.0
    noises = senders[:, 1:] if mode == "local" else np.full_like(total, count)
    scale = receipt.sigma / receipt.clip * 0.25 * np.sqrt(noises)
    some = scale > 0
    apart = (total - 7.0)[some] / scale[some]
    # The last bits do not show what was sent.
    step = 2.0 ** (math.floor(math.log2(receipt.sigma * 0.25)) - 16)
    if mode == "sealed":
        step = site.plan.step
    np.testing.assert_array_equal(total, np.round(total / step) * step)
    tests = site._noised_tests(np.array([3.0, 1.0]))
    if mode != "sealed":
        step = 2.0 ** (math.floor(math.log2(site.plan.sigma(TESTS))) - 16)
    np.testing.assert_array_equal(tests, np.round(tests / step) * step)
    assert apart.mean() == pytest.approx(0, abs=4 / math.sqrt(apart.size))
    assert apart.std() == pytest.approx(1, abs=4 / math.sqrt(2 * apart.size))
    assert abs(np.corrcoef(apart[:-1], apart[1:])[0, 1]) < 4 / math.sqrt(apart.size)
    # Where nobody sends nothing arrives, not even noise.
    np.testing.assert_array_equal(total[~some], 7.0)
    # Each channel and exchange has noise of its own.
    releases = [(INFECTIOUS, 1), (INFECTIOUS, 2), (PRESENCE, 0)]
    if mode == "local":
        releases[2] = (INFECTIOUS, 3)
    rows = [site._noised(sent, *one, clipping)[:, 2::3].ravel() for one in releases]
    assert np.abs(np.corrcoef(rows) - np.eye(3)).max() < 0.2


@MODES
def test_the_server_knows_noised_sums_alone(mode, monkeypatch):
    """Other people with the same noised sums: everything that follows is the same."""
    known, stored = town.known(), {}
    real_count, real_noised = FieldSite.count, FieldSite._noised

    def count(self):
        return stored.setdefault("count", real_count(self))

    def noised(self, sent, channel, number, clipping):
        made = real_noised(self, sent, channel, number, clipping)
        return stored.setdefault((channel, number), made)

    monkeypatch.setattr(FieldSite, "count", count)
    monkeypatch.setattr(FieldSite, "_noised", noised)
    towns = [
        Private(private_settings(mode=mode), one)
        for one in (known, town.flipped(known, known.person[::2]))
    ]
    first, second = (one.schedule.run().field for one in towns)
    for name, one in first.items():
        np.testing.assert_array_equal(one, second[name])
    # The people did differ.
    messages = [one.site.cohort.state.infectious for one in towns]
    assert (messages[0] != messages[1]).any()


def test_crowds_in_the_clear_are_of_the_places_of_most_time():
    private = Private(private_settings(mode="local", places=1))
    traces = town.traces()
    senders = np.zeros(len(traces.regions))
    for person in range(traces.people):
        here = traces.by_slot[:, person]
        times = np.bincount(here[here >= 0], minlength=len(senders))
        ties = np.flatnonzero(times == times.max())
        first = min(ties, key=lambda region: int(np.argmax(here == region)))
        senders[first] += 1
    np.testing.assert_allclose(private.others[0, 1:], np.maximum(senders, 0.5))


@CELLS
def test_much_noise_leaves_the_mean_and_little_leaves_the_cells(cells):
    """What is told of each cell: all of its sum, or what everybody expects."""
    plain = cohorts_of(town_scene(), town.known())
    received, options = first_messages()
    true = plain.sweep(received, options).infectious
    rates, clock = plain.cohorts[0].rates, town.traces().clock
    profile = ExpectedProfile.of(received, rates, clock, options.bound)
    usual = profile.usual[:, None]
    more = true - usual * plain.crowd()
    length = FieldPlan(private_settings(cells=cells), clock).length
    cell = np.arange(clock.slots) // length
    more = np.stack([more[cell == one].sum(axis=0) for one in cell])
    size = np.array([profile.excess[cell == one].sum() for one in cell])
    given = {"cells": cells, "sweeps": 1, "bound": 2.0}
    noised = {e: Private(private_settings(**given, epsilon=e)) for e in (1e9, 0.05)}
    others = noised[1e9].others
    share = (profile.excess / size)[:, None] / np.maximum(others, 0.5)
    wanted = np.clip(usual + share * more, 1e-5, 1)[:, 1:]
    found = (noised[1e9].sweep().infectious / np.maximum(others, 0.5))[:, 1:]
    np.testing.assert_allclose(found, wanted, atol=5e-3)
    assert (wanted / usual).std() > 0.2
    # Of much noise as good as nothing comes through.
    others = noised[0.05].others
    found = (noised[0.05].sweep().infectious / np.maximum(others, 0.5))[:, 1:]
    assert np.abs(found / usual - 1).mean() < 0.1 * (wanted / usual).std()


@MODES
def test_more_exchanges_are_read_together(mode):
    """Each by its precision: their sum tells as much as all of them."""
    private = Private(private_settings(mode=mode, sweeps=3))
    for _ in range(3):
        private.sweep()
    first, second, third = private.exchange._received
    np.testing.assert_allclose(second.sigma, 2 * first.sigma)
    np.testing.assert_allclose(third.sigma, second.sigma)
    pooled = denoising._pooled(private.exchange._received)
    mean = (first.total + second.total / 4 + third.total / 4) / 1.5
    np.testing.assert_allclose(pooled.total, mean)
    np.testing.assert_allclose(pooled.sigma, first.sigma / math.sqrt(1.5))


WRONG = {"mode": "paper", "epsilon": 0.0, "delta": 1.0, "cells": "week"}
WRONG |= {"bound": 0.0, "places": 0, "sweeps": 0, "presence_share": 1.0}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused(name):
    with pytest.raises(SettingsError, match=name):
        FieldPrivacySettings(**{name: WRONG[name]})
