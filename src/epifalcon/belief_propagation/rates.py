"""Per-slot rates of the disease, from a pathogen and the rule of the outbreak."""

import math
from typing import NamedTuple

from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.reproduction_number import kappa_by_share, resolve_kappa
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN

MOST_CHANCE = 1 - 1e-6


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


def force_of_infection(
    traces: Traces, pathogen: Pathogen, rule: OutbreakSettings
) -> float:
    """Return kappa beta dt at the mean weight of infectious people.

    0 if nobody was observed.
    """
    if traces.by_slot.max() == UNKNOWN:
        return 0.0
    kappa = resolve_kappa(traces, pathogen, rule)
    return kappa * _force_at_kappa_1(traces.clock, pathogen, rule)


def force_by_share(
    share: float, clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> float:
    """Return the same from the mean share of others among the people present."""
    kappa = kappa_by_share(share, pathogen, rule)
    return kappa * _force_at_kappa_1(clock, pathogen, rule)


def _force_at_kappa_1(
    clock: Clock, pathogen: Pathogen, rule: OutbreakSettings
) -> float:
    weight = rule.mean_infectious_days(pathogen) * pathogen.mu
    return pathogen.beta * clock.slot_days * weight
