"""Inference against enumeration and itself with people divided otherwise."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.belief_propagation.inference import DampedSums
from epifalcon.belief_propagation.seir_chain import SweepOptions, result_likelihood
from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.epidemic.test_kinds import ANTIGEN, EVER, PCR, SEROLOGY
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.clock import Clock
from tests.belief_propagation.graphs import (
    UNDAMPED,
    cohorts_of,
    converge,
    graph_of,
    rates_of,
    rested,
    start_of,
)
from tests.epidemic.worlds import known_of
from tests.methods.encounters import results, rules, scene_of, trees, world_of
from tests.methods.test_hbp import evaluated, world
from tests.oracles.exact_inference import without_own_test
from tests.scenes import Scene
from tests.studies import town

exactly = settings(deadline=None, derandomize=True, max_examples=50)
NO_BOUND = dataclasses.replace(UNDAMPED, evidence_bound=1e9)


@exactly
@given(
    st.data(),
    trees(),
    rules,
    st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.0, 0.3), (0.05, 0.2)]),
)
def test_risks_are_exact_on_a_tree(data, tree, rule, wrong):
    scene = scene_of(tree, **rule)
    people = len(tree[0])
    tests = data.draw(results(people))
    if any(wrong):
        # A second result, which may contradict the first.
        tests += [(person, slot // 2, not result) for person, slot, result in tests]
    found, _ = rested(scene, known_of(people, tests, wrong), NO_BOUND)
    exact = without_own_test(world_of(scene), tests, wrong)
    np.testing.assert_allclose(found, exact, 0, 1e-4)


def test_one_crowd_is_exact_to_a_few_thousandths():
    by_slot = [[-1] * 5 for _ in range(6)]
    by_slot[2] = [0] * 5
    scene = scene_of(by_slot, kappa=0.1)
    for tests in ([(0, 5, True)], [(0, 5, True), (1, 5, False)], [(0, 1, True)]):
        exact = without_own_test(world_of(scene), tests)
        found, _ = rested(scene, known_of(5, tests))
        np.testing.assert_allclose(found, exact, 0, 0.01)


@pytest.mark.parametrize("tests", [[(0, 7, 1)], [(0, 7, 1), (1, 7, 0)], [(2, 3, 0)]])
def test_people_who_meet_again_and_again_get_nearly_the_right_risk(tests):
    scene = scene_of([[0, 0, 1, 1], [0, 1, 1, 0]] * 4, kappa=0.03)
    exact = without_own_test(world_of(scene), tests)
    found, _ = rested(scene, known_of(4, tests))
    np.testing.assert_allclose(found, exact, 0, 0.02)


@pytest.mark.parametrize("transmission", ["fixed", "global", "regional"])
def test_any_division_of_people_into_cohorts_gives_the_same_risks(transmission):
    experiment = town.experiment()
    scene = Scene(town.traces(), 3, experiment.pathogen, experiment.outbreak)
    known, few = town.known(), FieldSettings(sweeps=6)
    whole, last = rested(scene, known, few, transmission)
    everybody = np.arange(scene.traces.people)
    for cuts in ([31], [1, 2, 50], everybody[1:]):
        parts = np.split(everybody, cuts)
        risk, stage = rested(scene, known, few, transmission, parts)
        np.testing.assert_allclose(risk, whole, 0, 1e-6)
        np.testing.assert_allclose(stage.sums.evidence, last.sums.evidence, 0, 1e-5)
        for mine, theirs in zip(stage.factor, last.factor, strict=True):
            np.testing.assert_allclose(mine, theirs, 0, 1e-6)


def test_messages_keep_their_bounds():
    scene = scene_of([[0, 0, 1, 1, 2, 2]] * 6)
    known = known_of(6, [(0, 5, 1), (2, 5, 0), (4, 1, 1)])
    bound = FieldSettings(evidence_bound=0.5)
    people = cohorts_of(scene, known, [[person] for person in range(6)])
    graph = graph_of(scene, people.crowd())
    converge(people, graph, known, rates_of(scene), bound)
    for cohort in people.cohorts:
        assert (cohort.state.infectious >= 0).all()
        assert (cohort.state.infectious <= 1).all()
        assert (cohort.state.evidence >= -1).all()
        assert (cohort.state.evidence <= 0.5).all()


def test_oscillating_evidence_gets_smaller_steps():
    scene = scene_of([[0] * 6] * 8, kappa=2.0)
    known = known_of(6, [(person, 7, person < 3) for person in range(5)])
    hasty = FieldSettings(sweeps=20, damping=0.0, damping_decay=0.0)
    _, stage = rested(scene, known, hasty)
    assert stage.step < 1


def test_a_start_grows_from_the_seeds_to_the_share_of_positives():
    scene = scene_of([[0] * 20] * 8)
    known = known_of(20, [(person, 7, person < 4) for person in range(10)])
    rates = rates_of(scene)
    start = start_of(known, rates, 8)
    infected = -np.expm1(-start.hazard.sum()) * (1 - rates.seeded) + rates.seeded
    assert infected == pytest.approx((4 + rates.seeded) / 11, abs=0.01)
    assert (np.diff(start.hazard) > 0).all()


def test_the_less_certain_of_two_places_gets_less_of_the_infection():
    """By the geometric means; the total risk does not change."""
    scene = scene_of([[0, 0, 1], [1, 0, 1]])
    infections = {}
    for doubt in (1.0, 0.25):
        people = cohorts_of(scene, known_of(3, [(0, 1, True)]))
        graph = graph_of(scene, people.crowd())
        crowd = graph.present
        geometric_ratio = graph.no_factor.geometric_ratio.copy()
        geometric_ratio[:, 2] = doubt
        received = graph.messages(
            DampedSums(crowd, 0.3 * crowd, np.zeros_like(crowd)),
            graph.no_factor._replace(geometric_ratio=geometric_ratio),
        )
        options = SweepOptions(1.0, np.ones(2), 4.0, tally=True)
        sums = people.sweep(received, options)
        infections[doubt] = sums.tally[0].sum(axis=0)[1:3]
    sure, doubtful = infections[1.0], infections[0.25]
    weights = sure * [1, 0.25]
    # The rest: to have been infected before.
    wanted = weights / (weights.sum() + 1 - sure.sum())
    np.testing.assert_allclose(doubtful, wanted, 1e-5)
    assert doubtful[1] < sure[1]


@pytest.mark.parametrize(("wrong", "swing"), [(2.0, 1.35), (0.5, 1.15)])
def test_a_wrong_rate_is_corrected_and_converges(wrong, swing):
    """Without damping it oscillates, here by 1.7 and 1.2, which affects short runs."""
    scene, labels = world("hamlet", seed=3)
    beta = scene.pathogen.beta * wrong
    pathogen = dataclasses.replace(scene.pathogen, beta=beta)
    believed = dataclasses.replace(scene, pathogen=pathogen)
    rates = [
        rested(believed, labels.known, FieldSettings(sweeps=sweeps), "global")[1]
        .factor.mean[0, 1]
        .item()
        for sweeps in (8, 10, 12, 15)
    ]
    assert max(rates) < swing * min(rates)
    assert 0.6 < rates[-1] * wrong < 1.7
    output, _ = rested(believed, labels.known, FieldSettings(), "global")
    selected, _ = rested(believed, labels.known, FieldSettings(), "fixed")
    better, worse = (evaluated(one, labels).log_loss for one in (output, selected))
    assert better < worse - 0.003


# Likelihood of own tests

FIVE_DAYS = Clock(slot_hours=24, days=5)


def laid_out(known, clock):
    """For each person: seed, each slot, never."""
    fit, found = result_likelihood(known, clock), []
    for person in range(known.people):
        row = np.full(clock.slots, fit.seed[person])
        for at in range(fit.start[person], fit.start[person + 1]):
            row[fit.slot[at] :] = fit.value[at]
        found.append([fit.seed[person], *row.tolist(), fit.never[person]])
    return np.array(found)


def test_correct_tests_leave_a_window():
    tests = [(0, 2, 1), (1, 2, 0), (2, 1, 0), (2, 3, 1)]
    # Contradictory ones leave the first positive, late ones the last slot.
    tests += [(4, 1, 1), (4, 3, 0), (5, 7, 1), (6, 4, 0), (6, 9, 1), (7, 9, 0)]
    assert laid_out(known_of(8, tests), FIVE_DAYS).astype(int).tolist() == [
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]


def test_contradictions_are_resolved_without_regard_to_tests_of_others():
    """Also beside tests with errors, of the same person or of another."""
    tests = [(0, 1, 1), (0, 3, 0), (1, 2, 0), (2, 1, 1), (2, 1, 0), (2, 3, 0)]
    person, slot, positive = np.array(tests).T
    kind = np.array([0, 0, 1, 0, 1, 0])
    mixed = TestResults.from_tests(
        3, person, positive > 0, slot, kind=kind, kinds=(EVER, PCR)
    )
    found = laid_out(mixed, FIVE_DAYS)
    assert found[0].tolist() == [1, 1, 1, 0, 0, 0, 0]
    negative = 1 - np.array(
        [PCR.sensitivity[2], PCR.sensitivity[1], PCR.sensitivity[0]]
    )
    np.testing.assert_allclose(found[1, 1:4], negative, rtol=1e-6)
    np.testing.assert_allclose(found[2, 1:3], 1 - np.array(PCR.sensitivity)[[1, 0]])
    assert found[2, 3:].tolist() == [0, 0, 0, 0]


def test_likelihoods_of_tests_with_errors():
    known = known_of(3, [(0, 1, 0), (0, 3, 1), (2, 0, 1)], (0.1, 0.3))
    found = laid_out(known, FIVE_DAYS)
    both = [0.3 * 0.7] * 3 + [0.9 * 0.7] * 2 + [0.9 * 0.1] * 2
    wanted = np.array([both, [1.0] * 7, [0.7] * 2 + [0.1] * 5])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("hours", [24, 6])
def test_likelihoods_of_dated_tests_are_those_of_a_loop(hours):
    """Several tests of several kinds, for infection in each slot."""
    clock = Clock(slot_hours=hours, days=40)
    kinds = (PCR, SEROLOGY, ANTIGEN)
    rng, per_day = np.random.default_rng(3), clock.slots_per_day
    person, kind = rng.integers(12, size=40), rng.integers(3, size=40)
    slot, positive = rng.integers(clock.slots, size=40), rng.random(40) < 0.5
    known = TestResults.from_tests(12, person, positive, slot, None, kind, kinds)

    def fits(test, infected):
        accuracy = kinds[known.kind[test]]
        chance = 1 - accuracy.specificity
        if infected is not None and infected <= known.slot[test]:
            day = (known.slot[test] - infected) // per_day
            table = accuracy.sensitivity
            chance = table[min(day, len(table) - 1)]
        return chance if known.positive[test] else 1 - chance

    times = [-1, *range(clock.slots), None]
    wanted = np.ones((12, len(times)))
    for test, one in enumerate(known.person):
        wanted[one] *= [fits(test, infected) for infected in times]
    found = laid_out(known, clock)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-12)


def test_many_contradictory_tests_underflow_nowhere():
    tests = [(0, slot, slot % 2) for slot in range(5)] * 40
    found = laid_out(known_of(1, tests, (0.01, 0.01)), FIVE_DAYS)
    assert found.max() == 1
