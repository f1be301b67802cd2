"""The fast engine: everybody in one cohort, edges never made, noise drawn in sums.

The same arithmetic as with messages. What differs is only how rows are carried:
one fused product instead of uploads and replies, and for each group of edges
one Gaussian instead of one for each upload, which is the same joint
distribution for all that people receive (``hypergraph.noise``).
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from epifalcon.errors import DataError, SettingsError
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
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.sampling import Sampling
from epifalcon.federation.server import Model
from epifalcon.federation.view import ServerView
from epifalcon.hypergraph.merging import ALONE, Groups
from epifalcon.hypergraph.noise import Draw
from epifalcon.hypergraph.operator import SILENT, Noise, Operator
from epifalcon.hypergraph.propagate import require_rows, view
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
class CountedGroups(Groups):
    """Groups whose edges are divided by counts other than their members."""

    summed: Floats
    """(groups,) the sum of 1/n_e over the merged edges."""

    @property
    def weight(self) -> Floats:
        """The sum of 1/n_e."""
        return self.summed


@dataclass(frozen=True, eq=False)
class CountedOperator(Operator):
    """H diag(1/n_e) H' with counts n_e of any source."""

    lone: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def alone(self) -> Floats:  # type: ignore[override]
        """The sum of 1/n_e over the edges in which the person was alone."""
        return self.lone


@dataclass(frozen=True, eq=False)
class Passage:
    """Carries rows from people to edges and back, with the noise of all uploads."""

    operator: Operator
    group_sigma: Floats
    """(groups,) noise on what a group passes on; empty for none."""
    person_sigma: Floats
    """(people,) noise on what a person gets from edges of its own."""
    layers: int
    one_value: bool = False
    """Whether all columns share one noise value for each edge, and only uploads
    after round 0 have noise: the authors' program."""

    @classmethod
    def of(cls, cohort: Cohort, counts: Floats | None, plan: PrivacyPlan) -> "Passage":
        """The passage under ``plan``; ``counts``, (edges,), are None if true."""
        inc = cohort.incidence
        noisy = plan.upload is not None and plan.upload.sigma > 0
        operator = Operator.of(inc)
        divisor = inc.size.astype(np.float64) if counts is None else counts
        if counts is not None:
            group, lone = _by_group(operator, 1 / divisor)
            whole = operator.groups
            groups = CountedGroups(whole.rows, whole.edges, whole.group_of_edge, group)
            operator = CountedOperator(
                groups, operator.person_alone, operator.degree, lone
            )
        empty = np.zeros(0)
        group_sigma, person_sigma = empty, empty
        if noisy and plan.upload is not None:
            uploads = cohort.uploads
            # In the program the mean of an edge has the noise of a mean of uploads,
            # pseudo uploads included, although these never enter the mean.
            squared = 1 / uploads if plan.upload.one_value else uploads / divisor**2
            variance = _by_group(operator, squared)
            group_sigma, person_sigma = (
                plan.upload.sigma * np.sqrt(one) for one in variance
            )
        one_value = plan.upload is not None and plan.upload.one_value
        return cls(operator, group_sigma, person_sigma, plan.layers, one_value)

    def carry(self, exchange: Exchange, seed: int, turn: tuple[str, int]) -> Tensor:
        """What comes back for the rows; ``turn`` is the kind of pass and the round."""
        rows = exchange.rows
        require_rows(rows, self.operator.people, "people")
        place = _KINDS.index(turn[0]) * self.layers + exchange.layer
        noise = SILENT
        if len(self.group_sigma) or len(self.person_sigma):
            key = Draw(seed, turn[1], place).key
            noise = Noise(self.group_sigma, self.person_sigma, key)
        after = self.operator.share if exchange.kind == "upload" else None
        if self.one_value:
            passed = self.operator.symmetric(view(rows), None, after, SILENT)
            if exchange.kind == "upload" and turn[1] > 0 and noise is not SILENT:
                zero = np.zeros((len(rows), 1), view(rows).dtype)
                alone = self.operator.symmetric(zero, None, after, noise)
                np.add(passed.rows, alone.rows, out=passed.rows)
        else:
            passed = self.operator.symmetric(view(rows), None, after, noise)
        if not passed.finite:
            raise DataError(
                f"{exchange.channel} in round {turn[1]}: an upload holds NaN or "
                "infinity; nothing was passed on. Is learning_rate too large?"
            )
        return torch.from_numpy(passed.rows)


def _by_group(operator: Operator, value: Floats) -> tuple[Floats, Floats]:
    """Sums of a value of each edge: (groups,), and (people,) over lonely edges."""
    group = operator.groups.group_of_edge
    joined = group != ALONE
    return (
        np.bincount(group[joined], value[joined], len(operator.groups)).astype(float),
        np.bincount(operator.person_alone, value[~joined], operator.people).astype(
            float
        ),
    )


class VectorisedEngine:
    """All people of ``cohort`` as one batch of tensors.

    No upload is ever formed, so a ``view`` must name a sample of people. What it
    is shown of them has the same rows, and noise of the same distribution as, but
    not the same draw as, the sums that train (see ``sampling``): those stay what
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
            if view.sample is None:
                raise SettingsError(
                    "the fast engine forms no uploads: name the people of the view's "
                    "sample, or run with messages (CohortEngine)"
                )
            self._shown = Sampling((cohort,), view, plan, self._seeds)

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
        run = settings, self._seeds, number
        parameters = self._model.parameters
        home, entry = client.training_inputs(
            self._cohort, self._home, around, run, parameters
        )
        weights = class_weights(settings)
        work = training_pass(parameters, home, self.plan.way, weights)
        if self._shown is not None:
            self._shown.broadcast(number, parameters)
        result = run_pass(
            work, lambda one: self._carry(passage, one, (one.kind, number))
        )
        loss = require_loss(result.loss, result.weight, number)
        uses = client.all_uses(result, entry)
        upload = client.gradient_upload(
            self._cohort, uses, result.weight, self.plan, (self._seeds, number)
        )
        if self._shown is not None:
            self._shown.gradients([uses], number)
        model, closing = server.step(self._model, [upload], settings)
        if self.plan.weight_sigma is not None:
            sigma = self.plan.weight_sigma * len(self._cohort.people) ** -0.5
            sigma *= settings.learning_rate_at(number + 1)
            source = self._seeds.gradient(self.plan.gradient_terms(number), 0)
            model = server.noised(model, sigma, source)
        end = settings, self._seeds, self.plan.way.exchanged
        kept = client.close_round(self._cohort, self._home, result, closing, end)
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
        turn = "scoring", self._round
        return run_pass(work, lambda one: self._carry(passage, one, turn))

    def _carry(
        self, passage: Passage, exchange: Exchange, turn: tuple[str, int]
    ) -> Tensor:
        came = passage.carry(exchange, self._seeds.noise, turn)
        if self._shown is not None:
            self._shown.uploads([exchange], turn[1], turn[0])
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
