"""Region states: what the region model hands to the person model (paper: E_m).

With cross-fitting for tested people: a person's own positive test is one of the
cases of the regions it visited, so states made from all cases carry its label
back to it. The states of its fold are made without the fold's cases.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.epidemic.cases import (
    CaseSettings,
    cases_without_folds,
    reported_cases,
)
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.flows import Flows, count_flows
from epifalcon.mobility.traces import Traces
from epifalcon.models.forecast import ForecastReport, judge
from epifalcon.models.macro import Dcrnn
from epifalcon.models.region_gru import GruRegionModel
from epifalcon.models.region_training import FitRecord
from epifalcon.models.regional import (
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


@dataclass(frozen=True, eq=False)
class CrossFit:
    """States from all cases, and for each fold those from the other folds' cases."""

    whole: RegionFit
    """For people who were not tested: they are no part of the reported cases."""
    folds: tuple[RegionStates, ...]
    """``folds[k]`` is for the tested people of fold k."""


@dataclass(frozen=True, eq=False)
class FoldHistories:
    """What all tested people tell, and what those outside each fold tell."""

    whole: RegionHistory
    others: tuple[RegionHistory, ...]
    """``others[k]`` holds nothing of the tests of fold k."""

    @classmethod
    def of(
        cls,
        known: Known,
        traces: Traces,
        fold: NDArray[np.int64],
        settings: CaseSettings,
    ) -> "FoldHistories":
        """From test results alone; ``fold`` (people,) is -1 for untested people."""
        cases = reported_cases(known, traces, settings)
        whole = RegionHistory(
            count_flows(traces), cases.by_region_and_day, cases.source, cases.measure
        )
        others = cases_without_folds(known, traces, fold, settings)
        return cls(
            whole, tuple(whole.with_cases(each.by_region_and_day) for each in others)
        )


def fit_states(
    model: RegionModel,
    history: RegionHistory,
    generator: torch.Generator,
    progress: Progress = silent,
) -> RegionFit:
    """Fit ``model`` to the history and hand out its states there.

    The history is all the model sees. For people whose own tests are among its
    cases use ``states_by_fold``; with everybody's cases there is one set of
    states for all, made here.
    """
    record = model.fit(history, generator, progress)
    return RegionFit(RegionStates.of(model, history), judge(model, history), record)


def states_by_fold(
    model: RegionModel,
    history: RegionHistory,
    others: Sequence[RegionHistory],
    generator: torch.Generator,
    *,
    train_per_fold: bool = False,
    progress: Progress = silent,
) -> CrossFit:
    """States for each fold in which its own people's cases do not appear.

    ``others[k]`` is the history as the people outside fold k tell it. By default
    the model is trained once, on all cases, and run on each of the others: a
    person's case then reaches its own states only as one of all those that
    shaped the shared parameters. ``train_per_fold`` trains anew for each fold,
    at that many times the cost, and leaves no way at all; but then each fold's
    states are in a language of their own.
    """
    if history.source == "all":
        raise SettingsError(
            "source='all' holds the answers whatever fold is left out: use fit_states"
        )
    folds = []
    # The same beginning for all, so that their languages do not differ more
    # than their cases make them.
    start = generator.get_state()
    if train_per_fold:
        for other in others:
            model.fit(other, generator, progress)
            folds.append(RegionStates.of(model, other))
            generator.set_state(start)
    whole = fit_states(model, history, generator, progress)
    if not train_per_fold:
        folds = [RegionStates.of(model, other) for other in others]
    return CrossFit(whole, tuple(folds))


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
