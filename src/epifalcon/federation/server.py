"""Computations of the server on messages (algorithm 1), as stateless functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.federation.messages import (
    EndOfRound,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
    require_finite,
)
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.models.person_model import Moments, adam_step
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.gaussian import NormalSource, normals
from epifalcon.types import Floats, Mask


class PlaceTable:
    """Counts and sums at places over all sites; each site gets those at its keys."""

    counts: dict[str, Floats]
    """Number of people at each key of a site, at least 1: a noisy count may be less,
    but the site that claims the key has somebody there."""
    shared: dict[str, Mask]
    """Whether another site claims the key too."""
    keys: dict[str, EdgeKeys]
    """The keys at which each site may upload."""

    def __init__(
        self, presence: Mapping[str, PresenceUpload], sends_rows: bool
    ) -> None:
        self.sends_rows = sends_rows
        listed = [one.keys for one in presence.values()]
        self._known, claims = np.unique(np.concatenate(listed), return_counts=True)
        total = np.zeros(len(self._known))
        for one in presence.values():
            total[self._places(one.keys)] += one.counts
        self.counts, self.shared, self.keys = {}, {}, {}
        for site, one in presence.items():
            place = self._places(one.keys)
            self.counts[site] = np.maximum(total[place], 1.0)
            self.shared[site] = claims[place] > 1
            self.keys[site] = one.keys if sends_rows else one.keys[self.shared[site]]
        self._own = {site: self._places(keys) for site, keys in self.keys.items()}

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Add up all uploads; return the sums at the keys of each site."""
        first = next(iter(uploads.values())).rows
        sums = first.new_zeros(len(self._known), first.shape[1])
        for site, upload in uploads.items():
            own = upload.person is None
            place = self._own[site] if own else self._places(upload.keys)
            sums.index_add_(0, torch.from_numpy(place), upload.rows)
        return {site: sums[torch.from_numpy(self._own[site])] for site in uploads}

    def _places(self, keys: EdgeKeys) -> NDArray[np.int64]:
        return np.searchsorted(self._known, keys)


@dataclass(frozen=True, eq=False)
class Model:
    """The shared parameters and Adam's moments of them."""

    parameters: dict[str, Tensor]
    moments: dict[str, Moments]

    @classmethod
    def of(cls, parameters: dict[str, Tensor]) -> "Model":
        """Return the model before the first step."""
        moments = {name: Moments.of(value) for name, value in parameters.items()}
        return cls(parameters, moments)


def step(
    model: Model, uploads: Sequence[GradientUpload], settings: FalconSettings
) -> tuple[Model, EndOfRound]:
    """Take a step of Adam on the mean gradient (algorithm 1, line 12)."""
    number = uploads[0].round
    weights = [one.people if one.weight is None else one.weight for one in uploads]
    total = float(sum(weights))
    scale = 1 / total if total else 0.0
    gradients = {}
    for name in model.parameters:
        listed = [one.gradients[name] for one in uploads]
        gradients[name] = scale * torch.stack(listed).sum(dim=0)
        require_finite(f"the gradient of {name}", gradients[name], number)
    parameters, moments = adam_step(
        model.parameters, gradients, model.moments, number + 1, settings
    )
    return Model(parameters, moments), EndOfRound(number, scale)


def noised(model: Model, sigma: float, source: NormalSource) -> Model:
    """Add N(0, sigma^2) to every weight, as the authors' program does after a step."""
    parameters = {
        name: value + sigma * normals(value.shape, source, value.dtype)
        for name, value in model.parameters.items()
    }
    return Model(parameters, model.moments)
