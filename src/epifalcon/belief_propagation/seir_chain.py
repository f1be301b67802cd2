"""A person's SEIR chain: rates, likelihood of own tests, forward-backward recursion.

A person is a hidden Markov chain over susceptible, exposed, infectious and recovered
that takes one step per slot. In each slot the chain receives two numbers from the
hyperedge (region and slot) that the person visited:

- the infection probability 1 - (1 - d m)^k, where k others are infectious with mean
  probability m and d is the probability that one infects the person;
- the evidence (1 + d c)^k, by which the later observations of the others become
  more likely if the person was infectious; c is their mean evidence message.

One sweep produces the two messages for each visited edge: the probability of having
been infectious, and c = (L1 - L0) / L, where L1 and L0 are the likelihood of everything
observed about the person if the edge does or does not infect it. A message to an edge
excludes what was received from that edge.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.reproduction_number import kappa_by_share
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_results import TestErrors, TestResults
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats, RegionIds, Slots

Singles = NDArray[np.float32]

# Columns of ``EdgeMessages.edges``.
CHANCE, OTHERS, INFECTIOUS, EVIDENCE = range(4)

MOST_LOG = 30.0
"""Largest hazard and log evidence of one slot."""
MOST_CHANCE = 1 - 1e-6
_LEAST_FACTOR = -1 + 1e-6
# In every slot, so that a positive test is possible without infectious contacts.
_LEAST_CHANCE = 1e-8
_TINY = 1e-300
_SMALL = 0.1
_LOW, _HIGH = 1e-30, 1e30


class Rates(NamedTuple):
    """Transition probabilities of one slot, and seeding."""

    leave_exposed: float
    recover: float
    seeded: float
    """Probability of being a seed."""
    exposed_seeds: bool


def rates_for(
    people: int, clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> Rates:
    """Return the rates of a slot; of the seeds only their number is used."""
    # Without seeds a positive test would be impossible: assume half a seed.
    seeded = max(rule.requested_seeds(pathogen, people), 0.5) / people

    def chance(rate: float) -> float:
        step = rate * clock.slot_days
        return min(step, 1.0) if rule.chance == "linear" else -math.expm1(-step)

    return Rates(
        leave_exposed=1.0 if rule.model == "sir" else chance(pathogen.alpha),
        recover=chance(pathogen.mu),
        seeded=min(seeded, MOST_CHANCE),
        exposed_seeds=rule.seed_state == "exposed",
    )


def force_by_share(
    share: float, clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> float:
    """Return kappa beta dt from the mean share of others among the people present."""
    kappa = kappa_by_share(share, pathogen, rule)
    weight = rule.mean_infectious_days(pathogen) * pathogen.mu
    return kappa * pathogen.beta * clock.slot_days * weight


class ResultLikelihood(NamedTuple):
    """Likelihood of each person's tests given the slot of infection.

    It changes only in slots of tests. Person i has the changes ``start[i]`` to
    ``start[i + 1]``: from slot ``slot[k]`` on it is ``value[k]``; before the first
    change it is ``seed[i]``. Only ratios matter.
    """

    seed: Singles
    """(people,) if infected before the first slot."""
    never: Singles
    """(people,) if never infected."""
    start: NDArray[np.int64]
    """(people + 1,)"""
    slot: Slots
    """(changes,)"""
    value: Singles
    """(changes,)"""


def result_likelihood(
    known: TestResults, slots: int, errors: TestErrors
) -> ResultLikelihood:
    """Compute the likelihood of all tests.

    A test measures whether the person was infected in its slot or before. If tests have
    no errors but contradict each other, the first positive one is used.
    """
    if errors.none:
        known = _without_contradictions(known, slots)
    error = np.array([errors.false_positive, errors.false_negative])
    right, wrong = np.log(np.maximum([1 - error, error], _TINY))
    # Running totals over all tests of the log likelihood if well, and if infected.
    well, ill = np.zeros((2, 1 + len(known.person)))
    np.cumsum(np.where(known.positive, wrong[0], right[0]), out=well[1:])
    np.cumsum(np.where(known.positive, right[1], wrong[1]), out=ill[1:])
    start = np.searchsorted(known.person, np.arange(known.people + 1)).astype(np.int64)
    begin, end = start[:-1], start[1:]
    seed, never = ill[end] - ill[begin], well[end] - well[begin]
    # Infected between a test and the next: tests up to then were taken while well.
    value = well[1:] - well[begin][known.person] + ill[end][known.person] - ill[1:]
    scale = np.maximum(seed, never)
    np.maximum.at(scale, known.person, value)
    return ResultLikelihood(
        np.exp(seed - scale).astype(np.float32),
        np.exp(never - scale).astype(np.float32),
        start,
        np.minimum(known.slot + 1, slots).astype(np.int32),
        np.exp(value - scale[known.person]).astype(np.float32),
    )


def _without_contradictions(known: TestResults, slots: int) -> TestResults:
    """Drop negative tests after the first positive one, and repeated positives."""
    first = known.first_positive_slot[known.person]
    counts = np.where(known.positive, known.slot == first, known.slot < first)
    counts |= first < 0
    # Clip slots so that negative tests precede the positive one in the last slot.
    latest = np.minimum(first, slots - 1) - ~known.positive
    slot = np.where(first < 0, known.slot, np.minimum(known.slot, latest))
    counts &= slot >= 0
    return TestResults(
        known.people,
        known.person[counts],
        known.positive[counts],
        slot[counts].astype(np.int32),
    )


class PersonState(NamedTuple):
    """State of the people of a cohort; updated in place by a sweep."""

    regions: RegionIds
    """(slots, people), -1 for not observed."""
    tests: ResultLikelihood
    infectious: Singles
    """(slots, people) damped message: probability of being infectious."""
    evidence: Singles
    """(slots, people) damped message: evidence, from -1 to the bound."""
    risk: Floats
    """(people,) probability of having been infected, own tests excluded."""
    tested: Singles
    """(people,) 1 for people who count in the tally, else 0."""
    prior: Floats
    """(people, 4) probability of S, E, I, R before the first slot, given earlier own
    tests."""
    prior_without_tests: Floats
    """(people, 4) the same, earlier own tests excluded."""


class EdgeMessages(NamedTuple):
    """Messages from the hyperedges to everybody."""

    edges: Floats
    """(slots, 1 + regions, 4): probability that one infectious person infects one
    other; number of people but one; expected infectious people; sum of evidence.
    Column 0 of the regions is "not observed"."""
    hazard: Floats
    """(slots,) one hazard for everybody in the first sweep; of size 0 later."""
    day: NDArray[np.int32]
    """(slots,) row of the tally."""
    own: float
    """1 if a person's own messages are part of the sums, else 0."""
    geometric_ratio: Floats
    """(days, 1 + regions) geometric over arithmetic mean of the transmission factor."""


class SweepOptions(NamedTuple):
    """Damping of a sweep, and which additional sums to compute."""

    infectious_step: float
    """Weight of the new message in the damped one."""
    evidence_step: Floats
    """(slots,) the same for evidence."""
    bound: float
    """Evidence is clipped here."""
    susceptible: bool = False
    """Whether expected susceptible people are summed."""
    tally: bool = False
    """Whether infections and hazard of tested people are summed by region."""


class Sums(NamedTuple):
    """Sums over the people of a cohort: all that leaves it."""

    infectious: Floats
    """(slots, 1 + regions)"""
    evidence: Floats
    """(slots, 1 + regions)"""
    susceptible: Floats
    """(slots, 1 + regions) expected susceptible people, or of size 0."""
    tally: Floats
    """(2, days, 1 + regions) expected infections and hazard of tested people, or of
    size 0."""


@compiled
def forward_backward(
    first: int,
    last: int,
    state: PersonState,
    received: EdgeMessages,
    rates: Rates,
    options: SweepOptions,
    sums: Sums,
) -> None:
    """Run one sweep for people ``first`` to ``last``.

    Adds to ``sums`` and updates messages and risk in ``state``. The recursions are
    loops of their own, without divisions; everything else is computed for all slots
    at once, which the compiler turns into vector instructions.
    """
    slots = state.regions.shape[0]
    chance, factor, others, fit = np.empty((4, slots))
    before, after = np.empty((2, 4, slots))
    sent, new_evidence, well, hit, exposed = np.empty((5, slots))
    counts_susceptible, counts_tally = sums.susceptible.size > 0, sums.tally.size > 0
    for person in range(first, last):
        _receive(person, state, received, chance, factor, others)
        _likelihood_by_slot(person, state.tests, fit)
        prior, seed = state.prior[person], state.tests.seed[person]
        _forward(prior, seed, chance, factor, fit, rates, before)
        risk = _backward(
            state.prior_without_tests[person],
            state.tests.never[person],
            chance,
            factor,
            fit,
            rates,
            after,
        )
        state.risk[person] = risk
        for slot in range(slots):
            infected = after[1, slot] * fit[slot]
            susceptible = before[0, slot]
            healthy = susceptible * after[0, slot]
            ill = before[2, slot] * after[2, slot]
            rest = before[1, slot] * after[1, slot] + before[3, slot] * after[3, slot]
            whole = healthy + ill + rest + _TINY
            sent[slot] = min(ill / whole, 1.0)
            well[slot] = healthy / whole
            gain = susceptible * (infected - after[0, slot])
            whole += _LEAST_CHANCE * susceptible * infected + others[slot] * gain
            evidence = (1 - others[slot]) * gain / whole
            new_evidence[slot] = min(max(evidence, -1.0), options.bound)
            new = susceptible * chance[slot] * infected
            missed = healthy * (1 - chance[slot])
            part = 1 / (new + missed + ill * factor[slot] + rest + _TINY)
            hit[slot] = new * part
            # A person infected in the slot was exposed for about half of it.
            exposed[slot] = (missed + 0.5 * new) * part
        for slot in range(slots):
            edge = state.regions[slot, person] + 1
            sums.infectious[slot, edge] += sent[slot]
            sums.evidence[slot, edge] += new_evidence[slot]
            if counts_susceptible:
                sums.susceptible[slot, edge] += well[slot]
            held = state.infectious[slot, person]
            held += options.infectious_step * (sent[slot] - held)
            state.infectious[slot, person] = held
            held = state.evidence[slot, person]
            held += options.evidence_step[slot] * (new_evidence[slot] - held)
            state.evidence[slot, person] = held
        if counts_tally and state.tested[person] > 0:
            for slot in range(slots):
                exposed[slot] *= -np.log1p(-chance[slot])
            _add_tally(person, state, received, hit, exposed, sums.tally)


@compiled
def _receive(
    person: int,
    state: PersonState,
    received: EdgeMessages,
    chance: Floats,
    factor: Floats,
    others: Floats,
) -> None:
    """Compute infection probability and evidence of each slot for one person.

    k others with mean message m give 1 - (1 - d m)^k and (1 + d m)^k, which is exact
    for one other person and for several with equal messages. ``others`` is the
    infection probability by all but one of the others there.
    """
    slots = len(chance)
    if received.hazard.size > 0:
        for slot in range(slots):
            chance[slot] = others[slot] = 1 - np.exp(-received.hazard[slot])
            factor[slot] = 1.0
        return
    hazard, evidence, count, rare = np.empty((4, slots))
    for slot in range(slots):
        edge = received.edges[slot, state.regions[slot, person] + 1]
        count[slot] = edge[OTHERS]
        own = received.own * state.infectious[slot, person]
        hazard[slot] = edge[CHANCE] * max(edge[INFECTIOUS] - own, 0.0)
        chance[slot] = edge[CHANCE]
        own = received.own * state.evidence[slot, person]
        evidence[slot] = edge[CHANCE] * (edge[EVIDENCE] - own)
    for slot in range(slots):
        some = max(count[slot], 1.0)
        share = 1 / some
        x = -min(hazard[slot] * share, chance[slot])
        y = max(evidence[slot] * share, _LEAST_FACTOR)
        rare[slot] = max(abs(some * x), abs(some * y))
        hazard[slot], evidence[slot] = x, y
        infected = -_binomial_series(x, some)
        infected = min(max(infected, _LEAST_CHANCE), MOST_CHANCE)
        chance[slot] = infected
        factor[slot] = 1 + _binomial_series(y, some)
        others[slot] = max(count[slot] - 1, 0.0) * share * infected
    for slot in range(slots):
        if rare[slot] > _SMALL:
            some = max(count[slot], 1.0)
            infected = 1 - _power(hazard[slot], some)
            infected = min(max(infected, _LEAST_CHANCE), MOST_CHANCE)
            chance[slot] = infected
            factor[slot] = _power(evidence[slot], some)
            others[slot] = max(count[slot] - 1, 0.0) / some * infected


@compiled
def _binomial_series(x: float, n: float) -> float:
    """Return (1 + x)^n - 1 to ten digits where |n x| is at most ``_SMALL``."""
    tail = 1 + (1 / 6) * (n - 5) * x
    tail = 1 + (1 / 5) * (n - 4) * x * tail
    tail = 1 + (1 / 4) * (n - 3) * x * tail
    tail = 1 + (1 / 3) * (n - 2) * x * tail
    return n * x * (1 + (1 / 2) * (n - 1) * x * tail)


@compiled
def _power(x: float, n: float) -> float:
    """Return (1 + x)^n, its logarithm within ``MOST_LOG``."""
    return math.exp(min(max(n * math.log(1 + x), -MOST_LOG), MOST_LOG))


@compiled
def _likelihood_by_slot(person: int, tests: ResultLikelihood, fit: Floats) -> None:
    """Write the likelihood of own tests for infection in each slot."""
    at, end = tests.start[person], tests.start[person + 1]
    value = tests.seed[person]
    for slot in range(len(fit)):
        while at < end and tests.slot[at] <= slot:
            value = tests.value[at]
            at += 1
        fit[slot] = value


@compiled
def _forward(
    prior: Floats,
    seed: float,
    chance: Floats,
    factor: Floats,
    fit: Floats,
    rates: Rates,
    before: Floats,
) -> tuple[float, float, float, float]:
    """Write unnormalised S, E, I, R before each slot; return those after the last.

    ``before`` (4, slots). Own tests count through ``seed`` and ``fit``; only ratios of
    the four numbers matter.
    """
    s, e, i, r = prior[0], prior[1] * seed, prior[2] * seed, prior[3] * seed
    for slot in range(len(chance)):
        before[0, slot], before[1, slot] = s, e
        before[2, slot], before[3, slot] = i, r
        latent = e + s * chance[slot] * fit[slot]
        ill = i * factor[slot]
        ends, healed = latent * rates.leave_exposed, ill * rates.recover
        s -= s * chance[slot]
        e, i, r = latent - ends, ill - healed + ends, r + healed
        total = s + e + i + r
        # Only ratios matter; evidence must not overflow.
        if not _LOW < total < _HIGH:
            scale = 1 / total
            s, e, i, r = s * scale, e * scale, i * scale, r * scale
    return s, e, i, r


@compiled
def _backward(
    start: Floats,
    fits_never: float,
    chance: Floats,
    factor: Floats,
    fit: Floats,
    rates: Rates,
    after: Floats,
) -> float:
    """Write the likelihood of what follows each slot, by state; return the risk.

    ``after`` (4, slots): if the slot does not infect the susceptible person, and if it
    is exposed, infectious or recovered in the slot. The risk excludes own tests;
    ``start`` (4,) is the prior.
    """
    # The susceptible are split: "never" is not infected any more; "later" is, with own
    # tests excluded, "later_tests" with them.
    later_tests, never, later = 0.0, 1.0, 0.0
    e, i, r = 1.0, 1.0, 1.0
    slots = len(chance)
    for back in range(1, slots + 1):
        # Unsigned: numba then leaves out the test for negative indices.
        slot = np.uint64(slots - back)
        e += rates.leave_exposed * (i - e)
        i += rates.recover * (r - i)
        after[0, slot] = later_tests + never * fits_never
        after[1, slot], after[2, slot], after[3, slot] = e, i, r
        later_tests += chance[slot] * (e * fit[slot] - later_tests)
        later += chance[slot] * (e - later)
        never -= chance[slot] * never
        i *= factor[slot]
        total = e + i + r + never + later
        if not _LOW < total < _HIGH:
            scale = 1 / total
            later_tests, later = later_tests * scale, later * scale
            never, e, i, r = never * scale, e * scale, i * scale, r * scale
    ever = start[0] * later + start[1] * e + start[2] * i + start[3] * r
    risk: float = ever / (ever + start[0] * never)
    return risk


@compiled
def _add_tally(
    person: int,
    state: PersonState,
    received: EdgeMessages,
    hit: Floats,
    hazard: Floats,
    tally: Floats,
) -> None:
    """Add a tested person's expected infections and hazard by day and region.

    The infection is divided among regions by their geometric mean factors,
    hazards by the arithmetic ones: E[log b] and E[b] of variational inference.
    """
    whole, counted = 1.0, state.tested[person]
    for slot in range(len(hit)):
        geometric_ratio = received.geometric_ratio[received.day[slot]]
        whole += hit[slot] * (geometric_ratio[state.regions[slot, person] + 1] - 1)
    for slot in range(len(hit)):
        day, edge = received.day[slot], state.regions[slot, person] + 1
        share = hit[slot] * received.geometric_ratio[day, edge] / whole
        tally[0, day, edge] += counted * share
        tally[1, day, edge] += counted * hazard[slot]


@compiled
def marginals(
    first: int,
    last: int,
    state: PersonState,
    received: EdgeMessages,
    rates: Rates,
    with_tests: bool,
    states: Floats,
    slots: Floats,
) -> None:
    """Write marginals of people ``first`` to ``last``, with or without own tests.

    ``states`` (people, 4) gets the probability of S, E, I, R after the slots of
    ``received``. ``slots`` (2 + slots, people) gets that of an infection before the
    first slot, in each slot, and never; not computed if it has size 0.
    """
    count = len(received.day)
    chance, factor, others, fit = np.ones((4, count))
    before, after = np.empty((2, 4, count))
    for person in range(first, last):
        _receive(person, state, received, chance, factor, others)
        prior, seed, never = state.prior_without_tests[person], 1.0, 1.0
        if with_tests:
            _likelihood_by_slot(person, state.tests, fit)
            prior, seed = state.prior[person], state.tests.seed[person]
            never = state.tests.never[person]
        s, e, i, r = _forward(prior, seed, chance, factor, fit, rates, before)
        s *= never
        whole = s + e + i + r
        out = states[person]
        out[:] = prior
        if whole > 0:
            out[0], out[1], out[2], out[3] = s / whole, e / whole, i / whole, r / whole
        if slots.size == 0:
            continue
        _backward(prior, never, chance, factor, fit, rates, after)
        for slot in range(count):
            new = before[0, slot] * chance[slot] * after[1, slot] * fit[slot]
            missed = before[0, slot] * (1 - chance[slot]) * after[0, slot]
            earlier = before[1, slot] * after[1, slot]
            earlier += before[2, slot] * after[2, slot] * factor[slot]
            earlier += before[3, slot] * after[3, slot]
            whole = new + missed + earlier + _TINY
            slots[1 + slot, person] = new / whole
            if slot == 0:
                slots[0, person] = earlier / whole
            slots[1 + count, person] = missed / whole
