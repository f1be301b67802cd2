"""Where each person lives, as far as the trace tells."""

import numpy as np

from epifalcon.mobility.traces import Traces
from epifalcon.mobility.validity.sample import _anchors, hours_of_slots
from epifalcon.types import UNKNOWN, RegionIds

def home_regions(traces):
    hour = hours_of_slots(traces.clock)
    none = np.zeros(len(hour), bool)
    return _anchors(np.ascontiguousarray(traces.by_person), hour < 6, none, len(traces.regions))[0]
