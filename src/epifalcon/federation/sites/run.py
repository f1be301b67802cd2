"""A site's part in a run of Falcon, from the first call to the scores of its people.

Before the rounds: ``hello`` (may we?), ``count`` (tallies), ``states`` (sums of region
states), ``prepare`` (make the cohort). Then the rounds, one request at a time, ``keep``
for checkpoints, and ``finish``. Everything stays in the site's own folder, so a site
that is restarted finds its people's embeddings. Receipts and digests of requests are
stored before an answer leaves, and a resumed run must send the same requests.

Sums at places that no other site claims are never sent: the reply would be what was
sent.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from epifalcon.checks import present, same_length
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import checkpoints, messages, preparing
from epifalcon.federation.checkpoints import Checkpoint, record_once
from epifalcon.federation.client import Client, Surroundings, all_uses
from epifalcon.federation.early_stopping import running_log_odds
from epifalcon.federation.engine import EngineState, advance, pack_home, unpack_home
from epifalcon.federation.messages import Record
from epifalcon.federation.plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import PredictionSettings
from epifalcon.federation.sites.files import Noted, Trail, Wanted, digest, person_cost
from epifalcon.federation.sites.session import (
    LEDGER,
    Admitted,
    Handler,
    Order,
    SiteSession,
)
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.mobility.clock import Clock
from epifalcon.models.micro import Exchange, LinearUse, PassResult
from epifalcon.privacy.events import UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Floats, Mask, Probabilities

_MOST_PEOPLE = 2**40
_BEYOND = 1e15
"""Its squares, and sums of them, are still finite in any precision."""


@dataclass(frozen=True, eq=False)
class _Pass:
    """A pass that waits for a reply or, with a result, for the close of its round."""

    number: int
    scoring: bool
    work: Generator[Exchange, Tensor, Any]
    entry: LinearUse | None
    exchange: Exchange
    upload: messages.LocationUpload | None = None
    result: PassResult | None = None
    """Of a training pass that has ended."""

    @property
    def channel(self) -> str:
        """Channel of the upload."""
        kind = "scoring" if self.scoring else self.exchange.kind
        return f"{kind}/{self.exchange.layer}"


class SiteRounds:
    """Answers the requests of the rounds for one cohort."""

    best: Probabilities | None
    """(people,) scores of the round that the server found best."""
    best_round: int | None
    held: Floats | None
    """(people,) running mean of the log odds that people received, with memory."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        *,
        sends_rows: bool = False,
        watched: preparing.Selection | None = None,
        score_memory: float = 0.0,
        trail: Trail | None = None,
    ) -> None:
        self.client, self.plan, self.ledger = client, client.plan, ledger
        self.trail = trail or Trail(Noted(), "")
        self.watched = watched or preparing.Selection()
        self.home = client.first_home()
        self.best = self.best_round = self.held = None
        self._protected = self.plan.is_private
        self._memory, self._sends_rows = score_memory, sends_rows
        self._presence: messages.PresenceUpload | None = None
        self._places: tuple[EdgeKeys, messages.Settle, Surroundings] | None = None
        self._pass: _Pass | None = None
        self._scored: Tensor | None = None
        self._parameters: dict[str, Tensor] = {}
        self._looked: tuple[int, Probabilities] | None = None

    @property
    def handlers(self) -> dict[type[Record], Handler]:
        """What answers each request of the rounds."""
        return {
            messages.Announce: self._announce,
            messages.Settle: self._settle,
            messages.Begin: self._begin,
            messages.BeginScoring: self._begin,
            messages.Reply: self._continue,
            messages.Look: self._look,
        }

    def close(self, call: messages.RoundRequest) -> None:
        """Take parameters, the end of the previous round, and the best round."""
        self._parameters = call.parameters or self._parameters
        if (closing := call.closing) is not None:
            ended = self._pass
            if ended is None or ended.result is None or ended.number != closing.round:
                raise DataError(f"no pass of round {closing.round} waits for its close")
            self.home = self.client.close_round(self.home, ended.result, closing)
            self._pass = None
            if self._protected:
                self.trail.close(closing.round, closing.scale)
            if self._protected and self._memory:
                scores = self._scores(self.home.received)
                self.held = running_log_odds(self.held, scores, self._memory)
        if self._looked is not None and call.best == self._looked[0]:
            self.best_round, self.best = self._looked

    def scores(self, *, fresh: bool) -> Probabilities:
        """Return risks, (people,), by the last scoring pass or the last round."""
        if self.held is not None:
            return np.asarray(expit(self.held))
        return self._scores(self._scored if fresh else self.home.received)

    def checkpoint(self, number: int) -> Checkpoint:
        """The people's embeddings after ``number`` rounds, and what belongs to them."""
        others = {
            name: torch.from_numpy(one)
            for name, one in (("best", self.best), ("held", self.held))
            if one is not None
        }
        state = EngineState(number, pack_home(self.home), self.ledger.head)
        return Checkpoint(
            state, others, {"best": self.best_round, "trail": self.trail.home}
        )

    def restore(self, found: Checkpoint) -> None:
        """Continue from a ``checkpoint``."""
        self.home = unpack_home(found.engine.tensors)
        others = {name: one.numpy() for name, one in found.tensors.items()}
        self.best, self.held = others.get("best"), others.get("held")
        self.best_round = found.remembered["best"]
        self.trail.home = found.remembered["trail"]

    def _announce(
        self, _call: messages.Announce, _number: int
    ) -> messages.PresenceUpload:
        """Return the places claimed and the number of people at each."""
        if self._protected:
            self.trail.announce()
        record_once(self.ledger, self.plan.opening())
        self._presence = self.client.announce()
        return self._presence

    def _settle(self, call: messages.Settle, _number: int) -> messages.Done:
        """Take the server's counts at the announced places, in their order."""
        keys = present(self._presence, "nothing was announced yet").keys
        counts, shared = call.counts, call.shared
        same_length(keys=keys, counts=counts, shared=shared)
        if not (np.isfinite(counts).all() and (counts >= 1).all()):
            raise DataError("a count of people is less than 1 or no number")
        place = self.client.cohort.incidence.places_in(keys)
        self._places = keys, call, self.client.settle(counts[place])
        if self._protected:
            self.trail.settle(counts, shared)
        return messages.Done()

    def _begin(
        self, call: messages.Begin | messages.BeginScoring, number: int
    ) -> messages.LocationUpload:
        """Begin a pass, dropping one that was not closed; record it first."""
        self.close(call)
        training = isinstance(call, messages.Begin)
        if self._protected:
            self.trail.begin(number, call.parameters, training=training)
        if training:
            self.ledger.record(*self.plan.round_receipts(number))
        elif self._protected:
            self.ledger.record(*self.plan.scoring_receipts(number))
        self._pass = None
        around = self._settled[2]
        work: Generator[Exchange, Tensor, Any]
        given, entry = (self.home, around, call.parameters), None
        if training:
            work, entry = self.client.training(*given, number)
        else:
            self._scored = None
            work = self.client.scoring(*given)
        exchange, _ = advance(work, None)
        if exchange is None:
            raise DataError("a pass without any exchange")
        return self._send(_Pass(number, not training, work, entry, exchange))

    def _continue(self, call: messages.Reply, _number: int) -> Record:
        """Continue with a reply: the next upload, gradients, or the end of scoring."""
        waiting = self._pass
        if waiting is None or waiting.result is not None:
            raise DataError("no pass waits for a reply")
        if self._protected:
            # By what waits here, whatever the call says that it replies to.
            self.trail.reply(waiting.number, waiting.channel, call.sums)
        exchange, result = advance(waiting.work, self._received(waiting, call.sums))
        if exchange is not None:
            return self._send(replace(waiting, exchange=exchange))
        self._pass = None
        if waiting.scoring:
            self._scored = result
            return messages.Done()
        self._pass = replace(waiting, result=result)
        return self._gradients(waiting, cast(PassResult, result))

    def _gradients(self, waiting: _Pass, result: PassResult) -> messages.GradientUpload:
        uses = all_uses(result, waiting.entry)
        if self.plan.gradient is not None:
            uses = tuple(
                replace(one, inputs=usable(one.inputs), outputs=usable(one.outputs))
                for one in uses
            )
        upload = self.client.gradient_upload(uses, result.weight, waiting.number)
        if upload.weight is None:
            return upload
        return replace(upload, loss=result.loss)

    def _look(self, call: messages.Look, number: int) -> messages.ValidationScores:
        """Scores and results of the validation people, by score and without names."""
        self.close(call)
        scores = self.scores(fresh=call.fresh)
        self._looked = number, scores
        mine = scores[self.watched.people]
        order = np.argsort(mine, kind="stable")
        return messages.ValidationScores(mine[order], self.watched.infected[order])

    def _send(self, waiting: _Pass) -> messages.LocationUpload:
        """Clip, noise and upload rows: sums at shared places, or a row per claim."""
        exchange = waiting.exchange
        if self.plan.upload is not None:
            # Whether an answer comes must not depend on anybody's numbers.
            exchange = replace(exchange, rows=usable(exchange.rows))
        upload = self.client.location_upload(
            exchange, waiting.channel, waiting.number, self._sends_rows
        )
        self._pass = replace(waiting, exchange=exchange, upload=upload)
        if upload.person is not None:
            return upload
        shared = self._settled[1].shared
        return replace(upload, keys=upload.keys[shared], rows=upload.rows[_at(shared)])

    def _received(self, waiting: _Pass, sums: Tensor) -> Tensor:
        """Return what each person receives, (people, width), from a reply."""
        upload, (keys, places, around) = waiting.upload, self._settled
        if upload is None:
            raise DataError("nothing was sent yet")
        summed = upload.person is None
        place = _at(places.shared) if summed else torch.arange(len(keys))
        wanted = (len(place), upload.rows.shape[1], upload.rows.dtype)
        if (*sums.shape, sums.dtype) != wanted:
            raise DataError(
                f"a reply of {(*sums.shape, sums.dtype)}, expected {wanted}"
            )
        if not torch.isfinite(sums).all():
            raise DataError("a reply holds NaN or infinity")
        if summed:
            whole = upload.rows.clone()
            whole[place] = sums
            sums = whole
        return self.client.receive(waiting.exchange, around, keys, sums, places.counts)

    def _scores(self, received: Tensor | None) -> Probabilities:
        if not self._parameters:
            raise DataError("no parameters were sent yet")
        return self.client.probabilities(self._parameters, received)

    @property
    def _settled(self) -> tuple[EdgeKeys, messages.Settle, Surroundings]:
        return present(self._places, "the counts of people were not sent yet")


def usable(rows: Tensor) -> Tensor:
    """Replace rows with NaN, infinite or enormous numbers by zeros.

    Parameters can be crafted to drive the rows of some people there and not those of
    others: an error, or a NaN that no noise covers, would reveal who they are.
    """
    within = (rows.abs() <= _BEYOND).flatten(1).all(dim=1)
    return torch.where(within.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def _at(mask: Mask) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask))


@dataclass(frozen=True, kw_only=True)
class FalconOrder(Order):
    """A run of Falcon, as a server asks sites for it."""

    method = "falcon"
    settings: PredictionSettings

    def __post_init__(self) -> None:
        require_federable(self.settings)

    @property
    def hides_tests(self) -> bool:
        """Whether test results are protected, so that none may leave."""
        return not self.settings.privacy.reveals_validation

    @property
    def wanted(self) -> Wanted:
        """What the run wants of a site's policy."""
        privacy, pseudo = self.settings.privacy, self.settings.pseudo
        return Wanted(
            mode=privacy.mode,
            rows=self.rules.sends_rows,
            regions=self.settings.shares_cases,
            pseudo_copies=pseudo.pseudo_copies if privacy.is_private else None,
            delta=privacy.delta if privacy.mode == "local" else None,
            relation=privacy.relation,
        )

    def squared_mu(self, clock: Clock) -> float | None:
        """Privacy cost for a person of the whole run; None without a guarantee."""
        if self.mode != "local":
            return None
        return person_cost(self.settings.privacy, releases_of(clock))

    def plan(self, clock: Clock) -> PrivacyPlan:
        """What is noised, and how."""
        return PrivacyPlan.for_run(self.settings, clock)

    def unprotected(
        self, plan: PrivacyPlan, validation: bool
    ) -> list[UnprotectedRelease]:
        """Receipts of what leaves before the rounds and beside them, without noise."""
        made = preparing.unprotected_receipts(
            plan, self.settings, validation=validation
        )
        revealed = "sums over a site's people at each place, and which places it claims"
        if self.rules.sends_rows:
            revealed = "which of a site's people sent each row, by number"
        return [*made, preparing.in_the_clear(plan, "uploads", revealed)]


def crowds(
    people: int, division: preparing.Division, settings: PredictionSettings
) -> dict[str, int]:
    """Count the people behind each sum that leaves without noise."""
    found = {"people": people} if settings.shares_sums else {}
    if settings.shares_cases:
        folds = settings.region.folds if settings.uses_region_model else 1
        tested = division.fold[division.fold >= 0]
        groups = np.bincount(tested, minlength=folds) if folds > 1 else [len(tested)]
        found["tested people in a fold"] = int(min(groups))
    return found


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
        self._counted: tuple[preparing.Household, preparing.Division] | None = None
        self._states: NDArray[np.float32] | None = None
        self._rounds: SiteRounds | None = None
        return {
            messages.Count: self._count,
            messages.States: self._take_states,
            messages.Prepare: self._prepare,
            messages.Keep: self._keep,
            messages.Finish: self._finish,
        }

    @property
    def rounds(self) -> SiteRounds:
        """The state of the rounds."""
        return present(self._rounds, "nothing is prepared")

    def _count(self, call: messages.Count, _number: int) -> messages.Counted:
        """Count what is summed up over sites, once its receipts are written."""
        run, first = self.admitted, call.first
        if not 0 <= first < _MOST_PEOPLE:
            raise DataError("the number of the first person is out of range")
        order, settings = run.order, run.order.settings
        home = preparing.Household(run.home.traces, run.home.known, first)
        division = preparing.divide(home, settings, order.seed)
        # Noted first: otherwise other numbers, and other folds, could be tried.
        self.note("count", digest(first))
        policy, plan = run.site.policy, order.plan(home.traces.clock)
        policy.require_crowd(crowds(home.traces.people, division, settings))
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, None)
        checkpoints.record_once(ledger, order.unprotected(plan, policy.validation))
        self._counted = home, division
        return messages.Counted(
            preparing.pack_tally(preparing.count_tally(home, division, settings))
        )

    def _take_states(
        self, call: messages.States, _number: int
    ) -> preparing.StateMoments:
        """Take region states; sum them up over the site's people."""
        states, settings = call.states, self.admitted.order.settings
        home, division = present(self._counted, "nothing was counted yet")
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
        incidence = preparing.hypergraph(traces, settings)
        return preparing.StateMoments.of(
            preparing.raw_state(home, division, incidence, states)
        )

    def _prepare(self, call: messages.Prepare, _number: int) -> messages.Done:
        """Make the cohort and, after a restart, go back to the given round."""
        home, division = present(self._counted, "nothing was counted yet")
        run = self.admitted
        order, policy = run.order, run.site.policy
        plan = order.plan(home.traces.clock)
        around = _surrounding(call, run, self._states)
        scaling = {"centre": call.centre, "factor": call.factor}
        some = {name: one for name, one in scaling.items() if one is not None}
        self.note("prepare", digest(tensors=call.tally, arrays=some))
        seeds = self.seeds()
        cohort = preparing.cohort_of(
            home, division, order.settings, around, seeds.pseudo(home.first)
        )
        found = checkpoints.newest(self.folder, order.origin, at_most=call.round)
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, found)
        trail = Trail(run.noted, digest(self.heard, seeds.noise))
        if order.is_private:
            trail.require_notes_of(ledger.releases)
        watched = preparing.Selection()
        # Whatever a server asks: where tests are protected, no result leaves.
        if policy.validation and not order.hides_tests:
            infected = home.known.status[division.held_back] == 1
            watched = preparing.Selection(division.held_back, infected)
        self._rounds = SiteRounds(
            Client(cohort, order.settings.model, plan, seeds),
            ledger,
            sends_rows=order.rules.sends_rows,
            watched=watched,
            score_memory=order.settings.stopping.score_memory,
            trail=trail,
        )
        if found is not None:
            self._rounds.restore(found)
        self.handlers |= self._rounds.handlers
        return messages.Done()

    def _keep(self, call: messages.Keep, number: int) -> messages.Done:
        """Write the people's embeddings of this round to the site's own disk."""
        rounds = self.rounds
        rounds.close(call)
        origin = self.admitted.order.origin
        checkpoints.save(self.folder, rounds.checkpoint(number), origin)
        return messages.Done()

    def _finish(self, call: messages.Finish, _number: int) -> messages.Scores:
        """Write the scores of the site's people to its own folder."""
        rounds = self.rounds
        rounds.close(call)
        scores = rounds.best
        if scores is None:
            scores = rounds.scores(fresh=call.fresh)
        found = digest(rounds.best_round, tensors=call.parameters)
        return self.finish(scores, call.scores, found)


def _surrounding(
    call: messages.Prepare,
    run: Admitted[FalconOrder],
    states: NDArray[np.float32] | None,
) -> preparing.Surrounding:
    """What the site learns of the city: all that the settings need, and no more."""
    settings, traces = run.order.settings, run.home.traces
    names, regions = preparing.public_names(settings), traces.regions
    tally = preparing.unpack_tally(call.tally, names, len(regions), traces.clock)
    around = preparing.Surrounding.of(tally, regions)
    if not settings.uses_region_model:
        return around
    if states is None or call.centre is None or call.factor is None:
        raise DataError("region states or their scaling are missing")
    scaling = preparing.StateScaling(call.centre, call.factor)
    return replace(around, states=states, scaling=scaling)
