"""Small groups taken apart: one weight for each two people who met in them.

A group of n people costs 3 n steps as a group, and n (n - 1) as pairs of people,
fewer if the same people meet in several small groups. It also costs something to
begin with a group, which pairs do not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph import pairs
from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.hypergraph.incidence import Rows
from epifalcon.hypergraph.pairs import Ends, Ids
from epifalcon.hypergraph.stays import Members
from epifalcon.types import Floats

_PARTS = 16


@dataclass(frozen=True, eq=False)
class Meetings:
    """Whom each person met, and the summed weight of the groups in common."""

    start: Ends
    """(people + 1,)"""
    person: Members
    """(entries,) the others, person by person."""
    weight: Floats
    """(entries,)"""
    own: Floats
    """(people,) the summed weight of a person's groups."""

    def __len__(self) -> int:
        return len(self.person)


def meetings_of(groups: Rows, weight: Floats, people: int) -> Meetings:
    """The meetings in ``groups``, whose rows hold people; ``weight`` (groups,)."""
    turned = _of_person(groups, people)
    start = np.zeros(people + 1, np.int64)
    bound = [people * part // _PARTS for part in range(_PARTS + 1)]
    matrix = groups.start, groups.index
    mine = turned.start, turned.index

    def count(part: int) -> None:
        _count(matrix, mine, (bound[part], bound[part + 1]), start[1:])

    each_part(count, _PARTS, len(groups.index))
    np.cumsum(start, out=start)
    person, total = np.empty(start[-1], np.uint32), np.empty(start[-1])
    own = np.zeros(people)

    def fill(part: int) -> None:
        some, filled = (bound[part], bound[part + 1]), (start, person, total, own)
        _fill((*matrix, weight), mine, some, filled)

    each_part(fill, _PARTS, len(groups.index))
    return Meetings(start, person, total, own)


def _of_person(rows: Rows, people: int) -> Rows:
    start = np.zeros(people + 1, np.int64)
    np.cumsum(pairs.count_ids(rows.index, people), out=start[1:])
    return Rows(start, pairs.transpose(rows.start, rows.index, start))


@compiled
def _count(
    matrix: tuple[Ends, Ids],
    mine: tuple[Ends, Ids],
    bound: tuple[int, int],
    count: Ends,
) -> None:
    """How many others each person from bound[0] to bound[1] shares a group with."""
    start, index = matrix
    own_start, own = mine
    seen = np.full(len(own_start) - 1, -1, np.int32)
    for person in range(bound[0], bound[1]):
        seen[person] = person
        found = 0
        for group in own[own_start[person] : own_start[person + 1]]:
            for other in index[start[group] : start[group + 1]]:
                found += seen[other] != person
                seen[other] = person
        count[person] = found


@compiled
def _fill(
    matrix: tuple[Ends, Ids, Floats],
    mine: tuple[Ends, Ids],
    bound: tuple[int, int],
    filled: tuple[Ends, Members, Floats, Floats],
) -> None:
    """The meetings of the people from bound[0] to bound[1], in order of meeting."""
    start, index, weight = matrix
    own_start, own = mine
    begin, met, total, alone = filled
    place = np.full(len(own_start) - 1, -1, np.int64)
    for person in range(bound[0], bound[1]):
        here = begin[person]
        for group in own[own_start[person] : own_start[person + 1]]:
            alone[person] += weight[group]
            members = index[start[group] : start[group + 1]]
            here = _meet(person, members, weight[group], place, (here, met, total))
        for entry in range(begin[person], here):
            place[met[entry]] = -1


@compiled
def _meet(
    person: int,
    members: Ids,
    weight: float,
    place: NDArray[np.int64],
    filled: tuple[int, Members, Floats],
) -> int:
    """Add ``weight`` for each other member; those not met before are listed."""
    here, met, total = filled
    for other in members:
        if other == person:
            continue
        if place[other] < 0:
            place[other] = here
            met[here] = other
            total[here] = 0.0
            here += 1
        total[place[other]] += weight
    return here
