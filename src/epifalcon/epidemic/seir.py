"""The simulator: a disease carried from person to person by being in one place.

Time goes by slots of dt days. The order within slot t, written down once:

1. *Clocks.* Whose latent time is over becomes infectious, whose infectious time
   is over recovers, whose onset has come shows symptoms. Recovery goes first:
   who would get symptoms in the slot of recovery gets none.
2. *Places.* In every region r: N people observed there, W the infectious among
   them, those without symptoms weighted.
3. *Exposure.* Every susceptible person in r gathers the hazard
   kappa beta dt W / N (law ``I/N``) or kappa beta dt W / S, S the susceptible
   present (law ``I/S``). Who is not observed gathers nothing, but the clocks
   of step 1 run on.
4. *Infection.* Whose gathered hazard has reached the own resistance is infected
   in slot t: exposed from t, infectious in t + 1 at the earliest, so that people
   infected in one slot do not infect each other in it. The source is one of the
   infectious present in r in slot t, chosen in proportion to weight.

With ``chance="linear"`` step 3 adds -log(1 - p) with p = kappa beta dt W / N
(infinite for p of 1 or more), which makes the chance of the slot exactly p.
Under ``I/S`` the chance is bounded by 1 in both cases; nothing else caps it.
"""

import math
from typing import NamedTuple

import numba
import numpy as np

from epifalcon.epidemic.hazard import resolve_kappa, slot_hazard
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import Pathogen
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.epidemic.sellke import Draws, SlotCounts
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Floats, Mask, PersonIds, RegionIds, Slots

_NEVER = np.iinfo(np.int32).max


def simulate(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    rng: np.random.Generator,
) -> Outbreak:
    """Run a disease through the city: the paper's simulator settings.

    Equal traces, settings and generator state give the same outbreak, bit by
    bit, on any number of threads. Cost is linear in people times slots; memory
    is a few numbers per person and region.
    """
    draws = Draws.sample(traces.people, pathogen, settings, traces.clock, rng)
    return replay(traces, pathogen, settings, draws)


def replay(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    draws: Draws,
    kappa: float | None = None,
) -> Outbreak:
    """The outbreak that follows from ``draws``; no chance is left.

    ``kappa`` (default: what the settings say) lets calibration try many values
    without working out "r0" each time.
    """
    if len(draws) != traces.people:
        raise DataError(f"draws for {len(draws)} people, traces of {traces.people}")
    if kappa is None:
        kappa = resolve_kappa(traces, pathogen, settings)
    seeds = choose_seeds(traces, pathogen, settings, draws)
    rule = _Rule(
        force=kappa * pathogen.beta * traces.clock.slot_days,
        silent_weight=settings.asymptomatic_weight,
        linear=settings.chance == "linear",
        over_susceptible=settings.contact == "I/S",
        exposed_seeds=settings.seed_state == "exposed",
    )
    cases = _no_cases(draws.resistance)
    chance = _Chance(
        draws.source_choice,
        draws.latent_slots,
        draws.infectious_slots,
        draws.onset_slots,
    )
    _run(traces.by_slot, _new_places(len(traces.regions)), chance, cases, seeds, rule)
    return _record(traces, pathogen, settings, cases, (seeds, kappa))


def choose_seeds(
    traces: Traces, pathogen: Pathogen, settings: OutbreakSettings, draws: Draws
) -> Mask:
    """Who starts the outbreak: (people,) mask."""
    seeds = np.zeros(traces.people, np.bool_)
    if settings.seed_people:
        chosen = np.array(settings.seed_people)
        if chosen.max() >= traces.people:
            raise SettingsError(
                f"seed_people holds {chosen.max()}, the city has {traces.people} people"
            )
        seeds[chosen] = True
        return seeds
    qualified = _qualified(traces, settings.seed_regions)
    count = settings.wished_seeds(pathogen, len(qualified))
    if count > len(qualified):
        raise SettingsError(
            f"seed_count={count} is more than the {len(qualified)} people who qualify"
        )
    if 0 < count < len(qualified):
        order = np.argpartition(draws.seed_order[qualified], count)
        qualified = qualified[order]
    seeds[qualified[:count]] = True
    return seeds


def _qualified(traces: Traces, regions: tuple[int, ...]) -> PersonIds:
    if not regions:
        return np.arange(traces.people, dtype=np.int32)
    if max(regions) >= len(traces.regions):
        raise SettingsError(
            f"seed_regions holds {max(regions)}, "
            f"the city has {len(traces.regions)} regions"
        )
    first = traces.by_slot[0].copy()
    for here in traces.by_slot[1:]:
        missing = first == UNKNOWN
        if not missing.any():
            break
        first[missing] = here[missing]
    return np.flatnonzero(np.isin(first, regions)).astype(np.int32)


class _Rule(NamedTuple):
    force: float
    silent_weight: float
    linear: bool
    over_susceptible: bool
    exposed_seeds: bool


class _Chance(NamedTuple):
    source_choice: Floats
    latent: Slots
    infectious: Slots
    onset: Slots


class _Cases(NamedTuple):
    """What is known of each person so far; (people,) each."""

    infection: Slots
    infectious: Slots
    onset: Slots
    recovery: Slots
    source_person: PersonIds
    source_region: RegionIds
    resistance_left: Floats


class _Places(NamedTuple):
    """What is known of each region in this slot; entry 0 is "not observed"."""

    crowd: SlotCounts
    silent: SlotCounts
    ill: SlotCounts
    hazard: Floats
    first: PersonIds
    touched: RegionIds


def _no_cases(resistance: Floats) -> _Cases:
    people = len(resistance)
    return _Cases(
        infection=np.full(people, _NEVER, np.int32),
        infectious=np.full(people, _NEVER, np.int32),
        onset=np.full(people, _NEVER, np.int32),
        recovery=np.full(people, _NEVER, np.int32),
        source_person=np.full(people, -1, np.int32),
        source_region=np.full(people, UNKNOWN, np.int32),
        resistance_left=resistance.copy(),
    )


def _new_places(regions: int) -> _Places:
    return _Places(
        crowd=np.zeros(regions + 1, np.int32),
        silent=np.zeros(regions + 1, np.int32),
        ill=np.zeros(regions + 1, np.int32),
        hazard=np.zeros(regions + 1),
        first=np.full(regions + 1, -1, np.int32),
        touched=np.empty(regions + 1, np.int32),
    )


def _record(
    traces: Traces,
    pathogen: Pathogen,
    settings: OutbreakSettings,
    cases: _Cases,
    used: tuple[Mask, float],
) -> Outbreak:
    slots = traces.slots

    def within(when: Slots) -> Slots:
        return np.where(when < slots, when, np.int32(-1))

    seeds, kappa = used
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
    )


@numba.njit(cache=True)
def _run(
    by_slot: RegionIds,
    places: _Places,
    chance: _Chance,
    cases: _Cases,
    seeds: Mask,
    rule: _Rule,
) -> None:
    """All slots in turn; fills ``cases``."""
    people = by_slot.shape[1]
    # Everybody exposed or infectious, the last person first.
    active = np.empty(people, np.int32)
    fresh = np.empty(people, np.int32)
    following = np.empty(people, np.int32)
    actives = 0
    for person in np.flatnonzero(seeds)[::-1]:
        wait = chance.latent[person] if rule.exposed_seeds else 0
        _infect(person, 0, wait, chance, cases)
        active[actives] = person
        actives += 1
    for slot in range(by_slot.shape[0]):
        here = by_slot[slot]
        lists = (places, following)
        actives, touched = _place_infectious(active[:actives], here, slot, cases, lists)
        if actives == 0:
            break
        if touched == 0:
            continue
        _count_crowd(here, cases.resistance_left, places.crowd, rule)
        _set_hazard(places, touched, rule)
        count = _expose(here, cases.resistance_left, places.hazard, fresh)
        for person in fresh[:count]:
            _infect(person, slot, chance.latent[person], chance, cases)
            choice = chance.source_choice[person]
            source = _source(here[person] + 1, choice, lists, cases.onset, (slot, rule))
            cases.source_person[person] = source
            cases.source_region[person] = here[person]
        actives = _merge(active, actives, fresh[:count])
        _clear(places, touched)


@numba.njit(cache=True)
def _infect(person: int, slot: int, wait: int, chance: _Chance, cases: _Cases) -> None:
    infectious = slot + wait
    recovery = infectious + chance.infectious[person]
    onset = infectious + chance.onset[person]
    cases.infection[person] = slot
    cases.infectious[person] = infectious
    cases.recovery[person] = recovery
    if chance.onset[person] > 0 and onset < recovery:
        cases.onset[person] = onset
    # No further hazard can reach this person.
    cases.resistance_left[person] = math.inf


@numba.njit(cache=True)
def _place_infectious(
    active: PersonIds,
    here: RegionIds,
    slot: int,
    cases: _Cases,
    lists: tuple[_Places, PersonIds],
) -> tuple[int, int]:
    """Drop the recovered; count and chain the infectious of each region.

    ``places.first`` and ``following`` chain them in order of person, since the
    last person comes first in ``active``. Returns how many people are left
    and how many regions hold infectious ones.
    """
    places, following = lists
    kept = touched = 0
    for person in active:
        if cases.recovery[person] <= slot:
            continue
        active[kept] = person
        kept += 1
        place = here[person] + 1
        if place == 0 or cases.infectious[person] > slot:
            continue
        # No branches here: they would be guessed wrong half of the time.
        ill = cases.onset[person] <= slot
        places.ill[place] += ill
        places.silent[place] += not ill
        places.touched[touched] = place
        touched += places.first[place] < 0
        following[person] = places.first[place]
        places.first[place] = person
    return kept, touched


@numba.njit(cache=True)
def _count_crowd(
    here: RegionIds, resistance_left: Floats, crowd: SlotCounts, rule: _Rule
) -> None:
    crowd[:] = 0
    # An unsigned index spares the test for negative ones.
    if rule.over_susceptible:
        for person in range(here.size):
            crowd[np.uint32(here[person] + 1)] += resistance_left[person] < math.inf
    else:
        for person in range(here.size):
            crowd[np.uint32(here[person] + 1)] += 1


@numba.njit(cache=True)
def _set_hazard(places: _Places, touched: int, rule: _Rule) -> None:
    for place in places.touched[:touched]:
        weight = places.ill[place] + rule.silent_weight * places.silent[place]
        if places.crowd[place] == 0:
            continue
        dose = rule.force * (weight / places.crowd[place])
        places.hazard[place] = slot_hazard(dose, rule.linear)


@numba.njit(cache=True)
def _expose(
    here: RegionIds, resistance_left: Floats, hazard: Floats, fresh: PersonIds
) -> int:
    """Take the slot's hazard off everybody; list the infected in ``fresh``.

    People infected before have infinite resistance. To walk over them too is
    three times faster than to keep a list of the susceptible.
    """
    infected = 0
    for person in range(here.size):
        left = resistance_left[person] - hazard[np.uint32(here[person] + 1)]
        resistance_left[person] = left
        if left <= 0:
            fresh[infected] = person
            infected += 1
    return infected


@numba.njit(cache=True)
def _source(
    place: int,
    choice: float,
    lists: tuple[_Places, PersonIds],
    onset: Slots,
    now: tuple[int, _Rule],
) -> int:
    """The infectious person whose share of the weight, in order, holds ``choice``."""
    places, following = lists
    slot, rule = now
    left = choice * (places.ill[place] + rule.silent_weight * places.silent[place])
    source = -1
    person = places.first[place]
    while person >= 0:
        weight = 1.0 if onset[person] <= slot else rule.silent_weight
        if weight > 0:
            source = person
            left -= weight
            if left < 0:
                break
        person = following[person]
    return source


@numba.njit(cache=True)
def _merge(active: PersonIds, actives: int, fresh: PersonIds) -> int:
    """Put ``fresh``, in order of person, into ``active``, from the back."""
    old, new = actives - 1, 0
    place = old + fresh.size
    while new < fresh.size:
        if old >= 0 and active[old] < fresh[new]:
            active[place] = active[old]
            old -= 1
        else:
            active[place] = fresh[new]
            new += 1
        place -= 1
    return actives + fresh.size


@numba.njit(cache=True)
def _clear(places: _Places, touched: int) -> None:
    for place in places.touched[:touched]:
        places.hazard[place] = 0.0
        places.silent[place] = 0
        places.ill[place] = 0
        places.first[place] = -1
