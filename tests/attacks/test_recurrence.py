from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.attacks import recurrence as attack
from epifalcon.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.attacks.localisation import forward_backward, log_visits
from epifalcon.attacks.recurrence import (
    RepeatReliability,
    ShadowCity,
    by_sets,
    combined,
    features,
    learn,
    learn_sets,
    recurrence,
    slots_of_set,
)
from epifalcon.errors import SettingsError
from epifalcon.experiments.experiment import Experiment
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings, PseudoTraces
from epifalcon.studies.privacy_audit import rehearse
from tests.attacks import claims
from tests.oracles import localisation_loop as plain
from tests.oracles import set_lives
from tests.studies import town


def attacked(seed, width=1, **more):
    rng = np.random.default_rng(seed)
    made = claims.pseudo(claims.town(rng, days=4, **more), rng)
    return Candidates.of_pseudo(made, width), rng


@given(st.integers(0, 2**16), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=20)
def test_counts_are_those_of_the_plain_loop(seed, width, weighted):
    found, rng = attacked(seed, width, gaps=0.4)
    weight = rng.random(found.claims) if weighted else np.ones(found.claims)
    got = recurrence(found, weight if weighted else None)
    hours, anys = [], []
    for person in range(found.people):
        own = plain.claims_of(found, person), claims.ragged(found, weight, person)
        wanted = plain.recurrence_shares(*own, found.windows_per_day)
        hours += wanted[0]
        anys += wanted[1]
    np.testing.assert_allclose(got.same_hour, hours, atol=1e-6)
    np.testing.assert_allclose(got.any_hour, anys, atol=1e-6)


def test_the_evidence_weighs_counts_their_logs_and_visits():
    found, _ = attacked(1)
    counted = recurrence(found)
    model = claims.model_of(claims.town(np.random.default_rng(1)))
    visits = log_visits(found, model)
    wanted = 2 * counted.same_hour + 3 * counted.any_hour + 0.5 * visits
    wanted += 4 * np.log(0.01 + counted.same_hour) - np.log(0.01 + counted.any_hour)
    got = features(counted, visits) @ [2.0, 4.0, 3.0, -1.0, 0.5]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_windows_over_midnight_are_refused():
    with pytest.raises(SettingsError, match="must divide the day"):
        recurrence(attacked(0, 8)[0])


@cache
def place(seed, method="walk"):
    """A town with two pseudo walks a person: the claims, the traces, the model."""
    traces = town.traces(seed)
    model = claims.model_of(traces, 1e-8)
    cases = np.ones((len(traces.regions), traces.clock.days))
    domains = DomainSettings(count=2, least_regions=4)
    privacy = PseudoSettings(method=method, domains=domains)
    made = generate(traces, model, cases, privacy, np.random.default_rng(seed))
    found = Candidates.of_pseudo(made)
    return ShadowCity(found, traces, model, np.bincount(found.key)[found.key])


@cache
def learnt(method="walk"):
    return learn(place(1, method))


def test_together_is_better_than_either_alone_on_a_town_not_rehearsed():
    attacked = place(2)
    found, model = attacked.candidates, attacked.model
    moves = attacked.error(forward_backward(found, model))
    guess = name_best(found, recurrence(found).same_hour, log_visits(found, model))
    alone = localisation_error(guess, found, attacked.truth).error
    both = attacked.error(combined(found, model, learnt()))
    assert both < min(moves, alone) - 0.02


def test_believing_what_the_pass_before_found_lowers_the_error():
    first, second, *_ = learnt()
    assert second.error < first.error - 0.003


def test_on_the_rehearsal_the_attack_errs_as_it_was_told():
    own, passes = place(1), learnt()
    got = combined(own.candidates, own.model, passes)
    assert own.error(got) == pytest.approx(passes[-1].error, abs=1e-12)
    errors = [one.error for one in passes]
    assert errors == sorted(errors, reverse=True)


def test_without_passes_it_is_the_moves_alone_and_evidence_enters_both():
    own = place(2)
    found, model = own.candidates, own.model
    evidence = np.random.default_rng(0).normal(size=found.claims)
    alone = forward_backward(found, model, evidence)
    np.testing.assert_array_equal(combined(found, model, (), evidence), alone)
    sure = np.where(own.truth, 0.0, -500.0)
    assert own.error(combined(found, model, learnt(), sure)) == 0


def test_the_weights_are_where_the_likelihood_is_flat():
    own = place(1)
    rng = np.random.default_rng(0)
    shift = [1, 0, -2, 0, 0]
    table = rng.normal(size=(own.candidates.claims, 5)) + np.outer(own.truth, shift)
    got = attack._conditional_logit(own.candidates, table, own.truth)
    # Normal with unit spread: the log-likelihood ratio is the shift itself.
    np.testing.assert_allclose(got, shift, atol=0.15)


def life(order, sets, regions=12, window_slots=1, slots_per_day=6):
    """One person who claims ``sets[order[w]]`` in window w; -1 for nothing."""
    keys = [
        window * regions + region
        for window, number in enumerate(order)
        if number >= 0
        for region in sets[number]
    ]
    slots = len(order) * window_slots
    clock = Clock(days=slots // slots_per_day, slot_hours=24 // slots_per_day)
    person = np.zeros(len(keys), np.int64)
    return Candidates.of_claims(person, np.array(keys), 1, regions, clock, window_slots)


def model_of(seed, slot_hours=4):
    rng = np.random.default_rng(seed)
    traces = claims.town(rng, people=8, regions=12, days=4)
    clock = Clock(days=4, slot_hours=slot_hours)
    by_slot = rng.integers(0, 12, (clock.slots, 8)).astype(np.int32)
    return claims.model_of(replace(traces, by_slot=by_slot, clock=clock))


def drawn_sets(rng, count, size):
    return [np.sort(rng.permutation(12)[:size]).tolist() for _ in range(count)]


def nobody(found):
    """As if nobody claimed any place."""
    return np.zeros(found.claims, np.int64)


def compare(found, model, evidence=None):
    got = by_sets(found, model, RepeatReliability(), nobody(found), evidence)
    wanted = set_lives.chances(found, 0, model, evidence)
    return claims.ragged(found, got, 0), wanted


def test_where_sets_are_a_tree_messages_are_exact():
    rng = np.random.default_rng(1)
    order = [0, 1, 0, 2, 0, 3, 3, 0, 4, 0, 5, 0, 1, 0, 6, 0, 2, 0]
    found = life(order, drawn_sets(rng, 7, 4))
    got, wanted = compare(found, model_of(1), rng.normal(0, 1, found.claims))
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_where_they_have_loops_messages_come_close():
    far = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        order = rng.integers(0, 7, 24)
        order[:7] = np.arange(7)
        found = life(order, drawn_sets(rng, 7, 4))
        pairs = zip(*compare(found, model_of(seed)), strict=True)
        far += [np.abs(np.subtract(a, b)).max() for a, b in pairs]
    assert np.mean(far) < 0.05


@cache
def roomy(seed):
    """A town with room enough for pseudo lives of their own."""
    words = ["city.people=150", "city.regions=120", "city.days=7"]
    experiment = Experiment.load("hamlet", [*words, "pseudo.method=recurring"])
    return rehearse(experiment, 4, seed)


def test_recurring_lives_are_found_better_than_slot_by_slot():
    """On a town that was not rehearsed, with what the rehearsal chose."""
    own, attacked = roomy(1), roomy(2)
    belief, passes = learn_sets(own, np.random.default_rng(0)), learn(own)
    found, model = attacked.candidates, attacked.model
    slots = attacked.error(combined(found, model, passes))
    sets = by_sets(found, model, belief, attacked.claimed)
    assert attacked.error(sets) < slots - 0.05


def strangers(rng, people=120, copies=2):
    """Lives drawn by one law, true and pseudo, that the model says nothing of."""
    traces = claims.town(rng, people=people, regions=40, days=3, gaps=0.0)
    lives = np.stack([rng.permutation(40)[: 4 * (copies + 1)] for _ in range(people)])
    hour = np.tile([0, 1, 1, 2], 3)
    hour[[3, 7]] = 3
    every = lives.reshape(people, copies + 1, 4)[:, :, hour]
    true = replace(traces, by_slot=every[:, 0].T.astype(np.int32).copy())
    made = np.moveaxis(every[:, 1:], 0, -1).astype(np.int32)
    found = Candidates.of_pseudo(PseudoTraces(true, np.ascontiguousarray(made)))
    return found, true_claims(found, true)


def test_faint_hints_add_up_over_the_slots_of_a_set():
    rng = np.random.default_rng(9)
    found, truth = strangers(rng)
    others = claims.town(rng, people=30, regions=40)
    model = claims.model_of(others)
    # A log ratio of a noisy 1 or 0: by itself hardly more than a guess.
    sigma = 1.5
    evidence = (truth + sigma * rng.standard_normal(found.claims) - 0.5) / sigma**2
    alone = localisation_error(name_best(found, evidence), found, truth).error
    power = RepeatReliability(power=0.02)
    pooled = by_sets(found, model, power, nobody(found), evidence)
    together = localisation_error(name_best(found, pooled), found, truth).error
    assert together < alone - 0.05


def test_how_many_claim_a_place_tells_once_for_each_set():
    found = life([0, 0, -1, 0, 0, -1], [[2, 5]])
    region, model = found.region, model_of(2)
    claimed = np.where(region == 2, 1, 9)
    flat, evidence = (
        by_sets(found, model, RepeatReliability(crowd=2.0), counts)
        for counts in (nobody(found), claimed)
    )
    few, many = evidence[region == 2][0], evidence[region == 5][0]
    before = flat[region == 2][0] / flat[region == 5][0]
    # Squared, and not once more for each of the four slots.
    assert few / many / before == pytest.approx(9**2, rel=1e-6)


def test_slots_of_a_set_are_counted_by_person():
    rng = np.random.default_rng(0)
    traces = claims.town(rng, people=5, regions=4, days=6)
    found = Candidates.of_pseudo(claims.pseudo(traces, rng, 1))
    got = claims.ragged(found, slots_of_set(found), 3)
    rows = set_lives.sets_of(found, 3)
    times = Counter(rows.values())
    assert max(times.values()) > 2
    for window, claimed in rows.items():
        assert got[window] == [times[claimed]] * len(claimed)


def test_how_far_to_believe_it_is_learnt_for_the_sake_of_other_evidence():
    """In a town that was not rehearsed, with hints stronger than those rehearsed."""
    own, attacked = roomy(1), roomy(2)
    rng = np.random.default_rng(0)
    belief = learn_sets(own, rng)
    assert belief.power < 1
    found, model = attacked.candidates, attacked.model
    hint = 0.05 * (attacked.truth - 0.5) + np.sqrt(0.05) * rng.standard_normal(
        found.claims
    )
    tried = (belief, hint), (replace(belief, power=1.0), hint), (belief, None)
    learnt, plain, alone = (
        attacked.error(by_sets(found, model, belief, attacked.claimed, hint))
        for belief, hint in tried
    )
    assert learnt < plain - 0.02
    assert learnt < alone - 0.05
    tempered = by_sets(found, model, belief, nobody(found))
    filled = found.start[:-1][np.diff(found.start) > 0]
    assert np.allclose(np.add.reduceat(tempered, filled), 1)
    again = by_sets(found, model, replace(belief, power=1.0), nobody(found))
    assert np.corrcoef(tempered, again)[0, 1] > 0.9
    assert tempered.max() < again.max()
