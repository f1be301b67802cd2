import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.path import Path
from numba import njit
from scipy import stats

from epifalcon.mobility.synthetic import CitySettings, build_city, gravity
from epifalcon.mobility.synthetic import city as city_module
from epifalcon.mobility.synthetic.city import lay_out
from epifalcon.mobility.synthetic.gravity import Kernel, draw
from tests.oracles.city_loop import build_city_by_loop

CASES = settings(max_examples=40, deadline=None, derandomize=True)
POI = {"kind": "poi", "region_radius_km": 0.1, "home_share": 0.4}


def city(seed=3, **changed):
    wanted = CitySettings(**{"people": 50, "regions": 90, **changed})
    return build_city(wanted, np.random.default_rng(seed))


@pytest.mark.parametrize(
    "changed",
    [
        {"people": 60, "regions": 400, "slot_hours": 0.25},
        {"people": 60, "regions": 300, "days": 20, **POI},
        {"people": 20, "regions": 2, "slot_hours": 1.0},
        {"people": 5, "regions": 1},
        {"people": 40, "start": "2021-05-01", "outings": 4.0, "stay_min_hours": 0.25},
        {"people": 40, "commuter_share": 1.0, "traveller_share": 1.0, "days": 9},
        {"people": 20, "exploration": 0.0, "chain_share": 1.0, "slot_hours": 24.0},
    ],
)
def test_equals_the_plain_loop_over_people_bit_by_bit(changed):
    wanted = CitySettings(**{"people": 50, "regions": 90, **changed})
    fast = build_city(wanted, np.random.default_rng(3)).by_person
    plain = build_city_by_loop(wanted, np.random.default_rng(3))
    assert np.array_equal(fast, plain)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_threads_and_blocks_do_not_matter(monkeypatch, threads, block):
    wanted = city(people=300, observed_share=0.7).by_slot
    monkeypatch.setattr(city_module, "get_num_threads", lambda: threads)
    monkeypatch.setattr(city_module, "BLOCK_PEOPLE", block)
    assert np.array_equal(city(people=300, observed_share=0.7).by_slot, wanted)


def test_larger_cities_begin_with_the_smaller_one():
    small = city(people=40, days=6).by_person
    assert np.array_equal(city(people=90, days=6).by_person[:40], small)
    longer = city(people=40, days=11).by_person
    assert np.array_equal(longer[:, : small.shape[1]], small)


def test_another_slot_length_gives_the_same_stays():
    """Each two-hour slot holds the region of most of its minutes."""
    minutes = city(slot_hours=1 / 60, people=30, days=5).by_person
    hours = city(slot_hours=2.0, people=30, days=5).by_person
    for person in range(30):
        for slot, region in enumerate(hours[person]):
            inside = minutes[person, slot * 120 : slot * 120 + 120]
            count = np.bincount(inside)
            assert count[region] == count.max()
            first = next(r for r in inside if count[r] == count.max())
            assert region == first


@CASES
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(1, 9)),
    slot_hours=st.sampled_from([0.25, 0.5, 1.0, 2.0, 6.0, 24.0]),
    kind=st.sampled_from(["area", "poi"]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_any_size_makes_valid_traces(size, slot_hours, kind, share, seed):
    people, regions, days = size
    size = {"people": people, "regions": regions, "days": days, "kind": kind}
    names = ("observed_share", "home_share", "commuter_share")
    wanted = CitySettings(slot_hours=slot_hours, **size, **dict.fromkeys(names, share))
    traces = build_city(wanted, np.random.default_rng(seed))
    assert traces.by_slot.shape == (wanted.clock.slots, people)
    assert len(traces.regions) == regions
    assert traces.regions.placed


def observed(**changed):
    wanted = CitySettings(**{"people": 800, "regions": 60, "days": 10, **changed})
    return build_city(wanted, np.random.default_rng(5))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.85, 1.0])
def test_mean_share_is_the_wanted_one_and_people_differ_by_sigma(share):
    spread = []
    for sigma in (0.0, 1.0, 3.0):
        seen = observed(observed_share=share, observed_sigma=sigma)
        # 800 people, each with a share of their own: about 1.5 % either way.
        error = 0.045 if 0 < share < 1 else 0
        assert seen.observed_share == pytest.approx(share, abs=error)
        spread.append((seen.by_person >= 0).mean(axis=1).std())
    assert share in (0, 1) or spread[0] < spread[1] < spread[2]


def test_filled_gaps_repeat_the_last_region_and_before_the_first_that_one():
    sparse = {"observed_share": 0.02, "observed_sigma": 2.0}
    whole, seen = observed().by_slot, observed(**sparse).by_slot
    assert (whole >= 0).all()
    assert np.array_equal(whole[seen >= 0], seen[seen >= 0])
    filled = observed(**sparse, fill_gaps=True).by_slot
    expected = seen.copy()
    for person in range(seen.shape[1]):
        known = np.flatnonzero(seen[:, person] >= 0)
        for slot in range(len(seen)):
            earlier = known[known <= slot]
            source = earlier[-1:] if len(earlier) else known[:1]
            if len(source):
                expected[slot, person] = seen[source[0], person]
    assert np.array_equal(filled, expected)
    never = (seen < 0).all(axis=0)
    assert never.any()
    assert np.array_equal(never, (filled < 0).any(axis=0))


def test_gaps_come_in_bursts_that_last_longer_with_gap_hours():
    def repeats(hours):
        chosen = {"observed_share": 0.5, "observed_sigma": 0.0, "gap_hours": hours}
        seen = observed(**chosen).by_slot >= 0
        return (seen[1:] == seen[:-1]).mean()

    assert repeats(2.0) == pytest.approx(0.5, abs=0.03)
    # Unchanged with probability 2/3, else drawn again: 2/3 + 1/3 * 1/2.
    assert repeats(6.0) == pytest.approx(5 / 6, abs=0.03)


def layout(seed=0, **changed):
    wanted = CitySettings(**{"regions": 500, **changed})
    return lay_out(wanted, np.random.default_rng(seed))


def area(ring):
    x, y = ring.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


def test_areas_have_the_wanted_land_and_lie_within_the_extent():
    regions = layout(region_radius_km=0.79, built_share=0.45).regions
    land = [area(regions.outline(r)) for r in range(len(regions))]
    assert np.mean(land) == pytest.approx(np.pi * 0.79**2, rel=0.02)
    extent = 0.79 * (500 / 0.45) ** 0.5
    assert np.hypot(*regions.centre_km.T).max() < extent + 1.5


def test_areas_tile_without_overlap():
    """Points of the plane lie in one outline at most, each centre in its own."""
    regions = layout(regions=120).regions
    paths = [Path(regions.outline(r)) for r in range(120)]
    points = np.random.default_rng(1).uniform(-8, 8, (4000, 2))
    inside = np.array([path.contains_points(points) for path in paths])
    assert inside.sum(axis=0).max() == 1
    assert inside.sum() > 500
    for region, path in enumerate(paths):
        assert path.contains_point(regions.centre_km[region])


def test_homes_are_where_they_may_be():
    made = layout(kind="poi", home_share=0.4, regions=1000)
    assert np.count_nonzero(made.home) == 400
    assert made.visit[made.home > 0].mean() < made.visit[made.home == 0].mean()
    assert np.count_nonzero(layout(home_share=0.0).home) == 1


STEEP = Kernel(4.5, 1.0, 30.0)
FLAT = Kernel(0.0, 1.0, 60.0)
COMMUTE = Kernel(1.5, 2.5, 20.0)


def destinations(centre, attraction, kernel):
    """The draws under test stand second, after others that must not matter."""
    other = np.ones(len(centre))
    return gravity.destinations(centre, (other, attraction), (COMMUTE, kernel))


@njit()
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
    wanted = exact(centre, attraction, kernel, here) * draws
    assert hits[wanted == 0].sum() == 0
    rare = wanted < 10
    seen, merged = (np.append(x[~rare], x[rare].sum()) for x in (hits, wanted))
    if merged[-1] < 1:
        seen, merged = seen[:-1], merged[:-1]
    return stats.chisquare(seen, merged * seen.sum() / merged.sum())[1]


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


def test_cells_stay_few(monkeypatch):
    monkeypatch.setattr(gravity, "MOST_CELLS", 50)
    centre, attraction = scattered(3000)
    to = destinations(centre, attraction, COMMUTE)
    assert to.reach.shape[1] <= 50
    assert fit(centre, attraction, COMMUTE, 5) > 1e-4


@pytest.mark.parametrize("kernel", [STEEP, FLAT, COMMUTE])
def test_nowhere_else_to_go(kernel):
    centre = np.zeros((1, 2))
    state = np.array([1], np.uint64)
    assert draw(destinations(centre, np.ones(1), kernel), 1, 0, state) == 0
    far = np.array([[0.0, 0.0], [1e6, 0.0], [2e6, 0.0]])
    unreachable = destinations(far, np.ones(3), Kernel(1.0, 1.0, 0.5))
    assert draw(unreachable, 1, 0, state) == 0
    two = destinations(np.zeros((2, 2)), np.ones(2), kernel)
    assert {draw(two, 1, 0, state) for _ in range(20)} == {1}
