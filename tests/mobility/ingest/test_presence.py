from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from epifalcon.errors import DataError
from epifalcon.mobility.ingest import presence
from epifalcon.mobility.ingest.presence import Presence, Sightings, dominant, fill_gaps


def random_sightings(rng, count, people, slots, regions):
    return Sightings(
        rng.integers(0, people, count).astype(np.uint32),
        rng.integers(0, slots, count).astype(np.int32),
        rng.integers(0, regions, count) << 33,
        rng.integers(0, 5, count),
        rng.integers(0, 10**15, count),
    )


@pytest.mark.parametrize(
    ("people", "slots", "regions"),
    [(1, 1, 9000), (3, 4, 800), (2**32 - 1, 2**31 - 1, 3)],
)
def test_sums_are_those_of_a_dictionary(people, slots, regions):
    rng = np.random.default_rng(0)
    total, table = {}, Presence(Path("x"))
    for count in (0, 1, 5000, 20_000, 7):
        seen = random_sightings(rng, count, people, slots, regions)
        table.add(seen)
        for who, when, where, weight, first in zip(
            *(column.tolist() for column in vars(seen).values()), strict=True
        ):
            old = total.get((who, when, where), (0, first))
            total[who, when, where] = old[0] + weight, min(old[1], first)
    found = [column.tolist() for column in vars(table.total()).values()]
    assert len(found[0]) == len(total)
    assert {row[:3]: row[3:] for row in zip(*found, strict=True)} == total


def test_memory_has_a_limit(monkeypatch):
    monkeypatch.setattr(presence, "MAX_RECORDS", 10)
    with pytest.raises(DataError, match=r"visits\.csv: more than 10"):
        Presence(Path("visits.csv")).add(
            random_sightings(np.random.default_rng(0), 11, 5, 5, 5)
        )


def test_dominance_does_not_depend_on_the_order():
    rng = np.random.default_rng(4)
    table = Presence(Path("x"))
    table.add(random_sightings(rng, 400, 4, 6, 5))
    seen = table.total()
    seen = Sightings(
        seen.person, seen.slot, seen.region >> 33, seen.weight // 4, seen.first
    )
    best = dominant(seen, 7, 4)
    for _ in range(5):
        order = rng.permutation(len(seen.slot))
        mixed = Sightings(*(column[order] for column in vars(seen).values()))
        np.testing.assert_array_equal(dominant(mixed, 7, 4), best)
    assert (best[6] == -1).all()


@pytest.mark.parametrize("longest", [0, 1, 3, 100])
def test_gaps_against_a_loop(longest):
    rng = np.random.default_rng(longest)
    by_slot = np.where(rng.random((40, 30)) < 0.7, -1, rng.integers(0, 9, (40, 30)))
    by_slot = by_slot.astype(np.int32)
    expected = by_slot.copy()
    for person in range(30):
        known = np.flatnonzero(by_slot[:, person] >= 0)
        for low, high in pairwise(known):
            if high - low - 1 <= longest:
                expected[low + 1 : high, person] = by_slot[low, person]
    fill_gaps(by_slot, longest)
    np.testing.assert_array_equal(by_slot, expected)
