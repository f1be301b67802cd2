"""The recurrence attack, and recurrence and moves together.

People return to places, most pseudo traces do not: a place claimed at the same hour
of many other days is a home or a place of work. How informative that is depends on
how pseudo traces are made, which is public. So the attacker makes a city of its own
(a rehearsal), draws pseudo traces there by the same method, and fits the weights of
the evidence there. Nothing of the attacked people's truth is used.

The combined attack is a series of passes, each of which puts its evidence into the
forward-backward algorithm. The first counts every claim alike; later ones weight
claims by their probability in the pass before.

Pseudo traces that recur as true ones do withstand it. But a set of claims that returns
as a whole then stands for one true place: the attack by sets chooses one claim for each
distinct set of a person, and the evidence of its windows adds up. How many people claim
a place is evidence too: many of those who claim a popular place are not there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from epifalcon.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.attacks.localisation import MobilityProfile, forward_backward, posteriors
from epifalcon.checks import whole
from epifalcon.errors import DataError
from epifalcon.mobility.mobility_model import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.types import Counts, Floats, Mask, RegionIds

SCALES = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5)
"""Factors of the evidence tried on the rehearsal: neighbouring slots carry much the
same evidence, and added up in full they would count several times."""

HONESTY = tuple(0.5**step for step in range(8))
"""Powers tried on a rehearsal, from probabilities as they are to nearly uniform."""
CROWD = (0.0, 1.0, 2.0, 3.0, 5.0)
"""Weights of the number of claimants tried there."""

_HINT = 0.01
"""Squared distance of true and pseudo claims in the evidence of a rehearsal."""
_LEAST = 1e-300
_PEOPLE_AT_ONCE = 32
_SELDOM = 0.01
_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Recurrence:
    """How often each claim returns on other days, from 0 (never) to 1 (always).

    (claims,) float32 each: the weight of the other claims of the same region by the
    same person, over the non-empty windows in which it could have been; 0 where there
    is no other day.
    """

    same_hour: NDArray[np.float32]
    """At the same window of other days."""
    any_hour: NDArray[np.float32]
    """At any window of other days."""


@dataclass(frozen=True, eq=False)
class ShadowCity:
    """A city of the attacker's own: claims, true traces, and how people move."""

    candidates: Candidates
    traces: Traces
    model: MobilityModel
    """Of the rehearsal's own people."""
    claimed: Counts | None = None
    """(claims,) people of the city who claim the place; None where not counted."""


@dataclass(frozen=True, eq=False)
class EvidenceWeights:
    """Weights of the evidence, and its factor."""

    weights: Floats
    """(5,) of the columns of ``features``."""
    scale: float
    error: float
    """On the rehearsal."""


def recurrence(candidates: Candidates, weight: Floats | None = None) -> Recurrence:
    """Count for each claim how often the person claims the region on other days.

    ``weight`` (claims,), each 0 to 1, is the probability that a claim is true;
    without it every claim counts 1. Windows must not cross midnight.
    """
    if weight is None:
        weight = np.ones(candidates.claims)
    given = candidates.about_claims("weight", weight)
    if given.size and not (given.min() >= 0 and given.max() <= 1 + 1e-9):
        raise DataError("weights must lie between 0 and 1")
    windows, day = candidates.windows, candidates.windows_per_day
    same, any_hour = (np.empty(candidates.claims, np.float32) for _ in range(2))
    for first in range(0, candidates.people, _PEOPLE_AT_ONCE):
        past = min(first + _PEOPLE_AT_ONCE, candidates.people)
        start = candidates.start[first * windows : past * windows + 1]
        mine = slice(start[0], start[-1])
        size = np.diff(start).reshape(past - first, -1, day)
        person, date, hour = np.repeat(
            np.indices(size.shape).reshape(3, -1), size.ravel(), axis=1
        )
        region, own = candidates.region[mine], given[mine]
        by_hour, by_date = (
            _sums(person, hour, region, own),
            _sums(person, date, region, own),
        )
        seen = size > 0
        other_hours = seen.sum(axis=1)[person, hour] - 1
        other_dates = (seen.sum(axis=(1, 2))[:, None] - seen.sum(axis=2))[person, date]
        back = by_hour[person, hour, region] - own
        same[mine] = np.maximum(back, 0) / np.maximum(other_hours, 1)
        back = by_date.sum(axis=1)[person, region] - by_date[person, date, region]
        any_hour[mine] = np.maximum(back, 0) / np.maximum(other_dates, 1)
    return Recurrence(same, any_hour)


def _sums(
    person: NDArray[np.int64],
    part: NDArray[np.int64],
    region: RegionIds,
    weight: Floats,
) -> Floats:
    """Add up weights by person, part of the time and region."""
    shape = (
        person.max(initial=0) + 1,
        part.max(initial=0) + 1,
        region.max(initial=0) + 1,
    )
    code = np.ravel_multi_index((person, part, region), shape)
    return np.bincount(code, weight, math.prod(shape)).reshape(shape)


def learn(rehearsal: ShadowCity, passes: int = 4) -> tuple[EvidenceWeights, ...]:
    """Find the passes of the combined attack on a rehearsal.

    The weights are those of a conditional logit (which claim of a row is true)
    with a slight ridge; the factor is the one of ``SCALES`` with the least error.
    Passes are added while the error falls, at most ``passes``.
    """
    whole(1, passes=passes)
    candidates = rehearsal.candidates
    profile = MobilityProfile.of(rehearsal.model)
    truth = true_claims(candidates, rehearsal.traces)
    log_visits = profile.log_visits(candidates)
    belief, found = None, list[EvidenceWeights]()
    for _ in range(passes):
        counted = recurrence(candidates, belief)
        table = features(counted, log_visits)
        weights = _conditional_logit(candidates, table, truth)
        evidence = table @ weights
        tried: dict[float, float] = {}
        for scale in SCALES:
            likely = forward_backward(candidates, profile, scale * evidence)
            guess = name_best(candidates, likely)
            error = localisation_error(guess, candidates, truth).error
            if not tried or error < min(tried.values()):
                belief = likely
            tried[scale] = error
        best = min(SCALES, key=lambda scale: tried[scale])
        if found and tried[best] >= found[-1].error:
            break
        found.append(EvidenceWeights(weights, best, tried[best]))
    return tuple(found)


def combined(
    candidates: Candidates,
    profile: MobilityProfile,
    passes: Sequence[EvidenceWeights],
    evidence: Floats | None = None,
) -> Floats:
    """Compute P(there | all claims) by moves and recurrence: (claims,).

    ``passes`` come from ``learn``. ``evidence`` (claims,) is other evidence, such as
    the log-likelihood of uploads; it enters every pass in full.
    """
    log_visits = profile.log_visits(candidates)
    likely = None
    for one in passes:
        counted = recurrence(candidates, likely)
        given = one.scale * features(counted, log_visits) @ one.weights
        if evidence is not None:
            given += candidates.about_claims("evidence", evidence)
        likely = forward_backward(candidates, profile, given)
    if likely is None:
        return forward_backward(candidates, profile, evidence)
    return likely


def features(found: Recurrence, log_visits: Floats) -> Floats:
    """Return what the evidence weighs: (claims, 5).

    The share at the same hour, its log, the share at any hour, its log, log pi(r|t);
    the weight of the last is below 0 where pseudo places are drawn by visits.
    """
    hour, any_hour = (
        one.astype(np.float64) for one in (found.same_hour, found.any_hour)
    )
    logs = [np.log(_SELDOM + one) for one in (hour, any_hour)]
    # A region nobody visits is -inf where epsilon is 0; evidence must stay finite.
    visits = np.maximum(log_visits, -50.0)
    return np.stack([hour, logs[0], any_hour, logs[1], visits], axis=1)


def _conditional_logit(candidates: Candidates, table: Floats, truth: Mask) -> Floats:
    """Fit the weights under which the true claims are likeliest in their rows."""
    true = candidates.per_claim(candidates.row_sum(truth))
    spread = table.std(axis=0)
    spread[spread < 1e-9] = 1.0
    scaled = (table - table.mean(axis=0)) / spread
    counted = true > 0
    target = np.divide(truth, true, out=np.zeros(len(true)), where=counted)
    rows = max(1.0, float(target.sum()))

    def loss(weight: Floats) -> tuple[float, Floats]:
        score = scaled @ weight
        score -= candidates.per_claim(candidates.row_max(score))
        total = candidates.per_claim(candidates.row_sum(np.exp(score)))
        score -= np.log(total)
        gap = np.where(counted, np.exp(score), 0.0) - target
        ridge = _RIDGE * float(weight @ weight) / 2
        lost = ridge - float(target @ score) / rows
        return lost, gap @ scaled / rows + _RIDGE * weight

    done = minimize(loss, np.zeros(table.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(done.x / spread)


@dataclass(frozen=True)
class RepeatReliability:
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
    profile: MobilityProfile,
    belief: RepeatReliability | None = None,
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
    belief = belief or RepeatReliability()
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


def learn_sets(rehearsal: ShadowCity, rng: np.random.Generator) -> RepeatReliability:
    """Find the weight of the claimants and the power of the probabilities.

    On a rehearsal: the weight of ``CROWD`` with the least error, then the power of
    ``HONESTY`` with the least error when every window has weak evidence beside,
    drawn from ``rng``.
    """
    candidates, claimed = rehearsal.candidates, rehearsal.claimed
    profile = MobilityProfile.of(rehearsal.model)
    truth = true_claims(candidates, rehearsal.traces)

    def error(belief: RepeatReliability, evidence: Floats | None = None) -> float:
        likely = by_sets(candidates, profile, belief, evidence, claimed)
        guess = name_best(candidates, likely)
        return localisation_error(guess, candidates, truth).error

    weights = CROWD if claimed is not None else CROWD[:1]
    plain = min((RepeatReliability(crowd=crowd) for crowd in weights), key=error)
    noise = rng.standard_normal(candidates.claims)
    hint = _HINT * (truth - 0.5) + math.sqrt(_HINT) * noise
    tried = (RepeatReliability(honest, plain.crowd) for honest in HONESTY)
    return min(tried, key=lambda belief: error(belief, hint))
