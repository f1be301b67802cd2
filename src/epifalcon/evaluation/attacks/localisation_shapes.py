"""The records that the compiled parts of the localisation attack work on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.city.borrow import borrow
from epifalcon.types import Floats, RegionIds


class Ways(NamedTuple):
    """The mobility model laid out for finding single moves."""

    entry: NDArray[np.uint64]
    """(slots a day * regions, buckets + 1): for each bucket of 2^shift regions in a
    row of moves its first cell, and in the upper half, if shift is 5, a bit for
    each region of the bucket that a move leads to. The last entry is the row's
    end."""
    there: RegionIds
    """(cells,) where a move leads to, ascending within a row."""
    weight: Floats
    """(cells,)"""
    total: Floats
    """(slots a day * regions,) the sum of a row, floor included."""
    visits: Floats
    """(slots a day, regions) where people are."""
    point: Floats
    """(regions, 3) in kilometres."""
    round: bool
    """Whether the points lie on a sphere."""
    epsilon: float
    shift: int


class Rows(NamedTuple):
    """The claims, and which slot of the day each window begins at."""

    start: NDArray[np.int64]
    region: RegionIds
    evidence: Floats
    """(claims,) log-likelihoods, or nothing at all."""
    opens: NDArray[np.int64]
    """(windows,)"""


class Scratch(NamedTuple):
    """What a person's forward and backward way needs."""

    seen: NDArray[np.int64]
    """(windows + 1,) the windows with claims."""
    block: NDArray[np.int64]
    """(windows + 1,) where the moves into each of them begin in ``move``."""
    cut: NDArray[np.bool_]
    """(windows + 1,) whether no way leads into the window."""
    move: Floats
    ahead: Floats
    """(most claims,) the backward weights of the later window."""
    behind: Floats
    near: Floats
    """(3, most claims) the points of the later window."""


@compiled
def borrow_rows(rows: Rows) -> Rows:
    """The same record of borrowed arrays."""
    return Rows(
        borrow(rows.start),
        borrow(rows.region),
        borrow(rows.evidence),
        borrow(rows.opens),
    )


@compiled
def borrow_ways(ways: Ways) -> Ways:
    """The same record of borrowed arrays."""
    return Ways(
        borrow(ways.entry),
        borrow(ways.there),
        borrow(ways.weight),
        borrow(ways.total),
        borrow(ways.visits),
        borrow(ways.point),
        ways.round,
        ways.epsilon,
        ways.shift,
    )


@compiled
def borrow_pad(pad: Scratch) -> Scratch:
    """The same record of borrowed arrays."""
    return Scratch(
        borrow(pad.seen),
        borrow(pad.block),
        borrow(pad.cut),
        borrow(pad.move),
        borrow(pad.ahead),
        borrow(pad.behind),
        borrow(pad.near),
    )
