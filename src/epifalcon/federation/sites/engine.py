"""The server's side of Falcon's rounds: sums over sites, and checks of their answers.

What sites do is in ``rounds``. A site may be broken or hostile: nothing of an answer
is believed that can be checked, and a failed check raises ``DataError``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation import server
from epifalcon.federation.engine import EngineState, record_scoring, require_loss
from epifalcon.federation.messages import (
    Announce,
    Begin,
    BeginScoring,
    Closing,
    Done,
    GradientUpload,
    LocationUpload,
    Look,
    PresenceUpload,
    Record,
    Reply,
    RoundRequest,
    Settle,
    ValidationScores,
    all_finite,
)
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.server import Model
from epifalcon.federation.sites.switchboard import Switchboard, accepted
from epifalcon.models.micro import Moments, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.ledger import Ledger
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


class PlaceTable:
    """Sums at keys over all sites (algorithm 1); each site gets those at its keys."""

    def __init__(self, presence: Mapping[str, PresenceUpload], rows: bool) -> None:
        self.known = server.count_people(list(presence.values()))
        self.sends_rows = rows
        place = {site: self.known.places(one.keys) for site, one in presence.items()}
        claimed = np.zeros(len(self.known.keys), np.int64)
        for some in place.values():
            claimed[some] += 1
        self.shared = {site: claimed[some] > 1 for site, some in place.items()}
        self.keys = {site: one.keys for site, one in presence.items()}
        """The keys at which each site may upload."""
        if not rows:
            self.keys = {
                site: one[self.shared[site]] for site, one in self.keys.items()
            }
        self._place = {
            site: torch.from_numpy(self.known.places(keys))
            for site, keys in self.keys.items()
        }

    def replies(self, uploads: Mapping[str, LocationUpload]) -> dict[str, Tensor]:
        """Sums over all uploads, for each site at its keys."""
        first = next(iter(uploads.values())).rows
        sums = first.new_zeros(len(self.known.keys), first.shape[1])
        for site, upload in uploads.items():
            place = self._place[site]
            if upload.person is not None:
                found = np.searchsorted(self.known.keys, upload.keys)
                place = torch.from_numpy(found)
            sums.index_add_(0, place, upload.rows)
        return {site: sums[self._place[site]] for site in uploads}


class AnswerChecks:
    """Checks the answers of sites whose numbers of people are known."""

    def __init__(
        self,
        census: Census,
        settings: FalconSettings,
        plan: PrivacyPlan,
        parameters: Mapping[str, Tensor],
    ) -> None:
        self._people, self._size = dict(census.people), census.size
        self._settings, self._plan = settings, plan
        self._shapes = {
            name: (one.shape, one.dtype) for name, one in parameters.items()
        }

    def presence(self, site: str, upload: PresenceUpload) -> PresenceUpload:
        """Require keys of the city, and counts that the site's people can make."""
        keys, counts, people = upload.keys, upload.counts, self._people[site]
        if counts.ndim != 1 or not np.isfinite(counts).all():
            raise DataError("a count of people is no number")
        if not len(keys):
            return upload
        if keys[0] < 0:
            raise DataError("a key is less than 0")
        most_keys = people * self._plan.releases.person * (1 + self._plan.copies)
        if len(keys) > most_keys:
            raise DataError(
                f"{len(keys):,} keys of {people:,} people, at most {most_keys:,} can be"
            )
        if self._size and keys[-1] >= math.prod(self._size):
            raise DataError(f"a key of {math.prod(self._size):,} or more")
        mechanism = self._plan.presence
        least, most = float(self._plan.mode == "off"), float(people)
        if mechanism is not None:
            room = mechanism.sigma * math.sqrt(people) * (1 + _ROOM)
            least, most = -room, people + room
        if counts.min() < least or counts.max() > most * _ROUNDING:
            raise DataError(f"a count that {people:,} people cannot make")
        return upload

    def upload(
        self, site: str, upload: LocationUpload, *, channel: str, table: PlaceTable
    ) -> LocationUpload:
        """Require rows of ``channel`` at the site's keys, no longer than can be."""
        rows, width = upload.rows, self._settings.width
        if upload.channel != channel:
            raise DataError(f"an upload of {upload.channel!r}, expected {channel!r}")
        if rows.dtype != self._settings.dtype:
            raise DataError(f"rows of {rows.dtype}, expected {self._settings.dtype}")
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
            self._require_claims(site, upload, table)
        people = self._people[site] if summed else 1
        self._require_norms(rows, people, channel)
        return upload

    def _require_claims(
        self, site: str, upload: LocationUpload, table: PlaceTable
    ) -> None:
        keys, person = upload.keys, upload.person
        if person is None or person.shape != keys.shape:
            raise DataError(f"{len(keys)} keys without as many people")
        if not np.isin(keys, table.keys[site]).all():
            raise DataError("a row at a key that was never announced")
        most = self._plan.releases.person * (1 + self._plan.copies)
        found, rows = np.unique(person, return_counts=True)
        if len(found) > self._people[site] or (rows > most).any():
            raise DataError("more rows than its people can have sent")

    def _require_norms(self, rows: Tensor, people: int, channel: str) -> None:
        """Refuse a row or sum longer than clip and noise can make it."""
        mechanism = self._plan.upload
        if mechanism is None:
            _require_size(rows, people)
            return
        noise = mechanism.sigma * (math.sqrt(rows.shape[1]) + _ROOM)
        most = people * mechanism.clip + math.sqrt(people) * noise
        norms = torch.linalg.vector_norm(rows.double(), dim=1)
        found = float(norms.max()) if len(rows) else 0.0
        if found > most * _ROUNDING:
            raise DataError(
                f"{channel}: a norm of {found:.4g}, clip and noise allow {most:.4g}"
            )

    def gradient(self, site: str, upload: GradientUpload) -> GradientUpload:
        """Require gradients of the model; without protection also loss and weight."""
        gradients, people = upload.gradients, self._people[site]
        shapes = {name: (one.shape, one.dtype) for name, one in gradients.items()}
        if shapes != self._shapes:
            raise DataError("gradients do not have the names and shapes of the model")
        if not all(map(all_finite, gradients.values())):
            raise DataError("a gradient holds NaN or infinity")
        if upload.people != people:
            raise DataError(f"gradients of {upload.people}, expected {people:,} people")
        self._require_gradient_norm(gradients, people)
        if self._plan.mode != "off":
            return replace(upload, weight=None, loss=None)
        weight, loss = upload.weight, upload.loss
        if weight is None or loss is None:
            raise DataError("gradients without weight and loss")
        most = people * max(self._settings.class_weights or (1.0,))
        if not 0 <= weight <= most * _ROUNDING:
            raise DataError(f"{people:,} people cannot weigh {weight:g} in the loss")
        if not 0 <= loss <= most * _LARGEST:
            raise DataError(f"{people:,} people cannot have a loss of {loss:g}")
        return upload

    def _require_gradient_norm(self, gradients: dict[str, Tensor], people: int) -> None:
        mechanism = self._plan.gradient
        if mechanism is None:
            for one in gradients.values():
                _require_size(one, people)
            return
        squared = sum(float((one.double() ** 2).sum()) for one in gradients.values())
        size = sum(one.numel() for one in gradients.values())
        noise = mechanism.sigma * (math.sqrt(size) + _ROOM)
        most = people * mechanism.clip + math.sqrt(people) * noise
        if math.sqrt(squared) > most * _ROUNDING:
            raise DataError(
                f"a gradient of norm {math.sqrt(squared):.4g}, clip and noise allow "
                f"{most:.4g}"
            )

    def look(self, site: str, answer: ValidationScores) -> ValidationScores:
        """Require scores from 0 to 1, of no more people than the site has."""
        scores = answer.scores
        if (
            len(scores) > self._people[site]
            or not ((scores >= 0) & (scores <= 1)).all()
        ):
            raise DataError("more scores than people, or some outside 0 to 1")
        return answer


class SitesEngine:
    """Rounds over the sites that ``board`` reaches.

    With protection the server cannot know the loss: ``step`` returns NaN then.
    """

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
        self._checks = AnswerChecks(census, settings, plan, self._model.parameters)
        self._round = 0
        self._closing: dict[str, Closing] = {}
        self._best: int | None = None
        self._announced: dict[str, PresenceUpload] = {}
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
        uploads = self._pass(Begin, channels)
        ended = self._reply(
            uploads, channels[-1], GradientUpload, self._checks.gradient
        )
        gradients = list(ended.values())
        loss = math.nan
        if self.plan.mode == "off":
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
        uploads = self._pass(BeginScoring, channels)
        return list(self._reply(uploads, channels[-1], Done, accepted))

    def look(self, fresh: bool) -> tuple[Probabilities, Mask]:
        """Scores and results of the validation people of all sites, without names.

        By the last ``score`` if ``fresh``, otherwise by the last round.
        """
        request = Look(parameters=self.parameters, fresh=fresh)
        found = self.call(request, ValidationScores, self._checks.look).values()
        scores = np.concatenate([one.scores for one in found])
        return scores, np.concatenate([one.infected for one in found])

    def best(self, number: int) -> None:
        """Tell the sites with the next call that the look after ``number`` was best."""
        self._best = number

    def call(
        self, request: RoundRequest, answer: type[R], check: Callable[[str, R], T]
    ) -> dict[str, T]:
        """Ask all sites that attend the same, with the close of the last round."""
        return self._ask_closed(self.board.attending, request, answer, check)

    def state(self) -> EngineState:
        """The model and its moments; people's embeddings are stored by the sites."""
        tensors = {f"parameter/{name}": one for name, one in self.parameters.items()}
        for name, moments in self._model.moments.items():
            tensors[f"first/{name}"] = moments.first
            tensors[f"second/{name}"] = moments.second
        return EngineState(self._round, tensors, self.ledger.head)

    def restore(self, state: EngineState) -> None:
        """Continue from ``state``; the sites must have gone back to its round."""
        parameters, first, second = (
            tensors_under(state.tensors, f"{part}/")
            for part in ("parameter", "first", "second")
        )
        shapes = {name: one.shape for name, one in self.parameters.items()}
        if {name: one.shape for name, one in parameters.items()} != shapes:
            raise DataError("the state is of another model")
        moments = {name: Moments(first[name], second[name]) for name in parameters}
        self._model, self._round = Model(parameters, moments), state.round
        self._closing = {}

    def _open(self) -> None:
        """Send every site the counts of people at its places, where they changed."""
        board = self.board
        new = [site for site in board.attending if site not in self._announced]
        requests = dict.fromkeys(new, Announce())
        self._announced |= board.ask(
            self._round, requests, PresenceUpload, self._checks.presence
        )
        members = [site for site in board.present if site in self._announced]
        if members != self._members:
            presence = {site: self._announced[site] for site in members}
            self._table = PlaceTable(presence, board.rules.sends_rows)
            self._members, self._settled = members, set()
        table = self._require_table()
        settle = {
            site: Settle(table.known.at(self._announced[site].keys), table.shared[site])
            for site in board.attending
            if site in members and site not in self._settled
        }
        self._settled |= set(board.ask(self._round, settle, Done, accepted))

    def _pass(
        self, begin: type[Begin | BeginScoring], channels: list[str]
    ) -> dict[str, LocationUpload]:
        """All exchanges of a pass but the reply to the last."""
        here = [site for site in self.board.attending if site in self._settled]
        request = begin(parameters=self.parameters)
        uploads = self._ask_closed(
            here, request, LocationUpload, self._checked(channels[0])
        )
        for channel, following in pairwise(channels):
            check = self._checked(following)
            uploads = self._reply(uploads, channel, LocationUpload, check)
        return uploads

    def _checked(self, channel: str) -> Callable[[str, LocationUpload], LocationUpload]:
        def check(site: str, upload: LocationUpload) -> LocationUpload:
            table = self._require_table()
            return self._checks.upload(site, upload, channel=channel, table=table)

        return check

    def _reply(
        self,
        uploads: Mapping[str, LocationUpload],
        channel: str,
        answer: type[R],
        check: Callable[[str, R], T],
    ) -> dict[str, T]:
        back = self._require_table().replies(uploads)
        requests = {site: Reply(channel, sums) for site, sums in back.items()}
        return self.board.ask(self._round, requests, answer, check)

    def _ask_closed(
        self,
        sites: list[str],
        request: RoundRequest,
        answer: type[R],
        check: Callable[[str, R], T],
    ) -> dict[str, T]:
        """Ask with the best look and, once, the close of the site's last round."""
        requests = {}
        for site in sites:
            closing = self._closing.pop(site, None)
            requests[site] = replace(
                request,
                best=self._best,
                closed_round=None if closing is None else closing.round,
                closing_scale=None if closing is None else closing.scale,
            )
        return self.board.ask(self._round, requests, answer, check)

    def _require_table(self) -> PlaceTable:
        if self._table is None:
            raise DataError("no counts of people yet")
        return self._table


def _require_size(numbers: Tensor, people: int) -> None:
    if not numbers.numel():
        return
    low, high = (float(one) for one in torch.aminmax(numbers))
    if max(-low, high) > people * _LARGEST:
        raise DataError(f"a number of {max(-low, high):.4g}, of {people:,} people")


def _channels(plan: PrivacyPlan, training: bool) -> list[str]:
    """The exchanges of a pass in their order."""
    if not training:
        return [f"scoring/{layer}" for layer in range(plan.layers)]
    channels = [f"upload/{layer}" for layer in range(plan.layers)]
    if plan.way.exchanged:
        channels += [f"return/{layer}" for layer in reversed(range(plan.layers))]
    return channels
