import numpy as np
import pytest
from numba import njit
from scipy import stats

from epifalcon.mobility.city import destinations as module
from epifalcon.mobility.city.destinations import Kernel, draw

STEEP = Kernel(4.5, 1.0, 30.0)
FLAT = Kernel(0.0, 1.0, 60.0)
COMMUTE = Kernel(1.5, 2.5, 20.0)


def destinations(centre, attraction, kernel):
    """The draws under test stand second, after others that must not matter."""
    other = np.ones(len(centre))
    return module.destinations(centre, (other, attraction), (COMMUTE, kernel))


@njit
def tally(to, here, count, state):
    hits = np.zeros(to.radius.size, np.int64)
    for _ in range(count):
        hits[draw(to, 1, here, state)] += 1
    return hits


def exact(centre, attraction, kernel, here):
    """The dense probabilities of leaving ``here``."""
    far = np.hypot(*(centre - centre[here]).T)
    weight = attraction * (1 + far / kernel.scale) ** -kernel.exponent
    weight *= np.exp(-far / kernel.cutoff)
    weight[here] = 0
    return weight / weight.sum()


def fit(centre, attraction, kernel, here, draws=60_000):
    """The p-value that draws follow the dense probabilities."""
    to = destinations(centre, attraction, kernel)
    hits = tally(to, here, draws, np.array([7 + here], np.uint64))
    wished = exact(centre, attraction, kernel, here) * draws
    assert hits[wished == 0].sum() == 0
    rare = wished < 10
    merged_hits = np.append(hits[~rare], hits[rare].sum())
    merged = np.append(wished[~rare], wished[rare].sum())
    if merged[-1] < 1:
        merged_hits, merged = merged_hits[:-1], merged[:-1]
    return stats.chisquare(merged_hits, merged * merged_hits.sum() / merged.sum())[1]


def scattered(count):
    rng = np.random.default_rng(count)
    spread = np.where(np.arange(count) % 3, 20.0, 1.0)
    centre = rng.normal(0, 1, (count, 2)) * spread[:, None]
    return centre, rng.lognormal(0, 1.9, count) * (rng.random(count) < 0.8)


def lattice(count):
    side = int(count**0.5)
    centre = np.stack(np.divmod(np.arange(side * side), side), axis=1) * 1.5
    return centre.astype(float), np.ones(side * side)


@pytest.mark.parametrize("kernel", [STEEP, FLAT, COMMUTE])
@pytest.mark.parametrize("make", [scattered, lattice])
@pytest.mark.parametrize("count", [9, 49, 60, 900])
def test_draws_follow_the_dense_probabilities(kernel, make, count):
    centre, attraction = make(count)
    worst = min(fit(centre, attraction, kernel, here) for here in (0, len(centre) // 2))
    assert worst > 1e-4


def test_far_regions_are_drawn_where_all_near_ones_draw_nobody():
    centre, attraction = scattered(400)
    near = np.hypot(*(centre - centre[0]).T) < 15
    attraction = np.where(near, 0.0, 1.0)
    assert fit(centre, attraction, COMMUTE, 0) > 1e-4


def test_few_tries_suffice():
    """Each draw takes a few uniform numbers, not hundreds."""
    centre, attraction = scattered(3000)
    for kernel in (STEEP, FLAT, COMMUTE):
        to = destinations(centre, np.maximum(attraction, 1e-3), kernel)
        state = np.array([0], np.uint64)
        for here in range(0, 3000, 3):
            draw(to, 1, here, state)
        inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
        used = int(state[0]) * inverse % 2**64
        assert used / 1000 < 40


def test_cells_stay_few(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 50)
    centre, attraction = scattered(3000)
    to = destinations(centre, attraction, COMMUTE)
    assert to.reach.shape[1] <= 50
    assert fit(centre, attraction, COMMUTE, 5) > 1e-4


@pytest.mark.parametrize("kernel", [STEEP, FLAT, COMMUTE])
def test_nowhere_else_to_go(kernel):
    centre = np.zeros((1, 2))
    state = np.array([1], np.uint64)
    assert draw(destinations(centre, np.ones(1), kernel), 1, 0, state) == 0
    two = destinations(np.zeros((2, 2)), np.ones(2), kernel)
    assert {draw(two, 1, 0, state) for _ in range(20)} == {1}


def test_out_of_reach_means_to_stay():
    centre = np.array([[0.0, 0.0], [1e6, 0.0], [2e6, 0.0]])
    to = destinations(centre, np.ones(3), Kernel(1.0, 1.0, 0.5))
    assert draw(to, 1, 0, np.array([1], np.uint64)) == 0
