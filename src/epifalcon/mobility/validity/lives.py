"""Statistics of single lives: reach, places over time, ranks, entropy, order.

Radius of gyration: González, Hidalgo, Barabási, "Understanding individual human
mobility patterns", Nature 2008. Predictability: Song, Qu, Blumm, Barabási,
"Limits of predictability in human mobility", Science 2010: the entropy rate by
Lempel and Ziv's match lengths, and Fano's bound from it.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from epifalcon.mobility.validity.sample import Sample, evenly
from epifalcon.types import UNKNOWN, Floats, RegionIds

RANKS = 50
_ORDER_WORK = 300_000_000
_ORDER_SLOTS = 1_000
_ORDER_PEOPLE = 2_000
_ORDER_LEAST = 24


@dataclass(frozen=True, eq=False)
class Lives:
    """Per person: ``radius_km``, ``entropy_bits`` (people,), NaN if never seen.

    ``distinct`` (slots,) is the mean number of distinct regions seen up to and
    with each slot; ``rank_share`` (RANKS,) the mean share of time in a person's
    most, second most, ... frequent region; ``predictability`` (some people,).
    """

    radius_km: Floats
    entropy_bits: Floats
    distinct: Floats
    rank_share: Floats
    predictability: Floats


def measure_lives(sample: Sample) -> Lives:
    """Go through the sample person by person."""
    centre = np.ascontiguousarray(sample.regions.centre_km)
    radius, entropy, distinct, ranks = _walk(sample.by_person, centre)
    slots = min(sample.by_person.shape[1], _ORDER_SLOTS)
    most = min(_ORDER_PEOPLE, max(50, _ORDER_WORK // slots**2))
    chosen = evenly(len(sample.by_person), most)
    order = _order(np.ascontiguousarray(sample.by_person[chosen, :slots]))
    return Lives(radius, entropy, distinct, ranks, order[np.isfinite(order)])


@njit(cache=True)
def _walk(
    by_person: RegionIds, centre: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    people, slots = by_person.shape
    radius, entropy = np.full(people, np.nan), np.full(people, np.nan)
    distinct, ranks = np.zeros(slots), np.zeros(RANKS)
    tally = np.zeros(centre.shape[0], np.int64)
    found = np.empty(min(slots, centre.shape[0]), np.int32)
    alive = 0
    for person in range(people):
        row = by_person[person]
        count, seen = _tally(row, tally, found, distinct)
        if seen > 0:
            alive += 1
            places = found[:count]
            radius[person] = _gyration(places, tally, seen, centre)
            entropy[person] = _rank(places, tally, seen, ranks)
        for index in range(count):
            tally[found[index]] = 0
    if alive > 0:
        distinct /= alive
        ranks /= alive
    return radius, entropy, distinct, ranks


@njit(cache=True)
def _tally(
    row: RegionIds, tally: np.ndarray, found: RegionIds, distinct: Floats
) -> tuple[int, int]:
    """Count slots per region; adds the places found so far to ``distinct``."""
    count, seen = 0, 0
    for slot in range(row.size):
        place = row[slot]
        if place != UNKNOWN:
            seen += 1
            if tally[place] == 0:
                found[count] = place
                count += 1
            tally[place] += 1
        distinct[slot] += count
    return count, seen


@njit(cache=True)
def _gyration(places: RegionIds, tally: np.ndarray, seen: int, centre: Floats) -> float:
    """Root mean square distance from the mean place, weighted by slots."""
    x, y, square = 0.0, 0.0, 0.0
    for place in places:
        x += tally[place] * centre[place, 0] / seen
        y += tally[place] * centre[place, 1] / seen
    for place in places:
        east, north = centre[place, 0] - x, centre[place, 1] - y
        square += tally[place] * (east * east + north * north) / seen
    return math.sqrt(square)


@njit(cache=True)
def _rank(places: RegionIds, tally: np.ndarray, seen: int, ranks: Floats) -> float:
    """Add the shares by rank to ``ranks``; returns their entropy in bits."""
    share = np.sort(tally[places] / seen)[::-1]
    ranks[: min(RANKS, share.size)] += share[:RANKS]
    return max(0.0, -np.sum(share * np.log2(share)))


@njit(cache=True)
def _order(by_person: RegionIds) -> Floats:
    """Predictability of each person, NaN where too little was observed."""
    result = np.full(by_person.shape[0], np.nan)
    for person in range(by_person.shape[0]):
        row = by_person[person]
        row = row[row != UNKNOWN]
        if row.size >= _ORDER_LEAST:
            result[person] = fano(entropy_rate(row), np.unique(row).size)
    return result


@njit(cache=True)
def entropy_rate(row: RegionIds) -> float:
    """Bits per slot: n log2(n) / sum of the lengths of the shortest new strings.

    The length at position i is one more than the longest match that begins
    before i with the string that begins at i.
    """
    total = 0
    for here in range(row.size):
        longest = 0
        for before in range(here):
            longest = max(longest, _match(row, before, here))
        total += longest + 1
    return row.size * math.log2(row.size) / total


@njit(cache=True)
def _match(row: RegionIds, before: int, here: int) -> int:
    """How many slots from ``here`` repeat those from ``before``, up to ``here``."""
    most = min(row.size - here, here - before)
    for length in range(most):
        if row[before + length] != row[here + length]:
            return length
    return most


@njit(cache=True)
def fano(bits: float, places: int) -> float:
    """The p that solves bits = H(p) + (1 - p) log2(places - 1)."""
    if places < 2 or bits <= 0.0:
        return 1.0
    low, high = 1.0 / places, 1.0
    for _ in range(60):
        p = 0.5 * (low + high)
        unsure = -p * math.log2(p) - (1.0 - p) * math.log2(1.0 - p) if p < 1 else 0.0
        if unsure + (1.0 - p) * math.log2(max(1.0, places - 1.0)) > bits:
            low = p
        else:
            high = p
    return 0.5 * (low + high)
