import numpy as np
import pytest

from epifalcon.privacy.pseudo.domains import Domains
from epifalcon.privacy.pseudo.plausible import plausible, walk_on
from tests.oracles.pseudo_loop import next_shares, walk_person
from tests.privacy.pseudo.goodness import p_value
from tests.privacy.pseudo.worlds import twins, wish

DOMAINS = Domains(np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2], dtype=np.int32))
WALKED = {0: -1, 1: 0, 2: 1, 4: 2, 5: 4, 6: 5, 7: 6}
"""Each observed slot of the twins and the observed one before it."""


def free_regions(domain: np.ndarray, true: int, *taken: int) -> np.ndarray:
    free = domain == domain[true]
    free[[true, *[region for region in taken if region >= 0]]] = False
    return free


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 0.02])
def test_each_step_is_the_aggregate_model_within_the_domain(epsilon):
    world = twins(epsilon)
    made = walk_on(DOMAINS, world.traces, world.model, 2, np.random.default_rng(1))
    true = world.traces.by_slot[:, 0]
    conditions, drawn = [], []
    for slot, before in WALKED.items():
        for copy in range(2):
            last = np.full(world.traces.people, -1)
            if before >= 0:
                last = made.pseudo[copy, before]
            other = made.pseudo[0, slot] if copy else np.full(last.size, -1)
            conditions.append(np.stack([np.full(last.size, slot), last, other], 1))
            drawn.append(made.pseudo[copy, slot])

    def shares(condition):
        slot, last, other = condition
        free = free_regions(DOMAINS.of_region, true[slot], other)
        return next_shares(world.model, slot, last, free)

    assert p_value(np.concatenate(conditions), np.concatenate(drawn), shares) > 1e-3


def test_the_walk_has_the_places_of_the_loop_over_people():
    world = twins(1e-3, people=3000)
    rng = np.random.default_rng(3)
    made = walk_on(DOMAINS, world.traces, world.model, 2, rng).pseudo
    trace = world.traces.by_slot[:, 0]
    loop = np.stack(
        [
            walk_person(trace, world.model, DOMAINS.of_region, 2, rng)
            for _ in range(1500)
        ],
        axis=2,
    )
    for slot in np.flatnonzero(trace >= 0):
        for copy in range(2):
            ours = np.bincount(made[copy, slot], minlength=11) / 3000
            theirs = np.bincount(loop[copy, slot], minlength=11) / 1500
            assert np.abs(ours - theirs).max() < 0.06


def test_every_pseudo_place_lies_in_the_domain_of_the_true_one():
    world = twins(1e-3, people=50)
    made = walk_on(DOMAINS, world.traces, world.model, 3, np.random.default_rng(2))
    seen = made.pseudo >= 0
    true = np.broadcast_to(world.traces.by_slot, made.pseudo.shape)
    domain = DOMAINS.of_region
    assert (domain[made.pseudo[seen]] == domain[true[seen]]).all()


def test_a_domain_without_a_free_region_leaves_a_copy_out():
    world = twins(1e-3, people=50)
    pairs = Domains((np.arange(11, dtype=np.int32) // 2).astype(np.int32))
    made = walk_on(pairs, world.traces, world.model, 2, np.random.default_rng(2))
    true = world.traces.by_slot
    # Every domain but the last has two regions: the true one and one other.
    assert (made.pseudo[0][true >= 0] == (true[true >= 0] ^ 1)).all()
    assert (made.pseudo[1] == -1).all()
    assert made.missing == np.count_nonzero(true >= 0)


def test_the_cases_shape_the_domains():
    world = twins(1e-3, people=2000)
    hot = np.zeros((11, 2))
    hot[[2, 4, 6, 8]] = 50
    settings = wish("plausible", copies=1, count=2)
    made = plausible(world.traces, world.model, hot, settings, np.random.default_rng(0))
    beside_hot = made.pseudo[0][world.traces.by_slot == 2]
    assert set(beside_hot.tolist()) <= {4, 6, 8}
