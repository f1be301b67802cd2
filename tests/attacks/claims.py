"""Small towns whose people claim places, for trying attacks on."""

from itertools import pairwise

import numpy as np

from epifalcon.attacks.claims import Candidates
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.mobility_model import MobilityModel, mobility_model
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo_traces import PseudoTraces
from epifalcon.types import UNKNOWN


def town(rng, people=6, regions=12, days=2, gaps=0.2, degrees=False):
    """People at random places with gaps, four slots a day."""
    clock = Clock(slot_hours=6, days=days)
    centre = rng.uniform(0, 8, (regions, 2))
    lonlat = np.column_stack([centre[:, 0] / 90, 50 + centre[:, 1] / 111])
    by_slot = rng.integers(0, max(2, regions // 2), (clock.slots, people))
    by_slot[rng.random(by_slot.shape) < gaps] = UNKNOWN
    by_slot[0, 0] = 0
    places = Regions("area", centre, lonlat if degrees else None)
    return Traces(by_slot.astype(np.int32), clock, places)


def model_of(traces: Traces, epsilon=1e-3) -> MobilityModel:
    return mobility_model(traces, epsilon)


def pseudo(traces: Traces, rng, copies=2) -> PseudoTraces:
    """Copies with regions at random, different from each other in a slot."""
    regions = len(traces.regions)
    made = np.full((copies, *traces.by_slot.shape), UNKNOWN, np.int32)
    for slot, person in np.argwhere(traces.by_slot != UNKNOWN):
        free = np.setdiff1d(np.arange(regions), traces.by_slot[slot, person])
        made[:, slot, person] = rng.permutation(free)[:copies]
    return PseudoTraces(traces, made)


def flat(candidates: Candidates):
    """The claims as (person, key)."""
    row = np.repeat(np.arange(len(candidates.start) - 1), np.diff(candidates.start))
    person, window = row // candidates.windows, row % candidates.windows
    return person, window * candidates.regions + candidates.region


def ragged(candidates: Candidates, values, person):
    """Values of claims of one person, window by window."""
    first = person * candidates.windows
    start = candidates.start[first : first + candidates.windows + 1]
    return [values[a:b].tolist() for a, b in pairwise(start)]


def assert_same(found, wanted):
    """Two lists of rows hold the same numbers to ten digits."""
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10, rtol=0)
