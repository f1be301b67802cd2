import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.mobility import synthetic
from epifalcon.mobility.synthetic import CitySettings, build_city
from tests.oracles.city_loop import build_city_by_loop

CASES = settings(max_examples=40, deadline=None, derandomize=True)
POI = {"kind": "poi", "region_radius_km": 0.1, "home_share": 0.4}


def city(seed=3, **changed):
    wished = CitySettings(**{"people": 50, "regions": 90, **changed})
    return build_city(wished, np.random.default_rng(seed))


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
    wished = CitySettings(**{"people": 50, "regions": 90, **changed})
    fast = build_city(wished, np.random.default_rng(3)).by_person
    plain = build_city_by_loop(wished, np.random.default_rng(3))
    assert np.array_equal(fast, plain)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_threads_and_blocks_do_not_matter(monkeypatch, threads, block):
    wished = city(people=300, observed_share=0.7).by_slot
    monkeypatch.setattr(synthetic, "get_num_threads", lambda: threads)
    monkeypatch.setattr(synthetic, "BLOCK_PEOPLE", block)
    assert np.array_equal(city(people=300, observed_share=0.7).by_slot, wished)


def test_larger_cities_begin_with_the_smaller_one():
    small = city(people=40, days=6).by_person
    assert np.array_equal(city(people=90, days=6).by_person[:40], small)
    assert np.array_equal(
        city(people=40, days=11).by_person[:, : small.shape[1]], small
    )


def test_another_slot_length_shows_the_same_lives():
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
    wished = CitySettings(
        people=people,
        regions=regions,
        days=days,
        slot_hours=slot_hours,
        kind=kind,
        observed_share=share,
        home_share=share,
        commuter_share=share,
    )
    traces = build_city(wished, np.random.default_rng(seed))
    assert traces.by_slot.shape == (wished.clock.slots, people)
    assert traces.regions.kind == kind
    assert len(traces.regions) == regions
    assert traces.regions.placed
    assert traces.by_slot.flags.c_contiguous


def test_seed_decides():
    assert np.array_equal(city(seed=1).by_slot, city(seed=1).by_slot)
    assert not np.array_equal(city(seed=1).by_slot, city(seed=2).by_slot)


def test_weekends_differ_from_workdays():
    traces = city(people=600, regions=200, days=14)
    home = traces.by_slot[0]
    noon = [(traces.by_slot[day * 12 + 5] == home).mean() for day in range(14)]
    assert np.mean([noon[5], noon[6], noon[12], noon[13]]) > np.mean(noon[:5]) + 0.1
    shifted = city(people=600, regions=200, days=14, start="2024-06-01")
    noon = [(shifted.by_slot[day * 12 + 5] == home).mean() for day in range(14)]
    assert np.mean(noon[:2]) > np.mean(noon[2:7]) + 0.1


def test_no_outings_no_work_no_travel_means_home():
    traces = city(outings=0.0, commuter_share=0.0, traveller_share=0.0)
    assert (traces.by_slot == traces.by_slot[0]).all()


def test_progress_reaches_the_end():
    told = []
    wished = CitySettings(people=600, regions=20, days=1)
    build_city(wished, np.random.default_rng(0), lambda *step: told.append(step))
    assert told == [("city", done, 600) for done in (0, 256, 512, 600)]
