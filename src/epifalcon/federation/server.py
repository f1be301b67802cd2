"""What the server computes: sums at edges, counts, and the step of the parameters.

Pure functions over messages; nothing here knows a person (algorithm 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation.messages import (
    Closing,
    EdgeReply,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.models.micro import Moments, adam_step
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.gaussian import NormalSource, normals
from epifalcon.types import Floats

Places = NDArray[np.int64]
_REMEMBERED = 128


@dataclass(frozen=True, eq=False)
class EdgeCounts:
    """How many people are taken to be at each key ever claimed."""

    keys: EdgeKeys
    counts: Floats
    """(keys,) 1 or more: noise may say less, but whoever asks was there."""
    _found: dict[int, tuple[EdgeKeys, Places]] = field(default_factory=dict, init=False)

    def at(self, keys: EdgeKeys) -> Floats:
        """The counts at ``keys``; a key that nobody announced is refused."""
        return self.counts[self.places(keys)]

    def places(self, keys: EdgeKeys) -> Places:
        """Where ``keys`` stand among all; remembered for the arrays asked for last."""
        if id(keys) not in self._found:
            if len(self._found) >= _REMEMBERED:
                del self._found[next(iter(self._found))]
            self._found[id(keys)] = keys, _places(keys, self.keys)
        return self._found[id(keys)][1]


@dataclass(frozen=True, eq=False)
class Model:
    """The shared parameters and Adam's moments of them."""

    parameters: dict[str, Tensor]
    moments: dict[str, Moments]

    @classmethod
    def of(cls, parameters: dict[str, Tensor]) -> "Model":
        """Before the first step."""
        moments = {name: Moments.of(value) for name, value in parameters.items()}
        return cls(parameters, moments)


def count_people(uploads: Sequence[PresenceUpload]) -> EdgeCounts:
    """Add the cohorts' counts up by key."""
    keys = np.unique(np.concatenate([upload.keys for upload in uploads]))
    total = np.zeros(len(keys))
    for upload in uploads:
        total[np.searchsorted(keys, upload.keys)] += upload.counts
    return EdgeCounts(keys, at_least_one(total))


def at_least_one(counts: Floats) -> Floats:
    """Counts as divisors."""
    return np.maximum(counts, 1.0)


def add_up(uploads: Sequence[LocationUpload], known: EdgeCounts) -> Tensor:
    """Sums over all cohorts at every known key, (keys, width)."""
    first = uploads[0]
    sums = first.rows.new_zeros(len(known.keys), first.rows.shape[1])
    for upload in uploads:
        if (upload.round, upload.channel) != (first.round, first.channel):
            raise DataError(
                f"an upload for {upload.channel} of round {upload.round} among those "
                f"for {first.channel} of round {first.round}"
            )
        place = known.places(upload.keys)
        sums.index_add_(0, torch.from_numpy(place), upload.rows)
    return sums


def answer(upload: LocationUpload, sums: Tensor, known: EdgeCounts) -> EdgeReply:
    """What the cohort gets back: the keys for which it uploaded, true or not."""
    keys = upload.keys if upload.person is None else np.unique(upload.keys)
    place = known.places(keys)
    return EdgeReply(
        upload.round,
        upload.channel,
        keys,
        sums[torch.from_numpy(place)],
        known.counts[place],
    )


def step(
    model: Model, uploads: Sequence[GradientUpload], settings: FalconSettings
) -> tuple[Model, Closing]:
    """Adam on the mean gradient (algorithm 1, line 12).

    The mean is over everybody who uploaded, or, where the cohorts tell the
    weight of their people in the loss, over that.
    """
    number = uploads[0].round
    weights = [upload.weight for upload in uploads]
    total = float(sum(upload.people for upload in uploads))
    told = [weight for weight in weights if weight is not None]
    if len(told) == len(weights):
        total = sum(told)
    scale = 1 / total if total else 0.0
    parameters, moments = {}, {}
    for name, value in model.parameters.items():
        gradient = uploads[0].gradients[name].clone()
        for upload in uploads[1:]:
            gradient += upload.gradients[name]
        gradient *= scale
        if not bool(torch.isfinite(gradient).all()):
            raise DataError(
                f"the gradient of {name} in round {number} holds NaN or infinity; "
                "the parameters stay as they were. Is learning_rate too large?"
            )
        parameters[name], moments[name] = adam_step(
            value, gradient, model.moments[name], number + 1, settings
        )
    return Model(parameters, moments), Closing(number, scale)


def noised(model: Model, sigma: float, source: NormalSource) -> Model:
    """Add N(0, sigma^2) to every weight, as the authors' program does after a step."""
    parameters = {
        name: value + sigma * normals(value.shape, source, value.dtype)
        for name, value in model.parameters.items()
    }
    return Model(parameters, model.moments)


def _places(keys: EdgeKeys, known: EdgeKeys) -> Places:
    place = np.searchsorted(known, keys)
    missing = place == len(known)
    missing[~missing] = known[place[~missing]] != keys[~missing]
    if missing.any():
        raise DataError(f"key {keys[missing][0]} was never announced")
    return place
