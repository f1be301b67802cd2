"""Localisation attack: posterior probabilities of claimed places by a mobility model.

Shokri et al., "Quantifying Location Privacy" (2011), as the paper uses it
("Evaluation of Privacy and Utility"): the server knows the population's mobility
profile <p, pi> and computes P(true place at t = r | all claims of the person) by
the forward-backward algorithm.

Adapted: the states of a window are its claims. pi(r|t) weighs the first window, the
normalised rows of p(r, t -> r', t+1), distance term included, every later one. The
aggregate profile replaces Shokri's profile of each person, which the server lacks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled, each_part
from epifalcon.attacks.claims import Candidates
from epifalcon.mobility.mobility_model import (
    MobilityModel,
    Transitions,
    distance_weight,
    find_move,
)
from epifalcon.types import Floats, RegionIds

_PEOPLE_AT_ONCE = 16
_SWEEPS, _UNDAMPED_SWEEPS, _STEADY = 40, 4, 1e-7
_LEAST, _DEEPEST = 1e-300, -1e6


def log_visits(candidates: Candidates, model: MobilityModel) -> Floats:
    """Return log pi(r|t) for the first slot t of each claim's window: (claims,)."""
    _require_match(candidates, model)
    slot = candidates.opens % model.slots_per_day
    return np.asarray(model.log_visits[slot[candidates.window], candidates.region])


def _require_match(candidates: Candidates, model: MobilityModel) -> None:
    per_day = candidates.clock.slots_per_day
    model.require_match(candidates.regions, per_day, "the claims")


def forward_backward(
    candidates: Candidates, model: MobilityModel, evidence: Floats | None = None
) -> Floats:
    """Compute P(the person was there | all claims of the person): (claims,).

    Adds up to 1 over the claims of each person and window. ``evidence`` (claims,)
    is the log-likelihood of other observations if the claim is true, up to a
    constant for each row, -inf for a claim that cannot be true; without it all
    claims are equal.

    - **Gaps.** A person without claims is assumed to stay and to make one move into
      the slot of the next claims, as pseudo traces do.
    - **Windows** of several slots: one region per window, one move at the border.
    - **Impossible moves**, only with epsilon 0, count as 1e-300.
    """
    filled = np.diff(candidates.start) > 0
    alone = np.where(filled, np.cumsum(filled) - 1, len(filled))
    return posteriors(candidates, model, alone, evidence)


def posteriors(
    candidates: Candidates,
    model: MobilityModel,
    sets: NDArray[np.int64],
    evidence: Floats | None,
) -> Floats:
    """Compute P(there | all claims), assuming one true claim per set: (claims,).

    ``sets`` (rows,) numbers the claim sets in order of first appearance; rows without
    claims have a number after those of the person. The sets of a person are the
    nodes of a graph, the claims of a set its states, and consecutive sets are
    neighbours; loopy belief propagation (Pearl 1988; Murphy, Weiss and
    Jordan 1999) is exact on a chain or tree.
    """
    _require_match(candidates, model)
    given = np.zeros(candidates.claims)
    if evidence is not None:
        given = np.asarray(evidence, float)
        most = candidates.per_claim(candidates.row_max(given))
        given = np.maximum(given - most, _DEEPEST)
    start, region, opens = candidates.start, candidates.region, candidates.opens
    visits, moves = np.exp(model.log_visits), model.transitions
    rows = _Rows(start, region, given, sets, opens, visits, moves)
    made = np.empty(candidates.claims)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        _assign_people(rows, first, past, made)

    parts = -(-candidates.people // _PEOPLE_AT_ONCE)
    each_part(work, parts, 10 * candidates.claims)
    return made


class _Rows(NamedTuple):
    """Claims and mobility profile for compiled code."""

    start: NDArray[np.int64]
    region: RegionIds
    evidence: Floats
    """Log-likelihoods minus the maximum of their row, (claims,)."""
    sets: NDArray[np.int64]
    opens: NDArray[np.int64]
    """First slot of each window, (windows,)."""
    visits: Floats
    moves: Transitions


class _Graph(NamedTuple):
    """Factor graph of one person's claim sets, in buffers reused for all people."""

    size: NDArray[np.int64]
    """Number of claims of each set, (sets,)."""
    way: NDArray[np.int64]
    """Number of the directed edge between two sets, (sets, sets); -1 for none."""
    belief: Floats
    """Log weight of each claim including all messages, (sets, claims); after
    convergence its probability."""
    joint: Floats
    """Joint weight, at most 1, (edges, receiver's claims, sender's claims)."""
    message: Floats
    """Log messages, (edges, receiver's claims)."""


@compiled
def _assign_people(rows: _Rows, first: int, past: int, probability: Floats) -> None:
    """Fill ``probability`` (claims,) for people ``first`` to ``past`` (exclusive)."""
    start, windows, claims = rows.start, len(rows.opens), 1
    for row in range(first * windows, past * windows):
        claims = max(claims, start[row + 1] - start[row])
    graph = _Graph(
        np.empty(windows, np.int64),
        np.empty((windows, windows), np.int64),
        np.empty((windows, claims)),
        np.empty((2 * windows, claims, claims)),
        np.empty((2 * windows, claims)),
    )
    for person in range(first, past):
        base = person * windows
        lowest = rows.sets[base : base + windows].min()
        _propagate(_weigh(rows, base, lowest, graph), graph)
        for row in range(base, base + windows):
            size = start[row + 1] - start[row]
            if size > 0:
                belief = graph.belief[rows.sets[row] - lowest]
                probability[start[row] : start[row + 1]] = belief[:size]


@compiled
def _weigh(rows: _Rows, base: int, lowest: int, graph: _Graph) -> int:
    """Build a person's graph with zero messages; return the number of sets."""
    claims = graph.belief.shape[1]
    move = np.empty((claims, claims))
    graph.belief[:] = 0.0
    graph.way[:] = -1
    count, ways, last = 0, 0, -1
    for window in range(len(rows.opens)):
        row = base + window
        begin = rows.start[row]
        size = rows.start[row + 1] - begin
        if size == 0:
            continue
        here = rows.sets[row] - lowest
        count = max(count, here + 1)
        graph.size[here] = size
        belief = graph.belief[here]
        for spot in range(size):
            belief[spot] += rows.evidence[begin + spot]
        if last < 0:
            visits = rows.visits[rows.opens[window] % len(rows.visits)]
            for spot in range(size):
                belief[spot] += np.log(max(visits[rows.region[begin + spot]], _LEAST))
            last = row
            continue
        was = rows.sets[last] - lowest
        _fill_moves(rows, last, row, rows.opens[window], move)
        if was != here and graph.way[was, here] < 0:
            graph.way[was, here], graph.way[here, was] = ways, ways + 1
            graph.joint[ways : ways + 2] = 1.0
            graph.message[ways : ways + 2] = 0.0
            ways += 2
        known = graph.size[was]
        if was == here:
            for spot in range(size):
                belief[spot] += np.log(move[spot, spot])
        else:
            joint = graph.joint[graph.way[was, here], :size, :known]
            most = 0.0
            for later in range(size):
                for spot in range(known):
                    joint[later, spot] *= move[spot, later]
                    most = max(most, joint[later, spot])
            joint /= most
            graph.joint[graph.way[here, was], :known, :size] = joint.T
        last = row
    return count


@compiled
def _fill_moves(rows: _Rows, before: int, after: int, opens: int, move: Floats) -> None:
    """Fill ``move`` (earlier, later claims) with probabilities, 1e-300 or more.

    ``before`` and ``after`` are rows of claims. The move is the one into slot
    ``opens``, at which the later window begins.
    """
    start, region, moves = rows.start, rows.region, rows.moves
    base = (opens - 1) % len(rows.visits) * len(moves.point_km)
    early, later = start[before], start[after]
    for one in range(start[before + 1] - early):
        here = region[early + one]
        row = base + here
        share = 1.0 / moves.total[row] if moves.total[row] > 0 else 0.0
        low, past = moves.first[row], moves.first[row + 1]
        for other in range(start[after + 1] - later):
            to = region[later + other]
            value = 0.0
            if moves.epsilon > 0:
                near = distance_weight(moves.point_km, moves.spherical, here, to)
                value = moves.epsilon * near
            # Claims are in ascending order: search only after the previous one.
            low = find_move(moves.there, low, past, to)
            if low < past and moves.there[low] == to:
                value += moves.weight[low]
            move[one, other] = max(value * share, _LEAST)


@compiled
def _propagate(sets: int, graph: _Graph) -> None:
    """Pass messages forward and backward over the sets until convergence.

    If the sets are a chain, that is no set of claims occurs twice, the first sweep is
    the forward-backward algorithm, which is exact.
    """
    chain = True
    for sweep in range(_SWEEPS):
        damping = 0.0 if sweep < _UNDAMPED_SWEEPS else 0.5
        change = 0.0
        for giver in range(sets):
            for view in range(giver + 1, sets):
                if graph.way[giver, view] >= 0:
                    chain = chain and view == giver + 1
                    change = max(change, _send(giver, view, damping, graph))
        for giver in range(sets - 1, -1, -1):
            for view in range(giver - 1, -1, -1):
                if graph.way[giver, view] >= 0:
                    change = max(change, _send(giver, view, damping, graph))
        if chain or change < _STEADY:
            break
    for one in range(sets):
        weight = graph.belief[one, : graph.size[one]]
        weight -= np.max(weight)
        weight[:] = np.exp(weight)
        weight /= np.sum(weight)


@compiled
def _send(giver: int, view: int, damping: float, graph: _Graph) -> float:
    """Update one message; return its largest change."""
    way = graph.way[giver, view]
    known, message = graph.size[giver], graph.message[way]
    back = graph.message[graph.way[view, giver], :known]
    given = graph.belief[giver, :known] - back
    weight = np.exp(given - np.max(given))
    made = np.empty(graph.size[view])
    for later in range(len(made)):
        total = 0.0
        for spot in range(known):
            total += graph.joint[way, later, spot] * weight[spot]
        made[later] = np.log(max(total, _LEAST))
    made -= np.max(made)
    change = 0.0
    for later in range(len(made)):
        new = damping * message[later] + (1 - damping) * made[later]
        graph.belief[view, later] += new - message[later]
        change = max(change, abs(new - message[later]))
        message[later] = new
    return change
