"""All that crosses the wire between cohorts and server, as frozen records.

A cohort is one person or many. No record holds a trace, a label or an embedding
as it lies at home; what the keys of an upload tell is in the ledger.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.types import Floats


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Server to all: the parameters of the round (algorithm 1, line 2)."""

    round: int
    parameters: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class PresenceUpload:
    """Cohort to server, once: how many of its people claim each key truly.

    True counts, or sums of ones and zeros with noise on each, as the plan says.
    """

    keys: EdgeKeys
    counts: Floats

    def __post_init__(self) -> None:
        _require_keys(self.keys, distinct=True)
        same_length(keys=self.keys, counts=self.counts)


@dataclass(frozen=True, eq=False)
class LocationUpload:
    """Cohort to server: rows at (region, window) keys, true and pseudo alike.

    Without ``person``: the cohort's sum for each of its keys. With it: a row
    for each upload, in the order of the keys, and who sent it.
    """

    round: int
    channel: str
    keys: EdgeKeys
    """(uploads,) ascending: their order tells nothing but themselves."""
    rows: Tensor
    """(uploads, width)"""
    person: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _require_keys(self.keys, distinct=self.person is None)
        if self.rows.ndim != 2 or len(self.rows) != len(self.keys):
            raise DataError(
                f"{self.channel}: rows of shape {tuple(self.rows.shape)} for "
                f"{len(self.keys)} keys"
            )
        if not all_finite(self.rows):
            raise DataError(
                f"{self.channel} in round {self.round}: an upload holds NaN or "
                "infinity; nothing was added up. Is learning_rate too large?"
            )


@dataclass(frozen=True, eq=False)
class EdgeReply:
    """Server to cohort: sums and counts at the keys for which it uploaded."""

    round: int
    channel: str
    keys: EdgeKeys
    sums: Tensor
    """(keys, width) summed over all cohorts."""
    counts: Floats
    """(keys,) how many are taken to be there: 1 or more."""


@dataclass(frozen=True, eq=False)
class GradientUpload:
    """Cohort to server: its people's gradients, added up by parameter name."""

    round: int
    gradients: dict[str, Tensor]
    people: int
    weight: float | None
    """Sum of the weights in the loss; None where that must stay at home."""


@dataclass(frozen=True)
class Closing:
    """Server to all: what the sums of the round were multiplied with."""

    round: int
    scale: float


Message = (
    Broadcast | PresenceUpload | LocationUpload | EdgeReply | GradientUpload | Closing
)


def all_finite(rows: Tensor) -> bool:
    """Whether every number is one.

    NaN and infinity stay in every sum they enter, so a finite sum settles it, thirty
    times as fast as to look at each number; a sum may overflow, and then each is
    looked at.
    """
    return math.isfinite(float(rows.sum())) or bool(torch.isfinite(rows).all())


def _require_keys(keys: EdgeKeys, distinct: bool) -> None:
    if keys.ndim != 1 or keys.dtype != np.int64:
        raise DataError(f"keys are {keys.dtype} of {keys.ndim} axes, expected int64")
    step = np.diff(keys)
    if (step < distinct).any():
        raise DataError("keys must be ascending, none twice for a sum")
