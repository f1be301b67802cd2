import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.privacy.pseudo import lives
from epifalcon.privacy.pseudo.catalogue import generate
from epifalcon.privacy.pseudo.domains import epidemic_domains
from epifalcon.privacy.pseudo.lives import recurring
from epifalcon.privacy.pseudo.record import PseudoSettings
from tests.oracles.cities import cities
from tests.oracles.pseudo_loop import next_shares
from tests.oracles.recurrence_attack import recurrence_error
from tests.privacy.pseudo.goodness import p_value
from tests.privacy.pseudo.worlds import twins, wish, world_of

CASES = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def village():
    city = CitySettings(people=300, regions=300, days=7)
    return world_of(build_city(city, np.random.default_rng(0)), epsilon=1e-8)


def lives_in(world, copies=2, seed=0, least=60):
    chosen = PseudoSettings(method="recurring", pseudo_copies=copies)
    domains = type(chosen.domains)(count=4, least_regions=least)
    chosen = PseudoSettings(method="recurring", pseudo_copies=copies, domains=domains)
    rng = np.random.default_rng(seed)
    return recurring(world.traces, world.model, world.cases, chosen, rng)


def test_a_pseudo_life_recurs_exactly_when_the_true_one_does(village):
    made = lives_in(village)
    true = village.traces.by_person
    for pseudo in made.pseudo:
        for person, (real, made_up) in enumerate(zip(true, pseudo.T, strict=True)):
            pairs = {*zip(real.tolist(), made_up.tolist(), strict=True)}
            assert len(pairs) == len(np.unique(real)) == len(np.unique(made_up)), person


def test_a_pseudo_life_shares_no_place_with_the_true_one_or_another_copy(village):
    made = lives_in(village)
    for person in range(village.traces.people):
        lives = [village.traces.by_slot[:, person], *made.pseudo[:, :, person]]
        sets = [{*life.tolist()} - {-1} for life in lives]
        assert len(set.union(*sets)) == sum(len(one) for one in sets)


def test_a_pseudo_life_meets_the_epidemic_domains_of_the_true_one(village):
    made = lives_in(village, seed=5)
    rng = np.random.default_rng(5)
    chosen = type(wish("recurring").domains)(count=4, least_regions=60)
    domain = epidemic_domains(
        village.traces.regions, village.cases, chosen, rng
    ).of_region
    assert len(np.unique(domain)) > 1
    for pseudo in made.pseudo:
        np.testing.assert_array_equal(domain[pseudo], domain[village.traces.by_slot])


@CASES
@given(cities(), st.integers(1, 3))
def test_one_true_region_has_one_pseudo_region_however_small_the_city(traces, copies):
    world = world_of(traces)
    chosen = wish("recurring", copies)
    rng = np.random.default_rng(0)
    made = recurring(traces, world.model, world.cases, chosen, rng)
    for pseudo in made.pseudo:
        for real, made_up in zip(traces.by_person, pseudo.T, strict=True):
            pairs = {*zip(real.tolist(), made_up.tolist(), strict=True)}
            assert len(pairs) == len(np.unique(real))


def test_new_places_are_steps_of_the_walk(monkeypatch):
    monkeypatch.setattr(lives, "CANDIDATES", 1)
    world = twins(0.02)
    everywhere = PseudoSettings(method="recurring", pseudo_copies=1)
    rng = np.random.default_rng(9)
    made = recurring(world.traces, world.model, world.cases, everywhere, rng)
    pseudo, true = made.pseudo[0], world.traces.by_slot[:, 0]
    # The twins meet 2, 7, 3, 1 in slots 0, 2, 5, 7, coming from slots -, 1, 4, 6.
    conditions, drawn = [], []
    for slot, before in ((0, -1), (2, 1), (5, 4), (7, 6)):
        count = pseudo.shape[1]
        last = pseudo[before] if before >= 0 else np.full(count, -1)
        had = [pseudo[s] if s < slot else np.full(count, -1) for s in (0, 2, 5)]
        conditions.append(np.stack([np.full(count, slot), last, *had], axis=1))
        drawn.append(pseudo[slot])

    def shares(condition):
        slot, last, *had = condition
        free = np.ones(len(world.traces.regions), dtype=bool)
        free[[*true[true >= 0], *[region for region in had if region >= 0]]] = False
        return next_shares(world.model, slot, last, free)

    assert p_value(np.concatenate(conditions), np.concatenate(drawn), shares) > 1e-3


def test_among_many_candidates_the_moves_decide(monkeypatch):
    monkeypatch.setattr(lives, "CANDIDATES", 400)
    world = twins(0.02, people=3000)
    rng = np.random.default_rng(9)
    chosen = PseudoSettings(method="recurring", pseudo_copies=1)
    made = recurring(world.traces, world.model, world.cases, chosen, rng)
    pseudo, true = made.pseudo[0], world.traces.by_slot[:, 0]
    free = np.ones(len(world.traces.regions), dtype=bool)
    free[true[true >= 0]] = False

    def move(slot, here, there):
        return world.model.transition(slot, here, there, normalised=True)

    def shares(condition):
        # 7 is met in slot 2, after 2 in slots 0 and 1, and only slots 1 to 2 join
        # them; 3 is met in slot 5, and joins 2 before it and 7 after it.
        slot, home, work = condition
        there = np.arange(free.size)
        weight = np.where(free, move(slot - 1, home, there), 0)
        weight[home] = 0
        if work >= 0:
            weight *= move(slot, there, work)
            weight[work] = 0
        return weight / weight.sum()

    nobody = np.full(pseudo.shape[1], -1)
    conditions = [
        np.stack([nobody + 3, pseudo[0], nobody], axis=1),
        np.stack([nobody + 6, pseudo[0], pseudo[2]], axis=1),
    ]
    drawn = np.concatenate([pseudo[2], pseudo[5]])
    assert p_value(np.concatenate(conditions), drawn, shares) > 1e-3


def test_recurrence_finds_walkers_but_not_pseudo_lives(village):
    error = {}
    for method in ("plausible", "recurring"):
        rng = np.random.default_rng(1)
        chosen = PseudoSettings(method=method)
        made = generate(village.traces, village.model, village.cases, chosen, rng)
        error[method] = recurrence_error(made, rng)
    assert error["plausible"] < 0.3
    assert error["recurring"] == pytest.approx(2 / 3, abs=0.03)
