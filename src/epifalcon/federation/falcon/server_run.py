"""Server side of a resumable Falcon run over sites: prepare, train, checkpoint, finish.

A site may be faulty or malicious, so every answer is validated as far as possible and
a failed check raises ``DataError``. Sites answer a repeated round only if its requests
are identical, so the server stores what it sent before the rounds, model checkpoints,
and finally the model of the best validation result. The server receives the scores of
people only if it requests them and the site's policy allows it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import CorruptFileError, DataError
from epifalcon.federation import checkpoints, messages, preparation, server
from epifalcon.federation.checkpoints import Checkpoint
from epifalcon.federation.early_stopping import EarlyStopping, ValidationCheck
from epifalcon.federation.engine import Engine, RoundReport, require_loss, train
from epifalcon.federation.falcon.site_run import FalconRunRequest
from epifalcon.federation.messages import Record
from epifalcon.federation.network.site_calls import (
    PREPARATION,
    ServerRun,
    SharedData,
    SiteCalls,
    accepted,
    given,
)
from epifalcon.federation.preparation import SiteTally, StateMoments, StateScaling
from epifalcon.federation.privacy_plan import PrivacyPlan
from epifalcon.federation.server import PlaceTable
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under, write_tensors
from epifalcon.privacy.gaussian import GaussianMechanism
from epifalcon.privacy.ledger import Ledger
from epifalcon.progress import Progress
from epifalcon.types import Mask, Plain, Probabilities

R = TypeVar("R", bound=Record)
T = TypeVar("T")
MODEL = "model.safetensors"
_ROUNDING = 1 + 1e-5
_ROOM = 8.0
"""A d-dimensional standard normal has norm above sqrt(d) + 8 once in 10^14 draws."""
_LARGEST = 1e6
"""Largest plausible norm of one person's row or gradient without clipping: larger than
training produces, and small enough that sums stay finite."""


class SitesEngine(Engine):
    """Engine that runs rounds over the sites of ``calls``."""

    def __init__(
        self,
        calls: SiteCalls,
        people: Mapping[str, int],
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        ledger: Ledger | None = None,
        *,
        state_width: int = 0,
        places: int | None = None,
    ) -> None:
        """Create the engine; ``people`` is by site, ``places`` counts all edges."""
        super().__init__(settings, plan, seed, ledger, state_width)
        self.calls, self._people, self._places = calls, people, places
        self._closing: dict[str, messages.EndOfRound] = {}
        self.best_round: int | None = None
        """Round of the best validation result; sent to sites with the next call."""
        self._presence: dict[str, messages.PresenceUpload] = {}
        self._table: PlaceTable
        """Counts and sums at places; created by ``_open`` before the first pass."""
        self._members: list[str] = []
        self._informed: set[str] = set()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Current model parameters by name."""
        return self._model.parameters

    def step(self) -> float:
        """Run one training round and return the mean loss; NaN in a private run."""
        number = self.round
        self.calls.new_round()
        self._record_round()
        self._open()
        channels = _channels(self.plan, training=True)
        uploads = self._pass(messages.Begin, channels)
        answer, check = messages.GradientUpload, self._check_gradient
        ended = self._reply(uploads, channels[-1], answer, check)
        gradients = list(ended.values())
        loss = math.nan
        if not self.plan.is_private:
            total = sum(upload.loss or 0.0 for upload in gradients)
            weight = sum(upload.weight or 0.0 for upload in gradients)
            loss = require_loss(total, weight, number)
        model, closing = server.step(self._model, gradients, self.settings)
        self._closing = dict.fromkeys(ended, closing)
        self._model, self.round = model, number + 1
        return loss

    def score(self) -> list[str]:
        """Run a scoring pass and record its release; return the participating sites."""
        self._record_scoring()
        self._open()
        channels = _channels(self.plan, training=False)
        uploads = self._pass(messages.BeginScoring, channels)
        return list(self._reply(uploads, channels[-1], messages.Done, accepted))

    def validation_scores(self, fresh: bool) -> tuple[Probabilities, Mask]:
        """Collect scores and results of all validation people, without identities."""
        request = messages.ValidationRequest(parameters=self.parameters, fresh=fresh)
        check = self._check_validation
        parts = self.call(request, messages.ValidationScores, check).values()
        scores = np.concatenate([part.scores for part in parts])
        return scores, np.concatenate([part.infected for part in parts])

    def call(
        self,
        request: messages.RoundRequest,
        answer: type[R],
        check: Callable[[str, R], T],
        sites: list[str] | None = None,
    ) -> dict[str, T]:
        """Send ``request`` and the end of the previous round to all attending sites."""
        requests = {}
        for site in self.calls.attending if sites is None else sites:
            closing = self._closing.pop(site, None)
            requests[site] = replace(request, best=self.best_round, closing=closing)
        return self.calls.call(self.round, requests, answer, check)

    def _open(self) -> None:
        """Collect missing presence uploads; send changed counts per edge to sites."""
        calls = self.calls
        new = [site for site in calls.attending if site not in self._presence]
        requests = dict.fromkeys(new, messages.PresenceRequest())
        answer, check = messages.PresenceUpload, self._check_presence
        self._presence |= calls.call(self.round, requests, answer, check)
        members = [site for site in calls.present if site in self._presence]
        if members != self._members:
            presence = {site: self._presence[site] for site in members}
            self._table = PlaceTable(presence, calls.rules.sends_rows)
            self._members, self._informed = members, set()
        table = self._table
        counts = {
            site: messages.CountsMessage(table.counts[site], table.shared[site])
            for site in calls.attending
            if site in members and site not in self._informed
        }
        self._informed |= set(calls.call(self.round, counts, messages.Done, accepted))

    def _pass(
        self, begin: type[messages.Begin | messages.BeginScoring], channels: list[str]
    ) -> dict[str, messages.LocationUpload]:
        """Run the exchanges of a pass; return the last uploads, which need a reply."""
        sites = [site for site in self.calls.attending if site in self._informed]
        request = begin(parameters=self.parameters)
        check = partial(self._check_upload, channel=channels[0])
        uploads = self.call(request, messages.LocationUpload, check, sites)
        for channel, following in pairwise(channels):
            check = partial(self._check_upload, channel=following)
            uploads = self._reply(uploads, channel, messages.LocationUpload, check)
        return uploads

    def _reply(
        self,
        uploads: Mapping[str, messages.LocationUpload],
        channel: str,
        answer: type[R],
        check: Callable[[str, R], T],
    ) -> dict[str, T]:
        reply = self._table.replies(uploads)
        requests = {site: messages.Reply(channel, sums) for site, sums in reply.items()}
        return self.calls.call(self.round, requests, answer, check)

    def _check_presence(
        self, site: str, upload: messages.PresenceUpload
    ) -> messages.PresenceUpload:
        """Require edge keys of the city and counts possible for the site's people."""
        keys, counts, people = upload.keys, upload.counts, self._people[site]
        if counts.ndim != 1 or not np.isfinite(counts).all():
            raise DataError("counts of people must be finite numbers")
        if not len(keys):
            return upload
        if keys[0] < 0:
            raise DataError(f"key {keys[0]} is less than 0")
        most_keys = people * self.plan.releases.person * (1 + self.plan.copies)
        if len(keys) > most_keys:
            raise DataError(f"{len(keys):,} keys are too many for {people:,} people")
        if self._places is not None and keys[-1] >= self._places:
            raise DataError(f"key {keys[-1]} must be less than {self._places:,}")
        mechanism = self.plan.presence
        least, most = float(not self.plan.is_private), float(people)
        if mechanism is not None:
            room = mechanism.sigma * math.sqrt(people) * (1 + _ROOM)
            least, most = -room, people + room
        if counts.min() < least or counts.max() > most * _ROUNDING:
            raise DataError(f"a count is impossible for {people:,} people")
        return upload

    def _check_upload(
        self, site: str, upload: messages.LocationUpload, *, channel: str
    ) -> messages.LocationUpload:
        """Require rows of ``channel`` at the site's keys, with plausible norms."""
        rows, width, table = upload.rows, self.settings.width, self._table
        if upload.channel != channel:
            raise DataError(f"an upload of {upload.channel!r}, expected {channel!r}")
        if rows.dtype != self.settings.dtype:
            raise DataError(f"rows of {rows.dtype}, expected {self.settings.dtype}")
        if rows.shape[1] != width:
            raise DataError(f"rows of width {rows.shape[1]}, expected {width}")
        summed = upload.person is None
        if summed == table.sends_rows:
            kind = "sums" if summed else "rows"
            raise DataError(f"{kind} were uploaded, expected the other kind")
        if summed and not np.array_equal(upload.keys, table.keys[site]):
            raise DataError("sums must be at the places shared with other sites")
        if not summed:
            self._require_claims(site, upload, table.keys[site])
        people = self._people[site] if summed else 1
        norms = torch.linalg.vector_norm(rows.double(), dim=1)
        _require_norm(channel, norms, people, width, self.plan.upload)
        return upload

    def _require_claims(
        self, site: str, upload: messages.LocationUpload, announced: EdgeKeys
    ) -> None:
        keys, person = upload.keys, upload.person
        if person is None or person.shape != keys.shape:
            raise DataError(f"{len(keys)} keys need as many person numbers")
        if not np.isin(keys, announced).all():
            raise DataError("a row is at a key that was not claimed")
        most = self.plan.releases.person * (1 + self.plan.copies)
        senders, rows = np.unique(person, return_counts=True)
        if len(senders) > self._people[site] or (rows > most).any():
            raise DataError(f"more rows than {self._people[site]:,} people can send")

    def _check_gradient(
        self, site: str, upload: messages.GradientUpload
    ) -> messages.GradientUpload:
        """Require the model's shapes, a plausible norm, and valid loss and weight."""
        gradients, people = upload.gradients, self._people[site]
        if _shapes(gradients) != _shapes(self.parameters):
            raise DataError("gradients must have the names and shapes of the model")
        whole = torch.cat([part.double().flatten() for part in gradients.values()])
        if not torch.isfinite(whole).all():
            raise DataError("a gradient holds NaN or infinity")
        if upload.people != people:
            raise DataError(f"gradients of {upload.people} people, expected {people:,}")
        mechanism = self.plan.gradient
        _require_norm("gradient", whole.norm()[None], people, len(whole), mechanism)
        if self.plan.is_private:
            return replace(upload, weight=None, loss=None)
        weight, loss = upload.weight, upload.loss
        if weight is None or loss is None:
            raise DataError("gradients lack weight or loss")
        most = people * max(self.settings.class_weights or (1.0,))
        if not 0 <= weight <= most * _ROUNDING:
            raise DataError(f"weight={weight:g} is impossible for {people:,} people")
        if not 0 <= loss <= most * _LARGEST:
            raise DataError(f"loss={loss:g} is impossible for {people:,} people")
        return upload

    def _check_validation(
        self, site: str, answer: messages.ValidationScores
    ) -> messages.ValidationScores:
        """Require scores from 0 to 1, at most one per person of the site."""
        scores, people = answer.scores, self._people[site]
        if len(scores) > people or not ((scores >= 0) & (scores <= 1)).all():
            most = f"at most {people:,} from 0 to 1"
            raise DataError(f"{len(scores)} scores, expected {most}")
        return answer


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}


def _require_norm(
    channel: str,
    norms: Tensor,
    people: int,
    size: int,
    mechanism: GaussianMechanism | None,
) -> None:
    """Raise ``DataError`` if a norm is impossible for a sum over ``people`` people."""
    most = people * _LARGEST
    if mechanism is not None:
        noise = mechanism.sigma * (math.sqrt(size) + _ROOM)
        most = people * mechanism.clip + math.sqrt(people) * noise
    norm = float(norms.max()) if len(norms) else 0.0
    if norm > most * _ROUNDING:
        raise DataError(f"{channel}: norm {norm:.4g}, clip and noise allow {most:.4g}")


def _channels(plan: PrivacyPlan, training: bool) -> list[str]:
    """Return the channels of a pass in the order of its exchanges."""
    if not training:
        return [f"scoring/{layer}" for layer in range(plan.layers)]
    channels = [f"upload/{layer}" for layer in range(plan.layers)]
    if plan.exchange_rules.exchanged:
        channels += [f"return/{layer}" for layer in reversed(range(plan.layers))]
    return channels


class SitesRun(ServerRun[FalconRunRequest]):
    """Falcon run at the server, resumed from its newest checkpoint if there is one."""

    request_type = FalconRunRequest

    def start(self) -> None:
        """Set the state before the first round."""
        settings = self._request.settings
        self.stopping = EarlyStopping(settings.stopping, settings.privacy)
        self.parameters: dict[str, Tensor] = {}
        """Model parameters of the best validation result."""
        self._forecast: Plain | None = None
        self._engine: SitesEngine | None = None

    def execute(self, progress: Progress) -> None:
        """Train until the last round or early stopping, then write the best model."""
        resumed = checkpoints.newest(self._folder, self._request.origin)
        self._engine = self._prepare(resumed, progress)
        if resumed is not None:
            self._engine.restore(resumed.engine)
            self.calls.keep_only(resumed.values["present"])
            self.stopping.restore(resumed.values)
            self.round_seconds = list(resumed.values["seconds"])
            self.parameters = tensors_under(resumed.tensors, "best/")
        self._train(self._engine, progress)
        self._finish(self._engine)
        write_tensors(self._folder / MODEL, self.parameters)

    def figures(self) -> dict[str, Any]:
        """Return numbers of rounds, validation results and forecast accuracy."""
        best = self.stopping.best
        return {
            "rounds": 0 if self._engine is None else self._engine.round,
            "best_round": None if best is None else best.round,
            "validation_auc": None if best is None else best.auc,
            "looks": self.stopping.as_plain()["looks"],
            "forecast": self._forecast,
        }

    def _prepare(self, resumed: Checkpoint | None, progress: Progress) -> SitesEngine:
        run_request, calls, settings = self._request, self.calls, self._request.settings
        known = SharedData.load(self._folder, run_request.origin)
        if resumed is not None and known is None:
            raise CorruptFileError(f"{self._folder / PREPARATION}: is missing")
        self._roster = roster = self.invite(known)
        data = self._collect_shared_data(known, progress)
        self._forecast = data.forecast
        number = 0 if resumed is None else resumed.engine.round
        request = messages.Prepare(number, data.tally, data.centre, data.factor)
        requests = dict.fromkeys(calls.attending, request)
        ready = calls.call(0, requests, messages.Done, accepted)
        calls.keep_only(ready)
        if known is None:
            first = {site: data.first[site] for site in ready}
            replace(data, first=first).save(self._folder, run_request.origin)
        plan = run_request.plan(roster.clock)
        opening = run_request.unprotected(plan, validation=True)
        ledger = self.open_ledger(plan.budget, opening, resumed)
        places = roster.regions * (roster.clock.slots // settings.model.window_slots)
        width = 0 if data.states is None else data.states.shape[-1]
        run = roster.people, settings.model, plan, run_request.seed, ledger
        return SitesEngine(calls, *run, state_width=width, places=places)

    def _collect_shared_data(
        self, known: SharedData | None, progress: Progress
    ) -> SharedData:
        """Sum the tallies of all sites, fit the region model, and scale its states.

        If ``known`` is given, only repeat the calls, for sites that were restarted.
        """
        settings, roster, tally = self._request.settings, self._roster, self._count()
        if known is not None:
            if known.states is not None:
                self._send_states(known.states)
            return known
        names = preparation.public_names(settings)
        public = SiteTally({name: tally[name] for name in names})
        sums = preparation.pack_tally(public)
        if not settings.uses_region_model:
            return SharedData(roster.first, sums)
        seed = self._request.seed
        fitted = preparation.fit_region_states(
            tally, roster.clock, settings, seed, progress
        )
        scaling = StateScaling.of(self._send_states(fitted.states), settings)
        states = fitted.states, scaling.centre, scaling.factor
        return SharedData(roster.first, sums, *states, fitted.forecast)

    def _send_states(self, states: NDArray[np.float32]) -> StateMoments:
        """Send region states to all sites; return the sum of their state moments."""
        width = states.shape[-1]
        largest = float(np.abs(states).max()) if states.size else 0.0

        def check(site: str, answer: StateMoments) -> StateMoments:
            total, squared = answer.total, answer.squared
            count = self._roster.people[site]
            what = "sums of region states"
            if answer.people != count:
                raise DataError(
                    f"{what} of {answer.people:,} people, expected {count:,}"
                )
            if total.shape != (width,) or squared.shape != (width,):
                raise DataError(f"{what} have shape {total.shape}, expected ({width},)")
            # A person's state is a mean of region states; NaN fails every comparison.
            most = count * largest * _ROUNDING
            within = (np.abs(total) <= most).all() and (squared >= 0).all()
            if not (within and (squared <= most * largest * _ROUNDING).all()):
                raise DataError(f"{what} exceed {most:.4g}")
            return answer

        requests = dict.fromkeys(self.calls.attending, messages.States(states))
        return self.calls.total(requests, StateMoments, check)

    def _count(self) -> SiteTally:
        """Return the sum of the tallies of all sites."""
        names, roster = preparation.tally_names(self._request.settings), self._roster

        def check(site: str, answer: messages.TalliesReply) -> SiteTally:
            regions, clock = roster.regions, roster.clock
            most = roster.people[site] * clock.slots
            return preparation.unpack_tally(answer.tally, names, regions, clock, most)

        requests = {site: messages.Count(first) for site, first in roster.first.items()}
        return self.calls.total(requests, messages.TalliesReply, check)

    def _train(self, engine: SitesEngine, progress: Progress) -> None:
        rounds = engine.settings.rounds

        def watch(report: RoundReport) -> bool:
            self.round_seconds.append(report.seconds)
            text = ""
            due = self.stopping.due(engine.round, rounds)
            if due and not self._request.hides_tests:
                text = self._validate(engine, report.loss)
            last = engine.round if self.stopping.ended else rounds
            progress("rounds", engine.round, last, text)
            self.report_progress(engine.round, last, text)
            if engine.round % self._options.checkpoint_every == 0:
                self._checkpoint(engine)
            return self.stopping.ended

        if not self.stopping.ended:
            train(engine, watch=watch)

    def _validate(self, engine: SitesEngine, loss: float) -> str:
        fresh = not engine.plan.is_private
        if fresh:
            engine.score()
        scores, infected = engine.validation_scores(fresh)
        check = ValidationCheck.at(engine.round, loss, scores, infected)
        if self.stopping.add(check):
            self.parameters = {n: p.clone() for n, p in engine.parameters.items()}
            engine.best_round = engine.round
        return check.progress_text

    def _checkpoint(self, engine: SitesEngine) -> None:
        """Write checkpoints at all sites and the server; skip if a site is missing."""
        calls = self.calls
        if calls.attending == calls.present:
            engine.call(messages.CheckpointRequest(), messages.Done, accepted)
        if calls.attending != calls.present:
            return
        values = {
            **self.stopping.as_plain(),
            "seconds": self.round_seconds,
            "present": self.calls.present,
        }
        tensors = {f"best/{name}": part for name, part in self.parameters.items()}
        checkpoint = Checkpoint(engine.state(), tensors, values)
        checkpoints.save(self._folder, checkpoint, self._request.origin)

    def _finish(self, engine: SitesEngine) -> None:
        """Request all sites to write scores; collect them if ``options.scores``."""
        fresh = not engine.plan.is_private
        if self.stopping.best is None:
            self.parameters = engine.parameters
            if fresh:
                engine.score()
        request = messages.Finish(
            parameters=self.parameters, fresh=fresh, scores=self._options.scores
        )

        def check(site: str, answer: messages.ScoresReply) -> Probabilities | None:
            return answer.require(self._roster.people[site])

        self.scores = given(engine.call(request, messages.ScoresReply, check))
