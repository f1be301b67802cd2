"""Who was seen where in which slot, and the one region that each slot gets.

Observations are added up by (person, slot, region) as they come, so memory
grows with what people did, not with how often they were seen doing it.
"""

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.ingest.times import Micros, Zone
from epifalcon.types import UNKNOWN, RegionIds

MAX_RECORDS = 180_000_000
_MAX_PIECES = 4_000_000


@dataclass(frozen=True, eq=False)
class Sightings:
    """Observations; arrays of equal length.

    ``slot`` counts from 1970-01-01 on the wall clock; ``weight`` is a number
    of sightings or microseconds of presence; ``first`` the earliest moment.
    """

    person: NDArray[np.uint32]
    slot: NDArray[np.int32]
    region: NDArray[np.int64]
    weight: NDArray[np.int64]
    first: Micros


class Presence:
    """Sightings of a whole file, added up by (person, slot, region).

    A hash table of two 64-bit keys, person with slot and region. It grows by
    doubling; the sums in it do not depend on the order of what was added.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used = 0
        self._table = _empty_table(_FIRST_ROOM)

    def add(self, seen: Sightings) -> None:
        """Take in some sightings."""
        needed = self._used + len(seen.slot)
        if needed > MAX_RECORDS:
            raise DataError(
                f"{self._path}: more than {MAX_RECORDS:,} different (person, slot, "
                "region): "
                "choose fewer days (start, days) or longer slots (slot_hours)"
            )
        if needed > _FILL * len(self._table[0]):
            self._grow(needed)
        who_when = seen.person.astype(np.int64) << 32 | seen.slot
        self._used += _add(
            self._table, (who_when, seen.region, seen.weight, seen.first)
        )

    def total(self) -> Sightings:
        """Everything taken in, one entry per (person, slot, region)."""
        full = self._table[0] != _FREE
        who_when, region, weight, first = (column[full] for column in self._table)
        self._table, self._used = _empty_table(_FIRST_ROOM), 0
        person = (who_when >> 32).astype(np.uint32)
        slot = (who_when & (2**32 - 1)).astype(np.int32)
        return Sightings(person, slot, region, weight, first)

    def _grow(self, needed: int) -> None:
        room = len(self._table[0])
        while needed > _FILL * room:
            room *= 2
        full = np.flatnonzero(self._table[0] != _FREE)
        larger = _empty_table(room)
        for part in np.array_split(full, 8):
            _add(larger, tuple(column[part] for column in self._table))
        self._table = larger


_FREE = -1
_FIRST_ROOM = 1 << 12
_FILL = 0.7


def _empty_table(room: int) -> tuple[NDArray[np.int64], ...]:
    free = np.full(room, _FREE, dtype=np.int64)
    return (free, *(np.empty(room, dtype=np.int64) for _ in range(3)))


@numba.njit(cache=True)
def _add(table, rows):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Add rows to a table that has room for them; returns how many were new."""
    keys, regions, weights, firsts = table
    key, region, weight, first = rows
    mask = np.uint64(keys.size - 1)
    new = 0
    for i in range(key.size):
        mixed = np.uint64(key[i]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= np.uint64(region[i]) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        j = (mixed >> np.uint64(20)) & mask
        while keys[j] != -1 and (keys[j] != key[i] or regions[j] != region[i]):
            j = (j + np.uint64(1)) & mask
        if keys[j] == -1:
            keys[j], regions[j] = key[i], region[i]
            weights[j], firsts[j] = weight[i], first[i]
            new += 1
        else:
            weights[j] += weight[i]
            firsts[j] = min(firsts[j], first[i])
    return new


def pieces_of_stays(
    start: Micros, end: Micros, zone: Zone, slot_us: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int32], Micros, Micros]]:
    """Stays cut at the wall clock's slots: (stay, slot, microseconds, begin) parts.

    Time is true time: a stay over the hour that is skipped in spring is an
    hour shorter than the clocks say, and the slot of the hour that comes twice
    in autumn gets both. A stay of no length is one piece of weight 0. Several
    lists keep the memory of long stays in bounds.
    """
    most = (end - start) // slot_us + 2
    # Each change of the clocks can cut one piece more.
    most += np.searchsorted(zone.starts, end) - np.searchsorted(zone.starts, start)
    group = (np.cumsum(most) // _MAX_PIECES).astype(np.int64)
    parts = []
    for index in np.unique(group):
        chosen = np.flatnonzero(group == index)
        room = int(most[chosen].sum())
        stay = np.empty(room, dtype=np.int64)
        slot = np.empty(room, dtype=np.int32)
        spent = np.empty(room, dtype=np.int64)
        begin = np.empty(room, dtype=np.int64)
        edges = np.append(zone.starts, np.iinfo(np.int64).max)
        used = _cut_stays(
            start[chosen], end[chosen], (edges, zone.offsets), slot_us,
            (stay, slot, spent, begin),
        )  # fmt: skip
        parts.append((chosen[stay[:used]], slot[:used], spent[:used], begin[:used]))
    return parts


@numba.njit(cache=True)
def _cut_stays(start, end, zone, slot_us, out):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    edges, offsets = zone
    stay, slots, spent, begin = out
    used = 0
    for i in range(start.size):
        here, stop = start[i], end[i]
        segment = np.searchsorted(edges, here, side="right") - 1
        while True:
            offset = offsets[segment]
            slot = (here + offset) // slot_us
            until = min(stop, (slot + 1) * slot_us - offset, edges[segment + 1])
            stay[used], slots[used] = i, slot
            spent[used], begin[used] = until - here, here
            used += 1
            here = until
            if here >= stop:
                break
            if here == edges[segment + 1]:
                segment += 1
    return used


def dominant(seen: Sightings, slots: int, people: int) -> RegionIds:
    """The region of each (slot, person): the heaviest sighting's, or -1.

    Ties go to the region seen first in the slot, then to the lower id.
    ``seen`` holds one entry per (person, slot, region), with slots from 0.
    """
    best = np.full((slots, people), UNKNOWN, dtype=np.int32)
    _dominate(seen.person, seen.slot, seen.region, seen.weight, seen.first, best)
    return best


@numba.njit(cache=True)
def _dominate(person, slot, region, weight, first, best):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # First the number of the best entry, then, in the same memory, its region.
    for i in range(person.size):
        j = best[slot[i], person[i]]
        if j < 0:
            better = True
        elif weight[i] != weight[j]:
            better = weight[i] > weight[j]
        elif first[i] != first[j]:
            better = first[i] < first[j]
        else:
            better = region[i] < region[j]
        if better:
            best[slot[i], person[i]] = i
    for s in range(best.shape[0]):
        for p in range(best.shape[1]):
            if best[s, p] >= 0:
                best[s, p] = region[best[s, p]]


def fill_gaps(by_slot: RegionIds, longest: int) -> None:
    """Fill, in place, gaps of up to ``longest`` slots between two observations.

    The person is taken to have stayed in the region before the gap. A longer
    gap is left as it is, and so is the time before the first and after the
    last observation. Shape (slots, people).
    """
    if longest > 0:
        _fill_gaps(by_slot, longest)


@numba.njit(cache=True)
def _fill_gaps(by_slot, longest):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    slots, people = by_slot.shape
    last = np.full(people, -1, dtype=np.int64)
    for slot in range(slots):
        for person in range(people):
            if by_slot[slot, person] < 0:
                continue
            seen = last[person]
            if seen >= 0 and slot - seen - 1 <= longest:
                by_slot[seen + 1 : slot, person] = by_slot[seen, person]
            last[person] = slot
