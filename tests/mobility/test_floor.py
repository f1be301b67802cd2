import numpy as np
import pytest
from scipy import stats

from epifalcon.mobility import floor
from epifalcon.mobility.floor import DistanceFloor
from epifalcon.mobility.regions import Regions


def scattered(regions: int, unplaced: int = 0, degrees: bool = False) -> Regions:
    rng = np.random.default_rng(regions)
    centre = rng.uniform(0, 30, size=(regions, 2))
    centre[:unplaced] = np.nan
    lonlat = centre / 100 + [179.9, -17] if degrees else None
    return Regions("area", centre, lonlat=lonlat)


def dense(regions: Regions) -> np.ndarray:
    count = len(regions)
    made = np.ones((count, count))
    for here in range(count):
        for there in range(count):
            apart = float(regions.distance_km(np.int32(here), np.int32(there)))
            if apart > 1:
                made[here, there] = apart**-2
    return made


CITIES = [
    scattered(1),
    scattered(2),
    scattered(40),
    scattered(40, unplaced=7),
    scattered(3, unplaced=3),
    scattered(37, unplaced=1, degrees=True),
]


@pytest.mark.parametrize("regions", CITIES)
def test_rows_and_totals_equal_the_dense_kernel(regions):
    kernel, expected = DistanceFloor(regions), dense(regions)
    rows = [kernel.row(region) for region in range(len(regions))]
    np.testing.assert_allclose(rows, expected, rtol=1e-12)
    np.testing.assert_allclose(kernel.totals, expected.sum(axis=1), rtol=1e-12)


def test_blocks_of_pairs_do_not_change_totals_or_draws(monkeypatch):
    regions = scattered(50)
    whole = DistanceFloor(regions)
    here = np.arange(50, dtype=np.int32)
    drawn = whole.draw(here, np.random.default_rng(0))
    monkeypatch.setattr(floor, "_PAIRS_AT_ONCE", 120)
    parts = DistanceFloor(regions)
    np.testing.assert_array_equal(parts.totals, whole.totals)
    assert parts.draw(here, np.random.default_rng(0)).shape == drawn.shape


@pytest.mark.parametrize("regions", CITIES[1:])
def test_draws_follow_the_kernel(regions):
    kernel, expected = DistanceFloor(regions), dense(regions)
    rng = np.random.default_rng(2)
    for region in {0, len(regions) // 2, len(regions) - 1}:
        here = np.full(30_000, region, dtype=np.int32)
        got = np.bincount(kernel.draw(here, rng), minlength=len(regions))
        row = expected[region] / expected[region].sum() * here.size
        likely = row > 5
        got = np.append(got[likely], got[~likely].sum())
        row = np.append(row[likely], row[~likely].sum())
        assert stats.chisquare(got[row > 0], row[row > 0]).pvalue > 1e-4


def test_within_a_kilometre_all_are_equal():
    centre = np.array([[0, 0], [0.5, 0], [1, 0], [2, 0]], dtype=float)
    kernel = DistanceFloor(Regions("poi", centre))
    assert kernel.row(0).tolist() == [1, 1, 1, 0.25]


def test_a_draw_at_the_very_top_stays_in_the_row():
    class Top:
        def random(self, size: int) -> np.ndarray:
            return np.full(size, np.nextafter(1, 0))

    weight = np.array([[0.1, 0.2, 0.0], [1e-300, 3.0, 0.7]])
    assert floor._choose(weight, Top()).tolist() == [1, 2]
    many = np.random.default_rng(0).random((5000, 3)) + 1e-9
    assert floor._choose(many, Top()).max() == 2
