"""The server's side of Falcon's rounds: sums over sites, and checks of their answers.

What sites do is in ``run``. A site may be broken or hostile: nothing of an answer
is believed that can be checked, and a failed check raises ``DataError``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation import messages, server
from epifalcon.federation.engine import (
    EngineState,
    pack_model,
    record_scoring,
    require_like,
    require_loss,
    unpack_model,
)
from epifalcon.federation.messages import Record
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.server import Model, PlaceTable
from epifalcon.federation.sites.switchboard import Switchboard, accepted
from epifalcon.hypergraph.incidence import EdgeKeys
from epifalcon.models.micro import initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.dpsgd import GradientMechanism
from epifalcon.privacy.ledger import Ledger
from epifalcon.privacy.perturb import UploadMechanism
from epifalcon.types import Mask, Probabilities

R = TypeVar("R", bound=Record)
T = TypeVar("T")
_ROOM = 8.0
"""A normal vector of d numbers is longer than sqrt(d) + 8 once in 10^14 draws."""
_ROUNDING = 1 + 1e-5
_LARGEST = 1e6
"""Largest number in one person's row or gradient where no clip bounds it: more than
training produces, and far from what would make sums infinite."""


@dataclass(frozen=True)
class Census:
    """What is known of the sites before the first round."""

    people: Mapping[str, int]
    """Number of people of each site, by name."""
    state_width: int = 0
    """Of the region states beside people's rows; 0 without region model."""
    size: tuple[int, int] | None = None
    """Regions and windows of the city, if known."""


class SitesEngine:
    """Rounds over the sites that ``board`` reaches."""

    def __init__(
        self,
        board: Switchboard,
        census: Census,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        ledger: Ledger | None = None,
    ) -> None:
        self.board, self.settings, self.plan = board, settings, plan
        self.ledger = Ledger(plan.budget) if ledger is None else ledger
        rng = RunSeeds(seed).parameters()
        self._model = Model.of(initial_parameters(settings, census.state_width, rng))
        self._census = census
        self._round = 0
        self._closing: dict[str, messages.Closing] = {}
        self.best_round: int | None = None
        """Round of the best look; sites learn it with the next call."""
        self._announced: dict[str, messages.PresenceUpload] = {}
        self._table: PlaceTable | None = None
        self._members: list[str] = []
        self._settled: set[str] = set()

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._round

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Of the model as it is."""
        return self._model.parameters

    def step(self) -> float:
        """Carry out one round; return its mean loss, NaN where it stays with the sites.

        If it raises, the model is as it was before.
        """
        number = self._round
        self.board.new_round()
        opening = () if number else self.plan.opening()
        self.ledger.record(*opening, *self.plan.round_receipts(number))
        self._open()
        channels = _channels(self.plan, training=True)
        uploads = self._pass(messages.Begin, channels)
        ended = self._reply(
            uploads, channels[-1], messages.GradientUpload, self._check_gradient
        )
        gradients = list(ended.values())
        loss = math.nan
        if not self.plan.is_private:
            total = sum(one.loss or 0.0 for one in gradients)
            weight = sum(one.weight or 0.0 for one in gradients)
            loss = require_loss(total, weight, number)
        model, closing = server.step(self._model, gradients, self.settings)
        self._closing = dict.fromkeys(ended, closing)
        self._model, self._round = model, number + 1
        return loss

    def score(self) -> list[str]:
        """Let every site score its people by a forward pass; return who took part.

        The scores stay there. The pass is a release of its own.
        """
        record_scoring(self.ledger, self.plan, self._round)
        self._open()
        channels = _channels(self.plan, training=False)
        uploads = self._pass(messages.BeginScoring, channels)
        return list(self._reply(uploads, channels[-1], messages.Done, accepted))

    def look(self, fresh: bool) -> tuple[Probabilities, Mask]:
        """Scores and results of the validation people of all sites, without names.

        By the last ``score`` if ``fresh``, otherwise by the last round.
        """
        request = messages.Look(parameters=self.parameters, fresh=fresh)
        found = self.call(request, messages.ValidationScores, self._check_look).values()
        scores = np.concatenate([one.scores for one in found])
        return scores, np.concatenate([one.infected for one in found])

    def call(
        self,
        request: messages.RoundRequest,
        answer: type[R],
        check: Callable[[str, R], T],
        sites: list[str] | None = None,
    ) -> dict[str, T]:
        """Send ``request`` to all attending sites, or to ``sites``.

        It carries the best round and, once, the close of a site's last round.
        """
        requests = {}
        for site in self.board.attending if sites is None else sites:
            requests[site] = replace(request, best=self.best_round)
            if (closing := self._closing.pop(site, None)) is not None:
                requests[site] = replace(
                    requests[site],
                    closed_round=closing.round,
                    closing_scale=closing.scale,
                )
        return self.board.ask(self._round, requests, answer, check)

    def state(self) -> EngineState:
        """Return the model and its moments; embeddings are stored by the sites."""
        return EngineState(self._round, pack_model(self._model), self.ledger.head)

    def restore(self, state: EngineState) -> None:
        """Continue from ``state``; the sites must have gone back to its round."""
        require_like(state.tensors, pack_model(self._model))
        self._model, self._round = unpack_model(state.tensors), state.round
        self._closing = {}

    def _open(self) -> None:
        """Send every site the counts of people at its places, where they changed."""
        board = self.board
        new = [site for site in board.attending if site not in self._announced]
        requests = dict.fromkeys(new, messages.Announce())
        self._announced |= board.ask(
            self._round, requests, messages.PresenceUpload, self._check_presence
        )
        members = [site for site in board.present if site in self._announced]
        if members != self._members:
            presence = {site: self._announced[site] for site in members}
            self._table = PlaceTable(presence, board.rules.sends_rows)
            self._members, self._settled = members, set()
        table = self._require_table()
        settle = {
            site: messages.Settle(table.counts[site], table.shared[site])
            for site in board.attending
            if site in members and site not in self._settled
        }
        self._settled |= set(board.ask(self._round, settle, messages.Done, accepted))

    def _pass(
        self, begin: type[messages.Begin | messages.BeginScoring], channels: list[str]
    ) -> dict[str, messages.LocationUpload]:
        """All exchanges of a pass but the reply to the last."""
        here = [site for site in self.board.attending if site in self._settled]
        request = begin(parameters=self.parameters)
        check = partial(self._check_upload, channel=channels[0])
        uploads = self.call(request, messages.LocationUpload, check, here)
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
        back = self._require_table().replies(uploads)
        requests = {site: messages.Reply(channel, sums) for site, sums in back.items()}
        return self.board.ask(self._round, requests, answer, check)

    def _check_presence(
        self, site: str, upload: messages.PresenceUpload
    ) -> messages.PresenceUpload:
        """Require keys of the city, and counts that the site's people can make."""
        keys, counts, people = upload.keys, upload.counts, self._census.people[site]
        if counts.ndim != 1 or not np.isfinite(counts).all():
            raise DataError("a count of people is no number")
        if not len(keys):
            return upload
        if keys[0] < 0:
            raise DataError("a key is less than 0")
        most_keys = people * self.plan.releases.person * (1 + self.plan.copies)
        if len(keys) > most_keys:
            raise DataError(
                f"{len(keys):,} keys of {people:,} people, at most {most_keys:,} can be"
            )
        if self._census.size and keys[-1] >= math.prod(self._census.size):
            raise DataError(f"a key of {math.prod(self._census.size):,} or more")
        mechanism = self.plan.presence
        least, most = float(not self.plan.is_private), float(people)
        if mechanism is not None:
            room = mechanism.sigma * math.sqrt(people) * (1 + _ROOM)
            least, most = -room, people + room
        if counts.min() < least or counts.max() > most * _ROUNDING:
            raise DataError(f"a count that {people:,} people cannot make")
        return upload

    def _check_upload(
        self, site: str, upload: messages.LocationUpload, *, channel: str
    ) -> messages.LocationUpload:
        """Require rows of ``channel`` at the site's keys, no longer than can be."""
        rows, width, table = upload.rows, self.settings.width, self._require_table()
        if upload.channel != channel:
            raise DataError(f"an upload of {upload.channel!r}, expected {channel!r}")
        if rows.dtype != self.settings.dtype:
            raise DataError(f"rows of {rows.dtype}, expected {self.settings.dtype}")
        if rows.shape[1] != width:
            raise DataError(
                f"rows of shape {tuple(rows.shape)}, expected a width of {width}"
            )
        summed = upload.person is None
        if summed == table.sends_rows:
            raise DataError("sums where rows of people were asked for, or the reverse")
        if summed and not np.array_equal(upload.keys, table.keys[site]):
            raise DataError("sums at other places than those shared with other sites")
        if not summed:
            self._require_claims(site, upload, table.keys[site])
        people = self._census.people[site] if summed else 1
        norms = torch.linalg.vector_norm(rows.double(), dim=1)
        _require_norm(channel, norms, people, width, self.plan.upload)
        return upload

    def _require_claims(
        self, site: str, upload: messages.LocationUpload, announced: EdgeKeys
    ) -> None:
        keys, person = upload.keys, upload.person
        if person is None or person.shape != keys.shape:
            raise DataError(f"{len(keys)} keys without as many people")
        if not np.isin(keys, announced).all():
            raise DataError("a row at a key that was never announced")
        most = self.plan.releases.person * (1 + self.plan.copies)
        found, rows = np.unique(person, return_counts=True)
        if len(found) > self._census.people[site] or (rows > most).any():
            raise DataError("more rows than its people can have sent")

    def _check_gradient(
        self, site: str, upload: messages.GradientUpload
    ) -> messages.GradientUpload:
        """Require gradients of the model; without protection also loss and weight."""
        gradients, people = upload.gradients, self._census.people[site]
        if _shapes(gradients) != _shapes(self.parameters):
            raise DataError("gradients do not have the names and shapes of the model")
        whole = torch.cat([one.double().flatten() for one in gradients.values()])
        if not torch.isfinite(whole).all():
            raise DataError("a gradient holds NaN or infinity")
        if upload.people != people:
            raise DataError(f"gradients of {upload.people}, expected {people:,} people")
        mechanism = self.plan.gradient
        _require_norm("gradient", whole.norm()[None], people, len(whole), mechanism)
        if self.plan.is_private:
            return replace(upload, weight=None, loss=None)
        weight, loss = upload.weight, upload.loss
        if weight is None or loss is None:
            raise DataError("gradients without weight and loss")
        most = people * max(self.settings.class_weights or (1.0,))
        if not 0 <= weight <= most * _ROUNDING:
            raise DataError(f"{people:,} people cannot weigh {weight:g} in the loss")
        if not 0 <= loss <= most * _LARGEST:
            raise DataError(f"{people:,} people cannot have a loss of {loss:g}")
        return upload

    def _check_look(
        self, site: str, answer: messages.ValidationScores
    ) -> messages.ValidationScores:
        """Require scores from 0 to 1, of no more people than the site has."""
        scores, people = answer.scores, self._census.people[site]
        if len(scores) > people or not ((scores >= 0) & (scores <= 1)).all():
            raise DataError("more scores than people, or some outside 0 to 1")
        return answer

    def _require_table(self) -> PlaceTable:
        if self._table is None:
            raise DataError("no counts of people yet")
        return self._table


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (one.shape, one.dtype) for name, one in tensors.items()}


def _require_norm(
    channel: str,
    norms: Tensor,
    people: int,
    size: int,
    mechanism: UploadMechanism | GradientMechanism | None,
) -> None:
    """Refuse norms of vectors of ``size`` numbers that ``people`` cannot have made."""
    most = people * _LARGEST
    if mechanism is not None:
        noise = mechanism.sigma * (math.sqrt(size) + _ROOM)
        most = people * mechanism.clip + math.sqrt(people) * noise
    found = float(norms.max()) if len(norms) else 0.0
    if found > most * _ROUNDING:
        raise DataError(
            f"{channel}: a norm of {found:.4g}, clip and noise allow {most:.4g}"
        )


def _channels(plan: PrivacyPlan, training: bool) -> list[str]:
    """The exchanges of a pass in their order."""
    if not training:
        return [f"scoring/{layer}" for layer in range(plan.layers)]
    channels = [f"upload/{layer}" for layer in range(plan.layers)]
    if plan.way.exchanged:
        channels += [f"return/{layer}" for layer in reversed(range(plan.layers))]
    return channels
