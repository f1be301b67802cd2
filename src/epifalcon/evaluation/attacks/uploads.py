"""Which claimed place is true? Attacks on the uploads that a server has seen.

The paper's inference attack via gradient (Melis et al. 2019, as adapted in its
"Evaluation of Privacy and Utility": a true upload is longer) looks at one round
and sets a threshold. Here it names the longest upload of each window, which no
threshold beats, and stronger attacks follow: all rounds, the row that comes back
at every true place, and the counts, which paper mode tells as they are.

Every attack is a function of ``Notes``, that is of what the server saw, and gives
each claim a score, (claims,): the log-likelihood ratio of a true place against a
pseudo one, or for a single round just a number that is higher for true ones.
``claims`` turns scores into guesses and compares them with the truth.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.evaluation.attacks.claims import Candidates
from epifalcon.evaluation.attacks.upload_notes import Notes
from epifalcon.mobility.clock import Clock
from epifalcon.types import Floats

_LEAST_NOISE = 1e-3
_LEAST_CHANCE = 1e-6


def claims_of(notes: Notes, clock: Clock) -> Candidates:
    """The claims of the notes, in the same order, for guessing and for judging."""
    return Candidates.of_claims(
        notes.person,
        notes.key,
        len(notes.people),
        notes.terms.regions,
        clock,
        notes.terms.window_slots,
    )


def norm(notes: Notes, round_number: int = 0, channel: int = 0) -> Floats:
    """Score by the 2-norm of the upload in one round, the paper's attack."""
    kept = min(notes.norms.shape[1], notes.rounds)
    if not 0 <= round_number < kept:
        raise DataError(
            f"norms of the first {kept} rounds are kept, not {round_number}"
        )
    return np.asarray(notes.norms[channel, round_number], float)


def energy(notes: Notes) -> Floats:
    """Score by squared norms summed over all rounds and channels.

    As a log-likelihood ratio for rows of Gaussian coordinates whose mean squared
    norm is the clip's: linear in the energy.
    """
    terms = notes.terms
    clip = 1.0 if terms.upload_clip is None else terms.upload_clip
    noise = max(terms.upload_sigma, _LEAST_NOISE * clip) ** 2
    spread = clip**2 / terms.width
    factor = spread / (2 * noise * (noise + spread))
    base = notes.rounds * terms.width / 2 * np.log1p(spread / noise)
    return np.asarray(factor * notes.energy.sum(axis=0) - base * len(terms.channels))


def correlation(notes: Notes) -> Floats:
    """Score by energy and flat correlation, without a model of the row.

    Both are brought to unit variance of a pseudo claim within each person and
    channel, as the bulk of the claims shows it, and added up.
    """
    score = np.zeros(len(notes.key))
    bounds = np.searchsorted(notes.person, np.arange(len(notes.people) + 1))
    for first, last in pairwise(bounds.tolist()):
        for told in (notes.energy, notes.correlation):
            for values in told[:, first:last]:
                score[first:last] += _scaled(values)
    return score


def consistency(notes: Notes) -> Floats:
    """Score by all rounds and the row that returns at every true place (EM).

    The evidence that the server gathered round by round; see
    ``Notes.evidence``. Its score can be handed on as a log-likelihood.
    """
    return np.array(notes.evidence)


def counts(notes: Notes) -> Floats:
    """Score by counts of people at places; rows are not used.

    Where devices noise their own presence, the server that sees each of them has a
    1 or 0 with noise for every claim, and totals tell it nothing more: the score is
    the exact log ratio. Otherwise it has totals, and the score is the log-odds of
    n true among m claims.
    """
    if not np.isnan(notes.presence).any():
        return presence(notes)
    if np.isnan(notes.counts).any():
        raise DataError("the notes hold no counts of people at places")
    terms = notes.terms
    share = 1 / (1 + terms.copies)
    claims = np.maximum(notes.claimed, 1).astype(float)
    # Where totals carry noise, n is first drawn towards what is to be expected.
    spread, noise = share * (1 - share), terms.presence_sigma**2
    sure = spread / (spread + noise) if spread + noise > 0 else 1.0
    there = claims * share + sure * (notes.counts - claims * share)
    chance = np.clip(there / claims, _LEAST_CHANCE, 1 - _LEAST_CHANCE)
    return np.asarray(np.log(chance) - np.log1p(-chance))


def presence(notes: Notes) -> Floats:
    """Compute the log ratio of 1 against 0 in a device's own presence values."""
    noise = max(notes.terms.presence_sigma, _LEAST_NOISE) ** 2
    return np.asarray((notes.presence - 0.5) / noise)


def combined(notes: Notes) -> Floats:
    """Add consistency and counts: all evidence of uploads."""
    return consistency(notes) + counts(notes)


def by_sets(notes: Notes, slots: NDArray[np.int64]) -> Floats:
    """Combine for an attack that adds evidence up over the slots of a claim set.

    ``slots`` (claims,), in how many slots the set is claimed. Noise is drawn anew
    for every slot, so what uploads tell adds up; exact totals are of much the same
    people from slot to slot and enter as their mean.
    """
    if np.isnan(notes.presence).any():
        return consistency(notes) + counts(notes) / slots
    return combined(notes)


ATTACKS: dict[str, Callable[[Notes], Floats]] = {
    "norm": norm,
    "energy": energy,
    "correlation": correlation,
    "consistency": consistency,
    "counts": counts,
    "uploads and counts": combined,
}
"""Every attack by its name, the paper's first."""


def _scaled(values: Floats) -> Floats:
    """Centre at the median and divide by the spread of the lower half."""
    middle = np.median(values)
    spread = middle - np.quantile(values, 0.159)
    return np.asarray((values - middle) / (spread if spread > 0 else 1.0))
