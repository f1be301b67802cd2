"""Epidemic domains, and the distributions that pseudo places are drawn from."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import stats

from epifalcon.mobility.regions import Regions
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.privacy import pseudo_generators as sampling
from epifalcon.privacy.pseudo_generators import (
    GENERATORS,
    epidemic_domains,
    features,
    generate,
)
from epifalcon.privacy.pseudo_traces import DomainSettings, PseudoSettings
from tests.oracles.cities import cities
from tests.oracles.markov_loop import transition
from tests.oracles.pseudo_loop import next_shares, place_shares
from tests.oracles.recurrence_attack import recurrence_error
from tests.privacy.pseudo_worlds import p_value, settings_for, twins, world_of

CASES = settings(max_examples=40, deadline=None, derandomize=True)

EVERYWHERE = np.zeros(11, np.int32)
DOMAINS = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2], dtype=np.int32)


def within(domains, generator, world, copies, seed=2):
    """Pseudo traces of a generator with these domains instead of its own."""
    rng, chosen = np.random.default_rng(seed), settings_for("plausible", copies)
    generator = replace(generator, by_domain=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "epidemic_domains", lambda *_: domains)
        return generator(world.traces, world.model, world.cases, chosen, rng)


def fit(world, pseudo, shares, domains=EVERYWHERE):
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
        free = domains == domains[true[slot]]
        free[[true[slot], *([other] if other >= 0 else [])]] = False
        return shares(slot, last, free)

    return p_value(np.concatenate(conditions), np.concatenate(drawn), shares_of)


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 0.02])
def test_each_step_is_the_aggregate_model_within_the_domain(epsilon):
    world = twins(epsilon)
    pseudo = within(DOMAINS, GENERATORS["walk"], world, 2, seed=1).pseudo
    assert fit(world, pseudo, partial(next_shares, world.model), DOMAINS) > 1e-3


def test_a_domain_without_a_free_region_leaves_a_copy_out():
    world = twins(1e-3, people=50)
    pairs = np.arange(11, dtype=np.int32) // 2
    made = within(pairs, GENERATORS["walk"], world, 2)
    true = world.traces.by_slot
    # Every domain but the last has two regions: the true one and one other.
    assert (made.pseudo[0][true >= 0] == (true[true >= 0] ^ 1)).all()
    assert (made.pseudo[1] == -1).all()


def test_the_cases_shape_the_domains():
    world = twins(1e-3, people=2000)
    hot = np.zeros((11, 2))
    hot[[2, 4, 6, 8]] = 50
    chosen = settings_for("plausible", copies=1, count=2)
    made = generate(world.traces, world.model, hot, chosen, np.random.default_rng(0))
    beside_hot = made.pseudo[0][world.traces.by_slot == 2]
    assert set(beside_hot.tolist()) <= {4, 6, 8}


@pytest.fixture(scope="module")
def village():
    city = CitySettings(people=300, regions=300, days=7)
    return world_of(build_city(city, np.random.default_rng(0)), epsilon=1e-8)


def resident_of(world, copies=2, seed=0, least=60):
    domains = DomainSettings(count=4, least_regions=least)
    chosen = PseudoSettings(method="recurring", pseudo_copies=copies, domains=domains)
    rng = np.random.default_rng(seed)
    return generate(world.traces, world.model, world.cases, chosen, rng)


def lives_of_twins(world, candidates):
    recurring = replace(GENERATORS["recurring"], option=candidates)
    made = within(EVERYWHERE, recurring, world, 1, seed=9)
    return made.pseudo[0], world.traces.by_slot[:, 0]


def test_a_recurring_pseudo_trace_recurs_exactly_when_the_true_one_does(village):
    for pseudo in resident_of(village).pseudo:
        for real, made_up in zip(village.traces.by_person, pseudo.T, strict=True):
            assert same_split(real, made_up)


def test_a_recurring_pseudo_trace_shares_no_place_with_the_true_one_or_another_copy(
    village,
):
    made = resident_of(village)
    for person in range(village.traces.people):
        lives = [village.traces.by_slot[:, person], *made.pseudo[:, :, person]]
        sets = [{*life.tolist()} - {-1} for life in lives]
        assert len(set.union(*sets)) == sum(len(one) for one in sets)


def test_a_recurring_pseudo_trace_has_the_epidemic_domains_of_the_true_one(village):
    made = resident_of(village, seed=5)
    rng = np.random.default_rng(5)
    chosen = DomainSettings(count=4, least_regions=60)
    domain = epidemic_domains(village.traces.regions, village.cases, chosen, rng)
    assert len(np.unique(domain)) > 1
    for pseudo in made.pseudo:
        np.testing.assert_array_equal(domain[pseudo], domain[village.traces.by_slot])


@CASES
@given(cities(), st.integers(1, 3))
def test_one_true_region_has_one_pseudo_region_however_small_the_city(traces, copies):
    world = world_of(traces)
    chosen = settings_for("recurring", copies)
    rng = np.random.default_rng(0)
    made = generate(traces, world.model, world.cases, chosen, rng)
    for pseudo in made.pseudo:
        for real, made_up in zip(traces.by_person, pseudo.T, strict=True):
            pairs = {*zip(real.tolist(), made_up.tolist(), strict=True)}
            assert len(pairs) == len(np.unique(real))


def test_new_places_are_steps_of_the_walk():
    world = twins(0.02)
    pseudo, true = lives_of_twins(world, candidates=1)
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


def test_among_many_candidates_the_moves_decide():
    world = twins(0.02, people=3000)
    pseudo, true = lives_of_twins(world, candidates=400)
    free = np.ones(len(world.traces.regions), dtype=bool)
    free[true[true >= 0]] = False

    def move(slot, here, there):
        return transition(world.model, slot, here, there, normalised=True)

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


def test_recurrence_finds_walkers_but_not_recurring_traces(village):
    error = {}
    for method in ("plausible", "recurring"):
        rng = np.random.default_rng(1)
        chosen = PseudoSettings(method=method)
        made = generate(village.traces, village.model, village.cases, chosen, rng)
        error[method] = recurrence_error(made, rng)
    assert error["plausible"] < 0.3
    assert error["recurring"] == pytest.approx(2 / 3, abs=0.03)


def drawn_by(method, world, copies=2):
    rng = np.random.default_rng(4)
    settings = settings_for(method, copies)
    return generate(world.traces, world.model, world.cases, settings, rng).pseudo


BASELINES = {
    "uniform": lambda _model, _slot, _last, free: free / free.sum(),
    "aggregate": lambda model, slot, _last, free: place_shares(
        model.visits[slot % len(model.visits)], free
    ),
    "walk": next_shares,
}


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_draw_from_all_free_regions(method):
    world = twins(1e-3)
    pseudo = drawn_by(method, world)
    assert fit(world, pseudo, partial(BASELINES[method], world.model)) > 1e-3


@njit()
def draws(tables, slot, domain, taken, seed, made):
    state = np.zeros(1, np.uint64)
    for number in range(len(made)):
        sampling.start(state, np.uint64(seed), number)
        made[number] = sampling._draw_place(tables, slot, domain, taken, state)


@pytest.mark.parametrize("alike", [False, True])
def test_free_regions_of_little_weight_are_drawn_by_it_too(alike):
    """Nearly all weight lies on a taken region, so that trials fail."""
    model = twins(1e-3, people=2).model
    weight = model.visits + 0.01 * (1 - alike)
    weight[:, 4] = 1e6
    if alike:
        weight[:, [0, 1, 2, 3]] = 0
    domains = (np.arange(11) > 4).astype(np.int32)
    tables = sampling.make_tables(model, domains, weight)
    taken = np.isin(np.arange(11), [1, 4])
    made = np.empty(4000, np.int64)
    draws(tables, 2, 0, taken, 3, made)
    free = ~taken & (np.arange(11) < 4)
    shares = place_shares(weight[2], free)[free]
    seen = np.bincount(made, minlength=11)
    assert seen[~free].sum() == 0
    assert stats.chisquare(seen[free], shares * 4000).pvalue > 1e-3


def cluster(regions, cases, seed=0, count=2, gamma=1.0, least=1):
    chosen = DomainSettings(count=count, gamma=gamma, least_regions=least)
    return epidemic_domains(regions, cases, chosen, np.random.default_rng(seed))


def four_groups(seed=0):
    """Two towns far apart, each with quiet and burning regions."""
    rng = np.random.default_rng(seed)
    east, hot = np.repeat([0, 0, 1, 1], 25), np.tile(np.repeat([0, 1], 25), 2)
    centre = rng.normal(0, 1, (100, 2)) + 40 * east[:, None]
    cases = rng.poisson(np.where(hot, 30, 0.1)[:, None], (100, 6)).astype(float)
    return Regions("area", centre), cases, east, hot


def same_split(one, other):
    pairs = {*zip(one.tolist(), other.tolist(), strict=True)}
    return len(pairs) == len(np.unique(one)) == len(np.unique(other))


@pytest.mark.parametrize("seed", range(5))
def test_gamma_weighs_the_place_against_the_cases(seed):
    regions, cases, east, hot = four_groups(seed)
    assert same_split(cluster(regions, cases, seed, gamma=0.0), hot)
    assert same_split(cluster(regions, cases, seed, gamma=100.0), east)
    both = cluster(regions, cases, seed, count=4)
    assert same_split(both, 2 * east + hot)


def test_the_two_terms_weigh_the_same_at_gamma_one():
    rng = np.random.default_rng(0)
    regions = Regions("area", rng.normal(50, 1e3, (80, 2)))
    points = features(regions, rng.poisson(0.01, (80, 9)).astype(float), 1.0)
    history, ground = points[:, :9], points[:, 9:]
    assert (history**2).sum(axis=1).mean() == pytest.approx(1)
    assert (ground**2).sum(axis=1).mean() == pytest.approx(1)


@CASES
@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 15),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 99),
)
def test_no_domain_is_small_unless_it_is_the_only_one(size, count, least, gamma, seed):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(size, 2))
    centre[rng.random(size) < 0.2] = np.nan
    cases = rng.poisson(0.5, (size, 3)).astype(float)
    made = cluster(Regions("area", centre), cases, seed, count, gamma, least)
    assert made.shape == (size,)
    sizes = np.bincount(made)
    assert len(sizes) <= count
    assert len(sizes) == 1 or sizes.min() >= least
    again = cluster(Regions("area", centre), cases, seed, count, gamma, least)
    np.testing.assert_array_equal(made, again)


def test_a_small_cluster_joins_the_nearest():
    centre = np.array([[0.0, 0]] * 9 + [[10.0, 0]] * 9 + [[8.0, 0]])
    made = cluster(Regions("area", centre), np.zeros((19, 1)), count=3, least=2)
    assert sorted(np.bincount(made).tolist()) == [9, 10]
    assert made[18] == made[10]


def test_without_cases_and_places_there_is_one_domain():
    nowhere = Regions("area", np.full((7, 2), np.nan))
    assert not cluster(nowhere, np.zeros((7, 3)), count=5).any()
