"""The mobility model and the flows as plain loops over dense tables."""

import math

import numpy as np

from epifalcon.mobility.mobility_model import MobilityModel
from epifalcon.mobility.traces import Traces


def person_visits(traces: Traces, person: int) -> np.ndarray:
    """pi_u(r | t): (slots per day, regions)."""
    day = traces.clock.slots_per_day
    made = np.zeros((day, len(traces.regions)))
    for slot in range(traces.slots):
        region = traces.by_slot[slot, person]
        if region >= 0:
            made[slot % day, region] += 1
    return _divided(made)


def person_moves(traces: Traces, person: int) -> np.ndarray:
    """p_u(r' | r): (regions, regions)."""
    count = len(traces.regions)
    made = np.zeros((count, count))
    for slot in range(traces.slots - 1):
        here, there = traces.by_slot[slot : slot + 2, person]
        if here >= 0 and there >= 0:
            made[here, there] += 1
    return _divided(made)


def aggregate(traces: Traces, people: list[int], epsilon: float) -> np.ndarray:
    """The paper's aggregate: (slots per day, regions, regions)."""
    count, day = len(traces.regions), traces.clock.slots_per_day
    made = np.zeros((day, count, count))
    for person in people:
        visits, moves = person_visits(traces, person), person_moves(traces, person)
        for slot in range(day):
            made[slot] += visits[slot][:, None] * moves / len(people)
    for here in range(count):
        for there in range(count):
            made[:, here, there] += epsilon * floor(traces, here, there)
    return made


def floor(traces: Traces, here: int, there: int) -> float:
    """max(1, d)^-2 with plane distances, d = 1 where a place is not known."""
    one, other = traces.regions.centre_km[here], traces.regions.centre_km[there]
    apart = math.dist(one, other)
    return 1.0 if math.isnan(apart) else max(1.0, apart) ** -2


def transition(
    model: MobilityModel,
    slot: int,
    here: np.ndarray,
    there: np.ndarray,
    normalised: bool = False,
) -> np.ndarray:
    """p(here, slot -> there, slot + 1) of a fitted model; shapes broadcast.

    ``normalised`` divides each row by its total, and leaves empty rows 0.
    """
    here, there = np.broadcast_arrays(here, there)
    row = slot % model.slots_per_day * len(model.regions) + here
    found = model.joint[row.flatten(), there.flatten()].reshape(here.shape)
    apart = np.fmax(1.0, model.regions.distance_km(here, there))
    made = np.asarray(found + model.epsilon / (apart * apart))
    if not normalised:
        return made
    total = model.transitions.total[row]
    return np.divide(made, total, out=np.zeros(made.shape), where=total > 0)


def flows(traces: Traces) -> np.ndarray:
    """Moves and stays, by day of arrival: (days, regions, regions)."""
    count = len(traces.regions)
    made = np.zeros((traces.clock.days, count, count), dtype=np.int64)
    for person in range(traces.people):
        for slot in range(1, traces.slots):
            here, there = traces.by_slot[slot - 1 : slot + 1, person]
            if here >= 0 and there >= 0:
                made[slot // traces.clock.slots_per_day, here, there] += 1
    return made


def visitors(traces: Traces) -> np.ndarray:
    """Different people in each region on each day: (days, regions)."""
    made = np.zeros((traces.clock.days, len(traces.regions)), dtype=np.int64)
    for person in range(traces.people):
        for day in range(traces.clock.days):
            seen = set(traces.by_slot[traces.clock.slots_of_day(day), person].tolist())
            for region in seen - {-1}:
                made[day, region] += 1
    return made


def _divided(table: np.ndarray) -> np.ndarray:
    made = np.zeros_like(table)
    for index, row in enumerate(table):
        if row.sum() > 0:
            made[index] = row / row.sum()
    return made
