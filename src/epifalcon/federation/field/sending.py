"""Clipping of messages in a private run, and their sums over people.

A person's message is a vector with one entry per cell (a region and a stretch of
slots): the sum of what its slots there contribute. Each slot is clipped at a cap, and
a vector longer than the bound is scaled down to it. The rules follow from the plan
alone, so that sites compute them themselves and no server can ask for more.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled, each_part
from epifalcon.belief_propagation.inference import Cohort
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.reading import Profile, unit_of
from epifalcon.types import Floats, RegionIds

_PART, _MOST_PARTS = 8192, 4
_COST = 10
"""Cost of a person and slot in units of ``each_part``."""
_BELOW_BOUND = 1 - 2.0**-40
"""Rounding must not make a vector longer than the bound."""


class Cut(NamedTuple):
    """How messages are clipped; public."""

    base: Floats
    """(slots,) subtracted from the message of a slot: what everybody expects."""
    scale: float
    """Factor on the difference; with 0 each slot contributes ``present``."""
    present: float
    length: int
    """Slots of a cell."""
    cap: float
    """Largest contribution of one slot."""
    bound: float
    """Largest L2 norm of a person's whole vector."""
    places: int
    """Regions per stretch, those of most time; 0 for all."""
    reach: float
    """How far the protected unit moves the vector."""


class Sent(NamedTuple):
    """(cells in time, 1 + regions) each; column 0, not observed, stays empty."""

    total: Floats
    senders: Floats
    """Number of people who send for the cell."""


def presence_cut(plan: FieldPlan) -> Cut:
    """Return the clipping of presence: how many people were where.

    In mode ``local`` regions leave in the clear; what counts is who sends for which
    cell.
    """
    clock, slots = plan.clock, plan.clock.slots
    bound, reach = plan.settings.bound, plan.presence_reach
    cut = Cut(np.zeros(slots), 0.0, 1 / slots, slots, 1.0, bound, 0, reach)
    if plan.settings.mode == "local":
        return cut._replace(length=plan.length, places=plan.settings.places)
    if plan.settings.unit != "person":
        return cut._replace(cap=1 / slots, bound=np.inf)
    cap = min(1 / slots, reach / clock.slots_per_day)
    return cut._replace(cap=cap, bound=reach)


def excess_cut(plan: FieldPlan, profile: Profile, number: int) -> Cut:
    """Return the clipping of the excess infectiousness in sweep ``number``."""
    scale = unit_of(plan, profile)
    most = scale * float(profile.excess.max())
    whole = plan.settings.unit == "person" or number > 1
    return Cut(
        profile.usual,
        scale,
        0.0,
        plan.length,
        plan.cap(most) if number == 1 else np.inf,
        plan.settings.bound if whole else np.inf,
        plan.settings.places if plan.settings.mode == "local" else 0,
        plan.reach(number, most),
    )


def send(cohort: Cohort, cut: Cut) -> Sent:
    """Sum the clipped messages of all people, before any noise."""
    state, people = cohort.state, cohort.traces.people
    shape = (cohort.traces.slots // cut.length, 1 + len(cohort.traces.regions))
    parts = min(max(people // _PART, 1), _MOST_PARTS)
    found = [Sent(np.zeros(shape), np.zeros(shape)) for _ in range(parts)]

    def work(part: int) -> None:
        first, last = people * part // parts, people * (part + 1) // parts
        _add_messages(first, last, state.regions, state.infectious, cut, found[part])

    each_part(work, parts, _COST * state.regions.size)
    for other in found[1:]:
        np.add(found[0].total, other.total, out=found[0].total)
        np.add(found[0].senders, other.senders, out=found[0].senders)
    return found[0]


@compiled
def _add_messages(
    first: int,
    last: int,
    regions: RegionIds,
    message: NDArray[np.float32],
    cut: Cut,
    sent: Sent,
) -> None:
    """Add the vectors of people ``first`` to ``last``."""
    slots, edges = regions.shape[0], sent.total.shape[1]
    value, time = np.zeros((2, edges))
    row, place = np.empty((2, slots), np.int64)
    entry_value = np.empty(slots)
    visited = np.empty(slots, np.int64)
    for person in range(first, last):
        entries, squared = 0, 0.0
        for begin in range(0, slots, cut.length):
            count = 0
            for slot in range(begin, begin + cut.length):
                edge = regions[slot, person] + 1
                if edge == 0:
                    continue
                if time[edge] == 0:
                    visited[count] = edge
                    count += 1
                    value[edge] = 0.0
                excess = cut.scale * (message[slot, person] - cut.base[slot])
                value[edge] += min(max(excess + cut.present, -cut.cap), cut.cap)
                time[edge] += 1
            kept = count if cut.places == 0 else min(cut.places, count)
            for at in range(count):
                # Selection sort by time; of equals the earlier stays ahead.
                if at < kept:
                    most = at
                    for other in range(at + 1, count):
                        if time[visited[other]] > time[visited[most]]:
                            most = other
                    edge = visited[most]
                    for other in range(most, at, -1):
                        visited[other] = visited[other - 1]
                    visited[at] = edge
                    row[entries], place[entries] = begin // cut.length, edge
                    entry_value[entries] = value[edge]
                    squared += value[edge] ** 2
                    entries += 1
            for at in range(count):
                time[visited[at]] = 0
        scale = 1.0
        if squared > 0:
            scale = min(1.0, _BELOW_BOUND * cut.bound / np.sqrt(squared))
        for entry in range(entries):
            sent.total[row[entry], place[entry]] += scale * entry_value[entry]
            sent.senders[row[entry], place[entry]] += 1
