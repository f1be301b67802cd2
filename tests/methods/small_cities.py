"""Cities on which methods are apt to fail, with tests."""

import numpy as np

from epifalcon.epidemic.known import Known
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from tests.oracles.cities import random_traces


def city_of(by_slot, days=1):
    """A city from region ids (slots, people), as many slots a day as fit."""
    ids = np.array(by_slot, np.int32)
    regions = Regions("area", np.zeros((max(int(ids.max()) + 1, 1), 2)))
    return Traces(ids, Clock(24 * days / len(ids), days), regions)


def results_of(*results):
    """Tests in slot 0 from everybody's result: 1, 0, or -1 for none."""
    status = np.array(results)
    person = np.flatnonzero(status >= 0).astype(np.int32)
    return Known(
        len(status), person, status[person] == 1, np.zeros(len(person), np.int32)
    )


RESULTS = (1, 0, 0, 1, -1, 0, -1, 0, 1, -1, 0, 0)
ODD = {
    "gaps": random_traces(3, 12, 5, Clock(4.0, 3)),
    "one region": city_of(np.zeros((4, 12))),
    "alone": city_of(np.tile(np.arange(12), (4, 1))),
    "never seen": city_of(np.full((4, 12), -1)),
    "one day": random_traces(5, 12, 4, Clock(8.0, 1)),
}
