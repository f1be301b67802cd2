"""Compiled parts of the localisation attack: one person at a time, no logarithms.

The moves between the claims of a person are looked up once and kept for the way
back: some 160 kB for 168 slots of 11 claims, which stay in the processor's cache.
"""

import numpy as np
from numpy.typing import NDArray

from epifalcon.evaluation.attacks.localisation_shapes import (
    Rows,
    Scratch,
    Ways,
    borrow_pad,
    borrow_rows,
    borrow_ways,
)
from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.city.borrow import borrow
from epifalcon.mobility.regions import EARTH_RADIUS_KM
from epifalcon.types import Floats, RegionIds

BITS_SHIFT = 5
"""Buckets of 32 regions: as many as have a bit in half a word of the index."""

_DEEPEST = -600.0
_ONE, _HALF, _LOWER = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)


@compiled
def index_rows(
    start: NDArray[np.int64], there: RegionIds, shift: int, index: NDArray[np.uint64]
) -> None:
    """Fill ``Ways.entry`` from the rows of a CSR table."""
    buckets = index.shape[1] - 1
    for row in range(len(index)):
        cell, end = start[row], start[row + 1]
        for bucket in range(buckets):
            index[row, bucket] = np.uint64(cell)
            bits = np.uint64(0)
            while cell < end and (there[cell] >> shift) == bucket:
                bits |= np.uint64(1) << np.uint64(there[cell] & 31)
                cell += 1
            if shift == BITS_SHIFT:
                index[row, bucket] |= bits << _HALF
        index[row, buckets] = np.uint64(end)


@compiled
def _count_bits(word: np.uint64) -> int:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    quarter = np.uint64(0x3333333333333333)
    word = (word & quarter) + ((word >> np.uint64(2)) & quarter)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def moves_needed(
    start: NDArray[np.int64], windows: int, first: int, past: int
) -> tuple[int, int]:
    """Of people ``first`` to ``past``: most moves of a person, most claims of a row."""
    moves, claims = 0, 1
    for person in range(first, past):
        total, last = 0, 0
        for row in range(person * windows, (person + 1) * windows):
            size = start[row + 1] - start[row]
            claims = max(claims, size)
            if size > 0:
                total += last * size
                last = size
        moves = max(moves, total)
    return moves, claims


@compiled
def locate_people(
    rows: Rows, ways: Ways, first: int, past: int, probability: Floats
) -> int:
    """Fill ``probability`` (claims,) for people ``first`` to ``past``."""
    windows = len(rows.opens)
    moves, claims = moves_needed(rows.start, windows, first, past)
    owner = Scratch(
        np.empty(windows + 1, np.int64),
        np.empty(windows + 1, np.int64),
        np.empty(windows + 1, np.bool_),
        np.empty(moves),
        np.empty(claims),
        np.empty(claims),
        np.empty((3, claims)),
    )
    factors = np.empty(windows * claims)
    lent, known, pad = borrow_rows(rows), borrow_ways(ways), borrow_pad(owner)
    likely, made = borrow(factors), borrow(probability)
    for person in range(first, past):
        low = rows.start[person * windows]
        count = _find_windows(lent, person, pad)
        _weigh_evidence(lent, person, likely)
        _forward(lent, known, (person, count, low), (likely, made), pad)
        _backward(lent, (person, count, low), (likely, made), pad)
    # Named last, so that the borrowed memory lives until here.
    return len(owner.move) + len(factors)


@compiled
def _find_windows(rows: Rows, person: int, pad: Scratch) -> int:
    """List the windows with claims and lay out their moves; how many there are."""
    windows = len(rows.opens)
    count, end, last = 0, 0, 0
    for window in range(windows):
        row = person * windows + window
        size = rows.start[row + 1] - rows.start[row]
        if size > 0:
            pad.seen[count] = window
            pad.block[count] = end
            end += last * size
            last = size
            count += 1
    return count


@compiled
def _weigh_evidence(rows: Rows, person: int, likely: Floats) -> None:
    """Evidence as a factor of at most 1 in each window: (claims of the person,)."""
    windows = len(rows.opens)
    low = rows.start[person * windows]
    if len(rows.evidence) == 0:
        likely[: rows.start[(person + 1) * windows] - low] = 1.0
        return
    for row in range(person * windows, (person + 1) * windows):
        begin, end = rows.start[row], rows.start[row + 1]
        most = -np.inf
        for claim in range(begin, end):
            most = max(most, rows.evidence[claim])
        for claim in range(begin, end):
            gap = rows.evidence[claim] - most
            # What is only unlikely must not become impossible by underflow.
            if gap != -np.inf and gap < _DEEPEST:
                gap = _DEEPEST
            likely[claim - low] = np.exp(gap)


@compiled
def _forward(
    rows: Rows,
    ways: Ways,
    who: tuple[int, int, int],
    weights: tuple[Floats, Floats],
    pad: Scratch,
) -> None:
    """Leave in ``probability`` what each window is by those before it and itself."""
    person, count, low = who
    likely, probability = weights
    base = person * len(rows.opens)
    for number in range(count):
        window = pad.seen[number]
        begin, end = rows.start[base + window], rows.start[base + window + 1]
        total = 0.0
        if number > 0:
            row = base + pad.seen[number - 1]
            span = (rows.start[row], rows.start[row + 1], begin, end)
            move = pad.move[pad.block[number] :]
            fill_moves(ways, rows.region, span, rows.opens[window], (move, pad.near))
            total = _step_on(move, span, low, likely, probability)
        pad.cut[number] = not total > 0
        if pad.cut[number]:
            total = _begin(rows, ways, (begin, end, low, window), likely, probability)
        for claim in range(begin, end):
            probability[claim] /= total


@compiled
def _begin(
    rows: Rows,
    ways: Ways,
    span: tuple[int, int, int, int],
    likely: Floats,
    probability: Floats,
) -> float:
    """A window without past: by visits and evidence, or by evidence alone."""
    begin, end, low, window = span
    visits = ways.visits[rows.opens[window] % len(ways.visits)]
    total = 0.0
    for claim in range(begin, end):
        probability[claim] = visits[rows.region[claim]] * likely[claim - low]
        total += probability[claim]
    if total > 0:
        return total
    for claim in range(begin, end):
        probability[claim] = likely[claim - low]
        total += probability[claim]
    return total


@compiled
def _step_on(
    move: Floats,
    span: tuple[int, int, int, int],
    low: int,
    likely: Floats,
    probability: Floats,
) -> float:
    """One forward step; the sum of what arrives."""
    before, past, begin, end = span
    size = end - begin
    probability[begin:end] = 0.0
    for claim in range(before, past):
        weight = probability[claim]
        at = (claim - before) * size
        for spot in range(size):
            probability[begin + spot] += weight * move[at + spot]
    total = 0.0
    for claim in range(begin, end):
        probability[claim] *= likely[claim - low]
        total += probability[claim]
    return total


@compiled
def _backward(
    rows: Rows,
    who: tuple[int, int, int],
    weights: tuple[Floats, Floats],
    pad: Scratch,
) -> None:
    """Bring what later windows say into ``probability``."""
    person, count, low = who
    likely, probability = weights
    base = person * len(rows.opens)
    ahead, behind = pad.ahead, pad.behind
    ahead[:] = 1.0
    for number in range(count - 1, -1, -1):
        row = base + pad.seen[number]
        begin, end = rows.start[row], rows.start[row + 1]
        if number > 0:
            before = base + pad.seen[number - 1]
            size = rows.start[before + 1] - rows.start[before]
            move = pad.move[pad.block[number] :]
            factor = likely[begin - low : end - low]
            _step_back(move, pad.cut[number], factor, ahead, behind[:size])
        _join(probability[begin:end], ahead)
        ahead, behind = behind, ahead


@compiled
def _step_back(
    move: Floats, cut: bool, likely: Floats, ahead: Floats, behind: Floats
) -> None:
    """One backward step over the claims of the earlier window."""
    if cut:
        behind[:] = 1.0
        return
    size = len(likely)
    total = 0.0
    for spot in range(len(behind)):
        value = 0.0
        for later in range(size):
            value += move[spot * size + later] * likely[later] * ahead[later]
        behind[spot] = value
        total += value
    for spot in range(len(behind)):
        behind[spot] = behind[spot] / total if total > 0 else 1.0


@compiled
def _join(probability: Floats, ahead: Floats) -> None:
    """Forward times backward, adding up to 1."""
    total = 0.0
    for spot in range(len(probability)):
        total += probability[spot] * ahead[spot]
    if not total > 0:
        return
    for spot in range(len(probability)):
        probability[spot] *= ahead[spot] / total


@compiled
def fill_moves(
    ways: Ways,
    region: RegionIds,
    span: tuple[int, int, int, int],
    opens: int,
    out: tuple[Floats, Floats],
) -> None:
    """Moves between two windows, (earlier, later) laid flat, rows normalised.

    ``span`` are the claims of both, ``opens`` the slot that the later begins at:
    the move is the one into that slot. ``out`` are the moves and room for points.
    """
    move = out[0]
    before, past, begin, end = span
    day, regions = len(ways.visits), len(ways.point)
    base = (opens - 1) % day * regions
    if ways.epsilon > 0:
        _fill_floor(ways, region, span, base, out)
    else:
        move[: (past - before) * (end - begin)] = 0.0
    if ways.shift == BITS_SHIFT:
        _add_by_bits(ways, region, span, base, move)
    else:
        _add_by_search(ways, region, span, base, move)


@compiled
def _add_by_bits(
    ways: Ways,
    region: RegionIds,
    span: tuple[int, int, int, int],
    base: int,
    move: Floats,
) -> None:
    """Add the stored moves over the total of their row.

    No branch depends on the claims: whether a move is known is close to a toss,
    and a wrong forecast of the processor costs more than all the rest.
    """
    before, past, begin, end = span
    entry, weight, total = ways.entry, ways.weight, ways.total
    at = 0
    for claim in range(before, past):
        row = base + region[claim]
        share = 1.0 / total[row] if total[row] > 0 else 0.0
        for later in range(begin, end):
            to = region[later]
            word = entry[row, to >> BITS_SHIFT]
            bits, place = word >> _HALF, np.uint64(to & 31)
            known = np.int64((bits >> place) & _ONE)
            rank = np.int64(_count_bits(bits & ((_ONE << place) - _ONE)))
            cell = np.int64(word & _LOWER) + rank
            move[at] += weight[cell * known] * known * share
            at += 1


@compiled
def _add_by_search(
    ways: Ways,
    region: RegionIds,
    span: tuple[int, int, int, int],
    base: int,
    move: Floats,
) -> None:
    """The same with a coarse index, looking through a bucket."""
    before, past, begin, end = span
    entry, there, weight, shift = ways.entry, ways.there, ways.weight, ways.shift
    at = 0
    for claim in range(before, past):
        row = base + region[claim]
        share = 1.0 / ways.total[row] if ways.total[row] > 0 else 0.0
        for later in range(begin, end):
            to = region[later]
            cell = np.int64(entry[row, to >> shift])
            last = np.int64(entry[row, (to >> shift) + 1])
            while cell < last and there[cell] < to:
                cell += 1
            if cell < last and there[cell] == to:
                move[at] += weight[cell] * share
            at += 1


@compiled
def _fill_floor(
    ways: Ways,
    region: RegionIds,
    span: tuple[int, int, int, int],
    base: int,
    out: tuple[Floats, Floats],
) -> None:
    """Put epsilon max(1, d)^-2 over the total; d is 1 where a place is not known."""
    move, near = out
    before, past, begin, end = span
    size, point = end - begin, ways.point
    for spot in range(size):
        for axis in range(3):
            near[axis, spot] = point[region[begin + spot], axis]
    at = 0
    for claim in range(before, past):
        here = region[claim]
        x, y, z = point[here, 0], point[here, 1], point[here, 2]
        share = ways.epsilon / ways.total[base + here]
        for spot in range(size):
            across, along, up = near[0, spot] - x, near[1, spot] - y, near[2, spot] - z
            move[at + spot] = across * across + along * along + up * up
        if ways.round:
            for spot in range(at, at + size):
                half = np.sqrt(move[spot]) / (2 * EARTH_RADIUS_KM)
                # Not min(): it would make 1 of NaN.
                arc = 2 * EARTH_RADIUS_KM * np.arcsin(1.0 if half > 1.0 else half)
                move[spot] = arc * arc
        for spot in range(at, at + size):
            # False for NaN too.
            move[spot] = share / (move[spot] if move[spot] > 1.0 else 1.0)
        at += size
