"""Attacks on recorded uploads that guess which claimed places are true.

The paper's inference attack via gradient (Melis et al. 2019, as adapted in its
"Evaluation of Privacy and Utility": a true upload is longer) uses one round and a
threshold. Here it guesses the longest upload of each window, which is at least as good
as any threshold. Stronger attacks use all rounds, the row repeated at every true place,
and the counts, which paper mode publishes without noise.

Every attack is a function of ``UploadStatistics``, that is of what the server received,
and returns a score per claim, (claims,): the log-likelihood ratio of a true place
against a pseudo one, or for a single round a number that is higher for true ones.
``claims`` turns scores into guesses and evaluates them.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import logit

from epifalcon.attacks.claims import Candidates
from epifalcon.attacks.upload_recorder import UploadStatistics
from epifalcon.mobility.clock import Clock
from epifalcon.types import Counts, Floats

_LEAST_NOISE = 1e-3
_LEAST_CHANCE = 1e-6


def claims_of(statistics: UploadStatistics, clock: Clock) -> Candidates:
    """Return the claims in ``statistics``, in the same order."""
    person, key, people = statistics.person, statistics.key, len(statistics.people)
    regions, slots = statistics.terms.regions, statistics.terms.window_slots
    return Candidates.of_claims(person, key, people, regions, clock, slots)


def energy(statistics: UploadStatistics) -> Floats:
    """Score by squared norms summed over all rounds and channels.

    This is the log-likelihood ratio for rows of Gaussian coordinates whose mean squared
    norm is the squared clip.
    """
    terms = statistics.terms
    noise, spread = terms.assumed_sigma**2, terms.assumed_clip**2 / terms.width
    factor = spread / (2 * noise * (noise + spread))
    base = statistics.rounds * terms.width / 2 * np.log1p(spread / noise)
    total = statistics.energy.sum(axis=0)
    return np.asarray(factor * total - base * len(terms.channels))


def counts(statistics: UploadStatistics) -> Floats:
    """Score by counts of people at places; rows are not used.

    If devices send their own noised presence, the server has a noised 1 or 0 for every
    claim, and the score is the exact log-likelihood ratio. Otherwise it has totals,
    and the score is the log-odds of n true among m claims.
    """
    terms = statistics.terms
    if not np.isnan(statistics.presence).any():
        noise = max(terms.presence_sigma, _LEAST_NOISE) ** 2
        return np.asarray((statistics.presence - 0.5) / noise)
    share = 1 / (1 + terms.copies)
    claims = np.maximum(statistics.claimed, 1).astype(float)
    # Noised totals are first shrunk towards their expectation.
    spread, noise = share * (1 - share), terms.presence_sigma**2
    sure = spread / (spread + noise) if spread + noise > 0 else 1.0
    there = claims * share + sure * (statistics.counts - claims * share)
    return np.asarray(logit(np.clip(there / claims, _LEAST_CHANCE, 1 - _LEAST_CHANCE)))


def combined(statistics: UploadStatistics, slots: Counts | None = None) -> Floats:
    """Score by consistency plus counts: all evidence of uploads.

    For an attack that sums evidence over the slots of a claim set, ``slots`` (claims,)
    is the number of slots in which the set is claimed. Noise is independent between
    slots, so evidence of uploads adds up; exact totals are those of nearly the same
    people in all slots and enter as their mean.
    """
    score = counts(statistics)
    if slots is not None and np.isnan(statistics.presence).any():
        score = score / slots
    return statistics.evidence + score


ATTACKS: dict[str, Callable[[UploadStatistics], Floats]] = {
    "norm": lambda statistics: statistics.norm.astype(float),
    "energy": energy,
    "consistency": lambda statistics: statistics.evidence,
    "counts": counts,
    "uploads and counts": combined,
}
"""Attacks by name.

``norm``, the attack of the paper, is the 2-norm of the upload in the first round;
``consistency`` the similarity to the row sent at all true places, over all rounds (EM).
"""
