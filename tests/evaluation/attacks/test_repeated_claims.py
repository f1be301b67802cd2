from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import (
    SetBelief,
    by_sets,
    combined,
    learn,
    learn_sets,
    slots_of_set,
)
from epifalcon.experiments.experiment import Experiment
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.pseudo_traces import PseudoTraces
from epifalcon.studies.auditing import rehearse
from tests.evaluation.attacks import claims
from tests.evaluation.attacks.test_recurrence import error
from tests.oracles import set_lives


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


def compare(found, model, evidence=None):
    got = by_sets(found, Profile.of(model), None, evidence)
    wanted = set_lives.chances(found, 0, model, evidence)
    return claims.ragged(found, got, 0), wanted


def test_windows_of_several_slots_move_at_their_border():
    rng = np.random.default_rng(3)
    found = life([0, 1, 0, 2, 0, 1], drawn_sets(rng, 3, 4), window_slots=2)
    claims.assert_same(*compare(found, model_of(3)))


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


def test_claims_that_never_come_back_leave_the_localisation_attack():
    rng = np.random.default_rng(5)
    sets = [[first, first + 1, 11] for first in range(9)]
    order = list(range(9))
    found = life([*order[:4], -1, *order[4:], -1, -1], sets)
    told = rng.normal(0, 1, found.claims)
    profile = Profile.of(model_of(5))
    wanted = forward_backward(found, profile, told)
    np.testing.assert_allclose(by_sets(found, profile, None, told), wanted, atol=1e-6)


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
    found, profile = attacked.candidates, Profile.of(attacked.model)
    slots = error(attacked, combined(found, profile, passes))
    sets = by_sets(found, profile, belief, claimed=attacked.claimed)
    assert error(attacked, sets) < slots - 0.05


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
    profile = Profile.of(claims.model_of(claims.town(rng, people=30, regions=40)))
    # A log ratio of a noisy 1 or 0: by itself hardly more than a guess.
    sigma = 1.5
    told = (truth + sigma * rng.standard_normal(found.claims) - 0.5) / sigma**2
    alone = localisation_error(name_best(found, told), found, truth).error
    honest = SetBelief(honest=0.02)
    pooled = by_sets(found, profile, honest, told)
    together = localisation_error(name_best(found, pooled), found, truth).error
    assert together < alone - 0.05


def test_how_many_claim_a_place_tells_once_for_each_set():
    found = life([0, 0, -1, 0, 0, -1], [[2, 5]])
    region, profile = found.region, Profile.of(model_of(2))
    claimed = np.where(region == 2, 1, 9)
    flat = by_sets(found, profile, SetBelief(crowd=2.0))
    told = by_sets(found, profile, SetBelief(crowd=2.0), claimed=claimed)
    few, many = told[region == 2][0], told[region == 5][0]
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
    assert belief.honest < 1
    found, profile = attacked.candidates, Profile.of(attacked.model)
    truth = true_claims(found, attacked.traces)
    hint = 0.05 * (truth - 0.5) + np.sqrt(0.05) * rng.standard_normal(found.claims)
    learnt, plain, alone = (
        error(attacked, by_sets(found, profile, one, told, attacked.claimed))
        for one, told in (
            (belief, hint),
            (replace(belief, honest=1.0), hint),
            (belief, None),
        )
    )
    assert learnt < plain - 0.02
    assert learnt < alone - 0.05
    tempered = by_sets(found, profile, belief)
    filled = found.start[:-1][np.diff(found.start) > 0]
    assert np.allclose(np.add.reduceat(tempered, filled), 1)
    again = by_sets(found, profile, replace(belief, honest=1.0))
    assert np.corrcoef(tempered, again)[0, 1] > 0.9
    assert tempered.max() < again.max()
