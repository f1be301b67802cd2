"""TraceCoverage of each person's trace: how much of it was observed, and with whom."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Floats, Mask

FEW = 0.1
"""Share of slots below which a trace has few observations."""
OK = "ok"
_EVIDENCE = np.array(
    [OK, "few observations", "no contacts observed", "not observed"], dtype=object
)


@dataclass(frozen=True, eq=False)
class TraceCoverage:
    """How much of each person's trace was observed."""

    observed: Floats
    """Share of slots in which the person was observed, of days with any visits,
    (people,)."""
    accompanied: Mask
    """True for people ever observed together with another person, (people,)."""

    @classmethod
    def of(cls, traces: Traces, present: Floats | None = None) -> "TraceCoverage":
        """Measure the coverage of each person.

        ``present``, (slots, 1 + regions), counts the people that each person could have
        met, if these are not the people of ``traces``.
        """
        clock, regions = traces.clock, len(traces.regions)
        count = np.zeros(traces.people, np.int32)
        accompanied = np.zeros(traces.people, np.bool_)
        visited = np.zeros(clock.days, np.bool_)
        for slot, here in enumerate(traces.by_slot):
            seen = here != UNKNOWN
            if not seen.any():
                continue
            visited[clock.day_of_slot(slot)] = True
            count += seen
            if present is None:
                met = np.bincount(here + 1, minlength=1 + regions) > 1
            else:
                # A noised count is not a whole number.
                met = present[slot] > 0.5
            accompanied |= seen & met[here + 1]
        slots = max(1, int(visited.sum()) * clock.slots_per_day)
        return cls(count / slots, accompanied)

    @property
    def evidence(self) -> NDArray[np.object_]:
        """Whether a risk rests on enough observations, as a word, (people,)."""
        code = np.where(self.observed < FEW, 1, 0)
        code = np.where(self.accompanied, code, 2)
        code = np.where(self.observed == 0, 3, code)
        return _EVIDENCE[code]
