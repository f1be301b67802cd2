"""How people share regions: co-presence, being alone, concentration."""

from dataclasses import dataclass

import numpy as np

from epifalcon.mobility.traces import Traces
from epifalcon.mobility.validity.sample import evenly
from epifalcon.types import Floats

_MOST_DAYS = 14


@dataclass(frozen=True, eq=False)
class Crowds:
    """Means over all observed person-slots of up to 14 evenly spaced days.

    ``inverse_size`` is E[1/N], N the people in one's region and slot;
    ``alone`` the share with N = 1; ``occupancy`` (regions,) people per slot.
    """

    inverse_size: float
    alone: float
    occupancy: Floats


def measure_crowds(traces: Traces) -> Crowds:
    """Count the people of each region slot by slot."""
    presence = np.zeros(len(traces.regions))
    seen = cells = singles = slots = 0
    for day in evenly(traces.clock.days, _MOST_DAYS):
        span = traces.clock.slots_of_day(int(day))
        for slot in range(span.start, span.stop):
            crowd = traces.occupancy(slot)
            presence += crowd
            seen += int(crowd.sum())
            cells += int(np.count_nonzero(crowd))
            singles += int(np.count_nonzero(crowd == 1))
            slots += 1
    if seen == 0:
        return Crowds(float("nan"), float("nan"), presence)
    return Crowds(cells / seen, singles / seen, presence / slots)


def gini(amount: Floats) -> float:
    """Gini's coefficient: 0 if all are equal, near 1 if one has everything."""
    total = float(amount.sum())
    if total <= 0:
        return float("nan")
    size = len(amount)
    rank = np.arange(1, size + 1)
    return float((2 * rank - size - 1) @ np.sort(amount) / (size * total))
