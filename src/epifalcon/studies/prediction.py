"""Fit the person model on what is known, and score everybody.

The honest protocol: everything comes from ``Known``. A part of the tested people
is held back for validation, and for them the model, the region model and the
pseudo traces see nothing of their tests. What the tested people's own tests do
to their own region states is cut by cross-fitting. Hidden labels do not occur
here at all; ``epifalcon.evaluation`` opens them afterwards.
"""

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.epidemic.cases import reported_cases
from epifalcon.epidemic.known import Known
from epifalcon.errors import DataError
from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.metrics import auc
from epifalcon.federation.client import Cohort
from epifalcon.federation.engine import EngineState, RoundReport, predict, train
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import PrivacySettings, StoppingSettings
from epifalcon.federation.vectorised import VectorisedEngine
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.mobility.flows import count_flows
from epifalcon.mobility.markov import MobilityModelSettings, mobility_model
from epifalcon.mobility.traces import Traces
from epifalcon.models.coupling import state_of_people
from epifalcon.models.forecast import ForecastReport
from epifalcon.models.regional import RegionHistory
from epifalcon.models.settings import FalconSettings, RegionSettings
from epifalcon.models.states import cross_fitted_states, dcrnn_model
from epifalcon.privacy.ledger import Spent
from epifalcon.privacy.pseudo.catalogue import generate
from epifalcon.privacy.pseudo.record import PseudoSettings
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import Mask, PersonIds, Probabilities


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Falcon whole; without region model and privacy it is the HGNN."""

    model: FalconSettings = field(default_factory=FalconSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    pseudo: PseudoSettings = field(default_factory=PseudoSettings)
    region: RegionSettings | None = field(default_factory=RegionSettings)
    """None leaves the region model out."""
    region_folds: int = 4
    """Parts of the tested people for cross-fitting the region states."""
    stopping: StoppingSettings = field(default_factory=StoppingSettings)

    def __post_init__(self) -> None:
        whole(2, region_folds=self.region_folds)


HGNN = PredictionSettings(region=None)
"""The paper's HGNN: the person model in one place, nothing else."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Scores of everybody, and how they came about."""

    probability: Probabilities
    """(people,)"""
    best_round: int
    validation_auc: float
    checks: tuple[tuple[int, float, float], ...]
    """(rounds done, loss, validation AUC) at each look."""
    spent: Spent
    forecast: ForecastReport | None
    seconds: float
    seconds_per_round: float


def fit(
    traces: Traces,
    known: Known,
    settings: PredictionSettings,
    seed: int,
    progress: Progress = silent,
) -> Prediction:
    """Train on ``known`` with ``settings`` and score everybody.

    Equal arguments give equal bits on one machine. With privacy, the scores of
    the best round are those that people hold from it; nothing more is released.
    """
    began = perf_counter()
    streams = Streams(seed)
    held_back = _hold_back(known, settings.stopping, streams)
    training = known.of_people(~_mask(known.people, held_back))
    window = HypergraphSettings(window_slots=settings.model.window_slots)
    incidence = Incidence.of(traces, window)
    states, forecast = _region_states(
        traces, incidence, training, settings, streams, progress
    )
    pseudo = _pseudo(traces, training, settings, streams, progress)
    cohort = Cohort.of_city(incidence, training.status, states, pseudo)
    plan = PrivacyPlan.of(
        settings.privacy, settings.model, releases_of(traces.clock), len(pseudo)
    )
    engine = VectorisedEngine(
        cohort, settings.model, plan, streams.seed_for("falcon training")
    )
    best = _Best(engine, held_back, known.status[held_back] == 1, settings.stopping)
    start = perf_counter()
    train(engine, None, best.look, settings.stopping.check_every, progress)
    seconds_per_round = (perf_counter() - start) / max(engine.round, 1)
    return Prediction(
        probability=best.probability,
        best_round=best.state.round,
        validation_auc=best.auc,
        checks=tuple(best.checks),
        spent=engine.ledger.spent(),
        forecast=forecast,
        seconds=perf_counter() - began,
        seconds_per_round=seconds_per_round,
    )


class _Best:
    """Keeps the best look at the validation people, and says when to stop."""

    def __init__(
        self,
        engine: VectorisedEngine,
        people: PersonIds,
        infected: Mask,
        stopping: StoppingSettings,
    ) -> None:
        self._engine, self._people, self._infected = engine, people, infected
        self._patience = stopping.patience
        self._since = 0
        self.auc = -np.inf
        self.checks: list[tuple[int, float, float]] = []
        self.state: EngineState = engine.state()
        self.probability: Probabilities = np.zeros(0)

    def look(self, report: RoundReport) -> bool:
        """Take the scores of this round if they are the best so far."""
        scores = predict(self._engine)
        found = float(auc(curve(scores[self._people], self._infected)))
        self.checks.append((self._engine.round, report.loss, found))
        self._since += 1
        if found > self.auc:
            self.auc, self._since = found, 0
            self.state, self.probability = self._engine.state(), scores
        return self._since >= self._patience


def _hold_back(known: Known, stopping: StoppingSettings, streams: Streams) -> PersonIds:
    """The validation people: the same share of the positive and the negative."""
    rng = streams.numpy("validation people")
    parts = []
    for wanted, word in ((1, "positive"), (0, "negative")):
        people = np.flatnonzero(known.status == wanted)
        count = max(1, round(stopping.validation_share * len(people)))
        if len(people) < 2:
            raise DataError(
                f"{len(people)} people tested {word}: at least 2 are needed, "
                "one to learn from and one for validation"
            )
        parts.append(rng.permutation(people)[:count])
    return np.sort(np.concatenate(parts)).astype(np.int32)


def _region_states(
    traces: Traces,
    incidence: Incidence,
    known: Known,
    settings: PredictionSettings,
    streams: Streams,
    progress: Progress,
) -> tuple[Tensor | None, ForecastReport | None]:
    """Each person's mean region state, without the echo of its own test."""
    if settings.region is None:
        return None, None
    fold = _folds(known, settings.region_folds, streams.numpy("region folds"))
    cases = np.stack(
        [
            reported_cases(known.of_people(fold == number), traces).by_region_and_day
            for number in range(settings.region_folds)
        ]
    )
    history = RegionHistory(count_flows(traces), cases.sum(axis=0), "reported")
    generator = torch.Generator().manual_seed(streams.seed_for("region model"))
    fitted = cross_fitted_states(
        dcrnn_model(settings.region), history, cases, generator, progress=progress
    )
    whole_city = torch.tensor(fitted.whole.states.hidden)
    state = state_of_people(whole_city, incidence, traces.clock)
    for number, own in enumerate(fitted.folds):
        people = torch.from_numpy(np.flatnonzero(fold == number))
        hidden = torch.tensor(own.hidden)
        state[people] = state_of_people(hidden, incidence, traces.clock)[people]
    return state, fitted.whole.forecast


def _folds(known: Known, folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(people,) the fold of each tested person, -1 for everybody else."""
    tested = np.flatnonzero(known.tested)
    fold = np.full(known.people, -1, np.int64)
    fold[rng.permutation(tested)] = np.arange(len(tested)) % folds
    return fold


def _pseudo(
    traces: Traces,
    known: Known,
    settings: PredictionSettings,
    streams: Streams,
    progress: Progress,
) -> tuple[Incidence, ...]:
    """The pseudo places of everybody; none where nothing is promised."""
    if settings.privacy.mode == "off" or settings.pseudo.pseudo_copies == 0:
        return ()
    rng = streams.numpy("mobility model")
    model = mobility_model(traces, MobilityModelSettings(), rng, progress)
    cases = reported_cases(known, traces).by_region_and_day
    made = generate(
        traces, model, cases, settings.pseudo, streams.numpy("pseudo"), progress
    )
    window = HypergraphSettings(window_slots=settings.model.window_slots)
    return tuple(Incidence.of(made.copy(k), window) for k in range(made.copies))


def _mask(people: int, chosen: PersonIds) -> Mask:
    mask = np.zeros(people, np.bool_)
    mask[chosen] = True
    return mask
