"""The attack on repeated claims: windows with the same claims hide the same truth.

Pseudo lives that recur as lives do leave the attacks by recurrence nothing. But a
set of claims that returns as a whole then stands for one true place, so that all its
windows can be inferred together: one claim is chosen for each distinct set of a
person, by all moves from set to set over the whole trace, and the evidence of the
windows of a set adds up.

A person's distinct claim sets are the nodes of a graph, the claims of a set its
states; two sets that follow each other somewhere are a pair. The posterior is found
by loopy belief propagation (Pearl 1988; Murphy, Weiss and Jordan 1999). Where no set
returns, this is the localisation attack.

How many people claim a place is seen too. Pseudo places are drawn where moves are
probable, so many of those who claim a popular place are not there.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled, each_part
from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import (
    Profile,
    Rows,
    fill_moves,
    rows_of,
    scratch_size,
)
from epifalcon.evaluation.attacks.recurrence import Rehearsal
from epifalcon.types import Counts, Floats, RegionIds

HONESTY = tuple(0.5**step for step in range(8))
"""Powers tried on a rehearsal, from probabilities as they are to nearly uniform."""
CROWD = (0.0, 1.0, 2.0, 3.0, 5.0)
"""Weights of the number of claimants tried there."""

_PEOPLE_AT_ONCE = 16
_HINT = 0.01
"""Squared distance of true and pseudo claims in the evidence of a rehearsal."""
_SWEEPS, _UNDAMPED_SWEEPS, _STEADY = 40, 4, 1e-7
_LEAST = 1e-300
_DEEPEST = -1e6


@dataclass(frozen=True)
class SetBelief:
    """How far the attack is to be believed; ``learn_sets`` finds it.

    Moves from slot to slot are treated as independent and are not, so that their
    product over a trace is far too confident. That does not change which life is
    preferred, but its weight beside other evidence.
    """

    honest: float = 1.0
    """Power to which probabilities are raised; other evidence weighs more by it."""
    crowd: float = 0.0
    """Weight of minus the log of the claimants of a place, once for each set."""


def by_sets(
    candidates: Candidates,
    profile: Profile,
    belief: SetBelief | None = None,
    evidence: Floats | None = None,
    claimed: Counts | None = None,
) -> Floats:
    """Compute P(there | all claims) if equal sets have equal truths: (claims,).

    Adds up to 1 over the claims of each person and window. ``evidence`` (claims,)
    is as for ``forward_backward``; it adds up over the windows of a set, so that
    evidence which is the same in all of them must be divided by ``slots_of_set``.
    ``claimed`` (claims,) is the number of people who claim the place. A move of
    probability 0 counts as 1e-300, a gap is crossed by one move.
    """
    belief = belief or SetBelief()
    given = None if evidence is None else np.asarray(evidence) / belief.honest
    if claimed is not None and belief.crowd:
        many = np.log(np.maximum(claimed, 1)) / slots_of_set(candidates)
        given = (0.0 if given is None else given) - belief.crowd * many
    rows = rows_of(candidates, profile, given)
    made = np.empty(candidates.claims)
    parts = -(-candidates.people // _PEOPLE_AT_ONCE)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        _assign_people(rows, first, past, made)

    each_part(work, parts, 100 * candidates.claims)
    if belief.honest == 1:
        return made
    made = np.maximum(made, _LEAST) ** belief.honest
    return np.asarray(made / candidates.per_claim(candidates.row_sum(made)))


def slots_of_set(candidates: Candidates) -> NDArray[np.int64]:
    """Count the windows in which the person makes the same claims: (claims,).

    Evidence that is the same in all windows of a set, such as exact counts of the
    same people, must be divided by it.
    """
    made = np.empty(candidates.claims, np.int64)
    _count_windows(candidates.start, candidates.region, candidates.windows, made)
    return made


def learn_sets(rehearsal: Rehearsal, rng: np.random.Generator) -> SetBelief:
    """Find the weight of the claimants and the power of the probabilities.

    On a rehearsal: the weight of ``CROWD`` with the least error, then the power of
    ``HONESTY`` with the least error when every window has weak evidence beside,
    drawn from ``rng``.
    """
    candidates, claimed = rehearsal.candidates, rehearsal.claimed
    profile = Profile.of(rehearsal.model)
    truth = true_claims(candidates, rehearsal.traces)

    def error(belief: SetBelief, evidence: Floats | None = None) -> float:
        likely = by_sets(candidates, profile, belief, evidence, claimed)
        guess = name_best(candidates, likely)
        return localisation_error(guess, candidates, truth).error

    weights = CROWD if claimed is not None else CROWD[:1]
    plain = min((SetBelief(crowd=crowd) for crowd in weights), key=error)
    noise = rng.standard_normal(candidates.claims)
    hint = _HINT * (truth - 0.5) + math.sqrt(_HINT) * noise
    tried = (SetBelief(honest, plain.crowd) for honest in HONESTY)
    return min(tried, key=lambda belief: error(belief, hint))


class _Graph(NamedTuple):
    """The sets of one person, with room for those of any of several people."""

    set_of: NDArray[np.int64]
    """(windows,) number of the window's set, -1 without claims."""
    row: NDArray[np.int64]
    """(sets,) a row that has these claims."""
    state: NDArray[np.int64]
    """(sets + 1,) where the states of each set begin."""
    pair: NDArray[np.int64]
    """(sets, sets) number of the pair, -1 for none; symmetric."""
    alone: Floats
    """(states,) log weight of a state by itself."""
    joint: Floats
    """(pairs, claims, claims) log weight of two states, the lower set first."""
    message: Floats
    """(pairs, 2, claims) log messages: to the higher set, to the lower one."""
    belief: Floats
    """(states,) ``alone`` and all messages; at the end the probability."""


@compiled
def _assign_people(rows: Rows, first: int, past: int, probability: Floats) -> None:
    """Fill ``probability`` (claims,) for people ``first`` to ``past``."""
    start, windows = rows.start, len(rows.opens)
    claims = scratch_size(start, windows, first, past)[1]
    graph = _Graph(
        np.empty(windows, np.int64),
        np.empty(windows, np.int64),
        np.empty(windows + 1, np.int64),
        np.empty((windows, windows), np.int64),
        np.empty(windows * claims),
        np.empty((windows, claims, claims)),
        np.empty((windows, 2, claims)),
        np.empty(windows * claims),
    )
    for person in range(first, past):
        sets = _find_sets(rows, person, graph)
        _weigh(rows, person, sets, graph)
        _propagate(sets, graph)
        for window in range(windows):
            here = graph.set_of[window]
            if here >= 0:
                row = person * windows + window
                probability[start[row] : start[row + 1]] = graph.belief[
                    graph.state[here] : graph.state[here + 1]
                ]


@compiled
def _same(
    start: NDArray[np.int64], region: RegionIds, row: int, other_row: int
) -> bool:
    here, there = start[row], start[other_row]
    size = start[row + 1] - here
    if start[other_row + 1] - there != size:
        return False
    spot = 0
    while spot < size and region[here + spot] == region[there + spot]:
        spot += 1
    return bool(spot == size)


@compiled
def _count_windows(
    start: NDArray[np.int64], region: RegionIds, windows: int, made: NDArray[np.int64]
) -> None:
    for row in range(len(start) - 1):
        if start[row + 1] > start[row]:
            first, alike = row // windows * windows, 0
            for other in range(first, first + windows):
                alike += _same(start, region, row, other)
            made[start[row] : start[row + 1]] = alike


@compiled
def _find_sets(rows: Rows, person: int, graph: _Graph) -> int:
    """Number the distinct claim sets in order of appearance; return how many."""
    windows, sets = len(rows.opens), 0
    graph.state[0] = 0
    for window in range(windows):
        row = person * windows + window
        size = rows.start[row + 1] - rows.start[row]
        graph.set_of[window] = -1
        if size == 0:
            continue
        found = 0
        while found < sets and not _same(
            rows.start, rows.region, row, graph.row[found]
        ):
            found += 1
        if found == sets:
            graph.row[sets] = row
            graph.state[sets + 1] = graph.state[sets] + size
            sets += 1
        graph.set_of[window] = found
    return sets


@compiled
def _weigh(rows: Rows, person: int, sets: int, graph: _Graph) -> None:
    """Fill ``alone`` and ``joint``, and set all messages to 0."""
    windows, claims = len(rows.opens), graph.joint.shape[1]
    move = np.empty((claims, claims))
    graph.alone[: graph.state[sets]] = 0.0
    graph.pair[:sets, :sets] = -1
    pairs, last = 0, -1
    for window in range(windows):
        here, row = graph.set_of[window], person * windows + window
        if here < 0:
            continue
        begin, state = rows.start[row], graph.state[here]
        size = rows.start[row + 1] - begin
        if last < 0:
            visits = rows.visits[rows.opens[window] % len(rows.visits)]
            for spot in range(size):
                share = max(visits[rows.region[begin + spot]], _LEAST)
                graph.alone[state + spot] += np.log(share)
        if len(rows.evidence) > 0:
            most = np.max(rows.evidence[begin : begin + size])
            for spot in range(size):
                # Claims that every window of a set rules out must leave numbers.
                gap = max(rows.evidence[begin + spot] - most, _DEEPEST)
                graph.alone[state + spot] += gap
        if last >= 0:
            was = graph.set_of[last]
            before = person * windows + last
            fill_moves(rows, before, row, rows.opens[window], move)
            if was != here and graph.pair[was, here] < 0:
                graph.pair[was, here] = graph.pair[here, was] = pairs
                graph.joint[pairs] = 0.0
                graph.message[pairs] = 0.0
                pairs += 1
            _add_moves(was, here, move, graph)
        last = window


@compiled
def _add_moves(was: int, here: int, move: Floats, graph: _Graph) -> None:
    """Add the log moves from one set to the next."""
    before = graph.state[was + 1] - graph.state[was]
    after = graph.state[here + 1] - graph.state[here]
    for spot in range(before):
        if was == here:
            graph.alone[graph.state[here] + spot] += np.log(
                max(move[spot, spot], _LEAST)
            )
            continue
        pair = graph.pair[was, here]
        for later in range(after):
            value = np.log(max(move[spot, later], _LEAST))
            if was < here:
                graph.joint[pair, spot, later] += value
            else:
                graph.joint[pair, later, spot] += value


@compiled
def _propagate(sets: int, graph: _Graph) -> None:
    """Pass messages up and down the sets until nothing changes.

    Where the sets are a chain, as with claims that never return as a whole, the
    first sweep is the forward-backward algorithm.
    """
    graph.belief[: graph.state[sets]] = graph.alone[: graph.state[sets]]
    for sweep in range(_SWEEPS):
        damping = 0.0 if sweep < _UNDAMPED_SWEEPS else 0.5
        change = 0.0
        for giver in range(sets):
            for taker in range(giver + 1, sets):
                change = max(change, _send(giver, taker, damping, graph))
        for giver in range(sets - 1, -1, -1):
            for taker in range(giver - 1, -1, -1):
                change = max(change, _send(giver, taker, damping, graph))
        if change < _STEADY:
            break
    for one in range(sets):
        _normalise(graph.belief[graph.state[one] : graph.state[one + 1]])


@compiled
def _send(giver: int, taker: int, damping: float, graph: _Graph) -> float:
    """Renew one message, if the sets are a pair; return by how much it changed."""
    pair = graph.pair[giver, taker]
    if pair < 0:
        return 0.0
    way = 0 if giver < taker else 1
    joint, mine = graph.joint[pair], graph.message[pair, way]
    belief = graph.belief[graph.state[giver] : graph.state[giver + 1]]
    given = belief - graph.message[pair, 1 - way, : len(belief)]
    size = graph.state[taker + 1] - graph.state[taker]
    made = np.empty(size)
    for later in range(size):
        column = given + (
            joint[: len(given), later] if way == 0 else joint[later, : len(given)]
        )
        most = np.max(column)
        made[later] = most + np.log(np.sum(np.exp(column - most)))
    made -= np.max(made)
    change = 0.0
    for later in range(size):
        new = damping * mine[later] + (1 - damping) * made[later]
        graph.belief[graph.state[taker] + later] += new - mine[later]
        change = max(change, abs(new - mine[later]))
        mine[later] = new
    return change


@compiled
def _normalise(weight: Floats) -> None:
    """Turn log weights into probabilities."""
    most, total = np.max(weight), 0.0
    for spot in range(len(weight)):
        weight[spot] = np.exp(weight[spot] - most)
        total += weight[spot]
    weight /= total
