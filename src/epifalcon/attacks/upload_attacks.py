"""Which claimed place is true? Attacks on the uploads that a server has seen.

The paper's inference attack via gradient (Melis et al. 2019, as adapted in its
"Evaluation of Privacy and Utility": a true upload is longer) uses one round and a
threshold. Here it names the longest upload of each window, which no threshold beats,
and stronger attacks follow: all rounds, the row that comes back at every true place,
and the counts, which paper mode publishes as they are.

Every attack is a function of ``UploadStatistics``, that is of what the server saw, and
gives each claim a score, (claims,): the log-likelihood ratio of a true place against a
pseudo one, or for a single round just a number that is higher for true ones. ``claims``
turns scores into guesses and compares them with the truth.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from epifalcon.attacks.claims import Candidates
from epifalcon.attacks.upload_recorder import UploadStatistics
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats

_LEAST_NOISE = 1e-3
_LEAST_CHANCE = 1e-6


def claims_of(notes: UploadStatistics, clock: Clock) -> Candidates:
    """Return the claims of the notes, in the same order."""
    return Candidates.of_claims(
        notes.person,
        notes.key,
        len(notes.people),
        notes.terms.regions,
        clock,
        notes.terms.window_slots,
    )


def norm(notes: UploadStatistics) -> Floats:
    """Score by the 2-norm of the upload in the first round, the paper's attack."""
    return np.asarray(notes.norm, float)


def energy(notes: UploadStatistics) -> Floats:
    """Score by squared norms summed over all rounds and channels.

    As a log-likelihood ratio for rows of Gaussian coordinates whose mean squared
    norm is the clip's: linear in the energy.
    """
    terms = notes.terms
    noise, spread = terms.assumed_sigma**2, terms.assumed_clip**2 / terms.width
    factor = spread / (2 * noise * (noise + spread))
    base = notes.rounds * terms.width / 2 * np.log1p(spread / noise)
    return np.asarray(factor * notes.energy.sum(axis=0) - base * len(terms.channels))


def consistency(notes: UploadStatistics) -> Floats:
    """Score by all rounds and the row that returns at every true place (EM)."""
    return np.array(notes.evidence)


def counts(notes: UploadStatistics) -> Floats:
    """Score by counts of people at places; rows are not used.

    Where devices noise their own presence, the server that sees each of them has a
    1 or 0 with noise for every claim, and totals add nothing: the score is the exact
    log ratio. Otherwise it has totals, and the score is the log-odds of n true among
    m claims.
    """
    terms = notes.terms
    if not np.isnan(notes.presence).any():
        noise = max(terms.presence_sigma, _LEAST_NOISE) ** 2
        return np.asarray((notes.presence - 0.5) / noise)
    if np.isnan(notes.counts).any():
        raise DataError("the notes hold no counts of people at places")
    share = 1 / (1 + terms.copies)
    claims = np.maximum(notes.claimed, 1).astype(float)
    # Where totals carry noise, n is first drawn towards what is to be expected.
    spread, noise = share * (1 - share), terms.presence_sigma**2
    sure = spread / (spread + noise) if spread + noise > 0 else 1.0
    there = claims * share + sure * (notes.counts - claims * share)
    return np.asarray(logit(np.clip(there / claims, _LEAST_CHANCE, 1 - _LEAST_CHANCE)))


def combined(notes: UploadStatistics) -> Floats:
    """Add consistency and counts: all evidence of uploads."""
    return consistency(notes) + counts(notes)


def by_sets(notes: UploadStatistics, slots: NDArray[np.int64]) -> Floats:
    """Combine for an attack that adds evidence up over the slots of a claim set.

    ``slots`` (claims,), in how many slots the set is claimed. Noise is drawn for every
    slot by itself, so what uploads reveal adds up; exact totals are of much the same
    people from slot to slot and enter as their mean.
    """
    if np.isnan(notes.presence).any():
        return consistency(notes) + counts(notes) / slots
    return combined(notes)


ATTACKS: dict[str, Callable[[UploadStatistics], Floats]] = {
    "norm": norm,
    "energy": energy,
    "consistency": consistency,
    "counts": counts,
    "uploads and counts": combined,
}
"""Every attack by its name, the paper's first."""
