"""Site side of a Falcon run, from the first call to the scores of the site's people.

Requests before the rounds: ``hello`` (admission), ``count`` (tallies), ``states`` (sums
of region states), ``prepare`` (build the cohort). The rounds follow, one request at a
time, with ``checkpoint`` between them, then ``finish``. All state is stored in the
site's own folder, so a restarted site can load its people's embeddings. Receipts and
request digests are stored before an answer is sent; a resumed run must send identical
requests.

Sums at edges that no other site claims are never sent, because the reply would be
identical to the upload.
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
from epifalcon.epidemic.risk_table import Risks
from epifalcon.errors import DataError, SettingsError
from epifalcon.federation import checkpoints, messages, preparation
from epifalcon.federation.checkpoints import Checkpoint, record_once
from epifalcon.federation.client import Client, all_uses
from epifalcon.federation.early_stopping import running_log_odds
from epifalcon.federation.engine import EngineState, advance, pack_state, unpack_state
from epifalcon.federation.messages import Record
from epifalcon.federation.network.site_files import (
    ReplayGuard,
    RunRequirements,
    digest,
    person_cost,
)
from epifalcon.federation.network.site_session import (
    LEDGER,
    Admitted,
    Handler,
    RunRequest,
    SiteSession,
)
from epifalcon.federation.preparation import SiteData, ValidationSplit
from epifalcon.federation.privacy_plan import PrivacyPlan, releases_of
from epifalcon.federation.settings import PredictionSettings
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.models.person_model import Exchange, LinearActivations, PassResult
from epifalcon.privacy.events import UnprotectedRelease
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.replay_log import ReplayLog
from epifalcon.types import Floats, Probabilities

_MOST_PEOPLE = 2**40
_BEYOND = 1e15
"""Largest accepted absolute value: sums of its squares are finite in float32."""


@dataclass(frozen=True, eq=False)
class _Pass:
    """A pass that waits for a reply or, once it has a result, for the round to end."""

    number: int
    scoring: bool
    work: Generator[Exchange, Tensor, Any]
    entry: LinearActivations | None
    exchange: Exchange
    upload: messages.LocationUpload | None = None
    result: PassResult | None = None
    """Result of a finished training pass; None before its end or for scoring."""

    @property
    def channel(self) -> str:
        """Channel name of the current upload."""
        kind = "scoring" if self.scoring else self.exchange.kind
        return f"{kind}/{self.exchange.layer}"


class SiteRounds:
    """Handlers of all requests during the rounds, for one cohort."""

    best: Probabilities | None
    """Scores of the round with the best validation result, (people,)."""
    best_round: int | None
    mean_log_odds: Floats | None
    """Running mean of log odds over rounds, (people,); None without score memory."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        *,
        sends_rows: bool = False,
        validation: preparation.Selection | None = None,
        score_memory: float = 0.0,
        replay_guard: ReplayGuard | None = None,
    ) -> None:
        self.client, self.plan, self.ledger = client, client.plan, ledger
        self.replay_guard = replay_guard or ReplayGuard(ReplayLog(), "")
        self.validation = validation or preparation.Selection()
        self.state = client.initial_state()
        self.best = self.best_round = self.mean_log_odds = None
        self._protected = self.plan.is_private
        self._memory, self._sends_rows = score_memory, sends_rows
        self._presence: messages.PresenceUpload | None = None
        self._places: tuple[EdgeKeys, messages.CountsMessage, Tensor] | None = None
        self._pass: _Pass | None = None
        self._scored: Tensor | None = None
        self._parameters: dict[str, Tensor] = {}
        self._last_validation: tuple[int, Probabilities] | None = None

    @property
    def handlers(self) -> dict[type[Record], Handler]:
        """Handlers of the round requests, by request type."""
        return {
            messages.PresenceRequest: self._presence_upload,
            messages.CountsMessage: self._store_counts,
            messages.Begin: self._begin,
            messages.BeginScoring: self._begin,
            messages.Reply: self._continue,
            messages.ValidationRequest: self._validate,
        }

    def close(self, call: messages.RoundRequest) -> None:
        """Store the parameters, finish the previous round and update the best round."""
        self._parameters = call.parameters or self._parameters
        if (closing := call.closing) is not None:
            ended = self._pass
            if ended is None or ended.result is None or ended.number != closing.round:
                number = closing.round
                raise DataError(f"no pass of round {number} is waiting for its end")
            self.state = self.client.close_round(self.state, ended.result, closing)
            self._pass = None
            if self._protected:
                self.replay_guard.close(closing.round, closing.scale)
            if self._protected and self._memory:
                scores, before = self._scores(self.state.received), self.mean_log_odds
                self.mean_log_odds = running_log_odds(before, scores, self._memory)
        if self._last_validation is not None and call.best == self._last_validation[0]:
            self.best_round, self.best = self._last_validation

    def scores(self, *, fresh: bool) -> Probabilities:
        """Return risks, (people,), of the last scoring pass (``fresh``) or round."""
        if self.mean_log_odds is not None:
            return np.asarray(expit(self.mean_log_odds))
        return self._scores(self._scored if fresh else self.state.received)

    def checkpoint(self, number: int) -> Checkpoint:
        """Return embeddings, scores and request digests after ``number`` rounds."""
        others = {
            name: torch.from_numpy(scores)
            for name, scores in (("best", self.best), ("held", self.mean_log_odds))
            if scores is not None
        }
        state = EngineState(number, pack_state(self.state), self.ledger.head)
        values = {"best": self.best_round, "trail": self.replay_guard.rounds_digest}
        return Checkpoint(state, others, values)

    def restore(self, found: Checkpoint) -> None:
        """Restore the state from a ``checkpoint``."""
        self.state = unpack_state(found.engine.tensors)
        others = {name: scores.numpy() for name, scores in found.tensors.items()}
        self.best, self.mean_log_odds = others.get("best"), others.get("held")
        self.best_round = found.values["best"]
        self.replay_guard.rounds_digest = found.values["trail"]

    def _presence_upload(
        self, _call: messages.PresenceRequest, _number: int
    ) -> messages.PresenceUpload:
        """Return the claimed edges and the number of people at each."""
        if self._protected:
            self.replay_guard.presence()
        record_once(self.ledger, self.plan.opening())
        self._presence = self.client.presence_upload()
        return self._presence

    def _store_counts(
        self, call: messages.CountsMessage, _number: int
    ) -> messages.Done:
        """Store the server's counts at the claimed edges, in upload order."""
        keys = present(self._presence, "no presence was requested yet").keys
        counts, shared = call.counts, call.shared
        same_length(keys=keys, counts=counts, shared=shared)
        if not (np.isfinite(counts).all() and (counts >= 1).all()):
            raise DataError("counts must be finite and at least 1")
        place = self.client.cohort.incidence.places_in(keys)
        self._places = keys, call, self.client.self_weight(counts[place])
        if self._protected:
            self.replay_guard.counts_received(counts, shared)
        return messages.Done()

    @property
    def others(self) -> Floats | None:
        """Received number of other people, (windows, 1 + regions), at claimed edges.

        None if no counts were received.
        """
        if self._places is None:
            return None
        keys, call, _ = self._places
        incidence = self.client.cohort.incidence
        found = np.zeros((incidence.windows, 1 + incidence.regions))
        window, region = np.divmod(keys, incidence.regions)
        found[window, 1 + region] = call.counts - 1
        return found

    def _begin(
        self, call: messages.Begin | messages.BeginScoring, number: int
    ) -> messages.LocationUpload:
        """Record and start a pass, discard an unfinished one; return the upload."""
        self.close(call)
        training = isinstance(call, messages.Begin)
        if self._protected:
            self.replay_guard.begin(number, call.parameters, training=training)
        if training:
            self.ledger.record(*self.plan.round_receipts(number))
        elif self._protected:
            self.ledger.record(*self.plan.scoring_receipts(number))
        self._pass = None
        self_weight = self._known_counts[2]
        work: Generator[Exchange, Tensor, Any]
        inputs, entry = (self.state, self_weight, call.parameters), None
        if training:
            work, entry = self.client.training(*inputs, number)
        else:
            self._scored = None
            work = self.client.scoring(*inputs)
        return self._send(_Pass(number, not training, work, entry, next(work)))

    def _continue(self, call: messages.Reply, _number: int) -> Record:
        """Process a reply; return the next upload, gradients, or ``Done``."""
        waiting = self._pass
        if waiting is None or waiting.result is not None:
            raise DataError("no pass is waiting for a reply")
        if self._protected:
            # Use the pending channel, not the one that the call names.
            self.replay_guard.reply(waiting.number, waiting.channel, call.sums)
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
                replace(u, inputs=usable(u.inputs), outputs=usable(u.outputs))
                for u in uses
            )
        upload = self.client.gradient_upload(uses, result.weight, waiting.number)
        if upload.weight is None:
            return upload
        return replace(upload, loss=result.loss)

    def _validate(
        self, call: messages.ValidationRequest, number: int
    ) -> messages.ValidationScores:
        """Return scores and results of validation people, sorted by score."""
        self.close(call)
        scores = self.scores(fresh=call.fresh)
        self._last_validation = number, scores
        selected = scores[self.validation.people]
        order = np.argsort(selected, kind="stable")
        infected = self.validation.infected[order]
        return messages.ValidationScores(selected[order], infected)

    def _send(self, waiting: _Pass) -> messages.LocationUpload:
        """Clip and noise the rows; return sums at shared edges or a row per claim."""
        exchange = waiting.exchange
        if self.plan.upload is not None:
            # Whether an upload succeeds must not depend on any person's values.
            exchange = replace(exchange, rows=usable(exchange.rows))
        step = waiting.channel, waiting.number
        upload = self.client.location_upload(exchange, *step, self._sends_rows)
        self._pass = replace(waiting, exchange=exchange, upload=upload)
        if upload.person is not None:
            return upload
        shared = self._known_counts[1].shared
        rows = upload.rows[torch.from_numpy(shared)]
        return replace(upload, keys=upload.keys[shared], rows=rows)

    def _received(self, waiting: _Pass, sums: Tensor) -> Tensor:
        """Compute the rows that people receive from a reply, (people, width)."""
        upload = present(waiting.upload, "nothing was uploaded yet")
        keys, places, _ = self._known_counts
        summed = upload.person is None
        count = int(places.shared.sum()) if summed else len(keys)
        expected = (count, upload.rows.shape[1], upload.rows.dtype)
        if (found := (*sums.shape, sums.dtype)) != expected:
            raise DataError(f"a reply has shape and dtype {found}, expected {expected}")
        if not torch.isfinite(sums).all():
            raise DataError("a reply holds NaN or infinity")
        if summed:
            whole = upload.rows.clone()
            whole[torch.from_numpy(places.shared)] = sums
            sums = whole
        return self.client.receive(waiting.exchange, keys, sums, places.counts)

    def _scores(self, received: Tensor | None) -> Probabilities:
        if not self._parameters:
            raise DataError("no parameters were received yet")
        return self.client.probabilities(self._parameters, received)

    @property
    def _known_counts(self) -> tuple[EdgeKeys, messages.CountsMessage, Tensor]:
        return present(self._places, "no counts of people were received yet")


def usable(rows: Tensor) -> Tensor:
    """Set rows that contain NaN, infinite or very large values to zero.

    Parameters can be crafted so that only some people's rows overflow. An error, or a
    NaN, which noise does not hide, would then reveal who these people are.
    """
    within = (rows.abs() <= _BEYOND).flatten(1).all(dim=1)
    return torch.where(within.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


@dataclass(frozen=True, kw_only=True)
class FalconRunRequest(RunRequest):
    """Settings, rules and seed of a Falcon run, as sent to all sites."""

    method = "falcon"
    settings: PredictionSettings

    def __post_init__(self) -> None:
        require_federable(self.settings)

    @property
    def hides_tests(self) -> bool:
        """True if test results are protected and must not be sent."""
        return not self.settings.privacy.reveals_validation

    @property
    def requirements(self) -> RunRequirements:
        """Requirements of the run, which a site compares with its policy."""
        privacy, pseudo = self.settings.privacy, self.settings.pseudo
        return RunRequirements(
            mode=privacy.mode,
            rows=self.rules.sends_rows,
            regions=self.settings.shares_cases,
            pseudo_copies=pseudo.pseudo_copies if privacy.is_private else None,
            delta=privacy.delta if privacy.mode == "local" else None,
            relation=privacy.relation,
        )

    def squared_mu(self, clock: Clock) -> float | None:
        """Return mu^2 per person of the whole run; None without a guarantee."""
        if self.mode != "local":
            return None
        return person_cost(self.settings.privacy, releases_of(clock))

    def plan(self, clock: Clock) -> PrivacyPlan:
        """Return the privacy plan of the run."""
        return PrivacyPlan.for_run(self.settings, clock)

    def unprotected(
        self, plan: PrivacyPlan, validation: bool
    ) -> list[UnprotectedRelease]:
        """Return the receipts of all releases without noise."""
        settings = self.settings
        receipts = preparation.unprotected_receipts(plan, settings, validation)
        revealed = "sums over a site's people at each place, and which places it claims"
        if self.rules.sends_rows:
            revealed = "which of a site's people sent each row, by number"
        return [*receipts, preparation.unprotected_receipt(plan, "uploads", revealed)]


def group_sizes(
    people: int, split: ValidationSplit, settings: PredictionSettings
) -> dict[str, int]:
    """Return the number of people behind each sum that is sent without noise."""
    counts = {"people": people} if settings.shares_sums else {}
    if settings.shares_cases:
        folds = settings.region.folds if settings.uses_region_model else 1
        tested = split.fold[split.fold >= 0]
        groups = np.bincount(tested, minlength=folds) if folds > 1 else [len(tested)]
        counts["tested people in a fold"] = int(min(groups))
    return counts


def require_federable(settings: PredictionSettings) -> None:
    """Raise ``SettingsError`` if the settings need all data in one process."""
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


class SiteRun(SiteSession[FalconRunRequest]):
    """One Falcon run at a site: the handlers of all its requests."""

    request_type = FalconRunRequest

    def start(self) -> dict[type[Record], Handler]:
        """Reset the state; return the handlers of requests outside the rounds."""
        self._counted: tuple[SiteData, ValidationSplit] | None = None
        self._states: NDArray[np.float32] | None = None
        self._rounds: SiteRounds | None = None
        return {
            messages.Count: self._count,
            messages.States: self._take_states,
            messages.Prepare: self._prepare,
            messages.CheckpointRequest: self._save_checkpoint,
            messages.Finish: self._finish,
        }

    @property
    def rounds(self) -> SiteRounds:
        """Handlers and state of the rounds."""
        return present(self._rounds, "no prepare request was received")

    def _count(self, call: messages.Count, _number: int) -> messages.TalliesReply:
        """Record the receipts, then return the site's tallies."""
        run, first = self.admitted, call.first
        if not 0 <= first < _MOST_PEOPLE:
            raise DataError(f"first={first} must be from 0 to {_MOST_PEOPLE - 1}")
        run_request, settings = run.request, run.request.settings
        data = SiteData(run.data.traces, run.data.known, first)
        split = preparation.validation_split(data, settings, run_request.seed)
        # Store the digest first, so that no other number, and folds, can be tried.
        self.record_request("count", digest(first))
        policy, plan = run.site.policy, run_request.plan(data.traces.clock)
        policy.require_group_sizes(group_sizes(data.traces.people, split, settings))
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, None)
        record_once(ledger, run_request.unprotected(plan, policy.validation))
        self._counted = data, split
        tally = preparation.count_tally(data, split, settings)
        return messages.TalliesReply(preparation.pack_tally(tally))

    def _take_states(
        self, call: messages.States, _number: int
    ) -> preparation.StateMoments:
        """Store the region states; return their moments over the site's people."""
        states, settings = call.states, self.admitted.request.settings
        data, split = present(self._counted, "no count request was received")
        traces = data.traces
        if not settings.uses_region_model:
            raise SettingsError("these settings have no region model")
        shape = (1 + settings.region.folds, len(traces.regions), traces.clock.days)
        if states.ndim != 4 or states.shape[:3] != shape:
            expected = (*shape, "width")
            raise DataError(f"states have shape {states.shape}, expected {expected}")
        if not np.isfinite(states).all():
            raise DataError("region states hold NaN or infinity")
        self.record_request("states", digest(arrays={"states": states}))
        self._states = states
        incidence = preparation.hypergraph(traces, settings)
        state = preparation.raw_state(data, split, incidence, states)
        return preparation.StateMoments.of(state)

    def _prepare(self, call: messages.Prepare, _number: int) -> messages.Done:
        """Build the cohort; restore the newest checkpoint up to ``call.round``."""
        data, split = present(self._counted, "no count request was received")
        run = self.admitted
        run_request, policy = run.request, run.site.policy
        plan = run_request.plan(data.traces.clock)
        shared = _shared_statistics(call, run, self._states)
        scaling = {"centre": call.centre, "factor": call.factor}
        arrays = {name: part for name, part in scaling.items() if part is not None}
        self.record_request("prepare", digest(tensors=call.tally, arrays=arrays))
        seeds, settings = self.seeds(), run_request.settings
        rng = seeds.pseudo(data.first)
        cohort = preparation.cohort_of(data, split, settings, shared, rng)
        saved = checkpoints.newest(self.folder, run_request.origin, at_most=call.round)
        ledger = checkpoints.ledger_of(self.folder / LEDGER, plan.budget, saved)
        prepared = digest(self.request_digest, seeds.noise)
        replay_guard = ReplayGuard(run.replay_log, prepared)
        if run_request.is_private:
            replay_guard.require_digests_of(ledger.releases)
        validation = preparation.Selection()
        # If tests are protected, no result is sent, whatever the server requests.
        if policy.validation and not run_request.hides_tests:
            infected = data.known.status[split.held_back] == 1
            validation = preparation.Selection(split.held_back, infected)
        self._rounds = SiteRounds(
            Client(cohort, settings.model, plan, seeds),
            ledger,
            sends_rows=run_request.rules.sends_rows,
            validation=validation,
            score_memory=settings.stopping.score_memory,
            replay_guard=replay_guard,
        )
        if saved is not None:
            self._rounds.restore(saved)
        self.handlers |= self._rounds.handlers
        return messages.Done()

    def _save_checkpoint(
        self, call: messages.CheckpointRequest, number: int
    ) -> messages.Done:
        """Write a checkpoint of this round to the site's own folder."""
        rounds = self.rounds
        rounds.close(call)
        origin = self.admitted.request.origin
        checkpoints.save(self.folder, rounds.checkpoint(number), origin)
        return messages.Done()

    def _finish(self, call: messages.Finish, _number: int) -> messages.ScoresReply:
        """Write the site's scores to its folder; send them if requested and allowed."""
        rounds = self.rounds
        rounds.close(call)
        best = rounds.best
        scores = rounds.scores(fresh=call.fresh) if best is None else best
        basis = digest(rounds.best_round, tensors=call.parameters)
        data, others = self.admitted.data, rounds.others
        if others is not None:
            others = np.repeat(others, data.traces.slots // len(others), axis=0)
        risks = Risks(
            scores,
            data.known.status,
            data.traces.names,
            coverage=TraceCoverage.of(data.traces, others),
        )
        return self.finish(risks, call.scores, basis)


def _shared_statistics(
    call: messages.Prepare,
    run: Admitted[FalconRunRequest],
    states: NDArray[np.float32] | None,
) -> preparation.SharedStatistics:
    """Decode the statistics of all people from the ``prepare`` request."""
    settings, traces = run.request.settings, run.data.traces
    names, regions = preparation.public_names(settings), traces.regions
    tally = preparation.unpack_tally(call.tally, names, len(regions), traces.clock)
    shared = preparation.SharedStatistics.of(tally, regions)
    if not settings.uses_region_model:
        return shared
    if states is None or call.centre is None or call.factor is None:
        raise DataError("region states or their scaling are missing")
    scaling = preparation.StateScaling(call.centre, call.factor)
    return replace(shared, states=states, scaling=scaling)
