"""What enters training beside traces and tests, made by a site for its own people.

Who is held back, in which fold a tested person is and on whom the mobility model is
fitted depends on the seed and the person's number alone, so it is the same however
people are split into sites; one process is one site with everybody. What must be known
of all people is summed over sites: a site counts, and the server adds up. These sums
leave without noise, and the ledger lists each of them as an unprotected release.

A person's own test never enters features it is trained on: nothing sees the tests of
validation people, and the region states of a tested person are made without the cases
of its fold.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from epifalcon.epidemic.cases import COUNTS, CaseSettings, CaseTally, tally_cases
from epifalcon.epidemic.known import Known, without
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.client import Cohort
from epifalcon.federation.messages import Record
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.federation.settings import PredictionSettings
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.flows import Flows, count_flows
from epifalcon.mobility.markov import MobilityModel, MobilityTally, tally_mobility
from epifalcon.mobility.traces import Traces
from epifalcon.models.forecast import judge
from epifalcon.models.micro import state_of_people
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
from epifalcon.types import Floats, Mask, PersonIds

_LEAST_SPREAD = 1e-6
_CSR = ("data", "indices", "indptr")
_SPARSE = ("/between", "/joint")
"""Fields of tallies that are sparse tables."""


def hypergraph(traces: Traces, settings: PredictionSettings) -> Incidence:
    """Return the hypergraph of ``traces`` with the model's windows."""
    return Incidence.of(traces, window_slots=settings.model.window_slots)


@dataclass(frozen=True, eq=False)
class Household:
    """The people of one site, or of everybody, with their traces and tests."""

    traces: Traces
    known: Known
    first: int = 0
    """Number of the first of them in the whole city; the others follow."""

    def __post_init__(self) -> None:
        if self.known.people != self.traces.people:
            raise DataError(
                f"tests among {self.known.people:,} people, but traces of "
                f"{self.traces.people:,}"
            )

    @property
    def people(self) -> NDArray[np.int64]:
        """Their numbers in the whole city."""
        return self.first + np.arange(self.traces.people, dtype=np.int64)


def split(traces: Traces, known: Known, sites: int) -> list[Household]:
    """Split people into ``sites`` sites of nearly equal size, in their order."""
    if not 1 <= sites <= traces.people:
        raise SettingsError(f"sites={sites} must be 1 to {traces.people:,}, the people")
    homes = []
    for people in np.array_split(np.arange(traces.people), sites):
        first, end = int(people[0]), int(people[-1]) + 1
        inside = (known.person >= first) & (known.person < end)
        tests = Known(
            end - first,
            (known.person[inside] - first).astype(np.int32),
            known.positive[inside],
            known.slot[inside],
        )
        by_slot = np.ascontiguousarray(traces.by_slot[:, first:end])
        some = Traces(by_slot, traces.clock, traces.regions)
        homes.append(Household(some, tests, first))
    return homes


@dataclass(frozen=True, eq=False)
class Division:
    """Validation people, folds of the other tested people, and a group of people."""

    held_back: PersonIds
    """Positions of the validation people at the site, ascending."""
    training: Known
    """The tests of everybody but them."""
    fold: NDArray[np.int64]
    """(people,) of each person in ``training``, -1 for everybody else."""
    mobility_group: NDArray[np.int64] | None = None
    """Positions of the people on whom the mobility model is fitted; None for all."""


@dataclass(frozen=True, eq=False)
class Selection:
    """People of a site whose results choose the round: (people,) each."""

    people: PersonIds = field(default_factory=lambda: np.zeros(0, np.int32))
    """Positions at the site."""
    infected: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))


def divide(home: Household, settings: PredictionSettings, seed: int) -> Division:
    """Draw validation people, folds and the group of the mobility model.

    Each draw is fixed by seed and person, so any split into sites gives the same.
    Nobody is held back where the round is chosen on test people.
    """
    share = settings.stopping.validation_share
    if settings.stopping.selected_on == "test":
        share = 0.0
    everybody = home.people
    drawn = drawn_for(everybody, "validation people", seed)
    people = np.flatnonzero(home.known.tested & (drawn < share)).astype(np.int32)
    training = without(home.known, people)
    drawn = drawn_for(everybody, "region folds", seed)
    fold = (drawn * settings.region.folds).astype(np.int64)
    fold[~training.tested] = -1
    group = mobility_group(everybody, settings.pseudo.people_share, seed)
    return Division(people, training, fold, group)


def mobility_group(
    people: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.int64] | None:
    """Return the positions of a random share of the people; None for all."""
    if share == 1:
        return None
    return np.flatnonzero(drawn_for(people, "mobility model", seed) < share)


def drawn_for(people: NDArray[np.int64], purpose: str, seed: int) -> Floats:
    """Draw a number between 0 and 1 for each person, keyed by purpose and seed."""
    key = NoiseKey(seed, Terms(channel=purpose, releases=ONE_VECTOR))
    normal = keyed_normals(key, NoiseRows.of_people(people), 1)[:, 0]
    drawn: Floats = np.clip(ndtr(np.asarray(normal, np.float64)), 0.0, 1 - 2**-53)
    return drawn


@dataclass(frozen=True, eq=False)
class StateMoments(Record):
    """Site to server: sums of region states over its people, in double precision."""

    people: int
    total: Floats
    """(width,)"""
    squared: Floats
    """(width,)"""

    @classmethod
    def of(cls, state: NDArray[np.float32]) -> "StateMoments":
        """Sum the states of some people, (people, width)."""
        wide = state.astype(np.float64)
        return cls(len(state), wide.sum(axis=0), (wide**2).sum(axis=0))

    def __add__(self, other: "StateMoments") -> "StateMoments":
        return StateMoments(
            self.people + other.people,
            self.total + other.total,
            self.squared + other.squared,
        )


@dataclass(frozen=True, eq=False)
class StateScaling:
    """Scales people's region states to the size of the rows beside them.

    Raw states differ little between people, so that training hardly uses them.
    Scaled, each column has the same spread and a state the root mean square length
    1, the most that a clipped row has when it is read.
    """

    centre: NDArray[np.float32]
    """(width,)"""
    factor: NDArray[np.float32]
    """(width,), 0 for a column that is the same for all."""

    @classmethod
    def of(cls, moments: StateMoments, settings: PredictionSettings) -> "StateScaling":
        """Return the scaling of all people's states; identity if not wanted."""
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
class Surrounding:
    """What all sites share before the rounds."""

    mobility: MobilityModel | None = None
    cases: Floats | None = None
    """(regions, days) reported, for pseudo traces that follow them."""
    states: NDArray[np.float32] | None = None
    """(1 + folds, regions, days, width): from all cases, then without each fold's."""
    scaling: StateScaling | None = None


def raw_state(
    home: Household,
    division: Division,
    incidence: Incidence,
    states: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return each person's mean region state before scaling, (people, width).

    Tested people get states that were made without the cases of their fold.
    """

    def mean(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        found = state_of_people(torch.tensor(hidden), incidence, home.traces.clock)
        return np.asarray(found.numpy(), np.float32)

    state = mean(states[0])
    for number, hidden in enumerate(states[1:]):
        people = division.fold == number
        if people.any():
            state[people] = mean(hidden)[people]
    return state


def cohort_of(
    home: Household,
    division: Division,
    settings: PredictionSettings,
    around: Surrounding,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> Cohort:
    """Return the people as they enter the rounds; ``rng`` draws pseudo traces."""
    incidence = hypergraph(home.traces, settings)
    state = None
    if around.states is not None and around.scaling is not None:
        raw = raw_state(home, division, incidence, around.states)
        state = torch.from_numpy(around.scaling.apply(raw))
    pseudo: tuple[Incidence, ...] = ()
    if around.mobility is not None:
        made = pseudo_traces(home.traces, settings, around, rng, progress)
        pseudo = tuple(hypergraph(made.copy(k), settings) for k in range(made.copies))
    return Cohort(home.people, incidence, division.training.status, state, pseudo)


def pseudo_traces(
    traces: Traces,
    settings: PredictionSettings,
    around: Surrounding,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> PseudoTraces:
    """Draw the pseudo traces of some people from the shared mobility model."""
    if around.mobility is None:
        raise DataError("pseudo traces need a mobility model")
    cases = around.cases
    if cases is None:
        cases = np.zeros((len(traces.regions), traces.clock.days))
    return generate(traces, around.mobility, cases, settings.pseudo, rng, progress)


def unprotected_receipts(
    plan: PrivacyPlan, settings: PredictionSettings, *, validation: bool
) -> list[UnprotectedRelease]:
    """Return receipts of what leaves once beside the rounds, without noise.

    ``validation``: whether validation people take part.
    """
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
    return [in_the_clear(plan, channel, what) for channel, what in made]


def in_the_clear(plan: PrivacyPlan, channel: str, what: str) -> UnprotectedRelease:
    """Return a receipt of something that leaves without protection, once."""
    terms = Terms(channel=channel, releases=plan.releases, relation=plan.relation)
    return UnprotectedRelease(terms=terms, what=what)


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


def count_tally(
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


@dataclass(frozen=True, eq=False)
class RegionFit:
    """Region states, how the forecasts were evaluated, and the fitted model."""

    states: NDArray[np.float32]
    """(1 + folds, regions, days, width): from all cases, then without each fold's."""
    forecast: dict[str, Any]
    model: DcrnnRegionModel | GruRegionModel


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
    is_gru = settings.region.network.kind == "gru"
    model = (GruRegionModel if is_gru else DcrnnRegionModel)(settings.region)
    seed_of_model = Streams(seed).seed_for("region model")
    generator = torch.Generator().manual_seed(seed_of_model)
    if all_cases is not None:
        measure = settings.region.cases.measure
        whole, others = RegionHistory(tally.flows, all_cases, "all", measure), []
    else:
        whole, *others = histories(tally, clock, settings.region.cases)
    # With one thread torch rounds sums alike on any machine and over any sites.
    with threads(1):
        model.fit(whole, generator, progress)
        states = np.stack([model.states(one) for one in (whole, *others)])
        forecast = asdict(judge(model, whole))
    return RegionFit(states, forecast, model)


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


def pack_tally(tally: SiteTally) -> dict[str, Tensor]:
    """Encode a tally as tensors, named by part and field."""
    parts = {
        "flows": tally.flows,
        "mobility": tally.mobility,
        "reported": tally.reported,
        **{f"cases/{number}": one for number, one in enumerate(tally.cases)},
    }
    arrays: dict[str, NDArray[Any]] = {}
    for part, record in parts.items():
        for one in fields(record) if record is not None else ():
            value, place = getattr(record, one.name), f"{part}/{one.name}"
            if isinstance(value, sp.csr_array):
                arrays |= {f"{place}/{piece}": getattr(value, piece) for piece in _CSR}
            else:
                arrays[place] = np.atleast_1d(value)
    return {name: _tensor(one) for name, one in arrays.items()}


def unpack_tally(
    tensors: dict[str, Tensor], regions: int, clock: Clock, folds: int
) -> SiteTally:
    """Decode what ``pack_tally`` made; every type, shape and sign is checked."""
    days, per_day = clock.days, clock.slots_per_day
    flows = {
        "between": (days * regions, regions),
        "stays": (days, regions),
        "visitors": (days, regions),
    }
    mobility = {
        "joint": (per_day * regions, regions),
        "visits": (per_day, regions),
        "observed": (per_day, 1),
        "people": (1,),
    }
    cases = {
        "cases": (regions, days),
        "visits": (regions, days),
        "unplaced": (1,),
        "tested": (1,),
    }
    named = {name.split("/")[0] for name in tensors}
    found: dict[str, Any] = {}
    try:
        if "flows" in named:
            found["flows"] = Flows(**_read_part("flows", flows, tensors))
            found["cases"] = tuple(
                CaseTally(**_read_part(f"cases/{number}", cases, tensors))
                for number in range(1 + folds)
            )
        if "mobility" in named:
            part = _read_part("mobility", mobility, tensors)
            found["mobility"] = MobilityTally(**part)
        if "reported" in named:
            found["reported"] = CaseTally(**_read_part("reported", cases, tensors))
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"a tally is not whole: {error}") from None
    return SiteTally(**found)


def _read_part(
    part: str, shapes: Mapping[str, tuple[int, ...]], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, shape in shapes.items():
        place = f"{part}/{name}"
        if place.endswith(_SPARSE):
            pieces = tuple(_array(f"{place}/{piece}", tensors) for piece in _CSR)
            matrix = sp.csr_array(pieces, shape=(shape[0], shape[1]))
            matrix.check_format(full_check=True)
            _require_counts(place, matrix.data)
            values[name] = matrix
            continue
        array = _array(place, tensors)
        if array.shape != shape:
            raise DataError(f"{place} has the shape {array.shape}, expected {shape}")
        _require_counts(place, array)
        values[name] = int(array[0]) if shape == (1,) else array
    return values


def _array(name: str, tensors: dict[str, Tensor]) -> NDArray[Any]:
    if (found := tensors[name]).dtype not in (torch.int64, torch.float64):
        raise DataError(f"{name} is of {found.dtype}")
    return found.numpy()


def _require_counts(name: str, array: NDArray[Any]) -> None:
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise DataError(f"{name} holds a number below 0, NaN or infinity")


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
    for name, one in pack_tally(tally).items():
        counts = not name.endswith(("/indices", "/indptr"))
        if one.numel() and counts and float(one.max()) > most:
            raise DataError(f"{name} counts more than {people:,} people can have done")


def _sum(one: Any, other: Any) -> Any:  # noqa: ANN401
    if one is None or other is None:
        if one is not other:
            raise DataError("sites counted different things")
        return None
    return one + other


def _tensor(array: NDArray[Any]) -> Tensor:
    wide = np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64
    return torch.from_numpy(np.array(array, wide))
