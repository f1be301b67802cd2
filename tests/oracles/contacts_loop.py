"""Who was with whom, by plain loops over the traces."""

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from epifalcon.mobility.traces import Traces


def contacts_by_loop(traces: Traces, day: int | None = None) -> NDArray[np.float64]:
    """C: slots that each two people spent in one region, (people, people)."""
    slots = range(traces.slots)
    if day is not None:
        slots = range(traces.slots)[traces.clock.slots_of_day(day)]
    found = np.zeros((traces.people, traces.people))
    for slot in slots:
        here = traces.by_slot[slot].tolist()
        for one, region in enumerate(here):
            for other in others_with(here, one):
                assert here[other] == region
                found[one, other] += 1
    return found


def closeness_by_loop(traces: Traces) -> NDArray[np.float64]:
    """The sum over shared slots of 1 / others present: (people, people)."""
    found = np.zeros((traces.people, traces.people))
    for here in traces.by_slot.tolist():
        for one in range(len(here)):
            company = others_with(here, one)
            for other in company:
                found[one, other] += 1 / len(company)
    return found


def others_with(here: Sequence[int], person: int) -> list[int]:
    """Who else is in the region of ``person``; nobody if that is unknown."""
    if here[person] == -1:
        return []
    return [
        other
        for other, region in enumerate(here)
        if other != person and region == here[person]
    ]


def daily_exposure_by_loop(
    traces: Traces, status: Sequence[int]
) -> NDArray[np.float64]:
    """What ``daily_exposure`` promises: (people, days, 4)."""
    people, clock = traces.people, traces.clock
    found = np.zeros((people, clock.days, 4))
    for person in range(people):
        tested = sum(
            result >= 0 for other, result in enumerate(status) if other != person
        )
        scale = (people - 1) / max(tested, 1)
        for day in range(clock.days):
            slots = traces.by_slot[clock.slots_of_day(day)].tolist()
            rows = [
                _company(here, person, status) for here in slots if here[person] != -1
            ]
            if rows:
                mean = np.mean(rows, axis=0) * [scale, scale, 1]
                found[person, day] = [*mean, len(rows) / clock.slots_per_day]
    return found


def _company(
    here: Sequence[int], person: int, status: Sequence[int]
) -> tuple[float, float, float]:
    company = [status[other] for other in others_with(here, person)]
    count = max(len(company), 1)
    crowd = log(1 + len(company))
    return company.count(1) / count, company.count(0) / count, crowd


def encounters_by_loop(
    traces: Traces, status: Sequence[int], first_slot: int
) -> tuple[list[int], list[int], list[float]]:
    """Slots with at least one case, all cases met, and their mean share of tested."""
    slots, total, share = [], [], []
    for person in range(traces.people):
        met = [
            [status[other] for other in others_with(here, person)]
            for here in traces.by_slot[first_slot:].tolist()
            if here[person] != -1
        ]
        slots.append(sum(1 in one for one in met))
        total.append(sum(one.count(1) for one in met))
        shares = [one.count(1) / max(len(one) - one.count(-1), 1) for one in met]
        share.append(sum(shares) / max(len(met), 1))
    return slots, total, share
