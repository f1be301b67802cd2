import numpy as np
import pytest

from epifalcon.mobility.city.layout import lay_out
from epifalcon.mobility.city.settings import CitySettings


def layout(seed=0, **changed):
    settings = CitySettings(**{"regions": 500, **changed})
    return lay_out(settings, np.random.default_rng(seed))


def area(ring):
    x, y = ring.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


def test_areas_have_the_wished_land_and_lie_within_the_extent():
    regions = layout(region_radius_km=0.79, built_share=0.45).regions
    land = [area(regions.outline(r)) for r in range(len(regions))]
    assert np.mean(land) == pytest.approx(np.pi * 0.79**2, rel=0.02)
    extent = 0.79 * (500 / 0.45) ** 0.5
    assert np.hypot(*regions.centre_km.T).max() < extent + 1.5


def test_areas_tile_without_overlap():
    """Points of the plane lie in one outline at most, each centre in its own."""
    from matplotlib.path import Path

    regions = layout(regions=120).regions
    paths = [Path(regions.outline(r)) for r in range(120)]
    points = np.random.default_rng(1).uniform(-8, 8, (4000, 2))
    inside = np.array([path.contains_points(points) for path in paths])
    assert inside.sum(axis=0).max() == 1
    assert inside.sum() > 500
    for region, path in enumerate(paths):
        assert path.contains_point(regions.centre_km[region])


@pytest.mark.parametrize("kind", ["area", "poi"])
@pytest.mark.parametrize("regions", [1, 2, 3, 7, 500])
def test_any_number_of_regions(kind, regions):
    made = layout(regions=regions, kind=kind, towns=regions % 3)
    assert len(made.regions) == regions
    assert len(np.unique(made.regions.centre_km, axis=0)) == regions
    for weight in (made.home, made.work, made.visit):
        assert weight.shape == (regions,)
        assert np.isfinite(weight).all()
        assert weight.min() >= 0
        assert weight.sum() > 0


def test_homes_are_where_they_may_be():
    made = layout(kind="poi", home_share=0.4, regions=1000)
    assert np.count_nonzero(made.home) == 400
    assert made.visit[made.home > 0].mean() < made.visit[made.home == 0].mean()
    assert np.count_nonzero(layout(home_share=0.0).home) == 1


def test_settlement_is_clustered():
    """Neighbouring regions are alike: homes and goals follow the towns."""
    made = layout(regions=2000, home_sigma=0.3, attraction_sigma=0.3)
    far = np.hypot(*made.regions.centre_km.T)
    inner = far < np.median(far)
    assert made.home[inner].sum() > 1.3 * made.home[~inner].sum()
    assert made.visit[inner].sum() > 1.3 * made.visit[~inner].sum()


def test_spread_grows_with_sigma():
    def top(sigma):
        weight = np.sort(layout(regions=3000, home_sigma=sigma).home)[::-1]
        return weight[:30].sum() / weight.sum()

    assert top(0.2) < top(0.7) < top(1.2)
