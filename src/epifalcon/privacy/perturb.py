"""The paper's perturbation mechanism: what a person uploads for each place.

A person claims the places of the true trace and of the pseudo traces alike. For
a true place the upload is the person's clipped row, for a pseudo place a zero
row; noise N(0, sigma_l^2) covers both, so neither a norm nor a zero tells them
apart. How often noise of one person may be averaged away is what the receipt
counts.

Where the server must count who is present, a presence column goes through the
same clip and noise: 1 at true places, 0 at pseudo places, in the mean.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import non_negative, positive, same_length
from epifalcon.errors import DataError
from epifalcon.privacy.accounting import DELTA, NoiseRule, NoiseWish
from epifalcon.privacy.clipping import clip_rows
from epifalcon.privacy.events import GaussianRelease, Relation, Releases, Terms, Unit
from epifalcon.privacy.gaussian import (
    NoiseKey,
    NoiseRows,
    Released,
    add_keyed,
    aggregate_noise,
)
from epifalcon.types import Mask


@dataclass(frozen=True, kw_only=True)
class PerturbSettings:
    """Clip and noise of the uploads (C_l and sigma_l in the paper).

    ``rule`` says where sigma comes from: ``given`` (``upload_sigma``), ``paper``
    (its formula at epsilon and delta) or ``exact`` (the least that keeps epsilon
    and delta for one ``unit`` over the whole run). The paper's own values are
    ``rule="paper"``, epsilon 1, delta 0.001.
    """

    upload_clip: float = 0.1
    rule: NoiseRule = "exact"
    upload_sigma: float | None = None
    epsilon: float = 8.0
    delta: float = DELTA
    unit: Unit = "person"
    presence: bool = True

    def __post_init__(self) -> None:
        positive(upload_clip=self.upload_clip)
        self._wish()

    def mechanism(
        self, releases: Releases, exchanges: int, relation: Relation = "zero-out"
    ) -> "UploadMechanism":
        """The mechanism for a run of ``exchanges`` uploads (rounds x layers).

        ``releases`` says how many uploads of one exchange belong to one visit,
        day and person; the noise is found once and stays for the run.
        """
        weight = self.upload_clip if self.presence else 0.0
        bare = UploadMechanism(self.upload_clip, 0.0, weight)
        reach = bare.receipt(
            Terms(channel="upload", releases=releases, relation=relation)
        ).sensitivity
        sigma = self._wish().sigma_of(reach, releases, exchanges)
        return UploadMechanism(self.upload_clip, sigma, weight)

    def _wish(self) -> NoiseWish:
        return NoiseWish(
            rule=self.rule,
            sigma=self.upload_sigma,
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
        )


@dataclass(frozen=True)
class UploadMechanism:
    """Numbers that settle how a row becomes an upload.

    ``presence_weight`` is the height of the presence column before noise; 0
    leaves the column out. At a height of 1 beside rows of norm 0.1 the column
    alone would cost ten times the rows, so it is sent at the rows' height and
    scaled up by the receiver.
    """

    clip: float
    sigma: float
    presence_weight: float = 0.0

    def __post_init__(self) -> None:
        positive(clip=self.clip)
        non_negative(sigma=self.sigma, presence_weight=self.presence_weight)

    @property
    def norm(self) -> float:
        """The largest L2 norm of an upload before noise, presence included."""
        return math.hypot(self.clip, self.presence_weight)

    def receipt(self, terms: Terms) -> GaussianRelease:
        """What one exchange under these numbers costs."""
        return GaussianRelease(terms=terms, clip=self.norm, sigma=self.sigma)


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

    def refuse_more_than(self, releases: Releases) -> None:
        """Raise ``DataError`` where a person has more true places than are paid for."""
        places = np.bincount(self.row[self.true], minlength=1)
        if (most := int(places.max())) > releases.person:
            raise DataError(
                f"person {self.people[places.argmax()]} has {most} true places, "
                f"but the receipt counts {releases.person} releases a person"
            )

    def noise_rows(self) -> NoiseRows:
        """Whose noise each upload carries; a place claimed twice is refused."""
        return NoiseRows(self.people[self.row], self.place)


def upload_rows(rows: Tensor, mechanism: UploadMechanism) -> Tensor:
    """What each person sends for a true place, before noise.

    (people, width) to (people, width), or width + 1 with a presence column.
    """
    clipped = clip_rows(rows.detach(), mechanism.clip)
    if not mechanism.presence_weight:
        return clipped
    present = clipped.new_full((len(clipped), 1), mechanism.presence_weight)
    return torch.cat([clipped, present], dim=1)


def perturb(
    rows: Tensor, claims: Claims, mechanism: UploadMechanism, key: NoiseKey
) -> Released:
    """One noised upload for each claim, (uploads, width [+ 1]); algorithm 2, upload.

    Every claim has noise of its own, fixed by seed, person, place, round and
    channel: the same bits however people are split into cohorts. The last
    column, if asked for, is 1 + noise at true and 0 + noise at pseudo places.
    """
    if len(rows) != len(claims.people):
        raise DataError(f"{len(rows)} rows must be {len(claims.people)}, one a person")
    claims.refuse_more_than(key.terms.releases)
    sent = upload_rows(rows, mechanism)[torch.from_numpy(claims.row)]
    sent[torch.from_numpy(~claims.true)] = 0
    noised = add_keyed(sent, mechanism.sigma, claims.noise_rows(), key)
    return Released(read_presence(noised, mechanism), mechanism.receipt(key.terms))


def noise_of_sums(
    uploads: Tensor, width: int, mechanism: UploadMechanism, generator: torch.Generator
) -> Tensor:
    """The noise in each place's sum of uploads, (places, width [+ 1]), in one draw.

    ``uploads``, (places,), counts who claims the place, pseudo claims too. In
    distribution this is the sum of ``perturb``'s noise over each place.
    """
    columns = width + (mechanism.presence_weight > 0)
    return aggregate_noise(uploads, columns, mechanism.sigma, generator)


def read_presence(uploads: Tensor, mechanism: UploadMechanism) -> Tensor:
    """Uploads or their sums with the presence column as a count of people."""
    if not mechanism.presence_weight:
        return uploads
    read = uploads.clone()
    read[:, -1] /= mechanism.presence_weight
    return read
