"""The attack on repeated claims: windows with the same claims hide the same truth.

Pseudo traces that recur as true ones do withstand the attack by recurrence. But a set
of claims that returns as a whole then stands for one true place, so that one claim is
chosen for each distinct set of a person, and the evidence of its windows adds up.

A person's distinct claim sets are the nodes of a graph, the claims of a set its
states; two sets that follow each other somewhere are a pair. The posterior is found
by loopy belief propagation (Pearl 1988; Murphy, Weiss and Jordan 1999). Where no set
returns, this is the localisation attack. The number of people who claim a place is
evidence too: many of those who claim a popular place are not there.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epifalcon._numba import compiled
from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import (
    Profile,
    Rows,
    each_person,
    fill_moves,
    most_claims,
)
from epifalcon.evaluation.attacks.recurrence import Rehearsal
from epifalcon.types import Counts, Floats

HONESTY = tuple(0.5**step for step in range(8))
"""Powers tried on a rehearsal, from probabilities as they are to nearly uniform."""
CROWD = (0.0, 1.0, 2.0, 3.0, 5.0)
"""Weights of the number of claimants tried there."""

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
    sets = _number_sets(candidates).of_row

    def kernel(rows: Rows, first: int, past: int, made: Floats) -> None:
        _assign_people(rows, sets, first, past, made)

    made = each_person(kernel, candidates, profile, given)
    if belief.honest == 1:
        return made
    made = np.maximum(made, _LEAST) ** belief.honest
    return np.asarray(made / candidates.per_claim(candidates.row_sum(made)))


def slots_of_set(candidates: Candidates) -> NDArray[np.int64]:
    """Count the windows in which the person makes the same claims: (claims,).

    Evidence that is the same in all windows of a set, such as exact counts of the
    same people, must be divided by it.
    """
    sets = _number_sets(candidates)
    return np.repeat(sets.times[sets.of_row], np.diff(candidates.start))


class _Sets(NamedTuple):
    """The distinct claim sets of all people, in order of first appearance."""

    of_row: NDArray[np.int64]
    """(rows,) number of the set; any number where there are no claims."""
    times: NDArray[np.int64]
    """(sets,) windows that have the set."""


def _number_sets(candidates: Candidates) -> _Sets:
    size = np.diff(candidates.start)
    table = np.full((len(size), 1 + size.max(initial=0)), -1, np.int64)
    table[:, 0] = np.arange(len(size)) // candidates.windows
    place = np.arange(candidates.claims) - np.repeat(candidates.start[:-1], size)
    table[candidates.row, 1 + place] = candidates.region
    # Empty windows have a number far behind those of the person's sets.
    table[size == 0, 0] = candidates.people
    _, first, found, times = np.unique(
        table, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(np.where(size[first] > 0, first, len(size)))
    rank = np.argsort(order)
    return _Sets(rank[found.ravel()], times[order])


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
def _assign_people(
    rows: Rows, sets: NDArray[np.int64], first: int, past: int, probability: Floats
) -> None:
    """Fill ``probability`` (claims,) for people ``first`` to ``past``."""
    start, windows = rows.start, len(rows.opens)
    claims = most_claims(start, windows, first, past)
    graph = _Graph(
        np.zeros(windows + 1, np.int64),
        np.empty((windows, windows), np.int64),
        np.empty(windows * claims),
        np.empty((windows, claims, claims)),
        np.empty((windows, 2, claims)),
        np.empty(windows * claims),
    )
    for person in range(first, past):
        base = person * windows
        lowest = sets[base : base + windows].min()
        _propagate(_weigh(rows, base, sets, lowest, graph), graph)
        for row in range(base, base + windows):
            if start[row + 1] > start[row]:
                state = graph.state[sets[row] - lowest :]
                probability[start[row] : start[row + 1]] = graph.belief[
                    state[0] : state[1]
                ]


@compiled
def _weigh(
    rows: Rows, base: int, sets: NDArray[np.int64], lowest: int, graph: _Graph
) -> int:
    """Fill ``alone`` and ``joint``, set messages to 0; return the number of sets."""
    claims = graph.joint.shape[1]
    move = np.empty((claims, claims))
    graph.alone[:] = 0.0
    graph.pair[:] = -1
    count, pairs, last = 0, 0, -1
    for window in range(len(rows.opens)):
        row = base + window
        begin = rows.start[row]
        size = rows.start[row + 1] - begin
        if size == 0:
            continue
        here = sets[row] - lowest
        if here == count:
            graph.state[here + 1] = graph.state[here] + size
            count += 1
        alone = graph.alone[graph.state[here] : graph.state[here + 1]]
        if last < 0:
            visits = rows.visits[rows.opens[window] % len(rows.visits)]
            for spot in range(size):
                alone[spot] += np.log(max(visits[rows.region[begin + spot]], _LEAST))
        if len(rows.evidence) > 0:
            for spot in range(size):
                # Claims that every window of a set rules out must leave numbers.
                alone[spot] += max(rows.evidence[begin + spot], _DEEPEST)
        if last >= 0:
            was = sets[last] - lowest
            fill_moves(rows, last, row, rows.opens[window], move)
            if was != here and graph.pair[was, here] < 0:
                graph.pair[was, here] = graph.pair[here, was] = pairs
                graph.joint[pairs] = 0.0
                graph.message[pairs] = 0.0
                pairs += 1
            for spot in range(rows.start[last + 1] - rows.start[last]):
                if was == here:
                    alone[spot] += np.log(max(move[spot, spot], _LEAST))
                    continue
                joint = graph.joint[graph.pair[was, here]]
                for later in range(size):
                    value = np.log(max(move[spot, later], _LEAST))
                    if was < here:
                        joint[spot, later] += value
                    else:
                        joint[later, spot] += value
        last = row
    return count


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
        weight = graph.belief[graph.state[one] : graph.state[one + 1]]
        weight -= np.max(weight)
        weight[:] = np.exp(weight)
        weight /= np.sum(weight)


@compiled
def _send(giver: int, taker: int, damping: float, graph: _Graph) -> float:
    """Update one message, if the sets are a pair; return by how much it changed."""
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
