"""Compiled parts of the attack by sets: one person at a time, in logarithms.

A person's distinct claim sets are the nodes of a graph, the claims of a set its
states; two sets that follow each other somewhere are a pair.
"""

import numpy as np

from epifalcon.evaluation.attacks.localisation_kernels import fill_moves, moves_needed
from epifalcon.evaluation.attacks.localisation_shapes import (
    Rows,
    Ways,
    borrow_rows,
    borrow_ways,
)
from epifalcon.evaluation.attacks.set_shapes import Graph, Index, borrow_graph
from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.city.borrow import borrow
from epifalcon.types import Floats, RegionIds

MOST_LIVES = 4096
"""Assignments up to which all of them are gone through."""
SWEEPS = 40
"""Of messages, at most, where there are more."""

_PLAIN_SWEEPS = 4
_STEADY = 1e-7
_LEAST = 1e-300
_DEEPEST = -1e6


@compiled
def assign_people(
    rows: Rows,
    ways: Ways,
    first: int,
    past: int,
    probability: Floats,
) -> int:
    """Fill ``probability`` (claims,) for people ``first`` to ``past``.

    Returns how many of them had too many lives to go through all.
    """
    windows = len(rows.opens)
    moves, claims = moves_needed(rows.start, windows, first, past)
    states = windows * claims
    owner = Graph(
        np.empty(windows, np.int64),
        np.empty(windows, np.int64),
        np.empty(windows + 1, np.int64),
        np.empty((windows, windows), np.int64),
        np.empty((windows, 2), np.int64),
        np.empty(windows + 1, np.int64),
        np.empty(states),
        np.empty(moves),
        np.empty((windows, 2, claims)),
        np.empty(states),
        np.empty(claims * claims),
        np.empty((3, claims)),
        np.empty((2, claims)),
    )
    graph = borrow_graph(owner)
    lent, known, made = borrow_rows(rows), borrow_ways(ways), borrow(probability)
    many = 0
    for person in range(first, past):
        sets = _find_sets(lent, person, graph)
        pairs = _weigh(lent, known, (person, sets), graph)
        if _lives(sets, graph) <= MOST_LIVES:
            _go_through_all(sets, pairs, graph)
        else:
            _send_news(sets, pairs, graph)
            many += 1
        _tell(lent, person, graph, made)
    # Named last, so that the borrowed memory lives until here.
    return many + 0 * len(owner.joint)


@compiled
def _find_sets(rows: Rows, person: int, graph: Graph) -> int:
    """Number the distinct claim sets in order of first sight; how many there are."""
    windows, sets = len(rows.opens), 0
    graph.state[0] = 0
    for window in range(windows):
        row = person * windows + window
        size = rows.start[row + 1] - rows.start[row]
        graph.set_of[window] = -1
        if size == 0:
            continue
        found = 0
        known = (rows.start, rows.region)
        while found < sets and not _same(known, row, graph.row[found]):
            found += 1
        if found == sets:
            graph.row[sets] = row
            graph.state[sets + 1] = graph.state[sets] + size
            sets += 1
        graph.set_of[window] = found
    return sets


@compiled
def _same(claims: tuple[Index, RegionIds], one: int, other: int) -> bool:
    start, region = claims
    here, there = start[one], start[other]
    size = start[one + 1] - here
    if start[other + 1] - there != size:
        return False
    spot = 0
    while spot < size and region[here + spot] == region[there + spot]:
        spot += 1
    return bool(spot == size)


@compiled
def count_slots(start: Index, region: RegionIds, windows: int, made: Index) -> None:
    """Write for each claim how many windows of its person have the same claims."""
    claims = (start, region)
    for first in range(0, len(start) - 1, windows):
        for row in range(first, first + windows):
            if start[row + 1] == start[row]:
                continue
            alike = 0
            for other in range(first, first + windows):
                alike += _same(claims, row, other)
            made[start[row] : start[row + 1]] = alike


@compiled
def _weigh(rows: Rows, ways: Ways, who: tuple[int, int], graph: Graph) -> int:
    """Fill ``alone`` and ``joint``; how many pairs there are."""
    person, sets = who
    windows = len(rows.opens)
    graph.alone[: graph.state[sets]] = 0.0
    graph.pair[:sets, :sets] = -1
    pairs, before = 0, -1
    graph.at[0] = 0
    for window in range(windows):
        here = graph.set_of[window]
        if here < 0:
            continue
        row = person * windows + window
        state = graph.state[here]
        if before < 0:
            _weigh_visits(rows, ways, (row, window, state), graph.alone)
        _weigh_evidence(rows, row, graph.alone[state:])
        if before >= 0:
            was = graph.set_of[before]
            span = (
                rows.start[person * windows + before],
                rows.start[person * windows + before + 1],
                rows.start[row],
                rows.start[row + 1],
            )
            room = (graph.move, graph.near)
            fill_moves(ways, rows.region, span, rows.opens[window], room)
            if was != here and graph.pair[was, here] < 0:
                _open_pair(was, here, pairs, graph)
                pairs += 1
            _add_moves(was, here, graph)
        before = window
    return pairs


@compiled
def _weigh_visits(
    rows: Rows, ways: Ways, where: tuple[int, int, int], alone: Floats
) -> None:
    """A life opens where people are at that hour."""
    row, window, state = where
    there = ways.visits[rows.opens[window] % len(ways.visits)]
    for claim in range(rows.start[row], rows.start[row + 1]):
        told = np.log(max(there[rows.region[claim]], _LEAST))
        alone[state + claim - rows.start[row]] += told


@compiled
def _weigh_evidence(rows: Rows, row: int, alone: Floats) -> None:
    """Add a row's evidence to the states of its set."""
    begin, end = rows.start[row], rows.start[row + 1]
    if len(rows.evidence) == 0:
        return
    most = -np.inf
    for claim in range(begin, end):
        most = max(most, rows.evidence[claim])
    for claim in range(begin, end):
        # What is ruled out in every window of a set must still leave numbers.
        alone[claim - begin] += max(rows.evidence[claim] - most, _DEEPEST)


@compiled
def _open_pair(one: int, other: int, number: int, graph: Graph) -> None:
    low, high = min(one, other), max(one, other)
    size = (graph.state[low + 1] - graph.state[low]) * (
        graph.state[high + 1] - graph.state[high]
    )
    graph.pair[one, other] = graph.pair[other, one] = number
    graph.ends[number, 0], graph.ends[number, 1] = low, high
    graph.at[number + 1] = graph.at[number] + size
    graph.joint[graph.at[number] : graph.at[number + 1]] = 0.0
    graph.news[number] = 0.0


@compiled
def _add_moves(was: int, here: int, graph: Graph) -> None:
    """Add the log-moves in ``move`` from one set to the next."""
    before = graph.state[was + 1] - graph.state[was]
    after = graph.state[here + 1] - graph.state[here]
    if was == here:
        for spot in range(after):
            told = np.log(max(graph.move[spot * after + spot], _LEAST))
            graph.alone[graph.state[here] + spot] += told
        return
    at = graph.at[graph.pair[was, here]]
    for spot in range(before):
        for later in range(after):
            told = np.log(max(graph.move[spot * after + later], _LEAST))
            if was < here:
                graph.joint[at + spot * after + later] += told
            else:
                graph.joint[at + later * before + spot] += told


@compiled
def _lives(sets: int, graph: Graph) -> int:
    """How many assignments there are; one more than the most if more."""
    total = 1
    for one in range(sets):
        total *= graph.state[one + 1] - graph.state[one]
        if total > MOST_LIVES:
            return MOST_LIVES + 1
    return total


@compiled
def _go_through_all(sets: int, pairs: int, graph: Graph) -> None:
    """Leave in ``belief`` the exact probability of each state."""
    most = -np.inf
    chosen = np.empty(sets, np.int64)
    total = _lives(sets, graph)
    for number in range(total):
        most = max(most, _weight_of(number, sets, pairs, graph, chosen))
    graph.belief[: graph.state[sets]] = 0.0
    heap = 0.0
    for number in range(total):
        weight = np.exp(_weight_of(number, sets, pairs, graph, chosen) - most)
        heap += weight
        for one in range(sets):
            graph.belief[graph.state[one] + chosen[one]] += weight
    graph.belief[: graph.state[sets]] /= heap


@compiled
def _weight_of(
    number: int, sets: int, pairs: int, graph: Graph, chosen: Index
) -> float:
    """Log-weight of an assignment, which is left in ``chosen``."""
    weight, rest = 0.0, number
    for one in range(sets):
        size = graph.state[one + 1] - graph.state[one]
        chosen[one] = rest % size
        rest //= size
        weight += graph.alone[graph.state[one] + chosen[one]]
    for pair in range(pairs):
        low, high = graph.ends[pair, 0], graph.ends[pair, 1]
        size = graph.state[high + 1] - graph.state[high]
        weight += graph.joint[graph.at[pair] + chosen[low] * size + chosen[high]]
    return weight


@compiled
def _send_news(sets: int, pairs: int, graph: Graph) -> None:
    """Loopy belief propagation, up and down the sets until nothing changes.

    Where the sets are a chain, as with claims that never come back as a whole,
    the first sweep is the forward-backward algorithm.
    """
    graph.belief[: graph.state[sets]] = graph.alone[: graph.state[sets]]
    for sweep in range(SWEEPS):
        keep = 0.0 if sweep < _PLAIN_SWEEPS else 0.5
        change = 0.0
        for low in range(sets):
            change = max(change, _tell_others((low, low + 1, sets, 1), keep, graph))
        for high in range(sets - 1, -1, -1):
            change = max(change, _tell_others((high, high - 1, -1, -1), keep, graph))
        if change < _STEADY or pairs == 0:
            break
    for one in range(sets):
        _normalise(graph.belief[graph.state[one] : graph.state[one + 1]])


@compiled
def _tell_others(walk: tuple[int, int, int, int], keep: float, graph: Graph) -> float:
    """Messages of a set to those from ``walk[1]`` to before ``walk[2]``."""
    giver, begin, end, step = walk
    way, change = 0 if step > 0 else 1, 0.0
    for taker in range(begin, end, step):
        pair = graph.pair[giver, taker]
        if pair >= 0:
            change = max(change, _pass_on((pair, way), keep, graph))
    return change


@compiled
def _pass_on(step: tuple[int, int], keep: float, graph: Graph) -> float:
    """One message over a pair, up (0) or down (1); by how much it changed."""
    pair, way = step
    giver, taker = graph.ends[pair, way], graph.ends[pair, 1 - way]
    many = graph.state[giver + 1] - graph.state[giver]
    size = graph.state[taker + 1] - graph.state[taker]
    held, made = graph.spare[0], graph.spare[1]
    for spot in range(many):
        came = graph.news[pair, 1 - way, spot]
        held[spot] = graph.belief[graph.state[giver] + spot] - came
    # In joint the lower set's states are the rows.
    along, across = (size, 1) if way == 0 else (1, many)
    at, highest = graph.at[pair], -np.inf
    for later in range(size):
        most = -np.inf
        for spot in range(many):
            told = held[spot] + graph.joint[at + spot * along + later * across]
            most = max(most, told)
        total = 0.0
        for spot in range(many):
            told = held[spot] + graph.joint[at + spot * along + later * across]
            total += np.exp(told - most)
        made[later] = most + np.log(total)
        highest = max(highest, made[later])
    change = 0.0
    for later in range(size):
        old = graph.news[pair, way, later]
        new = keep * old + (1 - keep) * (made[later] - highest)
        graph.news[pair, way, later] = new
        graph.belief[graph.state[taker] + later] += new - old
        change = max(change, abs(new - old))
    return change


@compiled
def _normalise(belief: Floats) -> None:
    """From logarithms to probabilities."""
    most, total = np.max(belief), 0.0
    for spot in range(len(belief)):
        belief[spot] = np.exp(belief[spot] - most)
        total += belief[spot]
    belief /= total


@compiled
def _tell(rows: Rows, person: int, graph: Graph, probability: Floats) -> None:
    """Every window has the probabilities of its set."""
    windows = len(rows.opens)
    for window in range(windows):
        here = graph.set_of[window]
        if here < 0:
            continue
        begin = rows.start[person * windows + window]
        end = rows.start[person * windows + window + 1]
        for claim in range(begin, end):
            probability[claim] = graph.belief[graph.state[here] + claim - begin]
