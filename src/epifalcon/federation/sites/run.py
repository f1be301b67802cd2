"""A site's part in a run of Falcon, from the first call to the scores of its people.

Before the rounds: ``hello`` (may we?), ``count`` (tallies), ``states`` (sums of region
states), ``prepare`` (make the cohort). Then the rounds, ``keep`` for checkpoints, and
``finish``. Everything stays in the site's own folder, so a site that is restarted
finds its people's embeddings. Every request before the rounds is noted before its
answer leaves, and must be the same when the run is resumed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import checkpoints, tallies
from epifalcon.federation.messages import (
    Count,
    Counted,
    Done,
    Finish,
    Keep,
    Prepare,
    Record,
    Scores,
    States,
    StateSums,
)
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.preparing import (
    Division,
    Household,
    StateMoments,
    StateScaling,
    Surrounding,
    cohort_of,
    divide,
    hypergraph,
    in_the_clear,
    raw_state,
    unprotected_receipts,
)
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.sites.files import SitePolicy
from epifalcon.federation.sites.promises import Promise
from epifalcon.federation.sites.rounds import SiteRounds, Watched
from epifalcon.federation.sites.session import (
    LEDGER,
    Admitted,
    Handler,
    Order,
    SiteSession,
)
from epifalcon.federation.sites.trail import Trail, digest
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.markov import MobilityModelSettings
from epifalcon.privacy.events import UnprotectedRelease

_MOST_PEOPLE = 2**40


@dataclass(frozen=True, kw_only=True)
class FalconOrder(Order):
    """A run of Falcon, as a server asks sites for it."""

    method = "falcon"
    settings: PredictionSettings

    def __post_init__(self) -> None:
        require_federable(self.settings)

    @property
    def mode(self) -> str:
        """``off``, ``paper`` or ``local``."""
        return self.settings.privacy.mode

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return self.settings.privacy.is_private

    @property
    def hides_tests(self) -> bool:
        """Whether test results are protected, so that none may leave."""
        return not self.settings.privacy.reveals_validation

    def require_allowed(self, policy: SitePolicy) -> None:
        """Refuse a run that wants more than a site's policy allows."""
        policy.require(self.settings, self.rules)

    def squared_mu(self, clock: Clock) -> float | None:
        """Privacy cost for a person of the whole run; None without a guarantee."""
        if self.mode != "local":
            return None
        wish = self.settings.privacy
        return Promise.of("", wish, releases_of(clock)).squared_mu

    def plan(self, clock: Clock) -> PrivacyPlan:
        """What is noised, and how."""
        return PrivacyPlan.for_run(self.settings, clock)

    def unprotected(
        self, plan: PrivacyPlan, validation: bool
    ) -> list[UnprotectedRelease]:
        """Receipts of what leaves before the rounds and beside them, without noise."""
        made = unprotected_receipts(plan, self.settings, validation=validation)
        revealed = "sums over a site's people at each place, and which places it claims"
        if self.rules.sends_rows:
            revealed = "which of a site's people sent each row, by number"
        return [*made, in_the_clear(plan, "uploads", revealed)]


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


class SiteRun(SiteSession[FalconOrder]):
    """Answers all calls of one run of Falcon."""

    order_type = FalconOrder

    def start(self) -> dict[type[Record], Handler]:
        """Reset the state; return the handlers before the rounds."""
        self._home: Household | None = None
        self._division: Division | None = None
        self._states: NDArray[np.float32] | None = None
        self._rounds: SiteRounds | None = None
        return {
            Count: self._count,
            States: self._take_states,
            Prepare: self._prepare,
            Keep: self._keep,
            Finish: self._finish,
        }

    @property
    def rounds(self) -> SiteRounds:
        """The state of the rounds."""
        if self._rounds is None:
            raise DataError("nothing is prepared")
        return self._rounds

    def _count(self, call: Count, number: int) -> Counted:
        """Count what is summed up over sites, once its receipts are written."""
        del number
        run, first = self.admitted, call.first
        if not 0 <= first < _MOST_PEOPLE:
            raise DataError("the number of the first person is out of range")
        order, settings = run.order, run.order.settings
        home = Household(run.home.traces, run.home.known, first)
        division = divide(home, settings, order.seed)
        # Noted first: otherwise other numbers, and other folds, could be tried.
        self.note("count", digest(first))
        policy, plan = run.site.policy, order.plan(home.traces.clock)
        policy.require_crowd(home.traces.people, division, settings)
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, None)
        checkpoints.record_once(ledger, order.unprotected(plan, policy.validation))
        self._home, self._division = home, division
        return Counted(tallies.pack(tallies.count(home, division, settings)))

    def _take_states(self, call: States, number: int) -> StateSums:
        """Take region states; sum them up over the site's people."""
        del number
        states, settings = call.states, self.admitted.order.settings
        home, division = self._counted
        traces = home.traces
        if not settings.uses_region_model:
            raise SettingsError("these settings have no region model")
        shape = (1 + settings.region.folds, len(traces.regions), traces.clock.days)
        if states.ndim != 4 or states.shape[:3] != shape:
            raise DataError(f"region states of shape {states.shape}")
        if not np.isfinite(states).all():
            raise DataError("region states hold NaN or infinity")
        self.note("states", digest(arrays={"states": states}))
        self._states = states
        incidence = hypergraph(traces, settings)
        moments = StateMoments.of(raw_state(home, division, incidence, states))
        return StateSums(moments.people, moments.total, moments.squared)

    def _prepare(self, call: Prepare, number: int) -> Done:
        """Make the cohort and, after a restart, go back to the given round."""
        del number
        run, (home, division) = self.admitted, self._counted
        order, policy = run.order, run.site.policy
        plan = order.plan(home.traces.clock)
        around = _surrounding(call, run, self._states)
        scaling = {"centre": call.centre, "factor": call.factor}
        some = {name: one for name, one in scaling.items() if one is not None}
        self.note("prepare", digest(tensors=call.tally, arrays=some))
        seeds = self.seeds()
        cohort = cohort_of(
            home, division, order.settings, around, seeds.pseudo(home.first)
        )
        found = None
        if call.round:
            found = checkpoints.at(self.folder, call.round, order.origin)
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, found)
        trail = Trail(run.noted, digest(self.heard, seeds.noise))
        if order.is_private:
            trail.require_notes_of(ledger.releases)
        watched = Watched()
        # Whatever a server asks: where tests are protected, no result leaves.
        if policy.validation and not order.hides_tests:
            infected = home.known.status[division.held_back] == 1
            watched = Watched(division.held_back, infected)
        self._rounds = SiteRounds(
            cohort,
            order.settings.model,
            plan,
            seeds,
            ledger,
            sends_rows=order.rules.sends_rows,
            watched=watched,
            score_memory=order.settings.stopping.score_memory,
            trail=trail,
        )
        if found is not None:
            self._rounds.restore(found)
        self.handlers |= self._rounds.handlers
        return Done()

    def _keep(self, call: Keep, number: int) -> Done:
        """Write the people's embeddings of this round to the site's own disk."""
        rounds = self.rounds
        rounds.close(call)
        origin = self.admitted.order.origin
        checkpoints.save(self.folder, rounds.checkpoint(number), origin)
        return Done()

    def _finish(self, call: Finish, number: int) -> Scores:
        """Write the scores of the site's people to its own folder."""
        del number
        rounds = self.rounds
        rounds.close(call)
        scores = rounds.best
        if scores is None:
            scores = rounds.scores(fresh=call.fresh)
        found = digest(rounds.best_round, tensors=call.parameters)
        return self.finish(scores, call.scores, found)

    @property
    def _counted(self) -> tuple[Household, Division]:
        if self._home is None or self._division is None:
            raise DataError("nothing was counted yet")
        return self._home, self._division


def _surrounding(
    call: Prepare, run: Admitted[FalconOrder], states: NDArray[np.float32] | None
) -> Surrounding:
    """What the site learns of the city: all that the settings need, and no more."""
    settings, traces = run.order.settings, run.home.traces
    tally = tallies.unpack(call.tally, len(traces.regions), traces.clock, 0)
    tallies.require_public(tally, settings)
    mobility = cases = scaling = None
    if tally.mobility is not None:
        epsilon = MobilityModelSettings().epsilon
        mobility = tally.mobility.model(traces.regions, epsilon)
    if tally.reported is not None:
        cases = tally.reported.cases
    if settings.uses_region_model:
        if states is None or call.centre is None or call.factor is None:
            raise DataError("region states or their scaling are missing")
        scaling = StateScaling(call.centre, call.factor)
    return Surrounding(mobility, cases, states, scaling)
