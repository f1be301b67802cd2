"""Where each person lives, as far as the trace tells."""

import numpy as np

from epifalcon.mobility.traces import Traces
from epifalcon.mobility.validity.sample import NIGHT, anchors, hours_of_slots
from epifalcon.types import RegionIds

_BLOCK_PEOPLE = 20_000


def home_regions(traces: Traces) -> RegionIds:
    """The region in which each person spends most night slots: (people,).

    Most slots of any hour where no night was observed; -1 for people who were
    never observed. Works block by block, so that memory stays small.
    """
    hour = hours_of_slots(traces.clock)
    night = (hour >= NIGHT[0]) & (hour < NIGHT[1])
    no_office = np.zeros(traces.slots, np.bool_)
    home = np.empty(traces.people, np.int32)
    for first in range(0, traces.people, _BLOCK_PEOPLE):
        block = slice(first, first + _BLOCK_PEOPLE)
        by_person = np.ascontiguousarray(traces.by_person[block])
        home[block], _ = anchors(by_person, night, no_office, len(traces.regions))
    return home
