"""What a cohort computes of its own people: pure functions on its own arrays.

A cohort is one person (a phone) or many (a hospital, a telecom company); the
result of a round does not depend on how people are split into cohorts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epifalcon.checks import same_length
from epifalcon.errors import DataError
from epifalcon.federation.messages import (
    Closing,
    GradientUpload,
    LocationUpload,
    PresenceUpload,
)
from epifalcon.federation.plan import Draw, PrivacyPlan, RunSeeds
from epifalcon.hypergraph.incidence import (
    EdgeKeys,
    Incidence,
    distinct_members,
    sum_of_edges,
)
from epifalcon.hypergraph.propagate import inverse, sum_to_edges, sum_to_people
from epifalcon.models.micro import (
    Exchange,
    HomeInputs,
    LinearUse,
    Moments,
    Parameters,
    PassResult,
    adam_step,
    kept,
    status_inputs,
)
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.clipping import clip_rows
from epifalcon.privacy.dpsgd import LinearTape, clipped_sum, private_mean
from epifalcon.privacy.events import ONE_VECTOR, Terms
from epifalcon.privacy.gaussian import NoiseKey, NoiseRows, add_keyed, keyed_normals
from epifalcon.privacy.perturb import Claims, perturb
from epifalcon.types import Floats, PersonIds


@dataclass(frozen=True, eq=False)
class Cohort:
    """The people of one client and all that is known of them at home."""

    people: NDArray[np.int64]
    """(people,) number of each person in the whole city."""
    incidence: Incidence
    """Their true places, with the city's keys."""
    status: NDArray[np.int8]
    """(people,) 1 tested positive, 0 negative, -1 not tested."""
    state: Tensor | None = None
    """(people, state width) by ``state_of_people``; None without region model."""
    pseudo: tuple[Incidence, ...] = ()
    """Their pseudo places, a record for each copy."""

    def __post_init__(self) -> None:
        same_length(people=self.people, status=self.status)
        if self.incidence.people != len(self.people):
            raise DataError(
                f"the hypergraph has {self.incidence.people} people, "
                f"the cohort {len(self.people)}"
            )
        if not np.isin(self.status, (-1, 0, 1)).all():
            raise DataError("status must be 1, 0 or -1")
        if self.state is not None and len(self.state) != len(self.people):
            raise DataError(
                f"region states of {len(self.state)} people for {len(self.people)}"
            )
        shape = (self.incidence.people, self.incidence.regions, self.incidence.windows)
        for copy in self.pseudo:
            if (copy.people, copy.regions, copy.windows) != shape:
                raise DataError(
                    f"pseudo places of {copy.people} people, {copy.regions} regions "
                    f"and {copy.windows} windows, expected {shape}"
                )

    def restrict(self, people: PersonIds | Sequence[int]) -> "Cohort":
        """The cohort of some people, by their positions in this one."""
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
        """Every place claimed, true or pseudo, once, in the order of the keys."""
        mine, *others = (_codes(inc) for inc in (self.incidence, *self.pseudo))
        codes = np.unique(np.concatenate([mine, *others]))
        key, row = np.divmod(codes, len(self.people))
        true = np.zeros(len(codes), np.bool_)
        true[np.searchsorted(codes, mine)] = True
        return Claims(self.people, row, key, true)

    @cached_property
    def claimed(self) -> tuple[EdgeKeys, NDArray[np.int64]]:
        """The places claimed, each once, and where their claims begin."""
        place = self.claims.place
        start = np.flatnonzero(np.diff(place, prepend=-1))
        return place[start], start

    @cached_property
    def uploads(self) -> NDArray[np.int64]:
        """Claims, true or pseudo, at each true edge of the cohort: (edges,)."""
        return distinct_members(self.incidence, self.pseudo)


def _codes(inc: Incidence) -> NDArray[np.int64]:
    """Return each place of each person as key * people + position."""
    return np.repeat(inc.edge_key, inc.size) * inc.people + inc.by_edge.index


@dataclass(frozen=True, eq=False)
class Home:
    """What people keep from round to round; no rows for a status input."""

    rows: Tensor | None
    """(people, width) the free embeddings."""
    moments: Moments | None
    received: Tensor | None = None
    """(people, width) what the last layer received in the last round."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What people know of their edges: constant over the run."""

    share: Tensor
    """(people, 1) 1 / deg(u)."""
    self_weight: Tensor
    """(people, 1) c_u = (1/deg u) sum over e of 1/n_e."""


def first_home(cohort: Cohort, settings: FalconSettings, seeds: RunSeeds) -> Home:
    """Normal embeddings, each fixed by seed and person."""
    if settings.input == "status":
        return Home(None, None)
    key = NoiseKey(seeds.embedding, Terms(channel="embedding", releases=ONE_VECTOR))
    drawn = keyed_normals(key, NoiseRows.of_people(cohort.people), settings.width)
    rows = torch.from_numpy(settings.embedding_scale * drawn).to(settings.dtype)
    return Home(rows, Moments.of(rows))


def announce(cohort: Cohort, plan: PrivacyPlan, seeds: RunSeeds) -> PresenceUpload:
    """How many of the cohort are at each place that it claims."""
    if not plan.is_private:
        size = cohort.incidence.size.astype(np.float64)
        return PresenceUpload(cohort.incidence.edge_key, size)
    claims = cohort.claims
    ones = torch.from_numpy(claims.true.astype(np.float64)).unsqueeze(1)
    if plan.presence is not None:
        key = NoiseKey(seeds.noise, plan.terms("counts", 0))
        ones = add_keyed(ones, plan.presence.sigma, claims.noise_rows(), key)
    keys, start = cohort.claimed
    return PresenceUpload(keys, _sums(ones, start)[:, 0].numpy())


def settle(
    incidence: Incidence, counts: Floats, settings: FalconSettings
) -> Surroundings:
    """What follows from the counts, (edges,), at the cohort's true edges."""
    share = torch.from_numpy(inverse(incidence.degree)).unsqueeze(1)
    own = torch.from_numpy(sum_of_edges(1 / counts, incidence)).unsqueeze(1) * share
    return Surroundings(share.to(settings.dtype), own.to(settings.dtype))


def training_inputs(
    cohort: Cohort,
    home: Home,
    around: Surroundings,
    parameters: Parameters,
    settings: FalconSettings,
    seeds: RunSeeds,
    round_number: int,
) -> tuple[HomeInputs, LinearUse | None]:
    """Return what enters a round's pass.

    For a status input, also the linear map that made the rows, its outputs being the
    factors of dropout (the gradient follows later).
    """
    masks = tuple(
        _dropout(cohort, settings, Draw(seeds.dropout, round_number, layer))
        for layer in range(settings.layers + 1)
    )
    entry = masks[0]
    if home.rows is not None:
        rows, target, use = home.rows, cohort.status, None
        if entry is not None:
            rows = rows * entry
    else:
        shown, target = masked_status(cohort, settings, Draw(seeds.mask, round_number))
        inputs = status_inputs(shown, settings.dtype)
        rows = inputs @ parameters["input.weight"].T
        factor = torch.ones_like(rows) if entry is None else entry
        rows = rows * factor
        use = LinearUse("input.weight", None, inputs, factor)
    state = None if cohort.state is None else cohort.state.to(settings.dtype)
    return (
        HomeInputs(rows, state, target, around.share, around.self_weight, masks[1:]),
        use,
    )


def scoring_inputs(
    cohort: Cohort,
    home: Home,
    around: Surroundings,
    settings: FalconSettings,
    parameters: Parameters,
) -> HomeInputs:
    """What enters a forward pass: all known status shown, no dropout."""
    rows = home.rows
    if rows is None:
        inputs = status_inputs(cohort.status, settings.dtype)
        rows = inputs @ parameters["input.weight"].T
    state = None if cohort.state is None else cohort.state.to(settings.dtype)
    no_dropout = (None,) * settings.layers
    return HomeInputs(
        rows, state, cohort.status, around.share, around.self_weight, no_dropout
    )


def masked_status(
    cohort: Cohort, settings: FalconSettings, draw: Draw
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """The status that a round shows, and the one it asks for: (people,) each.

    A person is shown its own result or asked for it, never both.
    """
    drawn = kept(cohort.people, 1, min(settings.mask_share, 1 - 2**-32), draw.key)
    hidden = drawn[:, 0] == 0
    unknown = np.int8(-1)
    shown = np.where(hidden, unknown, cohort.status)
    return shown, np.where(hidden, cohort.status, unknown)


def _dropout(cohort: Cohort, settings: FalconSettings, draw: Draw) -> Tensor | None:
    dropout = settings.dropout if draw.layer else settings.input_dropout
    if not dropout:
        return None
    factors = kept(cohort.people, settings.width, dropout, draw.key)
    return torch.from_numpy(factors).to(settings.dtype)


def location_upload(
    cohort: Cohort,
    exchange: Exchange,
    plan: PrivacyPlan,
    key: NoiseKey,
    each_upload: bool = False,
) -> LocationUpload:
    """The cohort's rows at all places that it claims (algorithm 2, EmbeddingCal).

    ``key`` carries channel and round. With protection every claim has clip and
    noise of its own; they are then added up by place, unless ``each_upload``.
    """
    number, channel = key.terms.round, key.terms.channel
    if plan.upload is None:
        inc = cohort.incidence
        if not each_upload:
            sums = sum_to_edges(exchange.rows, inc)
            return LocationUpload(number, channel, inc.edge_key, sums)
        place = torch.from_numpy(inc.by_edge.index.astype(np.int64))
        keys = np.repeat(inc.edge_key, inc.size)
        sender = cohort.people[inc.by_edge.index]
        return LocationUpload(number, channel, keys, exchange.rows[place], sender)
    claims = cohort.claims
    noised = perturb(exchange.rows, claims, plan.upload, key).value
    if each_upload:
        sender = cohort.people[claims.row]
        return LocationUpload(number, channel, claims.place, noised, sender)
    keys, start = cohort.claimed
    return LocationUpload(number, channel, keys, _sums(noised, start))


def _sums(rows: Tensor, start: NDArray[np.int64]) -> Tensor:
    """Sums of the rows from each start to the next."""
    if not len(start):
        return rows
    return torch.from_numpy(np.add.reduceat(rows.numpy(), start, axis=0))


def receive(
    incidence: Incidence,
    share: Tensor,
    exchange: Exchange,
    keys: EdgeKeys,
    sums: Tensor,
    counts: Floats,
) -> Tensor:
    """Return what the edges pass on to each person, over its true edges only.

    ``sums``, (keys, width), and ``counts``, (keys,), are the server's at ``keys``.
    """
    place = incidence.places_in(keys)
    people = torch.from_numpy(counts[place]).unsqueeze(1)
    means = sums[torch.from_numpy(place)] / people.to(sums.dtype)
    passed = sum_to_people(means, incidence)
    return passed * share if exchange.kind == "upload" else passed


def gradient_upload(
    cohort: Cohort,
    uses: Sequence[LinearUse],
    weight: float,
    plan: PrivacyPlan,
    seeds: RunSeeds,
    round_number: int,
) -> GradientUpload:
    """Sum the cohort's gradients, each person's clipped and noised by the plan.

    Everybody takes part, also people without a known result, whose own loss is 0.
    """
    people = len(cohort.people)
    if plan.gradient is None:
        sums = {use.weight: use.weight_gradient() for use in uses}
        sums |= {use.bias: use.outputs.sum(dim=0) for use in uses if use.bias}
        return GradientUpload(round_number, sums, people, weight)
    tapes = [LinearTape(use.weight, use.inputs, use.outputs, use.bias) for use in uses]
    clipped = clipped_sum(tapes, plan.gradient.clip)
    terms = plan.gradient_terms(round_number)
    generator = seeds.gradient(terms, int(cohort.people[0]))
    mean = private_mean(clipped, plan.gradient, terms, generator).value
    sums = {name: value * people for name, value in mean.items()}
    return GradientUpload(round_number, sums, people, None)


def clip_step(before: Home, after: Home, clip: float) -> Home:
    """Bound how far each person's embedding moved in a round, in L2."""
    if before.rows is None or after.rows is None:
        return after
    change = clip_rows(after.rows - before.rows, clip)
    return replace(after, rows=before.rows + change)


def all_uses(result: PassResult, entry: LinearUse | None) -> tuple[LinearUse, ...]:
    """The linear maps of a pass, with that of a status input."""
    if entry is None:
        return result.uses
    return *result.uses, replace(entry, outputs=entry.outputs * result.row_gradient)


def close_round(
    cohort: Cohort,
    home: Home,
    result: PassResult,
    closing: Closing,
    settings: FalconSettings,
    seeds: RunSeeds,
    exchanged: bool,
) -> Home:
    """Return each person's embedding after its step of Adam (algorithm 2, line 8).

    Where gradients were exchanged the step is that of the mean loss of all, otherwise
    that of the person's own.
    """
    if home.rows is None or home.moments is None:
        return replace(home, received=result.received)
    gradient = result.row_gradient
    entry = _dropout(cohort, settings, Draw(seeds.dropout, closing.round, 0))
    if entry is not None:
        gradient = gradient * entry
    if exchanged:
        gradient = gradient * closing.scale
    rows, moments = adam_step(
        {"rows": home.rows},
        {"rows": gradient},
        {"rows": home.moments},
        closing.round + 1,
        settings,
    )
    return Home(rows["rows"], moments["rows"], result.received)
