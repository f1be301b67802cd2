"""Reproduction numbers: the hazard R0, and the empirical R0 from secondary cases.

An infectious person in a region with N people present exposes each of the
N - 1 others to the hazard kappa beta / N, together kappa beta (1 - 1/N). With
m the mean of 1 - 1/N over all observed (person, slot) pairs,

    hazard R0 = kappa beta m D,    D = expected infectious days = 1 / mu.

It is an upper bound of the secondary cases of one case (``empirical_r0``): a person can
be infected only once, and m excludes slots in which a person is not observed.
"""

import math
from dataclasses import dataclass

import numpy as np

from epifalcon._numba import njit
from epifalcon.checks import at_least
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.sellke import draw_factors, draw_infectiousness, whole_slots
from epifalcon.epidemic.settings import ContactTerm, OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import Counts, Floats, RegionIds

CERTAIN = 1e300
"""Hazard of a certain infection; finite, since inf - inf is NaN."""


def mean_share_of_others(traces: Traces, contact: ContactTerm = "I/N") -> float:
    """Compute m, the mean share of the hazard that acts on other people.

    The mean over observed (person, slot) pairs of 1 - 1/N for ``I/N``; for ``I/S``,
    where a case causes its whole hazard if others are present, the share of such pairs.
    """
    observed = lost = 0
    for slot in range(traces.slots):
        crowd = traces.occupancy(slot)
        observed += int(crowd.sum())
        # 1/N summed over the people of a region and slot is 1.
        lost += int(np.count_nonzero(crowd if contact == "I/N" else crowd == 1))
    if observed == 0:
        raise DataError("nobody was observed in any slot, so there are no contacts")
    return 1 - lost / observed


def hazard_r0(
    traces: Traces, pathogen: Pathogen, settings: OutbreakSettings, kappa: float
) -> float:
    """Compute the hazard R0 of ``pathogen`` on ``traces`` for a factor ``kappa``."""
    share = mean_share_of_others(traces, settings.contact)
    return kappa * pathogen.beta * share * settings.mean_infectious_days(pathogen)


def resolve_kappa(traces: Traces, pathogen: Pathogen, rule: OutbreakSettings) -> float:
    """Compute the factor kappa on every hazard; "r0" is computed from the traces."""
    is_fixed = not isinstance(rule.kappa, str)
    share = 0.0 if is_fixed else mean_share_of_others(traces, rule.contact)
    return kappa_by_share(share, pathogen, rule)


def kappa_by_share(share: float, pathogen: Pathogen, rule: OutbreakSettings) -> float:
    """Compute the factor kappa from ``mean_share_of_others``; 1 if that is 0."""
    if not isinstance(rule.kappa, str):
        return rule.kappa
    if share == 0 or pathogen.beta == 0:
        return 1.0
    reached = pathogen.beta * share * rule.mean_infectious_days(pathogen)
    if reached == 0:
        raise SettingsError(
            f"R0={pathogen.r0:.3g} cannot be reached: nobody is ever infectious"
        )
    return pathogen.r0 / reached


@njit()
def slot_hazard(dose: float, linear: bool) -> float:
    """Compute the hazard of a slot from ``dose`` = kappa beta dt W / N.

    The probability of infection is 1 - exp(-dose), or min(dose, 1) if ``linear``.
    """
    if linear:
        return CERTAIN if dose >= 1 else -math.log1p(-dose)
    return min(dose, CERTAIN)


@dataclass(frozen=True)
class EmpiricalR0:
    """Mean number of expected secondary cases of random index people."""

    mean: float
    standard_error: float


def empirical_r0(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    rng: np.random.Generator,
    index_people: int = 500,
) -> EmpiricalR0:
    """Compute the expected secondary cases of one case in a susceptible population.

    For each of ``index_people`` random people, infectious from a random slot until
    recovery, computes the expected number of others infected; traces that are too short
    are repeated. Variation of regions and people is drawn again for each index person.
    """
    at_least(1, index_people=index_people)
    clock, kappa = traces.clock, resolve_kappa(traces, pathogen, settings)
    person = rng.integers(traces.people, size=index_people).astype(np.int32)
    start = rng.integers(traces.slots, size=index_people)
    duration, onset = (
        whole_slots(rng.exponential(size=index_people), rate, settings.chance, clock)
        for rate in (pathogen.mu, settings.onset_rate)
    )
    symptomatic = rng.random(index_people) < settings.symptomatic_share
    silent_for = np.where(symptomatic, np.minimum(duration, onset), duration)
    force = kappa * pathogen.beta * clock.slot_days
    force_of = force * draw_infectiousness(index_people, settings, rng)
    cases = np.empty(index_people)
    for index in range(index_people):
        factor = draw_factors(len(traces.regions), settings, rng)
        later = (np.arange(traces.slots) - start[index]) % traces.slots
        visits = _visits(later, duration[index], silent_for[index])
        cases[index] = expected_cases(
            traces.by_slot,
            person[index],
            visits,
            force_of[index],
            settings.asymptomatic_weight,
            settings.chance == "linear",
            settings.contact == "I/S",
            factor,
        )
    spread = cases.std(ddof=1) if index_people > 1 else 0.0
    return EmpiricalR0(float(cases.mean()), float(spread / np.sqrt(index_people)))


def _visits(later: Counts, duration: float, silent_for: float) -> Floats:
    """Count how often a person is infectious in each slot: (2, slots).

    The rows are without and with symptoms. ``later`` (slots,) is the number of slots
    from the start to the first occurrence of each slot; the traces are repeated.
    """
    ends = np.array([[duration], [silent_for]])
    whole, without = np.maximum(np.ceil((ends - later) / len(later)), 0)
    return np.stack([without, whole - without])


@njit()
def expected_cases(
    by_slot: RegionIds,
    index_person: int,
    visits: Floats,
    force: float,
    silent_weight: float,
    linear: bool,
    over_susceptible: bool,
    factor: Floats,
) -> float:
    """Compute the expected number of people infected by the index person.

    ``visits`` (2, slots): how often the person is infectious in each slot, without and
    with symptoms. ``factor`` (regions,) multiplies the hazard of each region.
    """
    hazard = np.zeros(by_slot.shape[1])
    for slot in range(by_slot.shape[0]):
        here = by_slot[slot]
        region = here[index_person]
        if region < 0 or visits[0, slot] + visits[1, slot] == 0:
            continue
        crowd = (here == region).sum() - over_susceptible
        if crowd == 0:
            continue
        dose = force / crowd * factor[region]
        handed = visits[1, slot] * slot_hazard(dose, linear)
        if visits[0, slot] > 0:
            dose = silent_weight * force / crowd * factor[region]
            handed += visits[0, slot] * slot_hazard(dose, linear)
        for person in range(here.size):
            if here[person] == region:
                hazard[person] += handed
    hazard[index_person] = 0.0
    total: float = -np.expm1(-hazard).sum()
    return total
