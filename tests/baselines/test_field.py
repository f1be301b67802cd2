import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epifalcon.baselines.field import Field, chances_of
from epifalcon.baselines.field_kernels import HAZARD_STEPS
from epifalcon.baselines.method import Scene
from epifalcon.baselines.ordering import own_order
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.disease import FREE, allowed_slots
from tests.baselines.encounters import (
    known_of,
    results,
    rules,
    scene_of,
    trees,
    world_of,
)
from tests.baselines.test_ordering import placed, renumbered, renumbered_tests
from tests.oracles.cities import cities, random_traces
from tests.oracles.exact_inference import without_own_test
from tests.oracles.numpy_field import NumpyField

exactly = settings(deadline=None, derandomize=True, max_examples=30)


def rested(scene, known, sweeps=12):
    field = Field(scene, scene.traces, known)
    for _ in range(sweeps):
        field.sweep(0.0)
    return field.risk


@exactly
@given(st.data(), trees(), rules)
def test_where_nobody_meets_twice_or_in_circles_the_risks_are_exact(data, tree, rule):
    scene = scene_of(tree, **rule)
    people = len(tree[0])
    tests = data.draw(results(people))
    found = rested(scene, known_of(people, tests))
    np.testing.assert_allclose(found, without_own_test(world_of(scene), tests), 0, 1e-5)


def test_one_crowd_is_exact_to_a_few_thousandths():
    by_slot = [[-1] * 5 for _ in range(6)]
    by_slot[2] = [0] * 5
    scene = scene_of(by_slot, kappa=0.1)
    for tests in ([(0, 5, True)], [(0, 5, True), (1, 5, False)], [(0, 1, True)]):
        exact = without_own_test(world_of(scene), tests)
        found = rested(scene, known_of(5, tests))
        np.testing.assert_allclose(found, exact, 0, 0.006)


@pytest.mark.parametrize("tests", [[(0, 7, 1)], [(0, 7, 1), (1, 7, 0)], [(2, 3, 0)]])
def test_people_who_meet_again_and_again_get_nearly_the_right_risk(tests):
    scene = scene_of([[0, 0, 1, 1], [0, 1, 1, 0]] * 4, kappa=0.03)
    exact = without_own_test(world_of(scene), tests)
    found = rested(scene, known_of(4, tests))
    np.testing.assert_allclose(found, exact, 0, 0.02)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(cities(), st.integers(0, 99), rules)
def test_the_kernels_do_what_the_formulas_say(traces, seed, rule):
    rng = np.random.default_rng(seed)
    rule = {**rule, "kappa": 3 * rule["kappa"]}
    scene = Scene(traces, rule=OutbreakSettings(seed_share=0.2, **rule))
    tests = [
        (person, rng.integers(traces.slots + 3), rng.random() < 0.4)
        for person in rng.integers(traces.people, size=traces.people)
    ]
    known = known_of(traces.people, tests)
    factor = rng.lognormal(size=len(traces.regions)) if seed % 2 else None
    ours = Field(scene, traces, known, factor)
    plain = NumpyField(scene, traces, known, factor)
    np.testing.assert_allclose(ours.risk, plain.risk, 0, 1e-5)
    for damping in (0.0, 0.5, 0.9, 1.0):
        change = ours.sweep(damping, 0.3), plain.sweep(damping, 0.3)
        np.testing.assert_allclose(ours.risk, plain.risk, 0, 1e-4)
        np.testing.assert_allclose(*change, 0, 2e-4)


def test_factors_of_another_city_are_refused():
    scene = scene_of([[0, 0, 1], [1, 0, 1]])
    with pytest.raises(DataError, match="factor of shape"):
        Field(scene, scene.traces, known_of(3, []), np.ones(99))


def crowded(people=70_000):
    clock = Clock(slot_hours=8, days=1)
    traces = random_traces(3, people, 50, clock)
    rng = np.random.default_rng(0)
    person = rng.permutation(people)[: people // 3]
    tests = np.stack(
        [person, np.full(len(person), 2), rng.random(len(person)) < 0.3], axis=1
    )
    return Scene(traces), known_of(people, tests)


def test_the_number_of_threads_changes_not_one_bit():
    scene, known = crowded()
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(rested(scene, known, sweeps=2).copy())
    finally:
        torch.set_num_threads(before)
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def twins(people=2000):
    """A city where many share one trace and one slot of tests, but not one result."""
    rng = np.random.default_rng(5)
    traces = placed(random_traces(5, people, 2, Clock(slot_hours=4, days=2)))
    by_slot = np.take(traces.by_slot, rng.integers(people // 8, size=people), axis=1)
    tests = [
        (person, rng.choice([5, 11]), rng.random() < 0.3)
        for person in rng.permutation(people)[: people // 2]
    ]
    return Traces(by_slot, traces.clock, traces.regions), known_of(people, tests)


def swept(traces, known, rule):
    """Risks and their changes in some sweeps in the city's own order.

    Handed back in the city's numbers: (sweeps, 2, people).
    """
    order = own_order(traces, known)
    ordered = order.traces(traces)
    # Rows that lie across memory would cost a copy, or compiled code of their own.
    assert ordered.by_slot.flags.c_contiguous
    field = Field(Scene(traces, rule=rule), ordered, order.known(known))
    damping = (0.0, 0.9, 0.5, 0.0, 0.2, 1.0)
    found = np.empty((len(damping), 2, traces.people))
    for sweep, kept in enumerate(damping):
        found[sweep, 1, order.people] = field.sweep(kept, 0.3)
        found[sweep, 0, order.people] = field.risk
    return found


@pytest.mark.parametrize("contact", ["I/N", "I/S"])
def test_other_numbers_change_not_one_bit_of_any_sweep(contact):
    rule = OutbreakSettings(contact=contact, seed_share=0.02)
    traces, known = twins()
    other, person = renumbered(traces, seed=6)
    moved = renumbered_tests(known, person)
    # Among twins the numbers decide, so each sum is taken in another order.
    there = own_order(other, moved).people
    assert (there != person[own_order(traces, known).people]).any()
    first, second = swept(traces, known, rule), swept(other, moved, rule)
    assert (first[:, 0] > 0).all()
    np.testing.assert_array_equal(second[:, :, person], first)


def test_what_edges_tell_is_a_whole_number_of_steps(monkeypatch):
    """So that no sum is rounded, however many people and in whatever order.

    Of hazards the risks would show it in larger cities alone: they pass through
    single precision.
    """
    told, total = [], Field._total
    monkeypatch.setattr(
        Field, "_total", lambda *given: told.append(total(*given)) or told[-1]
    )
    traces, known = twins()
    swept(traces, known, OutbreakSettings(contact="I/S", seed_share=0.02))
    steps = np.stack(told) * HAZARD_STEPS
    assert (steps != 0).any(axis=1).mean() > 0.8
    assert (steps == np.rint(steps)).all()
    assert np.abs(steps).max() < 2.0**53


@exactly
@given(cities(), st.integers(0, 99), rules, st.sampled_from(["I/N", "I/S"]))
def test_who_is_not_observed_is_like_who_is_alone(traces, seed, rule, contact):
    """To the last bit: nobody hears from the place of all who were not observed."""
    assume(traces.by_slot.max() >= 0)
    rng = np.random.default_rng(seed)
    rule = OutbreakSettings(seed_share=0.2, contact=contact, **rule)
    tests = [
        (person, rng.integers(traces.slots), rng.random() < 0.5)
        for person in range(traces.people)
    ]
    known, count = known_of(traces.people, tests), len(traces.regions)
    own = count + np.arange(traces.people, dtype=np.int32)
    alone = np.where(traces.by_slot < 0, own, traces.by_slot)
    centre = np.zeros((count + traces.people, 2))
    other = Traces(alone, traces.clock, Regions("area", centre))
    found = [rested(Scene(one, rule=rule), known, 3) for one in (traces, other)]
    np.testing.assert_array_equal(*found)


def test_tests_bound_the_slot_of_infection():
    tests = [(0, 3, 1), (1, 3, 0), (2, 2, 0), (2, 5, 1), (2, 7, 0), (3, 4, 1)]
    tests += [(3, 4, 0), (4, 99, 1), (5, 99, 0)]
    window = allowed_slots(known_of(7, tests), slots=8)
    assert window.first.tolist() == [0, 4, 3, 0, 0, 8, 0]
    assert window.last.tolist() == [3, FREE, 5, 4, 7, FREE, FREE]


def test_a_late_infection_is_not_ruled_out_by_an_early_test():
    by_slot = [[-1, -1], [-1, -1], [0, 0], [0, 0]]
    scene = scene_of(by_slot)
    early = rested(scene, known_of(2, [(0, 3, True), (1, 0, False)]))
    late = rested(scene, known_of(2, [(0, 3, True), (1, 3, False)]))
    # A negative test after the meetings speaks against person 0, an early one less.
    assert late[0] < early[0]


def test_seeds_count_by_their_number_alone():
    traces = random_traces(1, 40, 4, Clock(slot_hours=8, days=2))
    given = Scene(traces, rule=OutbreakSettings(seed_people=(7, 9)))
    count = Scene(traces, rule=OutbreakSettings(seed_count=2))
    assert chances_of(given, traces) == chances_of(count, traces)
    nobody = Scene(traces, rule=OutbreakSettings(seed_count=0))
    assert 0 < chances_of(nobody, traces).seeded < 0.02
    everybody = Scene(traces, rule=OutbreakSettings(seed_count=40))
    known = known_of(40, [(0, 5, False)])
    assert np.isfinite(rested(everybody, known)).all()


def test_the_law_of_the_susceptible_infects_more_where_many_are_immune():
    by_slot = [[0] * 6] * 8
    tests = [(person, 0, True) for person in range(4)]
    all_present, susceptible = (
        rested(scene_of(by_slot, kappa=0.05, contact=law), known_of(6, tests), 10)
        for law in ("I/N", "I/S")
    )
    assert (susceptible[4:] > all_present[4:] + 0.05).all()
    assert (susceptible <= 1).all()
