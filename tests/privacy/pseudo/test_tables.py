import numpy as np
import pytest

from epifalcon.mobility.floor import DistanceFloor
from epifalcon.mobility.regions import Regions, plane_km
from epifalcon.privacy.pseudo.domains import Domains
from epifalcon.privacy.pseudo.steps import kernel
from epifalcon.privacy.pseudo.tables import lay_out_places, lay_out_ways, points_km
from tests.privacy.pseudo.worlds import twins

DOMAINS = Domains(np.array([2, 0, 1, 0, 2, 1, 1, 0, 2, 1, 0], dtype=np.int32))


def flat():
    rng = np.random.default_rng(0)
    centre = rng.uniform(0, 30, (25, 2))
    centre[3] = np.nan
    centre[5] = centre[6]
    return Regions("area", centre)


def on_the_globe():
    rng = np.random.default_rng(1)
    lonlat = np.column_stack([rng.uniform(-180, 180, 25), rng.uniform(-80, 80, 25)])
    lonlat[:8] = rng.normal([116.4, 39.9], 0.05, (8, 2))
    lonlat[9] = lonlat[10] * [1, -1] + [180, 0]
    lonlat[3] = np.nan
    return Regions("area", plane_km(lonlat), lonlat)


@pytest.mark.parametrize("regions", [flat(), on_the_globe()], ids=["flat", "globe"])
def test_the_kernel_is_the_mobility_models(regions):
    floor = DistanceFloor(regions)
    point, is_round = points_km(regions)
    for here in range(25):
        got = [kernel(point, is_round, here, there) for there in range(25)]
        np.testing.assert_allclose(got, floor.row(here), rtol=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.02])
def test_rows_and_floor_add_up_by_domain(epsilon):
    model = twins(epsilon).model
    ways = lay_out_ways(model, DOMAINS)
    domain, count = DOMAINS.of_region, len(model.regions)
    for slot in range(model.slots_per_day):
        for region in range(count):
            row = slot * count + region
            cells = slice(ways.first[row], ways.first[row + 1])
            there = ways.there[cells]
            assert (np.diff(domain[there]) >= 0).all()
            whole = model.transition_row(slot, region)
            for one in range(3):
                mine = ways.running[cells][domain[there] == one]
                total = ways.floor[region, one] + (mine[-1] if mine.size else 0)
                assert total == pytest.approx(whole[domain == one].sum(), rel=1e-12)


def test_places_add_up_by_domain():
    weight = np.random.default_rng(0).random((4, 11))
    places = lay_out_places(DOMAINS, weight)
    assert (np.diff(DOMAINS.of_region[places.member]) >= 0).all()
    for one in range(3):
        last = places.first[one + 1] - 1
        expected = weight[:, DOMAINS.of_region == one].sum(axis=1)
        np.testing.assert_allclose(places.running[:, last], expected)
