"""Cases per region and day: from test results only, or, asked for by name, all.

The paper's X(t) is "the new cases of each region observed at time t", estimated
"from the confirmed cases observed in each region".
"""

from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np

from epifalcon.checks import at_least, one_of
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, PersonIds, RegionIds, Slots

CaseSource = Literal["reported", "all"]

_LABELS = {
    "reported": "reported cases, tested people only",
    "all": "ALL CASES, hidden people included",
}


@dataclass(frozen=True, eq=False)
class Cases:
    """How many cases each region had on each day, and where the number is from."""

    by_region_and_day: Floats
    """(regions, days), read-only."""
    source: CaseSource
    unplaced: int = 0
    """Cases of people who were not observed anywhere in the days that count."""

    def __post_init__(self) -> None:
        one_of(tuple(_LABELS), source=self.source)
        counts = self.by_region_and_day
        if counts.ndim != 2 or not (counts >= 0).all():
            raise DataError("cases must be numbers of 0 or more by region and day")
        counts.setflags(write=False)

    @property
    def label(self) -> str:
        """What every table and picture made from these cases must say."""
        return _LABELS[self.source]


def reported_cases(known: Known, traces: Traces, window_days: int = 14) -> Cases:
    """Confirmed cases by region and day, from test results alone.

    Each person with a positive test is one case, at the first such test. It is
    spread evenly over the slots in which the person was observed during the
    ``window_days`` days that end with the day of the test, up to the slot of
    the test: so it weighs most where the person spent most time. All entries
    and ``unplaced`` add up to the number of people with a positive test.
    ``window_days=1`` counts a case only where the person was on the test day.
    """
    at_least(1, window_days=window_days)
    if known.people != traces.people:
        raise DataError(f"tests of {known.people} people, traces of {traces.people}")
    person = np.flatnonzero(known.first_positive_slot >= 0).astype(np.int32)
    last = known.first_positive_slot[person]
    if len(last) and last.max() >= traces.slots:
        raise DataError(
            f"a test in slot {last.max()}, the traces end with {traces.slots - 1}"
        )
    per_day = traces.clock.slots_per_day
    first = (last // per_day - (window_days - 1)) * per_day
    counts = np.zeros((len(traces.regions), traces.clock.days))
    unplaced = _spread(traces.by_slot, person, (np.maximum(first, 0), last), counts)
    return Cases(counts, "reported", int(unplaced))


def all_cases(outbreak: Outbreak, traces: Traces) -> Cases:
    """Mean number of infectious people in each region on each day, hidden or not.

    This is what the authors' program gave its region model. It holds the
    answers that a method is asked for, so results made with it may only stand
    beside the paper's table, marked by ``Cases.label``.
    """
    person_slots = outbreak.infectious_by_region_and_day(traces)
    return Cases(person_slots / traces.clock.slots_per_day, "all")


@numba.njit(cache=True)
def _spread(
    by_slot: RegionIds, people: PersonIds, window: tuple[Slots, Slots], counts: Floats
) -> int:
    """Add a weight of 1 per person to ``counts``; return how many had no place."""
    slots = by_slot.shape[0]
    first, last = window
    observed = np.zeros(people.size, np.int64)
    for slot in range(slots):
        for index in range(people.size):
            inside = first[index] <= slot <= last[index]
            observed[index] += inside and by_slot[slot, people[index]] >= 0
    for slot in range(slots):
        day = slot * counts.shape[1] // slots
        for index in range(people.size):
            region = by_slot[slot, people[index]]
            if region >= 0 and first[index] <= slot <= last[index]:
                counts[region, day] += 1 / observed[index]
    unplaced: int = (observed == 0).sum()
    return unplaced
