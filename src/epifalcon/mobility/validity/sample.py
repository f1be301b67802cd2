"""A sample of people's traces, and where each of them lives and works."""

from dataclasses import dataclass

import numpy as np
from numba import njit

from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Floats, Mask, RegionIds

MOST_PEOPLE = 20_000
_MOST_CELLS = 40_000_000
NIGHT = (0.0, 6.0)
_OFFICE = (9.0, 17.0)
_WORK_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Sample:
    """Traces ``by_person`` (people, slots) of some people, with home and work.

    ``home`` (people,) is the region of most night slots (0 to 6 h), of all
    slots where no night was observed, and -1 for who was never seen. ``work``
    (people,) is another region in which at least a fifth of the slots from 9
    to 17 h were spent, -1 for people without one.
    """

    by_person: RegionIds
    home: RegionIds
    work: RegionIds
    clock: Clock
    regions: Regions

    def hour_mask(self, low: float, high: float) -> Mask:
        """Which slots (slots,) begin at an hour in [low, high)."""
        hour = hours_of_slots(self.clock)
        return (hour >= low) & (hour < high)


def hours_of_slots(clock: Clock) -> Floats:
    """The hour of the day at which each slot (slots,) begins."""
    day = np.arange(clock.slots_per_day) * clock.slot_minutes / 60
    return np.tile(day, clock.days)


def take_sample(traces: Traces) -> Sample:
    """Everybody in a small city, evenly spaced people of a large one."""
    most = min(MOST_PEOPLE, max(100, _MOST_CELLS // traces.slots))
    by_person = np.ascontiguousarray(
        traces.by_slot[:, evenly(traces.people, most)].T, dtype=np.int32
    )
    hour = hours_of_slots(traces.clock)
    home, work = anchors(
        by_person,
        (hour >= NIGHT[0]) & (hour < NIGHT[1]),
        (hour >= _OFFICE[0]) & (hour < _OFFICE[1]),
        len(traces.regions),
    )
    return Sample(by_person, home, work, traces.clock, traces.regions)


def evenly(count: int, most: int) -> np.ndarray:
    """At most ``most`` indices below ``count``, evenly spaced."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.int64)


@njit(cache=True)
def anchors(
    by_person: RegionIds, night: Mask, office: Mask, regions: int
) -> tuple[RegionIds, RegionIds]:
    """Home and workplace of each person, -1 for none, by hours of the day."""
    people = by_person.shape[0]
    home = np.full(people, UNKNOWN, np.int32)
    work = np.full(people, UNKNOWN, np.int32)
    tally = np.zeros(regions, np.int64)
    every = np.ones(by_person.shape[1], np.bool_)
    for person in range(people):
        row = by_person[person]
        place, _, seen = _modal(row, night, UNKNOWN, tally)
        if seen == 0:
            place, _, seen = _modal(row, every, UNKNOWN, tally)
        home[person] = place
        place, most, seen = _modal(row, office, home[person], tally)
        if most > 0 and most >= _WORK_SHARE * seen:
            work[person] = place
    return home, work


@njit(cache=True)
def _modal(
    row: RegionIds, mask: Mask, excluded: int, tally: np.ndarray
) -> tuple[int, int, int]:
    """The region of most masked slots, its slots and all observed ones."""
    best, most, seen = UNKNOWN, 0, 0
    for slot in range(row.size):
        place = row[slot]
        if not mask[slot] or place == UNKNOWN:
            continue
        seen += 1
        tally[place] += 1
        if place != excluded and tally[place] > most:
            best, most = place, tally[place]
    for slot in range(row.size):
        if row[slot] != UNKNOWN:
            tally[row[slot]] = 0
    return best, most, seen
