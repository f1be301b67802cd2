"""People's gradients of the head, along the direction that they share.

The head's gradient is (p - y) times [h || 1] with h of one sign (relu), for both
logits alike up to the sign, and 0 for untested people: along the mean of [h || 1] a
person's sum over rounds is - for a positive and + for a negative.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from epifalcon.errors import DataError
from epifalcon.federation.notes import Notes
from epifalcon.types import Floats

_LEAST_NOISE = 1e-3
_TRACY_WIDOM = 2.02
"""What its law of order 1 exceeds in one of a hundred cases."""
_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class HeadGradients:
    """What they tell of each person, in units of their noise."""

    along: Floats
    """(people,) below 0 for a positive."""
    stands_out: bool
    """Whether people have more in common than noise alone would give them (the
    largest singular value, Johnstone 2001, at 1 %)."""
    most: float
    """The largest signal that the clip allows."""
    usual: float
    """What to expect of a tested person where nothing stands out: half of that in
    the rounds that ask it, and no more than the noise, which would stand out."""


def read(notes: Notes) -> HeadGradients:
    """Sums along the direction of ``[h || 1]``, by data or by public knowledge.

    Where people's sums have something in common beyond noise, the direction is
    their first singular vector. Where they have not, it is the one to be expected
    from the parameters: unit j of the last layer reads a row of about normal
    coordinates, so that it opens by E relu(N(b_j, |W_j|^2 s^2)); s^2 is what
    uploads of norm 1 and their noise leave in what a person receives.
    """
    if "head.weight" not in notes.gradients:
        raise DataError("the notes hold no gradients")
    weight, bias = notes.gradients["head.weight"], notes.gradients["head.bias"]
    sums = np.concatenate([weight[:, 1] - weight[:, 0], bias[:, 1:] - bias[:, :1]], 1)
    rounds, sigma = max(notes.rounds, 1), noise(notes)
    sums = sums / (sigma * np.sqrt(2 * rounds))
    _, sizes, directions = np.linalg.svd(sums, full_matrices=False)
    direction = directions[0] * (1.0 if directions[0].sum() >= 0 else -1.0)
    stands_out = bool(sizes[0] ** 2 > _noise_edge(sums.shape))
    if not stands_out and notes.parameters and "cell.weight" not in notes.parameters:
        direction = expected_direction(notes)
    most = float(largest(notes) * np.sqrt(rounds) / sigma)
    usual = min(_SHARE * (notes.terms.mask_share or 1.0) * most, 1.0)
    return HeadGradients(sums @ direction, stands_out, most, usual)


def expected_direction(notes: Notes) -> Floats:
    """The mean of ``[h || 1]`` by the newest parameters, as a unit vector."""
    parameters = notes.parameters
    last = sum(name.startswith("layer") for name in parameters) // 2 - 1
    weight = parameters[f"layer{last}.weight"][:, : notes.terms.width].astype(float)
    bias = parameters[f"layer{last}.bias"].astype(float)
    spread = np.linalg.norm(weight, axis=1) * _received_spread(notes)
    spread = np.maximum(spread, 1e-12)
    away = bias / spread
    opened = bias * stats.norm.cdf(away) + spread * stats.norm.pdf(away)
    made = np.append(opened, 1.0)
    return np.asarray(made / np.linalg.norm(made))


def noise(notes: Notes) -> float:
    """Sigma, or what an attacker assumes where there is none, to have odds at all."""
    clip = 1.0 if notes.terms.gradient_clip is None else notes.terms.gradient_clip
    return max(notes.terms.gradient_sigma, _LEAST_NOISE * clip)


def largest(notes: Notes) -> float:
    """The largest norm of a gradient: by the clip, or as seen."""
    if notes.terms.gradient_clip is not None:
        return notes.terms.gradient_clip
    return float(np.sqrt(notes.gradient_energy.max(initial=0.0)))


def _received_spread(notes: Notes) -> float:
    """Standard deviation of a coordinate of what people read from their edges."""
    terms = notes.terms
    if terms.upload_clip is None:
        return float(1 / np.sqrt(terms.width))
    gain = max(1.0, 1 / terms.upload_clip)
    signal = (gain * terms.upload_clip) ** 2 / terms.width
    told = ~np.isnan(notes.counts)
    if not told.any():
        return float(np.sqrt(signal))
    # The noise of all who claim a place, over how many are taken to be there.
    there = np.maximum(notes.counts[told], 1.0)
    each = float(np.mean(notes.claimed[told] / there**2))
    return float(
        np.sqrt(signal + (gain * terms.upload_sigma) ** 2 * each / terms.windows)
    )


def _noise_edge(shape: tuple[int, ...]) -> float:
    """What the largest squared singular value of unit noise exceeds at 1 %."""
    many, wide = np.sqrt(max(shape[0] - 1, 1)), np.sqrt(shape[1])
    spread = (many + wide) * (1 / many + 1 / wide) ** (1 / 3)
    return float((many + wide) ** 2 + _TRACY_WIDOM * spread)
