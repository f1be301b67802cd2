"""The SEIR simulator: transmission between people in the same region and slot.

Time advances in slots of dt days. The order of steps within slot t:

1. *Transitions.* People whose latent time is over become infectious, people whose
   infectious time is over recover, people whose onset is due develop symptoms.
   Recovery comes first: with onset in the slot of recovery there are no symptoms.
2. *Occupancy.* In every region r, count the N people observed there and the total
   infectiousness W of the infectious among them. Each counts as its infectiousness
   (1 by default), times ``asymptomatic_weight`` while without symptoms.
3. *Exposure.* Every susceptible person in r accumulates the hazard
   kappa beta dt f W / N (``contact="I/N"``) or kappa beta dt f W / S (``"I/S"``), where
   S is the number of susceptible people present and f the region's factor (1 by
   default). Unobserved people accumulate nothing, but step 1 still applies to them.
4. *Infection.* A person whose accumulated hazard has reached its threshold is
   infected in slot t: exposed from t, infectious in t + 1 at the earliest, so that
   people infected in one slot do not infect each other in it. The source is one of
   the infectious people in r in slot t, drawn in proportion to infectiousness by
   inverting the cumulative sum: first people with symptoms, then people without,
   each in order of person.

With ``chance="linear"`` step 3 adds -log(1 - p) with p = kappa beta dt f W / N
(infinite for p >= 1), so that the probability of infection in the slot is exactly p.
"""

import math
from typing import NamedTuple

import numpy as np

from epifalcon._numba import njit
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.reproduction_number import resolve_kappa, slot_hazard
from epifalcon.epidemic.sellke import HOMOGENEOUS, SellkeDraws, SlotCounts, Variation
from epifalcon.epidemic.settings import OutbreakSettings, default_outbreak
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.streams import Streams
from epifalcon.types import UNKNOWN, Floats, Mask, PersonIds, RegionIds, Slots


def simulate(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings | None = None,
    rng: np.random.Generator | None = None,
    *,
    seed: int = 0,
) -> Outbreak:
    """Simulate an outbreak on ``traces``.

    Equal traces, settings and seed give the same outbreak, bit for bit: that of
    ``epifalcon run`` with this seed. The cost is linear in people times slots.

    Args:
        traces: Where people are, (slots, people).
        pathogen: Rates of the disease, such as ``SARS_COV_2``.
        settings: Rule of transmission and the initial infections; by default the
            paper's rule with 2 % of the people infected at the start.
        rng: Generator of all draws, instead of ``seed``.
        seed: Seed of all draws.

    Returns:
        When each person was infected, infectious and recovered, and by whom.
    """
    if not isinstance(traces, Traces) or not isinstance(pathogen, Pathogen):
        raise SettingsError(
            "simulate takes (traces, pathogen), that is Traces and a Pathogen such as "
            f"SARS_COV_2, not {type(traces).__name__} and {type(pathogen).__name__}"
        )
    if pathogen.is_unknown:
        raise SettingsError(
            "pathogen='unknown': an outbreak needs rates to be simulated: name another"
        )
    settings = default_outbreak() if settings is None else settings
    streams = Streams(seed)
    draw = streams.numpy("outbreak") if rng is None else rng
    draws = SellkeDraws.sample(traces.people, pathogen, settings, traces.clock, draw)
    if rng is not None and not settings.even:
        streams = Streams(int(rng.integers(2**63)))
    variation = Variation.sample(traces, settings, streams)
    return replay(traces, pathogen, settings, draws, variation)


def replay(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    draws: SellkeDraws,
    variation: Variation = HOMOGENEOUS,
) -> Outbreak:
    """Simulate the outbreak determined by ``draws``, without further randomness."""
    if len(draws) != traces.people:
        raise DataError(
            f"draws are for {len(draws)} people, the traces have {traces.people}"
        )
    kappa = resolve_kappa(traces, pathogen, settings)
    variation.require_fit(settings, traces.people, len(traces.regions))
    seeds = _choose_seeds(traces, pathogen, settings, draws)
    cases = _Cases.none(traces.people)
    infectiousness = variation.infectiousness
    _run(
        traces.by_slot,
        draws.threshold.copy(),
        draws.source_choice,
        draws.latent_slots,
        draws.infectious_slots,
        draws.onset_slots,
        # A copy is writable, so that all calls share one compiled signature.
        np.ones(traces.people) if infectiousness is None else infectiousness.copy(),
        np.append(1.0, variation.factors(len(traces.regions))),
        seeds,
        settings.seed_state == "exposed",
        kappa * pathogen.beta * traces.clock.slot_days,
        settings.asymptomatic_weight,
        settings.chance == "linear",
        settings.contact == "I/S",
        cases,
    )

    def within(when: Slots) -> Slots:
        return np.where(when < traces.slots, when, np.int32(-1))

    return Outbreak(
        infection_slot=within(cases.infection),
        infectious_slot=within(cases.infectious),
        onset_slot=within(cases.onset),
        recovery_slot=within(cases.recovery),
        source_person=cases.source_person,
        source_region=cases.source_region,
        seeds=seeds,
        clock=traces.clock,
        pathogen=pathogen,
        settings=settings,
        kappa=kappa,
        variation=variation,
    )


def _choose_seeds(
    traces: Traces, pathogen: Pathogen, settings: OutbreakSettings, draws: SellkeDraws
) -> Mask:
    """Return a mask of the people who are infected at the start: (people,)."""
    seeds = np.zeros(traces.people, np.bool_)
    if settings.seed_people:
        chosen = np.array(settings.seed_people)
        if chosen.max() >= traces.people:
            raise SettingsError(
                f"seed_people holds {chosen.max()}, the city has {traces.people} people"
            )
        seeds[chosen] = True
        return seeds
    qualified, regions = np.arange(traces.people), settings.seed_regions
    if regions:
        if max(regions) >= len(traces.regions):
            raise SettingsError(
                f"seed_regions holds {max(regions)}, "
                f"the city has {len(traces.regions)} regions"
            )
        slot = (traces.by_slot != UNKNOWN).argmax(axis=0)
        first = traces.by_slot[slot, qualified]
        qualified = np.flatnonzero(np.isin(first, regions))
    count = settings.requested_seeds(pathogen, len(qualified))
    if count > len(qualified):
        raise SettingsError(
            f"seed_count={count} is more than the {len(qualified)} people who qualify"
        )
    if 0 < count < len(qualified):
        order = np.argpartition(draws.seed_order[qualified], count)
        qualified = qualified[order]
    seeds[qualified[:count]] = True
    return seeds


_NEVER = np.iinfo(np.int32).max


class _Cases(NamedTuple):
    """Slots and source of each person's infection; arrays are (people,).

    Slots may lie after the end of the clock.
    """

    infection: Slots
    infectious: Slots
    onset: Slots
    recovery: Slots
    source_person: PersonIds
    source_region: RegionIds

    @classmethod
    def none(cls, people: int) -> "_Cases":
        first = [_NEVER, _NEVER, _NEVER, _NEVER, UNKNOWN, UNKNOWN]
        return cls._make(np.full(people, value, np.int32) for value in first)


@njit()
def _run(
    by_slot: RegionIds,
    threshold: Floats,
    source_choice: Floats,
    latent: SlotCounts,
    infectious: SlotCounts,
    onset: SlotCounts,
    infectiousness: Floats,
    factor: Floats,
    seeds: Mask,
    exposed_seeds: bool,
    force: float,
    asymptomatic_weight: float,
    linear: bool,
    over_susceptible: bool,
    cases: _Cases,
) -> None:
    """Simulate all slots and write the events to ``cases``.

    ``threshold`` is decreased in place and becomes infinite on infection. ``factor``
    and all arrays by place have regions + 1 entries: place 0 is "not observed".
    """
    slots, people = by_slot.shape
    places = len(factor)
    crowd = np.zeros(places, np.int32)
    weight, hazard = np.zeros(places), np.zeros(places)
    symptomatic, asymptomatic = np.zeros(places, np.int32), np.zeros(places, np.int32)
    # End of the carriers in ``line`` for places with a new case, -1 elsewhere.
    symptomatic_end, asymptomatic_end = (
        np.full(places, -1, np.int32),
        np.full(places, -1, np.int32),
    )
    touched = np.empty(places, np.int32)
    # All exposed or infectious people, always in order of person.
    active, carriers = np.empty(people, np.int32), np.empty(people, np.int32)
    fresh, line = np.empty(people, np.int32), np.empty(people, np.int32)
    actives = 0
    for person in range(people):
        if seeds[person]:
            wait = latent[person] if exposed_seeds else 0
            _infect(person, 0, wait, infectious, onset, cases)
            threshold[person] = math.inf
            active[actives] = person
            actives += 1
    for slot in range(slots):
        here = by_slot[slot]
        remaining = carrier_count = touched_count = 0
        for person in active[:actives]:
            active[remaining] = person
            remaining += cases.recovery[person] > slot
        actives = remaining
        if actives == 0:
            break
        for person in active[:actives]:
            carriers[carrier_count] = person
            carrier_count += cases.infectious[person] <= slot and here[person] >= 0
        if carrier_count == 0:
            continue
        for person in carriers[:carrier_count]:
            place = here[person] + 1
            touched[touched_count] = place
            touched_count += symptomatic[place] + asymptomatic[place] == 0
            has_symptoms = cases.onset[person] <= slot
            symptomatic[place] += has_symptoms
            asymptomatic[place] += not has_symptoms
            weight[place] += infectiousness[person] * (
                1.0 if has_symptoms else asymptomatic_weight
            )
        crowd[:] = 0
        # An unsigned index avoids the check for negative indices.
        for person in range(people):
            counts = not over_susceptible or threshold[person] < math.inf
            crowd[np.uint32(here[person] + 1)] += counts
        for place in touched[:touched_count]:
            if crowd[place] > 0:
                dose = force * (weight[place] / crowd[place]) * factor[place]
                hazard[place] = slot_hazard(dose, linear)
        # Three times faster than iterating over a list of susceptible people.
        infected = 0
        for person in range(people):
            left = threshold[person] - hazard[np.uint32(here[person] + 1)]
            threshold[person] = left
            if left <= 0:
                fresh[infected] = person
                infected += 1
        # Group the carriers of each place with a new case: first those with
        # symptoms, then those without, each in order of person.
        end = 0
        for person in fresh[:infected]:
            place = here[person] + 1
            if symptomatic_end[place] < 0:
                symptomatic_end[place] = end
                asymptomatic_end[place] = end + symptomatic[place]
                end += symptomatic[place] + asymptomatic[place]
        for person in carriers[:carrier_count]:
            place = here[person] + 1
            if symptomatic_end[place] >= 0:
                ends = (
                    symptomatic_end if cases.onset[person] <= slot else asymptomatic_end
                )
                line[ends[place]] = person
                ends[place] += 1
        for person in fresh[:infected]:
            place = here[person] + 1
            left = source_choice[person] * weight[place]
            middle = symptomatic_end[place]
            for index in range(middle - symptomatic[place], asymptomatic_end[place]):
                share = infectiousness[line[index]]
                if index >= middle:
                    share *= asymptomatic_weight
                if share > 0:
                    cases.source_person[person] = line[index]
                    left -= share
                    if left < 0:
                        break
        for person in fresh[:infected]:
            _infect(person, slot, latent[person], infectious, onset, cases)
            cases.source_region[person] = here[person]
            threshold[person] = math.inf
        actives = _merge(active, actives, fresh[:infected])
        for place in touched[:touched_count]:
            hazard[place] = weight[place] = 0.0
            asymptomatic[place] = symptomatic[place] = 0
            symptomatic_end[place] = -1


@njit()
def _infect(
    person: int,
    slot: int,
    wait: int,
    infectious: SlotCounts,
    onset: SlotCounts,
    cases: _Cases,
) -> None:
    begin = slot + wait
    recovery = begin + infectious[person]
    cases.infection[person] = slot
    cases.infectious[person] = begin
    cases.recovery[person] = recovery
    if onset[person] > 0 and begin + onset[person] < recovery:
        cases.onset[person] = begin + onset[person]


@njit()
def _merge(active: PersonIds, actives: int, fresh: PersonIds) -> int:
    """Merge sorted ``fresh`` into sorted ``active`` in place; return the new length."""
    old, new = actives - 1, fresh.size - 1
    place = actives + new
    while new >= 0:
        if old >= 0 and active[old] > fresh[new]:
            active[place] = active[old]
            old -= 1
        else:
            active[place] = fresh[new]
            new -= 1
        place -= 1
    return actives + fresh.size
