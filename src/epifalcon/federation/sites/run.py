"""A site's part in one run, from the first call to the scores of its people.

The conversation before the rounds: ``hello`` (may we?), ``count`` (what adds up),
``states`` (how region states spread here), ``prepare`` (make the cohort). Then the
rounds, ``keep`` for checkpoints, and ``finish``. Everything stays in the site's own
folder, so a site that is started again finds its people's embeddings.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from epifalcon import store
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import checkpoints
from epifalcon.federation.checkpoints import Checkpoint
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
from epifalcon.federation.sites.door import LEDGER, Door, told_of
from epifalcon.federation.sites.files import SiteFiles, SitePolicy, SiteSettings
from epifalcon.federation.sites.keeping import fingerprint, kept, put_back
from epifalcon.federation.sites.promises import Promise
from epifalcon.federation.sites.rounds import CohortRounds
from epifalcon.federation.sites.switchboard import Payload
from epifalcon.federation.sites.trail import Noted, Trail, digest
from epifalcon.federation.sites.wire import Parcel
from epifalcon.mobility.markov import MobilityModelSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.events import Releases, UnprotectedRelease
from epifalcon.settings import as_plain, build
from epifalcon.types import Plain

_MOST_PEOPLE = 2**40


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
    def told(self) -> Plain:
        """What a site is asked with ``hello``."""
        return {
            "settings": as_plain(self.settings),
            "rules": as_plain(self.rules),
            "seed": self.seed,
        }

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
    if settings.stopping.selected_on == "test":
        raise SettingsError("stopping.selected_on='test': no site knows hidden results")
    if not settings.privacy.is_published or not settings.region.is_published:
        raise SettingsError(
            "settings of the authors' program (privacy.clipped, privacy.upload_noise, "
            "privacy.gradient_noise, region.network.kind, region.scale_states) run in "
            "one process only: the program is central"
        )
    if tallies.needs_pseudo_traces(settings) and settings.pseudo.people_share != 1:
        raise SettingsError(
            f"pseudo.people_share={settings.pseudo.people_share}: must be 1 over "
            "sites, which fit the mobility model on all their people; leave it out, "
            "or use one process (epifalcon run)"
        )


@dataclass(frozen=True, eq=False)
class Admitted:
    """A run that the site takes part in."""

    order: Order
    site: SiteSettings
    home: Household
    noted: Noted

    @property
    def plan(self) -> PrivacyPlan:
        """What is promised."""
        settings = self.order.settings
        copies = settings.pseudo.pseudo_copies
        return PrivacyPlan.of(
            settings.privacy,
            settings.model,
            releases_of(self.home.traces.clock),
            copies if tallies.needs_pseudo_traces(settings) else 0,
        )


class SiteRun:
    """Answers all calls of one run for the site whose files are given.

    Nothing but ``hello`` is answered before one was accepted, nor after one was
    refused. Whatever was told once must be told the same again: each thing that
    the site is told before the rounds is noted before the answer leaves.
    """

    def __init__(self, files: SiteFiles, run: str, site: str) -> None:
        self._door = Door(files, run)
        self.answering = Answering(run, site)
        self._handlers = {
            "hello": self._hello,
            "count": self._count,
            "states": self._take_states,
            "prepare": self._prepare,
            "keep": self._keep,
            "finish": self._finish,
        }
        self._forget()

    def answer(self, call: bytes) -> bytes:
        """The answer to a call; never raises."""
        return self.answering.answer(call)

    def close(self) -> None:
        """Let another process take the run up."""
        self._door.close()

    def _forget(self) -> None:
        """Be as before the first call, but for what is noted."""
        self._admitted: Admitted | None = None
        self._division: Division | None = None
        self._states: NDArray[np.float32] | None = None
        self._rounds: SiteRounds | None = None
        self._heard: dict[str, str] = {}
        self.answering.forget()
        for phase, handler in self._handlers.items():
            self.answering.on(phase, handler)

    def _hello(self, call: Parcel) -> Payload:
        """Whether the site takes part, and how many people it has."""
        try:
            admitted, found = self._admit(call)
        except Exception:
            self._forget()
            raise
        if self._admitted is None:
            self._admitted = admitted
            self._heard["hello"] = found
        self.answering.tells_seconds = admitted.plan.mode != "local"
        return told_of(admitted.home.traces)

    def _admit(self, call: Parcel) -> tuple[Admitted, str]:
        """The run, if its settings are allowed, paid for, and those of before."""
        settings = build(PredictionSettings, call.value("settings"), "settings")
        rules = build(SiteRules, call.value("rules"), "rules")
        require_federable(settings)
        site = self._door.files.settings()
        site.policy.require(settings, rules)
        order = Order(settings=settings, rules=rules, seed=int(call.value("seed")))
        home = self._door.files.household(site, first=0)
        self._door.hold()
        noted = self._notes(settings.privacy)
        asked = as_plain(settings), order.sends_rows, order.seed
        found = digest(asked, fingerprint(home))
        noted.refuse_other(0, "hello", found)
        self._promise(site.policy, settings.privacy, releases_of(home.traces.clock))
        noted.require(0, "hello", found)
        return Admitted(order, site, home, noted), found

    def _notes(self, wish: PrivacySettings) -> Noted:
        if self._admitted is not None:
            return self._admitted.noted
        return self._door.notes(kept=wish.mode != "off")

    def _promise(
        self, policy: SitePolicy, wish: PrivacySettings, releases: Releases
    ) -> None:
        """Refuse a promise that is too much, with those of all runs before."""
        if wish.mode == "local":
            self._door.promise(Promise.of(self._door.run, wish, releases), policy)

    def _count(self, call: Parcel) -> Payload:
        run = self._require_admitted()
        settings, first = run.order.settings, call.value("first")
        if not isinstance(first, int) or not 0 <= first < _MOST_PEOPLE:
            raise DataError("the number of the first person is none")
        home = Household(run.home.traces, run.home.known, first)
        division = divide(home, settings, run.order.seed)
        # First noted: else other numbers could be tried, and other folds with them.
        self._note("count", digest(first))
        run.site.policy.require_crowd(home.traces.people, division, settings)
        plan = run.plan
        ledger = checkpoints.ledger_of(self._door.folder / LEDGER, plan.budget, None)
        checkpoints.record_once(ledger, _opening(run, plan))
        self._admitted, self._division = replace(run, home=home), division
        return Payload(tallies.pack(tallies.count(home, division, settings)))

    def _take_states(self, call: Parcel) -> Payload:
        run, told = self._require_admitted(), call.tensor("states")
        settings, traces = run.order.settings, run.home.traces
        if not tallies.needs_region_model(settings):
            raise SettingsError("these settings have no region model")
        shape = (1 + settings.region.folds, len(traces.regions), traces.clock.days)
        if told.dtype != torch.float32 or told.ndim != 4 or told.shape[:3] != shape:
            raise DataError(f"region states of {told.dtype} and {tuple(told.shape)}")
        if not bool(torch.isfinite(told).all()):
            raise DataError("region states hold NaN or infinity")
        division = self._require_division()
        self._note("states", digest(tensors={"states": told}))
        self._states = told.numpy()
        raw = raw_state(run.home, division, settings, self._states)
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
        run, division = self._require_admitted(), self._require_division()
        order, home, policy, plan = run.order, run.home, run.site.policy, run.plan
        around = _surrounding(call, run, self._states)
        self._note("prepare", digest(tensors=call.tensors))
        seeds = RunSeeds(order.seed, self._door.secret(policy))
        rng = seeds.pseudo(home.first)
        cohort = cohort_of(home, division, order.settings, around, rng)
        rounds = CohortRounds(
            cohort, order.settings.model, plan, seeds, order.sends_rows
        )
        found = self._found(int(call.value("round")), order)
        ledger = checkpoints.ledger_of(self._door.folder / LEDGER, plan.budget, found)
        trail = Trail(run.noted, digest(self._heard, seeds.noise))
        if plan.mode != "off":
            trail.require_notes_of(ledger.releases)
        watched = Watched()
        # Whatever a server asks: where tests are promised, no result leaves.
        if policy.validation and order.looks(plan):
            infected = home.known.status[division.held_back] == 1
            watched = Watched(division.held_back, infected)
        memory = order.settings.stopping.score_memory
        self._rounds = SiteRounds(
            self.answering, rounds, ledger, watched, memory, trail
        )
        if found is not None:
            put_back(self._rounds, found)
        return Payload()

    def _found(self, number: int, order: Order) -> Checkpoint | None:
        if number == 0:
            return None
        return checkpoints.at(self._door.folder, number, order.origin)

    def _keep(self, call: Parcel) -> Payload:
        """Write the people's embeddings of this round to the site's own disk."""
        order, site = self._require_admitted().order, self._require_rounds()
        site.close(call)
        checkpoints.save(
            self._door.folder, kept(site, call.heading.round), order.origin
        )
        return Payload()

    def _finish(self, call: Parcel) -> Payload:
        """Write the scores of the site's people to its own folder."""
        run, site = self._require_admitted(), self._require_rounds()
        asked = bool(call.told.get("scores"))
        site.close(call)
        scores = site.best
        if scores is None:
            scores = site.scores(fresh=bool(call.told.get("fresh")))
        self._door.write_risks(scores)
        if not asked:
            return Payload()
        told = tensors_under(dict(call.tensors), "parameter/")
        found = digest(site.best_round, tensors=told)
        return self._door.given(scores, run.site.policy, run.noted, found)

    def _note(self, phase: str, found: str) -> None:
        self._require_admitted().noted.require(0, phase, found)
        self._heard[phase] = found

    def _require_admitted(self) -> Admitted:
        if self._admitted is None:
            raise DataError("no hello was accepted")
        return self._admitted

    def _require_division(self) -> Division:
        if self._division is None:
            raise DataError("nothing was counted yet")
        return self._division

    def _require_rounds(self) -> SiteRounds:
        if self._rounds is None:
            raise DataError("nothing is prepared")
        return self._rounds


def _opening(run: Admitted, plan: PrivacyPlan) -> list[UnprotectedRelease]:
    """Receipts of what leaves before the rounds and beside them, without noise."""
    order = run.order
    has_states = tallies.needs_region_model(order.settings)
    follows_cases = tallies.needs_reported(order.settings)
    made = made_in_the_clear(plan, has_states, follows_cases)
    if run.site.policy.validation:
        made += order.looks(plan)
    return [*made, in_the_clear(plan, "uploads", order.revealed)]


def _surrounding(
    call: Parcel, run: Admitted, states: NDArray[np.float32] | None
) -> Surrounding:
    """What the site is told of the city: all that the settings need, and no more."""
    settings, traces = run.order.settings, run.home.traces
    told = tensors_under(dict(call.tensors), "tally/")
    tally = tallies.unpack(told, len(traces.regions), traces.clock, 0)
    tallies.require_public(tally, settings)
    mobility = cases = scaling = None
    if tally.mobility is not None:
        epsilon = MobilityModelSettings().epsilon
        mobility = tally.mobility.model(traces.regions, epsilon)
    if tally.reported is not None:
        cases = tally.reported.cases
    if tallies.needs_region_model(settings):
        centre, factor = call.tensor("centre"), call.tensor("factor")
        scaling = StateScaling(centre.numpy(), factor.numpy())
        if states is None:
            raise DataError("no region states were told")
    return Surrounding(mobility, cases, states, scaling)
