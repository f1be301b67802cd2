from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.experiments.prediction import NewPeople
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.oracles.cities import cities, random_traces

CLOCK = Clock(slot_hours=4, days=3)
NAMES = ("bakery", "school", "church", "inn", "mill", "well", "barn")


def city(seed=1, people=12, clock=CLOCK, regions=7):
    return random_traces(seed, people, regions, clock)


def placed(traces, names=NAMES, lonlat=True):
    count = len(names)
    degrees = np.column_stack([np.arange(count) * 0.01, np.full(count, 50.0)])
    known = Regions(
        "area",
        np.full((count, 2), np.nan) if lonlat is None else degrees * 60,
        degrees if lonlat else None,
        tuple(names),
    )
    return replace(traces, regions=known)


def some_tests(traces, seed=0):
    rng = np.random.default_rng(seed)
    person = np.sort(rng.choice(traces.people, traces.people // 2, replace=False))
    slot = rng.integers(traces.slots, size=len(person))
    return TestResults.from_tests(
        traces.people, person.astype(np.int32), rng.random(len(person)) < 0.5, slot
    )


@pytest.mark.parametrize("lonlat", [True, False, None])
def test_regions_are_found_by_their_names(lonlat):
    run = placed(city(), lonlat=lonlat)
    order = [4, 1, 6, 0]
    shown = placed(city(2, 30, regions=4), [NAMES[place] for place in order], None)
    gaps = shown.by_slot.copy()
    gaps[::3] = -1
    shown = replace(shown, by_slot=gaps)
    regions = Regions(
        "area",
        run.regions.centre_km[order],
        None if run.regions.lonlat is None else run.regions.lonlat[order],
        shown.regions.names,
    )
    found = NewPeople.of(replace(shown, regions=regions), None, run).traces
    assert found.regions is run.regions
    expected = [
        [-1 if place == -1 else order[place] for place in row]
        for row in shown.by_slot.tolist()
    ]
    assert found.by_slot.tolist() == expected


def test_a_region_that_nobody_visited_need_not_be_known():
    run = placed(city())
    traces = placed(city(2), [*NAMES[:6], "tower"])
    far = traces.regions.lonlat + np.where(np.arange(7) == 6, 0.5, 0)[:, None]
    traces = replace(traces, regions=replace(traces.regions, lonlat=far))
    by_slot = np.where(traces.by_slot == 6, -1, traces.by_slot)
    NewPeople.of(replace(traces, by_slot=by_slot.astype(np.int32)), None, run)
    with pytest.raises(DataError, match=r"1 of its 7 regions, such as 'tower'"):
        NewPeople.of(traces, None, run)


def test_other_cities_slots_people_and_days_are_refused():
    run, here = city(), placed(city())
    moved = replace(here.regions, lonlat=here.regions.lonlat + 0.001)
    slots = replace(city(1, clock=Clock(slot_hours=2, days=3)), regions=run.regions)
    late = some_tests(city(clock=Clock(slot_hours=4, days=30)), seed=1)
    for traces, tests, like, message in (
        (city(2), None, run, "not among the run's 7 regions or have"),
        (city(1, regions=8), None, run, "cannot predict for another city"),
        (replace(here, regions=moved), None, here, "7 regions, such as 'bakery'"),
        (placed(city(), lonlat=None), None, here, "another location"),
        (slots, None, run, r"slots of 2 hours.*import with --slot-hours 4"),
        (
            run,
            some_tests(city(people=11)),
            run,
            "the tests are of 11 people, but the traces have 12",
        ),
        (run, late, run, "the last slot of the traces is 17"),
    ):
        with pytest.raises(DataError, match=message):
            NewPeople.of(traces, tests, like)


@pytest.fixture
def kept(tmp_path):
    traces = city()
    traces.save(tmp_path / "plain", store.Origin())
    traces.save(tmp_path / "whole" / "city", store.Origin())
    some_tests(traces).save(tmp_path / "whole" / "known", store.Origin())
    return tmp_path


def test_folders_of_every_kind_are_read(kept):
    run = city()
    plain = NewPeople.read(kept / "plain", None, run)
    whole = NewPeople.read(kept / "whole", kept / "whole", run)
    assert (plain.traces.by_slot == run.by_slot).all()
    assert (whole.traces.by_slot == run.by_slot).all()
    assert not plain.known.tested.any()
    assert (whole.known.status == some_tests(run).status).all()
    named = NewPeople.read(kept / "plain", kept / "whole" / "known", run)
    assert (named.known.status == whole.known.status).all()
    # Of a run, what was reported is read.
    seen = np.where(run.by_slot == 3, -1, run.by_slot).astype(np.int32)
    replace(run, by_slot=seen).save(kept / "whole" / "reported", store.Origin())
    found = NewPeople.read(kept / "whole", None, run)
    assert (found.traces.by_slot == seen).all()
    some_tests(city(people=40)).save(kept / "more", store.Origin())
    for place, tests, like, message in (
        (
            "whole",
            kept / "more",
            run,
            r"whole with tests of .*more: the tests are of 40",
        ),
        ("plain", None, city(2), r"plain: people were in"),
        ("gone", None, run, "no such folder"),
    ):
        with pytest.raises(DataError, match=message):
            NewPeople.read(kept / place, tests, like)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cities(), st.integers(0, 99), st.randoms(use_true_random=False))
def test_a_fold_belongs_to_a_person_whoever_else_is_there(traces, seed, random):
    known = some_tests(traces, seed)
    fold = NewPeople(traces, known).folds(4, seed)
    assert ((fold >= 0) == known.tested).all()
    assert set(fold) <= {-1, 0, 1, 2, 3}
    chosen = random.sample(range(traces.people), random.randint(1, traces.people))
    part = Traces(traces.by_slot[:, chosen], traces.clock, traces.regions)
    tested = [place for place, person in enumerate(chosen) if known.tested[person]]
    anything = np.array([random.random() < 0.5 for _ in tested], np.bool_)
    again = TestResults.from_tests(
        len(chosen),
        np.array(tested, np.int32),
        anything,
        np.zeros(len(tested), np.int32),
    )
    assert (NewPeople(part, again).folds(4, seed) == fold[chosen]).all()


def test_folds_are_about_equal_and_drawn_by_the_seed():
    traces = city(people=4000)
    everybody = np.arange(4000, dtype=np.int32)
    known = TestResults.from_tests(4000, everybody, everybody % 2 == 0, 0 * everybody)
    people = NewPeople(traces, known)
    observed = (traces.by_slot >= 0).any(axis=0)
    counts = np.bincount(people.folds(4, 1)[observed])
    assert counts.min() > 0.22 * observed.sum()
    agree = (people.folds(4, 1) == people.folds(4, 2))[observed].mean()
    assert agree == pytest.approx(0.25, abs=0.03)
