"""The engine of many sites: the round of ``exchange`` with messages that travel.

The server's half: it asks, adds up, steps and keeps. What sites do is in
``rounds``; what every answer must be is checked here before it is used.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation import server
from epifalcon.federation.engine import EngineState, record_scoring, require_loss
from epifalcon.federation.messages import Closing, GradientUpload, LocationUpload
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.server import Model
from epifalcon.federation.sites.answers import Announced, Answers
from epifalcon.federation.sites.switchboard import Payload, Switchboard
from epifalcon.federation.sites.tables import GroupTable, PersonTable, PlaceTable, Table
from epifalcon.federation.sites.wire import Parcel
from epifalcon.models.micro import Moments, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.models.tensor_files import tensors_under
from epifalcon.privacy.ledger import Ledger
from epifalcon.types import Mask, Probabilities

T = TypeVar("T")
Ended = tuple[GradientUpload, tuple[float, float] | None]
"""A site's gradients and, where they may be known, its loss and weight."""


@dataclass(frozen=True)
class Census:
    """What is known of the sites before the first round."""

    people: Mapping[str, int]
    """How many each site has, by name."""
    state_width: int = 0
    """Of the region states beside people's rows; 0 without region model."""
    size: tuple[int, int] | None = None
    """Regions and windows of the city; None where nobody said."""


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
        rows = board.rules.sends_rows(plan.mode)
        self._answers = Answers(
            census.people, settings, plan, self._model.parameters, rows, census.size
        )
        self._round = 0
        self._closing: dict[str, tuple[Closing, Tensor | None]] = {}
        self._best: int | None = None
        self._announced: dict[str, Announced] = {}
        self._table: Table | None = None
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
        """One round; returns its mean loss, NaN where it stays with the sites.

        If it raises, the model is as it was before.
        """
        number = self._round
        self.board.new_round()
        opening = () if number else self.plan.opening()
        self.ledger.record(*opening, *self.plan.round_receipts(number))
        self._open()
        ended, owed = self._train(number)
        gradients = [one for one, _ in ended.values()]
        loss = _mean_loss([told for _, told in ended.values()], number)
        model, closing = server.step(self._model, gradients, self.settings)
        self._closing = {site: (closing, owed.get(site)) for site in ended}
        self._model, self._round = model, number + 1
        return loss

    def _train(self, number: int) -> tuple[dict[str, Ended], dict[str, Tensor]]:
        """How the pass ended at each site, and the replies that are still owed.

        Embeddings alone need the reply to the last gradient rows: sites send all
        other gradients with those, and get the reply with the close of the round.
        """
        channels = _channels(self.plan, training=True)
        uploads = self._begin("begin", number)
        if not self.plan.way.exchanged or self.settings.input != "embedding":
            uploads = self._pass_on(uploads, channels, number)
            moment = channels[-1], number
            return self._reply(uploads, moment, self._answers.gradient), {}
        *others, last = channels
        uploads = self._pass_on(uploads, others, number)

        def read(site: str, answer: Parcel) -> tuple[LocationUpload, Ended]:
            return self._reader(last)(site, answer), self._answers.gradient(
                site, answer
            )

        both = self._reply(uploads, (others[-1], number), read)
        rows = {site: upload for site, (upload, _) in both.items()}
        ended = {site: one for site, (_, one) in both.items()}
        return ended, self._require_table().replies(rows)

    def score(self) -> list[str]:
        """Let every site score its people by a forward pass; who took part.

        The scores stay there. The pass is a release of its own.
        """
        number = self._round
        record_scoring(self.ledger, self.plan, number)
        self._open()
        uploads = self._begin("begin scoring", number)
        channels = _channels(self.plan, training=False)
        uploads = self._pass_on(uploads, channels, number)
        moment = channels[-1], number
        return list(self._reply(uploads, moment, _nothing))

    def look(self, fresh: bool) -> tuple[Probabilities, Mask]:
        """Scores and results of the validation people of all sites, without names.

        ``fresh`` after ``score``: by its pass, otherwise by the last round.
        """
        payload = Payload(self._told_parameters(), {"fresh": fresh})
        found = list(self.call("look", self._answers.look, payload).values())
        scores, infected = (np.concatenate(part) for part in zip(*found, strict=True))
        return scores, infected

    def best(self, number: int) -> None:
        """Tell the sites with the next call that the look after ``number`` was best."""
        self._best = number

    def call(
        self,
        phase: str,
        read: Callable[[str, Parcel], T],
        payload: Payload | None = None,
    ) -> dict[str, T]:
        """Ask all that attend the same, with the close of the last round."""
        payload = payload or Payload()
        calls = {site: self._closed(site, payload) for site in self.board.attending}
        return self.board.ask((phase, self._round), calls, read)

    def state(self) -> EngineState:
        """The model and its moments; homes are kept by the sites."""
        tensors = self._told_parameters()
        for name, moments in self._model.moments.items():
            tensors[f"first/{name}"] = moments.first
            tensors[f"second/{name}"] = moments.second
        return EngineState(self._round, tensors, self.ledger.head)

    def restore(self, state: EngineState) -> None:
        """Go on from ``state``; the sites must have gone back to its round."""
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
        """Tell every site the counts of people at its places, where they changed."""
        board = self.board
        new = [site for site in board.attending if site not in self._announced]
        if new:
            calls = {site: Payload() for site in new}
            moment = "announce", self._round
            self._announced |= board.ask(moment, calls, self._answers.presence)
        members = [site for site in board.present if site in self._announced]
        if members != self._members:
            self._table, self._members = self._count(members), members
            self._settled = set()
        waiting = [site for site in self._here() if site not in self._settled]
        if waiting:
            calls = {site: self._told_of(site) for site in waiting}
            told = board.ask(("settle", self._round), calls, _nothing)
            self._settled |= set(told)

    def _count(self, members: list[str]) -> Table:
        """Count people at places anew, and which places several sites claim."""
        presence = {site: self._announced[site].presence for site in members}
        rows = self.board.rules.sends_rows(self.plan.mode)
        if self.plan.upload is not None:
            return PlaceTable(presence, rows)
        announced = {site: self._announced[site] for site in members}
        if rows:
            return PersonTable(presence, _all(announced, "claims"))
        return GroupTable(presence, _all(announced, "group"))

    def _told_of(self, site: str) -> Payload:
        table = self._require_table()
        counts = table.known.at(self._announced[site].presence.keys)
        shared = table.shared[site].astype(np.uint8)
        return Payload(
            {"counts": torch.from_numpy(counts), "shared": torch.from_numpy(shared)}
        )

    def _here(self) -> list[str]:
        """Sites that take part and are counted."""
        return [site for site in self.board.attending if site in self._members]

    def _begin(self, phase: str, number: int) -> dict[str, LocationUpload]:
        payload = Payload(self._told_parameters())
        settled = [site for site in self._here() if site in self._settled]
        calls = {site: self._closed(site, payload) for site in settled}
        channel = _channels(self.plan, training=phase == "begin")[0]
        return self.board.ask((phase, number), calls, self._reader(channel))

    def _told_parameters(self) -> dict[str, Tensor]:
        return {f"parameter/{name}": one for name, one in self.parameters.items()}

    def _closed(self, site: str, payload: Payload) -> Payload:
        """With the best look, and once the close of the last round that it was in."""
        told, tensors = {**payload.told, "best": self._best}, dict(payload.tensors)
        closing, rows = self._closing.pop(site, (None, None))
        if closing is not None:
            told["closing"] = [closing.round, closing.scale]
        if rows is not None:
            tensors["closing/rows"] = rows
        return Payload(tensors, told)

    def _pass_on(
        self, uploads: dict[str, LocationUpload], channels: list[str], number: int
    ) -> dict[str, LocationUpload]:
        """All exchanges but the reply to the last."""
        for channel, following in pairwise(channels):
            uploads = self._reply(uploads, (channel, number), self._reader(following))
        return uploads

    def _reader(self, channel: str) -> Callable[[str, Parcel], LocationUpload]:
        def read(site: str, answer: Parcel) -> LocationUpload:
            return self._answers.upload(site, answer, channel, self._require_table())

        return read

    def _reply(
        self,
        uploads: Mapping[str, LocationUpload],
        moment: tuple[str, int],
        read: Callable[[str, Parcel], T],
    ) -> dict[str, T]:
        back = self._require_table().replies(uploads)
        calls = {site: Payload({"rows": rows}) for site, rows in back.items()}
        channel, number = moment
        return self.board.ask((f"reply {channel}", number), calls, read)

    def _require_table(self) -> Table:
        if self._table is None:
            raise DataError("no counts of people yet")
        return self._table


def _all(announced: Mapping[str, Announced], name: str) -> dict[str, Any]:
    """What every site must have announced."""
    found = {site: getattr(one, name) for site, one in announced.items()}
    if missing := [site for site, one in found.items() if one is None]:
        raise DataError(f"{', '.join(missing)} announced no {name}")
    return found


def _nothing(site: str, answer: Parcel) -> None:
    """An answer that says no more than that all is well."""


def _mean_loss(told: list[tuple[float, float] | None], number: int) -> float:
    known = [one for one in told if one is not None]
    if not known:
        return math.nan
    loss, weight = (sum(part) for part in zip(*known, strict=True))
    return require_loss(loss, weight, number)


def _channels(plan: PrivacyPlan, training: bool) -> list[str]:
    """The exchanges of a pass in their order."""
    if not training:
        return [f"scoring/{layer}" for layer in range(plan.layers)]
    channels = [f"upload/{layer}" for layer in range(plan.layers)]
    if plan.way.exchanged:
        channels += [f"return/{layer}" for layer in reversed(range(plan.layers))]
    return channels
