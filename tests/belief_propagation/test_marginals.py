"""Infections by slot, current risks and new people, against enumeration."""

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
)
from tests.epidemic.worlds import known_of
from tests.methods.encounters import results, rules, scene_of, trees, world_of
from tests.oracles.cities import cities
from tests.oracles.exact_inference import active, infection_slots, joint, posterior
from tests.scenes import Scene
from tests.studies import town

exactly = settings(deadline=None, derandomize=True, max_examples=12)
NO_BOUND = dataclasses.replace(UNDAMPED, evidence_bound=1e9)
ERRORS = st.sampled_from([(0.0, 0.0), (0.05, 0.2)])


def published(scene, traces, known, requested=NO_BOUND, transmission="fixed"):
    """The cohort of ``traces`` after all sweeps, and what it leaves behind.

    Rates are of the whole scene, also where somebody is left out.
    """
    rates = rates_of(scene)
    cohort = ChainCohort.of(traces, known, rates)
    graph = graph_of(scene, cohort.crowd())
    state = converge(Cohorts([cohort]), graph, known, rates, requested, transmission)
    return cohort, SavedField(graph, state.sums, state.factor, rates)


def possible(tests, scene, wrong=(0.0, 0.0)):
    """Plausible tests; otherwise the minimum infection probability would dominate."""
    assume(sum(joint(world_of(scene), tests, wrong).values()) > 1e-3)
    return tests


def others_than(person, tests):
    return [test for test in tests if test[0] != person]


@exactly
@given(st.data(), trees(), rules, ERRORS)
def test_marginals_are_exact_on_a_tree(data, tree, rule, wrong):
    scene = scene_of(tree, **rule)
    people, world = len(tree[0]), world_of(scene)
    tests = possible(data.draw(results(people)), scene, wrong)
    cohort, field = published(scene, scene.traces, known_of(people, tests, wrong))
    now = cohort.current_risk(field.messages())
    for person in range(people):
        without_tests = active(world, others_than(person, tests), person, wrong)
        assert now.without_tests[person] == pytest.approx(without_tests, abs=1e-4)
        counted = active(world, tests, person, wrong)
        assert now.tested[person] == pytest.approx(counted, abs=1e-4)
        ever = posterior(world, tests, wrong)[person]
        assert now.ever[person] == pytest.approx(ever, abs=1e-4)
    person = data.draw(st.integers(0, people - 1))
    for counted in (False, True):
        found = cohort.infections(field.messages(), with_tests=counted)
        result = tests if counted else others_than(person, tests)
        exact = infection_slots(world, result, person, wrong)
        ours = np.concatenate([found.before[None], found.in_slot, found.never[None]])
        np.testing.assert_allclose(ours[:, person], exact, 0, 1e-4)


@exactly
@given(st.data(), trees(), rules)
def test_a_new_person_gets_the_exact_risk_without_being_counted(data, tree, rule):
    """The last person of a tree meets one other once, its only source of evidence."""
    scene = scene_of(tree, **rule)
    people = len(tree[0])
    tests = possible(data.draw(results(people)), scene)
    known, last = known_of(people, tests), people - 1
    rest = part_of(scene.traces, known, list(range(last)))
    _, field = published(scene, *rest)
    new_person = field.people(*part_of(scene.traces, known, [last]))
    received, world = field.messages_to_new_people(), world_of(scene)
    risk = new_person.infections(received).risk[0]
    without_tests = posterior(world, others_than(last, tests))[last]
    assert risk == pytest.approx(without_tests, abs=1e-4)
    counted = new_person.infections(received, with_tests=True).risk[0]
    assert counted == pytest.approx(posterior(world, tests)[last], abs=1e-4)
    now = new_person.current_risk(received).without_tests[0]
    assert now == pytest.approx(active(world, others_than(last, tests), last), abs=1e-4)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    cities(),
    st.integers(0, 99),
    rules,
    st.sampled_from(["I/N", "I/S"]),
    st.sampled_from([(0.0, 0.0), (0.2, 0.0), (0.1, 0.3)]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["global", "regional-strong", "regional"]),
)
def test_risks_are_probabilities_and_shares_add_up(
    traces, seed, rule, contact, wrong, share, transmission
):
    """Includes contradictory and identical tests."""
    rng = np.random.default_rng(seed)
    rule = OutbreakSettings(seed_share=0.2, contact=contact, **rule)
    tests = [
        (person, rng.integers(traces.slots), rng.random() < share)
        for person in rng.integers(traces.people, size=2 * traces.people)
    ]
    scene = Scene(traces, rule=rule)
    known, few = known_of(traces.people, tests, wrong), FieldSettings(sweeps=4)
    cohort, field = published(scene, traces, known, few, transmission)
    now, factor = cohort.current_risk(field.messages()), field.factor
    for risk in (cohort.risk, now.without_tests, now.tested, now.ever):
        assert ((risk >= 0) & (risk <= 1)).all()
    assert (now.without_tests <= cohort.risk + 1e-6).all()
    assert all(np.isfinite(one).all() for one in factor)
    assert (factor.geometric_ratio <= 1 + 1e-12).all()
    for counted in (True, False):
        found = cohort.infections(field.messages(), with_tests=counted)
        whole = found.shares.sum(axis=0)
        np.testing.assert_allclose(whole, np.where(found.risk > 0, 1, 0), 0, 1e-9)
    np.testing.assert_allclose(found.risk, cohort.risk, 0, 1e-6)


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """The town's cohort, and its field and messages through the disk."""
    experiment = town.experiment()
    scene = Scene(town.traces(), 3, experiment.pathogen, experiment.outbreak)
    few = FieldSettings(sweeps=6)
    cohort, field = published(scene, scene.traces, town.known(), few, "regional-strong")
    folder = tmp_path_factory.mktemp("kept")
    field.save(folder / "field", Origin())
    held = Messages(cohort.state.infectious, cohort.state.evidence)
    held.save(folder / "messages", Origin())
    field = SavedField.load(folder / "field")
    return cohort, field, Messages.load(folder / "messages")


def test_a_saved_field_gives_everybody_the_same_risk_again(selected):
    cohort, field, messages = selected
    again = field.people(cohort.traces, town.known(), messages)
    found = again.infections(field.messages()).risk
    np.testing.assert_allclose(found, cohort.risk, 0, 1e-6)
    # Not by chance: unless its own messages are removed a person receives them.
    alone = field.people(cohort.traces, town.known())
    itself = alone.infections(field.messages()).risk
    assert np.abs(itself - cohort.risk).max() > 1e-3
    # One person needs nothing of the others.
    for person in (0, 17, 79):
        own = part_of(cohort.traces, town.known(), [person])
        alone = field.people(*own, messages.of(person))
        risk = alone.infections(field.messages()).risk[0]
        assert risk == pytest.approx(cohort.risk[person], abs=1e-6)


def test_a_new_person_receives_the_messages_of_one_more_person_who_sent_nothing(
    selected,
):
    cohort, field, _ = selected
    crowd = field.graph.present.copy()
    here = cohort.traces.by_slot[:, 5] + 1
    crowd[np.arange(len(here)), here] += 1
    graph = dataclasses.replace(field.graph, present=crowd)
    sums = dataclasses.replace(field.sums, crowd=crowd)
    wanted = graph.messages(sums, field.factor).edges[np.arange(len(here)), here]
    found = field.messages_to_new_people()
    assert found.own == 0
    np.testing.assert_allclose(found.edges[np.arange(len(here)), here], wanted)
    # With noise own messages are not in the sums, and everybody receives the same.
    graph = dataclasses.replace(field.graph, own_in_sums=False)
    noised = dataclasses.replace(field, graph=graph).messages_to_new_people()
    wanted = graph.messages(field.sums, field.factor)
    np.testing.assert_array_equal(noised.edges, wanted.edges)
    assert noised.own == 0
