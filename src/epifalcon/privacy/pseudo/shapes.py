"""What compiled code reads and writes: records of plain arrays.

``Places`` answers "a region of this domain, by its share of visits", ``Ways``
"the next region within this domain, by the aggregate mobility model".
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from epifalcon.mobility.city.borrow import borrow
from epifalcon.types import Floats, RegionIds


class Places(NamedTuple):
    """Regions in order of their domain, with running totals of weight."""

    domain: NDArray[np.int32]
    """(regions,) the domain of each region."""
    member: RegionIds
    """(regions,) all regions, domain by domain."""
    first: NDArray[np.int64]
    """(domains + 1,) where each domain begins in ``member``."""
    running: Floats
    """(slots a day, regions) total weight within the domain, up to each member."""


class Ways(NamedTuple):
    """The aggregate model p(r, t -> r', t+1), cells in order of their domain."""

    first: NDArray[np.int64]
    """(slots a day * regions + 1,) where each row begins in ``there``."""
    there: RegionIds
    """(cells,) the region r', domain by domain within a row."""
    running: Floats
    """(cells,) total weight within the row and domain, up to each cell."""
    floor: Floats
    """(regions, domains) epsilon times the sum of the kernel over each domain."""
    total: Floats
    """(slots a day * regions,) the sum of each row, floor included."""
    point: Floats
    """(regions, 3) where each region lies, in km; on a sphere if ``round``."""
    round: bool
    epsilon: float


Tables = tuple[Places, Ways]


class Draw(NamedTuple):
    """The random stream of one copy of one person, and which regions are taken."""

    state: NDArray[np.uint64]
    """(1,) the stream."""
    taken: NDArray[np.int64]
    """(regions,) a region is taken if this is the stamp."""
    stamp: NDArray[np.int64]
    """(1,) the stamp; raising it sets all regions free."""


class Scratch(NamedTuple):
    """Memory for one thread; the caller keeps it alive."""

    free: Draw
    tight: Draw
    """The same stream as ``free``, other marks."""
    known: RegionIds
    """(regions,) the pseudo region of each true region."""
    turn: NDArray[np.int64]
    """(regions,) the sweep in which the pseudo region was drawn last."""
    candidate: RegionIds
    """(candidates,) regions of which one is chosen."""
    score: Floats
    """(candidates,) the logarithm of how well each fits the rest of the life."""


def new_scratch(regions: int, candidates: int = 1) -> Scratch:
    """Memory for one thread in a city of so many regions."""
    state = np.zeros(1, np.uint64)
    free, tight = (
        Draw(state, np.zeros(regions, np.int64), np.zeros(1, np.int64))
        for _ in range(2)
    )
    return Scratch(
        free,
        tight,
        known=np.empty(regions, np.int32),
        turn=np.empty(regions, np.int64),
        candidate=np.empty(candidates, np.int32),
        score=np.empty(candidates),
    )


class Block(NamedTuple):
    """Some people's true and pseudo traces, and the streams of these people."""

    true: RegionIds
    """(people, slots)."""
    pseudo: RegionIds
    """(copies, people, slots), to be filled; it holds -1."""
    first: int
    """The number of the first of them among all people."""
    seeds: NDArray[np.uint64]
    """(copies,)."""


@njit(cache=True, nogil=True)
def borrow_places(places: Places) -> Places:
    """The same record of borrowed arrays."""
    return Places(
        borrow(places.domain),
        borrow(places.member),
        borrow(places.first),
        borrow(places.running),
    )


@njit(cache=True, nogil=True)
def borrow_ways(ways: Ways) -> Ways:
    """The same record of borrowed arrays."""
    return Ways(
        borrow(ways.first),
        borrow(ways.there),
        borrow(ways.running),
        borrow(ways.floor),
        borrow(ways.total),
        borrow(ways.point),
        ways.round,
        ways.epsilon,
    )


@njit(cache=True, nogil=True)
def borrow_draw(draw: Draw) -> Draw:
    """The same record of borrowed arrays."""
    return Draw(borrow(draw.state), borrow(draw.taken), borrow(draw.stamp))


@njit(cache=True, nogil=True)
def borrow_scratch(scratch: Scratch) -> Scratch:
    """The same record of borrowed arrays."""
    return Scratch(
        borrow_draw(scratch.free),
        borrow_draw(scratch.tight),
        borrow(scratch.known),
        borrow(scratch.turn),
        borrow(scratch.candidate),
        borrow(scratch.score),
    )
