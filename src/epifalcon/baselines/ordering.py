"""An order of people and regions that does not depend on how they are numbered.

Methods draw random numbers by position and add up in the order of rows. In an
order that comes from the traces themselves, a city whose people or regions are
numbered otherwise gets the same answer to the last bit. It also brings people
with the same first region together, which is kind to caches.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.known import Known
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN

Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Order:
    """Which person and region of the city stands at each place of the order."""

    people: NDArray[np.int64]
    """(people,)"""
    regions: NDArray[np.int64]
    """(regions,)"""

    def traces(self, traces: Traces) -> Traces:
        """The traces in this order; what things are called is left behind."""
        place = np.empty(len(self.regions) + 1, np.int32)
        place[self.regions] = np.arange(len(self.regions), dtype=np.int32)
        place[UNKNOWN] = UNKNOWN
        old = traces.regions
        lonlat = None if old.lonlat is None else old.lonlat[self.regions]
        regions = Regions(
            kind=old.kind, centre_km=old.centre_km[self.regions], lonlat=lonlat
        )
        # np.take keeps slots together in memory, as traces promise.
        by_slot = np.take(place[traces.by_slot], self.people, axis=1)
        return Traces(by_slot, traces.clock, regions)

    def known(self, known: Known) -> Known:
        """The tests in this order."""
        place = np.empty(len(self.people), np.int32)
        place[self.people] = np.arange(len(self.people), dtype=np.int32)
        return Known.from_tests(
            known.people, place[known.person], known.positive, known.slot
        )


def own_order(traces: Traces, known: Known | None = None) -> Order:
    """The order that these people and regions have of themselves.

    Regions go by where they lie and how many people were there in each slot,
    people by their first region, then by their whole trace, then by when they
    were tested. Only who agrees in all of that stays in the order of the
    numbers. Results play no part.
    """
    counts = _region_words(traces)
    east, north = traces.regions.centre_km.T
    regions = np.lexsort((counts, north, east))
    place = np.empty(len(regions) + 1, np.int64)
    place[regions] = np.arange(len(regions))
    place[UNKNOWN] = -1
    word = np.zeros(traces.people, np.uint64)
    for slot, here in enumerate(traces.by_slot):
        word += _mixed(_mixed(_word(slot)) + _word(place[here] + 2))
    tests = np.zeros(traces.people, np.uint64)
    if known is not None:
        np.add.at(tests, known.person, _mixed(_word(known.slot)))
    first = place[traces.by_slot[0]]
    return Order(np.lexsort((tests, word, first)), regions)


def _region_words(traces: Traces) -> Words:
    """One word for the numbers of people in each region, slot by slot: (regions,)."""
    word = np.zeros(len(traces.regions), np.uint64)
    for slot in range(traces.slots):
        word += _mixed(_word(slot)) * _word(traces.occupancy(slot))
    return word


def _word(value: Any) -> Words:  # noqa: ANN401
    return np.asarray(value).astype(np.uint64)


def _mixed(word: Words) -> Words:
    """SplitMix64's finish: near numbers become far ones."""
    with np.errstate(over="ignore"):
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(word ^ (word >> np.uint64(31)))
