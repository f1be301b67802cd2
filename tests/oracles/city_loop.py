"""The synthetic city, people one by one in plain Python.

The same life as `epifalcon.mobility.synthetic.schedule`, written to be read: lists,
objects. It draws from the same streams of the same numbers, so a city made by it
must be the same region by region. Streams and destinations have tests of their own.
"""

import bisect
import math
from dataclasses import dataclass, field

import numpy as np

from epifalcon._random import normal, start, uniform
from epifalcon.mobility.synthetic.city import lay_out, make_world
from epifalcon.mobility.synthetic.gravity import distance, draw

DAY = 1440
PURPOSES = {"work": 0, "visit": 1, "excursion": 2}


class Stream:
    """The stream of one person, which `test_random` compares with a plain generator."""

    def __init__(self, seed, person):
        self.state = np.zeros(1, np.uint64)
        start(self.state, np.uint64(seed), person)

    def uniform(self):
        return uniform(self.state)

    def normal(self):
        return normal(self.state)


def first_above(running, target):
    return min(bisect.bisect_right(running, target), len(running) - 1)


@dataclass
class Person:
    world: object
    stream: Stream
    known: dict = field(default_factory=dict)
    stays: list = field(default_factory=list)
    carried: tuple = (None, 0)
    moves: int = 5
    choices: int = 2

    def __post_init__(self):
        habits, draw = self.world.behaviour, self.stream
        homes = self.world.home.tolist()
        self.home = first_above(homes, draw.uniform() * homes[-1])
        sigma = habits.outing_sigma
        self.activity = math.exp(sigma * draw.normal() - 0.5 * sigma**2)
        hours = 8.6 + draw.normal()
        if draw.uniform() < 0.08:
            hours = 24.0 * draw.uniform()
        self.work_start = 60.0 * hours
        self.work_minutes = max(180.0, 60.0 * (8.6 + draw.normal()))
        travels = draw.uniform() < habits.traveller_share
        self.excursion = habits.excursion_share if travels else 0.0
        commutes = draw.uniform() < habits.commuter_share
        self.work = self.go("work", self.home) if commutes else None
        self.remember(self.home)
        if commutes:
            self.remember(self.work)

    def go(self, purpose, here):
        """Draw a destination."""
        to = self.world.destinations
        return draw(to, PURPOSES[purpose], here, self.stream.state)

    def remember(self, place):
        self.known[place] = self.known.get(place, 0) + 1

    def until(self, place, minute):
        if minute > DAY:
            self.carried = (place, minute - DAY)
        minute = min(minute, DAY)
        last = self.stays[-1] if self.stays else (None, 0)
        if minute <= last[1]:
            return
        if last[0] == place:
            self.stays[-1] = (place, minute)
            return
        self.moves += 1 if self.stays else 0
        self.stays.append((place, minute))

    def live_day(self, day):
        self.stays = []
        place, clock = self.carried
        self.carried = (place, max(0, clock - DAY))
        if clock > 0:
            self.stays.append((place, min(clock, DAY)))
        if clock >= DAY:
            return
        draw = self.stream
        off = (int(self.world.behaviour.first_weekday) + day) % 7 >= 5
        if draw.uniform() < self.excursion * (1.0 if off else 0.5):
            self.go_far(clock)
            return
        attends = draw.uniform() < (0.06 if off else 0.93)
        if self.work is None or not attends:
            self.be_free(clock, DAY, off)
            return
        begin = int(self.work_start + 25.0 * draw.normal()) % DAY
        begin = max(begin, clock + 30)
        self.be_free(clock, begin, off)
        if begin < DAY:
            self.go_to_work(begin, off)

    def go_to_work(self, begin, off):
        draw = self.stream
        end = begin + int(max(120.0, self.work_minutes + 40.0 * draw.normal()))
        if draw.uniform() < 0.2:
            middle = (begin + end) // 2
            self.until(self.work, middle)
            place = self.choose(self.work)
            self.until(place, middle + 30 + int(30.0 * draw.uniform()))
        self.until(self.work, end)
        if end >= DAY:
            return
        if draw.uniform() < min(0.9, 0.4 * self.activity):
            end = self.go_out(self.work, end, DAY)
        if end < DAY:
            self.be_free(end, DAY, off)

    def go_far(self, clock):
        draw = self.stream
        leave = max(clock + 30, int(480.0 + 180.0 * draw.uniform()))
        self.until(self.home, leave)
        if leave >= DAY:
            return
        place = self.go("excursion", self.home)
        self.remember(place)
        back = leave + int(240.0 + 360.0 * draw.uniform())
        if draw.uniform() < self.world.behaviour.overnight_share:
            back = DAY + int(600.0 + 720.0 * draw.uniform())
        self.until(place, back)
        self.until(self.home, DAY)

    def be_free(self, clock, limit, off):
        limit = min(limit, DAY)
        while clock < limit:
            leave = self.next_departure(clock, off)
            self.until(self.home, min(leave, limit))
            if leave >= limit:
                return
            clock = self.go_out(self.home, leave, limit)

    def next_departure(self, clock, off):
        patience = -math.log(1.0 - self.stream.uniform()) / self.activity
        clock += 10
        while clock < DAY:
            rate = self.world.rate[int(off), clock // 60]
            hour_end = (clock // 60 + 1) * 60
            if rate * (hour_end - clock) > patience:
                return clock + int(patience / rate)
            patience -= rate * (hour_end - clock)
            clock = hour_end
        return DAY

    def go_out(self, here, clock, limit):
        habits, draw = self.world.behaviour, self.stream
        power = 1.0 - habits.stay_exponent
        low = (60.0 * habits.stay_min_hours) ** power
        high = (60.0 * habits.stay_max_hours) ** power
        while True:
            here = self.choose(here)
            minutes = (low + draw.uniform() * (high - low)) ** (1.0 / power)
            clock += max(10, int(minutes))
            if limit < DAY and clock >= limit:
                self.until(here, limit)
                return limit
            self.until(here, clock)
            again = habits.chain_share * (1.0 if clock < 1230 else 0.2)
            if clock >= DAY or draw.uniform() >= again:
                return clock

    def choose(self, here):
        habits, draw = self.world.behaviour, self.stream
        new = habits.exploration * float(len(self.known)) ** -habits.exploration_decay
        new *= self.moves / self.choices
        self.choices += 1
        place = None
        if draw.uniform() >= new:
            place = self.choose_known(here)
        if place is None:
            place = self.go("visit", here)
            for _ in range(8):
                if place not in self.known:
                    break
                place = self.go("visit", here)
        self.remember(place)
        return place

    def choose_known(self, here):
        scale = self.world.behaviour.visit_scale_km
        target = self.stream.uniform()
        places, running, total = [], [], 0.0
        for place, visits in self.known.items():
            if place in (here, self.home, self.work):
                continue
            far = distance(self.world.destinations, here, place) / scale
            total += visits / ((1.0 + far) * (1.0 + far))
            places.append(place)
            running.append(total)
        return places[first_above(running, target * total)] if places else None

    def record_day(self, slot_minutes):
        """The region of most minutes in each slot; the first one of equals."""
        slots = []
        for begin in range(0, DAY, slot_minutes):
            minutes, left = {}, 0
            for place, end in self.stays:
                shared = min(end, begin + slot_minutes) - max(left, begin)
                if shared > 0:
                    minutes[place] = minutes.get(place, 0) + shared
                left = end
            slots.append(max(minutes, key=minutes.get))
        return slots


def prepare(settings, rng):
    """What all people share."""
    seed = int(rng.integers(2**63))
    return seed, make_world(lay_out(settings, rng), settings)


def live(prepared, number, settings):
    """One person's region in every slot, fully observed."""
    seed, world = prepared
    person = Person(world, Stream(seed, number))
    slots = []
    for day in range(settings.days):
        person.live_day(day)
        slots += person.record_day(settings.clock.slot_minutes)
    return slots


def build_city_by_loop(settings, rng):
    """Traces (people, slots) of the fully observed city."""
    prepared = prepare(settings, rng)
    lives = [live(prepared, number, settings) for number in range(settings.people)]
    return np.array(lives, dtype=np.int32)
