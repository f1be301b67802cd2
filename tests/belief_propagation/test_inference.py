"""Inference against enumeration and itself with people divided otherwise."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.belief_propagation.inference import EdgeSums
from epifalcon.belief_propagation.seir_chain import SweepOptions
from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.epidemic.rules import OutbreakSettings
from tests.belief_propagation.graphs import (
    UNDAMPED,
    cohorts_of,
    converge,
    graph_of,
    rates_of,
    rested,
    start_of,
    wrong_tests,
)
from tests.methods.encounters import (
    known_of,
    results,
    rules,
    scene_of,
    trees,
    world_of,
)
from tests.methods.test_hbp import judged, world
from tests.oracles.cities import cities
from tests.oracles.exact_inference import without_own_test
from tests.scenes import Scene
from tests.studies import town

exactly = settings(deadline=None, derandomize=True, max_examples=25)
NO_BOUND = dataclasses.replace(UNDAMPED, evidence_bound=1e9)


@exactly
@given(st.data(), trees(), rules)
def test_where_nobody_meets_twice_or_in_circles_the_risks_are_exact(data, tree, rule):
    scene = scene_of(tree, **rule)
    people = len(tree[0])
    tests = data.draw(results(people))
    found, _ = rested(scene, known_of(people, tests), NO_BOUND)
    np.testing.assert_allclose(found, without_own_test(world_of(scene), tests), 0, 1e-4)


@exactly
@given(
    st.data(),
    trees(),
    rules,
    st.sampled_from([(0.1, 0.0), (0.0, 0.3), (0.05, 0.2)]),
)
def test_tests_that_may_be_wrong_are_weighed_exactly(data, tree, rule, wrong):
    scene = dataclasses.replace(scene_of(tree, **rule), test_errors=wrong_tests(*wrong))
    people = len(tree[0])
    tests = data.draw(results(people))
    # A second result, which may contradict the first.
    tests += [(person, slot // 2, not result) for person, slot, result in tests]
    found, _ = rested(scene, known_of(people, tests), NO_BOUND)
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


def dealt(people, seed):
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, people + 1, 3))
    return [part for part in np.split(np.arange(people), cuts) if len(part)]


@pytest.mark.parametrize("tests", [[(0, 7, 1)], [(0, 7, 1), (1, 7, 0)], [(2, 3, 0)]])
def test_people_who_meet_again_and_again_get_nearly_the_right_risk(tests):
    scene = scene_of([[0, 0, 1, 1], [0, 1, 1, 0]] * 4, kappa=0.03)
    exact = without_own_test(world_of(scene), tests)
    found, _ = rested(scene, known_of(4, tests))
    np.testing.assert_allclose(found, exact, 0, 0.02)


@pytest.mark.parametrize("law", ["one", "scaled", "apart"])
def test_any_division_of_people_into_cohorts_gives_the_same_risks(law):
    experiment = town.experiment()
    scene = Scene(town.traces(), 3, experiment.pathogen, experiment.outbreak)
    known, few = town.known(), FieldSettings(sweeps=6)
    whole, last = rested(scene, known, few, law)
    for seed in range(3):
        parts = dealt(scene.traces.people, seed)
        risk, stage = rested(scene, known, few, law, parts)
        np.testing.assert_allclose(risk, whole, 0, 1e-6)
        np.testing.assert_allclose(stage.sums.evidence, last.sums.evidence, 0, 1e-5)
        for mine, theirs in zip(stage.factor, last.factor, strict=True):
            np.testing.assert_allclose(mine, theirs, 0, 1e-6)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(cities(), st.integers(0, 99), rules, st.sampled_from(["I/N", "I/S"]), st.data())
def test_whatever_is_given_the_risks_are_chances(traces, seed, rule, contact, data):
    rng = np.random.default_rng(seed)
    rule = OutbreakSettings(seed_share=0.2, contact=contact, **rule)
    wrong = data.draw(st.sampled_from([(0.0, 0.0), (0.2, 0.0), (0.1, 0.3)]))
    # Contradictory ones, too, and all alike.
    share = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    tests = [
        (person, rng.integers(traces.slots), rng.random() < share)
        for person in rng.integers(traces.people, size=2 * traces.people)
    ]
    scene = Scene(traces, rule=rule, test_errors=wrong_tests(*wrong))
    few = FieldSettings(sweeps=4)
    law = data.draw(st.sampled_from(["scaled", "mild", "apart"]))
    risk, stage = rested(scene, known_of(traces.people, tests), few, law)
    assert ((risk >= 0) & (risk <= 1)).all()
    assert all(np.isfinite(one).all() for one in stage.factor)
    assert (stage.factor.typical <= 1 + 1e-12).all()


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


def test_evidence_that_turns_back_is_renewed_more_slowly():
    scene = scene_of([[0] * 6] * 8, kappa=2.0)
    known = known_of(6, [(person, 7, person < 3) for person in range(5)])
    hasty = FieldSettings(sweeps=20, renewed=1.0, caution=0.0)
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


def test_of_two_places_the_doubtful_one_is_blamed_less():
    """By the typical factors, and nobody is infected more or less for it."""
    scene = scene_of([[0, 0, 1], [1, 0, 1]])
    caught = {}
    for doubt in (1.0, 0.25):
        people = cohorts_of(scene, known_of(3, [(0, 1, True)]))
        graph = graph_of(scene, people.crowd())
        crowd = graph.present
        typical = graph.no_factor.typical.copy()
        typical[:, 2] = doubt
        received = graph.messages(
            EdgeSums(crowd, 0.3 * crowd, np.zeros_like(crowd)),
            graph.no_factor._replace(typical=typical),
        )
        options = SweepOptions(1.0, np.ones(2), 4.0, tally=True)
        sums = people.sweep(received, options)
        caught[doubt] = sums.tally[0].sum(axis=0)[1:3]
    sure, doubtful = caught[1.0], caught[0.25]
    weights = sure * [1, 0.25]
    # The rest: to have been infected before.
    wanted = weights / (weights.sum() + 1 - sure.sum())
    np.testing.assert_allclose(doubtful, wanted, 1e-5)
    assert doubtful[1] < sure[1]


@pytest.mark.parametrize(("wrong", "swing"), [(2.0, 1.35), (0.5, 1.15)])
def test_a_rate_believed_wrong_is_found_and_rests(wrong, swing):
    """At full pace it swings, here by 1.7 and 1.2, and short runs are judged there."""
    scene, labels = world("hamlet", seed=3)
    beta = scene.pathogen.beta * wrong
    believed = dataclasses.replace(
        scene, pathogen=dataclasses.replace(scene.pathogen, beta=beta)
    )
    rates = [
        rested(believed, labels.known, FieldSettings(sweeps=sweeps), "scaled")[1]
        .factor.mean[0, 1]
        .item()
        for sweeps in (8, 10, 12, 15)
    ]
    assert max(rates) < swing * min(rates)
    assert 0.6 < rates[-1] * wrong < 1.7
    told, _ = rested(believed, labels.known, FieldSettings(), "scaled")
    kept, _ = rested(believed, labels.known, FieldSettings(), "one")
    assert judged(told, labels).log_loss < judged(kept, labels).log_loss - 0.003
