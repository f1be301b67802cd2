"""The paper's perturbation mechanism: what a person uploads for each place.

A person claims the places of the true trace and of the pseudo traces alike. For
a true place the upload is the person's clipped row, for a pseudo place a zero
row; noise N(0, sigma_l^2) covers both, so neither a norm nor a zero tells them
apart. How often noise of one person may be averaged away is what the receipt
counts.
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
    """The places for which a cohort uploads, true and pseudo in one list.

    The order of the list reaches the server: it must not tell true from pseudo,
    so sort by place or shuffle.
    """

    people: NDArray[np.int64]
    """(people,) number of each person in the whole city, not in the cohort."""
    row: NDArray[np.int64]
    """(uploads,) position of the uploader in ``people``."""
    place: NDArray[np.int64]
    """(uploads,) number of the (region, window)."""
    true: Mask
    """(uploads,) whether the person was really there."""

    def __post_init__(self) -> None:
        same_length(row=self.row, place=self.place, true=self.true)
        for name in ("people", "row", "place"):
            # A copy of our own: stored arrays are read-only maps, which torch warns of.
            object.__setattr__(self, name, np.array(getattr(self, name), np.int64))
        object.__setattr__(self, "true", np.array(self.true, np.bool_))
        if self.row.size and not 0 <= self.row.min() <= self.row.max() < len(
            self.people
        ):
            raise DataError(f"row must lie between 0 and {len(self.people) - 1}")
        if len(np.unique(self.people)) != len(self.people):
            raise DataError("people must not repeat")

    def noise_rows(self) -> NoiseRows:
        """Whose noise each upload carries; a place claimed twice is refused."""
        return NoiseRows(self.people[self.row], self.place)


def perturb(
    rows: Tensor, claims: Claims, mechanism: GaussianMechanism, key: NoiseKey
) -> Tensor:
    """One noised upload for each claim, (uploads, width); algorithm 2, upload.

    Every claim has noise of its own, fixed by seed, person, place, round and
    channel: the same bits however people are split into cohorts.
    """
    if len(rows) != len(claims.people):
        raise DataError(f"{len(rows)} rows must be {len(claims.people)}, one a person")
    places, paid = np.bincount(claims.row[claims.true], minlength=1), key.terms.releases
    if (most := int(places.max())) > paid.person:
        raise DataError(
            f"person {claims.people[places.argmax()]} has {most} true places, but the "
            f"receipt counts {paid.person} releases a person"
        )
    rows = rows.detach()
    if mechanism.clips_rows:
        rows = clip_rows(rows, mechanism.clip)
    sent = rows[torch.from_numpy(claims.row)]
    sent[torch.from_numpy(~claims.true)] = 0
    if mechanism.one_value:
        zero = torch.zeros_like(sent[:, :1])
        sent += add_keyed(zero, mechanism.sigma, claims.noise_rows(), key)
    else:
        sent = add_keyed(sent, mechanism.sigma, claims.noise_rows(), key)
    return sent
