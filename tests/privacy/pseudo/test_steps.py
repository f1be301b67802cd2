"""The slow way of a draw, which trials that fail twelve times in a row lead to."""

import numpy as np
import pytest
from scipy import stats

from epifalcon.mobility.city.draws import start
from epifalcon.privacy.pseudo import steps
from epifalcon.privacy.pseudo.domains import Domains
from epifalcon.privacy.pseudo.plausible import tables_of
from epifalcon.privacy.pseudo.shapes import new_scratch
from tests.oracles.pseudo_loop import next_shares, place_shares
from tests.privacy.pseudo.worlds import twins

DOMAINS = Domains(np.array([0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0], dtype=np.int32))
TAKEN = [1, 4]
FREE = (DOMAINS.of_region == 0) & ~np.isin(np.arange(11), TAKEN)
SLOT, LAST = 2, 4
DRAWS = 4000


def fits(drawn: list[int], shares: np.ndarray) -> bool:
    seen = np.bincount(drawn, minlength=11)
    assert not seen[shares == 0].any()
    likely = shares * DRAWS >= 5
    expected = np.append(shares[likely], shares[~likely].sum()) * DRAWS
    counted = np.append(seen[likely], seen[~likely].sum())
    kept = expected > 0
    total = ((counted - expected)[kept] ** 2 / expected[kept]).sum()
    return bool(stats.chi2.sf(total, kept.sum() - 1) > 1e-3)


def prepared(epsilon: float):
    world = twins(epsilon, people=2)
    draw = new_scratch(11).free
    draw.stamp[0] = 1
    draw.taken[TAKEN] = 1
    start(draw.state, np.uint64(3), 0)
    return world.model, tables_of(world.model, DOMAINS), draw


@pytest.mark.parametrize("epsilon", [1e-8, 0.02])
def test_weighing_every_free_region_gives_the_step_of_the_walk(epsilon):
    model, tables, draw = prepared(epsilon)
    places, ways = tables
    row = (SLOT - 1) * 11 + LAST
    low = steps._domain_start(places, ways, row, 0)
    past = steps._domain_start(places, ways, row, 1)
    drawn = [
        steps._weigh_next(tables, (low, past), LAST, 0, draw) for _ in range(DRAWS)
    ]
    assert fits(drawn, next_shares(model, SLOT, LAST, FREE))


def test_weighing_every_free_region_gives_its_visits():
    model, (places, _), draw = prepared(1e-3)
    span = (int(places.first[0]), int(places.first[1]))
    running = places.running[SLOT]
    drawn = [steps._weigh_places(places, running, span, draw) for _ in range(DRAWS)]
    assert fits(drawn, place_shares(model.visits[SLOT], FREE))


def test_any_free_region_is_any_of_them_alike():
    _, (places, _), draw = prepared(1e-3)
    low, past = int(places.first[0]), int(places.first[1])
    drawn = [steps._any_free(places, low, past, draw) for _ in range(DRAWS)]
    assert fits(drawn, FREE / FREE.sum())
