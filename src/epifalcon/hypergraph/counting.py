"""What can be said of every edge, or of every person, without sorting the pairs anew.

Only the pairs by edge are used: the same pairs by person, or as a sorted list of
codes, would take as much memory again, or several times as much.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.hypergraph.pairs import Ends, Ids
from epifalcon.types import Floats


def sum_of_edges(value: Floats, inc: Incidence) -> Floats:
    """H value: the sum of a number of each edge over a person's edges, (people,)."""
    total = np.zeros(inc.people)
    _add_up(inc.by_edge.start, inc.by_edge.index, value, total)
    return total


def distinct_members(
    inc: Incidence, others: Sequence[Incidence] = ()
) -> NDArray[np.int64]:
    """At each edge of ``inc``, how many people are there in any record: (edges,).

    ``others`` are records of the same people, regions and windows. A person is
    counted once, in however many records it is there.
    """
    if not others:
        return inc.size.astype(np.int64)
    records = (inc, *others)
    bounds = np.stack([_bounds_at(inc.edge_key, record) for record in records])
    count = np.empty(inc.edges, np.int64)
    index = tuple(record.by_edge.index for record in records)
    _count_distinct(index, bounds, np.full(inc.people, -1, np.int32), count)
    return count


def _bounds_at(keys: NDArray[np.int64], record: Incidence) -> NDArray[np.int64]:
    """Where the members of each key begin and end in ``record``: (2, keys)."""
    place = np.searchsorted(record.edge_key, keys)
    there = place < record.edges
    there[there] = record.edge_key[place[there]] == keys[there]
    place[~there] = 0
    start = record.by_edge.start
    return np.stack([start[place], np.where(there, start[place + there], start[place])])


@compiled
def _add_up(start: Ends, index: Ids, value: Floats, total: Floats) -> None:
    for edge in range(len(start) - 1):
        for pair in range(start[edge], start[edge + 1]):
            total[index[pair]] += value[edge]


@compiled
def _count_distinct(
    index: tuple[Ids, ...],
    bounds: NDArray[np.int64],
    seen: Ids,
    count: NDArray[np.int64],
) -> None:
    """``bounds`` (records, 2, edges); ``seen`` holds each person's last edge."""
    for edge in range(len(count)):
        found = 0
        for record in range(len(index)):
            members = index[record]
            for pair in range(bounds[record, 0, edge], bounds[record, 1, edge]):
                found += seen[members[pair]] != edge
                seen[members[pair]] = edge
        count[edge] = found
