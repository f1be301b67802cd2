"""Infections by slot, current risks and newcomers, against enumeration."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epifalcon.belief_propagation.inference import Cohort
from epifalcon.belief_propagation.marginals import current_risk, infections
from epifalcon.belief_propagation.saved_state import Messages, PublishedField
from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.epidemic.rules import OutbreakSettings
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
from tests.methods.encounters import (
    known_of,
    results,
    rules,
    scene_of,
    trees,
    world_of,
)
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
    cohort = Cohort.of(traces, known, rates, errors)
    graph = graph_of(scene, cohort.crowd())
    state = converge(Cohorts([cohort]), graph, known, rates, wish, law)
    return cohort, PublishedField(graph, state.sums, state.factor, rates, errors)


def possible(tests, scene, wrong=(0.0, 0.0)):
    """Tests that are no wonder: else the least chance of any infection decides."""
    assume(sum(joint(world_of(scene), tests, wrong).values()) > 1e-3)
    return tests


def others_than(person, tests):
    return [test for test in tests if test[0] != person]


@exactly
@given(st.data(), trees(), rules, ERRORS)
def test_infections_by_slot_are_exact_where_nobody_meets_in_circles(
    data, tree, rule, wrong
):
    scene = dataclasses.replace(scene_of(tree, **rule), test_errors=wrong_tests(*wrong))
    people = len(tree[0])
    tests = possible(data.draw(results(people)), scene, wrong)
    cohort, field = published(scene, scene.traces, known_of(people, tests))
    person, world = data.draw(st.integers(0, people - 1)), world_of(scene)
    for counted in (False, True):
        found = infections(cohort, field.messages(), with_tests=counted)
        told = tests if counted else others_than(person, tests)
        exact = infection_slots(world, told, person, wrong)
        ours = np.concatenate([found.before[None], found.in_slot, found.never[None]])
        np.testing.assert_allclose(ours[:, person], exact, 0, 1e-4)


@exactly
@given(st.data(), trees(), rules, ERRORS)
def test_who_is_infected_now_is_exact_where_nobody_meets_in_circles(
    data, tree, rule, wrong
):
    scene = dataclasses.replace(scene_of(tree, **rule), test_errors=wrong_tests(*wrong))
    people = len(tree[0])
    tests = possible(data.draw(results(people)), scene, wrong)
    cohort, field = published(scene, scene.traces, known_of(people, tests))
    now, world = current_risk(cohort, field.messages()), world_of(scene)
    for person in range(people):
        aside = active(world, others_than(person, tests), person, wrong)
        assert now.aside[person] == pytest.approx(aside, abs=1e-4)
        counted = active(world, tests, person, wrong)
        assert now.tested[person] == pytest.approx(counted, abs=1e-4)
        ever = posterior(world, tests, wrong)[person]
        assert now.ever[person] == pytest.approx(ever, abs=1e-4)


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
    risk = infections(newcomer, received).risk[0]
    aside = posterior(world, others_than(last, tests))[last]
    assert risk == pytest.approx(aside, abs=1e-4)
    counted = infections(newcomer, received, with_tests=True).risk[0]
    assert counted == pytest.approx(posterior(world, tests)[last], abs=1e-4)
    now = current_risk(newcomer, received).aside[0]
    assert now == pytest.approx(active(world, others_than(last, tests), last), abs=1e-4)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(cities(), st.integers(0, 99), rules, st.sampled_from(["I/N", "I/S"]), ERRORS)
def test_whatever_is_given_shares_add_up_and_agree_with_the_risk(
    traces, seed, rule, contact, wrong
):
    rng = np.random.default_rng(seed)
    rule = OutbreakSettings(seed_share=0.2, contact=contact, **rule)
    tests = [
        (person, rng.integers(traces.slots), rng.random() < 0.5)
        for person in rng.integers(traces.people, size=2 * traces.people)
    ]
    scene = Scene(traces, rule=rule, test_errors=wrong_tests(*wrong))
    known, few = known_of(traces.people, tests), FieldSettings(sweeps=3)
    cohort, field = published(scene, traces, known, few, "mild")
    found = infections(cohort, field.messages())
    np.testing.assert_allclose(found.risk, cohort.risk, 0, 1e-6)
    for counted in (False, True):
        found = infections(cohort, field.messages(), with_tests=counted)
        whole = found.shares.sum(axis=0)
        np.testing.assert_allclose(whole, np.where(found.risk > 0, 1, 0), 0, 1e-9)
    now = current_risk(cohort, field.messages())
    for told in (now.aside, now.tested):
        assert ((told >= 0) & (told <= 1)).all()
    assert (now.aside <= cohort.risk + 1e-6).all()


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
    field = PublishedField.load(folder / "field")
    return cohort, field, Messages.load(folder / "messages")


def test_a_kept_field_tells_everybody_the_same_risk_again(kept):
    cohort, field, messages = kept
    again = field.people(cohort.traces, town.known(), messages)
    found = infections(again, field.messages()).risk
    np.testing.assert_allclose(found, cohort.risk, 0, 1e-6)
    # Not by chance: without its own messages taken out a person hears itself.
    alone = field.people(cohort.traces, town.known())
    itself = infections(alone, field.messages()).risk
    assert np.abs(itself - cohort.risk).max() > 1e-3


def test_one_person_needs_nothing_of_the_others(kept):
    cohort, field, messages = kept
    for person in (0, 17, 79):
        own = part_of(cohort.traces, town.known(), [person])
        alone = field.people(*own, messages.of(person))
        risk = infections(alone, field.messages()).risk[0]
        assert risk == pytest.approx(cohort.risk[person], abs=1e-6)


def test_a_newcomer_equals_a_plain_loop_over_what_places_tell(kept):
    _, field, _ = kept
    traces, known = part_of(town.traces(), town.known(), [5])
    found = infections(field.people(traces, known), field.messages_to_newcomers())
    assert found.risk[0] == pytest.approx(plain_risk(field, traces), abs=1e-6)


def plain_risk(field, traces):
    """Infection slot by infection slot, a life after each: slow and plain."""
    rates, graph, day = field.rates, field.graph, traces.clock.slots_per_day
    escape, evidence = [], []
    for slot, region in enumerate(traces.by_slot[:, 0] + 1):
        others = graph.present[slot, region] if region else 0
        dose = graph.force * field.factor.mean[slot // day, region] / (others + 1)
        d, some = (1 - np.exp(-dose)) if region else 0.0, max(others, 1)
        mean = np.clip(field.sums.infectious[slot, region] / some, 0, 1)
        escape.append(min((1 - d * mean) ** some, 1 - 1e-8))
        evidence.append((1 + d * field.sums.evidence[slot, region] / some) ** some)

    def after(state, slots):
        """Likelihood of all that is heard from slot ``slots`` on, given the state."""
        e, i, r = state
        for slot in slots:
            i *= evidence[slot]
            e, i, r = (
                e * (1 - rates.leave_exposed),
                i * (1 - rates.recover) + e * rates.leave_exposed,
                r + i * rates.recover,
            )
        return e + i + r

    ever, well = rates.seeded * after((0.0, 1.0, 0.0), range(len(escape))), 1.0
    for slot, missed in enumerate(escape):
        gone = rates.leave_exposed
        state = (1 - gone, gone, 0.0)
        later = after(state, range(slot + 1, len(escape)))
        ever += (1 - rates.seeded) * well * (1 - missed) * later
        well *= missed
    return ever / (ever + (1 - rates.seeded) * well)


def test_behind_noise_a_newcomer_reads_like_anybody_else(kept):
    _, field, _ = kept
    graph = dataclasses.replace(field.graph, own_in_sums=False)
    noised = dataclasses.replace(field, graph=graph).messages_to_newcomers()
    wanted = graph.messages(field.sums, field.factor)
    np.testing.assert_array_equal(noised.edges, wanted.edges)
    assert noised.own == 0
