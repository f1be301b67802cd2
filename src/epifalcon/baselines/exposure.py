"""Each person's known company: day by day for learners, in all for tracing.

What a person's own test said is taken out as a whole number, before any division,
so it moves no bit of the person's own figures.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Counts, RegionIds, Slots

CHANNELS = 4
_POSITIVE, _NEGATIVE, _EVERYBODY = 0, 1, 2
"""Columns of the people counted in each region, and the first channels."""


@dataclass(frozen=True, eq=False)
class Encounters:
    """How much a person was together with people who count as cases."""

    slots: Counts
    """(people,) slots in which at least one of them was there."""
    total: Counts
    """(people,) the number of them, summed over slots."""


def daily_exposure(traces: Traces, status: NDArray[np.int8]) -> NDArray[np.float32]:
    """(people, days, 4): what is known of the company of each person on each day.

    Means over the slots of the day in which the person was observed: known
    positives met over the others present, the same for known negatives, both
    times others / others tested of the whole city, so that fewer tests do not
    look like less disease; log(1 + others present); and the share of slots
    observed. A day without observation is all zeros.

    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not
    tested. Neither a person's own result nor whether there is one enters its own
    row, not even by a last bit. Linear in visits.
    """
    _require_status(traces, status)
    by_slot, people, regions = _plain(traces), traces.people, len(traces.regions)
    found = np.zeros((people, traces.clock.days, CHANNELS), np.float32)
    kind = _kinds(status)
    tested = status >= 0
    scale = (people - 1) / np.maximum(tested.sum() - tested, 1)

    def work(day: int) -> None:
        some = by_slot[traces.clock.slots_of_day(day)]
        _fill_day(some, kind, scale, regions, found[:, day])

    each_part(work, traces.clock.days, by_slot.size)
    return found


def encounters(traces: Traces, last: Slots, first_slot: int = 0) -> Encounters:
    """How much everybody was together with cases, from ``first_slot`` on.

    A person counts as a case up to its slot ``last`` (people,), -1 for never.
    Nobody meets itself. Linear in visits.
    """
    if last.shape != (traces.people,):
        raise DataError(f"last has shape {last.shape}, expected ({traces.people},)")
    by_slot, regions = _plain(traces), len(traces.regions)
    slots, total = np.zeros((2, traces.people), np.int64)
    for slot in range(max(first_slot, 0), traces.slots):
        _meet(by_slot[slot], last >= slot, regions, (slots, total))
    return Encounters(slots, total)


def _plain(traces: Traces) -> RegionIds:
    # A memory-mapped array would be compiled for anew.
    array = np.ascontiguousarray(traces.by_slot).view(np.ndarray)
    array.setflags(write=False)
    return array


def _kinds(status: NDArray[np.int8]) -> NDArray[np.int8]:
    """The column in which each person's result is counted, -1 for none."""
    kind = np.full(len(status), -1, np.int8)
    kind[status == 1], kind[status == 0] = _POSITIVE, _NEGATIVE
    return kind


def _require_status(traces: Traces, status: NDArray[np.int8]) -> None:
    if status.shape != (traces.people,):
        raise DataError(f"status has shape {status.shape}, expected ({traces.people},)")
    if not np.isin(status, (-1, 0, 1)).all():
        raise DataError("status must be 1, 0 or -1")


@compiled
def _fill_day(
    day: RegionIds,
    kind: NDArray[np.int8],
    scale: NDArray[np.float64],
    regions: int,
    found: NDArray[np.float32],
) -> None:
    """The rows of one day, ``found`` (people, channels); ``day`` (slots, people)."""
    slots, people = day.shape
    count = np.empty((regions, 3), np.int32)
    crowd = np.empty(regions)
    sums, observed = np.zeros((people, 3)), np.zeros(people, np.int32)
    for slot in range(slots):
        _count(day[slot], kind, count)
        for region in range(regions):
            crowd[region] = np.log(max(count[region, _EVERYBODY], 1))
        _add_slot(day[slot], kind, (count, crowd), (sums, observed))
    for person in range(people):
        if observed[person] > 0:
            factor = scale[person] / observed[person]
            found[person, 0] = factor * sums[person, _POSITIVE]
            found[person, 1] = factor * sums[person, _NEGATIVE]
            found[person, 2] = sums[person, 2] / observed[person]
            found[person, 3] = observed[person] / slots


@compiled
def _count(here: RegionIds, kind: NDArray[np.int8], count: NDArray[np.int32]) -> None:
    """Known positives, known negatives and everybody in each region."""
    count[:] = 0
    for person in range(len(here)):
        region = here[person]
        if region != UNKNOWN:
            count[region, _EVERYBODY] += 1
            if kind[person] >= 0:
                count[region, kind[person]] += 1


@compiled
def _add_slot(
    here: RegionIds,
    kind: NDArray[np.int8],
    present: tuple[NDArray[np.int32], NDArray[np.float64]],
    found: tuple[NDArray[np.float64], NDArray[np.int32]],
) -> None:
    """Add what everybody met in one slot."""
    count, crowd = present
    sums, observed = found
    for person in range(len(here)):
        region = here[person]
        if region == UNKNOWN:
            continue
        others = max(count[region, _EVERYBODY] - 1, 1)
        own = kind[person]
        sums[person, 0] += (count[region, _POSITIVE] - (own == _POSITIVE)) / others
        sums[person, 1] += (count[region, _NEGATIVE] - (own == _NEGATIVE)) / others
        sums[person, 2] += crowd[region]
        observed[person] += 1


@compiled
def _meet(
    here: RegionIds, case: NDArray[np.bool_], regions: int, met: tuple[Counts, Counts]
) -> None:
    """Add the encounters of one slot."""
    slots, total = met
    count = np.zeros(regions, np.int32)
    for person in range(len(here)):
        if here[person] != UNKNOWN and case[person]:
            count[here[person]] += 1
    for person in range(len(here)):
        if here[person] != UNKNOWN:
            others = count[here[person]] - case[person]
            slots[person] += others > 0
            total[person] += others
