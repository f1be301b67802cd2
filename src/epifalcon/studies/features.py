"""What enters training beside traces and tests, made once before the first round.

The honest protocol: everything comes from ``Known``. A part of the tested people
is held back for validation, and for them the model, the region model and the
pseudo traces see nothing of their tests. What the tested people's own tests do
to their own region states is cut by cross-fitting. Hidden labels do not occur
here at all; ``epifalcon.evaluation`` opens them afterwards. The one exception
has a name: ``macro_cases="all"`` reads everybody's cases, as the authors did.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.epidemic.cases import reported_cases
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import even_folds, hold_back, without
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation.preparing import (
    StateScaling,
    hypergraph,
    state_at_home,
    state_by_fold,
)
from epifalcon.federation.settings import PredictionSettings
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.markov import (
    MobilityModel,
    mobility_model,
)
from epifalcon.mobility.traces import Traces
from epifalcon.models.regional import NetworkRegionModel, RegionHistory
from epifalcon.models.states import (
    FoldHistories,
    fit_states,
    region_model,
    states_by_fold,
)
from epifalcon.privacy.pseudo.catalogue import generate
from epifalcon.privacy.pseudo.record import PseudoSettings, PseudoTraces
from epifalcon.progress import Progress, silent
from epifalcon.settings import as_plain, fingerprint
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, PersonIds

_KIND = "features"
_TESTS = ("person", "positive", "slot")


@dataclass(frozen=True, eq=False)
class Selection:
    """People whose results choose the round: (people,) each."""

    people: PersonIds
    infected: Mask


@dataclass(frozen=True, eq=False)
class Task:
    """One method to be trained: what it may see, how, and from which seed."""

    traces: Traces
    """As reported; the true ones may hold more."""
    known: Known
    settings: PredictionSettings
    seed: int
    all_cases: Floats | None = None
    """(regions, days) of everybody; only for ``macro_cases="all"``."""
    test_people: Selection | None = None
    """Of untested people; only for ``stopping.selected_on="test"``."""

    def __post_init__(self) -> None:
        if self.known.people != self.traces.people:
            raise DataError(
                f"tests among {self.known.people:,} people, but traces of "
                f"{self.traces.people:,}"
            )

    @property
    def origin(self) -> store.Origin:
        """What records made from the task say: the settings, and which data it was."""
        arrays: dict[str, NDArray[Any]] = {
            "by_slot": self.traces.by_slot,
            **{name: getattr(self.known, name) for name in _TESTS},
            **self.traces.regions.pack(),
        }
        if self.all_cases is not None:
            arrays["all_cases"] = self.all_cases
        if self.test_people is not None:
            arrays["test_people"] = self.test_people.infected
        data = {"clock": as_plain(self.traces.clock), "arrays": _digest(arrays)}
        told = {**as_plain(self.settings), "data_sha256": fingerprint(data)}
        return store.Origin.now(told, self.seed)

    @property
    def incidence(self) -> Incidence:
        """The true hypergraph of the traces."""
        return hypergraph(self.traces, self.settings)


@dataclass(frozen=True, eq=False)
class Features:
    """The people held back, and each person's mean region state."""

    held_back: PersonIds
    """(validation people,) in ascending order."""
    state: NDArray[np.float32] | None
    """(people, width), without the echo of the person's own test."""
    forecast: dict[str, Any] | None
    """How the region model's forecasts were judged."""
    scaling: StateScaling | None = None
    """What made ``state`` from the mean states of people's places."""
    region: NetworkRegionModel | None = None
    """The region model itself, for people who come later; not read back."""

    def save(self, folder: Path, origin: store.Origin) -> None:
        """Write the record into ``folder``; ``load`` reads it back."""
        arrays: dict[str, NDArray[Any]] = {"held_back": self.held_back}
        if self.state is not None and self.scaling is not None:
            arrays["state"] = self.state
            arrays["centre"], arrays["factor"] = (
                self.scaling.centre,
                self.scaling.factor,
            )
        meta = {"forecast": self.forecast}
        store.write(folder, _KIND, arrays, meta=meta, origin=origin)

    @classmethod
    def load(cls, folder: Path) -> "Features":
        """Read what ``save`` wrote."""
        stored = store.read(folder, _KIND)
        try:
            held_back = np.array(stored.arrays["held_back"])
            forecast = stored.meta["forecast"]
            if "state" not in stored.arrays:
                return cls(held_back, None, forecast)
            centre, factor = stored.arrays["centre"], stored.arrays["factor"]
            scaling = StateScaling(np.array(centre), np.array(factor))
            return cls(held_back, np.array(stored.arrays["state"]), forecast, scaling)
        except KeyError as error:
            raise CorruptFileError(f"{folder}: the record lacks {error}") from None


def make_features(
    task: Task, incidence: Incidence, progress: Progress = silent
) -> Features:
    """Hold people back and fit the region model; equal tasks give equal bits."""
    held_back = validation_people(task)
    training = without(task.known, held_back)
    if task.settings.macro_cases == "none":
        return Features(held_back, None, None)
    fit = _leaking_states if task.settings.macro_cases == "all" else _honest_states
    found = fit(task, incidence, training, progress)
    scaling = StateScaling.of(found.state)
    if not task.settings.region.scale_states:
        scaling = StateScaling.identity(found.state.shape[1])
    state = scaling.apply(found.state)
    return Features(held_back, state, found.forecast, scaling, found.model)


def selection(task: Task, held_back: PersonIds) -> Selection:
    """Return the people whose results choose the round."""
    if task.settings.stopping.selected_on == "validation":
        return Selection(held_back, task.known.status[held_back] == 1)
    if task.test_people is None or not len(task.test_people.people):
        raise SettingsError(
            "stopping.selected_on='test' needs a simulated outbreak: of these people "
            "only the tests are known"
        )
    return task.test_people


def validation_people(task: Task) -> PersonIds:
    """Return the tested people whom training never sees; they choose the round.

    None where the round is chosen on test people.
    """
    if task.settings.stopping.selected_on == "test":
        return np.zeros(0, np.int32)
    rng = Streams(task.seed).numpy("validation people")
    try:
        return hold_back(task.known, task.settings.stopping.validation_share, rng)
    except SettingsError as error:
        raise SettingsError(f"stopping.{error}") from None


def pseudo_places(
    task: Task,
    training: Known,
    progress: Progress = silent,
    newcomers: Traces | None = None,
) -> tuple[Incidence, ...]:
    """The pseudo places of everybody; none where nothing is promised.

    Those of ``newcomers``, where given: from the task's mobility model and
    cases, so that nothing is made from the newcomers alone, and the same traces
    get the same pseudo places whenever they are asked for.
    """
    settings = task.settings
    if settings.privacy.mode == "off" or settings.pseudo.pseudo_copies == 0:
        return ()
    made = pseudo_traces(task, training, progress, newcomers)
    return tuple(hypergraph(made.copy(k), settings) for k in range(made.copies))


def pseudo_traces(
    task: Task,
    training: Known,
    progress: Progress = silent,
    newcomers: Traces | None = None,
) -> PseudoTraces:
    """What ``pseudo_places`` are the places of."""
    model = public_mobility(task.traces, task.settings.pseudo, task.seed, progress)
    cases = reported_cases(training, task.traces).by_region_and_day
    traces = task.traces if newcomers is None else newcomers
    rng = Streams(task.seed).numpy("pseudo")
    return generate(traces, model, cases, task.settings.pseudo, rng, progress)


def public_mobility(
    traces: Traces, pseudo: PseudoSettings, seed: int, progress: Progress = silent
) -> MobilityModel:
    """Fit the public mobility model of a run, on its sampled group of people.

    Devices draw pseudo traces from it, and attackers have it too: equal arguments
    give the same group.
    """
    rng = Streams(seed).numpy("mobility model")
    return mobility_model(traces, pseudo.mobility, rng, progress)


@dataclass(frozen=True, eq=False)
class _Found:
    """What fitting the region model brings."""

    state: NDArray[np.float32]
    forecast: dict[str, Any]
    model: NetworkRegionModel | None = None


def _honest_states(
    task: Task, incidence: Incidence, training: Known, progress: Progress
) -> _Found:
    """From reported cases, for each tested person without those of its own fold."""
    region = task.settings.region
    streams = Streams(task.seed)
    fold = even_folds(training, region.folds, streams.numpy("region folds"))
    told = FoldHistories.of(training, task.traces, fold, region.cases)
    model = region_model(region)
    fitted = states_by_fold(
        model, told.whole, told.others, _generator(streams), progress=progress
    )
    own = [states.hidden for states in fitted.folds]
    whole = fitted.whole.states.hidden
    state = state_by_fold(whole, own, fold, incidence, task.traces)
    kept = model if isinstance(model, NetworkRegionModel) else None
    return _Found(state, fitted.whole.forecast.as_plain(), kept)


def _leaking_states(
    task: Task, incidence: Incidence, training: Known, progress: Progress
) -> _Found:
    """From everybody's cases, hidden people included, as the authors' program."""
    del training
    region = task.settings.region
    history = RegionHistory(
        count_flows(task.traces), everybodys_cases(task), "all", region.cases.measure
    )
    model = region_model(region)
    fitted = fit_states(model, history, _generator(Streams(task.seed)), progress)
    state = state_at_home(fitted.states.hidden, incidence, task.traces)
    return _Found(state, fitted.forecast.as_plain())


def everybodys_cases(task: Task) -> Floats:
    """The cases of all people, (regions, days); refused where nobody knows them."""
    if task.all_cases is None:
        raise SettingsError(
            "region.macro_cases='all' needs a simulated outbreak: of these people "
            "only the tests are known"
        )
    return task.all_cases


def _generator(streams: Streams) -> torch.Generator:
    return torch.Generator().manual_seed(streams.seed_for("region model"))


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of arrays by name."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
