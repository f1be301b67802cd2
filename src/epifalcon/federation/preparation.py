"""Training data of a site: validation split, tallies, region states, pseudo traces.

Validation people, folds and the group of the mobility model depend only on the seed and
the person's index, not on how people are split into sites; in-process training uses one
site with everybody. Totals over all people are sums of the sites' tallies. They are
sent without noise, and the ledger lists each as an unprotected release.

A person's own test never enters the features used for its training: tests of validation
people are not used, and a tested person's region states exclude the cases of its fold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from epifalcon import store
from epifalcon.checks import present, shaped
from epifalcon.epidemic.cases import COUNTS, CaseSettings, CaseTally, tally_cases
from epifalcon.epidemic.test_results import TestResults, exclude_people
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.client import Cohort
from epifalcon.federation.messages import Record
from epifalcon.federation.privacy_plan import PrivacyPlan
from epifalcon.federation.settings import PredictionSettings
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import Flows, count_flows
from epifalcon.mobility.mobility_model import (
    MobilityModel,
    MobilityTally,
    tally_mobility,
)
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.forecast import forecast_errors
from epifalcon.models.person_model import state_of_people
from epifalcon.models.region_model import (
    DcrnnRegionModel,
    GruRegionModel,
    RegionHistory,
)
from epifalcon.models.tensor_files import threads
from epifalcon.privacy.events import ONE_VECTOR, Terms, UnprotectedRelease
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, keyed_normals
from epifalcon.privacy.pseudo_generators import generate
from epifalcon.privacy.pseudo_traces import PseudoTraces
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import Additive, Floats, Mask, PersonIds

_LEAST_SPREAD = 1e-6
_CSR = ("data", "indices", "indptr")
_SPARSE = ("between", "joint")
"""Tally fields that are sparse matrices."""
_PUBLIC = ("mobility", "reported")
FEATURES = "features"
"""Folder name and record kind of stored region states."""


def hypergraph(traces: Traces, settings: PredictionSettings) -> Incidence:
    """Build the hypergraph of ``traces`` with the model's window length."""
    return Incidence.of(traces, window_slots=settings.model.window_slots)


def require_places(traces: Traces) -> None:
    """Raise unless a person's trace depends on that person alone.

    Noise covers one person's trace. One contact can move a whole group of people to
    another region, which changes the sums by all of them.
    """
    if traces.regions.kind == "group":
        raise SettingsError(
            "regions are groups of people in contact, and one person's contacts change "
            "the traces of others, which no epsilon covers: privacy modes need visits "
            "to places; choose mode off"
        )


@dataclass(frozen=True, eq=False)
class SiteData:
    """Traces and tests of the people of one site."""

    traces: Traces
    known: TestResults
    first: int = 0
    """Index of the site's first person in the city; the others are consecutive."""

    def __post_init__(self) -> None:
        tested, people = self.known.people, self.traces.people
        if tested != people:
            raise DataError(f"tests of {tested:,} people, but traces of {people:,}")

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of traces and tests by name, for digests."""
        known = self.known
        optional: dict[str, NDArray[Any]]
        optional = {"reason": known.reason, "onset": known.onset}
        given = {name: one for name, one in optional.items() if (one >= 0).any()}
        return given | {
            "by_slot": self.traces.by_slot,
            "person": known.person,
            "positive": known.positive,
            "slot": known.slot,
            "sensitivity": np.concatenate([each.sensitivity for each in known.kinds]),
            "days": np.array([len(each.sensitivity) for each in known.kinds]),
            "specificity": np.array([each.specificity for each in known.kinds]),
            "kind": np.asarray(known.kind),
        }

    @property
    def people(self) -> NDArray[np.int64]:
        """Index of each person in the whole city, (people,)."""
        return self.first + np.arange(self.traces.people, dtype=np.int64)


def split_sites(traces: Traces, known: TestResults, sites: int) -> list[SiteData]:
    """Split people into ``sites`` consecutive groups of nearly equal size."""
    if not 1 <= sites <= traces.people:
        most = f"{traces.people:,} (people)"
        raise SettingsError(f"sites={sites} must be from 1 to {most}")
    sites_data = []
    for people in np.array_split(np.arange(traces.people), sites):
        first, end = int(people[0]), int(people[-1]) + 1
        tests = known.of_range(first, end)
        by_slot = np.ascontiguousarray(traces.by_slot[:, first:end])
        some = Traces(by_slot, traces.clock, traces.regions)
        sites_data.append(SiteData(some, tests, first))
    return sites_data


@dataclass(frozen=True, eq=False)
class ValidationSplit:
    """Validation people, folds of other tested people, group of the mobility model."""

    held_back: PersonIds
    """Indices of the validation people within the site, ascending."""
    training: TestResults
    """Tests of all people except the validation people."""
    fold: NDArray[np.int64]
    """Fold of each tested person in ``training``, -1 for all others, (people,)."""
    mobility_group: NDArray[np.int64] | None = None
    """Indices of the people used to fit the mobility model; None for all."""


@dataclass(frozen=True, eq=False)
class Selection:
    """People of a site whose results select the best round."""

    people: PersonIds = field(default_factory=lambda: np.zeros(0, np.int32))
    """Indices within the site, (people,)."""
    infected: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))


def validation_split(
    data: SiteData, settings: PredictionSettings, seed: int
) -> ValidationSplit:
    """Draw validation people, folds and the group of the mobility model.

    Each draw depends only on seed and person, not on the split into sites. Nobody is
    held back if test people select the round.
    """
    share = settings.stopping.validation_share
    if settings.stopping.selected_on == "test":
        share = 0.0
    everybody = data.people
    drawn = drawn_for(everybody, "validation people", seed)
    people = np.flatnonzero(data.known.tested & (drawn < share)).astype(np.int32)
    training = exclude_people(data.known, people)
    drawn = drawn_for(everybody, "region folds", seed)
    fold = (drawn * settings.region.folds).astype(np.int64)
    fold[~training.tested] = -1
    group = mobility_group(everybody, settings.pseudo.people_share, seed)
    return ValidationSplit(people, training, fold, group)


def mobility_group(
    people: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.int64] | None:
    """Return the indices of a random share of the people; None for all."""
    if share == 1:
        return None
    return np.flatnonzero(drawn_for(people, "mobility model", seed) < share)


def drawn_for(people: NDArray[np.int64], purpose: str, seed: int) -> Floats:
    """Draw a uniform number per person, (people,), keyed by seed and purpose."""
    key = NoiseKey(seed, Terms(channel=purpose, releases=ONE_VECTOR))
    normal = keyed_normals(key, NoiseRows.of_people(people), 1)[:, 0]
    drawn: Floats = np.clip(ndtr(np.asarray(normal, np.float64)), 0.0, 1 - 2**-53)
    return drawn


class StateMoments(Record, Additive):
    """Site to server: sums of its people's region states and of their squares."""

    people: int
    total: Floats
    """Sum of the states, (width,)."""
    squared: Floats
    """Sum of the squared states, (width,)."""

    @classmethod
    def of(cls, state: NDArray[np.float32]) -> "StateMoments":
        """Compute the sums of ``state``, (people, width), in double precision."""
        wide = state.astype(np.float64)
        return cls(len(state), wide.sum(axis=0), (wide**2).sum(axis=0))


@dataclass(frozen=True, eq=False)
class StateScaling:
    """Standardisation of people's region states.

    Raw states differ little between people, so training hardly uses them. After
    scaling, all columns have equal variance, and the root mean square norm of a state
    is 1, the largest norm of a received clipped row.
    """

    centre: NDArray[np.float32]
    """Mean of each column, (width,)."""
    factor: NDArray[np.float32]
    """Factor of each column, (width,); 0 for a constant column."""

    @classmethod
    def of(cls, moments: StateMoments, settings: PredictionSettings) -> "StateScaling":
        """Compute the scaling from ``moments``; identity without ``scale_states``."""
        if not settings.region.scale_states:
            width = len(moments.total)
            return cls(np.zeros(width, np.float32), np.ones(width, np.float32))
        count = max(moments.people, 1)
        centre = moments.total / count
        spread = np.sqrt(np.maximum(moments.squared / count - centre**2, 0))
        varies = spread > _LEAST_SPREAD
        length = np.where(varies, spread, 1.0) * np.sqrt(max(varies.sum(), 1))
        factor = np.where(varies, 1 / length, 0.0)
        return cls(centre.astype(np.float32), factor.astype(np.float32))

    def apply(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scaled states, (people, width)."""
        scaled: NDArray[np.float32] = (state - self.centre) * self.factor
        return scaled


@dataclass(frozen=True, eq=False)
class SharedStatistics:
    """Statistics over all people, sent to every site before the rounds."""

    mobility: MobilityModel | None = None
    cases: Floats | None = None
    """Reported cases, (regions, days), for pseudo traces that depend on them."""
    states: NDArray[np.float32] | None = None
    """Region states by excluded fold, none first, (1 + folds, regions, days, width)."""
    scaling: StateScaling | None = None

    @classmethod
    def of(cls, tally: "SiteTally", regions: Regions) -> "SharedStatistics":
        """Build mobility model and cases from the public sums over all sites."""
        mobility, reported = (tally.get(name) for name in _PUBLIC)
        return cls(
            None if mobility is None else mobility.model(regions),
            None if reported is None else reported.cases,
        )


def raw_state(
    data: SiteData,
    split: ValidationSplit,
    incidence: Incidence,
    states: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return each person's mean region state, own fold excluded, (people, width)."""

    def mean(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        found = state_of_people(torch.tensor(hidden), incidence, data.traces.clock)
        return np.asarray(found.numpy(), np.float32)

    state = mean(states[0])
    for number, hidden in enumerate(states[1:]):
        people = split.fold == number
        if people.any():
            state[people] = mean(hidden)[people]
    return state


def cohort_of(
    data: SiteData,
    split: ValidationSplit,
    settings: PredictionSettings,
    shared: SharedStatistics,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> Cohort:
    """Build the cohort of a site; ``rng`` draws the pseudo traces."""
    incidence = hypergraph(data.traces, settings)
    state = None
    if shared.states is not None and shared.scaling is not None:
        raw = raw_state(data, split, incidence, shared.states)
        state = torch.from_numpy(shared.scaling.apply(raw))
    pseudo: tuple[Incidence, ...] = ()
    if shared.mobility is not None:
        made = pseudo_traces(data.traces, settings, shared, rng, progress)
        pseudo = tuple(hypergraph(made.copy(k), settings) for k in range(made.copies))
    return Cohort(data.people, incidence, split.training.status, state, pseudo)


def pseudo_traces(
    traces: Traces,
    settings: PredictionSettings,
    shared: SharedStatistics,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Generate pseudo traces for ``traces`` from the shared mobility model."""
    mobility = present(shared.mobility, "pseudo traces need a mobility model")
    cases = shared.cases
    if cases is None:
        cases = np.zeros((len(traces.regions), traces.clock.days))
    return generate(traces, mobility, cases, settings.pseudo, rng, progress)


def unprotected_receipts(
    plan: PrivacyPlan, settings: PredictionSettings, validation: bool
) -> list[UnprotectedRelease]:
    """Return the receipts of all releases without noise before the rounds."""
    made: list[tuple[str, str]] = []
    if settings.uses_region_model:
        made.append(("region model", "cases by region and day, and flows"))
    if plan.copies:
        share = settings.pseudo.people_share
        who = "all" if share == 1 else f"a random {100 * share:g} % of the"
        made.append(("mobility model", f"visits and moves of {who} people, added up"))
    if settings.pseudo_follows_cases:
        made.append(("pseudo domains", "reported cases by region and day"))
    if validation and settings.privacy.reveals_validation:
        what = "scores and results of validation people, without names"
        made.append(("validation", what))
    return [unprotected_receipt(plan, channel, what) for channel, what in made]


def unprotected_receipt(
    plan: PrivacyPlan, channel: str, what: str
) -> UnprotectedRelease:
    """Return the receipt of one release without noise."""
    terms = Terms(channel=channel, releases=plan.releases, relation=plan.relation)
    return UnprotectedRelease(terms=terms, what=what)


class SiteTally(dict[str, Any]):
    """Counts over the people of one site, or their sums over all sites, by name.

    ``flows``, ``cases/0`` of all tested people, ``cases/1`` of those outside the first
    fold and so on, ``mobility``, and ``reported`` cases.
    """

    def __add__(self, other: "SiteTally") -> "SiteTally":
        return SiteTally({name: one + other[name] for name, one in self.items()})


def tally_names(settings: PredictionSettings) -> list[str]:
    """Return the names of all counts that the settings need."""
    if not settings.uses_region_model:
        return public_names(settings)
    folds = [f"cases/{number}" for number in range(1 + settings.region.folds)]
    return ["flows", *folds, *public_names(settings)]


def public_names(settings: PredictionSettings) -> list[str]:
    """Return the names of the counts sent to all sites, for pseudo traces."""
    needed = settings.uses_pseudo_traces, settings.pseudo_follows_cases
    return [name for name, one in zip(_PUBLIC, needed, strict=True) if one]


def count_tally(
    data: SiteData,
    split: ValidationSplit,
    settings: PredictionSettings,
    progress: Progress = silent,
    names: Iterable[str] | None = None,
) -> SiteTally:
    """Compute the tally of a site: all counts that are needed, or only ``names``."""
    training, traces, tally = split.training, data.traces, SiteTally()
    for name in tally_names(settings) if names is None else names:
        part: Any
        if name == "flows":
            part = count_flows(traces, progress)
        elif name == "mobility":
            part = tally_mobility(traces, split.mobility_group, progress)
        elif name == "reported":
            part = tally_cases(training, traces, COUNTS)
        else:
            some, number = training, int(name.removeprefix("cases/"))
            if number:
                others = (split.fold >= 0) & (split.fold != number - 1)
                some = training.of_people(others)
            part = tally_cases(some, traces, settings.region.cases)
        tally[name] = part
    return tally


@dataclass(frozen=True, eq=False)
class RegionFeatures:
    """Region states, their scaling, and the forecast accuracy of the region model."""

    states: NDArray[np.float32]
    """Region states by excluded fold, none first, (1 + folds, regions, days, width)."""
    forecast: dict[str, Any]
    model: DcrnnRegionModel | GruRegionModel | None = None
    """The fitted region model; not restored by ``load``."""
    scaling: StateScaling | None = None

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record to ``folder``, except the model."""
        scaling = {} if self.scaling is None else vars(self.scaling)
        arrays: dict[str, NDArray[Any]] = {"states": self.states, **scaling}
        meta = {"forecast": self.forecast}
        store.write(folder, FEATURES, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "RegionFeatures":
        """Read a record written by ``save``."""
        stored = store.read(folder, FEATURES)
        held = {name: np.array(one) for name, one in stored.arrays.items()}
        scaling = StateScaling(held["centre"], held["factor"])
        return cls(held["states"], stored.meta["forecast"], scaling=scaling)


def fit_region_states(
    tally: SiteTally,
    clock: Clock,
    settings: PredictionSettings,
    seed: int,
    progress: Progress = silent,
    all_cases: Floats | None = None,
) -> RegionFeatures:
    """Fit the region model to flows and reported cases, or ``all_cases`` if given."""
    is_gru = settings.region.network.kind == "gru"
    model = (GruRegionModel if is_gru else DcrnnRegionModel)(settings.region)
    seed_of_model = Streams(seed).seed_for("region model")
    generator = torch.Generator().manual_seed(seed_of_model)
    if all_cases is not None:
        measure = settings.region.cases.measure
        made = [RegionHistory(tally["flows"], all_cases, "all", measure)]
    else:
        made = histories(tally, clock, settings.region.cases)
    # With one thread torch rounds sums equally on any machine and for any sites.
    with threads(1):
        model.fit(made[0], generator, progress)
        states = np.stack([model.states(one) for one in made])
        forecast = asdict(forecast_errors(model, made[0]))
    return RegionFeatures(states, forecast, model)


def histories(
    tally: SiteTally, clock: Clock, settings: CaseSettings
) -> list[RegionHistory]:
    """Return the case history of all tested people, then those without each fold."""
    made, tested = [], None
    for name, one in tally.items():
        if not name.startswith("cases/"):
            continue
        cases = one.estimate(clock.slots_per_day, settings, tested)
        by_day, flows = cases.by_region_and_day, tally["flows"]
        made.append(RegionHistory(flows, by_day, cases.source, cases.measure))
        tested = one.tested if tested is None else tested
    return made


def pack_tally(tally: SiteTally) -> dict[str, Tensor]:
    """Encode a tally as tensors named ``part/field``."""
    arrays: dict[str, NDArray[Any]] = {}
    for part, record in tally.items():
        for one in fields(record):
            value, place = getattr(record, one.name), f"{part}/{one.name}"
            if isinstance(value, sp.csr_array):
                arrays |= {f"{place}/{piece}": getattr(value, piece) for piece in _CSR}
            else:
                arrays[place] = np.atleast_1d(value)
    return {name: _tensor(one) for name, one in arrays.items()}


def unpack_tally(
    tensors: dict[str, Tensor],
    names: Sequence[str],
    regions: int,
    clock: Clock,
    most: float = np.inf,
) -> SiteTally:
    """Decode a tally; raise ``DataError`` for an invalid name, type, shape or count.

    No count may exceed ``most``.
    """
    days, slots, one = clock.days, clock.slots_per_day, (1,)
    by_day, by_region, by_slot = (days, regions), (regions, days), (slots, regions)
    cases = {"cases": by_region, "visits": by_region, "unplaced": one, "tested": one}
    flows = {"between": (days * regions, regions), "stays": by_day, "visitors": by_day}
    moves = {"joint": (slots * regions, regions), "visits": by_slot}
    mobility = {**moves, "observed": (slots, 1), "people": one}
    kinds: dict[str, tuple[Any, Mapping[str, tuple[int, ...]]]] = {
        "flows": (Flows, flows),
        "mobility": (MobilityTally, mobility),
        "reported": (CaseTally, cases),
        "cases": (CaseTally, cases),
    }
    known = tuple(f"{name}/" for name in names)
    if odd := [name for name in tensors if not name.startswith(known)]:
        raise DataError(f"a tally has {odd[0]!r}, expected only {', '.join(names)}")
    tally = SiteTally()
    for name in names:
        kind, shapes = kinds[name.split("/")[0]]
        try:
            tally[name] = kind(**_read_part(name, shapes, tensors, most))
        except KeyError as error:
            raise DataError(f"a tally lacks {error}") from None
        except (ValueError, TypeError) as error:
            raise DataError(f"a tally is inconsistent: {error}") from None
    return tally


def _read_part(
    part: str,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: dict[str, Tensor],
    most: float,
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, shape in shapes.items():
        place = f"{part}/{name}"
        if name in _SPARSE:
            pieces = tuple(_array(f"{place}/{piece}", tensors) for piece in _CSR)
            matrix = sp.csr_array(pieces, shape=(shape[0], shape[1]))
            matrix.check_format(full_check=True)
            counts = matrix.data
            values[name] = matrix
        else:
            counts = _array(place, tensors)
            shaped(shape, **{place: counts})
            values[name] = int(counts[0]) if shape == (1,) else counts
        if not (np.isfinite(counts).all() and (counts >= 0).all()):
            raise DataError(f"{place} holds a negative number, NaN or infinity")
        if (counts > most).any():
            raise DataError(f"{place} exceeds {most:,}, the maximum of its people")
    return values


def _array(name: str, tensors: dict[str, Tensor]) -> NDArray[Any]:
    if (found := tensors[name]).dtype not in (torch.int64, torch.float64):
        raise DataError(f"{name} is {found.dtype}, expected int64 or float64")
    return found.numpy()


def _tensor(array: NDArray[Any]) -> Tensor:
    wide = np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64
    return torch.from_numpy(np.array(array, wide))
