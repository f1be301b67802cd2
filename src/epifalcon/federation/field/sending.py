"""What leaves a cohort in a private run: sums of bounded messages, and who sends.

A person's message is a vector with one entry for each cell, a region and a stretch
of slots: what its slots there bring, added up. Each slot is cut off at a cap, and a
vector longer than the bound is scaled down to it. Entries are whole multiples of a
power of two, cut towards 0, so that sums are exact and no vector gets longer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.hypergraph.compiled import compiled, each_part
from epifalcon.models.field.people import Cohort
from epifalcon.types import Floats, RegionIds

_STEPS = 2.0**30
_PART, _MOST_PARTS = 8192, 4
_COST = 10
"""What a person's slot costs, as ``each_part`` counts."""


class Cut(NamedTuple):
    """How messages are bounded; public."""

    base: Floats
    """(slots,) what is taken off the message of a slot: what everybody expects."""
    scale: float
    """What is left is multiplied by this; with 0 each slot brings ``present``."""
    present: float
    length: int
    """Slots of a cell."""
    cap: float
    """One slot brings at most this."""
    bound: float
    """L2 norm of a person's whole vector, at most."""
    places: int
    """Of each stretch only the places of most time; 0 for all."""


class Sent(NamedTuple):
    """(cells in time, 1 + regions) each; place 0, not observed, stays empty."""

    total: Floats
    senders: Floats
    """How many people send for the cell."""


def send(cohorts: Sequence[Cohort], cut: Cut) -> Sent:
    """The sums over all people, before any noise.

    However people are dealt into cohorts, the sums have the same bits.
    """
    found: list[Sent] = []
    for cohort in cohorts:
        found += _parts(cohort, cut)
    first = found[0]
    for other in found[1:]:
        np.add(first.total, other.total, out=first.total)
        np.add(first.senders, other.senders, out=first.senders)
    return first


def _parts(cohort: Cohort, cut: Cut) -> list[Sent]:
    home, people = cohort.home, cohort.traces.people
    shape = (cohort.traces.slots // cut.length, 1 + len(cohort.traces.regions))
    parts = min(max(people // _PART, 1), _MOST_PARTS)
    found = [Sent(np.zeros(shape), np.zeros(shape)) for _ in range(parts)]

    def work(part: int) -> None:
        whom = people * part // parts, people * (part + 1) // parts
        add_messages(whom, home.here, home.infectious, cut, found[part])

    each_part(work, parts, _COST * home.here.size)
    return found


class _Vector(NamedTuple):
    """A person's entries as they are found; (slots,) each."""

    row: NDArray[np.int64]
    place: NDArray[np.int64]
    time: NDArray[np.int64]
    value: Floats
    entry_of: NDArray[np.int64]
    """(1 + regions,) the entry of a place in the stretch at hand, or -1."""


@compiled
def add_messages(
    whom: tuple[int, int],
    here: RegionIds,
    message: NDArray[np.float32],
    cut: Cut,
    sent: Sent,
) -> None:
    """Add the vectors of the people from ``whom[0]`` to ``whom[1]``."""
    slots, edges = here.shape[0], sent.total.shape[1]
    row, place = np.empty(slots, np.int64), np.empty(slots, np.int64)
    time, value = np.empty(slots, np.int64), np.empty(slots)
    vector = _Vector(row, place, time, value, np.full(edges, -1, np.int64))
    for person in range(whom[0], whom[1]):
        used, squared = 0, 0.0
        for begin in range(0, slots, cut.length):
            used = _gather((person, begin, used), here, message, cut, vector)
        for entry in range(used):
            squared += value[entry] ** 2
        scale = _STEPS * min(1.0, cut.bound / max(np.sqrt(squared), 1e-300))
        for entry in range(used):
            whole = np.trunc(scale * value[entry])
            sent.total[row[entry], place[entry]] += whole / _STEPS
            sent.senders[row[entry], place[entry]] += 1


@compiled
def _gather(
    at: tuple[int, int, int],
    here: RegionIds,
    message: NDArray[np.float32],
    cut: Cut,
    vector: _Vector,
) -> int:
    """Write the entries of one stretch behind those there are; where they end."""
    person, begin, first = at
    used = first
    for slot in range(begin, begin + cut.length):
        edge = here[slot, person] + 1
        if edge == 0:
            continue
        entry = vector.entry_of[edge]
        if entry < 0:
            entry, used = used, used + 1
            vector.entry_of[edge] = entry
            vector.row[entry], vector.place[entry] = begin // cut.length, edge
            vector.time[entry], vector.value[entry] = 0, 0.0
        brought = cut.scale * (message[slot, person] - cut.base[slot]) + cut.present
        vector.value[entry] += min(max(brought, -cut.cap), cut.cap)
        vector.time[entry] += 1
    for entry in range(first, used):
        vector.entry_of[vector.place[entry]] = -1
    if cut.places == 0:
        return used
    return _keep(first, used, cut.places, vector)


@compiled
def _keep(first: int, used: int, places: int, vector: _Vector) -> int:
    """Bring the entries of most time to the front; where they end."""
    time, place, value = vector.time, vector.place, vector.value
    end = min(first + places, used)
    for at in range(first, end):
        most = at
        for entry in range(at + 1, used):
            if time[entry] > time[most]:
                most = entry
        held = time[most], place[most], value[most]
        # The others move up, so that of equals the earlier stays ahead.
        for entry in range(most, at, -1):
            time[entry], place[entry] = time[entry - 1], place[entry - 1]
            value[entry] = value[entry - 1]
        time[at], place[at], value[at] = held
    return end
