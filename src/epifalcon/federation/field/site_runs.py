"""Falcon Field over sites: messages, the site side and the server side of a run.

Requests: ``hello`` (invitation), ``count`` (people per place, tested people),
``sweep`` and ``end`` of each run, ``losses`` (of held-out people), ``finish``.

All messages are validated. A site refuses values that no honest server sends, and a
server refuses values that no people can send. If a site does not answer, or gives an
invalid answer, its last message in the same run is used. The run ends if fewer than
the minimum number of sites answer.

A site records receipts in its ledger before it answers, and with noise also a digest
of all inputs (``site_files``). An interrupted run restarts from its first exchange: the
same requests give identical answers and are not counted twice; others are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from time import perf_counter
from typing import Any, Self, TypeVar

import numpy as np
import torch

from epifalcon.belief_propagation import calibration, seir_chain
from epifalcon.belief_propagation.inference import add_sums
from epifalcon.belief_propagation.seir_chain import (
    MOST_LOG,
    EdgeMessages,
    Sums,
    SweepOptions,
)
from epifalcon.belief_propagation.settings import TransmissionModel
from epifalcon.checks import present, shaped
from epifalcon.epidemic.risk_table import Risks
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation.checkpoints import ledger_of, record_once
from epifalcon.federation.field.inference_schedule import (
    InferenceSchedule,
    ServerResult,
)
from epifalcon.federation.field.privacy_plan import (
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
    opening_receipts,
)
from epifalcon.federation.field.settings import METHOD, FieldTask
from epifalcon.federation.field.site_people import (
    FieldRun,
    FieldSite,
    HeldOutFold,
    SiteCounts,
    Size,
)
from epifalcon.federation.messages import (
    Count,
    Done,
    Finish,
    MessageHeader,
    Record,
    ScoresReply,
)
from epifalcon.federation.network.site_calls import (
    ServerRun,
    SharedData,
    SiteRoster,
    given,
)
from epifalcon.federation.network.site_files import RunRequirements, digest
from epifalcon.federation.network.site_session import (
    LEDGER,
    Handler,
    RunRequest,
    SiteSession,
)
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.models.tensor_files import write_tensors
from epifalcon.privacy.events import GaussianRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress
from epifalcon.types import Floats

FIELD = "field.safetensors"
R = TypeVar("R", bound=Record)
T = TypeVar("T")
_MOST_PEOPLE = 2**40
_ROOM = 9.0
"""A standard normal exceeds this absolute value once in 10^18 draws."""
_ROUNDING = 1e-6
_MOST_LOSS = 14.0
_MOST_SEEMING = 1e12
_MOST_CELLS = 3 * 10**7
"""Most slots times regions: the messages of a sweep would have 1 GB."""


class _Exchange(Record):
    """Server to site: fields of ``EdgeMessages`` and ``SweepOptions``, and the run."""

    edges: Floats
    hazard: Floats
    geometric_ratio: Floats
    testing: Floats
    evidence_step: Floats
    own: float
    infectious_step: float
    bound: float
    step: int
    run: FieldRun
    susceptible: bool
    tally: bool

    @classmethod
    def of(
        cls, received: EdgeMessages, options: SweepOptions, run: FieldRun, step: int
    ) -> Self:
        """Build the request; ``step`` is the number of the exchange in its run."""
        given: dict[str, Any] = {**received._asdict(), **options._asdict()}
        given |= {"run": run, "step": step}
        del given["day"]
        if received.hazard.size:
            given["edges"] = np.zeros((0, 0, 4))
        return cls(**given)

    @property
    def digest(self) -> str:
        """Digest of all fields of the request."""
        packet = self.encode(MessageHeader("", "", 0, ""))
        return digest(dict(packet.values), tensors=packet.tensors)

    def received(
        self, size: Size, task: FieldTask
    ) -> tuple[EdgeMessages, SweepOptions]:
        """Decode messages and options; refuse values that no honest server sends."""
        slots, sweeps = size.clock.slots, self.phase == Sweep.phase
        first = self.step == 1 and self.run.start == "cold" and sweeps
        if (self.hazard.size > 0) != first:
            raise DataError("hazard must be sent in the first exchange of a run only")
        _within("hazard", self.hazard, (slots,) if first else (0,), 0.0, MOST_LOG)
        _within("evidence_step", self.evidence_step, (slots,), 0.0, 1.0)
        _within("geometric_ratio", self.geometric_ratio, size.by_day, 0.0, 1.0)
        rates = 0 if task.tests_are_random else size.clock.days + 1
        _within("testing", self.testing, (rates,), 0.0, 0.9)
        if self.bound != (task.inference.evidence_bound if sweeps else 0.0):
            raise DataError(f"bound={self.bound:g} is not that of the settings")
        for name in ("own", "infectious_step"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name}={getattr(self, name):g} must be from 0 to 1")
        edges = np.zeros((*size.by_slot, 4)) if first else self._edges(size, task)
        day = (np.arange(slots) // size.clock.slots_per_day).astype(np.int32)
        options = SweepOptions(*(getattr(self, name) for name in SweepOptions._fields))
        ratio = self.geometric_ratio
        received = EdgeMessages(edges, self.hazard, day, self.own, ratio, self.testing)
        return received, options

    def _edges(self, size: Size, task: FieldTask) -> Floats:
        # With noise, the count at a place may exceed the number of people.
        people = _MOST_SEEMING if task.private else size.people + _ROUNDING
        most = people * max(task.inference.evidence_bound, 1.0)
        edges = _within("edges", self.edges, (*size.by_slot, 4), -people, most)
        chance = edges[..., seir_chain.CHANCE]
        if (chance < 0).any() or (chance >= 1).any():
            raise DataError("chances of infection must be at least 0 and less than 1")
        if (edges[..., [seir_chain.OTHERS, seir_chain.INFECTIOUS]] < 0).any():
            raise DataError("numbers of people must not be negative")
        return edges


class Sweep(_Exchange):
    """Server to site: the edge messages of one sweep. Answer: FieldSums."""

    phase = "sweep"


class EndOfRun(_Exchange):
    """Server to site: the last edge messages of a run. Answer: Done."""

    phase = "end"


class LossesRequest(Record):
    """Server to site: sum the losses of held-out people under each model."""

    phase = "losses"
    held_out: tuple[HeldOutFold, ...]
    models: tuple[TransmissionModel, ...]


class FieldSums(Record):
    """Site to server: sums over its people (``seir_chain.Sums``)."""

    infectious: Floats
    evidence: Floats
    susceptible: Floats
    tally: Floats
    testing: Floats


class LossesReply(Record, calibration.ModelLosses):
    """Site to server: losses of held-out people."""


class FieldAnswers:
    """Validation of the answers of one site."""

    def __init__(self, task: FieldTask, size: Size, people: int) -> None:
        """Set the limits for a site with ``people`` of all ``size.people`` people."""
        self._task, self._size, self.people = task, size, people
        self._plan = FieldPlan(task.settings.privacy, size.clock)
        self._crowd = np.zeros((0, 0))
        self._noises = np.zeros((0, 0))

    def counts(self, answer: SiteCounts) -> SiteCounts:
        """Return the counts; refuse values impossible for the site's people."""
        if self._task.private:
            return self._noised_counts(answer)
        people, crowd, tests = self.people, answer.crowd, answer.tests
        _within("crowd", crowd, self._size.by_slot, 0.0, people, whole=True)
        shape = (max(self._task.folds, 1), 2)
        _within("tests", tests, shape, 0.0, people, whole=True)
        _within("dated", answer.dated, (1,), 0.0, people * self._size.clock.slots)
        _within("noises", answer.noises, (0, 0))
        if (crowd.sum(axis=1) != people).any():
            raise DataError(f"counts of each slot must add up to {people:,} people")
        if (tests[:, 1] > tests[:, 0]).any() or tests[:, 0].sum() > people:
            raise DataError("counts of tested or positive people are too large")
        self._crowd = crowd
        return answer

    def _noised_counts(self, answer: SiteCounts) -> SiteCounts:
        plan, people, edges = self._plan, self.people, 1 + self._size.regions
        shape = (plan.clock.slots // plan.length, edges)
        _within("noises", answer.noises, shape, 0.0, people, whole=True)
        _within("dated", answer.dated, (0,))
        room = _ROOM * plan.sigma(TESTS) * np.sqrt(people)
        _within("tests", answer.tests, (1, 2), -room, people + room)
        if self._task.is_local:
            _within("crowd", answer.crowd, (0, 0))
        else:
            self._require_cells("crowd", answer.crowd, PRESENCE, (1, edges))
            if (answer.noises[:, 1:] != plan.noises).any():
                raise DataError(f"noises must be {plan.noises} for each sum of a site")
        self._noises = answer.noises
        return answer

    def sums(self, answer: FieldSums, options: SweepOptions) -> Sums:
        """Return the sums; refuse values impossible for the site's counts."""
        if self._task.private:
            shape = self._noises.shape
            self._require_cells("infectious", answer.infectious, INFECTIOUS, shape)
            return Sums(answer.infectious)
        self._require_of_present("infectious", answer.infectious, 0.0, 1.0)
        bound = self._task.inference.evidence_bound
        self._require_of_present("evidence", answer.evidence, -1.0, bound)
        sums = Sums(answer.infectious, answer.evidence)
        if options.susceptible:
            self._require_of_present("susceptible", answer.susceptible, 0.0, 1.0)
            sums = sums._replace(susceptible=answer.susceptible)
        if options.tally:
            most = self.people * self._size.clock.slots_per_day * MOST_LOG
            _within("tally", answer.tally, (2, *self._size.by_day), 0.0, most)
            sums = sums._replace(tally=answer.tally)
        if not self._task.tests_are_random:
            shape = (4, self._size.clock.days)
            _within("testing", answer.testing, shape, 0.0, float(self.people))
            sums = sums._replace(testing=answer.testing)
        return sums

    def losses(self, answer: LossesReply, models: int) -> calibration.ModelLosses:
        """Return the losses; refuse values impossible for the number of people."""
        if not 0 <= answer.people <= self.people:
            raise DataError(f"people={answer.people} must be from 0 to {self.people}")
        highest = _MOST_LOSS
        if not self._task.tests_are_random:
            highest *= 1 + self._size.clock.days
        most, shape = answer.people * highest, (models, models)
        _within("total", answer.total, shape[:1], 0.0, most)
        _within("products", answer.products, shape, 0.0, most * highest)
        return answer

    def _require_cells(
        self, name: str, given: Floats, channel: str, shape: tuple[int, ...]
    ) -> None:
        """Require noised sums within the range of clipped sums plus noise."""
        plan = self._plan
        # Largest contribution of a person, or of its protected unit, to a cell.
        most = max(plan.settings.bound, float(plan.length), plan.clock.slots_per_day)
        number = 1 if channel == INFECTIOUS else 0
        sigma = max(plan.sigma(channel, one) for one in (number, number + 1))
        noises = self.people if self._task.is_local else plan.noises
        room = most * (self.people + _ROOM * sigma * np.sqrt(noises))
        if (np.abs(_within(name, given, shape)) > room).any():
            raise DataError(f"{name} exceeds {room:.4g}, the range of the plan's noise")
        if given[:, 0].any():
            raise DataError(f"{name} must be 0 for people not observed")

    def _require_of_present(
        self, name: str, given: Floats, low: float, high: float
    ) -> None:
        _within(name, given, self._size.by_slot)
        least, most = low * self._crowd - _ROUNDING, high * self._crowd + _ROUNDING
        if ((given < least) | (given > most)).any():
            raise DataError(f"{name} is impossible for the people present")


def _within(
    name: str,
    found: Floats,
    shape: tuple[int, ...],
    low: float = -np.inf,
    high: float = np.inf,
    *,
    whole: bool = False,
) -> Floats:
    """Return ``found``; require its shape and values from ``low`` to ``high``."""
    shaped(shape, **{name: found})
    if not np.isfinite(found).all():
        raise DataError(f"{name} holds NaN or infinity")
    if ((found < low) | (found > high)).any():
        raise DataError(f"{name} holds a number outside {low:g} to {high:g}")
    if whole and (found != np.rint(found)).any():
        raise DataError(f"{name} holds a count that is not a whole number")
    return found


@dataclass(frozen=True, kw_only=True)
class FieldRunRequest(RunRequest):
    """Task, rules and seed of a Falcon Field run, as sent to all sites."""

    method = METHOD
    settings: FieldTask

    def __post_init__(self) -> None:
        if self.settings.mode == "sealed":
            raise SettingsError(
                "field_privacy.mode='sealed' is not possible over sites yet: choose "
                "'sums' or 'local'"
            )

    @property
    def requirements(self) -> RunRequirements:
        """Requirements of the run, which a site compares with its policy."""
        task = self.settings
        delta = task.settings.privacy.delta if task.private else None
        regions = task.learns_transmission
        return RunRequirements(mode=task.mode, regions=regions, delta=delta)

    def squared_mu(self, clock: Clock) -> float | None:
        """Return mu^2 per person of the whole run; None without a guarantee."""
        if not self.is_private:
            return None
        task = self.settings
        plan = FieldPlan(task.settings.privacy, clock)
        receipts = [*opening_receipts(task, clock)]
        for number in range(1, 1 + task.inference.sweeps):
            receipts += plan.exchange(number)
        noised = [one for one in receipts if isinstance(one, GaussianRelease)]
        return sum(one.squared_mu("person") for one in noised)


class FieldSiteRun(SiteSession[FieldRunRequest]):
    """One Falcon Field run at a site: the handlers of all its requests."""

    request_type = FieldRunRequest

    def start(self) -> dict[type[Record], Handler]:
        """Reset the state; return the handlers by request type."""
        self._counted: FieldSite | None = None
        self._ledger: Ledger | None = None
        return {
            Count: self._count,
            Sweep: self._sweep,
            EndOfRun: self._end,
            LossesRequest: self._losses,
            Finish: self._finish,
        }

    def _count(self, call: Count, _number: int) -> SiteCounts:
        """Record the receipts; return counts per place and of tested people."""
        run, first, people = self.admitted, call.first, call.people or 0
        traces, task = run.data.traces, run.request.settings
        own = traces.people
        if not 0 <= first <= people - own or people > _MOST_PEOPLE:
            raise DataError(f"first={first} is out of range: {own} of {people} people")
        # Recorded first, so that no other numbers, and thus folds, can be requested.
        self.record_request("count", digest(first, people))
        data = replace(run.data, first=first)
        made = FieldSite(data, task, run.request.seed, self.seeds().noise, people)
        if not task.private:
            run.site.policy.require_group_sizes(group_sizes(made))
        ledger = ledger_of(self.folder / LEDGER, made.plan.budget, None)
        record_once(ledger, opening_receipts(task, traces.clock))
        self._counted, self._ledger = made, ledger
        return made.count()

    def _sweep(self, call: Sweep, _number: int) -> FieldSums:
        """Record the receipts of one sweep, run it and return the sums."""
        people, step = self._people, call.step
        task = people.task
        received, options = call.received(people.size, task)
        if options.susceptible and task.rule.contact != "I/S":
            raise DataError("susceptible is not needed by these settings")
        if options.tally and not task.learns_transmission:
            raise DataError("tally is not needed by these settings")
        if step > task.inference.sweeps and task.private:
            raise DataError(f"step={step} exceeds {task.inference.sweeps} sweeps")
        if step == 1:
            people.begin(call.run)
        elif people.run != call.run or step <= people.exchanges:
            raise DataError("an exchange of a run that was not started here")
        if task.private:
            # Refuse an exchange whose noise was already used for other values.
            found = digest(self.request_digest, call.digest)
            self.admitted.replay_log.require(step, "sweep", found)
            self.request_digest = found
            ledger = present(self._ledger, "no count request was received")
            ledger.record(*people.plan.exchange(step))
        people.exchanges = step - 1
        return FieldSums(*people.sweep(received, options))

    def _end(self, call: EndOfRun, _number: int) -> Done:
        """Process the last messages of a run and store risks; send nothing."""
        people = self._people
        received, _ = call.received(people.size, people.task)
        if people.run != call.run:
            raise DataError("the end of a run that was not started here")
        self.request_digest = digest(self.request_digest, "end", call.digest)
        people.end(received)
        return Done()

    def _losses(self, call: LossesRequest, _number: int) -> LossesReply:
        """Return sums of held-out losses; 0 if the policy forbids validation."""
        people, policy = self._people, self.admitted.site.policy
        if not people.task.scores_held_out:
            raise DataError("these settings hold out nobody")
        for several in (call.held_out, call.models):
            if len(set(several)) < len(several):
                raise DataError("a fold or model is named twice")
        held_out = call.held_out if policy.validation else ()
        made = people.losses(held_out, call.models)
        return LossesReply(**vars(made))

    def _finish(self, call: Finish, _number: int) -> ScoresReply:
        """Write the site's risks to its folder; send them if requested and allowed."""
        people = self._people
        traces, now = people.data.traces, people.current
        risks = Risks(
            people.risk,
            people.data.known.status,
            traces.names,
            now=now.without_tests,
            now_tested=now.tested,
            coverage=TraceCoverage.of(traces, people.others),
        )
        return self.finish(risks, call.scores, digest(self.request_digest))

    @property
    def _people(self) -> FieldSite:
        return present(self._counted, "no count request was received")


def group_sizes(people: FieldSite) -> dict[str, int]:
    """Count all people, and the tested people in each fold; without folds, all."""
    found = {"people": people.data.traces.people}
    for part in range(max(people.task.folds, 1)):
        found[f"tested people in fold {part}"] = int((people.fold == part).sum())
    return found


class FieldSitesRun(ServerRun[FieldRunRequest]):
    """Falcon Field run at the server; also the ``SiteGroup`` of its schedule."""

    request_type = FieldRunRequest

    def start(self) -> None:
        """Set the state before the first exchange."""
        self._result = ServerResult()
        self._task = self._request.settings
        self._number = 0
        """Number of exchanges over all runs so far."""
        self._run, self._step = FieldRun(), 0
        self._last: dict[str, Sums] = {}
        """Last accepted sums of each site in this run."""
        self._losses: dict[object, dict[str, calibration.ModelLosses]] = {}
        """Last losses of each site by folds and models."""

    def execute(self, progress: Progress) -> None:
        """Run the whole schedule, write the final sums and collect the scores."""
        roster = self._invite()
        self._plan = FieldPlan(self._task.settings.privacy, roster.clock)
        opening = opening_receipts(self._task, roster.clock)
        if (cells := roster.clock.slots * (1 + roster.regions)) > _MOST_CELLS:
            sites = ", ".join(sorted(roster.people))
            most = f"{_MOST_CELLS:,} slots times regions"
            raise DataError(f"{sites}: {cells:,}, expected at most {most}")
        self._roster = roster
        self._receipts = self.open_ledger(self._plan.budget, opening)
        people = sum(roster.people.values())
        size = Size(people, roster.clock, roster.regions)
        counts = roster.people.items()
        self._answers = {n: FieldAnswers(self._task, size, one) for n, one in counts}
        last = perf_counter()

        def report(done: int, planned: int) -> None:
            nonlocal last
            now = perf_counter()
            self.round_seconds.append(now - last)
            last = now
            progress("sweeps", done, planned)
            self.report_progress(done, planned)

        schedule = InferenceSchedule(self, self._task, people, roster.clock, report)
        self._result = schedule.result
        found = schedule.run().field
        tensors = {name: torch.from_numpy(one) for name, one in found.items()}
        write_tensors(self._folder / FIELD, tensors)

        def require(one: FieldAnswers, answer: ScoresReply) -> Floats | None:
            return answer.require(one.people)

        request = Finish(scores=self._options.scores)
        self.scores = given(self._call(request, ScoresReply, require))

    def figures(self) -> dict[str, Any]:
        """Return the number of sweeps, the transmission model and estimated rates."""
        found = self._result
        model = found.transmission if found.sweeps else None
        rates = None if found.rates is None else found.rates.intervals
        return {"rounds": found.sweeps, "law": model, "rates": rates}

    def _invite(self) -> SiteRoster:
        """Invite all sites; a resumed run reuses the person indices."""
        run_request, folder = self._request, self._folder
        before = SharedData.load(folder, run_request.origin)
        roster = self.invite(before)
        if before is None:
            SharedData(roster.first).save(folder, run_request.origin)
        elif set(roster.first) != set(before.first) and run_request.is_private:
            missing = ", ".join(sorted(set(before.first) - set(roster.first)))
            raise DataError(f"the run was started with {missing}: reconnect it")
        return roster

    def counts(self) -> SiteCounts:
        """Return the sum of the counts of all sites."""
        people = sum(self._roster.people.values())
        first = self._roster.first
        requests = {site: Count(number, people) for site, number in first.items()}
        return self.calls.total(
            requests, SiteCounts, lambda site, one: self._answers[site].counts(one)
        )

    def begin(self, run: FieldRun) -> None:
        """Start ``run``; the sites are informed with its first sweep."""
        self._run, self._step, self._last = run, 0, {}

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Send the messages of all edges; return the sum of each site's last sums."""
        self._step += 1
        self._number += 1
        self.calls.new_round()
        self._receipts.record(*self._plan.exchange(self._step))
        request = Sweep.of(received, options, self._run, self._step)
        check = partial(FieldAnswers.sums, options=options)
        self._last |= self._call(request, FieldSums, check)
        # Sums are added in place: copy the first, which may be needed again.
        latest = [self._last[site] for site in sorted(self._last)]
        copy = Sums(*(one.copy() for one in latest[0]))
        return add_sums([copy, *latest[1:]])

    def end(self, received: EdgeMessages) -> None:
        """Send the last messages of all edges; there is no reply."""
        options = SweepOptions(0.0, np.zeros(len(received.day)), 0.0)
        request = EndOfRun.of(received, options, self._run, self._step + 1)
        self._call(request, Done, lambda _, answer: answer)

    def losses(
        self, held_out: Sequence[HeldOutFold], models: Sequence[TransmissionModel]
    ) -> calibration.ModelLosses:
        """Return the sum of held-out losses over the sites that send them.

        Repeated requests compare rates: their sums are over the same sites, with the
        last losses of those that did not answer.
        """
        request = LossesRequest(tuple(held_out), tuple(models))
        check = partial(FieldAnswers.losses, models=len(models))
        found = self._call(request, LossesReply, check)
        key = request.held_out, request.models
        before = self._losses.get(key, found)
        found = {site: found.get(site, losses) for site, losses in before.items()}
        self._losses[key] = found
        return reduce(add, [found[site] for site in sorted(found)])

    def _call(
        self, request: Record, answer: type[R], check: Callable[[FieldAnswers, R], T]
    ) -> dict[str, T]:
        """Send ``request`` to all attending sites; return validated answers."""
        return self.calls.call(
            self._number,
            dict.fromkeys(self.calls.attending, request),
            answer,
            lambda site, one: check(self._answers[site], one),
        )
