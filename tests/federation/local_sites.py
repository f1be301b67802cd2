"""Sites without a network: the calls of a server answered in the same process."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from epifalcon.federation import preparation
from epifalcon.federation.client import Client, Cohort
from epifalcon.federation.engine import EngineState, pack_state
from epifalcon.federation.falcon.server_run import SitesEngine
from epifalcon.federation.falcon.site_run import FalconRunRequest, SiteRounds
from epifalcon.federation.messages import Packet, unpack
from epifalcon.federation.network.site_calls import SiteCalls
from epifalcon.federation.network.site_files import SiteFiles
from epifalcon.federation.network.site_session import CallHandler
from epifalcon.federation.preparation import (
    Selection,
    SharedStatistics,
    SiteData,
    StateMoments,
    StateScaling,
    cohort_of,
    hypergraph,
    raw_state,
    validation_split,
)
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds
from epifalcon.federation.settings import PredictionSettings, SiteRules
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Probabilities

RUN = "a-run"
Change = Callable[[Packet], Packet]
Tamper = Callable[[str, bytes, bytes], bytes | None]
"""Site, call and true answer to what comes back; None for silence."""


def with_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda one: replace(
        one, tensors={**one.tensors, name: change(one.tensors[name])}
    )


def with_values(**changes: object) -> Change:
    return lambda one: replace(one, values={**one.values, **changes})


def with_header(**changes: object) -> Change:
    return lambda one: replace(one, header=replace(one.header, **changes))


class Loopback:
    """Carries calls to what is ``running``; sites may be away or tampered with."""

    def __init__(self, running=None):
        self.running = running or {}
        self.reset()

    def reset(self):
        self.calls_made, self.away = 0, {}
        self.tamper: Tamper = lambda _site, _call, answer: answer
        self.calls: list[tuple[str, bytes]] = []
        self.answers: list[tuple[str, bytes]] = []

    def restart(self, kind, folder, run, names):
        """New processes: nothing is remembered that is not on disk."""
        self.reset()
        for one in self.running.values():
            one.close()
        self.running = {n: kind(SiteFiles(folder / n), run, n) for n in names}

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.running)

    def lose_after(self, site, asks, until=10**9):
        self.away[site] = range(asks, until)

    def break_after(self, asks):
        self.away = dict.fromkeys(self.running, range(asks, 10**9))

    def call(self, calls, seconds):
        answers, failures = {}, {}
        for site, call in calls.items():
            answer = None
            if self.calls_made not in self.away.get(site, ()):
                self.calls.append((site, call))
                answer = self.tamper(site, call, self.running[site].answer(call))
            if answer is None:
                failures[site] = f"no answer within {seconds:g} s"
            else:
                answers[site] = answer
                self.answers.append((site, answer))
        self.calls_made += 1
        return answers, failures


class LocalTransport(Loopback):
    """Sites that have no files."""

    def __init__(self, rounds: dict[str, SiteRounds]):
        self.rounds = rounds
        handlers = {name: one.handlers for name, one in rounds.items()}
        super().__init__({n: CallHandler(RUN, n, h) for n, h in handlers.items()})

    def received(self) -> list[tuple[int, Packet]]:
        """Number of the first person of a site, and what the site answered."""
        return [
            (int(self.rounds[site].client.cohort.people[0]), unpack(answer))
            for site, answer in self.answers
        ]


def sites_of(
    cohorts: Sequence[Cohort],
    settings: FalconSettings,
    plan: PrivacyPlan,
    seed: int,
    rules: SiteRules | None = None,
) -> tuple[SitesEngine, LocalTransport]:
    """An engine around sites that hold ``cohorts``."""
    rules = rules or SiteRules()
    rounds, people = {}, {}
    for number, cohort in enumerate(cohorts):
        name = f"site-{number:02d}"
        tested = np.flatnonzero(cohort.status >= 0).astype(np.int32)[:2]
        rounds[name] = SiteRounds(
            Client(cohort, settings, plan, RunSeeds(seed)),
            Ledger(plan.budget),
            sends_rows=rules.sends_rows,
            validation=Selection(tested, cohort.status[tested] == 1),
        )
        people[name] = len(cohort.people)
    transport = LocalTransport(rounds)
    board = SiteCalls(transport, RUN, rules)
    state = cohorts[0].state
    width = 0 if state is None else state.shape[1]
    engine = SitesEngine(board, people, settings, plan, seed, state_width=width)
    return engine, transport


class LocalSites:
    """Sites as an engine whose people stand in the order of the city."""

    def __init__(self, cohorts, settings, plan, seed, uploads="sums"):
        rules = SiteRules(uploads=uploads)
        self.sites, self.transport = sites_of(cohorts, settings, plan, seed, rules)
        self.settings, self.plan, self.ledger = settings, plan, self.sites.ledger
        self.rounds = list(self.transport.rounds.values())
        people = np.concatenate([one.client.cohort.people for one in self.rounds])
        self._place = np.argsort(people)

    @property
    def round(self) -> int:
        return self.sites.round

    def step(self) -> float:
        loss = self.sites.step()
        # The next call, whatever it is, closes the round at the sites.
        self.sites.validation_scores(fresh=False)
        return loss

    def scores(self, fresh: bool | None = None) -> Probabilities:
        if fresh is None:
            fresh = not self.plan.is_private or self.round == 0
        if fresh:
            self.sites.score()
        found = np.concatenate([one.scores(fresh=fresh) for one in self.rounds])
        return found[self._place]

    def state(self) -> EngineState:
        parts = [pack_state(one.state) for one in self.rounds]
        state = self.sites.state()
        tensors = dict(state.tensors)
        for name in parts[0]:
            tensors[name] = torch.cat([one[name] for one in parts])[self._place]
        return replace(state, tensors=tensors)


def cohorts_of_sites(
    sites_data: Sequence[SiteData], settings: PredictionSettings, seed: int
) -> list[Cohort]:
    """Do what server and sites do before the rounds, without messages."""
    clock, regions = sites_data[0].traces.clock, sites_data[0].traces.regions
    both = [(data, validation_split(data, settings, seed)) for data in sites_data]
    tally = reduce(add, [preparation.count_tally(*one, settings) for one in both])
    shared = SharedStatistics.of(tally, regions)
    if settings.uses_region_model:
        states = preparation.fit_region_states(tally, clock, settings, seed).states
        moments = []
        for data, part in both:
            raw = raw_state(data, part, hypergraph(data.traces, settings), states)
            moments.append(StateMoments.of(raw))
        scaling = StateScaling.of(reduce(add, moments), settings)
        shared = replace(shared, states=states, scaling=scaling)
    return [
        cohort_of(data, part, settings, shared, RunSeeds(seed).pseudo(data.first))
        for data, part in both
    ]


def sites_oracle(
    sites_data: Sequence[SiteData], run_request: FalconRunRequest
) -> LocalSites:
    """Return an engine that does the rounds of a run over sites, without files."""
    settings, seed = run_request.settings, run_request.seed
    plan = PrivacyPlan.for_run(settings, sites_data[0].traces.clock)
    cohorts = cohorts_of_sites(sites_data, settings, seed)
    return LocalSites(cohorts, settings.model, plan, seed, run_request.rules.uploads)
