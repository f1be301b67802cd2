"""The paper's perturbation mechanism: noised uploads for true and pseudo places.

A person claims the places of the true trace and of the pseudo traces. For a true
place the upload is the person's clipped row, for a pseudo place a zero row; noise
N(0, sigma_l^2) is added to both, so that they cannot be distinguished by norm. The
receipt counts the uploads of one person, whose noise could be averaged.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.privacy.clipping import clip_rows
from epifalcon.privacy.gaussian import GaussianMechanism, NoiseKey, NoiseRows, add_keyed
from epifalcon.types import Mask


@dataclass(frozen=True, eq=False)
class Claims:
    """The true and pseudo places for which a cohort uploads, in one list.

    The server sees the order of the list, which must not reveal which places are
    true: sort by place or shuffle.
    """

    people: NDArray[np.int64]
    """City-wide id of each person of the cohort, (people,)."""
    row: NDArray[np.int64]
    """Position of the uploader in ``people``, (uploads,)."""
    place: NDArray[np.int64]
    """Index of the (region, window), (uploads,)."""
    true: Mask
    """Mask of the true places, (uploads,)."""

    def __post_init__(self) -> None:
        same_length(row=self.row, place=self.place, true=self.true)
        for name in ("people", "row", "place"):
            # A copy, because torch warns about read-only memory maps.
            object.__setattr__(self, name, np.array(getattr(self, name), np.int64))
        object.__setattr__(self, "true", np.array(self.true, np.bool_))
        count = len(self.people)
        if ((self.row < 0) | (self.row >= count)).any():
            raise DataError(f"row must lie between 0 and {count - 1}")
        if len(np.unique(self.people)) != count:
            raise DataError("people must not repeat")

    def noise_rows(self) -> NoiseRows:
        """Return the noise keys of all uploads; raise if a place is claimed twice."""
        return NoiseRows(self.people[self.row], self.place)


def perturb(
    rows: Tensor, claims: Claims, mechanism: GaussianMechanism, key: NoiseKey
) -> Tensor:
    """Return one noised upload per claim, (uploads, width); algorithm 2, upload.

    The noise of a claim is determined by seed, person, place, round and channel, so
    it does not depend on how people are split into cohorts.
    """
    if len(rows) != len(claims.people):
        raise DataError(
            f"{len(rows)} rows must be {len(claims.people)}, one per person"
        )
    places, paid = np.bincount(claims.row[claims.true], minlength=1), key.terms.releases
    if (most := int(places.max())) > paid.person:
        raise DataError(
            f"person {claims.people[places.argmax()]} has {most} true places, but the "
            f"receipt counts {paid.person} releases per person"
        )
    rows = rows.detach()
    if mechanism.clips_rows:
        rows = clip_rows(rows, mechanism.clip)
    sent = rows[torch.from_numpy(claims.row)]
    sent[torch.from_numpy(~claims.true)] = 0
    sigma, noise = mechanism.sigma, claims.noise_rows()
    if mechanism.one_value:
        return sent + add_keyed(torch.zeros_like(sent[:, :1]), sigma, noise, key)
    return add_keyed(sent, sigma, noise, key)
