import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.experiments.experiment import Experiment
from epifalcon.mobility import statistics
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.statistics import entropy_rate, fano, home_regions, measure
from epifalcon.mobility.synthetic import CitySettings, build_city
from epifalcon.mobility.traces import Traces
from tests.oracles.cities import cities

CASES = settings(max_examples=40, deadline=None, derandomize=True)


def traces_of(rows, slot_hours=2.0, centre=None, kind="area"):
    """Traces of the given rows (people, slots), regions along a line 3 km apart."""
    rows = np.asarray(rows, dtype=np.int32)
    clock = Clock(slot_hours, rows.shape[1] * round(slot_hours * 60) // 1440)
    if centre is None:
        count = max(1, int(rows.max()) + 1)
        centre = np.column_stack([3.0 * np.arange(count), np.zeros(count)])
    return Traces(np.ascontiguousarray(rows.T), clock, Regions(kind, centre))


@pytest.mark.parametrize(
    ("preset", "seed"), [("hamlet", 0), ("hamlet", 7), ("larger-sars", 1)]
)
def test_presets_stay_within_the_ranges(preset, seed):
    city = build_city(Experiment.load(preset).city, np.random.default_rng(seed))
    failed = [item for item in measure(city).statistics if not item.holds]
    assert failed == []


@pytest.mark.parametrize("observed", [1.0, 0.3])
def test_basic_stays_within_the_ranges(observed):
    wanted = Experiment.load("basic-sars", ["city.days=15", "city.people=4000"]).city
    changed = {"observed_share": observed, "regions": 2_900}
    full = CitySettings(**{**vars(wanted), **changed})
    city = build_city(full, np.random.default_rng(4))
    found = measure(city).statistics
    assert [item for item in found if item.holds is False] == []
    unjudged = [item for item in found if item.holds is None]
    assert len(unjudged) == (0 if observed == 1 else 7)


def test_days_without_visits_at_the_end_change_no_statistic():
    rng = np.random.default_rng(0)
    city = traces_of(rng.integers(0, 30, (40, 60)), centre=rng.uniform(0, 9, (30, 2)))
    found, again = (
        {item.name: item.value for item in measure(one).statistics}
        for one in (city, city.with_days(city.clock.days + 20))
    )
    assert again == pytest.approx(found, nan_ok=True)


def test_a_random_walk_is_not_a_city():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 100, (200, 168))
    centre = rng.uniform(0, 30, (100, 2))
    found = measure(traces_of(rows, centre=centre))
    failed = {item.name for item in found.statistics if item.holds is False}
    assert {"entropy", "zipf_exponent", "distinct_14d", "at_home_night"} <= failed
    assert found.value("predictability") < 0.4


def test_one_trace_by_hand():
    """Nights in 0, a working day in 1 (4 of 12 slots), 3 km away, for 14 days."""
    day = [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    found = measure(traces_of([day * 14, day * 14]))
    assert found.value("radius_of_gyration_median") == pytest.approx(
        3 * math.sqrt(2 / 9)
    )
    assert found.value("entropy") == pytest.approx(
        -(1 / 3) * math.log2(1 / 3) - (2 / 3) * math.log2(2 / 3)
    )
    assert found.value("distinct_1d") == found.value("distinct_14d") == 2
    assert found.value("distinct_exponent") == pytest.approx(0)
    assert found.value("commute_median") == 3
    assert found.value("copresence") == 0.5
    assert found.value("share_alone") == 0
    assert found.value("stay_away_mean") == 8
    assert found.value("at_home_night") == 1
    assert found.value("at_home_midday") == 0
    assert found.value("occupancy_gini") == pytest.approx(1 / 6)
    assert found.value("predictability") > 0.9
    assert found.curve("at_home").y.tolist() == [float(place == 0) for place in day]


def test_exponents_are_recovered():
    rng = np.random.default_rng(1)
    for exponent in (1.3, 1.8):
        power = 1 - exponent
        u = rng.random(4000)
        jump = (1.0 + u * (50**power - 1)) ** (1 / power)
        centre = np.zeros((4001, 2))
        centre[1:, 0] = jump
        rows = np.zeros((4000, 12), dtype=int)
        rows[:, 5] = np.arange(1, 4001)
        found = measure(traces_of(rows, centre=centre))
        # Neighbouring regions are nearer than a kilometre: the fit begins there.
        assert found.value("jump_exponent") == pytest.approx(exponent, abs=0.05)


def test_stay_exponent_is_recovered():
    rng = np.random.default_rng(2)
    length = np.arange(1, 35)
    chance = length**-1.7
    rows = []
    for _ in range(3000):
        stay = rng.choice(length, p=chance / chance.sum())
        rows.append([0] * 7 + [1] * stay + [0] * (48 - 7 - stay))
    found = measure(traces_of(rows, slot_hours=0.5))
    assert found.value("stay_exponent") == pytest.approx(1.7, abs=0.06)


def test_stays_that_touch_a_gap_or_an_end_do_not_count():
    row = [0, 0, -1, 0, 1, 1, 0, 0, 0, 1, -1, 0]
    curve = measure(traces_of([row])).curve("stays")
    # Whole are only the two slots in 1 and the three in 0 after them.
    assert curve.x.tolist() == [4, 6]
    assert curve.y.tolist() == [0.5, 0.5]


@CASES
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    regions=st.integers(1, 5),
    slot_hours=st.sampled_from([1.0, 2.0, 8.0, 24.0]),
    placed=st.booleans(),
    unseen=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_never_fails_and_compares_nothing_without_a_value(
    shape, regions, slot_hours, placed, unseen, seed
):
    rng = np.random.default_rng(seed)
    people, days = shape
    rows = rng.integers(0, regions, (people, days * round(24 / slot_hours)))
    rows[rng.random(rows.shape) < unseen] = -1
    centre = rng.uniform(0, 10, (regions, 2))
    centre = centre if placed else np.full_like(centre, np.nan)
    found = measure(traces_of(rows, slot_hours, centre, "poi"))
    for item in found.statistics:
        assert item.holds is None or not math.isnan(item.value)
        assert not math.isinf(item.value)
    for curve in found.curves:
        assert curve.x.shape == curve.y.shape
    if not placed:
        assert math.isnan(found.value("radius_of_gyration_median"))
        assert math.isnan(found.value("jump_exponent"))


def plain_rate(row):
    """Shortest strings not seen before, by comparing slices."""
    size, total = len(row), 0
    for here in range(size):
        length = 1
        while here + length <= size and any(
            row[before : before + length] == row[here : here + length]
            for before in range(here - length + 1)
        ):
            length += 1
        total += length
    return size * math.log2(size) / total


@CASES
@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_entropy_rate_equals_the_plain_one(row):
    assert entropy_rate(np.array(row, np.int32)) == pytest.approx(plain_rate(row))


@CASES
@given(st.integers(2, 60), st.floats(0.001, 0.999))
def test_fano_is_undone_by_its_equation(places, share):
    p = 1 / places + share * (1 - 1 / places)
    bits = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    bits += (1 - p) * math.log2(places - 1)
    assert fano(bits, places) == pytest.approx(p, abs=1e-6)
    assert fano(0.0, places) == fano(3.0, 1) == 1
    assert fano(99.0, places) == pytest.approx(1 / places)


@CASES
@given(st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any))
def test_gini_equals_mean_difference(amounts):
    row = np.repeat(np.arange(len(amounts)), amounts)
    rows = np.column_stack([row] * 12)
    centre = np.zeros((len(amounts), 2))
    amount = np.array(amounts, dtype=float)
    plain = np.abs(amount[:, None] - amount).mean() / (2 * amount.mean())
    found = measure(traces_of(rows, centre=centre)).value("occupancy_gini")
    assert found == pytest.approx(plain)


def test_home_is_the_region_of_most_nights_else_of_most_slots():
    night_and_day = [4] * 3 + [7] * 9
    by_day_only = [-1] * 4 + [7] * 5 + [2] * 1 + [-1] * 2
    never = [-1] * 12
    rows = [night_and_day, by_day_only, never]
    assert home_regions(traces_of(rows)).tolist() == [4, 7, -1]


@settings(deadline=None, derandomize=True, max_examples=30)
@given(cities())
def test_homes_do_not_depend_on_blocks_of_people(traces):
    whole = home_regions(traces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_SAMPLE_PEOPLE", 2)
        np.testing.assert_array_equal(home_regions(traces), whole)
