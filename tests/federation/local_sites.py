"""Sites without a network: the calls of a server answered in the same process."""

from collections.abc import Callable, Sequence

import numpy as np

from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.engine import Census, SitesEngine
from epifalcon.federation.sites.run import SiteRounds, Watched
from epifalcon.federation.sites.session import Answering
from epifalcon.federation.sites.switchboard import Switchboard
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.ledger import Ledger

RUN = "a-run"
Tamper = Callable[[str, bytes, bytes], bytes | None]
"""Site, call and true answer to what comes back; None for silence."""


class LocalTransport:
    """Carries calls by function calls; ``tamper`` may change what comes back."""

    def __init__(self, rounds: dict[str, SiteRounds]):
        self.rounds = rounds
        self.answering = {
            name: Answering(RUN, name, one.handlers) for name, one in rounds.items()
        }
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
    rounds, people = {}, {}
    for number, cohort in enumerate(cohorts):
        name = f"site-{number:02d}"
        tested = np.flatnonzero(cohort.status >= 0).astype(np.int32)[:2]
        rounds[name] = SiteRounds(
            cohort,
            settings,
            plan,
            RunSeeds(seed),
            Ledger(plan.budget),
            sends_rows=rules.sends_rows,
            watched=Watched(tested, cohort.status[tested] == 1),
        )
        people[name] = len(cohort.people)
    transport = LocalTransport(rounds)
    board = Switchboard(transport, RUN, rules)
    state = cohorts[0].state
    census = Census(people, 0 if state is None else state.shape[1])
    return SitesEngine(board, census, settings, plan, seed), transport
