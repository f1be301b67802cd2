"""Server side of a round: stateless computations on messages (algorithm 1)."""

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
    """Counts and sums at places over all sites, returned to each site for its keys."""

    counts: dict[str, Floats]
    """Number of people of all sites at each key of a site, by site name. At least 1,
    because noised counts may be smaller."""
    shared: dict[str, Mask]
    """True for keys that another site claims too, by site name."""
    keys: dict[str, EdgeKeys]
    """Keys at which a site may upload, by site name."""

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
        """Sum all uploads; return the sums at the keys of each site."""
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
    """Shared model parameters and their Adam moments."""

    parameters: dict[str, Tensor]
    moments: dict[str, Moments]

    @classmethod
    def of(cls, parameters: dict[str, Tensor]) -> "Model":
        """Create the model with zero moments."""
        moments = {name: Moments.of(value) for name, value in parameters.items()}
        return cls(parameters, moments)


def step(
    model: Model, uploads: Sequence[GradientUpload], settings: FalconSettings
) -> tuple[Model, EndOfRound]:
    """Take one step of Adam on the mean gradient (algorithm 1, line 12)."""
    number = uploads[0].round
    weights = [one.people if one.weight is None else one.weight for one in uploads]
    total = float(sum(weights))
    scale = 1 / total if total else 0.0
    gradients = {}
    for name in model.parameters:
        listed = [one.gradients[name] for one in uploads]
        gradients[name] = scale * torch.stack(listed).sum(dim=0)
        require_finite(f"the gradient of {name}", gradients[name], number)
    before, turn = model.parameters, number + 1
    stepped = adam_step(before, gradients, model.moments, turn, settings)
    return Model(*stepped), EndOfRound(number, scale)


def noised(model: Model, sigma: float, source: NormalSource) -> Model:
    """Add N(0, sigma^2) noise to every weight, as in the authors' program."""
    parameters = {
        name: value + sigma * normals(value.shape, source, value.dtype)
        for name, value in model.parameters.items()
    }
    return Model(parameters, model.moments)
