"""The combined attack: recurrence and moves together, learnt on a rehearsal.

How much recurrence tells, and how much of it moves have told already, depends on
how pseudo traces are made, which is public. So the attacker makes a city of its
own, draws pseudo traces there by the same method, and finds the weights for which
the attack works best there. Nothing of the attacked people's truth is used.

An attack is a series of passes. The first counts how often claims recur, each
claim alike; every later one counts claims by how far the pass before believed
them, so that a life that hangs together is found as a whole: moves pick it out on
one day, recurrence carries that over to the others. Each pass puts its evidence
into the forward-backward algorithm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from epifalcon.checks import whole
from epifalcon.evaluation.attacks.candidates import Candidates
from epifalcon.evaluation.attacks.guessing import (
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.evaluation.attacks.localisation import Profile, forward_backward
from epifalcon.evaluation.attacks.recurrence import (
    RecurrenceWeights,
    features,
    recurrence,
    recurrence_evidence,
)
from epifalcon.hypergraph.compiled import compiled
from epifalcon.mobility.markov import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.types import Counts, Floats, Mask

SCALES = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5)
"""What the evidence is multiplied by, tried on the rehearsal: neighbouring slots
tell much the same, and added up in full they would count several times."""

_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A city of the attacker's own: claims, who was where, and how people move."""

    candidates: Candidates
    traces: Traces
    """True here, since the attacker made them."""
    model: MobilityModel
    """Of the rehearsal's own people."""
    claimed: Counts | None = None
    """(claims,) how many of the city claim the place; None where not counted."""


@dataclass(frozen=True)
class Pass:
    """Weights of the evidence, and what it is multiplied by."""

    weights: RecurrenceWeights
    scale: float
    error: float
    """On the rehearsal."""


def learn(rehearsal: Rehearsal, passes: int = 4) -> tuple[Pass, ...]:
    """Find the passes of the combined attack on a rehearsal.

    The weights are those of a conditional logit (which claim of a row is true,
    by what ``RecurrenceWeights`` lists) with a slight ridge; the scale is the
    one of ``SCALES`` with the least error. Passes are added as long as the error
    falls, at most ``passes``.
    """
    whole(1, passes=passes)
    candidates = rehearsal.candidates
    profile = Profile.of(rehearsal.model)
    truth = true_claims(candidates, rehearsal.traces)
    log_visits = profile.log_visits(candidates)
    belief, found = None, list[Pass]()
    for _ in range(passes):
        counted = recurrence(candidates, belief)
        table = features(counted, log_visits, slice(None))
        weights = RecurrenceWeights(*_logit(candidates, table, truth))
        evidence = recurrence_evidence(counted, log_visits, weights)
        best: tuple[float, float, Floats] | None = None
        for scale in SCALES:
            likely = forward_backward(candidates, profile, scale * evidence)
            guess = name_best(candidates, likely)
            error = localisation_error(guess, candidates, truth).error
            if best is None or error < best[0]:
                best = (error, scale, likely)
        if best is None or (found and best[0] >= found[-1].error):
            break
        found.append(Pass(weights, best[1], best[0]))
        belief = best[2]
    return tuple(found)


def combined(
    candidates: Candidates,
    profile: Profile,
    passes: Sequence[Pass],
    evidence: Floats | None = None,
) -> Floats:
    """P(the person was there | all claims), by moves and recurrence: (claims,).

    ``passes`` come from ``learn``. ``evidence`` (claims,) is what else was seen,
    such as the log-likelihood of uploads; it enters every pass in full.
    """
    log_visits = profile.log_visits(candidates)
    likely = None
    for one in passes:
        counted = recurrence(candidates, likely)
        told = recurrence_evidence(counted, log_visits, one.weights)
        told *= one.scale
        if evidence is not None:
            told += candidates.about_claims("evidence", evidence)
        likely = forward_backward(candidates, profile, told)
    if likely is None:
        return forward_backward(candidates, profile, evidence)
    return likely


def _logit(candidates: Candidates, table: Floats, truth: Mask) -> list[float]:
    """Weights under which the true claims are likeliest among those of their row."""
    centre, spread = table.mean(axis=0), table.std(axis=0)
    spread[spread < 1e-9] = 1.0
    scaled = (table - centre) / spread

    def loss(weight: Floats) -> tuple[float, Floats]:
        slope = np.zeros(len(weight))
        lost, rows = _logit_loss(candidates.start, scaled, truth, weight, slope)
        ridge = _RIDGE * float(weight @ weight) / 2
        return lost / rows + ridge, slope / rows + _RIDGE * weight

    done = minimize(loss, np.zeros(table.shape[1]), jac=True, method="L-BFGS-B")
    return [float(one) for one in done.x / spread]


@compiled
def _logit_loss(
    start: NDArray[np.int64],
    table: Floats,
    truth: Mask,
    weight: Floats,
    slope: Floats,
) -> tuple[float, int]:
    """Minus the log-likelihood, and how many rows have a truth; adds its slope."""
    lost, rows, wide = 0.0, 0, len(weight)
    score = np.empty(len(table))
    for claim in range(len(table)):
        score[claim] = 0.0
        for part in range(wide):
            score[claim] += weight[part] * table[claim, part]
    for row in range(len(start) - 1):
        begin, end = start[row], start[row + 1]
        true = np.sum(truth[begin:end])
        if true == 0:
            continue
        rows += 1
        most = np.max(score[begin:end])
        total = np.sum(np.exp(score[begin:end] - most))
        for claim in range(begin, end):
            wished = truth[claim] / true
            lost -= wished * (score[claim] - most - np.log(total))
            gap = np.exp(score[claim] - most) / total - wished
            for part in range(wide):
                slope[part] += gap * table[claim, part]
    return lost, max(rows, 1)
