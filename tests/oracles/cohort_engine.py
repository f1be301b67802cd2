"""Oracle engine with explicit messages: any number of cohorts around one server.

Every value that passes between a cohort and the server is a record of
``messages.py``, made by ``client.py`` or ``server.py``. Noise is drawn for every
upload separately, keyed by person and place.
"""

from collections.abc import Generator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import client, preparing, server
from epifalcon.federation.client import Cohort, Home, Surroundings
from epifalcon.federation.engine import (
    EngineState,
    advance,
    class_weights,
    pack,
    probabilities,
    record_scoring,
    require_loss,
    require_plan,
    unpack,
)
from epifalcon.federation.messages import (
    Broadcast,
    Closing,
    EdgeReply,
    GradientUpload,
    LocationUpload,
    Message,
    PresenceUpload,
)
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.preparing import (
    Household,
    StateMoments,
    StateScaling,
    Surrounding,
    cohort_of,
    divide,
    hypergraph,
    raw_state,
)
from epifalcon.federation.server import EdgeCounts, Model
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.sites.run import FalconOrder
from epifalcon.federation.view import SERVER, Crowd
from epifalcon.models.micro import (
    Exchange,
    LinearUse,
    Moments,
    PassResult,
    initial_parameters,
    scoring_pass,
    training_pass,
)
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Probabilities
from tests.oracles.recorded_view import RecordedView

T = TypeVar("T")


class CohortEngine:
    """Cohorts that together hold every person of the city once."""

    def __init__(
        self,
        cohorts: Sequence[Cohort],
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        ledger: Ledger | None = None,
        view: RecordedView | None = None,
    ) -> None:
        self._place = _places(cohorts)
        if not plan.is_federable:
            raise SettingsError(
                "clip and noise of the authors' program run in one process only: the "
                "program is central, and no client could carry them out"
            )
        for cohort in cohorts:
            require_plan(cohort.incidence, settings, plan, len(cohort.pseudo))
        self.settings, self.plan, self.view = settings, plan, view
        self.ledger = Ledger(plan.budget) if ledger is None else ledger
        self._cohorts, self._seeds = tuple(cohorts), RunSeeds(seed)
        state = cohorts[0].state
        width = 0 if state is None else state.shape[1]
        rng = self._seeds.parameters()
        self._model = Model.of(initial_parameters(settings, width, rng))
        self._homes = [
            client.first_home(cohort, settings, self._seeds) for cohort in cohorts
        ]
        self._round = 0
        self._opened: tuple[EdgeCounts, list[Surroundings]] | None = None

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._round

    def step(self) -> float:
        """One round; returns its mean loss (see ``Engine.step``)."""
        number = self._round
        opening = () if number else self.plan.opening()
        self.ledger.record(*opening, *self.plan.round_receipts(number))
        known, around = self._open()
        call = Broadcast(number, self._model.parameters)
        self._tell(None, call)
        entries: list[LinearUse | None] = []
        works = []
        for cohort, home, near in zip(self._cohorts, self._homes, around, strict=True):
            inputs, entry = client.training_inputs(
                cohort,
                home,
                near,
                call.parameters,
                self.settings,
                self._seeds,
                call.round,
            )
            entries.append(entry)
            weights = class_weights(self.settings)
            works.append(training_pass(call.parameters, inputs, self.plan.way, weights))
        results = self._carry_all(works, known, around, number)
        total, weight = (
            sum(getattr(one, name) for one in results) for name in ("loss", "weight")
        )
        loss = require_loss(total, weight, number)
        model, closing = self._update(results, entries)
        self._homes = self._close(results, closing)
        self._model, self._round = model, number + 1
        return loss

    def scores(self, fresh: bool) -> Probabilities:
        """Probability of infection of everybody (see ``Engine.scores``)."""
        received = [home.received for home in self._homes]
        if fresh:
            received = [*self._score_passes()]
        found = np.zeros(len(self._place))
        for cohort, came in zip(self._cohorts, received, strict=True):
            found[cohort.people] = probabilities(
                self._model, self.settings, self.plan, came, cohort.state
            )
        return found

    def state(self) -> EngineState:
        """All that a checkpoint must hold, people in the order of the city."""
        home = Home(None, None, self._joined([one.received for one in self._homes]))
        first, second, rows = [], [], []
        for one in self._homes:
            if one.rows is not None and one.moments is not None:
                rows.append(one.rows)
                first.append(one.moments.first)
                second.append(one.moments.second)
        if rows:
            joined = [self._joined(some) for some in (rows, first, second)]
            home = _home(joined[0], joined[1], joined[2], home.received)
        return EngineState(self._round, pack(self._model, home), self.ledger.head)

    def restore(self, state: EngineState) -> None:
        """Go on from ``state``."""
        now = self.state()
        whole = Home(None, None)
        if "home/rows" in now.tensors:
            rows, first, second = (
                now.tensors[f"home/{name}"] for name in ("rows", "first", "second")
            )
            whole = _home(rows, first, second, None)
        model, home = unpack(state, self._model, whole)
        self._homes = [_part(home, cohort.people) for cohort in self._cohorts]
        self._model, self._round = model, state.round

    def _open(self) -> tuple[EdgeCounts, list[Surroundings]]:
        """Presence of every cohort, once; what it tells each of them."""
        if self._opened is None:
            uploads = [
                client.announce(cohort, self.plan, self._seeds)
                for cohort in self._cohorts
            ]
            for number, upload in enumerate(uploads):
                self._tell(number, upload)
            known = server.count_people(uploads)
            self._tell(None, self._crowd(uploads))
            around = [
                client.settle(
                    cohort.incidence, known.at(cohort.incidence.edge_key), self.settings
                )
                for cohort in self._cohorts
            ]
            self._opened = known, around
        return self._opened

    def _carry_all(
        self,
        works: Sequence[Generator[Exchange, Tensor, T]],
        known: EdgeCounts,
        around: Sequence[Surroundings],
        number: int,
        kind: str | None = None,
    ) -> list[T]:
        """Run all passes side by side, an exchange at a time."""
        moves = [advance(work, None) for work in works]
        while (first := moves[0][0]) is not None:
            channel = f"{kind or first.kind}/{first.layer}"
            key = NoiseKey(self._seeds.noise, self.plan.terms(channel, number))
            asked = [move[0] for move in moves]
            replies = self._exchange([one for one in asked if one], key, known)
            moves = [
                advance(work, client.receive(cohort.incidence, near.share, one, reply))
                for work, cohort, near, one, reply in zip(
                    works, self._cohorts, around, asked, replies, strict=True
                )
                if one is not None
            ]
        return [result for _, result in moves if result is not None]

    def _exchange(
        self, asked: Sequence[Exchange], key: NoiseKey, known: EdgeCounts
    ) -> list[EdgeReply]:
        each = self.view is not None and getattr(self.view, "each_upload", True)
        uploads: list[LocationUpload] = []
        for cohort, exchange in zip(self._cohorts, asked, strict=True):
            upload = client.location_upload(cohort, exchange, self.plan, key, each)
            self._tell(len(uploads), upload)
            uploads.append(upload)
        sums = server.add_up(uploads, known)
        replies = [server.answer(upload, sums, known) for upload in uploads]
        for reply in replies:
            self._tell(None, reply)
        return replies

    def _update(
        self, results: Sequence[PassResult], entries: Sequence[LinearUse | None]
    ) -> tuple[Model, Closing]:
        uploads: list[GradientUpload] = []
        for cohort, result, entry in zip(self._cohorts, results, entries, strict=True):
            uses = client.all_uses(result, entry)
            upload = client.gradient_upload(
                cohort, uses, result.weight, self.plan, self._seeds, self._round
            )
            self._tell(len(uploads), upload)
            uploads.append(upload)
        model, closing = server.step(self._model, uploads, self.settings)
        self._tell(None, closing)
        return model, closing

    def _close(self, results: Sequence[PassResult], closing: Closing) -> list[Home]:
        run = self.settings, self._seeds, self.plan.way.exchanged
        return [
            client.close_round(cohort, home, result, closing, *run)
            for cohort, home, result in zip(
                self._cohorts, self._homes, results, strict=True
            )
        ]

    def _score_passes(self) -> list[Tensor]:
        record_scoring(self.ledger, self.plan, self._round)
        known, around = self._open()
        works = []
        for cohort, home, near in zip(self._cohorts, self._homes, around, strict=True):
            inputs = client.scoring_inputs(
                cohort, home, near, self.settings, self._model.parameters
            )
            works.append(scoring_pass(self._model.parameters, inputs, self.plan.way))
        return self._carry_all(works, known, around, self._round, "scoring")

    def _crowd(self, uploads: Sequence[PresenceUpload]) -> Crowd:
        """Count people and claims at every key."""
        keys = np.unique(np.concatenate([upload.keys for upload in uploads]))
        counts, claims = np.zeros(len(keys)), np.zeros(len(keys), np.int64)
        for cohort, upload in zip(self._cohorts, uploads, strict=True):
            counts[np.searchsorted(keys, upload.keys)] += upload.counts
            place = cohort.claims.place if self.plan.upload else upload.keys
            each = 1 if self.plan.upload else upload.counts.astype(np.int64)
            np.add.at(claims, np.searchsorted(keys, place), each)
        return Crowd(keys, counts, claims)

    def _tell(self, cohort: int | None, message: Message | Crowd) -> None:
        """Show the view what reaches the server or what the server knows."""
        seen = PresenceUpload | LocationUpload | GradientUpload | Broadcast | Crowd
        if self.view is not None and isinstance(message, seen):
            self.view.saw(SERVER if cohort is None else cohort, message)

    def _joined(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        """Rows of all cohorts in the order of the city."""
        there = [part for part in parts if part is not None]
        if not there:
            return None
        return torch.cat(there)[torch.from_numpy(self._place)]


def _home(
    rows: Tensor | None,
    first: Tensor | None,
    second: Tensor | None,
    received: Tensor | None,
) -> Home:
    if rows is None or first is None or second is None:
        return Home(None, None, received)
    return Home(rows, Moments(first, second), received)


def _part(home: Home, people: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Home:
    chosen = torch.from_numpy(people)

    def some(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else rows[chosen]

    moments = home.moments
    if moments is None:
        return Home(None, None, some(home.received))
    return _home(
        some(home.rows), some(moments.first), some(moments.second), some(home.received)
    )


def _places(cohorts: Sequence[Cohort]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each person of the city stands when cohorts are put in a row."""
    if not cohorts:
        raise DataError("a run needs one cohort or more")
    people = np.concatenate([cohort.people for cohort in cohorts])
    place = np.argsort(people, kind="stable")
    if not np.array_equal(people[place], np.arange(len(people))):
        raise DataError("cohorts must hold every person of the city exactly once")
    widths = {None if one.state is None else one.state.shape[1] for one in cohorts}
    if len(widths) > 1:
        raise DataError("cohorts must all have region states of one width, or none")
    return place


def cohorts_of_sites(
    homes: Sequence[Household], settings: PredictionSettings, seed: int
) -> list[Cohort]:
    """Do what server and sites do before the rounds, without messages."""
    clock, regions = homes[0].traces.clock, homes[0].traces.regions
    divisions = [divide(home, settings, seed) for home in homes]
    both = list(zip(homes, divisions, strict=True))
    tally = preparing.total([preparing.count_tally(*one, settings) for one in both])
    mobility = None
    if tally.mobility is not None:
        mobility = tally.mobility.model(regions)
    cases = None if tally.reported is None else tally.reported.cases
    around = Surrounding(mobility, cases)
    if settings.uses_region_model:
        states = preparing.fit_region_states(tally, clock, settings, seed).states
        moments = [
            StateMoments.of(
                raw_state(home, part, hypergraph(home.traces, settings), states)
            )
            for home, part in both
        ]
        scaling = StateScaling.of(sum(moments[1:], moments[0]), settings)
        around = Surrounding(mobility, cases, states, scaling)
    return [
        cohort_of(home, part, settings, around, RunSeeds(seed).pseudo(home.first))
        for home, part in both
    ]


def sites_oracle(homes: Sequence[Household], order: FalconOrder) -> CohortEngine:
    """Return an engine that does the rounds of a run over sites."""
    settings, seed = order.settings, order.seed
    plan = PrivacyPlan.for_run(settings, homes[0].traces.clock)
    cohorts = cohorts_of_sites(homes, settings, seed)
    return CohortEngine(cohorts, settings.model, plan, seed)
