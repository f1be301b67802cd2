"""Groups in a row, and who stays through how many of them.

Neighbours in the row are mostly groups of one region in the order of time, so
most people of one are in the next one too. Instead of adding a person's row to
every group it is enough to add it where the stay begins and to subtract it where
the stay ends: the running sum is that of the group. The way back is the same:
from the running sum of what the groups pass on, a stay gets a difference.

A block is a short piece of the row, whose tables fit into the first cache. It
ends early where a small group follows a large one, because what is left of a
large sum after subtracting has the rounding of the large one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.hypergraph.incidence import Rows
from epifalcon.hypergraph.pairs import Ends, Ids

Members = NDArray[np.uint32]
"""Unsigned, so that an index need not be looked at for being negative."""
Places = NDArray[np.uint8]
StayArrays = tuple[Ends, Ends, Ends, Members, Places, Places]

MOST_GROUPS = 64
"""In a block: more would save few stays, and cost cache and digits."""
_SMALLER = 4
"""A group so many times smaller than the block's largest begins a new block."""


@dataclass(frozen=True, eq=False)
class Stays:
    """Who is in which groups, as pieces without a gap within each block.

    The stays of a block lie together, those in a single group first, and then in
    the order of people.
    """

    block: Ends
    """(blocks + 1,) the first group of each block."""
    start: Ends
    """(blocks + 1,) the first stay of each block."""
    long: Ends
    """(blocks,) the first of its stays in more than one group."""
    person: Members
    """(stays,)"""
    first: Places
    """(stays,) the stay's first group, counted from the block's first."""
    past: Places
    """(stays,) one past its last group."""

    def __len__(self) -> int:
        return len(self.person)

    @property
    def arrays(self) -> StayArrays:
        """All of it, for compiled code."""
        return self.block, self.start, self.long, self.person, self.first, self.past


def stays_of(groups: Rows, people: int) -> Stays:
    """The stays in ``groups``, whose rows hold people, in the order of the rows."""
    matrix = groups.start, groups.index
    block = _blocks(groups.start)
    start, long = np.zeros(len(block), np.int64), np.zeros(len(block) - 1, np.int64)
    seen, opened = (np.full(people, -1, np.int32) for _ in range(2))
    _count(matrix, block, seen, start)
    person = np.empty(start[-1], np.uint32)
    first, past = (np.empty(start[-1], np.uint8) for _ in range(2))
    seen.fill(-1)
    _fill(matrix, (block, start), (seen, opened), (person, first, past))
    _sort(start, long, (person, first, past))
    return Stays(block, start, long, person, first, past)


@compiled
def _blocks(start: Ends) -> Ends:
    """The first group of each block, and the number of groups."""
    groups = len(start) - 1
    bound = np.zeros(groups + 1, np.int64)
    blocks, largest = 0, 0
    for group in range(groups):
        size = start[group + 1] - start[group]
        full = blocks == 0 or group - bound[blocks - 1] == MOST_GROUPS
        if full or _SMALLER * size < largest:
            bound[blocks] = group
            blocks += 1
            largest = 0
        largest = max(largest, size)
    bound[blocks] = groups
    return bound[: blocks + 1].copy()


@compiled
def _count(matrix: tuple[Ends, Ids], block: Ends, seen: Ids, stays: Ends) -> None:
    """Set ``stays`` (blocks + 1,) to where the stays of each block will begin."""
    start, index = matrix
    count = 0
    for number in range(len(block) - 1):
        begin = block[number]
        for group in range(begin, block[number + 1]):
            for pair in range(start[group], start[group + 1]):
                person = index[pair]
                count += group == begin or seen[person] != group - 1
                seen[person] = group
        stays[number + 1] = count


@compiled
def _fill(
    matrix: tuple[Ends, Ids],
    bounds: tuple[Ends, Ends],
    people: tuple[Ids, Ids],
    stays: tuple[Members, Places, Places],
) -> None:
    """Write the stays of every block in the order in which they begin."""
    block, begins = bounds
    who, first, past = stays
    for number in range(len(block) - 1):
        some = slice(begins[number], begins[number + 1])
        groups = block[number], block[number + 1]
        _fill_block(matrix, groups, people, (who[some], first[some], past[some]))


@compiled
def _fill_block(
    matrix: tuple[Ends, Ids],
    groups: tuple[int, int],
    people: tuple[Ids, Ids],
    stays: tuple[Members, Places, Places],
) -> None:
    """Write the stays of one block; an open stay grows group by group.

    ``people``: the last group of each person, and its open stay in the block.
    """
    start, index = matrix
    begin, end = groups
    seen, opened = people
    who, first, past = stays
    count = 0
    for group in range(begin, end):
        for pair in range(start[group], start[group + 1]):
            person = index[pair]
            if group == begin or seen[person] != group - 1:
                opened[person] = count
                who[count] = person
                first[count] = group - begin
                count += 1
            past[opened[person]] = group - begin + 1
            seen[person] = group


@compiled
def _sort(start: Ends, long: Ends, stays: tuple[Members, Places, Places]) -> None:
    """Sort each block by short or long, then by person; set ``long``.

    As they began, stays of one group would follow each other, and each would wait
    until the one before has been added to the same place.
    """
    who, first, past = stays
    for number in range(len(long)):
        some = slice(start[number], start[number + 1])
        longer = (past[some] - first[some]) > 1
        order = np.argsort(who[some] + (longer.astype(np.int64) << 32))
        who[some] = who[some][order]
        first[some], past[some] = first[some][order], past[some][order]
        long[number] = start[number + 1] - longer.sum()
