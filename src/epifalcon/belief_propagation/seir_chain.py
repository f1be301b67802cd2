"""A person's SEIR chain: rates, likelihood of own tests, forward-backward recursion.

Each person is modelled by a hidden Markov chain over the states susceptible, exposed,
infectious and recovered, with one step per slot. In each slot the chain receives two
numbers from the hyperedge (region and slot) that the person visited:

- the infection probability 1 - (1 - d m)^k, where k others are infectious with mean
  probability m and d is the probability that one infects the person;
- the evidence (1 + d c)^k, the likelihood ratio of the later observations of the
  others if the person was infectious; c is their mean evidence message.

One sweep produces the two messages for each visited edge: the probability of having
been infectious, and c = (L1 - L0) / L, where L1 and L0 are the likelihood of everything
observed about the person if the edge does or does not infect the person. A message to
an edge excludes what was received from that edge.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.reproduction_number import kappa_by_share
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.epidemic.test_kinds import TestKind
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats, Mask, Probabilities, RegionIds, Slots

Singles = NDArray[np.float32]

# Columns of ``EdgeMessages.edges``.
CHANCE, OTHERS, INFECTIOUS, EVIDENCE = range(4)

MOST_LOG = 30.0
"""Upper bound of the hazard and of the log evidence of one slot."""
MOST_CHANCE = 1 - 1e-6
_LEAST_FACTOR = -1 + 1e-6
# In every slot, so that a positive test is possible without infectious contacts.
_LEAST_CHANCE = 1e-8
_TINY = 1e-300
_LEAST_CLIP = 1e-6
_LOG_TINY = -60.0
"""Likelihoods of test results above this logarithm are not scaled."""
_SMALL = 0.1
_LOW, _HIGH = 1e-30, 1e30


class Rates(NamedTuple):
    """Transition probabilities per slot, and the probability of being a seed."""

    leave_exposed: float
    recover: float
    seeded: float
    """Probability of being a seed of the outbreak."""
    exposed_seeds: bool


def rates_for(
    people: int, clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> Rates:
    """Return the rates per slot; only the number of seeds is used, not who they are."""
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
    """Return kappa * beta * dt, given the mean share of others among those present."""
    kappa = kappa_by_share(share, pathogen, rule)
    weight = rule.mean_infectious_days(pathogen) * pathogen.mu
    return kappa * pathogen.beta * clock.slot_days * weight


class ResultLikelihood(NamedTuple):
    """Likelihood of each person's test results as a function of the slot of infection.

    It is a step function. Changes ``start[i]`` to ``start[i + 1]`` belong to person i:
    the likelihood is ``value[k]`` from slot ``slot[k]`` on, and ``seed[i]`` before the
    first change. Only ratios matter if the likelihood is very small.
    """

    seed: Singles
    """Likelihood if infected before the first slot, (people,)."""
    never: Singles
    """Likelihood if never infected, (people,)."""
    start: NDArray[np.int64]
    """Index of each person's first change, (people + 1,)."""
    slot: Slots
    """Slot of each change, (changes,)."""
    value: Singles
    """Likelihood from that slot on, (changes,)."""


def result_likelihood(known: TestResults, clock: Clock) -> ResultLikelihood:
    """Return the likelihood of all test results, by slot of infection.

    A test detects infection in its slot or earlier. If a person's tests have no errors
    but contradict each other, the first positive one is used. Nothing depends on the
    tests of others, for which noise in a private run would not suffice.
    """
    known = _without_contradictions(known, clock.slots)
    steps = [_steps(kind, clock) for kind in known.kinds]
    counts = np.array([len(slots) for slots, _, _ in steps])
    number = counts[known.kind]
    start = np.concatenate([[0], np.cumsum(number)])
    result = known.positive.astype(np.int64)
    # All changes, test by test; those of a person are then sorted by slot.
    slot, change = np.empty(start[-1], np.int64), np.empty(start[-1])
    seed, never = np.zeros((2, known.people))
    for index, (slots, levels, healthy) in enumerate(steps):
        of_kind = np.flatnonzero(known.kind == index)
        place = start[of_kind, None] + np.arange(len(slots))
        positive = result[of_kind]
        slot[place] = known.slot[of_kind, None] + slots
        change[place] = np.diff(levels, axis=0)[:, positive].T
        np.add.at(seed, known.person[of_kind], levels[0, positive])
        np.add.at(never, known.person[of_kind], healthy[positive])
    person = np.repeat(known.person, number)
    early = slot < 0
    np.add.at(seed, person[early], change[early])
    change[early] = 0
    slot = np.clip(slot, 0, clock.slots)
    order = np.lexsort((slot, person))
    person, slot, change = person[order], slot[order], change[order]
    ends = np.searchsorted(person, np.arange(known.people + 1))
    total = np.concatenate([[0.0], np.cumsum(change)])
    value = seed[person] + total[1:] - total[ends[:-1]][person]
    scale = np.maximum(seed, never)
    np.maximum.at(scale, person, value)
    scale[scale > _LOG_TINY] = 0
    return ResultLikelihood(
        np.exp(seed - scale).astype(np.float32),
        np.exp(never - scale).astype(np.float32),
        ends.astype(np.int64),
        slot.astype(np.int32),
        np.exp(value - scale[person]).astype(np.float32),
    )


def _steps(kind: TestKind, clock: Clock) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the log likelihood of a result as steps over the slot of infection.

    Slots are relative to that of the test, (changes,); levels before and after each
    change are (changes + 1, 2), for a negative and a positive result; the last ones,
    (2,), are those without infection.
    """
    days = np.arange(len(kind.sensitivity))[::-1]
    slots = np.append(1 - clock.slots_per_day * days[:-1], 1)
    positive = np.append(np.array(kind.sensitivity)[::-1], 1 - kind.specificity)
    levels = np.log(np.maximum(np.stack([1 - positive, positive], axis=1), _TINY))
    return slots, levels, levels[-1]


def _without_contradictions(known: TestResults, slots: int) -> TestResults:
    """Drop negative tests after the first positive one, and repeated positives.

    Tests with errors are neither dropped nor do they contradict others.
    """
    exact = np.array([kind.is_exact for kind in known.kinds])[known.kind]
    first = known.select(exact).first_positive_slot[known.person]
    free = (first < 0) | ~exact
    counts = np.where(known.positive, known.slot == first, known.slot < first) | free
    # Clip slots so that negative tests precede the positive one in the last slot.
    latest = np.minimum(first, slots - 1) - ~known.positive
    slot = np.where(free, known.slot, np.minimum(known.slot, latest))
    counts &= slot >= 0
    found = known.select(counts)
    return TestResults.from_tests(
        known.people,
        found.person,
        found.positive,
        slot[counts],
        kind=found.kind,
        kinds=known.kinds,
    )


class OwnTests(NamedTuple):
    """Likelihood of each person's own test results, (people,) each."""

    infected: Floats
    """Likelihood given infection in any slot."""
    healthy: Singles
    """Likelihood if never infected."""

    def of(self, chosen: Mask) -> "OwnTests":
        """Select people by a mask (people,)."""
        return OwnTests(self.infected[chosen], self.healthy[chosen])

    def likelihood(self, risk: Probabilities) -> Probabilities:
        """Return the probability of the results, given the risks without them."""
        return np.asarray(self.infected * risk + self.healthy * (1 - risk))

    def losses(self, risk: Probabilities) -> Floats:
        """Return the log loss of each risk, (people,)."""
        return np.asarray(-np.log(np.maximum(self.likelihood(risk), _LEAST_CLIP)))


class PersonState(NamedTuple):
    """State of the people of a cohort; each sweep updates it in place."""

    regions: RegionIds
    """Region of each person, (slots, people); -1 if not observed."""
    tests: ResultLikelihood
    infectious: Singles
    """Damped message, (slots, people): probability of being infectious."""
    evidence: Singles
    """Damped message, (slots, people): evidence, from -1 to ``evidence_bound``."""
    risk: Floats
    """Probability of having been infected, own tests excluded, (people,)."""
    given_infected: Floats
    """Likelihood of own test results given infection in any slot, (people,)."""
    tested: Singles
    """1 for people whose infections and hazards are tallied, else 0, (people,)."""
    prior: Floats
    """P(S, E, I, R) before the first slot, given own earlier tests, (people, 4)."""
    prior_without_tests: Floats
    """The same probabilities without own earlier tests, (people, 4)."""
    history: NDArray[np.int32]
    """Testing history of each person, (people,)."""
    testing: Floats
    """Likelihood of each testing history by day of infection, (histories, days + 1),
    see ``testing``; the last column is that without infection."""


class EdgeMessages(NamedTuple):
    """Messages from the hyperedges to all people."""

    edges: Floats
    """Array (slots, 1 + regions, 4) of: probability that one infectious person infects
    another; number of people minus one; expected number of infectious people; sum of
    evidence. Region column 0 is "not observed"."""
    hazard: Floats
    """Hazard for everybody in the first sweep, (slots,); empty in later sweeps."""
    day: NDArray[np.int32]
    """Day of each slot, (slots,): its row in the tally."""
    own: float
    """1 if the sums include a person's own messages, else 0."""
    geometric_ratio: Floats
    """Ratio of geometric to arithmetic mean of the factor, (days, 1 + regions)."""
    testing: Floats = np.empty(0)
    """Rates of testing, (days + 1,); empty if tests are random. See ``testing``."""


class SweepOptions(NamedTuple):
    """Step sizes of a sweep, and which additional sums to compute."""

    infectious_step: float
    """Weight of the new infectious message in the damped one."""
    evidence_step: Floats
    """Weight of the new evidence message in the damped one, (slots,)."""
    bound: float
    """Upper bound to which evidence is clipped."""
    susceptible: bool = False
    """Sum the expected numbers of susceptible people."""
    tally: bool = False
    """Sum infections and hazards of tested people by day and region."""


class Sums(NamedTuple):
    """Sums over the people of a cohort; no other data leave the cohort."""

    infectious: Floats
    """Sum of infectious messages, (slots, 1 + regions)."""
    evidence: Floats = np.zeros((0, 0))
    """Sum of evidence messages, (slots, 1 + regions); empty in a private run."""
    susceptible: Floats = np.zeros((0, 0))
    """Expected number of susceptible people, (slots, 1 + regions), or empty."""
    tally: Floats = np.zeros((0, 0, 0))
    """Expected infections and hazards of tested people, (2, days, 1 + regions), or
    empty."""
    testing: Floats = np.zeros((0, 0))
    """Tests and people by day, (4, days), or empty; see ``testing``."""


@compiled
def forward_backward(
    first: int,
    last: int,
    state: PersonState,
    received: EdgeMessages,
    rates: Rates,
    options: SweepOptions,
    sums: Sums,
    infected_on: Floats,
) -> None:
    """Run one sweep for people ``first`` to ``last``.

    Adds to ``sums``, adds expected infections by testing history and day to
    ``infected_on`` unless it is empty, and updates messages and risk in ``state``.

    The recursions are separate loops without divisions; everything else is computed
    for all slots at once, so that the compiler can vectorise it.
    """
    slots = state.regions.shape[0]
    chance, factor, others, fit = np.empty((4, slots))
    before, after = np.empty((2, 4, slots))
    sent, new_evidence, well, hit, exposed = np.empty((5, slots))
    counts_susceptible, counts_tally = sums.susceptible.size > 0, sums.tally.size > 0
    for person in range(first, last):
        _receive(person, state, received, chance, factor, others)
        seed, never = _likelihood_by_slot(person, state, received.day, fit)
        prior = state.prior[person]
        _forward(prior, seed, chance, factor, fit, rates, before)
        risk, given_infected = _backward(
            state.prior_without_tests[person],
            seed,
            never,
            chance,
            factor,
            fit,
            rates,
            after,
        )
        state.risk[person], state.given_infected[person] = risk, given_infected
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
        if infected_on.size > 0:
            for slot in range(slots):
                infected_on[state.history[person], received.day[slot]] += hit[slot]
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
    infection probability by all but one of the other people present.
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
    """Return (1 + x)^n - 1 to ten digits for |n x| up to ``_SMALL``."""
    tail = 1 + (1 / 6) * (n - 5) * x
    tail = 1 + (1 / 5) * (n - 4) * x * tail
    tail = 1 + (1 / 4) * (n - 3) * x * tail
    tail = 1 + (1 / 3) * (n - 2) * x * tail
    return n * x * (1 + (1 / 2) * (n - 1) * x * tail)


@compiled
def _power(x: float, n: float) -> float:
    """Return (1 + x)^n, with its logarithm clipped to ``MOST_LOG``."""
    return math.exp(min(max(n * math.log(1 + x), -MOST_LOG), MOST_LOG))


@compiled
def _likelihood_by_slot(
    person: int, state: PersonState, day: NDArray[np.int32], fit: Floats
) -> tuple[float, float]:
    """Write the likelihood of own tests given infection in each slot.

    Returns the likelihood given infection before the first slot, and without any.
    """
    tests = state.tests
    at, end = tests.start[person], tests.start[person + 1]
    value = seed = float(tests.seed[person])
    never = float(tests.never[person])
    for slot in range(len(fit)):
        while at < end and tests.slot[at] <= slot:
            value = tests.value[at]
            at += 1
        fit[slot] = value
    if state.testing.size > 0:
        history = state.testing[state.history[person]]
        for slot in range(len(fit)):
            fit[slot] *= history[day[slot]]
        seed *= history[0]
    return seed, never


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
    """Run the forward pass: write the state weights before each slot.

    ``before`` (4, slots) gets unnormalised S, E, I, R; those after the last slot are
    returned. ``seed`` and ``fit`` hold the likelihood of own tests.
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
    seed: float,
    fits_never: float,
    chance: Floats,
    factor: Floats,
    fit: Floats,
    rates: Rates,
    after: Floats,
) -> tuple[float, float]:
    """Write the likelihood of all later messages and tests; return the risk ever.

    ``after`` (4, slots) is indexed by the state in the slot: susceptible and not
    infected in it, exposed, infectious, recovered. The risk excludes own tests, whose
    likelihood given infection is returned, too; ``start`` (4,) is the prior.
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
    before = start[1] * e + start[2] * i + start[3] * r
    ever = start[0] * later + before
    given_infected = (start[0] * later_tests + before * seed) / (ever + _TINY)
    return ever / (ever + start[0] * never), given_infected


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

    Infections are divided among regions in proportion to geometric mean factors,
    hazards use arithmetic means: E[log b] and E[b] of variational inference.
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

    ``states`` (people, 4) gets P(S, E, I, R) after the last slot of ``received``.
    ``slots`` (2 + slots, people) gets the probability of infection before the first
    slot, in each slot, and never; it is not computed if ``slots`` is empty.
    """
    count = len(received.day)
    chance, factor, others, fit = np.ones((4, count))
    before, after = np.empty((2, 4, count))
    for person in range(first, last):
        _receive(person, state, received, chance, factor, others)
        prior, seed, never = state.prior_without_tests[person], 1.0, 1.0
        if with_tests:
            seed, never = _likelihood_by_slot(person, state, received.day, fit)
            prior = state.prior[person]
        s, e, i, r = _forward(prior, seed, chance, factor, fit, rates, before)
        s *= never
        whole = s + e + i + r
        out = states[person]
        out[:] = prior
        if whole > 0:
            out[0], out[1], out[2], out[3] = s / whole, e / whole, i / whole, r / whole
        if slots.size == 0:
            continue
        _backward(prior, seed, never, chance, factor, fit, rates, after)
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
