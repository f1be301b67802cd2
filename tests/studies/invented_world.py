"""A world without a simulator: homes, a community, histories at random."""

import numpy as np

from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.studies.own.foreign_worlds import ForeignWorld, History

DAYS, PEOPLE = 30, 6000


def invented_world(people=PEOPLE, seed=1):
    """Homes of 3 at night, a community of 20 groups by day; random histories."""
    rng = np.random.default_rng(seed)
    homes = people // 3
    day = np.stack([np.arange(people) // 3, homes + rng.integers(20, size=people)])
    by_slot = np.tile(day, (DAYS, 1)).astype(np.int32)
    infected = np.where(rng.random(people) < 0.3, rng.integers(DAYS, size=people), -1)
    ill = infected >= 0
    onset = np.where(ill & (rng.random(people) < 0.6), infected + 5, -1)
    died = rng.random(people) < 0.01
    by_slot[2 * 20 :, died] = -1
    history = History(
        infected.astype(np.int32),
        np.where(ill, infected + 3, -1).astype(np.int32),
        onset.astype(np.int32),
        np.where(ill, infected + 12, -1).astype(np.int32),
    )
    kind = np.repeat([0, 3], [homes, 20]).astype(np.int8)
    names = tuple(f"r{at}" for at in range(len(kind)))
    regions = Regions("poi", np.full((len(kind), 2), np.nan), names=names)
    traces = Traces(by_slot, Clock(12, DAYS, "2020-03-01"), regions)
    return ForeignWorld(traces, kind, history, rng.uniform(0, 90, people))
