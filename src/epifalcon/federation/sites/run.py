"""A site's part in one run, from the first call to the scores of its people.

The conversation before the rounds: ``hello`` (may we?), ``count`` (what adds up),
``states`` (how region states spread here), ``prepare`` (make the cohort). Then the
rounds, ``keep`` for checkpoints, and ``finish``. Everything stays in the site's own
folder, so a site that is started again finds its people's embeddings.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.federation import checkpoints
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.client import Home
from epifalcon.federation.engine import EngineState
from epifalcon.federation.plan import PrivacyPlan, RunSeeds, releases_of
from epifalcon.federation.preparing import (
    Division,
    Household,
    StateMoments,
    StateScaling,
    Surrounding,
    cohort_of,
    divide,
    in_the_clear,
    made_in_the_clear,
    raw_state,
)
from epifalcon.federation.settings import (
    PredictionSettings,
    PrivacySettings,
    SiteRules,
)
from epifalcon.federation.sites import tallies
from epifalcon.federation.sites.answering import Answering, SiteRounds, Watched
from epifalcon.federation.sites.files import SiteFiles, SiteSettings, risks_text
from epifalcon.federation.sites.promises import PROMISES, Promise, admit
from epifalcon.federation.sites.rounds import CohortRounds
from epifalcon.federation.sites.switchboard import Payload
from epifalcon.federation.sites.trail import Noted, Trail, digest
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.markov import MobilityModelSettings
from epifalcon.models.micro import Moments
from epifalcon.models.region_store import regions_sha256
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.events import Releases, UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.settings import as_plain, build
from epifalcon.streams import Streams

LEDGER = "ledger.jsonl"
NOTED = "told.jsonl"
RISKS = "risks.csv"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a server asks its sites to take part in."""

    settings: PredictionSettings
    rules: SiteRules
    seed: int

    @property
    def sends_rows(self) -> bool:
        """Whether rows leave person by person."""
        return self.rules.sends_rows(self.settings.privacy.mode)

    @property
    def revealed(self) -> str:
        """What the way of uploading shows a server beside the rows themselves."""
        if self.sends_rows:
            return "which of a site's people sent each row, by number"
        return "sums over a site's people at each place, and which places it claims"

    def looks(self, plan: PrivacyPlan) -> list[UnprotectedRelease]:
        """Receipt of the looks at validation people; none where tests are promised."""
        if self.settings.privacy.mode == "local":
            return []
        what = "scores and results of validation people, without names"
        return [in_the_clear(plan, "validation", what)]

    @property
    def origin(self) -> store.Origin:
        """What checkpoints say of where they come from."""
        told = {"settings": as_plain(self.settings), "rules": as_plain(self.rules)}
        return store.Origin.now(told, self.seed)


def require_federable(settings: PredictionSettings) -> None:
    """Refuse what only one process that knows all can do."""
    if settings.macro_cases == "all":
        raise SettingsError("region.macro_cases='all': no site knows all cases")
    if settings.view.people:
        raise SettingsError("view.people: record a view in one process instead")


class SiteRun:
    """Answers all calls of one run for the site whose files are given."""

    def __init__(self, files: SiteFiles, run: str, site: str) -> None:
        self.folder = files.run(run)
        self.answering = Answering(run, site)
        self._files, self._run = files, run
        self._order: Order | None = None
        self._site: SiteSettings | None = None
        self._home: Household | None = None
        self._division: Division | None = None
        self._states: NDArray[np.float32] | None = None
        self._rounds: SiteRounds | None = None
        self._heard: dict[str, str] = {}
        for phase, handler in (
            ("hello", self._hello),
            ("count", self._count),
            ("states", self._take_states),
            ("prepare", self._prepare),
            ("keep", self._keep),
            ("finish", self._finish),
        ):
            self.answering.on(phase, handler)

    def answer(self, call: bytes) -> bytes:
        """The answer to a call; never raises."""
        return self.answering.answer(call)

    def _hello(self, call: Parcel) -> Payload:
        """Whether the site takes part, and how many people it has."""
        settings = build(PredictionSettings, call.value("settings"), "settings")
        rules = build(SiteRules, call.value("rules"), "rules")
        require_federable(settings)
        self._site = self._files.settings()
        self._site.policy.require(settings, rules)
        self._order = Order(
            settings=settings, rules=rules, seed=int(call.value("seed"))
        )
        self._home = self._files.household(self._site, first=0)
        self._promise(settings.privacy, releases_of(self._home.traces.clock))
        asked = as_plain(settings), self._order.sends_rows, self._order.seed
        self._heard["hello"] = digest(asked, _fingerprint(self._home))
        traces = self._home.traces
        return Payload(
            told={
                "people": traces.people,
                "regions": len(traces.regions),
                "regions_sha256": regions_sha256(traces.regions),
                "clock": as_plain(traces.clock),
            }
        )

    def _promise(self, wish: PrivacySettings, releases: Releases) -> None:
        """Refuse a promise that is too much, with those of all runs before."""
        if wish.mode != "local":
            return
        most = self._require_site().policy.most_epsilon
        new = Promise.of(self._run, wish, releases)
        admit(self._files.folder / PROMISES, new, most, wish.delta)

    def _count(self, call: Parcel) -> Payload:
        order, home = self._told()
        self._home = Household(home.traces, home.known, int(call.value("first")))
        self._heard["count"] = digest(self._home.first)
        self._division = divide(self._home, order.settings, order.seed)
        counted = tallies.count(self._home, self._division, order.settings)
        return Payload(tallies.pack(counted))

    def _take_states(self, call: Parcel) -> Payload:
        order, home = self._told()
        if not tallies.needs_region_model(order.settings):
            raise SettingsError("these settings have no region model")
        states = call.tensor("states").numpy()
        shape = (1 + order.settings.region.folds, len(home.traces.regions))
        if states.ndim != 4 or states.shape[:2] != shape:
            raise DataError(f"region states of shape {states.shape}")
        raw = raw_state(home, self._require_division(), order.settings, states)
        self._states = states
        self._heard["states"] = digest(tensors={"states": call.tensor("states")})
        moments = StateMoments.of(raw)
        return Payload(
            {
                "total": torch.from_numpy(moments.total),
                "squared": torch.from_numpy(moments.squared),
            },
            {"people": moments.people},
        )

    def _prepare(self, call: Parcel) -> Payload:
        """Make the cohort and, after a new start, go back to the round told."""
        order, home = self._told()
        division = self._require_division()
        around = self._surrounding(call, home)
        policy = self._require_site().policy
        secret = None if policy.known_noise else self._files.noise_key(self._run)
        hidden = order.seed if secret is None else secret
        rng = Streams(hidden).numpy(f"pseudo {home.first}")
        cohort = cohort_of(home, division, order.settings, around, rng)
        plan = PrivacyPlan.of(
            order.settings.privacy,
            order.settings.model,
            releases_of(home.traces.clock),
            len(cohort.pseudo),
        )
        seeds = RunSeeds(order.seed, secret)
        rounds = CohortRounds(
            cohort, order.settings.model, plan, seeds, order.sends_rows
        )
        kept = self._kept(int(call.value("round")), order)
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, kept)
        trail = self._trail(call, seeds, plan, ledger)
        self._record_opening(ledger, plan, around)
        watched = Watched()
        # Whatever a server asks: where tests are promised, no result leaves.
        if policy.validation and order.looks(plan):
            infected = home.known.status[division.held_back] == 1
            watched = Watched(division.held_back, infected)
        memory = order.settings.stopping.score_memory
        self._rounds = SiteRounds(
            self.answering, rounds, ledger, watched, memory, trail
        )
        if kept is not None:
            _put_back(self._rounds, kept)
        return Payload()

    def _trail(
        self, call: Parcel, seeds: RunSeeds, plan: PrivacyPlan, ledger: Ledger
    ) -> Trail:
        """From all that was told so far; a ledger without its notes is refused."""
        self._heard["prepare"] = digest(tensors=call.tensors)
        noted = Noted(self.folder / NOTED)
        released = set(plan.opening()) & set(ledger.releases)
        if plan.mode != "off" and released and not len(noted):
            raise CorruptFileError(
                f"{self.folder / NOTED}: is missing; begin a new run"
            )
        return Trail(noted, digest(self._heard, seeds.noise))

    def _surrounding(self, call: Parcel, home: Household) -> Surrounding:
        order, _ = self._told()
        regions, clock = home.traces.regions, home.traces.clock
        told = tensors_under(dict(call.tensors), "tally/")
        folds = order.settings.region.folds
        tally = tallies.unpack(told, len(regions), clock, folds)
        mobility = cases = scaling = None
        if tally.mobility is not None:
            epsilon = MobilityModelSettings().epsilon
            mobility = tally.mobility.model(regions, epsilon)
        if tally.reported is not None:
            cases = tally.reported.cases
        if "centre" in call.tensors:
            centre, factor = call.tensor("centre"), call.tensor("factor")
            scaling = StateScaling(centre.numpy(), factor.numpy())
        return Surrounding(mobility, cases, self._states, scaling)

    def _kept(self, number: int, order: Order) -> Checkpoint | None:
        if number == 0:
            return None
        return checkpoints.at(self.folder, number, order.origin)

    def _record_opening(
        self, ledger: Ledger, plan: PrivacyPlan, around: Surrounding
    ) -> None:
        order, _ = self._told()
        has_states = around.states is not None
        made = made_in_the_clear(plan, has_states, order.settings.pseudo)
        if self._require_site().policy.validation:
            made += order.looks(plan)
        made.append(in_the_clear(plan, "uploads", order.revealed))
        checkpoints.record_once(ledger, made)

    def _keep(self, call: Parcel) -> Payload:
        """Write the people's embeddings of this round to the site's own disk."""
        order, _ = self._told()
        site = self._require_rounds()
        site.close(call)
        state = EngineState(call.heading.round, _tensors(site), site.ledger.head)
        remembered: dict[str, Any] = {
            "best": site.best_round,
            "trail": site.trail.home,
        }
        tensors = {}
        for name, one in (("best", site.best), ("held", site.held)):
            if one is not None:
                tensors[name] = torch.from_numpy(one)
        made = Checkpoint(state, tensors, remembered)
        checkpoints.save(self.folder, made, order.origin)
        return Payload()

    def _finish(self, call: Parcel) -> Payload:
        """Write the scores of the site's people to its own folder."""
        site = self._require_rounds()
        site.close(call)
        scores = site.best
        if scores is None:
            scores = site.scores(fresh=bool(call.told.get("fresh")))
        text = risks_text(dict(enumerate(scores.tolist())))
        store.replace_text(self.folder / RISKS, text)
        asked = bool(call.told.get("scores"))
        if not asked:
            return Payload()
        if not self._require_site().policy.give_scores:
            raise SettingsError("this site keeps its scores")
        return Payload({"scores": torch.from_numpy(scores)})

    def _told(self) -> tuple[Order, Household]:
        if self._order is None or self._home is None:
            raise DataError("no hello was said")
        return self._order, self._home

    def _require_division(self) -> Division:
        if self._division is None:
            raise DataError("nothing was counted yet")
        return self._division

    def _require_site(self) -> SiteSettings:
        if self._site is None:
            raise DataError("no hello was said")
        return self._site

    def _require_rounds(self) -> SiteRounds:
        if self._rounds is None:
            raise DataError("nothing is prepared")
        return self._rounds


def _tensors(site: SiteRounds) -> dict[str, torch.Tensor]:
    home = site.rounds.home
    kept: dict[str, torch.Tensor] = {}
    if home.rows is not None and home.moments is not None:
        kept |= {
            "home/rows": home.rows,
            "home/first": home.moments.first,
            "home/second": home.moments.second,
        }
    if home.received is not None:
        kept["home/received"] = home.received
    return kept


def _put_back(site: SiteRounds, kept: Checkpoint) -> None:
    tensors = tensors_under(kept.engine.tensors, "home/")
    received, moments = tensors.get("received"), None
    if "rows" in tensors:
        moments = Moments(tensors["first"], tensors["second"])
    site.rounds.home = Home(tensors.get("rows"), moments, received)
    found = {name: one.numpy() for name, one in kept.tensors.items()}
    site.best, site.held = found.get("best"), found.get("held")
    site.best_round = kept.remembered["best"]
    site.trail.home = kept.remembered["trail"]


def _fingerprint(home: Household) -> str:
    """Of the site's own files: noise of one run is for one set of data."""
    traces, known = home.traces, home.known
    held = {
        "by_slot": traces.by_slot,
        "person": known.person,
        "positive": known.positive,
        "slot": known.slot,
    }
    return digest(tensors={name: torch.tensor(one) for name, one in held.items()})
