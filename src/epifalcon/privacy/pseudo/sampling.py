"""Compiled sampling of pseudo places within the epidemic domain of each slot.

Every (copy, person) has a random stream of its own, so results depend neither on
threads nor on blocks of people. All draws are exact: from the named distribution
given that the region is free, that is not claimed by the person already.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon._random import State, start, uniform
from epifalcon.mobility.markov import (
    MobilityModel,
    Transitions,
    add_distance_weights,
    distance_weight,
    find_move,
)
from epifalcon.privacy.pseudo.domains import Domains
from epifalcon.types import UNKNOWN, Floats, Mask, RegionIds

_TRIES = 12
_NOT_MET = -2
_LEAST_CHANCE = 1e-30


class Tables(NamedTuple):
    """Visits and moves of a mobility model, arranged for draws within a domain."""

    domain: NDArray[np.int32]
    """(regions,) the domain of each region."""
    member: RegionIds
    """(regions,) all regions, domain by domain."""
    begins: NDArray[np.int64]
    """(domains + 1,) where each domain begins in ``member``."""
    visits: Floats
    """(slots per day, regions) weight of each member for a draw without a past."""
    running: Floats
    """(slots per day, regions) their running total within the domain."""
    nearness: Floats
    """(regions, domains) epsilon times the sum of max(1, d)^-2 over a domain."""
    moves: Transitions


def make_tables(model: MobilityModel, domains: Domains, weight: Floats) -> Tables:
    """Arrange ``weight`` (slots per day, regions) and the model's moves by domain."""
    domain, moves = domains.of_region, model.transitions
    member = np.argsort(domain, kind="stable").astype(np.int32)
    begins = np.concatenate([[0], np.cumsum(domains.sizes)])
    visits = np.ascontiguousarray(weight[:, member])
    running = np.empty(visits.shape)
    for low, past in pairwise(begins.tolist()):
        running[:, low:past] = np.cumsum(visits[:, low:past], axis=1)
    nearness = np.zeros((len(domain), len(domains)))
    if model.epsilon > 0:
        group = domain.astype(np.int64)
        add_distance_weights(moves.point_km, moves.spherical, group, nearness)
    nearness *= model.epsilon
    return Tables(domain, member, begins, visits, running, nearness, moves)


@compiled
def fill_walks(
    tables: Tables,
    true: RegionIds,
    pseudo: RegionIds,
    first: int,
    seeds: NDArray[np.uint64],
    memory: int,
) -> None:
    """Fill pseudo traces with walks through the domain of each slot.

    ``true`` (people, slots) are the traces of people ``first`` and following;
    ``pseudo`` (copies, people, slots) is -1 and gets filled; ``seeds`` (copies,).
    Over a gap of the true trace the walk stands still and then takes one step.
    Without ``memory`` (0) each place is drawn independently.
    """
    state, taken = np.zeros(1, np.uint64), np.zeros(len(tables.domain), np.bool_)
    for person in range(len(true)):
        for copy in range(len(pseudo)):
            start(state, seeds[copy], first + person)
            last = UNKNOWN
            for slot in range(true.shape[1]):
                here = true[person, slot]
                if here == UNKNOWN:
                    continue
                _mark(taken, here, pseudo[:copy, person, slot], True)
                domain = tables.domain[here]
                made = _draw_next(tables, slot, last, domain, taken, state)
                pseudo[copy, person, slot] = made
                if memory and made != UNKNOWN:
                    last = made
                _mark(taken, here, pseudo[:copy, person, slot], False)


@compiled
def fill_recurring(
    tables: Tables,
    true: RegionIds,
    pseudo: RegionIds,
    first: int,
    seeds: NDArray[np.uint64],
    candidates: int,
) -> None:
    """Fill pseudo traces that map each true region to one pseudo region.

    Arguments as for ``fill_walks``; ``candidates`` is the number of steps of
    the walk among which a pseudo region is chosen. It avoids every true region of
    the person and every pseudo region the person has; where none is left, only
    those of the same slot.
    """
    regions = len(tables.domain)
    state, choice = np.zeros(1, np.uint64), np.empty(candidates, np.int32)
    taken, narrow = np.zeros(regions, np.bool_), np.zeros(regions, np.bool_)
    for person in range(len(true)):
        trace = true[person]
        _mark(taken, UNKNOWN, trace, True)
        for copy in range(len(pseudo)):
            start(state, seeds[copy], first + person)
            image = np.full(regions, _NOT_MET, np.int32)
            last = UNKNOWN
            for slot in range(len(trace)):
                here = trace[slot]
                if here == UNKNOWN:
                    continue
                if image[here] == _NOT_MET:
                    made = _choose_image(
                        tables, trace, slot, last, image, taken, choice, state
                    )
                    if made == UNKNOWN:
                        _mark(narrow, here, pseudo[:copy, person, slot], True)
                        domain = tables.domain[here]
                        made = _draw_next(tables, slot, last, domain, narrow, state)
                        _mark(narrow, here, pseudo[:copy, person, slot], False)
                    image[here] = made
                    if made != UNKNOWN:
                        taken[made] = True
                pseudo[copy, person, slot] = image[here]
                last = last if image[here] == UNKNOWN else image[here]
        taken[:] = False


@compiled
def _choose_image(
    tables: Tables,
    trace: RegionIds,
    slot: int,
    last: int,
    image: RegionIds,
    taken: Mask,
    choice: RegionIds,
    state: State,
) -> int:
    """Choose a pseudo region for the true region of ``slot``; -1 if none is free.

    Candidates are steps of the walk. One is drawn by the probability of the moves
    between it and the pseudo regions chosen before (importance resampling).
    """
    here = trace[slot]
    for number in range(len(choice)):
        choice[number] = _draw_next(
            tables, slot, last, tables.domain[here], taken, state
        )
        if choice[number] == UNKNOWN:
            return UNKNOWN
    score = np.zeros(len(choice))
    for after in range(1, len(trace)):
        one, other = trace[after - 1], trace[after]
        if after == slot or one == UNKNOWN or other == UNKNOWN:
            continue
        if here not in (one, other):
            continue
        if (one != here and image[one] < 0) or (other != here and image[other] < 0):
            continue
        for number in range(len(choice)):
            begin = choice[number] if one == here else image[one]
            end = choice[number] if other == here else image[other]
            score[number] += _log_move(tables, after - 1, begin, end)
    best, total, chosen = score.max(), 0.0, 0
    for number in range(len(choice)):
        weight = np.exp(score[number] - best)
        total += weight
        if uniform(state) * total < weight:
            chosen = number
    return int(choice[chosen])


@compiled
def _log_move(tables: Tables, slot: int, here: int, there: int) -> float:
    """Compute the log of the normalised move; of 1e-30 where it is smaller."""
    moves = tables.moves
    row = slot % len(tables.visits) * len(tables.domain) + here
    value = moves.epsilon * distance_weight(
        moves.point_km, moves.spherical, here, there
    )
    cell = find_move(moves.first, moves.there, row, there)
    if cell >= 0:
        value += moves.weight[cell]
    total = moves.total[row]
    share = value / total if total > 0 else 0.0
    return float(np.log(max(share, _LEAST_CHANCE)))


@compiled
def _draw_next(
    tables: Tables, slot: int, last: int, domain: int, taken: Mask, state: State
) -> int:
    """Draw a free region of ``domain`` at ``slot`` by the moves from ``last``.

    By the visits of the slot where there is no last region, or where no move leads
    from it into the free part of the domain (only if epsilon is 0). -1 if no region
    is free. Weighted draws are one-pass: each item replaces those before it with
    the probability of its share of the total so far.
    """
    if last == UNKNOWN:
        return _draw_place(tables, slot, domain, taken, state)
    moves = tables.moves
    row = (slot - 1) % len(tables.visits) * len(tables.domain) + last
    total, made = 0.0, UNKNOWN
    for cell in range(moves.first[row], moves.first[row + 1]):
        region = moves.there[cell]
        if tables.domain[region] == domain and not taken[region]:
            total += moves.weight[cell]
            if uniform(state) * total < moves.weight[cell]:
                made = region
    # The distance term of all regions of the domain bounds that of the free ones,
    # which is added up only if the draw may fall on it.
    bound = tables.nearness[last, domain]
    if uniform(state) * (total + bound) < total:
        return made
    spread, far = 0.0, UNKNOWN
    for spot in range(tables.begins[domain], tables.begins[domain + 1]):
        region = tables.member[spot]
        if bound > 0 and not taken[region]:
            weight = moves.epsilon * distance_weight(
                moves.point_km, moves.spherical, last, region
            )
            spread += weight
            if uniform(state) * spread < weight:
                far = region
    if total + spread <= 0:
        return _draw_place(tables, slot, domain, taken, state)
    if uniform(state) * bound < spread or uniform(state) * (total + spread) < spread:
        return far
    return made


@compiled
def _draw_place(
    tables: Tables, slot: int, domain: int, taken: Mask, state: State
) -> int:
    """Draw a free region of ``domain`` by its weight at ``slot``; -1 if none.

    All free regions are equally likely where none has a weight. A few draws from
    all regions are tried first; if all hit taken ones, the free ones are weighed.
    """
    low, past = tables.begins[domain], tables.begins[domain + 1]
    of_day = slot % len(tables.visits)
    running = tables.running[of_day, low:past]
    if running[-1] > 0:
        for _ in range(_TRIES):
            target = uniform(state) * running[-1]
            spot = np.searchsorted(running, target, side="right")
            made = tables.member[low + spot]
            if not taken[made]:
                return int(made)
    total, made, count, alike = 0.0, UNKNOWN, 0, UNKNOWN
    for spot in range(low, past):
        if not taken[tables.member[spot]]:
            count += 1
            if uniform(state) * count < 1:
                alike = tables.member[spot]
            weight = tables.visits[of_day, spot]
            total += weight
            if uniform(state) * total < weight:
                made = tables.member[spot]
    return int(alike) if made == UNKNOWN else int(made)


@compiled
def _mark(taken: Mask, region: int, others: RegionIds, value: bool) -> None:
    if region != UNKNOWN:
        taken[region] = value
    for other in others:
        if other != UNKNOWN:
            taken[other] = value
