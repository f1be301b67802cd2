"""Compiled draws of pseudo places: one step, and the three ways to go on.

Every (copy, person) owns a random stream, so neither threads nor blocks of
people change a bit. All draws are exact: from the wished distribution under the
condition that the region is free. A few draws are tried first; if all of them
hit regions that are taken, the free ones are weighed one by one.
"""

import numpy as np
from numba import njit

from epifalcon.mobility.city.borrow import borrow
from epifalcon.mobility.city.draws import start, uniform
from epifalcon.mobility.regions import EARTH_RADIUS_KM
from epifalcon.privacy.pseudo.shapes import (
    Block,
    Draw,
    Places,
    Scratch,
    Tables,
    Ways,
    borrow_draw,
    borrow_places,
    borrow_scratch,
    borrow_ways,
)
from epifalcon.types import UNKNOWN, Floats, RegionIds

_TRIES = 12
_NOT_MET = -2
_NEXT_TO_NOTHING = 1e-30


@njit(cache=True, nogil=True)
def scatter(places: Places, block: Block, scratch: Scratch) -> None:
    """Fill the block with independent draws from the domain of each slot."""
    lent, draw = borrow_places(places), borrow_draw(scratch.free)
    true, pseudo = borrow(block.true), borrow(block.pseudo)
    for person in range(len(true)):
        for copy in range(len(pseudo)):
            start(draw.state, block.seeds[copy], block.first + person)
            _scatter_one(lent, true[person], pseudo[:, person], copy, draw)


@njit(cache=True, nogil=True)
def walk(tables: Tables, block: Block, scratch: Scratch) -> None:
    """Fill the block with walks through the domain of each slot."""
    lent = (borrow_places(tables[0]), borrow_ways(tables[1]))
    draw = borrow_draw(scratch.free)
    true, pseudo = borrow(block.true), borrow(block.pseudo)
    for person in range(len(true)):
        for copy in range(len(pseudo)):
            start(draw.state, block.seeds[copy], block.first + person)
            _walk_one(lent, true[person], pseudo[:, person], copy, draw)


@njit(cache=True, nogil=True)
def live(tables: Tables, sweeps: int, block: Block, scratch: Scratch) -> None:
    """Fill the block with pseudo lives: one pseudo region for each true region.

    A pseudo region avoids every true region of the person and every pseudo
    region the person has; where none is left, those of the same slot.
    """
    lent = (borrow_places(tables[0]), borrow_ways(tables[1]))
    pad = borrow_scratch(scratch)
    true, pseudo = borrow(block.true), borrow(block.pseudo)
    for person in range(len(true)):
        pad.free.stamp[0] += 1
        _take_all(pad.free, true[person])
        for copy in range(len(pseudo)):
            start(pad.free.state, block.seeds[copy], block.first + person)
            _forget(pad, true[person])
            for sweep in range(sweeps):
                _live_one(lent, true[person], pseudo[:copy, person], sweep, pad)
            _write(pad, true[person], pseudo[copy, person])


@njit(cache=True, nogil=True)
def _scatter_one(
    places: Places, true: RegionIds, pseudo: RegionIds, copy: int, draw: Draw
) -> None:
    day = len(places.running)
    for slot in range(true.size):
        here = true[slot]
        if here != UNKNOWN:
            _take_slot(draw, here, pseudo[:copy, slot])
            pseudo[copy, slot] = draw_place(
                places, slot % day, places.domain[here], draw
            )


@njit(cache=True, nogil=True)
def _walk_one(
    tables: Tables, true: RegionIds, pseudo: RegionIds, copy: int, draw: Draw
) -> None:
    last = UNKNOWN
    for slot in range(true.size):
        here = true[slot]
        if here == UNKNOWN:
            continue
        _take_slot(draw, here, pseudo[:copy, slot])
        made = draw_next(tables, slot, last, tables[0].domain[here], draw)
        pseudo[copy, slot] = made
        last = last if made == UNKNOWN else made


@njit(cache=True, nogil=True)
def _live_one(
    tables: Tables, true: RegionIds, earlier: RegionIds, sweep: int, pad: Scratch
) -> None:
    """Draw the pseudo region of each true region anew, in the order they are met."""
    last = UNKNOWN
    for slot in range(true.size):
        here = true[slot]
        if here == UNKNOWN:
            continue
        if pad.turn[here] != sweep:
            pad.turn[here] = sweep
            made = _settle(tables, true, slot, last, pad)
            if made == UNKNOWN:
                _take_slot(pad.tight, here, earlier[:, slot])
                domain = tables[0].domain[here]
                made = draw_next(tables, slot, last, domain, pad.tight)
            pad.known[here] = made
            _take(pad.free, made)
        last = last if pad.known[here] == UNKNOWN else pad.known[here]


@njit(cache=True, nogil=True)
def _settle(tables: Tables, true: RegionIds, slot: int, last: int, pad: Scratch) -> int:
    """A pseudo region for the true region of ``slot``, -1 if none is free.

    Candidates come from a step of the walk; the one it has is among them. One is
    chosen by how probable it makes the moves to and from the regions that have
    a pseudo region (importance resampling: with many candidates, a draw by the
    probability of all moves).
    """
    here = true[slot]
    domain, fresh = tables[0].domain[here], 0
    if pad.known[here] >= 0:
        pad.candidate[0] = pad.known[here]
        pad.free.taken[pad.known[here]] = 0
        fresh = 1
    for number in range(fresh, pad.candidate.size):
        made = draw_next(tables, slot, last, domain, pad.free)
        if made == UNKNOWN:
            return UNKNOWN
        pad.candidate[number] = made
    if pad.candidate.size == 1:
        return int(pad.candidate[0])
    _score(tables, true, slot, pad)
    best, total, chosen = pad.score.max(), 0.0, 0
    for number in range(pad.candidate.size):
        weight = np.exp(pad.score[number] - best)
        total += weight
        if uniform(pad.free.state) * total < weight:
            chosen = number
    return int(pad.candidate[chosen])


@njit(cache=True, nogil=True)
def _score(tables: Tables, true: RegionIds, slot: int, pad: Scratch) -> None:
    """Add up the log probability of each candidate's moves, but the step to it."""
    here = true[slot]
    pad.score[:] = 0.0
    for after in range(1, true.size):
        one, other = true[after - 1], true[after]
        if after == slot or one == UNKNOWN or other == UNKNOWN:
            continue
        if here not in (one, other):
            continue
        start_at, end_at = pad.known[one], pad.known[other]
        if (one != here and start_at < 0) or (other != here and end_at < 0):
            continue
        for number in range(pad.candidate.size):
            begin = pad.candidate[number] if one == here else start_at
            end = pad.candidate[number] if other == here else end_at
            pad.score[number] += _log_move(tables, after - 1, begin, end)


@njit(cache=True, nogil=True)
def _log_move(tables: Tables, slot: int, here: int, there: int) -> float:
    """The logarithm of the normalised model; of next to nothing where it is 0."""
    places, ways = tables
    row = slot % len(places.running) * len(places.domain) + here
    domain = places.domain[there]
    low, past = ways.first[row], ways.first[row + 1]
    while low < past:
        middle = (low + past) // 2
        column, its = ways.there[middle], places.domain[ways.there[middle]]
        if its < domain or (its == domain and column < there):
            low = middle + 1
        else:
            past = middle
    value = ways.epsilon * kernel(ways.point, ways.round, here, there)
    if low < ways.first[row + 1] and ways.there[low] == there:
        value += ways.running[low]
        if low > ways.first[row] and places.domain[ways.there[low - 1]] == domain:
            value -= ways.running[low - 1]
    total = ways.total[row]
    share = value / total if total > 0 else 0.0
    return float(np.log(max(share, _NEXT_TO_NOTHING)))


@njit(cache=True, nogil=True)
def draw_next(tables: Tables, slot: int, last: int, domain: int, draw: Draw) -> int:
    """A free region of ``domain`` at ``slot`` for who was in ``last`` before.

    By the aggregate model of the slot before. By the visits of the slot where
    there is no last region, or where nothing leads from it into the domain (only
    if epsilon is 0). -1 if no region is free.
    """
    places, ways = tables
    day = len(places.running)
    if last == UNKNOWN:
        return draw_place(places, slot % day, domain, draw)
    row = (slot - 1) % day * len(places.domain) + last
    low = _domain_start(places, ways, row, domain)
    past = _domain_start(places, ways, row, domain + 1)
    known = ways.running[past - 1] if past > low else 0.0
    total = known + ways.floor[last, domain]
    if total <= 0:
        return draw_place(places, slot % day, domain, draw)
    for _ in range(_TRIES):
        target = uniform(draw.state) * total
        if target < known:
            made = int(ways.there[_search(ways.running, low, past, target)])
        else:
            made = _over_floor(tables, last, domain, target - known)
        if draw.taken[made] != draw.stamp[0]:
            return made
    made = _weigh_next(tables, (low, past), last, domain, draw)
    return draw_place(places, slot % day, domain, draw) if made == UNKNOWN else made


@njit(cache=True, nogil=True)
def draw_place(places: Places, of_day: int, domain: int, draw: Draw) -> int:
    """A free region of ``domain`` by its weight at a slot of the day, -1 if none.

    Where the free regions weigh nothing, any of them alike.
    """
    low, past = int(places.first[domain]), int(places.first[domain + 1])
    running = places.running[of_day]
    total = running[past - 1]
    if total > 0:
        for _ in range(_TRIES):
            target = uniform(draw.state) * total
            made = int(places.member[_search(running, low, past, target)])
            if draw.taken[made] != draw.stamp[0]:
                return made
        made = _weigh_places(places, running, (low, past), draw)
        if made != UNKNOWN:
            return made
    return _any_free(places, low, past, draw)


@njit(cache=True, nogil=True)
def _domain_start(places: Places, ways: Ways, row: int, domain: int) -> int:
    """The first cell of ``row`` whose domain is ``domain`` or later."""
    low, past = int(ways.first[row]), int(ways.first[row + 1])
    while low < past:
        middle = (low + past) // 2
        if places.domain[ways.there[middle]] < domain:
            low = middle + 1
        else:
            past = middle
    return low


@njit(cache=True, nogil=True)
def _search(running: Floats, low: int, past: int, target: float) -> int:
    """The cell under which ``target`` falls; target must be under the total."""
    last = past - 1
    while low < last:
        middle = (low + last) // 2
        if running[middle] > target:
            last = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def _over_floor(tables: Tables, here: int, domain: int, target: float) -> int:
    """The member of the domain under which ``target`` falls on the floor."""
    places, ways = tables
    past = places.first[domain + 1]
    for spot in range(places.first[domain], past):
        there = int(places.member[spot])
        target -= ways.epsilon * kernel(ways.point, ways.round, here, there)
        if target < 0:
            return there
    # Only by rounding.
    return int(places.member[past - 1])


@njit(cache=True, nogil=True)
def _weigh_next(
    tables: Tables, cells: tuple[int, int], here: int, domain: int, draw: Draw
) -> int:
    """A free region by the aggregate model, all free ones weighed; -1 if none."""
    places, ways = tables
    stamp, total, made = draw.stamp[0], 0.0, UNKNOWN
    for spot in range(places.first[domain], places.first[domain + 1]):
        there = places.member[spot]
        if draw.taken[there] != stamp and ways.epsilon > 0:
            weight = ways.epsilon * kernel(ways.point, ways.round, here, there)
            total += weight
            # Each in turn takes the place of those before by its share: one pass.
            if uniform(draw.state) * total < weight:
                made = there
    for cell in range(cells[0], cells[1]):
        there = ways.there[cell]
        before = ways.running[cell - 1] if cell > cells[0] else 0.0
        weight = ways.running[cell] - before
        if draw.taken[there] != stamp and weight > 0:
            total += weight
            if uniform(draw.state) * total < weight:
                made = there
    return made


@njit(cache=True, nogil=True)
def _weigh_places(
    places: Places, running: Floats, span: tuple[int, int], draw: Draw
) -> int:
    """A free region by its weight, all free ones weighed; -1 if they weigh nothing."""
    total, made = 0.0, UNKNOWN
    for spot in range(span[0], span[1]):
        before = running[spot - 1] if spot > span[0] else 0.0
        weight = running[spot] - before
        there = places.member[spot]
        if draw.taken[there] != draw.stamp[0] and weight > 0:
            total += weight
            if uniform(draw.state) * total < weight:
                made = there
    return made


@njit(cache=True, nogil=True)
def _any_free(places: Places, low: int, past: int, draw: Draw) -> int:
    count, made = 0, UNKNOWN
    for spot in range(low, past):
        there = places.member[spot]
        if draw.taken[there] != draw.stamp[0]:
            count += 1
            if uniform(draw.state) * count < 1:
                made = there
    return made


@njit(cache=True, nogil=True)
def kernel(point: Floats, is_round: bool, here: int, there: int) -> float:
    """max(1, d)^-2 between two regions; 1 where a place is not known."""
    x = point[here, 0] - point[there, 0]
    y = point[here, 1] - point[there, 1]
    z = point[here, 2] - point[there, 2]
    squared = x * x + y * y + z * z
    if is_round:
        half = np.sqrt(squared) / (2 * EARTH_RADIUS_KM)
        # Not min(): it would make 1 of NaN.
        arc = 2 * EARTH_RADIUS_KM * np.arcsin(1.0 if half > 1.0 else half)
        squared = arc * arc
    # False for NaN too.
    return 1.0 / squared if squared > 1.0 else 1.0


@njit(cache=True, nogil=True)
def _take(draw: Draw, region: int) -> None:
    if region != UNKNOWN:
        draw.taken[region] = draw.stamp[0]


@njit(cache=True, nogil=True)
def _take_slot(draw: Draw, here: int, earlier: RegionIds) -> None:
    """Set all regions free, then take the true one and those of earlier copies."""
    draw.stamp[0] += 1
    _take(draw, here)
    _take_all(draw, earlier)


@njit(cache=True, nogil=True)
def _take_all(draw: Draw, regions: RegionIds) -> None:
    for region in regions:
        _take(draw, region)


@njit(cache=True, nogil=True)
def _forget(pad: Scratch, trace: RegionIds) -> None:
    for region in trace:
        if region != UNKNOWN:
            pad.known[region] = _NOT_MET
            pad.turn[region] = UNKNOWN


@njit(cache=True, nogil=True)
def _write(pad: Scratch, true: RegionIds, pseudo: RegionIds) -> None:
    for slot in range(true.size):
        if true[slot] != UNKNOWN:
            pseudo[slot] = pad.known[true[slot]]
