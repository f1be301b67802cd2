"""Marginals of a person's chain: current state, and when it was infected."""

from dataclasses import dataclass

import numpy as np

from epifalcon._numba import each_part
from epifalcon.belief_propagation.inference import Cohort
from epifalcon.belief_propagation.seir_chain import (
    EdgeMessages,
    infection_slots,
    states_after,
)
from epifalcon.types import Floats, Probabilities

_PARTS, _COST = 8, 10
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Now:
    """Risk of being infected (exposed or infectious) after the last slot."""

    aside: Probabilities
    """(people,) own tests excluded."""
    tested: Probabilities
    """(people,) given own tests."""
    ever: Probabilities
    """(people,) of having been infected by then, given own tests."""


@dataclass(frozen=True, eq=False)
class Infections:
    """When people were infected; the three add up to 1 for everybody."""

    in_slot: Probabilities
    """(slots, people)"""
    before: Probabilities
    """(people,) before the first slot."""
    never: Probabilities
    """(people,)"""

    @property
    def risk(self) -> Probabilities:
        """(people,) of having been infected."""
        return np.asarray(self.before + self.in_slot.sum(axis=0))

    @property
    def shares(self) -> Floats:
        """(1 + slots, people) shares of the risk: before the first slot, in each slot.

        They add up to 1 for each person; all are 0 if there is no risk.
        """
        parts = np.concatenate([self.before[None], self.in_slot])
        return np.asarray(parts / np.maximum(self.risk, _TINY))


def current_risk(cohort: Cohort, received: EdgeMessages) -> Now:
    """Compute the risk of being infected after the last slot."""
    aside = state_probabilities(cohort, received, with_tests=False)
    tested = state_probabilities(cohort, received, with_tests=True)
    return Now(
        np.clip(aside[:, 1] + aside[:, 2], 0.0, 1.0),
        np.clip(tested[:, 1] + tested[:, 2], 0.0, 1.0),
        np.clip(1 - tested[:, 0], 0.0, 1.0),
    )


def state_probabilities(
    cohort: Cohort, received: EdgeMessages, *, with_tests: bool
) -> Floats:
    """(people, 4) probability of S, E, I, R after the slots of ``received``."""
    people = cohort.traces.people
    found = np.empty((people, 4))

    def work(part: int) -> None:
        states_after(
            people * part // _PARTS,
            people * (part + 1) // _PARTS,
            cohort.state,
            received,
            cohort.rates,
            with_tests,
            found,
        )

    each_part(work, _PARTS, _COST * people * len(received.day))
    return found


def infections(
    cohort: Cohort, received: EdgeMessages, *, with_tests: bool = False
) -> Infections:
    """Compute when people were infected, if at all."""
    people, slots = cohort.traces.people, cohort.traces.slots
    found = np.empty((2 + slots, people))
    infection_slots(0, people, cohort.state, received, cohort.rates, with_tests, found)
    return Infections(found[1:-1], found[0], found[-1])
