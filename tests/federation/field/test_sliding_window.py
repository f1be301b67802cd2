"""A window that moves on day by day, beside the batch that knows all days at once."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from epifalcon.belief_propagation.inference import ChainCohort
from epifalcon.belief_propagation.saved_state import SavedField
from epifalcon.belief_propagation.settings import (
    FieldSettings,
    TransmissionSettings,
    WindowSettings,
)
from epifalcon.belief_propagation.transmission import Transmission
from epifalcon.epidemic.test_kinds import ANTIGEN, EVER
from epifalcon.epidemic.test_results import TestResults
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.federation.field.sliding_window import FieldWindow, NewDay
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.store import Origin
from tests.belief_propagation.graphs import Cohorts, converge, graph_of, rates_of
from tests.epidemic.worlds import wrong_tests
from tests.scenes import Scene

DAYS, PER_DAY, SEED, PEOPLE = 40, 4, 200, 160
WORDS = (
    f"city.people={PEOPLE}",
    "city.regions=40",
    f"city.days={DAYS}",
    "city.slot_hours=6",
    "labels.test_days=[0,39]",
    "outbreak.kappa=0.5",
    "outbreak.seed_count=6",
)


@cache
def world():
    """Traces of 40 days, tests on all of them, and the rule."""
    experiment = Experiment.load("hamlet", list(WORDS))
    traces = make_city(experiment, SEED)
    epidemic = next(run_epidemics(experiment, traces, SEED))
    return experiment, traces, epidemic.labels.known


def of_days(begin, end):
    """The traces from day ``begin`` to before day ``end``, from 0."""
    _, traces, _ = world()
    by_slot = np.ascontiguousarray(traces.by_slot[begin * PER_DAY : end * PER_DAY])
    clock = Clock(traces.clock.slot_hours, end - begin)
    return Traces(by_slot, clock, traces.regions)


def known_until(day, wrong=(0.0, 0.0)):
    known = world()[2].select(world()[2].slot < day * PER_DAY)
    return replace(known, kinds=(wrong_tests(*wrong),))


def batch(days, sweeps=15, transmission="fixed", wrong=(0.0, 0.0)):
    """The field of the first days, by one run."""
    experiment, whole, _ = world()
    traces, known = of_days(0, days), known_until(days, wrong)
    scene = Scene(whole, 0, experiment.pathogen, experiment.outbreak)
    rates = rates_of(scene)
    people = ChainCohort.of(traces, known, rates)
    graph = replace(graph_of(scene, people.crowd()), clock=traces.clock)
    settings = FieldSettings(sweeps=sweeps)
    state = converge(Cohorts([people]), graph, known, rates, settings, transmission)
    field = SavedField(graph, state.sums, state.factor, rates)
    return people, field, Transmission(transmission, TransmissionSettings())


def window_of(days, length, transmission="fixed"):
    people, field, transmission = batch(days, transmission=transmission)
    settings = FieldSettings(), WindowSettings(days=length)
    known = known_until(days)
    return FieldWindow.of_run(people, known, field, *settings, transmission)


def new_day(window, day):
    """Day ``day``, from 0, as it comes in."""
    _, traces, known = world()
    slots = slice(day * PER_DAY, (day + 1) * PER_DAY)
    chosen = (known.slot >= slots.start) & (known.slot < slots.stop)
    tests = known.select(chosen).since((window.first_day - 1) * PER_DAY)
    return NewDay(traces.by_slot[slots].copy(), tests)


def day_tests(person, positive, slot):
    values = (np.array(one) for one in (person, positive, slot))
    return {"tests": TestResults.from_tests(PEOPLE, *values)}


def moved(window, until):
    for day in range(window.last_day, until):
        window = window.update(new_day(window, day))
    return window


@cache
def rested():
    """Risks of all 40 days by one long run."""
    people, field, _ = batch(DAYS, sweeps=60)
    return people.risk, people.current_risk(field.messages())


@pytest.mark.parametrize("length", [DAYS, 14])
def test_a_window_ends_where_the_batch_does_or_near_it(length):
    window = moved(window_of(5, length=length), DAYS)
    assert (window.first_day, window.last_day) == (DAYS - length + 1, DAYS)
    assert window.traces.clock.days == length
    risk, now = window.risks()
    wanted, wanted_now = rested()
    flat = np.abs(wanted - wanted.mean()).mean()
    growing = length == DAYS
    assert np.abs(risk - wanted).mean() < (1e-3 if growing else 0.5 * flat)
    away = np.abs(now.without_tests - wanted_now.without_tests).mean()
    assert away < (1e-3 if growing else 0.02)
    if growing:
        assert np.abs(now.tested - wanted_now.tested).mean() < 1e-3


@pytest.mark.parametrize("wrong", [(0.0, 0.0), (0.0, 0.2)])
def test_what_is_dropped_stays_with_each_person(wrong):
    """Nothing is sent any more: then the boundary is all that a person needs."""
    people, field, transmission = batch(9, wrong=wrong)
    whole = np.abs(people.infections(field.messages()).risk - people.risk)
    assert whole.max() < 1e-6
    known, short = known_until(9, wrong), (FieldSettings(), WindowSettings(days=3))
    window = FieldWindow.of_run(people, known, field, *short, transmission)
    assert (window.first_day, window.last_day) == (7, 9)
    risk, now = window.risks()
    np.testing.assert_allclose(risk, people.risk, 0, 1e-5)
    wanted = people.current_risk(field.messages())
    np.testing.assert_allclose(now.without_tests, wanted.without_tests, 0, 1e-5)
    np.testing.assert_allclose(now.tested, wanted.tested, 0, 1e-5)
    np.testing.assert_array_equal(window.boundary.status, known.status)


def test_a_window_goes_on_from_disk_as_if_it_had_stayed(tmp_path):
    window = window_of(5, length=6, transmission="regional-strong")
    before, day = window.messages.evidence.copy(), new_day(window, 5)
    window.save(tmp_path / "state", Origin())
    ours, theirs = window.update(day), FieldWindow.load(tmp_path / "state").update(day)
    np.testing.assert_array_equal(ours.risks()[0], theirs.risks()[0])
    for mine, other in zip(ours.field.factor, theirs.field.factor, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert ours.last_day == theirs.last_day == 6
    # The window before is as it was.
    np.testing.assert_array_equal(window.messages.evidence, before)
    assert window.last_day == 5


def test_a_newcomer_enters_with_the_risk_of_the_city_and_then_its_own():
    window = moved(window_of(5, length=6), 8)
    day = new_day(window, 8)
    alone = np.full((PER_DAY, 1), -1, np.int32)
    more = replace(day, by_slot=np.hstack([day.by_slot, alone]))
    after = window.update(more)
    assert after.traces.people == window.traces.people + 1
    risk, _ = after.risks()
    expected = 1 - window.boundary.without_tests[:, 0].mean()
    assert risk[-1] == pytest.approx(expected, abs=0.02)
    # Who stays at the busiest place instead has more.
    busy = np.array([np.bincount(row[row >= 0]).argmax() for row in day.by_slot])
    met = replace(day, by_slot=np.hstack([day.by_slot, busy[:, None].astype(np.int32)]))
    assert window.update(met).risks()[0][-1] > risk[-1]


def test_visits_replace_those_of_a_day_in_the_window():
    """A day without visits, for later tests, is in the window before its visits are."""
    window = window_of(5, length=DAYS)
    day = new_day(window, 5)
    nobody = replace(day, by_slot=np.full_like(day.by_slot, -1))
    empty, whole = window.update(nobody), window.update(day)
    no_tests = day.tests.of_people(np.zeros(PEOPLE, np.bool_))
    late = replace(day, tests=no_tests, first_slot=5 * PER_DAY)
    filled = empty.update(late)
    assert filled.last_day == empty.last_day == 6
    np.testing.assert_array_equal(filled.traces.by_slot, whole.traces.by_slot)
    np.testing.assert_array_equal(filled.field.graph.present, whole.field.graph.present)
    wanted, without = whole.risks()[0], empty.risks()[0]
    assert (
        np.abs(filled.risks()[0] - wanted).max() < 0.2 * np.abs(without - wanted).max()
    )


def test_tests_of_another_kind_keep_kind_reason_and_onset():
    window = window_of(5, length=6)
    day = new_day(window, 5)
    values = (np.array(one) for one in ([7], [True], [4]))
    other = {"kinds": (ANTIGEN,), "reason": np.array([2]), "onset": np.array([1])}
    after = window.update(
        replace(day, tests=TestResults.from_tests(PEOPLE, *values, **other))
    )
    assert set(after.known.kinds) == {EVER, ANTIGEN}
    test = after.known.person == 7
    assert after.known.kinds[after.known.kind[test][-1]] == ANTIGEN
    assert (after.known.reason[test][-1], after.known.onset[test][-1]) == (2, 1)


def test_tests_of_days_that_are_gone_and_contradictions_are_borne():
    window = moved(window_of(5, length=5), 9)
    day = new_day(window, 9)
    late = day_tests([3, 3, 4, 4], [True, False, False, True], [0, 3, 1, 20])
    after = window.update(replace(day, **late))
    for _ in range(3):
        negative = day_tests([3], [False], [after.traces.slots])
        after = after.update(replace(day, **negative))
    risk, now = after.risks()
    for message in (risk, now.without_tests, now.tested):
        assert np.isfinite(message).all()
        assert ((message >= 0) & (message <= 1)).all()
    for held in (after.messages.evidence, after.field.sums.infectious):
        assert np.isfinite(held).all()
    assert after.boundary.status[3] == after.boundary.status[4] == 1
