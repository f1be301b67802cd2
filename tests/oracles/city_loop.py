"""The synthetic city, people one by one in plain Python.

The same life as `epifalcon.mobility.synthetic.schedule`, written to be read: lists,
objects, no compiled code. It draws from the same streams of the same numbers,
so a city made by it must be the same region by region.
"""

import bisect
import math
from dataclasses import dataclass, field

import numpy as np

from epifalcon.mobility.synthetic.city import lay_out, make_world

DAY = 1440
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(word):
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Stream:
    def __init__(self, seed, person):
        self.state = mix(seed ^ mix(((person + 1) * GOLDEN) & MASK))

    def uniform(self):
        self.state = (self.state + GOLDEN) & MASK
        return (mix(self.state) >> 11) * 2.0**-53

    def normal(self):
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())


class Goals:
    """Where to go; the tables of `destinations` as plain lists."""

    def __init__(self, to, purpose):
        self.place, self.near = to.place.tolist(), to.near.tolist()
        self.near_sum = to.near_sum[purpose].tolist()
        self.radius, self.cell = to.radius.tolist(), to.cell.tolist()
        self.reach, self.box = to.reach[purpose].tolist(), to.box.tolist()
        self.kernel = to.kernels[purpose]
        spans = zip(to.starts[:-1].tolist(), to.starts[1:].tolist(), strict=True)
        self.cells = [
            (to.members[a:b].tolist(), to.cumulative[purpose, a:b].tolist())
            for a, b in spans
        ]

    def distance(self, here, there):
        (x, y), (u, v) = self.place[here], self.place[there]
        return math.sqrt((x - u) * (x - u) + (y - v) * (y - v))

    def decay(self, km):
        near = self.kernel.exponent * math.log1p(km / self.kernel.scale)
        return near + km / self.kernel.cutoff

    def bound(self, row, cell):
        a, b = self.box[row], self.box[cell]
        east = max(0.0, b[0] - a[1], a[0] - b[1])
        north = max(0.0, b[2] - a[3], a[2] - b[3])
        gap = math.sqrt(east * east + north * north)
        return self.decay(max(gap, a[4]))

    def draw(self, here, stream):
        row = self.cell[here]
        near_sum, reach = self.near_sum[here], self.reach[row]
        total = near_sum[-1] + reach[-1]
        while total > 0.0:
            target = stream.uniform() * total
            if target < near_sum[-1]:
                return self.near[here][first_above(near_sum, target)]
            cell = first_above(reach, target - near_sum[-1])
            members, running = self.cells[cell]
            target = stream.uniform() * running[-1]
            region = members[first_above(running, target)]
            far = self.distance(here, region)
            selected = math.exp(self.bound(row, cell) - self.decay(far))
            if stream.uniform() < selected and far >= self.radius[here]:
                return region
        return here


def first_above(running, target):
    return min(bisect.bisect_right(running, target), len(running) - 1)


@dataclass
class Person:
    world: object
    goals: dict
    stream: Stream
    known: dict = field(default_factory=dict)
    stays: list = field(default_factory=list)
    carried: tuple = (None, 0)
    moves: int = 5
    choices: int = 2

    def __post_init__(self):
        habits, draw = self.world.behaviour, self.stream
        homes = self.goals["home"]
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
        self.work = self.goals["work"].draw(self.home, draw) if commutes else None
        self.remember(self.home)
        if commutes:
            self.remember(self.work)

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
        place = self.goals["excursion"].draw(self.home, draw)
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
            rate = self.goals["rate"][off][clock // 60]
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
            place = self.goals["visit"].draw(here, draw)
            for _ in range(8):
                if place not in self.known:
                    break
                place = self.goals["visit"].draw(here, draw)
        self.remember(place)
        return place

    def choose_known(self, here):
        scale = self.world.behaviour.visit_scale_km
        target = self.stream.uniform()
        places, running, total = [], [], 0.0
        for place, visits in self.known.items():
            if place in (here, self.home, self.work):
                continue
            far = self.goals["visit"].distance(here, place) / scale
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
    """What all people share, with its tables as plain lists."""
    seed = int(rng.integers(2**63))
    world = make_world(lay_out(settings, rng), settings)
    names = ("work", "visit", "excursion")
    goals = {name: Goals(world.destinations, index) for index, name in enumerate(names)}
    goals["home"], goals["rate"] = world.home.tolist(), world.rate.tolist()
    return seed, world, goals


def live(prepared, number, settings):
    """One person's region in every slot, fully observed."""
    seed, world, goals = prepared
    person = Person(world, goals, Stream(seed, number))
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
