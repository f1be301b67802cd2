"""Loopy belief propagation between people and hyperedges, sweep by sweep.

    state = infer(exchange, graph, InitialHazard.from_tests(...), sweeps, ...)
    state = infer(exchange, graph, state, more_sweeps, ...)        # continue

In a sweep every person receives the messages of the hyperedges (region and slot),
updates the person's SEIR chain (``seir_chain``) and sends one message per visited edge;
the server receives only their sums. A ``MessageExchange`` transports the messages, in
one process or over a network.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import each_part
from epifalcon.belief_propagation.seir_chain import (
    CHANCE,
    MOST_CHANCE,
    OTHERS,
    EdgeMessages,
    OwnTests,
    PersonState,
    Rates,
    Singles,
    Sums,
    SweepOptions,
    forward_backward,
    marginals,
    result_likelihood,
)
from epifalcon.belief_propagation.settings import FieldSettings
from epifalcon.belief_propagation.testing import RANDOM, TestHistories, updated_rates
from epifalcon.belief_propagation.transmission import Transmission, TransmissionFactor
from epifalcon.epidemic.settings import Chance
from epifalcon.epidemic.test_results import TestResults
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import Floats, Probabilities, RegionIds

_PART, _MOST_PARTS = 4096, 4
"""Minimum number of people per part of a sweep, and maximum number of parts."""
_COST = 20
"""Relative cost of one person and slot, passed to ``each_part``."""
_LEAST_STEP = 0.1
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class CurrentRisk:
    """Risk of being infected (exposed or infectious) after the last slot."""

    without_tests: Probabilities
    """Current risk without the person's own tests, (people,)."""
    tested: Probabilities
    """Current risk given the person's own tests, (people,)."""
    ever: Probabilities
    """Probability of infection in any slot, given the person's own tests, (people,)."""


@dataclass(frozen=True, eq=False)
class Infections:
    """Distribution of each person's time of infection; sums to 1 per person."""

    in_slot: Probabilities
    """Probability of infection in each slot, (slots, people)."""
    before: Probabilities
    """Probability of infection before the first slot, (people,)."""
    never: Probabilities
    """Probability of no infection, (people,)."""

    @property
    def risk(self) -> Probabilities:
        """Probability of having been infected, (people,)."""
        return np.asarray(self.before + self.in_slot.sum(axis=0))

    @property
    def shares(self) -> Floats:
        """Distribution of the infection time given infection, (1 + slots, people)."""
        parts = np.concatenate([self.before[None], self.in_slot])
        return np.asarray(parts / np.maximum(self.risk, _TINY))


@dataclass(frozen=True, eq=False)
class ChainCohort:
    """People whose states are stored together: one device, a site, or everybody.

    Memory is 8 bytes per person and slot besides the traces. Results do not depend
    on how people are divided into cohorts, up to rounding.
    """

    traces: Traces
    rates: Rates
    state: PersonState
    histories: TestHistories | None = None
    """When people were tested, if that is evidence; None if tests are random."""

    @classmethod
    def of(
        cls,
        traces: Traces,
        known: TestResults,
        rates: Rates,
        histories: TestHistories | None = None,
    ) -> "ChainCohort":
        """Create a cohort whose messages are all zero."""
        shape = traces.by_slot.shape
        nobody = np.zeros(traces.people, np.int32)
        state = PersonState(
            regions=traces.by_slot,
            tests=result_likelihood(known, traces.clock),
            infectious=np.zeros(shape, np.float32),
            evidence=np.zeros(shape, np.float32),
            risk=np.zeros(traces.people),
            given_infected=np.ones(traces.people),
            tested=_tallied(known, histories),
            prior=initial_prior(traces.people, rates),
            prior_without_tests=initial_prior(traces.people, rates),
            history=nobody if histories is None else histories.of_person,
            testing=np.zeros((0, 0)),
        )
        return cls(traces, rates, state, histories)

    @property
    def risk(self) -> Probabilities:
        """Probability of having been infected, own tests excluded, (people,)."""
        return self.state.risk

    @property
    def own_tests(self) -> OwnTests:
        """Likelihood of each person's own results after the last sweep."""
        return OwnTests(self.state.given_infected.copy(), self.state.tests.never)

    def copy(self) -> "ChainCohort":
        """Return a copy with its own message and risk arrays."""
        state = self.state
        copied = state._replace(
            infectious=state.infectious.copy(),
            evidence=state.evidence.copy(),
            risk=state.risk.copy(),
            given_infected=state.given_infected.copy(),
        )
        return replace(self, state=copied)

    def with_tests(
        self, known: TestResults, histories: TestHistories | None = None
    ) -> "ChainCohort":
        """Return the cohort with the same messages and other test results."""
        changed = self.state._replace(
            tests=result_likelihood(known, self.traces.clock),
            tested=_tallied(known, histories),
        )
        if histories is not None:
            changed = changed._replace(history=histories.of_person)
        return replace(self, state=changed, histories=histories)

    def with_prior(self, prior: Floats, without_tests: Floats) -> "ChainCohort":
        """Return the cohort with other state probabilities before the first slot."""
        changed = self.state._replace(prior=prior, prior_without_tests=without_tests)
        return replace(self, state=changed)

    def crowd(self) -> Floats:
        """Count the people at each edge, (slots, 1 + regions)."""
        return count_people(self.traces.by_slot, len(self.traces.regions))

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Update all chains in place and return the sums of the new messages."""
        edges, days = 1 + len(self.traces.regions), int(received.day[-1]) + 1
        by_slot, ends = (self.traces.slots, edges), self._part_ends
        state, histories = self._state(received), len(self._state(received).testing)
        sums = [
            Sums(
                np.zeros(by_slot),
                np.zeros(by_slot),
                np.zeros(by_slot if options.susceptible else (0, 0)),
                np.zeros((2, days, edges) if options.tally else (0, 0, 0)),
            )
            for _ in ends[1:]
        ]

        infected_on = np.zeros((len(sums), histories, days if histories else 0))

        def work(part: int) -> None:
            low, end = ends[part : part + 2]
            forward_backward(
                low,
                end,
                state,
                received,
                self.rates,
                options,
                sums[part],
                infected_on[part],
            )

        each_part(work, len(sums), _COST * self.traces.by_slot.size)
        found = add_sums(sums)
        if self.histories is None or not histories:
            return found
        infected = infected_on.sum(axis=0)
        return found._replace(testing=self.histories.tally(infected, received.testing))

    def end(self, received: EdgeMessages) -> None:
        """Update risks from the last edge messages; people's messages do not change."""
        self.sweep(received, SweepOptions(0.0, np.zeros(self.traces.slots), 0.0))

    def current_risk(self, received: EdgeMessages) -> CurrentRisk:
        """Compute the risk of being infected after the last slot."""
        without = self.state_probabilities(received, with_tests=False)
        tested = self.state_probabilities(received, with_tests=True)
        return CurrentRisk(
            np.clip(without[:, 1] + without[:, 2], 0.0, 1.0),
            np.clip(tested[:, 1] + tested[:, 2], 0.0, 1.0),
            np.clip(1 - tested[:, 0], 0.0, 1.0),
        )

    def state_probabilities(
        self, received: EdgeMessages, *, with_tests: bool
    ) -> Floats:
        """Return P(S, E, I, R) after the last slot of ``received``, (people, 4)."""
        return self._marginals(received, with_tests, np.empty((0, 0)))

    def infections(
        self, received: EdgeMessages, *, with_tests: bool = False
    ) -> Infections:
        """Compute the distribution of each person's time of infection."""
        result = np.empty((2 + self.traces.slots, self.traces.people))
        self._marginals(received, with_tests, result)
        return Infections(result[1:-1], result[0], result[-1])

    def _state(self, received: EdgeMessages) -> PersonState:
        """Return the state with the likelihood of the testing histories."""
        if self.histories is None or not received.testing.size:
            return self.state
        testing = self.histories.likelihood(received.testing)
        return self.state._replace(testing=testing)

    def _marginals(self, received: EdgeMessages, tested: bool, slots: Floats) -> Floats:
        states, ends = np.empty((self.traces.people, 4)), self._part_ends
        state = self._state(received)

        def work(part: int) -> None:
            (low, end), rates = ends[part : part + 2], self.rates
            marginals(low, end, state, received, rates, tested, states, slots)

        each_part(work, len(ends) - 1, _COST * len(states) * len(received.day))
        return states

    @property
    def _part_ends(self) -> list[int]:
        """Bounds of the parts of people; independent of the number of threads."""
        people = self.traces.people
        parts = min(max(people // _PART, 1), _MOST_PARTS)
        return [people * part // parts for part in range(parts + 1)]


def _tallied(known: TestResults, histories: TestHistories | None) -> Singles:
    """Mark those whose infections are tallied: of unbiased tests, the tested people.

    Others only repeat the current estimate, unless not being tested is evidence.
    """
    counts = known.tested if histories is None else np.ones(known.people, np.bool_)
    return counts.astype(np.float32)


def count_people(by_slot: RegionIds, regions: int) -> Floats:
    """Count the people at each edge, (slots, 1 + regions)."""
    rows = [np.bincount(here + 1, minlength=1 + regions) for here in by_slot]
    return np.asarray(np.stack(rows), np.float64)


def initial_prior(people: int, rates: Rates) -> Floats:
    """Return P(S, E, I, R) at the start of an outbreak, (people, 4)."""
    result = np.zeros((people, 4))
    result[:, 0] = 1 - rates.seeded
    result[:, 1 if rates.exposed_seeds else 2] = rates.seeded
    return result


def add_sums(parts: list[Sums]) -> Sums:
    """Add the sums of several cohorts into the first, in place, and return it."""
    first, *others = parts
    for part in others:
        for total, more in zip(first, part, strict=True):
            np.add(total, more, out=total)
    return first


@dataclass(frozen=True, eq=False)
class DampedSums:
    """Damped sums of messages over all people, (slots, 1 + regions) each."""

    crowd: Floats
    """Number of people present, or of expected susceptible people under ``I/S``."""
    infectious: Floats
    evidence: Floats

    def each(self, change: Callable[[Floats], Floats]) -> "DampedSums":
        """Return the record with ``change`` applied to each of its three arrays."""
        return DampedSums(*map(change, (self.crowd, self.infectious, self.evidence)))


@dataclass(frozen=True, eq=False)
class FactorGraph:
    """Hyperedges of a city and their transmission parameters; constant over sweeps."""

    clock: Clock
    force: float
    """Product kappa * beta * dt of the transmission rule."""
    chance: Chance
    present: Floats
    """Number of people present, (slots, 1 + regions)."""
    over_susceptible: bool = False
    """Divide the hazard by the susceptible people present instead of by all."""
    own_in_sums: bool = True
    """True if the sums that a person receives include the person's own messages."""

    @property
    def day(self) -> NDArray[np.int32]:
        """Day of each slot, (slots,)."""
        slots = np.arange(self.clock.slots)
        return (slots // self.clock.slots_per_day).astype(np.int32)

    @property
    def no_factor(self) -> TransmissionFactor:
        """Transmission factors of 1 in every region."""
        ones = np.ones((self.clock.days, self.present.shape[1]))
        return TransmissionFactor(ones, ones, ones)

    def first_messages(self, hazard: Floats, testing: Floats = RANDOM) -> EdgeMessages:
        """Return the messages of the first sweep: ``hazard`` (slots,) for everybody."""
        edges, none = np.zeros((*self.present.shape, 4)), self.no_factor
        ratio = none.geometric_ratio
        return EdgeMessages(edges, hazard, self.day, 1.0, ratio, testing)

    def messages(
        self, sums: DampedSums, factor: TransmissionFactor, testing: Floats = RANDOM
    ) -> EdgeMessages:
        """Compute edge messages from the damped sums and the transmission factor."""
        day = self.day
        chance = self.force * factor.mean[day] / np.maximum(sums.crowd, 1)
        if self.chance != "linear":
            chance = -np.expm1(-chance)
        others = np.maximum(self.present - 1, 0)
        chance = np.minimum(chance, MOST_CHANCE)
        edges = np.stack([chance, others, sums.infectious, sums.evidence], axis=-1)
        # Nobody meets anybody where nobody was observed.
        edges[:, 0, [CHANCE, OTHERS]] = 0
        own = float(self.own_in_sums)
        ratio = factor.geometric_ratio
        return EdgeMessages(edges, np.empty(0), day, own, ratio, testing)


class MessageExchange(Protocol):
    """Interface that sends edge messages to all people and returns sums."""

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Send the messages of all edges and return the sums of the replies."""

    def end(self, received: EdgeMessages) -> None:
        """Send the last messages of a run, from which risks are computed."""


@dataclass(frozen=True)
class InitialHazard:
    """Hazard assumed in the first sweep, the same for everybody."""

    hazard: Floats
    """Hazard in each slot, (slots,)."""
    growth: float
    """Ratio of infected people at the end to those at the start."""

    @classmethod
    def from_tests(
        cls, tested: float, positive: float, seeded: float, slots: int
    ) -> "InitialHazard":
        """Return the hazard of exponential growth from seeds to the positive share."""
        share = (positive + seeded) / (tested + 1)
        first = min(seeded, share / 2)
        way = np.arange(slots + 1) / slots
        infected = np.minimum(first * (share / first) ** way, MOST_CHANCE)
        return cls(-np.diff(np.log1p(-infected)), share / first)

    def damping_profile(self, exponent: float) -> Floats:
        """Return the relative step sizes growth(t to T)^-exponent, (slots,)."""
        slots = len(self.hazard)
        to_go = 1 - np.arange(slots) / slots
        return np.asarray(np.exp(-exponent * math.log(self.growth) * to_go))


@dataclass(frozen=True, eq=False)
class InferenceState:
    """Server state between two sweeps."""

    sums: DampedSums
    factor: TransmissionFactor
    """Transmission relative to the rate of the pathogen."""
    profile: Floats
    """Step size of the evidence in each slot, relative to the last slot, (slots,)."""
    testing: Floats = field(default_factory=RANDOM.copy)
    """Rates of testing, (days + 1,); empty if tests are random."""
    step: float = 1.0
    """Factor on the step size, reduced when the evidence oscillates."""
    direction: Floats | None = None
    """Last change of the evidence, used to detect oscillation."""
    sweep: int = 0
    """Number of completed sweeps."""

    def continued(self) -> "InferenceState":
        """Return the state with the full step size, to start another run from."""
        return replace(self, step=1.0, direction=None)


def infer(
    exchange: MessageExchange,
    graph: FactorGraph,
    start: InitialHazard | InferenceState,
    sweeps: int,
    settings: FieldSettings,
    transmission: Transmission,
    report: Callable[[], None] = lambda: None,
    factor: TransmissionFactor | None = None,
    testing: Floats = RANDOM,
) -> InferenceState:
    """Run ``sweeps`` sweeps from ``start`` and estimate transmission between them.

    Factors are estimated from the sums of a sweep and applied from the next sweep on.
    ``factor`` is the initial transmission factor, if known; ``testing`` are initial
    rates of testing, if being tested is evidence. The caller must send the
    last messages (``FactorGraph.messages`` of the result).
    """
    if isinstance(start, InitialHazard):
        nothing = np.zeros_like(graph.present)
        state = InferenceState(
            DampedSums(graph.present, nothing, nothing),
            factor or graph.no_factor,
            start.damping_profile(settings.damping_decay),
            testing,
        )
    else:
        state = start
    for _ in range(sweeps):
        received = graph.messages(state.sums, state.factor, state.testing)
        if isinstance(start, InitialHazard) and state.sweep == 0:
            received = graph.first_messages(start.hazard, state.testing)
        state = _sweep(exchange, graph, state, settings, received, transmission)
        report()
    return state


def _sweep(
    exchange: MessageExchange,
    graph: FactorGraph,
    state: InferenceState,
    settings: FieldSettings,
    received: EdgeMessages,
    transmission: Transmission,
) -> InferenceState:
    """Exchange messages once and return the state with damped sums."""
    steps = (1 - settings.damping) * state.step * state.profile
    tally = transmission.estimates_after(state.sweep + 1)
    bound, susceptible = settings.evidence_bound, graph.over_susceptible
    options = SweepOptions(1.0, steps, bound, susceptible, tally)
    new, old = exchange.sweep(received, options), state.sums
    change = new.evidence - old.evidence
    direction = change * state.profile[:, None] / np.maximum(old.crowd, 1)
    step = state.step
    if state.direction is not None and np.vdot(direction, state.direction) < 0:
        step = max(step * settings.damping_backoff, _LEAST_STEP)
    return InferenceState(
        DampedSums(
            new.susceptible if susceptible else old.crowd,
            new.infectious,
            old.evidence + steps[:, None] * change,
        ),
        transmission.estimate(new.tally, state.factor) if tally else state.factor,
        state.profile,
        updated_rates(state.testing, new.testing),
        step,
        # The first change starts from zero messages and cannot show oscillation.
        direction if state.sweep else None,
        state.sweep + 1,
    )
