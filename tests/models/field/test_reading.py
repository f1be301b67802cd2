"""Infections by slot, who is infected now, and newcomers, against exact answers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epifalcon.baselines.method import Scene
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.federation.field.together import Together
from epifalcon.mobility.flows import count_flows
from epifalcon.models.field.disease import force_of_infection, rates_of
from epifalcon.models.field.people import Cohort
from epifalcon.models.field.places import City, told_by
from epifalcon.models.field.published import Messages, PublishedField
from epifalcon.models.field.settings import FieldSettings, TransmissionSettings
from epifalcon.models.field.sweeps import Start, infer
from epifalcon.models.field.transmission import Transmission
from epifalcon.store import Origin
from tests.baselines.encounters import (
    known_of,
    results,
    rules,
    scene_of,
    trees,
    world_of,
)
from tests.models.field.fields import UNDAMPED, part_of, wrong_tests
from tests.oracles.cities import cities
from tests.oracles.exact_inference import active, infection_slots, joint, posterior
from tests.studies import town

exactly = settings(deadline=None, derandomize=True, max_examples=12)
NO_BOUND = dataclasses.replace(UNDAMPED, evidence_bound=1e9)
ERRORS = st.sampled_from([(0.0, 0.0), (0.05, 0.2)])


def published(scene, traces, known, wish=NO_BOUND, law="one"):
    """The cohort of ``traces`` after all sweeps, and what it leaves behind.

    Rates are of the whole scene, also where somebody is left out.
    """
    rates = rates_of(scene.traces, scene.pathogen, scene.rule)
    force = force_of_infection(scene.traces, scene.pathogen, scene.rule)
    cohort = Cohort.of(traces, known, rates, scene.test_errors)
    together = Together([cohort])
    over = scene.rule.contact == "I/S"
    city = City(traces.clock, force, scene.rule.chance, together.crowd(), over)
    start = Start.of(known, rates, traces.slots)
    region = TransmissionSettings(from_sweep=2)
    law = Transmission.of(law, region, traces.regions, lambda: count_flows(traces))
    stage = infer(together, city, start, wish, law, lambda _: None)
    field = PublishedField(city, stage.places, stage.factor, rates, scene.test_errors)
    return cohort, field


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
        found = cohort.infections(field.told(), tests=counted)
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
    now, world = cohort.now(field.told()), world_of(scene)
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
    told, world = field.told_to_newcomers(), world_of(scene)
    risk = newcomer.infections(told).risk[0]
    aside = posterior(world, others_than(last, tests))[last]
    assert risk == pytest.approx(aside, abs=1e-4)
    counted = newcomer.infections(told, tests=True).risk[0]
    assert counted == pytest.approx(posterior(world, tests)[last], abs=1e-4)
    now = newcomer.now(told).aside[0]
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
    cohort, field = published(scene, traces, known, few, "near")
    found = cohort.infections(field.told())
    np.testing.assert_allclose(found.risk, cohort.risk, 0, 1e-6)
    for counted in (False, True):
        found = cohort.infections(field.told(), tests=counted)
        whole = found.shares.sum(axis=0)
        np.testing.assert_allclose(whole, np.where(found.risk > 0, 1, 0), 0, 1e-9)
    now = cohort.now(field.told())
    for told in (now.aside, now.tested):
        assert ((told >= 0) & (told <= 1)).all()
    assert (now.aside <= cohort.risk + 1e-6).all()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The town's cohort, and its field and messages through the disk."""
    experiment = town.experiment()
    scene = Scene(town.traces(), 3, experiment.pathogen, experiment.outbreak)
    few = FieldSettings(sweeps=6)
    cohort, field = published(scene, scene.traces, town.known(), few, "near")
    folder = tmp_path_factory.mktemp("kept")
    field.save(folder / "field", Origin())
    held = Messages(cohort.home.infectious, cohort.home.evidence)
    held.save(folder / "messages", Origin())
    field = PublishedField.load(folder / "field")
    return cohort, field, Messages.load(folder / "messages")


def test_a_kept_field_tells_everybody_the_same_risk_again(kept):
    cohort, field, messages = kept
    again = field.people(cohort.traces, town.known(), messages)
    found = again.infections(field.told()).risk
    np.testing.assert_allclose(found, cohort.risk, 0, 1e-6)
    # Not by chance: without its own messages taken out a person hears itself.
    itself = field.people(cohort.traces, town.known()).infections(field.told()).risk
    assert np.abs(itself - cohort.risk).max() > 1e-3


def test_one_person_needs_nothing_of_the_others(kept):
    cohort, field, messages = kept
    for person in (0, 17, 79):
        own = part_of(cohort.traces, town.known(), [person])
        alone = field.people(*own, messages.of(person))
        risk = alone.infections(field.told()).risk[0]
        assert risk == pytest.approx(cohort.risk[person], abs=1e-6)


def test_a_newcomer_equals_a_plain_loop_over_what_places_tell(kept):
    _, field, _ = kept
    traces, known = part_of(town.traces(), town.known(), [5])
    found = field.people(traces, known).infections(field.told_to_newcomers())
    assert found.risk[0] == pytest.approx(plain_risk(field, traces), abs=1e-6)


def plain_risk(field, traces):
    """Infection slot by infection slot, a life after each: slow and plain."""
    rates, city, day = field.rates, field.city, traces.clock.slots_per_day
    escape, evidence = [], []
    for slot, region in enumerate(traces.by_slot[:, 0] + 1):
        others = city.present[slot, region] if region else 0
        dose = city.force * field.factor.mean[slot // day, region] / (others + 1)
        d, some = (1 - np.exp(-dose)) if region else 0.0, max(others, 1)
        mean = np.clip(field.places.infectious[slot, region] / some, 0, 1)
        escape.append(min((1 - d * mean) ** some, 1 - 1e-8))
        evidence.append((1 + d * field.places.evidence[slot, region] / some) ** some)

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


def test_a_field_can_be_put_into_another_order(kept):
    _, field, messages = kept
    order = np.random.default_rng(1).permutation(field.factor.mean.shape[1] - 1)
    there = field.in_order(order)
    np.testing.assert_array_equal(
        there.places.evidence[:, 1 + order], field.places.evidence[:, 1:]
    )
    np.testing.assert_array_equal(
        there.places.evidence[:, 0], field.places.evidence[:, 0]
    )
    np.testing.assert_array_equal(
        there.city.present[:, 1 + order], field.city.present[:, 1:]
    )
    people = np.random.default_rng(2).permutation(80)
    moved = messages.in_order(people)
    np.testing.assert_array_equal(moved.evidence[:, people], messages.evidence)


def test_behind_noise_a_newcomer_reads_like_anybody_else(kept):
    _, field, _ = kept
    city = dataclasses.replace(field.city, own_in_sums=False)
    noised = dataclasses.replace(field, city=city)
    told = told_by(city, field.places, field.factor)
    np.testing.assert_array_equal(noised.told_to_newcomers().edges, told.edges)
    assert noised.told_to_newcomers().own == 0
