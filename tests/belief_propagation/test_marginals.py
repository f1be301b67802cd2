"""Infections by slot, current risks and newcomers, against enumeration."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epifalcon.belief_propagation.inference import ChainCohort
from epifalcon.belief_propagation.saved_state import Messages, SavedField
from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.store import Origin
from tests.belief_propagation.graphs import (
    UNDAMPED,
    Cohorts,
    converge,
    graph_of,
    part_of,
    rates_of,
    wrong_tests,
)
from tests.methods.encounters import known_of, results, rules, scene_of, trees, world_of
from tests.oracles.cities import cities
from tests.oracles.exact_inference import active, infection_slots, joint, posterior
from tests.scenes import Scene
from tests.studies import town

exactly = settings(deadline=None, derandomize=True, max_examples=12)
NO_BOUND = dataclasses.replace(UNDAMPED, evidence_bound=1e9)
ERRORS = st.sampled_from([(0.0, 0.0), (0.05, 0.2)])


def published(scene, traces, known, wish=NO_BOUND, law="one"):
    """The cohort of ``traces`` after all sweeps, and what it leaves behind.

    Rates are of the whole scene, also where somebody is left out.
    """
    rates, errors = rates_of(scene), scene.test_errors
    cohort = ChainCohort.of(traces, known, rates, errors)
    graph = graph_of(scene, cohort.crowd())
    state = converge(Cohorts([cohort]), graph, known, rates, wish, law)
    return cohort, SavedField(graph, state.sums, state.factor, rates, errors)


def possible(tests, scene, wrong=(0.0, 0.0)):
    """Tests that are no wonder: else the least chance of any infection decides."""
    assume(sum(joint(world_of(scene), tests, wrong).values()) > 1e-3)
    return tests


def others_than(person, tests):
    return [test for test in tests if test[0] != person]


@exactly
@given(st.data(), trees(), rules, ERRORS)
def test_marginals_are_exact_where_nobody_meets_in_circles(data, tree, rule, wrong):
    scene = dataclasses.replace(scene_of(tree, **rule), test_errors=wrong_tests(*wrong))
    people, world = len(tree[0]), world_of(scene)
    tests = possible(data.draw(results(people)), scene, wrong)
    cohort, field = published(scene, scene.traces, known_of(people, tests))
    now = cohort.current_risk(field.messages())
    for person in range(people):
        aside = active(world, others_than(person, tests), person, wrong)
        assert now.aside[person] == pytest.approx(aside, abs=1e-4)
        counted = active(world, tests, person, wrong)
        assert now.tested[person] == pytest.approx(counted, abs=1e-4)
        ever = posterior(world, tests, wrong)[person]
        assert now.ever[person] == pytest.approx(ever, abs=1e-4)
    person = data.draw(st.integers(0, people - 1))
    for counted in (False, True):
        found = cohort.infections(field.messages(), with_tests=counted)
        told = tests if counted else others_than(person, tests)
        exact = infection_slots(world, told, person, wrong)
        ours = np.concatenate([found.before[None], found.in_slot, found.never[None]])
        np.testing.assert_allclose(ours[:, person], exact, 0, 1e-4)


@exactly
@given(st.data(), trees(), rules)
def test_a_newcomer_is_told_the_exact_risk_without_having_been_counted(
    data, tree, rule
):
    """The last person of a tree meets one other once: what that one knew is all."""
    scene = scene_of(tree, **rule)
    people = len(tree[0])
    tests = possible(data.draw(results(people)), scene)
    known, last = known_of(people, tests), people - 1
    rest = part_of(scene.traces, known, list(range(last)))
    _, field = published(scene, *rest)
    newcomer = field.people(*part_of(scene.traces, known, [last]))
    received, world = field.messages_to_newcomers(), world_of(scene)
    risk = newcomer.infections(received).risk[0]
    aside = posterior(world, others_than(last, tests))[last]
    assert risk == pytest.approx(aside, abs=1e-4)
    counted = newcomer.infections(received, with_tests=True).risk[0]
    assert counted == pytest.approx(posterior(world, tests)[last], abs=1e-4)
    now = newcomer.current_risk(received).aside[0]
    assert now == pytest.approx(active(world, others_than(last, tests), last), abs=1e-4)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    cities(),
    st.integers(0, 99),
    rules,
    st.sampled_from(["I/N", "I/S"]),
    st.sampled_from([(0.0, 0.0), (0.2, 0.0), (0.1, 0.3)]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["scaled", "mild", "apart"]),
)
def test_whatever_is_given_risks_are_chances_and_shares_add_up(
    traces, seed, rule, contact, wrong, share, law
):
    """Tests that contradict each other, too, and all alike."""
    rng = np.random.default_rng(seed)
    rule = OutbreakSettings(seed_share=0.2, contact=contact, **rule)
    tests = [
        (person, rng.integers(traces.slots), rng.random() < share)
        for person in rng.integers(traces.people, size=2 * traces.people)
    ]
    scene = Scene(traces, rule=rule, test_errors=wrong_tests(*wrong))
    known, few = known_of(traces.people, tests), FieldSettings(sweeps=4)
    cohort, field = published(scene, traces, known, few, law)
    now, factor = cohort.current_risk(field.messages()), field.factor
    for risk in (cohort.risk, now.aside, now.tested, now.ever):
        assert ((risk >= 0) & (risk <= 1)).all()
    assert (now.aside <= cohort.risk + 1e-6).all()
    assert all(np.isfinite(one).all() for one in factor)
    assert (factor.typical <= 1 + 1e-12).all()
    for counted in (True, False):
        found = cohort.infections(field.messages(), with_tests=counted)
        whole = found.shares.sum(axis=0)
        np.testing.assert_allclose(whole, np.where(found.risk > 0, 1, 0), 0, 1e-9)
    np.testing.assert_allclose(found.risk, cohort.risk, 0, 1e-6)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The town's cohort, and its field and messages through the disk."""
    experiment = town.experiment()
    scene = Scene(town.traces(), 3, experiment.pathogen, experiment.outbreak)
    few = FieldSettings(sweeps=6)
    cohort, field = published(scene, scene.traces, town.known(), few, "mild")
    folder = tmp_path_factory.mktemp("kept")
    field.save(folder / "field", Origin())
    held = Messages(cohort.state.infectious, cohort.state.evidence)
    held.save(folder / "messages", Origin())
    field = SavedField.load(folder / "field")
    return cohort, field, Messages.load(folder / "messages")


def test_a_kept_field_tells_everybody_the_same_risk_again(kept):
    cohort, field, messages = kept
    again = field.people(cohort.traces, town.known(), messages)
    found = again.infections(field.messages()).risk
    np.testing.assert_allclose(found, cohort.risk, 0, 1e-6)
    # Not by chance: without its own messages taken out a person hears itself.
    alone = field.people(cohort.traces, town.known())
    itself = alone.infections(field.messages()).risk
    assert np.abs(itself - cohort.risk).max() > 1e-3
    # One person needs nothing of the others.
    for person in (0, 17, 79):
        own = part_of(cohort.traces, town.known(), [person])
        alone = field.people(*own, messages.of(person))
        risk = alone.infections(field.messages()).risk[0]
        assert risk == pytest.approx(cohort.risk[person], abs=1e-6)


def test_a_newcomer_receives_what_it_would_as_one_more_person_who_sent_nothing(kept):
    cohort, field, _ = kept
    crowd = field.graph.present.copy()
    here = cohort.traces.by_slot[:, 5] + 1
    crowd[np.arange(len(here)), here] += 1
    graph = dataclasses.replace(field.graph, present=crowd)
    sums = dataclasses.replace(field.sums, crowd=crowd)
    wanted = graph.messages(sums, field.factor).edges[np.arange(len(here)), here]
    found = field.messages_to_newcomers()
    assert found.own == 0
    np.testing.assert_allclose(found.edges[np.arange(len(here)), here], wanted)
    # With noise nobody can be told apart, and everybody receives the same.
    graph = dataclasses.replace(field.graph, own_in_sums=False)
    noised = dataclasses.replace(field, graph=graph).messages_to_newcomers()
    wanted = graph.messages(field.sums, field.factor)
    np.testing.assert_array_equal(noised.edges, wanted.edges)
    assert noised.own == 0
