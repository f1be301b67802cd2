"""The fast engine: everybody in one cohort, edges never made, noise drawn in sums.

The same arithmetic as with messages. What differs is only how rows are carried:
one fused product instead of uploads and replies, and for each group of edges
one Gaussian instead of one for each upload, which is the same joint
distribution for all that people receive.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError
from epifalcon.federation import client, server
from epifalcon.federation.client import Cohort, Surroundings
from epifalcon.federation.engine import (
    EngineState,
    class_weights,
    pack,
    probabilities,
    record_scoring,
    require_loss,
    require_plan,
    run_pass,
    unpack,
)
from epifalcon.federation.plan import Draw, PrivacyPlan, RunSeeds
from epifalcon.federation.server import Model
from epifalcon.federation.view import Sampling, ServerView
from epifalcon.hypergraph.fused import EdgeSums, FusedOperator, Noise
from epifalcon.hypergraph.propagate import RowsOf, require_rows, view
from epifalcon.models.micro import (
    Exchange,
    initial_parameters,
    scoring_pass,
    training_pass,
)
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.ledger import Ledger
from epifalcon.streams import Streams
from epifalcon.types import Floats, Probabilities

_KINDS = ("upload", "return", "scoring")


@dataclass(frozen=True, eq=False)
class Passage:
    """Carries rows from people to edges and back, with the noise of all uploads."""

    operator: FusedOperator
    sigma: EdgeSums | None
    """Standard deviation of the noise on what groups pass on, and on what a person
    gets from edges of its own; None for no noise."""
    layers: int
    one_value: bool = False
    """Whether all columns share one noise value for each edge, and only uploads
    after round 0 have noise: the authors' program."""

    @classmethod
    def of(cls, cohort: Cohort, counts: Floats | None, plan: PrivacyPlan) -> "Passage":
        """Build the passage under ``plan``; ``counts``, (edges,), are None if true."""
        operator, upload = FusedOperator.of(cohort.incidence, counts), plan.upload
        if upload is None or upload.sigma <= 0:
            return cls(operator, None, plan.layers)
        # In the program the mean of an edge has the noise of a mean of uploads,
        # pseudo uploads included, although these never enter the mean.
        uploads = cohort.uploads
        squared = 1 / uploads if upload.one_value else uploads / operator.counts**2
        variance = operator.sum_edges(squared)
        sigma = EdgeSums(
            upload.sigma * np.sqrt(variance.group),
            upload.sigma * np.sqrt(variance.person),
        )
        return cls(operator, sigma, plan.layers, upload.one_value)

    def carry(
        self, exchange: Exchange, seed: int, kind: str, round_number: int
    ) -> Tensor:
        """Return what comes back in a pass of ``kind``: upload, return or scoring."""
        require_rows(exchange.rows, self.operator.people, "people")
        rows, noise = view(exchange.rows), None
        _require_finite(rows, exchange, round_number)
        if self.sigma is not None:
            place = _KINDS.index(kind) * self.layers + exchange.layer
            key = Draw(seed, round_number, place).key
            noise = Noise(self.sigma.group, self.sigma.person, key)
        upload = exchange.kind == "upload"
        after = self.operator.share if upload else None
        if self.one_value:
            passed = self.operator.apply(rows, after)
            if upload and round_number > 0 and noise is not None:
                zero = np.zeros((len(rows), 1), rows.dtype)
                passed += self.operator.apply(zero, after, noise)
        else:
            passed = self.operator.apply(rows, after, noise)
        _require_finite(passed, exchange, round_number)
        return torch.from_numpy(passed)


def _require_finite(rows: RowsOf, exchange: Exchange, number: int) -> None:
    if not np.isfinite(rows).all():
        raise DataError(
            f"{exchange.channel} in round {number}: an upload holds NaN or "
            "infinity; nothing was passed on. Is learning_rate too large?"
        )


class VectorisedEngine:
    """All people of ``cohort`` as one batch of tensors.

    No upload is ever formed, so a ``view`` must name a sample of people. What it
    is shown of them has the same rows, and noise of the same distribution as, but
    not the same draw as, the sums that train (see ``view``): those stay what
    they are without a view, bit by bit.
    """

    def __init__(
        self,
        cohort: Cohort,
        settings: FalconSettings,
        plan: PrivacyPlan,
        seed: int,
        ledger: Ledger | None = None,
        view: ServerView | None = None,
    ) -> None:
        require_plan(cohort.incidence, settings, plan, len(cohort.pseudo))
        self.settings, self.plan = settings, plan
        self.ledger = Ledger(plan.budget) if ledger is None else ledger
        self._cohort, self._seeds = cohort, RunSeeds(seed)
        width = 0 if cohort.state is None else cohort.state.shape[1]
        rng = self._seeds.parameters()
        self._model = Model.of(initial_parameters(settings, width, rng))
        self._home = client.first_home(cohort, settings, self._seeds)
        self._round = 0
        self._opened: tuple[Passage, Surroundings] | None = None
        self._shown: Sampling | None = None
        if view is not None:
            self._shown = Sampling(cohort, view, plan, self._seeds)

    @property
    def round(self) -> int:
        """Rounds done."""
        return self._round

    def step(self) -> float:
        """One round; returns its mean loss (see ``Engine.step``)."""
        number, settings = self._round, self.settings
        opening = () if number else self.plan.opening()
        self.ledger.record(*opening, *self.plan.round_receipts(number))
        passage, around = self._open()
        parameters = self._model.parameters
        home, entry = client.training_inputs(
            self._cohort, self._home, around, parameters, settings, self._seeds, number
        )
        weights = class_weights(settings)
        work = training_pass(parameters, home, self.plan.way, weights)
        if self._shown is not None:
            self._shown.broadcast(number, parameters)
        result = run_pass(work, lambda one: self._carry(passage, one, one.kind, number))
        loss = require_loss(result.loss, result.weight, number)
        uses = client.all_uses(result, entry)
        upload = client.gradient_upload(
            self._cohort, uses, result.weight, self.plan, self._seeds, number
        )
        if self._shown is not None:
            self._shown.gradients(uses, number)
        model, closing = server.step(self._model, [upload], settings)
        if self.plan.weight_sigma is not None:
            sigma = self.plan.weight_sigma * len(self._cohort.people) ** -0.5
            sigma *= settings.learning_rate_at(number + 1)
            source = self._seeds.gradient(self.plan.gradient_terms(number), 0)
            model = server.noised(model, sigma, source)
        kept = client.close_round(
            self._cohort,
            self._home,
            result,
            closing,
            settings,
            self._seeds,
            self.plan.way.exchanged,
        )
        if self.plan.step_clip is not None:
            kept = client.clip_step(self._home, kept, self.plan.step_clip)
        self._model, self._home, self._round = model, kept, number + 1
        return loss

    def scores(self, fresh: bool) -> Probabilities:
        """Probability of infection of everybody (see ``Engine.scores``)."""
        received = self._home.received
        if fresh:
            received = self._score_pass()
        state = self._cohort.state
        return probabilities(self._model, self.settings, self.plan, received, state)

    def _score_pass(self) -> Tensor:
        record_scoring(self.ledger, self.plan, self._round)
        passage, around = self._open()
        parameters = self._model.parameters
        home = client.scoring_inputs(
            self._cohort, self._home, around, self.settings, parameters
        )
        work = scoring_pass(parameters, home, self.plan.way)
        number = self._round
        return run_pass(work, lambda one: self._carry(passage, one, "scoring", number))

    def _carry(
        self, passage: Passage, exchange: Exchange, kind: str, number: int
    ) -> Tensor:
        came = passage.carry(exchange, self._seeds.noise, kind, number)
        if self._shown is not None:
            self._shown.uploads(exchange, number, kind)
        return came

    def state(self) -> EngineState:
        """All that a checkpoint must hold."""
        return EngineState(self._round, pack(self._model, self._home), self.ledger.head)

    def restore(self, state: EngineState) -> None:
        """Go on from ``state``."""
        self._model, self._home = unpack(state, self._model, self._home)
        self._round = state.round

    def _open(self) -> tuple[Passage, Surroundings]:
        if self._opened is None:
            counts = self._counts()
            inc = self._cohort.incidence
            divisor = inc.size.astype(np.float64) if counts is None else counts
            around = client.settle(inc, divisor, self.settings)
            passage = Passage.of(self._cohort, counts, self.plan)
            if self._shown is not None:
                self._shown.crowd()
            self._opened = passage, around
        return self._opened

    def _counts(self) -> Floats | None:
        """Noisy counts at the true edges, as the server would find them."""
        if self.plan.presence is None:
            return None
        rng = Streams(self._seeds.noise).numpy("counts")
        inc, sigma = self._cohort.incidence, self.plan.presence.sigma
        noise = sigma * np.sqrt(self._cohort.uploads) * rng.standard_normal(inc.edges)
        return server.at_least_one(inc.size + noise)
