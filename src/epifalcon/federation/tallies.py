"""What must be known of all people before the rounds, added up over sites.

A site counts; the server adds up and never sees a person. These sums leave without
noise: the ledger lists each of them as a release without protection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.epidemic.cases import COUNTS, CaseSettings, CaseTally, tally_cases
from epifalcon.errors import DataError
from epifalcon.federation.preparing import Division, Household
from epifalcon.federation.settings import PredictionSettings
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import Flows, count_flows
from epifalcon.mobility.markov import MobilityTally, tally_mobility
from epifalcon.models.region_gru import GruRegionModel
from epifalcon.models.region_model import NetworkRegionModel, RegionHistory
from epifalcon.models.states import fit_states, region_model
from epifalcon.models.threads import threads
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import Floats

_KINDS = (torch.int64, torch.float64)
_CSR = ("data", "indices", "indptr")
_PLACES = ("/indices", "/indptr")
"""Parts of a sparse table that are no counts."""


@dataclass(frozen=True, eq=False)
class SiteTally:
    """What one site, or all together, counted; None for what is not needed."""

    flows: Flows | None = None
    cases: tuple[CaseTally, ...] = ()
    """Of all tested people, then of those outside each fold."""
    mobility: MobilityTally | None = None
    reported: CaseTally | None = None
    """Counts of cases, for pseudo traces that follow them."""

    def __add__(self, other: "SiteTally") -> "SiteTally":
        if len(self.cases) != len(other.cases):
            raise DataError("sites counted cases for different numbers of folds")
        cases = zip(self.cases, other.cases, strict=True)
        return SiteTally(
            _sum(self.flows, other.flows),
            tuple(one + another for one, another in cases),
            _sum(self.mobility, other.mobility),
            _sum(self.reported, other.reported),
        )


def count(
    home: Household,
    division: Division,
    settings: PredictionSettings,
    progress: Progress = silent,
) -> SiteTally:
    """What the site adds; only what the settings need is counted."""
    flows, cases, mobility, reported = None, [], None, None
    training, traces = division.training, home.traces
    if settings.uses_region_model:
        flows = count_flows(traces, progress)
        wanted = settings.region.cases
        cases = [tally_cases(training, traces, wanted)]
        for number in range(settings.region.folds):
            others = (division.fold >= 0) & (division.fold != number)
            cases.append(tally_cases(training.of_people(others), traces, wanted))
    if settings.uses_pseudo_traces:
        mobility = tally_mobility(traces, division.mobility_group, progress)
    if settings.pseudo_follows_cases:
        reported = tally_cases(training, traces, COUNTS)
    return SiteTally(flows, tuple(cases), mobility, reported)


def total(tallies: Sequence[SiteTally]) -> SiteTally:
    """Of all sites, in their order."""
    return reduce(add, tallies)


@dataclass(frozen=True, eq=False)
class RegionFit:
    """Region states, how the forecasts were evaluated, and the fitted model."""

    states: NDArray[np.float32]
    """(1 + folds, regions, days, width): from all cases, then without each fold's."""
    forecast: dict[str, Any]
    model: NetworkRegionModel | GruRegionModel


def fit_region_states(
    tally: SiteTally,
    clock: Clock,
    settings: PredictionSettings,
    seed: int,
    progress: Progress = silent,
    all_cases: Floats | None = None,
) -> RegionFit:
    """Fit the region model to flows and cases.

    ``all_cases`` (regions, days) replaces the reported cases by those of everybody;
    there are no folds then.
    """
    if tally.flows is None:
        raise DataError("a region model needs flows and cases")
    model = region_model(settings.region)
    seed_of_model = Streams(seed).seed_for("region model")
    generator = torch.Generator().manual_seed(seed_of_model)
    if all_cases is not None:
        measure = settings.region.cases.measure
        whole, others = RegionHistory(tally.flows, all_cases, "all", measure), []
    else:
        whole, *others = histories(tally, clock, settings.region.cases)
    # With one thread torch rounds sums alike on any machine and over any sites.
    with threads(1):
        fitted = fit_states(model, whole, generator, progress)
        states = [fitted.states.hidden, *(model.states(other) for other in others)]
    return RegionFit(np.stack(states), dict(fitted.forecast.as_plain()), model)


def histories(
    tally: SiteTally, clock: Clock, settings: CaseSettings
) -> list[RegionHistory]:
    """Return the history of all tested people, then that without each fold."""
    if tally.flows is None or not tally.cases:
        raise DataError("a region model needs flows and cases")
    tested = tally.cases[0].tested
    made = []
    for number, one in enumerate(tally.cases):
        everybody = tested if number else None
        cases = one.told(clock.slots_per_day, settings, everybody)
        made.append(
            RegionHistory(
                tally.flows, cases.by_region_and_day, cases.source, cases.measure
            )
        )
    return made


def pack(tally: SiteTally) -> dict[str, Tensor]:
    """As tensors by name."""
    arrays: dict[str, NDArray[Any]] = {}
    if tally.flows is not None:
        arrays |= _pack_table("flows/between", tally.flows.between)
        arrays["flows/stays"] = tally.flows.stays
        arrays["flows/visitors"] = tally.flows.visitors
    for number, one in enumerate(tally.cases):
        arrays |= _pack_cases(f"cases/{number}", one)
    if tally.reported is not None:
        arrays |= _pack_cases("reported", tally.reported)
    if (mobility := tally.mobility) is not None:
        arrays |= _pack_table("mobility/joint", mobility.joint)
        arrays["mobility/visits"] = mobility.visits
        arrays["mobility/observed"] = mobility.observed
        arrays["mobility/people"] = np.array([mobility.people])
    return {name: _tensor(one) for name, one in arrays.items()}


def unpack(
    tensors: dict[str, Tensor], regions: int, clock: Clock, folds: int
) -> SiteTally:
    """What ``pack`` packed, every type, shape and sign checked."""
    if odd := [n for n, one in tensors.items() if one.dtype not in _KINDS]:
        raise DataError(f"{odd[0]} is of {tensors[odd[0]].dtype}")
    arrays = {name: one.numpy() for name, one in tensors.items()}
    days, per_day = clock.days, clock.slots_per_day
    flows = mobility = reported = None
    cases: list[CaseTally] = []
    table = (regions, days)
    try:
        if "flows/stays" in arrays:
            shape = (days * regions, regions)
            between = _unpack_table("flows/between", arrays, shape)
            stays = _counted(arrays["flows/stays"], (days, regions))
            visitors = _counted(arrays["flows/visitors"], (days, regions))
            flows = Flows(between, stays, visitors)
            cases = [_cases(f"cases/{k}", arrays, table) for k in range(1 + folds)]
        if "reported/cases" in arrays:
            reported = _cases("reported", arrays, table)
        if "mobility/visits" in arrays:
            mobility = _mobility(arrays, regions, per_day)
    except (KeyError, ValueError, IndexError) as error:
        raise DataError(f"a tally is not whole: {error}") from None
    return SiteTally(flows, tuple(cases), mobility, reported)


def require_public(tally: SiteTally, settings: PredictionSettings) -> None:
    """Refuse a tally with more or less than what all sites are told."""
    for name, needed in (
        ("mobility", settings.uses_pseudo_traces),
        ("reported", settings.pseudo_follows_cases),
    ):
        if (getattr(tally, name) is not None) != needed:
            raise DataError(f"a tally {'lacks' if needed else 'has'} {name}")


def require_counted(
    tally: SiteTally, settings: PredictionSettings, people: int, clock: Clock
) -> None:
    """Refuse what ``people`` cannot have counted, and another than is needed."""
    require_public(tally, settings)
    if (tally.flows is not None) != settings.uses_region_model:
        raise DataError("a tally has flows where none are needed, or lacks them")
    most = people * clock.slots
    for name, one in pack(tally).items():
        if one.numel() and not name.endswith(_PLACES) and float(one.max()) > most:
            raise DataError(f"{name} counts more than {people:,} people can have done")


def _mobility(
    arrays: dict[str, NDArray[Any]], regions: int, per_day: int
) -> MobilityTally:
    joint = _unpack_table("mobility/joint", arrays, (per_day * regions, regions))
    return MobilityTally(
        joint,
        _counted(arrays["mobility/visits"], (per_day, regions)),
        _counted(arrays["mobility/observed"], (per_day, 1)),
        int(_counted(arrays["mobility/people"], (1,))[0]),
    )


def _pack_cases(name: str, tally: CaseTally) -> dict[str, NDArray[Any]]:
    return {
        f"{name}/cases": tally.cases,
        f"{name}/visits": tally.visits,
        f"{name}/numbers": np.array([tally.unplaced, tally.tested]),
    }


def _cases(
    name: str, arrays: dict[str, NDArray[Any]], shape: tuple[int, int]
) -> CaseTally:
    cases, visits = (
        _counted(arrays[f"{name}/{part}"], shape) for part in ("cases", "visits")
    )
    unplaced, tested = _counted(arrays[f"{name}/numbers"], (2,)).tolist()
    return CaseTally(cases, visits, int(unplaced), int(tested))


def _counted(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape != shape:
        raise DataError(f"a tally has the shape {array.shape}, expected {shape}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise DataError("a tally holds a number below 0, or none at all")
    return array


def _pack_table(name: str, matrix: sp.csr_array) -> dict[str, NDArray[Any]]:
    return {f"{name}/{part}": getattr(matrix, part) for part in _CSR}


def _unpack_table(
    name: str, arrays: dict[str, NDArray[Any]], shape: tuple[int, int]
) -> sp.csr_array:
    """Rebuild a CSR table; raises ``DataError`` where it is not sound."""
    try:
        matrix = sp.csr_array(tuple(arrays[f"{name}/{part}"] for part in _CSR), shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise DataError(f"the table {name!r} is not sound: {error}") from None
    _counted(matrix.data, matrix.data.shape)
    return matrix


def _sum(one: Any, other: Any) -> Any:  # noqa: ANN401
    if one is None or other is None:
        if one is not other:
            raise DataError("sites counted different things")
        return None
    return one + other


def _tensor(array: NDArray[Any]) -> Tensor:
    wide = np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64
    return torch.from_numpy(np.array(array, wide))
