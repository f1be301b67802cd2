"""The attack by sets: slots with the same claims hide the same truth.

Pseudo lives that recur as lives do leave the attacks by recurrence nothing. But a
set of claims that comes back as a whole then stands for one true place, so that
all its slots can be judged together: one claim is chosen for each distinct set of
a person, by all moves from set to set over the whole trace, and what uploads tell
of the slots of a set adds up.

The chance of each choice is exact where a person has few of them (all are gone
through) and otherwise found by loopy belief propagation (Pearl 1988; Murphy, Weiss
and Jordan 1999). Where no set comes back this is the localisation attack.

How many people claim a place is seen too. Pseudo places are drawn where moves are
probable, so many of those who claim a popular place are not there.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.evaluation.attacks import set_kernels as kernels
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import (
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, rows_of
from epifalcon.evaluation.attacks.rehearsal import Rehearsal
from epifalcon.hypergraph.compiled import each_part
from epifalcon.types import Counts, Floats

HONESTY = tuple(0.5**step for step in range(8))
"""Powers tried on a rehearsal, from belief as it is to nearly none."""
CROWD = (0.0, 1.0, 2.0, 3.0, 5.0)
"""Weights of the claimants tried there."""

_PEOPLE_AT_ONCE = 16
_LEAST = 1e-300
_HINT = 0.01
"""Squared distance of true and pseudo in what a slot tells beside, rehearsed."""


@dataclass(frozen=True)
class SetBelief:
    """How far the attack by sets is to be believed; ``learn_sets`` finds it.

    Moves from slot to slot are taken as independent and are not, so that summed
    over a trace they are far too sure of themselves. Which life they prefer is not
    hurt by that, but what they weigh beside other evidence is.
    """

    honest: float = 1.0
    """The power to which chances are taken; other evidence weighs more by as much."""
    crowd: float = 0.0
    """What minus the log of the claimants of a place weighs, once for each set."""


def by_sets(
    candidates: Candidates,
    profile: Profile,
    belief: SetBelief | None = None,
    evidence: Floats | None = None,
    claimed: Counts | None = None,
) -> Floats:
    """P(the person was there | all claims), equal sets having equal truths: (claims,).

    Adds up to 1 over the claims of each person and window. ``evidence`` (claims,)
    is as for ``forward_backward``; it adds up over the slots of a set, so what
    stays the same from slot to slot must be divided by ``slots_of_set``.
    ``claimed`` (claims,) is how many people claim the place. A move of chance 0
    counts as 1e-300, a gap is crossed by one move. Work goes with people x pairs of
    sets x claims^2.
    """
    belief = belief or SetBelief()
    told = None if evidence is None else np.asarray(evidence) / belief.honest
    if claimed is not None and belief.crowd:
        many = np.log(np.maximum(claimed, 1)) / slots_of_set(candidates)
        told = (0.0 if told is None else told) - belief.crowd * many
    rows = rows_of(candidates, profile, told)
    made = np.empty(candidates.claims)
    parts = -(-candidates.people // _PEOPLE_AT_ONCE)

    def work(part: int) -> None:
        first = part * _PEOPLE_AT_ONCE
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        kernels.assign_people(rows, profile.ways, first, past, made)

    each_part(work, parts, 100 * candidates.claims)
    return _tempered(candidates, made, belief.honest)


def slots_of_set(candidates: Candidates) -> NDArray[np.int64]:
    """In how many windows the person makes just the claims of this one: (claims,).

    Evidence that is the same in all slots of a set, such as exact counts of the
    same people, must be divided by it, or it would count once for each slot.
    """
    made = np.empty(candidates.claims, np.int64)
    windows = candidates.windows
    kernels.count_slots(candidates.start, candidates.region, windows, made)
    return made


def learn_sets(rehearsal: Rehearsal, rng: np.random.Generator) -> SetBelief:
    """What claimants weigh, and how far the attack is to be believed.

    Found on a rehearsal: the weight of ``CROWD`` with the least error, then the
    power of ``HONESTY`` with the least error when every slot gives a faint hint
    beside, drawn from ``rng``.
    """
    candidates, claimed = rehearsal.candidates, rehearsal.claimed
    profile = Profile.of(rehearsal.model)
    truth = true_claims(candidates, rehearsal.traces)

    def error(belief: SetBelief, told: Floats | None = None) -> float:
        likely = by_sets(candidates, profile, belief, told, claimed)
        guess = name_best(candidates, likely)
        return localisation_error(guess, candidates, truth).error

    weights = CROWD if claimed is not None else CROWD[:1]
    plain = min((SetBelief(crowd=crowd) for crowd in weights), key=error)
    noise = rng.standard_normal(candidates.claims)
    hint = _HINT * (truth - 0.5) + math.sqrt(_HINT) * noise
    tried = (SetBelief(honest, plain.crowd) for honest in HONESTY)
    return min(tried, key=lambda belief: error(belief, hint))


def _tempered(candidates: Candidates, likely: Floats, power: float) -> Floats:
    """Chances to a power, adding up to 1 in each row again."""
    if power == 1 or not candidates.claims:
        return likely
    made = np.maximum(likely, _LEAST) ** power
    filled = np.diff(candidates.start) > 0
    total = np.add.reduceat(made, candidates.start[:-1][filled])
    return np.asarray(made / np.repeat(total, np.diff(candidates.start)[filled]))
