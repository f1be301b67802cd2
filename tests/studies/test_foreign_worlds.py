"""Worlds of other simulators: regimes of testing, contacts in slots, files."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.read_tests import read_results
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io import ImportSettings, import_visits
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.studies.own.foreign_worlds import (
    OTHER_SYMPTOMS,
    PCR_SENSITIVITY,
    PLACE_KINDS,
    REGIMES,
    RETEST_DAYS,
    SPECIFICITY,
    SYMPTOM_DAYS,
    TRACED_DAYS,
    ForeignWorld,
    History,
    contact_slots,
    draw_world_tests,
    known_tests,
    simulate_world,
    world_labels,
    write_world,
)
from tests.studies.invented_world import DAYS, PEOPLE, invented_world

SCRIPT = Path(__file__).parents[2] / "scripts" / "foreign_world.py"
needs_simulators = pytest.mark.skipif(
    find_spec("covasim") is None,
    reason="Covasim is not installed: pip install 'epifalcon[foreign]'",
)


@pytest.fixture(scope="module")
def world():
    return invented_world()


def with_history(tests, world):
    """Rows with the columns of the history of the person."""
    history = pl.DataFrame({"person": np.arange(PEOPLE), **vars(world.history)})
    return tests.join(history.rename({"onset": "own_onset"}), on="person")


def test_contacts_of_a_person_are_in_different_slots_and_lost_only_without_one():
    rng = np.random.default_rng(3)
    pairs = rng.integers(0, 200, (2, 1800))
    slot = contact_slots(pairs, 200, 24, rng)
    busy = [set() for _ in range(200)]
    for (one, other), at in zip(pairs.T, slot, strict=True):
        if at >= 0:
            assert 1 <= at < 24
            assert one != other
            assert at not in busy[one] | busy[other]
            busy[one].add(at)
            busy[other].add(at)
    lost = pairs[:, (slot < 0) & (pairs[0] != pairs[1])]
    assert 0 < lost.shape[1] < 0.1 * pairs.shape[1]
    assert all(len(busy[one] | busy[other]) == 23 for one, other in lost.T)
    most = np.bincount(pairs.ravel(), minlength=200).max()
    slot = contact_slots(pairs, 200, 2 * int(most), rng)
    assert ((slot >= 0) == (pairs[0] != pairs[1])).all()


def test_ideal_random_tests_show_the_truth_of_two_fifths_on_the_last_day(world):
    tests = with_history(draw_world_tests(world, "random-ever", seed=2), world)
    assert tests["day"].unique().to_list() == [DAYS - 1]
    assert tests["result"].equals(tests["infected"] >= 0)
    assert len(tests) == pytest.approx(0.4 * PEOPLE, rel=0.06)
    labels = world_labels(world, tests)
    held_out = labels.hidden.open("test")
    assert len(held_out.person) == PEOPLE - len(tests)
    assert not labels.known.tested[held_out.person].any()
    assert (held_out.infected == (world.history.infected[held_out.person] >= 0)).all()
    assert (labels.known.slot == world.traces.slots - 1).all()


def test_current_truth_ends_with_recovery(world):
    current = world.history.target("current", 20)
    infected = world.history.infected
    assert (current == ((infected > 8) & (infected <= 20))).all()


def test_pcr_is_positive_by_days_since_infection(world):
    rows = [draw_world_tests(world, "daily", seed=seed) for seed in range(8)]
    tests = with_history(pl.concat(rows), world)
    since = tests["day"] - tests["infected"]
    for age in range(28):
        of_age = tests.filter((since == age) & (pl.col("infected") >= 0))["result"]
        spread = 4 * np.sqrt(0.25 / len(of_age))
        chance = max(PCR_SENSITIVITY[age], 1 - SPECIFICITY)
        assert of_age.mean() == pytest.approx(chance, abs=spread)
    free = tests.filter((pl.col("infected") < 0) | (since < 0))["result"]
    assert free.mean() == pytest.approx(1 - SPECIFICITY, abs=0.002)
    per_day = len(tests) / 8 / DAYS / PEOPLE
    assert per_day == pytest.approx(0.02, rel=0.03)


def test_random_tests_depend_on_nothing(world):
    never = np.full(PEOPLE, -1, np.int32)
    other = ForeignWorld(
        world.traces, world.region_kind, History(never, never, never, never), world.age
    )
    columns = ["person", "day"]
    for regime in ("random", "daily", "mixed"):
        drawn = [draw_world_tests(one, regime, seed=4) for one in (world, other)]
        rows = [one.filter(pl.col("reason") == "random")[columns] for one in drawn]
        assert len(rows[0])
        assert rows[0].equals(rows[1])


def test_people_are_tested_for_symptoms_of_this_and_of_other_causes(world):
    tests = with_history(draw_world_tests(world, "symptoms", seed=5), world)
    assert (tests["day"] >= tests["onset"]).all()
    assert (tests["day"] < tests["onset"] + SYMPTOM_DAYS).all()
    own = tests.filter(pl.col("onset") == pl.col("own_onset"))
    assert len(own) > 400
    assert 0.5 < own["result"].mean() < 0.9
    # Of symptoms that last 7 days, tested with 0.15 per day until the first test.
    tested = 1 - (1 - REGIMES["symptoms"].symptoms) ** SYMPTOM_DAYS
    free = tests.filter(pl.col("infected") < 0)
    count = (world.history.infected < 0).sum() * (DAYS - 3) * OTHER_SYMPTOMS * tested
    assert len(free) == pytest.approx(count, rel=0.15)


@pytest.mark.parametrize("regime", ["symptoms", "contact", "mixed"])
def test_chosen_tests_end_with_a_positive_and_keep_their_distance(world, regime):
    tests = draw_world_tests(world, regime, seed=6)
    dead = world.traces.by_slot[-1] < 0
    assert not dead[tests.filter(pl.col("day") >= 20)["person"]].any()
    for rows in tests.partition_by("person"):
        day, chosen = rows["day"].to_list(), (rows["reason"] != "random").to_list()
        for at in range(1, len(rows)):
            if chosen[at]:
                assert day[at] - day[at - 1] >= RETEST_DAYS
                assert not rows["result"][:at].any()
    assert (tests["onset"].is_null() == (tests["reason"] != "symptoms")).all()
    wanted = {"symptoms": 1, "contact": 2, "mixed": 3}[regime]
    assert tests["reason"].n_unique() == wanted


def test_traced_people_met_a_positive_person_outside_the_community(world):
    tests = draw_world_tests(world, "contact", seed=7)
    positive = tests.filter("result").group_by("day").agg("person")
    found = dict(zip(positive["day"], positive["person"], strict=True))
    traced = tests.filter(pl.col("reason") == "contact")
    assert len(traced) > 100
    for person, day in traced[["person", "day"]].iter_rows():
        # Homes of three people, in the order of their numbers.
        assert any(one // 3 == person // 3 for one in found[day - 1] if one != person)
    # Within a home, about half of the others are tested the next day.
    others = 2 * len(tests.filter("result"))
    assert 0.3 < len(traced) / others < 0.6


@pytest.mark.parametrize("gap", [TRACED_DAYS - 1, TRACED_DAYS])
def test_a_meeting_is_traced_for_some_days(gap):
    # Even people test positive on day 10 or later; odd ones left them `gap` days ago.
    pairs = 400
    by_slot = np.repeat(np.arange(pairs, dtype=np.int32), 2)[None].repeat(2 * DAYS, 0)
    by_slot[2 * (10 - gap) + 2 :, 1::2] += pairs
    infected = np.tile([4, -1], pairs).astype(np.int32)
    onset = np.tile([10, -1], pairs).astype(np.int32)
    regions = Regions("poi", np.full((2 * pairs, 2), np.nan))
    world = ForeignWorld(
        Traces(by_slot, Clock(12, DAYS), regions),
        np.zeros(2 * pairs, np.int8),
        History(infected, infected, onset, infected + 20),
        np.full(2 * pairs, 40.0),
    )
    tests = draw_world_tests(world, "contact", seed=1)
    early = tests.filter(pl.col("result") & (pl.col("day") == 10))["person"]
    others = [one + 1 for one in early if one % 2 == 0]
    traced = tests.filter((pl.col("reason") == "contact") & (pl.col("day") == 11))
    assert len(others) > 5
    assert bool(set(others) & set(traced["person"])) == (gap < TRACED_DAYS)


def test_equal_seeds_give_equal_tests_and_an_unknown_regime_is_named(world):
    first, again, other = (
        draw_world_tests(world, "mixed", seed=seed) for seed in (8, 8, 9)
    )
    assert first.equals(again)
    assert not first.equals(other)
    with pytest.raises(SettingsError, match=r"'mixd'.*mixed"):
        draw_world_tests(world, "mixd", seed=1)


def test_written_files_are_imported_as_the_world(tmp_path):
    world = invented_world(people=90)
    tests = draw_world_tests(world, "mixed", seed=1)
    write_world(world, tests, tmp_path / "new")
    settings = ImportSettings(kind="stays", slot_hours=12)
    traces = import_visits(tmp_path / "new" / "visits.csv", settings).traces
    assert traces.names is not None
    order = [int(name.removeprefix("p")) for name in traces.names]
    names = np.array([*traces.regions.names, ""])
    expected = np.array([*world.traces.regions.names, ""])
    assert (names[traces.by_slot] == expected[world.traces.by_slot[:, order]]).all()
    known = read_results(tmp_path / "new" / "tests.csv", traces).tests
    direct = known_tests(world.traces, tests)
    assert (known.onset >= 0).sum() == (direct.onset >= 0).sum() > 0
    assert sorted(known.reason) == sorted(direct.reason)
    rows = zip(known.person, known.slot, known.positive, strict=True)
    imported = {(order[person], slot // 2, result) for person, slot, result in rows}
    assert imported == set(tests["person", "day", "result"].iter_rows())
    written = pl.read_csv(tmp_path / "new" / "tests.csv", try_parse_dates=True)
    day = (written["onset"] - written["time"].dt.date()).dt.total_days()
    assert day.equals((tests["onset"] - tests["day"]).rename("onset"))
    truth = pl.read_csv(tmp_path / "new" / "truth.csv")
    infected = truth["infected_day"].fill_null(-1).to_numpy()
    assert (infected == world.history.infected).all()
    assert (truth["ever"] == (infected >= 0)).all()


def test_simulating_without_the_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "covasim", None)
    with pytest.raises(SettingsError, match=r"pip install 'epifalcon\[foreign\]'"):
        simulate_world("towns", people=50, days=3, seed=1)


@needs_simulators
@pytest.mark.parametrize("kind", ["clusters", "towns", "hybrid"])
def test_everybody_is_infected_where_an_infectious_person_was(kind):
    people, days = 1500, 30
    world = simulate_world(kind, people=people, days=days, seed=3)
    assert world.traces.by_slot.shape == (world.traces.slots, people)
    assert world.traces.clock.days == days
    history, infected = world.history, world.history.infected
    assert (infected == 0).sum() == 6
    assert 0 <= world.lost_contacts < 0.02
    assert (world.lost_contacts > 0) == (kind == "hybrid")
    later = np.flatnonzero(infected > 0)
    met = 0
    for person in later:
        day = infected[person]
        source = (history.infectious >= 0) & (history.infectious <= day)
        source &= (history.recovered >= day) & (np.arange(people) != person)
        here = world.traces.by_slot[world.traces.clock.slots_of_day(day)]
        met += bool((here[:, source] == here[:, [person]]).any())
    assert len(later) > 20
    assert met >= (1 - 2 * world.lost_contacts) * len(later)
    ill = infected >= 0
    assert (history.infectious[ill] > infected[ill]).all()
    assert (history.recovered[ill] > history.infectious[ill]).all()
    assert 0.4 < (history.onset[ill] >= 0).mean() < 0.9
    assert (history.onset[~ill] < 0).all()
    of_slot = world.region_kind[world.traces.by_slot]
    if kind == "towns":
        school = (of_slot == PLACE_KINDS.index("school")).any(axis=0)
        assert (school == ((world.age >= 6) & (world.age < 19))).all()
    if kind == "hybrid":
        for slot in range(1, 48):
            size = world.traces.occupancy(slot)
            assert set(size[world.region_kind > 0]) <= {0, 2}
    else:
        community = world.traces.by_slot[2::3]
        assert (np.diff(community, axis=0) != 0).mean() > 0.9
    again = simulate_world(kind, people=people, days=days, seed=3)
    assert (again.traces.by_slot == world.traces.by_slot).all()
    assert (again.history.infected == infected).all()


@needs_simulators
def test_the_script_writes_a_world_once(tmp_path):
    command = [sys.executable, SCRIPT, "clusters", "daily", "--people", "120"]
    command += ["--days", "5", "--out", tmp_path / "new"]
    first, again = (
        subprocess.run(command, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("120 people, ")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"visits.csv", "tests.csv", "truth.csv"}
    assert again.returncode == 2
    assert "exists already" in again.stderr
