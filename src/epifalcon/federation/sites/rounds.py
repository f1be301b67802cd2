"""A cohort's side of the rounds, a message at a time.

``client`` and ``carrying`` have the arithmetic; this holds what lies between two
messages: the pass that waits for its reply, and what the server told.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation import client
from epifalcon.federation.client import Cohort, Home
from epifalcon.federation.engine import advance, class_weights, probabilities
from epifalcon.federation.messages import (
    Broadcast,
    Closing,
    GradientUpload,
    PresenceUpload,
)
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.server import Model
from epifalcon.federation.sites.carrying import (
    ByGroup,
    ByPerson,
    ByPlace,
    Carrier,
    Told,
)
from epifalcon.models.micro import (
    Exchange,
    LinearUse,
    PassResult,
    scoring_pass,
    training_pass,
)
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.types import Floats, Mask, Probabilities

_BEYOND = 1e15
"""Squares of it, and sums of them, still are numbers in any precision."""
Sent = dict[str, Tensor]
"""An upload by the names of its parts."""


@dataclass(frozen=True, eq=False)
class _Pass:
    """A pass that waits for what comes back for ``exchange``."""

    number: int
    kind: str | None
    """None for a training pass, else how its channels are called."""
    work: Generator[Exchange, Tensor, Any]
    entry: LinearUse | None
    rows: Tensor
    """(people, width) that entered the pass."""
    exchange: Exchange

    @property
    def ends(self) -> bool:
        """Whether nothing but the step at home needs the reply.

        A status input has no rows at home: there the reply makes a gradient.
        """
        exchange = self.exchange
        return exchange.kind == "return" and not exchange.layer and self.entry is None

    @property
    def channel(self) -> str:
        """Of what was sent."""
        return f"{self.kind or self.exchange.kind}/{self.exchange.layer}"


@dataclass(frozen=True, eq=False)
class Trained:
    """A training pass that has ended and waits for the close of its round."""

    number: int
    result: PassResult
    owed: _Pass | None = None
    """With the exchange whose reply comes with the close."""


class CohortRounds:
    """One cohort in a run; with ``rows`` each person's row leaves by itself."""

    home: Home

    def __init__(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seeds: RunSeeds,
        rows: bool = False,
    ) -> None:
        self.cohort, self.settings, self.plan = cohort, settings, plan
        self.home = client.first_home(cohort, settings, seeds)
        self._seeds = seeds
        self._carrier = _carrier(cohort, plan, rows)
        self._presence: PresenceUpload | None = None
        self._told: Told | None = None
        self._pass: _Pass | None = None
        self._trained: Trained | None = None
        self._scored: Tensor | None = None
        self._model: Model | None = None

    def announce(self) -> tuple[PresenceUpload, Sent]:
        """The places claimed and how many are there; what else rows need to travel."""
        self._presence = client.announce(self.cohort, self.plan, self._seeds)
        return self._presence, self._carrier.announced()

    def settle(self, counts: Floats, shared: Mask) -> None:
        """Take what the server told of the announced places, in their order."""
        if self._presence is None:
            raise DataError("nothing was announced yet")
        keys = self._presence.keys
        if len(counts) != len(keys) or len(shared) != len(keys):
            raise DataError(
                f"counts of {len(counts)} and marks of {len(shared)} places, "
                f"{len(keys)} were announced"
            )
        if not (np.isfinite(counts).all() and (counts >= 1).all()):
            raise DataError("a count of people is less than 1 or no number")
        inc = self.cohort.incidence
        around = client.settle(inc, counts[inc.places_in(keys)], self.settings)
        self._told = Told(keys, counts, shared, around)

    def begin(self, call: Broadcast) -> Sent:
        """Begin a training pass, dropping one that was not closed."""
        self._pass = self._trained = None
        self.take_model(call.parameters)
        run = self.settings, self._seeds, call.round
        around = self._require_told().around
        inputs, entry = client.training_inputs(
            self.cohort, self.home, around, run, call.parameters
        )
        weights = class_weights(self.settings)
        work = training_pass(call.parameters, inputs, self.plan.way, weights)
        return self._first(call.round, None, work, (entry, inputs.rows))

    def begin_scoring(self, call: Broadcast) -> Sent:
        """Begin a forward pass, dropping a training pass that was not closed.

        ``scores`` are then those of the pass.
        """
        self._pass = self._trained = self._scored = None
        self.take_model(call.parameters)
        around = self._require_told().around
        inputs = client.scoring_inputs(
            self.cohort, self.home, around, self.settings, call.parameters
        )
        work = scoring_pass(call.parameters, inputs, self.plan.way)
        return self._first(call.round, "scoring", work, (None, inputs.rows))

    @property
    def waiting(self) -> tuple[int, str]:
        """Round and channel of the upload whose reply is waited for."""
        if self._pass is None:
            raise DataError("no pass waits for a reply")
        return self._pass.number, self._pass.channel

    def go_on(self, came: Tensor) -> tuple[Sent, GradientUpload | None]:
        """Go on with what came back: the next upload, and what ends a pass.

        A training pass ends with the gradients; they leave with its last upload
        where they do not need the reply. A scoring pass ends with nothing.
        """
        waiting = self._pass
        if waiting is None:
            raise DataError("no pass waits for a reply")
        received = self._carrier.received(waiting.exchange, came, self._require_told())
        exchange, result = advance(waiting.work, received)
        if exchange is None:
            self._pass = None
            if waiting.kind is None:
                return {}, self._end(waiting, cast(PassResult, result))
            self._scored = result
            return {}, None
        following = replace(waiting, exchange=exchange)
        sent = self._send(following)
        if not following.ends:
            return sent, None
        self._pass = None
        # Of the result only the rows' gradient is made of the reply, in ``close``.
        _, result = advance(following.work, torch.zeros_like(exchange.rows))
        return sent, self._end(following, cast(PassResult, result), following)

    def close(self, closing: Closing, came: Tensor | None = None) -> None:
        """Take the step of the round that has ended; any other is refused.

        ``came`` is the reply to the last upload, where that is still owed.
        """
        trained = self._trained
        if trained is None or trained.number != closing.round:
            raise DataError(f"no pass of round {closing.round} waits for its close")
        result = trained.result
        if (owed := trained.owed) is not None:
            if came is None:
                raise DataError("the reply to the last upload is missing")
            told, way = self._require_told(), self.plan.way
            received = self._carrier.received(owed.exchange, came, told)
            gradient = way.upload.pull(owed.rows, way.returned.read(received))
            result = replace(result, row_gradient=gradient)
        run = self.settings, self._seeds, self.plan.way.exchanged
        self.home = client.close_round(self.cohort, self.home, result, closing, run)
        self._trained = None

    def scores(self, fresh: bool) -> Probabilities:
        """Probability of infection of the cohort, (people,), by the last model told.

        From the scoring pass that has just ended, or from what the last closed
        round left at home.
        """
        if self._model is None:
            raise DataError("no model was told yet")
        received = self._scored if fresh else self.home.received
        state = self.cohort.state
        return probabilities(self._model, self.settings, self.plan, received, state)

    def take_model(self, parameters: dict[str, Tensor]) -> None:
        """Take parameters to score with."""
        self._model = Model(parameters, {})

    @property
    def loss(self) -> float:
        """Sum of the losses of the pass that has ended; for nobody but the cohort."""
        if self._trained is None:
            raise DataError("no training pass has ended")
        return self._trained.result.loss

    def _first(
        self,
        number: int,
        kind: str | None,
        work: Generator[Exchange, Tensor, Any],
        entered: tuple[LinearUse | None, Tensor],
    ) -> Sent:
        exchange, _ = advance(work, None)
        if exchange is None:
            raise DataError("a pass without any exchange")
        return self._send(_Pass(number, kind, work, *entered, exchange))

    def _send(self, waiting: _Pass) -> Sent:
        if self.plan.upload is not None:
            # Whether an answer comes must not depend on anybody's numbers.
            exchange = waiting.exchange
            calm = replace(exchange, rows=usable(exchange.rows))
            waiting = replace(waiting, exchange=calm)
        self._pass = waiting
        terms = self.plan.terms(waiting.channel, waiting.number)
        key = NoiseKey(self._seeds.noise, terms)
        return self._carrier.sent(waiting.exchange, key, self._require_told())

    def _end(
        self, waiting: _Pass, result: PassResult, owed: _Pass | None = None
    ) -> GradientUpload:
        uses = client.all_uses(result, waiting.entry)
        if self.plan.gradient is not None:
            uses = tuple(
                replace(one, inputs=usable(one.inputs), outputs=usable(one.outputs))
                for one in uses
            )
        where = self._seeds, waiting.number
        upload = client.gradient_upload(
            self.cohort, uses, result.weight, self.plan, where
        )
        self._trained = Trained(waiting.number, result, owed)
        return upload

    def _require_told(self) -> Told:
        if self._told is None:
            raise DataError("the counts of people were not told yet")
        return self._told


def usable(rows: Tensor) -> Tensor:
    """``rows`` with zeros for a person whose row is no number, or beyond all use.

    Parameters made for it can drive the rows of some people there and not those of
    others: an error, or a NaN that no noise covers, would tell who they are.
    """
    if not rows.numel() or float(rows.abs().max()) <= _BEYOND:
        return rows
    within = (rows.abs() <= _BEYOND).flatten(1).all(dim=1)
    return torch.where(within.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def _carrier(cohort: Cohort, plan: PrivacyPlan, rows: bool) -> Carrier:
    if plan.upload is not None:
        return ByPlace(cohort, plan, rows)
    if rows:
        return ByPerson(cohort.incidence)
    return ByGroup(cohort.incidence)
