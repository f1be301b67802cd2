"""The compiled loops of the simulator; the order of a slot stands in ``seir``.

Each slot costs one pass over everybody to count who is where, one to hand out
hazard, and some over the people who are exposed or infectious. Nothing larger
than a few numbers per person and per region is held. One thread does it all,
so that the result cannot depend on their number.

All compiled code that calls each other stands in this file: numba's cache would
not notice a change in another one.
"""

import math

import numba
import numpy as np

from epifalcon.epidemic.sellke import Draws, SlotCounts
from epifalcon.epidemic.spread_records import (
    Lives,
    Luck,
    Places,
    Rule,
    empty_places,
    untouched,
)
from epifalcon.epidemic.variation import Variation
from epifalcon.types import Floats, Mask, PersonIds, RegionIds, Slots

CERTAIN = 1e300
"""A hazard that infects everybody; finite, as infinity less infinity is no number."""


def spread(
    by_slot: RegionIds,
    regions: int,
    draws: Draws,
    seeds: Mask,
    rule: Rule,
    variation: Variation,
) -> Lives:
    """Run all slots of ``by_slot`` (slots, people) from ``seeds`` (people,)."""
    lives = untouched(draws.resistance)
    counts_as = variation.infectiousness
    chance = Luck(
        draws.source_choice,
        draws.latent_slots,
        draws.infectious_slots,
        draws.onset_slots,
        # A copy may be written to, so that all calls share one compiled form.
        np.empty(0) if counts_as is None else counts_as.copy(),
    )
    places = empty_places(variation.factors(regions))
    _run(by_slot, places, chance, lives, seeds, rule)
    return lives


@numba.njit(cache=True)
def _run(
    by_slot: RegionIds,
    places: Places,
    chance: Luck,
    lives: Lives,
    seeds: Mask,
    rule: Rule,
) -> None:
    """All slots in turn; fills ``lives``."""
    people = by_slot.shape[1]
    # Everybody exposed or infectious, always in order of person.
    active = np.empty(people, np.int32)
    carriers = np.empty(people, np.int32)
    fresh = np.empty(people, np.int32)
    line = np.empty(people, np.int32)
    actives = 0
    for person in range(people):
        if seeds[person]:
            wait = chance.latent[person] if rule.exposed_seeds else 0
            _infect(person, 0, wait, chance, lives)
            active[actives] = person
            actives += 1
    for slot in range(by_slot.shape[0]):
        here = by_slot[slot]
        actives = _drop_recovered(active[:actives], lives.recovery, slot)
        if actives == 0:
            break
        found, touched = _find_carriers(
            active[:actives], here, slot, lives, (carriers, places)
        )
        if found == 0:
            continue
        if not rule.alike:
            _weigh(carriers[:found], here, slot, (lives, chance, places), rule)
        _count_crowd(here, lives.resistance_left, places.crowd, rule)
        _set_hazard(places, touched, rule)
        infected = _expose(here, lives.resistance_left, places.hazard, fresh)
        _line_up(
            carriers[:found], fresh[:infected], here, slot, (lives.onset, places, line)
        )
        for person in fresh[:infected]:
            _infect(person, slot, chance.latent[person], chance, lives)
            lives.source_region[person] = here[person]
            place, choice = here[person] + 1, chance.source_choice[person]
            if rule.alike:
                source = _source(place, choice, places, line, rule)
            else:
                counts_as = chance.infectiousness
                source = _uneven_source(
                    place, choice, places, line, (counts_as, rule.silent_weight)
                )
            lives.source_person[person] = source
        actives = _merge(active, actives, fresh[:infected])
        _clear(places, touched)


@numba.njit(cache=True)
def _infect(person: int, slot: int, wait: int, chance: Luck, lives: Lives) -> None:
    infectious = slot + wait
    recovery = infectious + chance.infectious[person]
    onset = infectious + chance.onset[person]
    lives.infection[person] = slot
    lives.infectious[person] = infectious
    lives.recovery[person] = recovery
    if chance.onset[person] > 0 and onset < recovery:
        lives.onset[person] = onset
    lives.resistance_left[person] = math.inf


@numba.njit(cache=True)
def _drop_recovered(active: PersonIds, recovery: Slots, slot: int) -> int:
    kept = 0
    for person in active:
        active[kept] = person
        kept += recovery[person] > slot
    return kept


@numba.njit(cache=True)
def _find_carriers(
    active: PersonIds,
    here: RegionIds,
    slot: int,
    lives: Lives,
    out: tuple[PersonIds, Places],
) -> tuple[int, int]:
    """List the infectious who are observed, and count them in their regions.

    Returns how many they are and in how many regions. There are no branches in
    the loop: they would be guessed wrong too often.
    """
    carriers, places = out
    found = touched = 0
    for person in active:
        carriers[found] = person
        found += lives.infectious[person] <= slot and here[person] >= 0
    for person in carriers[:found]:
        place = here[person] + 1
        places.touched[touched] = place
        touched += places.ill[place] + places.silent[place] == 0
        is_ill = lives.onset[person] <= slot
        places.ill[place] += is_ill
        places.silent[place] += not is_ill
    return found, touched


@numba.njit(cache=True)
def _weigh(
    carriers: PersonIds,
    here: RegionIds,
    slot: int,
    told: tuple[Lives, Luck, Places],
    rule: Rule,
) -> None:
    """Add up in every region what its infectious count as."""
    lives, chance, places = told
    for person in carriers:
        counts_as = chance.infectiousness[person]
        if lives.onset[person] > slot:
            counts_as *= rule.silent_weight
        places.weight[here[person] + 1] += counts_as


@numba.njit(cache=True)
def _count_crowd(
    here: RegionIds, resistance_left: Floats, crowd: SlotCounts, rule: Rule
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
def slot_hazard(dose: float, linear: bool) -> float:
    """The hazard of a slot from ``dose`` = kappa beta dt W / N.

    Infects with the chance 1 - exp(-dose), or, if ``linear``, min(dose, 1).
    """
    if linear:
        return CERTAIN if dose >= 1 else -math.log1p(-dose)
    return min(dose, CERTAIN)


@numba.njit(cache=True)
def _set_hazard(places: Places, touched: int, rule: Rule) -> None:
    for place in places.touched[:touched]:
        if rule.alike:
            weight = places.ill[place] + rule.silent_weight * places.silent[place]
        else:
            weight = places.weight[place]
        if places.crowd[place] > 0:
            dose = rule.force * (weight / places.crowd[place]) * places.factor[place]
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
def _line_up(
    carriers: PersonIds,
    fresh: PersonIds,
    here: RegionIds,
    slot: int,
    out: tuple[Slots, Places, PersonIds],
) -> None:
    """Put the carriers of every region with a fresh case side by side in ``line``.

    A region's ill come first, then its silent, each in order of person. Finding
    a source is then one step, however many carriers a region has.
    """
    onset, places, line = out
    end = 0
    for person in fresh:
        place = here[person] + 1
        if places.ill_end[place] < 0:
            places.ill_end[place] = end
            places.silent_end[place] = end + places.ill[place]
            end += places.ill[place] + places.silent[place]
    for person in carriers:
        place = here[person] + 1
        if places.ill_end[place] < 0:
            continue
        ends = places.ill_end if onset[person] <= slot else places.silent_end
        line[ends[place]] = person
        ends[place] += 1


@numba.njit(cache=True)
def _source(
    place: int, choice: float, places: Places, line: PersonIds, rule: Rule
) -> int:
    """The carrier on whose share of the region's weight ``choice`` falls."""
    ill, silent = places.ill[place], places.silent[place]
    weight = rule.silent_weight
    at = choice * (ill + weight * silent)
    # The smaller of two guards against rounding at the end of the line.
    if at < ill or silent == 0 or weight == 0:
        index = places.ill_end[place] - ill + min(int(at), ill - 1)
    else:
        rank = min(int((at - ill) / weight), silent - 1)
        index = places.silent_end[place] - silent + rank
    source: int = line[index]
    return source


@numba.njit(cache=True)
def _uneven_source(
    place: int,
    choice: float,
    places: Places,
    line: PersonIds,
    weights: tuple[Floats, float],
) -> int:
    """The same where carriers count as different numbers of people."""
    counts_as, silent_weight = weights
    left = choice * places.weight[place]
    source, end = -1, places.ill_end[place]
    start = end - places.ill[place]
    for index in range(start, end + places.silent[place]):
        weight = counts_as[line[index]]
        if index >= end:
            weight *= silent_weight
        if weight > 0:
            source = line[index]
            left -= weight
            if left < 0:
                break
    return source


@numba.njit(cache=True)
def _merge(active: PersonIds, actives: int, fresh: PersonIds) -> int:
    """Put ``fresh`` into ``active``, both in order of person, from the back."""
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


@numba.njit(cache=True)
def _clear(places: Places, touched: int) -> None:
    for place in places.touched[:touched]:
        places.hazard[place] = 0.0
        places.silent[place] = 0
        places.ill[place] = 0
        places.ill_end[place] = -1
        places.weight[place] = 0.0


@numba.njit(cache=True)
def expected_cases(
    by_slot: RegionIds,
    index_person: int,
    visits: Floats,
    rule: tuple[float, float, bool, bool],
    factor: Floats,
) -> float:
    """Sum over all others of the chance that the index person infects them.

    ``factor`` (regions,) is on the hazard of each region.
    """
    force, silent_weight, linear, over_susceptible = rule
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
