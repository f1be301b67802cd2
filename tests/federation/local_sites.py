"""Sites without a network: the calls of a server answered in the same process."""

from collections.abc import Callable, Sequence

import numpy as np

from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.answering import Answering, SiteRounds, Watched
from epifalcon.federation.sites.engine import Census, SitesEngine
from epifalcon.federation.sites.rounds import CohortRounds
from epifalcon.federation.sites.switchboard import Switchboard
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.ledger import Ledger

RUN = "a-run"
Tamper = Callable[[str, bytes, bytes], bytes | None]
"""Site, call and true answer to what comes back; None for silence."""


class LocalTransport:
    """Carries calls by function calls; ``tamper`` may change what comes back."""

    def __init__(self, sites: dict[str, SiteRounds], answering: dict[str, Answering]):
        self.rounds, self.answering = sites, answering
        self.tamper: Tamper = lambda _site, _call, answer: answer
        self.calls: list[tuple[str, bytes]] = []
        self.answers: list[tuple[str, bytes]] = []

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.rounds)

    def ask(self, calls, seconds):
        answers, failures = {}, {}
        for site, call in calls.items():
            self.calls.append((site, call))
            answer = self.tamper(site, call, self.answering[site].answer(call))
            if answer is None:
                failures[site] = f"no answer within {seconds:g} s"
            else:
                answers[site] = answer
                self.answers.append((site, answer))
        return answers, failures


def sites_of(
    cohorts: Sequence[Cohort],
    settings: FalconSettings,
    plan: PrivacyPlan,
    seed: int,
    rules: SiteRules | None = None,
) -> tuple[SitesEngine, LocalTransport]:
    """An engine around sites that hold ``cohorts``."""
    rules = rules or SiteRules()
    names = [f"site-{number:02d}" for number in range(len(cohorts))]
    answering = {name: Answering(RUN, name) for name in names}
    sites = {}
    for name, cohort in zip(names, cohorts, strict=True):
        rows = rules.sends_rows(plan.mode)
        rounds = CohortRounds(cohort, settings, plan, RunSeeds(seed), rows)
        people = np.flatnonzero(cohort.status >= 0).astype(np.int32)[:2]
        watched = Watched(people, cohort.status[people] == 1)
        ledger = Ledger(plan.budget)
        sites[name] = SiteRounds(answering[name], rounds, ledger, watched)
    transport = LocalTransport(sites, answering)
    board = Switchboard(transport, RUN, rules)
    state = cohorts[0].state
    people = {
        name: len(cohort.people) for name, cohort in zip(names, cohorts, strict=True)
    }
    census = Census(people, 0 if state is None else state.shape[1])
    return SitesEngine(board, census, settings, plan, seed), transport
