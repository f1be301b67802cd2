"""One person's days: home, work, outings, excursions, minute by minute.

The life of a person is a row of stays with ends in whole minutes, whatever the
slot length; `record_day` then gives each slot the region in which most of it
was spent. New places follow exploration and preferential return (Song et al.,
"Modelling the scaling properties of human mobility", Nature Physics 2010).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from epifalcon.mobility.city.borrow import borrow
from epifalcon.mobility.city.destinations import Destinations, distance, draw, search
from epifalcon.mobility.city.draws import State, normal, start, uniform
from epifalcon.types import UNKNOWN, Floats, RegionIds

DAY = 1440
_REST = 30
_SHORTEST = 10
NOBODY = -1
# The purposes in World.goals.
WORK, VISIT, EXCURSION = 0, 1, 2
_NEW_TRIALS = 8
# What Life.size holds.
KNOWN, STAYS, CARRY_PLACE, CARRY_MINUTES, MOVES, CHOICES = 0, 1, 2, 3, 4, 5
# What a person is taken to have done before the first day: 5 moves, 2 of them chosen.
_MOVES_BEFORE, _CHOICES_BEFORE = 5, 2


class Habits(NamedTuple):
    """The numbers of `CitySettings` that people's days depend on."""

    commuter_share: float
    exploration: float
    exploration_decay: float
    outing_sigma: float
    chain_share: float
    stay_exponent: float
    stay_min: float
    stay_max: float
    excursion_share: float
    traveller_share: float
    overnight_share: float
    return_scale_km: float
    first_weekday: int


class World(NamedTuple):
    """What all people share.

    ``home`` (regions,) is the running sum of home weights; ``rate`` (2, 24)
    the chance per minute of leaving home by hour on a workday and a day off.
    """

    home: Floats
    goals: Destinations
    rate: Floats
    habits: Habits


class Person(NamedTuple):
    """Lasting traits; ``work`` is -1 for those who do not commute."""

    home: int
    work: int
    work_start: float
    work_minutes: float
    activity: float
    excursion: float


class Life(NamedTuple):
    """Memory that is reused from person to person.

    ``known`` and ``visits`` (places,) are the places and how often each was
    chosen; ``stay_end`` and ``stay_place`` (stays,) the day so far; ``size``
    holds the lengths in use and what lasts beyond midnight.
    """

    state: State
    known: RegionIds
    visits: RegionIds
    stay_end: NDArray[np.int64]
    stay_place: RegionIds
    size: NDArray[np.int64]


@njit(cache=True)
def new_life(days: int) -> Life:
    """Room for one person's memory and one day's stays."""
    places = 16 + 8 * days
    return Life(
        np.zeros(1, np.uint64),
        np.empty(places, np.int32),
        np.empty(places, np.int32),
        np.empty(DAY // _SHORTEST + 8, np.int64),
        np.empty(DAY // _SHORTEST + 8, np.int32),
        np.zeros(6, np.int64),
    )


@njit(cache=True)
def borrow_life(life: Life) -> Life:
    """The same record of borrowed arrays."""
    return Life(
        borrow(life.state),
        borrow(life.known),
        borrow(life.visits),
        borrow(life.stay_end),
        borrow(life.stay_place),
        borrow(life.size),
    )


@njit(cache=True)
def be_born(world: World, life: Life, seed: np.uint64, number: int) -> Person:
    """Draw a person's lasting traits and clear the memory for them."""
    start(life.state, seed, number)
    state, habits = life.state, world.habits
    last = world.home.size
    home = search(world.home, 0, last, uniform(state) * world.home[last - 1])
    activity = math.exp(
        habits.outing_sigma * normal(state) - 0.5 * habits.outing_sigma**2
    )
    hours = 8.6 + 1.0 * normal(state)
    if uniform(state) < 0.08:
        hours = 24.0 * uniform(state)
    minutes = 60.0 * (8.6 + 1.0 * normal(state))
    excursion = 0.0
    if uniform(state) < habits.traveller_share:
        excursion = habits.excursion_share
    work = NOBODY
    if uniform(state) < habits.commuter_share:
        work = draw(world.goals, WORK, home, state)
    life.size[KNOWN] = 0
    life.size[CARRY_PLACE] = home
    life.size[CARRY_MINUTES] = 0
    life.size[MOVES], life.size[CHOICES] = _MOVES_BEFORE, _CHOICES_BEFORE
    _remember(life, home)
    if work != NOBODY:
        _remember(life, work)
    return Person(home, work, 60.0 * hours, max(180.0, minutes), activity, excursion)


@njit(cache=True)
def live_day(world: World, life: Life, person: Person, day: int) -> None:
    """Fill ``life`` with the stays of one day."""
    life.size[STAYS] = 0
    clock = life.size[CARRY_MINUTES]
    if clock > 0:
        _stay(life, life.size[CARRY_PLACE], min(clock, DAY))
    life.size[CARRY_MINUTES] = max(0, clock - DAY)
    if clock >= DAY:
        return
    state, habits = life.state, world.habits
    off = 1 if (habits.first_weekday + day) % 7 >= 5 else 0
    if uniform(state) < person.excursion * (0.5 + 0.5 * off):
        _excursion(world, life, person, clock)
        return
    attends = uniform(state) < (0.06 if off else 0.93)
    if person.work == NOBODY or not attends:
        _free_time(world, life, person, clock, DAY, off)
        return
    begin = int(person.work_start + 25.0 * normal(state)) % DAY
    begin = max(begin, clock + _REST)
    _free_time(world, life, person, clock, begin, off)
    if begin >= DAY:
        return
    end = _work(world, life, person, begin)
    if end < DAY:
        _after_work(world, life, person, end, off)


@njit(cache=True)
def _work(world: World, life: Life, person: Person, begin: int) -> int:
    """Work from ``begin``, perhaps with a break elsewhere; returns its end."""
    state = life.state
    end = begin + int(max(120.0, person.work_minutes + 40.0 * normal(state)))
    if uniform(state) < 0.2:
        middle = (begin + end) // 2
        _until(life, person.work, middle)
        place = _choose(world, life, person, person.work)
        _until(life, place, middle + 30 + int(30.0 * uniform(state)))
    _until(life, person.work, end)
    return end


@njit(cache=True)
def _after_work(world: World, life: Life, person: Person, clock: int, off: int) -> None:
    """Perhaps stop on the way home, then be free."""
    if uniform(life.state) < min(0.9, 0.4 * person.activity):
        clock = _outing(world, life, person, person.work, clock, DAY)
    if clock < DAY:
        _free_time(world, life, person, clock, DAY, off)


@njit(cache=True)
def _excursion(world: World, life: Life, person: Person, clock: int) -> None:
    """A day far away, perhaps with the night that follows."""
    state = life.state
    leave = max(clock + _REST, int(480.0 + 180.0 * uniform(state)))
    _until(life, person.home, leave)
    if leave >= DAY:
        return
    place = draw(world.goals, EXCURSION, person.home, state)
    _remember(life, place)
    back = leave + int(240.0 + 360.0 * uniform(state))
    if uniform(state) < world.habits.overnight_share:
        back = DAY + int(600.0 + 720.0 * uniform(state))
    _until(life, place, back)
    _until(life, person.home, DAY)


@njit(cache=True)
def _free_time(
    world: World, life: Life, person: Person, clock: int, limit: int, off: int
) -> None:
    """At home with outings between ``clock`` and ``limit``."""
    limit = min(limit, DAY)
    while clock < limit:
        leave = _next_departure(world, life, person, clock, off)
        if leave >= limit:
            _until(life, person.home, limit)
            return
        _until(life, person.home, leave)
        clock = _outing(world, life, person, person.home, leave, limit)


@njit(cache=True)
def _next_departure(
    world: World, life: Life, person: Person, clock: int, off: int
) -> int:
    """The minute of the next outing: the inverse of the summed hourly rates."""
    patience = -math.log(1.0 - uniform(life.state)) / person.activity
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


@njit(cache=True)
def _outing(
    world: World, life: Life, person: Person, here: int, clock: int, limit: int
) -> int:
    """Stop after stop from ``here``; returns the minute of being home again."""
    state, habits = life.state, world.habits
    while True:
        here = _choose(world, life, person, here)
        clock += max(_SHORTEST, int(_stay_minutes(habits, state)))
        if limit < DAY and clock >= limit:
            _until(life, here, limit)
            return limit
        _until(life, here, clock)
        again = habits.chain_share * (1.0 if clock < 1230 else 0.2)
        if clock >= DAY or uniform(state) >= again:
            return clock


@njit(cache=True)
def _stay_minutes(habits: Habits, state: State) -> float:
    """A bounded power law by the inverse of its distribution."""
    power = 1.0 - habits.stay_exponent
    low, high = habits.stay_min**power, habits.stay_max**power
    return float((low + uniform(state) * (high - low)) ** (1.0 / power))


@njit(cache=True)
def _choose(world: World, life: Life, person: Person, here: int) -> int:
    """The next stop: a new place near ``here``, or one that is known.

    Exploration counts per move of any kind. Moves back home and to work are
    returns already, so a move with a choice is new the more often.
    """
    state, habits, known = life.state, world.habits, life.size[KNOWN]
    new = habits.exploration * known**-habits.exploration_decay
    new *= life.size[MOVES] / life.size[CHOICES]
    life.size[CHOICES] += 1
    if uniform(state) >= new or known == life.known.size:
        place = _return(world, life, person, here)
        if place != NOBODY:
            _remember(life, place)
            return place
    place = draw(world.goals, VISIT, here, state)
    for _ in range(_NEW_TRIALS):
        if _index(life, place) < 0:
            break
        place = draw(world.goals, VISIT, here, state)
    _remember(life, place)
    return place


@njit(cache=True)
def _index(life: Life, place: int) -> int:
    """Where ``place`` stands among the known places; -1 if it is new."""
    for index in range(life.size[KNOWN]):
        if life.known[index] == place:
            return index
    return -1


@njit(cache=True)
def _return(world: World, life: Life, person: Person, here: int) -> int:
    """A known place by its visits, nearer ones more; -1 if there is none."""
    total = 0.0
    target = uniform(life.state)
    for turn in range(2):
        running = 0.0
        for index in range(life.size[KNOWN]):
            place = life.known[index]
            if place in (here, person.home, person.work):
                continue
            far = distance(world.goals, here, place) / world.habits.return_scale_km
            running += life.visits[index] / ((1.0 + far) * (1.0 + far))
            if turn == 1 and running > target * total:
                return int(place)
        total = running
    return NOBODY


@njit(cache=True)
def _remember(life: Life, place: int) -> None:
    index, known = _index(life, place), life.size[KNOWN]
    if index >= 0:
        life.visits[index] += 1
    elif known < life.known.size:
        life.known[known] = place
        life.visits[known] = 1
        life.size[KNOWN] = known + 1


@njit(cache=True)
def _until(life: Life, place: int, minute: int) -> None:
    """Stay at ``place`` up to ``minute``; beyond midnight is carried over."""
    if minute > DAY:
        life.size[CARRY_PLACE] = place
        life.size[CARRY_MINUTES] = minute - DAY
    _stay(life, place, min(minute, DAY))


@njit(cache=True)
def _stay(life: Life, place: int, minute: int) -> None:
    stays = life.size[STAYS]
    if stays > 0:
        if minute <= life.stay_end[stays - 1]:
            return
        if life.stay_place[stays - 1] == place:
            life.stay_end[stays - 1] = minute
            return
        life.size[MOVES] += 1
    elif minute <= 0:
        return
    life.stay_place[stays] = place
    life.stay_end[stays] = minute
    life.size[STAYS] = stays + 1


@njit(cache=True)
def record_day(life: Life, slot_minutes: int, slots: RegionIds) -> None:
    """Write the region of most minutes into each of a day's ``slots``.

    Of regions with equal minutes the one that was entered first is taken.
    """
    stay = 0
    for slot in range(slots.size):
        begin, end = slot * slot_minutes, (slot + 1) * slot_minutes
        while life.stay_end[stay] <= begin:
            stay += 1
        slots[slot] = _dominant(life, stay, begin, end)


@njit(cache=True)
def _dominant(life: Life, first: int, begin: int, end: int) -> int:
    if life.stay_end[first] >= end:
        return int(life.stay_place[first])
    best, most = UNKNOWN, 0
    last = first
    while life.stay_end[last] < end:
        last += 1
    for index in range(first, last + 1):
        minutes = 0
        for other in range(first, last + 1):
            if life.stay_place[other] == life.stay_place[index]:
                left = begin if other == first else life.stay_end[other - 1]
                minutes += min(life.stay_end[other], end) - left
        if minutes > most:
            best, most = int(life.stay_place[index]), minutes
    return best
