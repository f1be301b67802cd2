"""Region states: what the region model hands to the person model (paper: E_m).

With cross-fitting for tested people: a person's own positive test is one of the
cases of the regions it visited, so states made from all cases carry its label
back to it. The states of its fold are made without the fold's cases.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError
from epifalcon.mobility.flows import Flows
from epifalcon.models.dcrnn import Dcrnn
from epifalcon.models.forecast import ForecastReport, judge
from epifalcon.models.region_gru import GruRegionModel
from epifalcon.models.region_model import (
    FitRecord,
    NetworkRegionModel,
    RegionHistory,
    RegionModel,
    require_source,
)
from epifalcon.models.settings import RegionSettings
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, fingerprint

_KIND = "region-states"


def region_model(settings: RegionSettings) -> NetworkRegionModel | GruRegionModel:
    """Return the region model of ``settings.network.kind``, not fitted yet."""
    if settings.network.kind == "gru":
        return GruRegionModel(settings)
    return dcrnn_model(settings)


def dcrnn_model(settings: RegionSettings) -> NetworkRegionModel:
    """The paper's region model, not fitted yet."""

    def build(channels: int, generator: torch.Generator) -> Dcrnn:
        return Dcrnn(channels, settings.network, generator)

    size = as_plain(settings.network)
    named = {"name": size.pop("kind"), **size}
    return NetworkRegionModel(build, settings.training, named)


@dataclass(frozen=True, eq=False)
class RegionStates:
    """One row for each region and day, and what it was made from."""

    hidden: NDArray[np.float32]
    """(regions, days, width), read-only. A day's row holds nothing of later days."""
    source: str
    """"reported" or "all": which cases the model saw."""
    flows_sha256: str
    cases_sha256: str
    settings_sha256: str

    def __post_init__(self) -> None:
        require_source(self.source)
        if self.hidden.ndim != 3 or self.hidden.dtype != np.float32:
            raise DataError(
                f"states are {self.hidden.dtype} of {self.hidden.ndim} axes, "
                "expected float32 of (regions, days, width)"
            )
        if not np.isfinite(self.hidden).all():
            raise DataError("states hold numbers that are not finite")
        self.hidden.setflags(write=False)

    @classmethod
    def of(cls, model: RegionModel, history: RegionHistory) -> "RegionStates":
        """The states of a fitted model on a history."""
        return cls(
            model.states(history),
            history.source,
            flows_sha256(history.flows),
            sha256(history.cases),
            fingerprint(model.described),
        )

    @property
    def width(self) -> int:
        """How many numbers a region has on a day."""
        return int(self.hidden.shape[2])

    def require_city(self, flows: Flows) -> None:
        """Raise ``DataError`` unless the states were made on exactly these flows."""
        if self.flows_sha256 != flows_sha256(flows):
            regions, days = self.hidden.shape[:2]
            raise DataError(
                f"region states of {regions} regions and {days} days belong to "
                f"another city or other days than these flows of {flows.regions} "
                f"regions and {flows.days} days: fit the region model again"
            )

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        meta = {
            "source": self.source,
            "flows_sha256": self.flows_sha256,
            "cases_sha256": self.cases_sha256,
            "settings_sha256": self.settings_sha256,
        }
        store.write(folder, _KIND, {"hidden": self.hidden}, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path, flows: Flows) -> "RegionStates":
        """Read what ``save`` wrote; states of other flows are a ``DataError``."""
        stored = store.read(folder, _KIND)
        try:
            states = cls(
                stored.arrays["hidden"],
                stored.meta["source"],
                stored.meta["flows_sha256"],
                stored.meta["cases_sha256"],
                stored.meta["settings_sha256"],
            )
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None
        states.require_city(flows)
        return states


@dataclass(frozen=True, eq=False)
class RegionFit:
    """A fitted region model's states, its forecasts judged, and how training went."""

    states: RegionStates
    forecast: ForecastReport
    record: FitRecord


def fit_states(
    model: RegionModel,
    history: RegionHistory,
    generator: torch.Generator,
    progress: Progress = silent,
) -> RegionFit:
    """Fit ``model`` to the history and hand out its states there.

    The history is all the model sees. For people whose own tests are among its
    cases run the fitted model on a history without them: their cases then reach
    their states only as some of all those that shaped the shared parameters.
    """
    record = model.fit(history, generator, progress)
    return RegionFit(RegionStates.of(model, history), judge(model, history), record)


def flows_sha256(flows: Flows) -> str:
    """The fingerprint of a city's flows: moves, stays and visitors of every day."""
    between = flows.between
    parts = (between.indptr, between.indices, between.data, flows.stays, flows.visitors)
    return sha256(*parts)


def sha256(*arrays: NDArray[Any]) -> str:
    """The fingerprint of some arrays of numbers: shapes and values."""
    digest = hashlib.sha256()
    for array in arrays:
        # One type for all: ids may be stored in 32 or 64 bits.
        kind = "<i8" if np.issubdtype(array.dtype, np.integer) else "<f8"
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return digest.hexdigest()
