"""Each person's known contacts: day by day for learners, in total for tracing.

A person's own test is subtracted from whole numbers before any division, so it moves no
bit of the person's own figures.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Counts, Floats, Slots

CHANNELS = 4


@dataclass(frozen=True, eq=False)
class Encounters:
    """How much each person was together with known cases."""

    slots: Counts
    """(people,) slots with at least one of them."""
    total: Counts
    """(people,) the number of them, summed over slots."""


def daily_exposure(traces: Traces, status: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return what is known of each person's contacts on each day: (people, days, 4).

    Means over the slots of the day in which the person was observed: known positives
    met over the others present, the same for known negatives, both times others /
    others tested of the whole city, so that fewer tests do not look like less disease;
    log(1 + others present); and the share of slots observed. A day without observation
    is all zeros.

    ``status`` (people,) is 1 for tested positive, 0 for negative, -1 for not tested.
    """
    require_status(status, traces.people)
    people, regions = traces.people, len(traces.regions)
    positive, negative = status == 1, status == 0
    tested = status >= 0
    scale = (people - 1) / np.maximum(tested.sum() - tested, 1)
    found = np.zeros((people, traces.clock.days, CHANNELS), np.float32)
    for day in range(traces.clock.days):
        slots = traces.clock.slots_of_day(day)
        sums: Floats = np.zeros((3, people))
        observed = np.zeros(people, np.int64)
        for here in traces.by_slot[slots]:
            seen = here != UNKNOWN
            # Region -1 counts people not observed, whom ``seen`` excludes at the end.
            place = here + 1
            present = np.bincount(place, minlength=regions + 1)
            others = np.maximum(present - 1, 1)[place]
            for row, kind in zip(sums, (positive, negative), strict=False):
                count = np.bincount(place[kind], minlength=regions + 1)
                row += seen * (count[place] - kind) / others
            sums[2] += seen * np.log(np.maximum(present, 1))[place]
            observed += seen
        mean = sums / np.maximum(observed, 1)
        found[:, day, :2] = (scale * mean[:2]).T
        found[:, day, 2] = mean[2]
        found[:, day, 3] = observed / traces.clock.slots_per_day
    return found


def encounters(traces: Traces, last: Slots, first_slot: int = 0) -> Encounters:
    """Return how much everybody was together with cases, from ``first_slot`` on.

    A person counts as a case until its slot ``last`` (people,), -1 for never. Nobody
    meets itself.
    """
    if last.shape != (traces.people,):
        raise DataError(f"last has shape {last.shape}, expected ({traces.people},)")
    slots, total = np.zeros((2, traces.people), np.int64)
    for slot in range(max(first_slot, 0), traces.slots):
        here = traces.by_slot[slot]
        seen, case = here != UNKNOWN, last >= slot
        cases = np.bincount(here[seen & case], minlength=len(traces.regions))
        others = cases[here[seen]] - case[seen]
        slots[seen] += others > 0
        total[seen] += others
    return Encounters(slots, total)


def require_status(status: NDArray[np.int8], people: int) -> None:
    """Raise ``DataError`` unless ``status`` (people,) holds 1, 0 and -1 alone."""
    if status.shape != (people,):
        raise DataError(f"status has shape {status.shape}, expected ({people},)")
    if not np.isin(status, (-1, 0, 1)).all():
        raise DataError("status must be 1, 0 or -1")
