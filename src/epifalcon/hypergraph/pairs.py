"""Kernels that sort (person, edge) pairs: counting sorts, linear in the input."""

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.types import UNKNOWN, RegionIds

Ids = NDArray[np.int32]
Ends = NDArray[np.int64]


@compiled
def count_window(window: RegionIds, regions: int) -> Ids:
    """Distinct people in each region: ``window`` (slots, people) to (regions,)."""
    slots, people = window.shape
    count = np.zeros(regions, np.int32)
    if slots == 1:
        for person in range(people):
            if window[0, person] != UNKNOWN:
                count[window[0, person]] += 1
        return count
    last = np.full(regions, -1, np.int32)
    for person in range(people):
        for slot in range(slots):
            region = window[slot, person]
            if region != UNKNOWN and last[region] != person:
                last[region] = person
                count[region] += 1
    return count


@compiled
def fill_window(window: RegionIds, place: Ends, member: Ids) -> None:
    """Write each person into the edges of the window.

    ``place`` (regions,) is where the members of a region's edge begin in
    ``member``, -1 where the region has no edge; it is moved on.
    """
    slots, people = window.shape
    if slots == 1:
        for person in range(people):
            region = window[0, person]
            if region != UNKNOWN and place[region] >= 0:
                member[place[region]] = person
                place[region] += 1
        return
    last = np.full(len(place), -1, np.int32)
    for person in range(people):
        for slot in range(slots):
            region = window[slot, person]
            if region != UNKNOWN and last[region] != person and place[region] >= 0:
                last[region] = person
                member[place[region]] = person
                place[region] += 1


@compiled
def count_ids(ids: Ids, length: int) -> Ids:
    """How often each id from 0 to ``length`` - 1 occurs; int32, no copy of ``ids``."""
    count = np.zeros(length, np.int32)
    for each in ids:
        count[each] += 1
    return count


@compiled
def transpose(start: Ends, index: Ids, turned: Ends) -> Ids:
    """Rows of ``index`` as columns: which rows hold each column, ascending.

    ``start`` (rows + 1,) bounds the rows, ``turned`` (columns + 1,) the columns.
    """
    place = turned.copy()
    row_of = np.empty(len(index), np.int32)
    for row in range(len(start) - 1):
        for pair in range(start[row], start[row + 1]):
            column = index[pair]
            row_of[place[column]] = row
            place[column] += 1
    return row_of


@compiled
def select_rows(start: Ends, index: Ids, rows: Ids, chosen_start: Ends) -> Ids:
    """The entries of the chosen ``rows``, one row after the other."""
    chosen = np.empty(chosen_start[-1], np.int32)
    for place in range(len(rows)):
        here = chosen_start[place]
        for pair in range(start[rows[place]], start[rows[place] + 1]):
            chosen[here] = index[pair]
            here += 1
    return chosen


@compiled
def rows_rise(start: Ends, index: Ids, columns: int) -> bool:
    """Whether every row rises strictly within 0 and ``columns`` - 1."""
    for row in range(len(start) - 1):
        before = -1
        for pair in range(start[row], start[row + 1]):
            if index[pair] <= before or index[pair] >= columns:
                return False
            before = index[pair]
    return True
