"""A site's part in a run of Falcon Field, from the first call to its people's risks.

``hello`` (may we?), ``count`` (who was where, how many were tested), ``sweep`` and
``end`` of each run, ``judged`` (losses of held-out people), ``finish``. Receipts are
in the site's own ledger before an answer leaves, and with noise also a digest of all
that it follows from (``sites.files``): a run that is started again gets the same
requests and answers with the same bits, or it is refused.
"""

from dataclasses import dataclass, replace

from epifalcon.errors import DataError
from epifalcon.federation.checkpoints import ledger_of, record_once
from epifalcon.federation.field.home import Counted, FieldHome
from epifalcon.federation.field.messages import (
    End,
    FieldSums,
    Judge,
    Losses,
    Size,
    Sweep,
)
from epifalcon.federation.field.plan import (
    budget_of,
    opening_receipts,
    sweep_receipts,
)
from epifalcon.federation.field.settings import METHOD, FieldTask
from epifalcon.federation.messages import Count, Done, Finish, Record, Scores
from epifalcon.federation.sites.files import PolicyError, SitePolicy, digest
from epifalcon.federation.sites.session import LEDGER, Handler, Order, SiteSession
from epifalcon.mobility.clock import Clock
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Ledger

_MOST_PEOPLE = 2**40


@dataclass(frozen=True, kw_only=True)
class FieldOrder(Order):
    """A run of Falcon Field, as a server asks sites for it."""

    method = METHOD
    settings: FieldTask

    @property
    def mode(self) -> str:
        """``off``, ``sums`` or ``local``."""
        return self.settings.mode

    @property
    def is_private(self) -> bool:
        """Whether noise is added."""
        return self.settings.private

    def require_allowed(self, policy: SitePolicy) -> None:
        """Refuse a task that wants more than a site's policy allows.

        The same lines of ``site.toml`` as for Falcon: ``region_model`` is for
        infections by region. Rows of people never leave.
        """
        task, mode, wish = self.settings, self.mode, self.settings.wishes.privacy
        if mode not in policy.modes:
            raise PolicyError("modes", f"this site does not take part in mode {mode}")
        if task.learns_transmission and mode not in policy.region_model:
            text = f"no infections by region leave this site in mode {mode}"
            raise PolicyError("region_model", text)
        if task.private and wish.delta > policy.delta:
            text = f"delta={wish.delta:g}, at most {policy.delta:g} here"
            raise PolicyError("delta", text)
        if task.private and policy.relation == "replace":
            text = "messages are hidden against none, this site wants 'replace'"
            raise PolicyError("relation", text)

    def squared_mu(self, clock: Clock) -> float | None:
        """Privacy cost for a person of all releases; None without a guarantee."""
        if not self.is_private:
            return None
        task = self.settings
        made = list(opening_receipts(task, clock))
        for number in range(1, 1 + task.inference.sweeps):
            made += sweep_receipts(task, clock, number)
        noised = [one for one in made if isinstance(one, GaussianRelease)]
        return sum(one.squared_mu("person") for one in noised)


@dataclass(frozen=True, eq=False)
class _Working:
    """The state after the count."""

    people: FieldHome
    size: Size
    ledger: Ledger


class FieldSiteRun(SiteSession[FieldOrder]):
    """Answers all calls of one run of Falcon Field."""

    order_type = FieldOrder

    def start(self) -> dict[type[Record], Handler]:
        """Reset the state; return the handlers."""
        self._counted: _Working | None = None
        return {
            Count: self._count,
            Sweep: self._sweep,
            End: self._end,
            Judge: self._judged,
            Finish: self._finish,
        }

    def _count(self, call: Count, _number: int) -> Counted:
        """Who was where and how many were tested, once receipts are written."""
        run, first, people = self.admitted, call.first, call.people or 0
        traces, task = run.home.traces, run.order.settings
        if not 0 <= first <= people - traces.people or people > _MOST_PEOPLE:
            raise DataError(f"{traces.people:,} people from {first} on, of {people}")
        # Noted first: otherwise other numbers, and other folds, could be tried.
        self.note("count", digest(first, people))
        home = replace(run.home, first=first)
        made = FieldHome(home, task, run.order.seed, self.seeds().noise, people)
        require_crowd(run.site.policy, task, made)
        budget = budget_of(task, traces.clock)
        ledger = ledger_of(self.folder / LEDGER, budget, None)
        record_once(ledger, opening_receipts(task, traces.clock))
        size = Size(people, traces.clock, len(traces.regions))
        self._counted = _Working(made, size, ledger)
        return made.count()

    def _sweep(self, call: Sweep, _number: int) -> FieldSums:
        """Carry out one exchange: sums leave once receipts are written."""
        task, working = self.admitted.order.settings, self._working
        people, step = working.people, call.step
        received, options = call.received(working.size, task)
        wanted = call.run(task.folds)
        if options.susceptible and task.rule.contact != "I/S":
            raise DataError("these settings need no susceptible people")
        if options.tally and not task.learns_transmission:
            raise DataError("these settings have no transmission to learn")
        if step > task.inference.sweeps and task.private:
            raise DataError(f"exchange {step} of {task.inference.sweeps}")
        if step == 1:
            people.begin(wanted)
        elif people.run != wanted or step <= people.exchanges:
            raise DataError("an exchange of a run that was not begun here")
        if task.private:
            # Refuse an exchange whose noise was spent upon other values.
            found = digest(self.heard, call.digest)
            self.admitted.noted.require(step, "sweep", found)
            self.heard = found
            working.ledger.record(*sweep_receipts(task, working.size.clock, step))
        people.exchanges = step - 1
        return FieldSums(*people.sweep(received, options))

    def _end(self, call: End, _number: int) -> Done:
        """Take the last state of a run; people keep their risks, nothing leaves."""
        task, working = self.admitted.order.settings, self._working
        received, _ = call.received(working.size, task)
        if working.people.run != call.run(task.folds):
            raise DataError("the end of a run that was not begun here")
        self.heard = digest(self.heard, "end", call.digest)
        working.people.end(received)
        return Done()

    def _judged(self, call: Judge, _number: int) -> Losses:
        """Sums of held-out people's losses; of nobody where the policy says so."""
        run, working = self.admitted, self._working
        task = run.order.settings
        if not task.selects_transmission:
            raise DataError("these settings have no law to choose")
        held_out = call.held_out(task.folds) if run.site.policy.validation else []
        made = working.people.judged(held_out)
        return Losses(made.people, made.total, made.products)

    def _finish(self, call: Finish, _number: int) -> Scores:
        """Write the risks of the site's people to its own folder."""
        return self.finish(self._working.people.risk, call.scores, digest(self.heard))

    @property
    def _working(self) -> _Working:
        if self._counted is None:
            raise DataError("nothing was counted yet")
        return self._counted


def require_crowd(policy: SitePolicy, task: FieldTask, people: FieldHome) -> None:
    """Refuse sums without noise over too few people.

    Runs without a fold reveal, beside those with all, what the fold's tests say.
    """
    if task.private:
        return
    least, crowds = policy.least_in_fold, {"people": people.home.traces.people}
    for part in range(task.folds):
        crowds[f"tested people in fold {part}"] = int((people.fold == part).sum())
    for who, count in crowds.items():
        if count < least:
            text = f"{count} {who}, sums leave of {least} or more"
            raise PolicyError("least_in_fold", text)
