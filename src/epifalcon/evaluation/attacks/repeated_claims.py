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

from epifalcon.evaluation.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, posteriors
from epifalcon.evaluation.attacks.recurrence import Rehearsal
from epifalcon.types import Counts, Floats

HONESTY = tuple(0.5**step for step in range(8))
"""Powers tried on a rehearsal, from probabilities as they are to nearly uniform."""
CROWD = (0.0, 1.0, 2.0, 3.0, 5.0)
"""Weights of the number of claimants tried there."""

_HINT = 0.01
"""Squared distance of true and pseudo claims in the evidence of a rehearsal."""
_LEAST = 1e-300


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
    made = posteriors(candidates, profile, _number_sets(candidates).of_row, given)
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
