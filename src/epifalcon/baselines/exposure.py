"""Each person's known company, day by day: what rivals are fed with."""

import numpy as np
from numpy.typing import NDArray

from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN

CHANNELS = 4


def daily_exposure(traces: Traces, status: NDArray[np.int8]) -> NDArray[np.float32]:
    """(people, days, 4): what is known of the company of each person on each day.

    Means over the slots of the day in which the person was observed: known
    positives met over the others present, the same for known negatives, both
    times people / tested, so that fewer tests do not look like less disease;
    log(1 + others present); and the share of slots observed. A person's own
    result never enters its own row.
    """
    days, people = traces.clock.days, traces.people
    found = np.zeros((people, days, CHANNELS))
    scale = people / max(int((status >= 0).sum()), 1)
    kinds = [(status == 1).astype(float), (status == 0).astype(float)]
    for day, slots in enumerate(traces.days()):
        for here in slots:
            seen = np.flatnonzero(here != UNKNOWN)
            place = here[seen]
            others = np.bincount(place, minlength=len(traces.regions))[place] - 1
            for channel, kind in enumerate(kinds):
                met = np.bincount(place, kind[seen], len(traces.regions))[place]
                met = met - kind[seen]
                found[seen, day, channel] += scale * met / np.maximum(others, 1)
            found[seen, day, 2] += np.log1p(others)
            found[seen, day, 3] += 1
    observed = np.maximum(found[:, :, 3:], 1)
    found[:, :, :3] /= observed
    found[:, :, 3] /= traces.clock.slots_per_day
    return found.astype(np.float32)
