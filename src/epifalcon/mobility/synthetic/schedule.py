"""Simulate a person's days: home, work, outings, excursions, minute by minute.

A day is a list of stays with ends in whole minutes, independent of the slot length;
each slot then gets the region in which most of it was spent. New places follow
exploration and preferential return (Song et al., "Modelling the scaling properties
of human mobility", Nature Physics 2010).
"""

import math
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import inner, njit
from epifalcon._random import State, normal, start, uniform
from epifalcon.mobility.synthetic.gravity import Destinations, distance, draw, search
from epifalcon.types import UNKNOWN, Floats, RegionIds

# Constants in calls are NumPy's: numba compiles a function again for each Python int.
DAY = cast(int, np.int64(1440))
_REST = 30
_SHORTEST = 10
# The purposes in World.destinations.
_WORK, _VISIT, _EXCURSION = cast(list[int], np.arange(3))
_NEW_TRIALS = 8
# Entries of Memory.size.
_KNOWN, _STAYS, _CARRY_PLACE, _CARRY_MINUTES, _MOVES, _CHOICES = 0, 1, 2, 3, 4, 5
# Assumed history before the first day: 5 moves, 2 of them with a choice.
_MOVES_BEFORE, _CHOICES_BEFORE = 5, 2
# Separates the stream of gaps from that of the person's days.
_GAP_KEY = np.uint64(0xC0FFEE5EED)


class Behaviour(NamedTuple):
    """Values of ``CitySettings`` with the same names, for compiled code."""

    commuter_share: float
    exploration: float
    exploration_decay: float
    outing_sigma: float
    chain_share: float
    stay_exponent: float
    stay_min_hours: float
    stay_max_hours: float
    excursion_share: float
    traveller_share: float
    overnight_share: float
    visit_scale_km: float
    first_weekday: float


class World(NamedTuple):
    """Inputs of the simulation that are equal for all people.

    ``home`` (regions,) is the running sum of home weights; ``rate`` (2, 24) the
    probability per minute of leaving home, on a workday and a day off, by hour.
    """

    home: Floats
    destinations: Destinations
    rate: Floats
    behaviour: Behaviour


class Coverage(NamedTuple):
    """Observation model: which slots are observed, with gaps of several slots.

    A person's log odds of being observed are normal(``centre``, ``sigma``);
    ``renewal`` is the probability per slot that being observed is drawn again.
    """

    everything: bool
    centre: float
    sigma: float
    renewal: float


class Person(NamedTuple):
    """Constant traits of a person; ``work`` is -1 for people who do not commute."""

    home: int
    work: int
    work_start: float
    work_minutes: float
    activity: float
    excursion: float


class Memory(NamedTuple):
    """State of the simulation of one person, in arrays reused for all people.

    ``known`` and ``visits`` (places,) are the known places and how often each was
    chosen; ``stay_end`` and ``stay_place`` (stays,) the stays of the day so far;
    ``size`` holds the lengths in use and the stay that continues after midnight.
    """

    state: State
    known: RegionIds
    visits: RegionIds
    stay_end: NDArray[np.int64]
    stay_place: RegionIds
    size: NDArray[np.int64]

    @classmethod
    def of(cls, days: int) -> "Memory":
        """Allocate arrays large enough for a person's ``days``."""
        places, stays = 16 + 8 * days, DAY // _SHORTEST + 8
        return cls(
            np.zeros(1, np.uint64),
            np.empty(places, np.int32),
            np.empty(places, np.int32),
            np.empty(stays, np.int64),
            np.empty(stays, np.int32),
            np.zeros(6, np.int64),
        )


@njit(nogil=True)
def simulate_people(
    world: World,
    coverage: Coverage,
    memory: Memory,
    seed: np.uint64,
    begin: int,
    slot_minutes: int,
    rows: RegionIds,
) -> None:
    """Simulate the people from ``begin`` on and fill ``rows`` (people, slots)."""
    per_day = DAY // slot_minutes
    days = rows.shape[1] // per_day
    for number in range(begin, begin + len(rows)):
        row = rows[number - begin]
        person = _sample_person(world, memory, seed, number)
        for day in range(days):
            _simulate_day(world, memory, person, day)
            _record_day(memory, slot_minutes, row[day * per_day : (day + 1) * per_day])
        if not coverage.everything:
            _cut_gaps(coverage, memory.state, seed, number, row)


@inner
def _sample_person(
    world: World, memory: Memory, seed: np.uint64, number: int
) -> Person:
    """Draw a person's constant traits and reset the memory."""
    start(memory.state, seed, number)
    state, behaviour = memory.state, world.behaviour
    last = world.home.size
    home = search(world.home, 0, last, uniform(state) * world.home[last - 1])
    activity = math.exp(
        behaviour.outing_sigma * normal(state) - 0.5 * behaviour.outing_sigma**2
    )
    hours = 8.6 + 1.0 * normal(state)
    if uniform(state) < 0.08:
        hours = 24.0 * uniform(state)
    minutes = 60.0 * (8.6 + 1.0 * normal(state))
    excursion = 0.0
    if uniform(state) < behaviour.traveller_share:
        excursion = behaviour.excursion_share
    work = UNKNOWN
    if uniform(state) < behaviour.commuter_share:
        work = draw(world.destinations, _WORK, home, state)
    memory.size[_KNOWN] = 0
    memory.size[_CARRY_PLACE] = home
    memory.size[_CARRY_MINUTES] = 0
    memory.size[_MOVES], memory.size[_CHOICES] = _MOVES_BEFORE, _CHOICES_BEFORE
    _remember(memory, home)
    if work != UNKNOWN:
        _remember(memory, work)
    return Person(home, work, 60.0 * hours, max(180.0, minutes), activity, excursion)


@inner
def _simulate_day(world: World, memory: Memory, person: Person, day: int) -> None:
    """Simulate one day of a person and store its stays in ``memory``."""
    memory.size[_STAYS] = 0
    clock = memory.size[_CARRY_MINUTES]
    if clock > 0:
        _stay(memory, memory.size[_CARRY_PLACE], min(clock, DAY))
    memory.size[_CARRY_MINUTES] = max(0, clock - DAY)
    if clock >= DAY:
        return
    state, behaviour = memory.state, world.behaviour
    off = 1 if (int(behaviour.first_weekday) + day) % 7 >= 5 else 0
    if uniform(state) < person.excursion * (0.5 + 0.5 * off):
        _excursion(world, memory, person, clock)
        return
    attends = uniform(state) < (0.06 if off else 0.93)
    if person.work == UNKNOWN or not attends:
        _free_time(world, memory, person, clock, DAY, off)
        return
    begin = int(person.work_start + 25.0 * normal(state)) % DAY
    begin = max(begin, clock + _REST)
    _free_time(world, memory, person, clock, begin, off)
    if begin >= DAY:
        return
    clock = _work(world, memory, person, begin)
    if clock < DAY and uniform(state) < min(0.9, 0.4 * person.activity):
        clock = _outing(world, memory, person, person.work, clock, DAY)
    if clock < DAY:
        _free_time(world, memory, person, clock, DAY, off)


@inner
def _work(world: World, memory: Memory, person: Person, begin: int) -> int:
    """Simulate work from ``begin``, perhaps with a break elsewhere; return its end."""
    state = memory.state
    end = begin + int(max(120.0, person.work_minutes + 40.0 * normal(state)))
    if uniform(state) < 0.2:
        middle = (begin + end) // 2
        _until(memory, person.work, middle)
        place = _choose(world, memory, person, person.work)
        _until(memory, place, middle + 30 + int(30.0 * uniform(state)))
    _until(memory, person.work, end)
    return end


@inner
def _excursion(world: World, memory: Memory, person: Person, clock: int) -> None:
    """Simulate a day trip, perhaps with the following night."""
    state = memory.state
    leave = max(clock + _REST, int(480.0 + 180.0 * uniform(state)))
    _until(memory, person.home, leave)
    if leave >= DAY:
        return
    place = draw(world.destinations, _EXCURSION, person.home, state)
    _remember(memory, place)
    back = leave + int(240.0 + 360.0 * uniform(state))
    if uniform(state) < world.behaviour.overnight_share:
        back = DAY + int(600.0 + 720.0 * uniform(state))
    _until(memory, place, back)
    _until(memory, person.home, DAY)


@inner
def _free_time(
    world: World, memory: Memory, person: Person, clock: int, limit: int, off: int
) -> None:
    """Simulate time at home with outings, from minute ``clock`` to ``limit``."""
    limit = min(limit, DAY)
    while clock < limit:
        leave = _next_departure(world, memory, person, clock, off)
        if leave >= limit:
            _until(memory, person.home, limit)
            return
        _until(memory, person.home, leave)
        clock = _outing(world, memory, person, person.home, leave, limit)


@inner
def _next_departure(
    world: World, memory: Memory, person: Person, clock: int, off: int
) -> int:
    """Draw the minute of the next outing by inverting the summed hourly rates."""
    patience = -math.log(1.0 - uniform(memory.state)) / person.activity
    clock += _SHORTEST
    while clock < DAY:
        hour_end = (clock // 60 + 1) * 60
        rate = world.rate[off, clock // 60]
        spent = rate * (hour_end - clock)
        if spent > patience:
            return clock + int(patience / rate)
        patience -= spent
        clock = hour_end
    return DAY


@inner
def _outing(
    world: World, memory: Memory, person: Person, here: int, clock: int, limit: int
) -> int:
    """Simulate a chain of stops that starts at ``here``; return the minute it ends."""
    state, behaviour = memory.state, world.behaviour
    while True:
        here = _choose(world, memory, person, here)
        clock += max(_SHORTEST, int(_stay_minutes(behaviour, state)))
        if limit < DAY and clock >= limit:
            _until(memory, here, limit)
            return limit
        _until(memory, here, clock)
        again = behaviour.chain_share * (1.0 if clock < 1230 else 0.2)
        if clock >= DAY or uniform(state) >= again:
            return clock


@inner
def _stay_minutes(behaviour: Behaviour, state: State) -> float:
    """Draw the duration of a stop in minutes from a bounded power law."""
    power = 1.0 - behaviour.stay_exponent
    low = (60.0 * behaviour.stay_min_hours) ** power
    high = (60.0 * behaviour.stay_max_hours) ** power
    return float((low + uniform(state) * (high - low)) ** (1.0 / power))


@inner
def _choose(world: World, memory: Memory, person: Person, here: int) -> int:
    """Choose the next stop: a new place near ``here``, or a known one.

    The exploration probability holds per move of any kind. Moves home and to work are
    never new, so the probability for other moves is larger.
    """
    state, behaviour, known = memory.state, world.behaviour, memory.size[_KNOWN]
    new = behaviour.exploration * known**-behaviour.exploration_decay
    new *= memory.size[_MOVES] / memory.size[_CHOICES]
    memory.size[_CHOICES] += 1
    if uniform(state) >= new or known == memory.known.size:
        place = _return(world, memory, person, here)
        if place != UNKNOWN:
            _remember(memory, place)
            return place
    place = draw(world.destinations, _VISIT, here, state)
    for _ in range(_NEW_TRIALS):
        if _index(memory, place) < 0:
            break
        place = draw(world.destinations, _VISIT, here, state)
    _remember(memory, place)
    return place


@inner
def _index(memory: Memory, place: int) -> int:
    """Return the index of ``place`` among the known places; -1 if it is new."""
    for index in range(memory.size[_KNOWN]):
        if memory.known[index] == place:
            return index
    return -1


@inner
def _return(world: World, memory: Memory, person: Person, here: int) -> int:
    """Draw a known place, weighted by visits and distance; -1 if there is none."""
    total = 0.0
    target = uniform(memory.state)
    for turn in range(2):
        running = 0.0
        for index in range(memory.size[_KNOWN]):
            place = memory.known[index]
            if place in (here, person.home, person.work):
                continue
            far = (
                distance(world.destinations, here, place)
                / world.behaviour.visit_scale_km
            )
            running += memory.visits[index] / ((1.0 + far) * (1.0 + far))
            if turn == 1 and running > target * total:
                return int(place)
        total = running
    return UNKNOWN


@inner
def _remember(memory: Memory, place: int) -> None:
    index, known = _index(memory, place), memory.size[_KNOWN]
    if index >= 0:
        memory.visits[index] += 1
    elif known < memory.known.size:
        memory.known[known] = place
        memory.visits[known] = 1
        memory.size[_KNOWN] = known + 1


@inner
def _until(memory: Memory, place: int, minute: int) -> None:
    """Add a stay at ``place`` until ``minute``; carry over the part after midnight."""
    if minute > DAY:
        memory.size[_CARRY_PLACE] = place
        memory.size[_CARRY_MINUTES] = minute - DAY
    _stay(memory, place, min(minute, DAY))


@inner
def _stay(memory: Memory, place: int, minute: int) -> None:
    stays = memory.size[_STAYS]
    if stays > 0:
        if minute <= memory.stay_end[stays - 1]:
            return
        if memory.stay_place[stays - 1] == place:
            memory.stay_end[stays - 1] = minute
            return
        memory.size[_MOVES] += 1
    elif minute <= 0:
        return
    memory.stay_place[stays] = place
    memory.stay_end[stays] = minute
    memory.size[_STAYS] = stays + 1


@inner
def _record_day(memory: Memory, slot_minutes: int, slots: RegionIds) -> None:
    """Fill ``slots`` with the region of most minutes in each slot; ties: the first."""
    stay = 0
    for slot in range(slots.size):
        begin, end = slot * slot_minutes, (slot + 1) * slot_minutes
        while memory.stay_end[stay] <= begin:
            stay += 1
        slots[slot] = _dominant(memory, stay, begin, end)


@inner
def _dominant(memory: Memory, first: int, begin: int, end: int) -> int:
    if memory.stay_end[first] >= end:
        return int(memory.stay_place[first])
    best, most = UNKNOWN, 0
    last = first
    while memory.stay_end[last] < end:
        last += 1
    for index in range(first, last + 1):
        minutes = 0
        for other in range(first, last + 1):
            if memory.stay_place[other] == memory.stay_place[index]:
                left = begin if other == first else memory.stay_end[other - 1]
                minutes += min(memory.stay_end[other], end) - left
        if minutes > most:
            best, most = int(memory.stay_place[index]), minutes
    return best


@inner
def _cut_gaps(
    coverage: Coverage, state: State, seed: np.uint64, number: int, slots: RegionIds
) -> None:
    """Draw the unobserved slots of a person and set them to -1 in ``slots``."""
    start(state, seed ^ _GAP_KEY, number)
    odds = coverage.centre + coverage.sigma * normal(state)
    share = 1.0 / (1.0 + math.exp(-odds))
    seen = uniform(state) < share
    for slot in range(slots.size):
        if uniform(state) < coverage.renewal:
            seen = uniform(state) < share
        if not seen:
            slots[slot] = UNKNOWN
