"""What a rule and a pathogen say of one slot, and what tests say of one person."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon.epidemic.hazard import kappa_by_share, resolve_kappa
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Slots

FREE = np.iinfo(np.int32).max
"""The last slot of a person without a positive test."""
MOST_CHANCE = 1 - 1e-6


class Rates(NamedTuple):
    """Chances of the disease in one slot."""

    leave_exposed: float
    recover: float
    seeded: float
    """Chance to be a seed."""
    exposed_seeds: bool


class Window(NamedTuple):
    """The infection slots that people's tests allow; (people,) each."""

    first: Slots
    """0 allows the person to be a seed, too."""
    last: Slots
    """``FREE`` allows "never", too."""


class Fit(NamedTuple):
    """How well each infection slot fits a person's own tests: their likelihood.

    It changes in the slots of tests alone. Person i has the changes
    ``start[i]`` to ``start[i + 1]``: from slot ``slot[k]`` on it is ``value[k]``;
    before the first change it is ``seed[i]``.
    """

    seed: NDArray[np.float32]
    """(people,) of having been infected when the traces begin."""
    never: NDArray[np.float32]
    """(people,)"""
    start: NDArray[np.int64]
    """(people + 1,)"""
    slot: Slots
    """(changes,)"""
    value: NDArray[np.float32]
    """(changes,)"""


def force_of_infection(
    traces: Traces, pathogen: Pathogen, rule: OutbreakSettings
) -> float:
    """The rate kappa beta dt at the mean weight of infectious people.

    0 where nobody was observed.
    """
    if traces.by_slot.max() == UNKNOWN:
        return 0.0
    kappa = resolve_kappa(traces, pathogen, rule)
    return kappa * _plain_force(traces.clock, pathogen, rule)


def force_by_share(
    share: float, clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> float:
    """The same by the mean share of others among those present alone."""
    kappa = kappa_by_share(share, pathogen, rule)
    return kappa * _plain_force(clock, pathogen, rule)


def _plain_force(clock: Clock, pathogen: Pathogen, rule: OutbreakSettings) -> float:
    weight = rule.mean_infectious_days(pathogen) * pathogen.mu
    return pathogen.beta * clock.slot_days * weight


def rates_of(traces: Traces, pathogen: Pathogen, rule: OutbreakSettings) -> Rates:
    """The chances of a slot; of the seeds only their number counts."""
    return rates_for(traces.people, traces.clock, pathogen, rule)


def rates_for(
    people: int, clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> Rates:
    """The same, by the number of people and the clock alone."""
    # A rule without seeds does not explain a positive test: half a seed does.
    seeded = max(rule.wished_seeds(pathogen, people), 0.5) / people

    def chance(rate: float) -> float:
        step = rate * clock.slot_days
        return min(step, 1.0) if rule.chance == "linear" else -math.expm1(-step)

    return Rates(
        leave_exposed=1.0 if rule.model == "sir" else chance(pathogen.alpha),
        recover=chance(pathogen.mu),
        seeded=min(seeded, MOST_CHANCE),
        exposed_seeds=rule.seed_state == "exposed",
    )


def allowed_slots(known: Known, slots: int) -> Window:
    """In which slots each person can have been infected, by its tests.

    A test says whether the person was infected in its slot or before: a positive
    one rules out all slots after it, a negative one all until it. Where results
    contradict each other the first positive one stands.
    """
    positive_in = known.first_positive_slot
    last = np.where(positive_in < 0, FREE, np.minimum(positive_in, slots - 1))
    first = np.zeros(known.people, np.int32)
    end = np.where(positive_in < 0, FREE, positive_in)
    counts = ~known.positive & (known.slot < end[known.person])
    after = np.minimum(known.slot[counts] + 1, slots)
    np.maximum.at(first, known.person[counts], after.astype(np.int32))
    # A positive test after the end of the traces was at the latest in the last slot.
    first = np.where(positive_in < 0, first, np.minimum(first, last))
    return Window(first.astype(np.int32), last.astype(np.int32))


def first_hazard(known: Known, seeded: float, slots: int) -> float:
    """The hazard that, the same for all, infects the share that tested positive."""
    positives = int((known.status == 1).sum())
    share = (positives + seeded) / (int(known.tested.sum()) + 1)
    return -math.log1p(-min(share, MOST_CHANCE)) / slots


def fit_to_tests(known: Known, slots: int, errors: TestErrors) -> Fit:
    """How well each infection slot fits the tests, results right or sometimes wrong."""
    if errors.none:
        return _fit_of_window(allowed_slots(known, slots), slots)
    return _fit_with_errors(known, slots, errors)


def _fit_of_window(window: Window, slots: int) -> Fit:
    """1 within the window, 0 outside."""
    begins = window.first > 0
    # A window that ends with the traces has no slot after it.
    ends = window.last < slots - 1
    counts = begins.astype(np.int64) + ends
    start = np.concatenate([[0], np.cumsum(counts)])
    slot, value = np.empty(start[-1], np.int32), np.empty(start[-1], np.float32)
    slot[start[:-1][begins]], value[start[:-1][begins]] = window.first[begins], 1
    slot[start[1:][ends] - 1], value[start[1:][ends] - 1] = window.last[ends] + 1, 0
    never = window.last == FREE
    return Fit(
        (~begins).astype(np.float32), never.astype(np.float32), start, slot, value
    )


def _fit_with_errors(known: Known, slots: int, errors: TestErrors) -> Fit:
    """The product over a person's tests of the chance of each result.

    Scaled to at most 1 for each person; likelihoods count by their ratios.
    """
    if_well = np.where(known.positive, errors.false_positive, 1 - errors.false_positive)
    if_ill = np.where(known.positive, 1 - errors.false_negative, errors.false_negative)
    seed, never = np.zeros((2, known.people))
    with np.errstate(divide="ignore"):
        well, ill = np.log(if_well), np.log(if_ill)
    np.add.at(seed, known.person, ill)
    np.add.at(never, known.person, well)
    start = np.searchsorted(known.person, np.arange(known.people + 1)).astype(np.int64)
    value = _products(known, start, well, ill)
    scale = np.maximum(seed, never)
    np.maximum.at(scale, known.person, value)
    return Fit(
        np.exp(seed - scale).astype(np.float32),
        np.exp(never - scale).astype(np.float32),
        start,
        np.minimum(known.slot + 1, slots).astype(np.int32),
        np.exp(value - scale[known.person]).astype(np.float32),
    )


def _products(
    known: Known,
    start: NDArray[np.int64],
    well: NDArray[np.float64],
    ill: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(tests,) log likelihood of an infection after each test and before the next."""
    value = np.empty(len(known.person))
    for person in np.unique(known.person):
        own = slice(start[person], start[person + 1])
        after = ill[own][::-1].cumsum()[::-1]
        value[own] = well[own].cumsum() + np.append(after[1:], 0.0)
    return value
