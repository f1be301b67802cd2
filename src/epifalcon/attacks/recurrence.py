"""Recurrence attack: places claimed on many days, alone or combined with moves.

People return to places, most pseudo traces do not: a place claimed at the same hour of
many other days is probably where a person lives or works. How informative that is
depends on the generator of pseudo traces, which is public. So the attacker simulates a
shadow city, draws pseudo traces there by the same method, and fits the weights of the
evidence there. The true places of the attacked people are not used.

The combined attack has several passes of the forward-backward algorithm. The first
counts all claims equally; later ones weight claims by their probability in the previous
pass.

Pseudo traces that recur like true ones resist it. But then a set of claims that recurs
as a whole stands for one true place: the attack by sets selects one claim for each
distinct set of a person, and the evidence of its windows adds up. The number of people
who claim a place is evidence too: many claims of a popular place are false.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from epifalcon.attacks.claims import (
    Candidates,
    localisation_error,
    name_best,
    true_claims,
)
from epifalcon.attacks.localisation import forward_backward, log_visits, posteriors
from epifalcon.mobility.mobility_model import MobilityModel
from epifalcon.mobility.traces import Traces
from epifalcon.types import Counts, Floats, Mask, RegionIds

SCALES = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5)
"""Candidate factors on the evidence; below 1 because neighbouring slots have similar
evidence, which a plain sum would count several times."""

POWERS = tuple(0.5**step for step in range(8))
"""Candidate exponents of the probabilities, from unchanged to nearly uniform ones."""
CROWD = (0.0, 1.0, 2.0, 3.0, 5.0)
"""Candidate weights of the number of people who claim a place."""

_HINT = 0.01
"""Mean difference of true and pseudo claims in simulated evidence, and its variance."""
_LEAST = 1e-300
_PEOPLE_AT_ONCE = 32
_SELDOM = 0.01
_PASSES = 4
_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class Recurrence:
    """Frequency of each claim on other days, from 0 (never) to 1 (always).

    Both are (claims,) float32: the weight of the person's other claims of the region,
    divided by the number of its other non-empty windows; 0 without other days.
    """

    same_hour: NDArray[np.float32]
    """Frequency at the same window of other days."""
    any_hour: NDArray[np.float32]
    """Frequency at any window of other days."""


@dataclass(frozen=True, eq=False)
class ShadowCity:
    """A city simulated by the attacker: claims, true traces and mobility model."""

    candidates: Candidates
    traces: Traces
    model: MobilityModel
    """Mobility model of the shadow city."""
    claimed: Counts
    """Number of people who claim the place, (claims,)."""

    @cached_property
    def truth(self) -> Mask:
        """Mask of the true claims, (claims,)."""
        return true_claims(self.candidates, self.traces)

    def error(self, likely: Floats) -> float:
        """Return the localisation error of an attack with these scores (claims,)."""
        guess = name_best(self.candidates, likely)
        return localisation_error(guess, self.candidates, self.truth).error


@dataclass(frozen=True, eq=False)
class EvidenceWeights:
    """Fitted evidence of one pass: weights of the features, and a common factor."""

    weights: Floats
    """Weights of the columns of ``features``, (5,)."""
    scale: float
    error: float
    """Localisation error in the shadow city."""


def recurrence(candidates: Candidates, weight: Floats | None = None) -> Recurrence:
    """Compute how often the person claims each claim's region on other days.

    ``weight`` (claims,), from 0 to 1, is the probability that a claim is true; default
    1. Windows must not cross midnight.
    """
    if weight is None:
        weight = np.ones(candidates.claims)
    given = np.asarray(weight, float)
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
        by_hour = _sums(person, hour, region, own)
        by_date = _sums(person, date, region, own)
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
    """Sum weights of claims: (people, parts of the time, regions)."""
    index = (person, part, region)
    shape = tuple(int(one.max(initial=0)) + 1 for one in index)
    code = np.ravel_multi_index(index, shape)
    found = np.bincount(code, weight, math.prod(shape)).astype(np.float64)
    return found.reshape(shape)


def learn(shadow: ShadowCity) -> tuple[EvidenceWeights, ...]:
    """Fit the passes of the combined attack in a shadow city.

    The weights are those of a conditional logit (which claim of a row is true)
    with a small ridge; the factor is the one of ``SCALES`` with the smallest error.
    Passes are added while the error decreases, at most ``_PASSES``.
    """
    candidates, model = shadow.candidates, shadow.model
    visits = log_visits(candidates, model)
    belief, found = None, list[EvidenceWeights]()
    for _ in range(_PASSES):
        table = features(recurrence(candidates, belief), visits)
        weights = _conditional_logit(candidates, table, shadow.truth)
        best = EvidenceWeights(weights, 0.0, math.inf)
        for scale in SCALES:
            likely = forward_backward(candidates, model, scale * (table @ weights))
            if (error := shadow.error(likely)) < best.error:
                best, belief = EvidenceWeights(weights, scale, error), likely
        if found and best.error >= found[-1].error:
            break
        found.append(best)
    return tuple(found)


def combined(
    candidates: Candidates,
    model: MobilityModel,
    passes: Sequence[EvidenceWeights],
    evidence: Floats | None = None,
) -> Floats:
    """Compute P(there | all claims) by moves and recurrence: (claims,).

    ``passes`` is the result of ``learn``. ``evidence`` (claims,) is other evidence,
    such as the log-likelihood of uploads; it is added in every pass.
    """
    visits, likely = log_visits(candidates, model), None
    for one in passes:
        counted = recurrence(candidates, likely)
        given = one.scale * features(counted, visits) @ one.weights
        if evidence is not None:
            given += evidence
        likely = forward_backward(candidates, model, given)
    if likely is None:
        return forward_backward(candidates, model, evidence)
    return likely


def features(found: Recurrence, visits: Floats) -> Floats:
    """Return the features of each claim for the evidence: (claims, 5).

    Frequency at the same hour, its log, frequency at any hour, its log, log pi(r|t);
    the last has a negative weight if pseudo places are drawn by visits.
    """
    hour, any_hour = found.same_hour.astype(float), found.any_hour.astype(float)
    logs = [np.log(_SELDOM + one) for one in (hour, any_hour)]
    # Regions without visits are -inf for epsilon 0; evidence must be finite.
    finite = np.maximum(visits, -50.0)
    return np.stack([hour, logs[0], any_hour, logs[1], finite], axis=1)


def _conditional_logit(candidates: Candidates, table: Floats, truth: Mask) -> Floats:
    """Fit the weights by maximum likelihood of the true claims in their rows."""
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
    """Calibration of the attack by claim sets; fitted by ``learn_sets``.

    Moves from slot to slot are treated as independent although they are not, so their
    product over a trace is overconfident. That does not change which trace is the most
    likely, but its weight relative to other evidence.
    """

    power: float = 1.0
    """Exponent of the probabilities; below 1 other evidence has more weight."""
    crowd: float = 0.0
    """Weight of minus the log number of people who claim a place, once per set."""


def by_sets(
    candidates: Candidates,
    model: MobilityModel,
    reliability: RepeatReliability,
    claimed: Counts,
    evidence: Floats | None = None,
) -> Floats:
    """Compute P(there | all claims), one true place per claim set: (claims,).

    Adds up to 1 over the claims of each person and window. ``evidence`` (claims,)
    is as for ``forward_backward``; it is summed over the windows of a set, so evidence
    that is equal in all of them must be divided by ``slots_of_set``.
    ``claimed`` (claims,) is the number of people who claim the place. A move of
    probability 0 counts as 1e-300, a gap is crossed by one move.
    """
    given = np.zeros(candidates.claims) if evidence is None else np.asarray(evidence)
    many = np.log(np.maximum(claimed, 1)) / slots_of_set(candidates)
    given = given / reliability.power - reliability.crowd * many
    made = posteriors(candidates, model, _number_sets(candidates)[0], given)
    if reliability.power == 1:
        return made
    made = np.maximum(made, _LEAST) ** reliability.power
    return np.asarray(made / candidates.per_claim(candidates.row_sum(made)))


def slots_of_set(candidates: Candidates) -> NDArray[np.int64]:
    """Count the windows in which the person makes the same claims: (claims,).

    Evidence that is equal in all windows of a set, such as exact counts of the same
    people, must be divided by it.
    """
    of_row, times = _number_sets(candidates)
    return np.repeat(times[of_row], np.diff(candidates.start))


def _number_sets(candidates: Candidates) -> tuple[Counts, Counts]:
    """Number the distinct claim sets of all people in order of first appearance.

    Returns the set of each row, (rows,), any number for rows without claims, and the
    number of windows with each set, (sets,).
    """
    size = np.diff(candidates.start)
    table = np.full((len(size), 1 + size.max(initial=0)), -1, np.int64)
    table[:, 0] = np.arange(len(size)) // candidates.windows
    place = np.arange(candidates.claims) - np.repeat(candidates.start[:-1], size)
    table[candidates.row, 1 + place] = candidates.region
    # Empty windows get a number after those of all sets.
    table[size == 0, 0] = candidates.people
    _, first, found, times = np.unique(
        table, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(np.where(size[first] > 0, first, len(size)))
    rank = np.argsort(order)
    return rank[found.ravel()], times[order]


def learn_sets(shadow: ShadowCity, rng: np.random.Generator) -> RepeatReliability:
    """Fit the calibration of the attack by claim sets in a shadow city.

    Selects the weight in ``CROWD`` with the smallest error, then the exponent in
    ``POWERS`` with the smallest error when every window has additional weak evidence,
    drawn from ``rng``.
    """
    candidates, claimed = shadow.candidates, shadow.claimed

    def error(reliability: RepeatReliability, evidence: Floats | None = None) -> float:
        args = reliability, claimed, evidence
        return shadow.error(by_sets(candidates, shadow.model, *args))

    plain = min((RepeatReliability(crowd=crowd) for crowd in CROWD), key=error)
    noise = rng.standard_normal(candidates.claims)
    hint = _HINT * (shadow.truth - 0.5) + math.sqrt(_HINT) * noise
    tried = (RepeatReliability(power, plain.crowd) for power in POWERS)
    return min(tried, key=lambda reliability: error(reliability, hint))
