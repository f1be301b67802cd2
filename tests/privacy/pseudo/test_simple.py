import numpy as np

from epifalcon.privacy.pseudo.catalogue import generate
from tests.oracles.pseudo_loop import next_shares, place_shares
from tests.privacy.pseudo.goodness import p_value
from tests.privacy.pseudo.worlds import twins, wish


def drawn_by(method, world, copies=2):
    rng = np.random.default_rng(4)
    settings = wish(method, copies)
    return generate(world.traces, world.model, world.cases, settings, rng).pseudo


def fit(world, pseudo, shares):
    """p-value of every draw, given slot, last place and the first copy's place."""
    people = world.traces.people
    conditions, drawn = [], []
    for copy in range(len(pseudo)):
        last = np.full(people, -1)
        for slot in np.flatnonzero(world.traces.by_slot[:, 0] >= 0):
            other = pseudo[0, slot] if copy else np.full(people, -1)
            conditions.append(np.stack([np.full(people, slot), last, other], 1))
            last = pseudo[copy, slot]
            drawn.append(last)
    true = world.traces.by_slot[:, 0]

    def shares_of(condition):
        slot, last, other = condition
        free = np.ones(len(world.traces.regions), dtype=bool)
        free[[true[slot], *([other] if other >= 0 else [])]] = False
        return shares(slot, last, free)

    return p_value(np.concatenate(conditions), np.concatenate(drawn), shares_of)


def test_uniform_draws_every_free_region_alike_and_anew():
    world = twins(1e-3)
    pseudo = drawn_by("uniform", world)
    p = fit(world, pseudo, lambda _slot, _last, free: free / free.sum())
    assert p > 1e-3


def test_aggregate_draws_by_the_visits_of_the_slot_and_anew():
    world = twins(1e-3)
    visits = world.model.visits
    pseudo = drawn_by("aggregate", world)
    p = fit(
        world,
        pseudo,
        lambda slot, _last, free: place_shares(visits[slot % len(visits)], free),
    )
    assert p > 1e-3


def test_walk_steps_by_the_aggregate_model_over_all_regions():
    world = twins(1e-3)
    pseudo = drawn_by("walk", world)
    p = fit(
        world,
        pseudo,
        lambda slot, last, free: next_shares(world.model, slot, last, free),
    )
    assert p > 1e-3
