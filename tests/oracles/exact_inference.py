"""Who is infected, exactly: every joint state of a few people, slot after slot.

The simulator's order of a slot, with chances instead of draws. A joint state is
a tuple of S, E, I, R per person; its chance is carried along, and a test strikes
out the states that contradict it. 4^people states: for five people at most.
"""

import itertools
import math
from collections import defaultdict

import numpy as np

SUSCEPTIBLE, EXPOSED, ILL, RECOVERED = range(4)


class World:
    def __init__(self, by_slot, force, leave_exposed, recover, seeded, **more):
        self.by_slot, self.force, self.seeded = by_slot, force, seeded
        self.leave_exposed, self.recover = leave_exposed, recover
        self.exposed_seeds = more.get("exposed_seeds", False)
        self.linear = more.get("linear", False)
        self.people = len(by_slot[0])

    def start(self):
        seed = EXPOSED if self.exposed_seeds else ILL
        chances = {}
        for state in itertools.product((SUSCEPTIBLE, seed), repeat=self.people):
            seeds = sum(one != SUSCEPTIBLE for one in state)
            chance = self.seeded**seeds * (1 - self.seeded) ** (self.people - seeds)
            chances[state] = chance
        return chances

    def infection_probability(self, state, here, person):
        """Chance that the person is infected in this slot."""
        if here[person] < 0:
            return 0.0
        there = [one for one in range(self.people) if here[one] == here[person]]
        dose = self.force * sum(state[one] == ILL for one in there) / len(there)
        return min(dose, 1.0) if self.linear else -math.expm1(-dose)

    def expose(self, chances, here):
        after = defaultdict(float)
        for state, chance in chances.items():
            options = []
            for person, one in enumerate(state):
                well = one == SUSCEPTIBLE
                p = self.infection_probability(state, here, person) if well else 0.0
                options.append([(one, 1 - p), (EXPOSED, p)])
            _spread(options, chance, after)
        return after

    def step(self, chances):
        moves = {
            SUSCEPTIBLE: [(SUSCEPTIBLE, 1.0)],
            EXPOSED: [(EXPOSED, 1 - self.leave_exposed), (ILL, self.leave_exposed)],
            ILL: [(ILL, 1 - self.recover), (RECOVERED, self.recover)],
            RECOVERED: [(RECOVERED, 1.0)],
        }
        after = defaultdict(float)
        for state, chance in chances.items():
            _spread([moves[one] for one in state], chance, after)
        return after


def _spread(options, chance, after):
    for picks in itertools.product(*options):
        weight = math.prod(one[1] for one in picks)
        if weight > 0:
            after[tuple(one[0] for one in picks)] += chance * weight


def joint(world, tests, wrong=(0.0, 0.0), well=None):
    """The chance of each joint state at the end together with the tests.

    A test (person, slot, result) shows whether the person was infected in its slot or
    before; ``wrong`` are the chances of a false positive and of a false negative
    result. ``well`` is a person and a slot: only what leaves it susceptible behind
    that slot is counted, -1 for before the first one.
    """
    chances = world.start()
    if well is not None and well[1] < 0:
        chances = _only_well(chances, well[0])
    for slot, here in enumerate(world.by_slot):
        chances = world.expose(chances, here)
        if well is not None and well[1] == slot:
            chances = _only_well(chances, well[0])
        for person, when, result in tests:
            if when == slot:
                chances = {
                    state: chance * _fits(state[person], result, wrong)
                    for state, chance in chances.items()
                }
        chances = world.step(chances)
    return chances


def _only_well(chances, person):
    items = chances.items()
    return {state: chance for state, chance in items if state[person] == SUSCEPTIBLE}


def infection_slots(world, tests, person, wrong=(0.0, 0.0)):
    """P(infected before the first slot, in each slot, never | tests) of a person."""
    whole = sum(joint(world, tests, wrong).values())
    slots = range(-1, len(world.by_slot))
    well = [sum(joint(world, tests, wrong, (person, at)).values()) for at in slots]
    return -np.diff([whole, *well, 0.0]) / whole


def active(world, tests, person, wrong=(0.0, 0.0)):
    """P(exposed or infectious behind the last slot | tests) of a person."""
    states, chance = _normalised(joint(world, tests, wrong))
    return chance @ np.isin(states[:, person], (EXPOSED, ILL))


def posterior(world, tests, wrong=(0.0, 0.0)):
    """P(infected by the end | tests) of each person."""
    states, chance = _normalised(joint(world, tests, wrong))
    return chance @ (states != SUSCEPTIBLE)


def _normalised(chances):
    """(states, people) joint states and their probabilities."""
    chance = np.array(list(chances.values()))
    return np.array(list(chances)), chance / chance.sum()


def _fits(state, result, wrong):
    """The chance of a result in a state."""
    chance_of_positive = wrong[0] if state == SUSCEPTIBLE else 1 - wrong[1]
    return chance_of_positive if result else 1 - chance_of_positive


def without_own_test(world, tests, wrong=(0.0, 0.0)):
    """The same, each person's own tests left out of its own chance."""
    found = np.empty(world.people)
    for person in range(world.people):
        others = [test for test in tests if test[0] != person]
        found[person] = posterior(world, others, wrong)[person]
    return found
