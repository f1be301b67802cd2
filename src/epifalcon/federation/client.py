"""Client side of a round: stateless computations on one cohort's people.

A cohort is one person (a phone) or many (a hospital, a telecom company); the
result of a round does not depend on how people are split into cohorts.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.errors import SettingsError
from epifalcon.federation.messages import (
    EndOfRound,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds, draw_key
from epifalcon.hypergraph.incidence import EdgeKeys, Incidence, distinct_members
from epifalcon.hypergraph.propagation import inverse, sum_to_edges, sum_to_people
from epifalcon.models.person_model import (
    Exchange,
    LinearActivations,
    LocalInputs,
    Moments,
    Parameters,
    PassResult,
    adam_step,
    dropout_mask,
    scores,
    scoring_pass,
    status_inputs,
    training_pass,
)
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.clipping import clip_rows
from epifalcon.privacy.dpsgd import LinearTape, clipped_sum, private_mean
from epifalcon.privacy.events import ONE_VECTOR, Terms
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, add_keyed, keyed_normals
from epifalcon.privacy.uploads import Claims, perturb
from epifalcon.types import Floats, PersonIds, Probabilities

Work = Generator[Exchange, Tensor, PassResult]


@dataclass(frozen=True, eq=False)
class Cohort:
    """The people of one client and their local data."""

    people: NDArray[np.int64]
    """Index of each person in the whole city, (people,)."""
    incidence: Incidence
    """Hypergraph of the places that people visited; edge keys are those of the city."""
    status: NDArray[np.int8]
    """Test result of each person, (people,): 1 positive, 0 negative, -1 not tested."""
    state: Tensor | None = None
    """Region state of each person, (people, state width); None without region model."""
    pseudo: tuple[Incidence, ...] = ()
    """Hypergraphs of the pseudo traces, one per copy."""

    def restrict(self, people: PersonIds | Sequence[int]) -> "Cohort":
        """Return the cohort of the given people, by position in this cohort."""
        chosen = np.asarray(people, np.int64)
        return Cohort(
            self.people[chosen],
            self.incidence.restrict(chosen.astype(np.int32)),
            self.status[chosen],
            None if self.state is None else self.state[torch.from_numpy(chosen)],
            tuple(copy.restrict(chosen.astype(np.int32)) for copy in self.pseudo),
        )

    @cached_property
    def claims(self) -> Claims:
        """Distinct (person, place) claims, true or pseudo, ordered by edge key."""
        mine, *others = (
            np.repeat(inc.edge_key, inc.size) * inc.people + inc.by_edge.index
            for inc in (self.incidence, *self.pseudo)
        )
        codes = np.unique(np.concatenate([mine, *others]))
        key, row = np.divmod(codes, len(self.people))
        true = np.zeros(len(codes), np.bool_)
        true[np.searchsorted(codes, mine)] = True
        return Claims(self.people, row, key, true)

    @cached_property
    def claimed(self) -> tuple[EdgeKeys, NDArray[np.int64]]:
        """Keys of all claimed places, and the index of the first claim of each."""
        place = self.claims.place
        start = np.flatnonzero(np.diff(place, prepend=-1))
        return place[start], start

    @cached_property
    def uploads(self) -> NDArray[np.int64]:
        """Number of true and pseudo claims at each edge of ``incidence``, (edges,)."""
        return distinct_members(self.incidence, self.pseudo)


@dataclass(frozen=True, eq=False)
class PersonalState:
    """State of people between rounds."""

    rows: Tensor | None
    """Trained embeddings, (people, width); None if the test status is the input."""
    moments: Moments | None
    received: Tensor | None = None
    """Rows received by the last layer in the last round, (people, width)."""


@dataclass(frozen=True, eq=False)
class Client:
    """A cohort with the settings, privacy plan and random streams of its run."""

    cohort: Cohort
    settings: FalconSettings
    plan: PrivacyPlan
    seeds: RunSeeds

    def initial_state(self) -> PersonalState:
        """Return Gaussian initial embeddings, which depend only on seed and person."""
        settings = self.settings
        if settings.input == "status":
            return PersonalState(None, None)
        terms = Terms(channel="embedding", releases=ONE_VECTOR)
        people = NoiseRows.of_people(self.cohort.people)
        key = NoiseKey(self.seeds.embedding, terms)
        drawn = keyed_normals(key, people, settings.width)
        rows = torch.from_numpy(settings.embedding_scale * drawn).to(settings.dtype)
        return PersonalState(rows, Moments.of(rows))

    def presence_upload(self) -> PresenceUpload:
        """Count people at each claimed place, with the noise that the plan sets."""
        cohort, plan = self.cohort, self.plan
        if not plan.is_private:
            size = cohort.incidence.size.astype(np.float64)
            return PresenceUpload(cohort.incidence.edge_key, size)
        claims = cohort.claims
        ones = torch.from_numpy(claims.true.astype(np.float64)).unsqueeze(1)
        if plan.presence is not None:
            key = self._key("counts", 0)
            ones = add_keyed(ones, plan.presence.sigma, claims.noise_rows(), key)
        keys, start = cohort.claimed
        return PresenceUpload(keys, _sums(ones, start)[:, 0].numpy())

    @cached_property
    def share(self) -> Tensor:
        """Inverse degree 1 / deg(u), (people, 1)."""
        share = torch.from_numpy(inverse(self.cohort.incidence.degree)).unsqueeze(1)
        return share.to(self.settings.dtype)

    def self_weight(self, counts: Floats) -> Tensor:
        """Compute the weight of a person's own row, (1/deg u) sum_e 1/n_e, (people, 1).

        ``counts`` (edges,) are the people at each true edge.
        """
        inc = self.cohort.incidence
        own = inverse(inc.degree) * (inc.matrix.T @ (1 / counts))
        return torch.from_numpy(own).unsqueeze(1).to(self.settings.dtype)

    def training(
        self,
        state: PersonalState,
        self_weight: Tensor,
        parameters: Parameters,
        number: int,
    ) -> tuple[Work, LinearActivations | None]:
        """Start a training pass; also return the input layer's activations, if any."""
        cohort, settings = self.cohort, self.settings
        masks = [self._dropout(number, layer) for layer in range(settings.layers + 1)]
        entry = masks[0]
        if state.rows is not None:
            rows, target, use = state.rows, cohort.status, None
            if entry is not None:
                rows = rows * entry
        else:
            shown, target = self.masked_status(number)
            inputs = status_inputs(shown, settings.dtype)
            rows = inputs @ parameters["input.weight"].T
            factor = torch.ones_like(rows) if entry is None else entry
            rows = rows * factor
            use = LinearActivations("input.weight", None, inputs, factor)
        given = self._inputs(rows, target, self_weight, tuple(masks[1:]))
        weights = settings.class_weights
        by_class = None if weights is None else torch.tensor(weights, dtype=rows.dtype)
        return training_pass(parameters, given, self.plan.exchange_rules, by_class), use

    def scoring(
        self, state: PersonalState, self_weight: Tensor, parameters: Parameters
    ) -> Generator[Exchange, Tensor, Tensor]:
        """Start a forward pass with all test results as input and without dropout."""
        rows = state.rows
        if rows is None:
            inputs = status_inputs(self.cohort.status, self.settings.dtype)
            rows = inputs @ parameters["input.weight"].T
        no_dropout = (None,) * self.settings.layers
        given = self._inputs(rows, self.cohort.status, self_weight, no_dropout)
        return scoring_pass(parameters, given, self.plan.exchange_rules)

    def _inputs(
        self,
        rows: Tensor,
        target: NDArray[np.int8],
        self_weight: Tensor,
        dropout: tuple[Tensor | None, ...],
    ) -> LocalInputs:
        share, state = self.share, self._state
        return LocalInputs(rows, state, target, share, self_weight, dropout)

    @property
    def _state(self) -> Tensor | None:
        state = self.cohort.state
        return None if state is None else state.to(self.settings.dtype)

    def masked_status(self, number: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """Split the test results of a round at random into inputs and targets."""
        cohort, key = self.cohort, draw_key(self.seeds.mask, number)
        share = min(self.settings.mask_share, 1 - 2**-32)
        drawn = dropout_mask(cohort.people, 1, share, key)
        hidden, unknown = drawn[:, 0] == 0, np.int8(-1)
        shown = np.where(hidden, unknown, cohort.status)
        return shown, np.where(hidden, cohort.status, unknown)

    def _dropout(self, number: int, layer: int) -> Tensor | None:
        settings = self.settings
        dropout = settings.dropout if layer else settings.input_dropout
        if not dropout:
            return None
        key = draw_key(self.seeds.dropout, number, layer)
        factors = dropout_mask(self.cohort.people, settings.width, dropout, key)
        return torch.from_numpy(factors).to(settings.dtype)

    def location_upload(
        self, exchange: Exchange, channel: str, number: int, each_upload: bool = False
    ) -> LocationUpload:
        """Return the upload of one exchange at all claimed places (EmbeddingCal).

        In private modes each claim is clipped and noised separately. Rows are then
        summed per place unless ``each_upload`` is set.
        """
        cohort, rows = self.cohort, exchange.rows
        sender: NDArray[np.int64] | None = None
        if self.plan.upload is None:
            inc = cohort.incidence
            keys, sent = inc.edge_key, rows
            if each_upload:
                place = inc.by_edge.index.astype(np.int64)
                keys, sender = np.repeat(keys, inc.size), cohort.people[place]
                sent = rows[torch.from_numpy(place)]
            else:
                sent = sum_to_edges(rows, inc)
            return LocationUpload(number, channel, keys, sent, sender)
        claims = cohort.claims
        sent = perturb(rows, claims, self.plan.upload, self._key(channel, number))
        if each_upload:
            keys, sender = claims.place, cohort.people[claims.row]
        else:
            keys, start = cohort.claimed
            sent = _sums(sent, start)
        return LocationUpload(number, channel, keys, sent, sender)

    def receive(
        self, exchange: Exchange, keys: EdgeKeys, sums: Tensor, counts: Floats
    ) -> Tensor:
        """Compute each person's received row from the server's sums at ``keys``."""
        inc = self.cohort.incidence
        place = inc.places_in(keys)
        people = torch.from_numpy(counts[place]).unsqueeze(1)
        means = sums[torch.from_numpy(place)] / people.to(sums.dtype)
        passed = sum_to_people(means, inc)
        return passed * self.share if exchange.kind == "upload" else passed

    def gradient_upload(
        self, uses: Sequence[LinearActivations], weight: float, number: int
    ) -> GradientUpload:
        """Sum all people's gradients, clipped and noised according to the plan."""
        people, mechanism = self.cohort.people, self.plan.gradient
        if mechanism is None:
            sums = {use.weight: use.weight_gradient() for use in uses}
            sums |= {use.bias: use.outputs.sum(dim=0) for use in uses if use.bias}
            return GradientUpload(number, sums, len(people), weight)
        tapes = [LinearTape(u.weight, u.inputs, u.outputs, u.bias) for u in uses]
        terms = self.plan.gradient_terms(number)
        generator = self.seeds.gradient(terms, int(people[0]))
        clipped = clipped_sum(tapes, mechanism.clip)
        mean = private_mean(clipped, mechanism, terms, generator)
        sums = {name: value * len(people) for name, value in mean.items()}
        return GradientUpload(number, sums, len(people), None)

    def close_round(
        self, state: PersonalState, result: PassResult, closing: EndOfRound
    ) -> PersonalState:
        """Update people's embeddings by one step of Adam (algorithm 2, line 8)."""
        if state.rows is None or state.moments is None:
            return replace(state, received=result.received)
        gradient = result.row_gradient
        if (entry := self._dropout(closing.round, 0)) is not None:
            gradient = gradient * entry
        if self.plan.exchange_rules.exchanged:
            gradient = gradient * closing.scale
        before = {"rows": state.rows}, {"rows": gradient}, {"rows": state.moments}
        made, moments = adam_step(*before, closing.round + 1, self.settings)
        rows, clip = made["rows"], self.plan.step_clip
        if clip is not None:
            rows = state.rows + clip_rows(rows - state.rows, clip)
        return PersonalState(rows, moments["rows"], result.received)

    def probabilities(
        self, parameters: Parameters, received: Tensor | None
    ) -> Probabilities:
        """Compute infection probabilities, (people,), from the last received rows."""
        if received is None:
            raise SettingsError("no round has been run: train or run a scoring pass")
        read = self.plan.exchange_rules.upload.decode(received)
        found = scores(parameters, self.settings.layers, read, self._state)
        return found.double().numpy()

    def _key(self, channel: str, number: int) -> NoiseKey:
        return NoiseKey(self.seeds.noise, self.plan.terms(channel, number))


def _sums(rows: Tensor, start: NDArray[np.int64]) -> Tensor:
    """Sum consecutive groups of rows; ``start`` is the first index of each group."""
    if not len(start):
        return rows
    return torch.from_numpy(np.add.reduceat(rows.numpy(), start, axis=0))


def all_uses(
    result: PassResult, entry: LinearActivations | None
) -> tuple[LinearActivations, ...]:
    """Return the activations of all linear layers of a pass, ``entry`` included."""
    if entry is None:
        return result.uses
    return *result.uses, replace(entry, outputs=entry.outputs * result.row_gradient)
