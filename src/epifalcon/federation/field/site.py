"""A site's part in a run of Falcon Field, from the first call to its people's risks.

``hello`` (may we?), ``count`` (who was where, how many were tested), ``sweep`` and
``end`` of each run, ``judged`` (how well laws tell held-out people), ``finish``.
Receipts are in the site's own ledger before an answer leaves, and with a promise
also a digest of all that was told towards it (``sites.trail``): a run that is begun
again is told the same and answers with the same bits, or it is refused.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from epifalcon.errors import DataError
from epifalcon.federation.checkpoints import ledger_of, record_once
from epifalcon.federation.field import receipts
from epifalcon.federation.field.home import FieldHome
from epifalcon.federation.field.judging import Judgement
from epifalcon.federation.field.messages import (
    Size,
    read_run,
    read_told,
    send_counted,
    send_judgement,
    send_sums,
)
from epifalcon.federation.field.plan import FieldPlan
from epifalcon.federation.field.policy import require_allowed, require_crowd
from epifalcon.federation.field.task import METHOD, FieldTask
from epifalcon.federation.plan import RunSeeds
from epifalcon.federation.preparing import Household
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.answering import Answering
from epifalcon.federation.sites.door import LEDGER, Door, told_of
from epifalcon.federation.sites.files import SiteFiles, SiteSettings
from epifalcon.federation.sites.keeping import fingerprint
from epifalcon.federation.sites.promises import Promise
from epifalcon.federation.sites.switchboard import Payload
from epifalcon.federation.sites.trail import Noted, digest
from epifalcon.federation.sites.wire import Parcel
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.settings import as_plain, build

_MOST_PEOPLE = 2**40


@dataclass(frozen=True, eq=False)
class _Admitted:
    """A run that the site takes part in."""

    task: FieldTask
    seed: int
    site: SiteSettings
    home: Household
    noted: Noted


@dataclass(frozen=True, eq=False)
class _Working:
    """What there is after the count."""

    people: FieldHome
    size: Size
    ledger: Ledger


class FieldSiteRun:
    """Answers all calls of one run for the site whose files are given.

    Nothing but ``hello`` is answered before one was accepted, nor after one was
    refused.
    """

    def __init__(self, files: SiteFiles, run: str, site: str) -> None:
        self._door = Door(files, run)
        self.answering = Answering(run, site)
        self._handlers = {
            "hello": self._hello,
            "count": self._count,
            "sweep": self._sweep,
            "end": self._end,
            "judged": self._judged,
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
        self._admitted: _Admitted | None = None
        self._working: _Working | None = None
        self._told = ""
        self.answering.forget()
        for phase, handler in self._handlers.items():
            self.answering.on(phase, handler)

    def _hello(self, call: Parcel) -> Payload:
        """Whether the site takes part, and how many people it has."""
        try:
            admitted = self._admit(call)
        except Exception:
            self._forget()
            raise
        self._admitted = admitted
        self.answering.tells_seconds = not admitted.task.private
        return told_of(admitted.home.traces)

    def _admit(self, call: Parcel) -> _Admitted:
        """The run, if its settings are allowed, paid for, and those of before."""
        if call.value("method") != METHOD:
            raise DataError("a run of another method")
        task = build(FieldTask, call.value("settings"), "settings")
        build(SiteRules, call.value("rules"), "rules")
        seed, site = int(call.value("seed")), self._door.files.settings()
        require_allowed(site.policy, task)
        home = self._door.files.household(site, first=0)
        self._door.hold()
        noted = self._notes(task)
        found = digest(as_plain(task), seed, fingerprint(home))
        noted.refuse_other(0, "hello", found)
        self._promise(site, task, home)
        noted.require(0, "hello", found)
        self._told = found
        return _Admitted(task, seed, site, home, noted)

    def _notes(self, task: FieldTask) -> Noted:
        if self._admitted is not None:
            return self._admitted.noted
        return self._door.notes(kept=task.private)

    def _promise(self, site: SiteSettings, task: FieldTask, home: Household) -> None:
        """Refuse a promise that is too much, with those of all runs before.

        All receipts are added up as they hold of a person, whatever the unit.
        """
        if not task.private:
            return
        wish, clock = task.wishes.privacy, home.traces.clock
        promised = _of_a_person(FieldPlan.of(wish, clock))
        self._door.promise(Promise(self._door.run, promised), site.policy)

    def _count(self, call: Parcel) -> Payload:
        """Who was where and how many were tested, once receipts are written."""
        run = self._require_admitted()
        first, people = call.value("first"), call.value("people")
        if not (isinstance(first, int) and isinstance(people, int)):
            raise DataError("numbers of people are none")
        traces = run.home.traces
        if not 0 <= first <= people - traces.people or people > _MOST_PEOPLE:
            raise DataError(f"{traces.people:,} people from {first} on, of {people}")
        # First noted: else other numbers could be tried, and other folds with them.
        self._note("count", digest(first, people))
        home = replace(run.home, first=first)
        seeds = RunSeeds(run.seed, self._door.secret(run.site.policy))
        made = FieldHome(home, run.task, run.seed, seeds.noise)
        require_crowd(run.site.policy, run.task, made)
        budget = receipts.budget_of(run.task, traces.clock)
        ledger = ledger_of(self._door.folder / LEDGER, budget, None)
        record_once(ledger, receipts.opening(run.task, traces.clock))
        size = Size(people, traces.clock, len(traces.regions))
        self._working = _Working(made, size, ledger)
        told = send_counted(made.count())
        centre = torch.from_numpy(traces.regions.centre_km.astype("float64"))
        return Payload({**told.tensors, "centre_km": torch.nan_to_num(centre, 1e9)})

    def _sweep(self, call: Parcel) -> Payload:
        """One exchange: hear, and send sums once receipts are written."""
        run, working = self._require_admitted(), self._require_working()
        people, task = working.people, run.task
        told, manner = read_told(call, working.size, task)
        wanted, step = read_run(call, task.folds)
        well, tally = _wanted(call, task)
        if step > task.inference.sweeps and task.private:
            raise DataError(f"exchange {step} of {task.inference.sweeps}")
        if step == 1:
            people.begin(wanted)
        elif people.run != wanted or step <= people.exchanges:
            raise DataError("an exchange of a run that was not begun here")
        if task.private:
            self._note_exchange(step, call)
            made = receipts.exchange(task, working.size.clock, step)
            working.ledger.record(*made)
        people.exchanges = step - 1
        return send_sums(people.sweep(told, manner, well=well, tally=tally))

    def _end(self, call: Parcel) -> Payload:
        """The last word of a run; people keep their risks, and nothing leaves."""
        run, working = self._require_admitted(), self._require_working()
        told, manner = read_told(call, working.size, run.task)
        wanted, _ = read_run(call, run.task.folds)
        if working.people.run != wanted:
            raise DataError("the end of a run that was not begun here")
        self._told = digest(self._told, "end", dict(call.told), tensors=call.tensors)
        working.people.end(told, manner)
        return Payload()

    def _judged(self, call: Parcel) -> Payload:
        """Sums of held-out people's losses; of nobody where the policy says so."""
        run, working = self._require_admitted(), self._require_working()
        folds = [int(one) for one in call.value("folds")]
        if run.task.private or len(run.task.wishes.field.region.laws) == 1:
            raise DataError("these settings have no law to choose")
        if not run.site.policy.validation:
            return send_judgement(Judgement.none())
        return send_judgement(working.people.judged(folds))

    def _finish(self, call: Parcel) -> Payload:
        """Write the risks of the site's people to its own folder."""
        run, working = self._require_admitted(), self._require_working()
        risk = working.people.risk
        self._door.write_risks(risk)
        if not call.told.get("scores"):
            return Payload()
        found = digest(self._told)
        return self._door.given(risk, run.site.policy, run.noted, found)

    def _note(self, phase: str, found: str) -> None:
        self._require_admitted().noted.require(0, phase, found)
        self._told = digest(self._told, phase, found)

    def _note_exchange(self, number: int, call: Parcel) -> None:
        """Refuse an exchange whose noise was spent upon other values."""
        found = digest(self._told, dict(call.told), tensors=call.tensors)
        self._require_admitted().noted.require(number, "sweep", found)
        self._told = found

    def _require_admitted(self) -> _Admitted:
        if self._admitted is None:
            raise DataError("no hello was accepted")
        return self._admitted

    def _require_working(self) -> _Working:
        if self._working is None:
            raise DataError("nothing was counted yet")
        return self._working


def _of_a_person(plan: FieldPlan) -> float:
    """What all releases of a run cost a person, in mu^2."""
    made = list(plan.opening())
    for number in range(1, 1 + plan.settings.sweeps):
        made += plan.exchange(number)
    noised = [one for one in made if isinstance(one, GaussianRelease)]
    return sum(one.squared_mu("person") for one in noised)


def _wanted(call: Parcel, task: FieldTask) -> tuple[bool, bool]:
    """Whether the susceptible, and infections by region, are added up too."""
    wanted: list[Any] = [call.value(name) for name in ("well", "tally")]
    well, tally = (one is True for one in wanted)
    if well and task.rule.contact != "I/S":
        raise DataError("nobody asked for susceptible people")
    if tally and not task.learns_transmission:
        raise DataError("these settings have no transmission to learn")
    return well, tally
