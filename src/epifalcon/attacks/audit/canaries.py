"""Canaries: artificial visits and people sent through ``federation.client``.

A canary is a visit (or, for gradients, a person) with an artificial row longer than the
clip, included or excluded by an independent fair coin. Both cases are neighbours by the
ledger's relation: an excluded row is zero, or (``replace``) reversed. Canaries are
clipped and noised like the values of people.

The auditor knows every row but not the coins, and scores each canary by the matched
filter: the released vector along the canary's row, in units of the clip. Rows change
sign from round to round, so noise that is used in two rounds cancels in their sum.
Blanks, places and people whose value is always zero, contain only noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import present
from epifalcon.federation.client import Client, Cohort
from epifalcon.federation.engine import EdgeExchange
from epifalcon.federation.privacy_plan import PrivacyPlan, RunSeeds
from epifalcon.hypergraph.incidence import Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.person_model import (
    Exchange,
    LinearActivations,
    initial_parameters,
)
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.events import Relation, Unit
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, RegionIds

Way = Literal["each upload", "fast engine", "sums of a site"]
"""Audited output: uploads of each person, as a server receives them; results of the
fast engine; or sums over the people of a site."""

BLANKS = 64
"""Number of blanks: people whose value is zero before noise."""
_OFF = "mode='off' has no guarantee to audit"
_DAY = Clock(slot_hours=2, days=1)
_BLANK_SLOTS = 2
_WEIGHT, _BIAS = ".weight", ".bias"
_SHORTEST, _LONGEST = 1.05, 1000.0
"""Range of the norm of canary rows relative to the clip; short ones test its slack."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelObservations:
    """Observations of the auditor in one channel over all rounds."""

    channel: str
    unit: Unit
    way: Way
    rounds: tuple[int, ...]
    """Numbers of the observed rounds."""
    scores: Floats
    """Projections on the canary's own row, (rounds, canaries): on average 1 for a row
    clipped to its bound, 0 for no row, -1 for the reversed row."""
    lengths: Floats
    """L2 norm of each canary's release relative to the clip, (rounds, canaries)."""
    included: Mask
    """True for included canaries, (canaries,); for evaluation only."""
    middle: float
    """Midpoint of the expected scores of "in" and "out" in one round."""
    blank: dict[str, Floats]
    """Released values of blanks, (rounds, people, places, width), by part of the value,
    such as a parameter's name."""
    size: int = 1
    """Number of values in the release of one canary."""
    noises: int = 1
    """Number of noise terms in one value; ``blank`` is divided by its square root."""


def coins(seed: int, name: str, shape: tuple[int, ...]) -> Mask:
    """Draw fair coins of ``shape`` from the random stream of ``name``."""
    return Streams(seed).numpy(f"canary coins of {name}").random(shape) < 0.5


def row_lengths(seed: int, name: str, count: int) -> Floats:
    """Draw ``count`` row norms relative to the clip, log-uniform from 1.05 to 1000."""
    rng = Streams(seed).numpy(f"canary lengths of {name}")
    low, high = math.log(_SHORTEST), math.log(_LONGEST)
    return np.exp(rng.uniform(low, high, count))


def factors(included: Mask, relation: Relation) -> Floats:
    """Return the factor of each canary's row: 1 if included, else 0 or -1."""
    return np.where(included, 1.0, -1.0 if relation == "replace" else 0.0)


def middle(relation: Relation) -> float:
    """Return the midpoint of the factors of included and excluded canaries."""
    return 0.0 if relation == "replace" else 0.5


def signs(rounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return pairs (round, sign of its rows); the sign alternates between 1 and -1."""
    return tuple((number, 1 - 2 * (turn % 2)) for turn, number in enumerate(rounds))


@dataclass(frozen=True, eq=False)
class CanaryVisits:
    """Artificial people whose visits are the canaries."""

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    visits: int = 4000
    """Number of canary visits, rounded up so that each person has equally many."""

    def uploads(
        self, kind: str, layer: int, rounds: Sequence[int]
    ) -> ChannelObservations:
        """Observe rows uploaded at places; ``kind`` is the prefix of the channel."""
        people, slots = self._coins.shape
        rows, channel = self._rows(people), f"{kind}/{layer}"
        length = row_lengths(self.seed, "visits", people) * self._clip
        if self.plan.relation == "replace":
            length *= factors(self._coins[:, 0], self.plan.relation)

        def send(number: int, sign: int) -> tuple[Floats, Floats]:
            exchange = self._exchange(kind, layer, rows * (sign * length)[:, None])
            upload = self._client.location_upload(exchange, channel, number, True)
            came = np.empty((people, slots + _BLANK_SLOTS, rows.shape[1]))
            came[upload.person, upload.keys] = upload.rows.double().numpy()
            canaries = came[:, _BLANK_SLOTS:].reshape(-1, rows.shape[1])
            return canaries, came[:, :_BLANK_SLOTS]

        facing, coin = np.repeat(rows, slots, axis=0), self._coins.ravel()
        return self._seen(channel, "each upload", rounds, coin, facing, send)

    def fast(self, kind: str, layer: int, rounds: Sequence[int]) -> ChannelObservations:
        """Observe the fast engine's results for people who are alone at their place."""
        rules = self.plan.exchange_rules
        part = rules.returned if kind == "return" else rules.upload
        included = coins(self.seed, "fast engine", (self.visits,))
        strength = factors(included, self.plan.relation) * self._clip
        strength *= row_lengths(self.seed, "fast engine", self.visits)
        strength = np.append(strength, np.zeros(3 * BLANKS))
        # Everybody is alone at a region, except the last 2 x ``BLANKS`` in pairs.
        alone = np.arange(self.visits + BLANKS, dtype=np.int32)
        both = len(alone) + np.repeat(np.arange(BLANKS, dtype=np.int32), 2)
        cohort = cohort_of(np.append(alone, both)[None])
        edge_exchange = EdgeExchange.of(cohort, None, self.plan)
        rows = self._rows(len(strength))

        def send(number: int, sign: int) -> tuple[Floats, Floats]:
            exchange = self._exchange(kind, layer, rows * (strength * sign)[:, None])
            exchange = Exchange(exchange.kind, layer, part.encode(exchange.rows))
            noise = RunSeeds(self.seed).noise
            came = edge_exchange.carry(exchange, noise, kind, number)
            canaries, rest = np.split(came.double().numpy(), [self.visits])
            # Two at a place receive the same mean of two uploads: one is enough.
            pair = rest[BLANKS::2] * math.sqrt(2)
            return canaries, np.stack([rest[:BLANKS], pair], axis=1)

        facing, channel = rows[: self.visits], f"{kind}/{layer}"
        return self._seen(channel, "fast engine", rounds, included, facing, send)

    def counts(self) -> ChannelObservations:
        """Observe the presence at places, sent once: 1 at true, 0 at pseudo places.

        The relation ``replace`` is audited as ``zero-out``, a change half as large, so
        its bound is at most half of the claimed mu.
        """
        if self.plan.relation == "replace":
            steps = replace(self.plan, relation="zero-out")
            return replace(self, plan=steps).counts()
        people, slots = self._coins.shape
        came = np.empty((people, slots + _BLANK_SLOTS))
        for person in range(people):
            cohort = self._cohort.restrict([person])
            sent = replace(self._client, cohort=cohort).presence_upload()
            came[person, sent.keys] = sent.counts
        scores = came[:, _BLANK_SLOTS:].ravel()[None]
        return ChannelObservations(
            channel="counts",
            unit="visit",
            way="each upload",
            rounds=(0,),
            scores=scores,
            lengths=np.abs(scores),
            included=self._coins.ravel(),
            middle=0.5,
            blank={"presence": came[None, :, :_BLANK_SLOTS, None]},
        )

    def _seen(
        self,
        channel: str,
        way: Way,
        rounds: Sequence[int],
        included: Mask,
        rows: Floats,
        send: Callable[[int, int], tuple[Floats, Floats]],
    ) -> ChannelObservations:
        """Call ``send(round, sign)`` per round and score the canaries it returns."""
        scores, lengths, blanks = [], [], []
        for number, sign in signs(rounds):
            canaries, blank = send(number, sign)
            scores.append(sign * (canaries * rows).sum(axis=1) / self._clip)
            lengths.append(np.linalg.norm(canaries, axis=1) / self._clip)
            blanks.append(blank)
        return ChannelObservations(
            channel=channel,
            unit="visit",
            way=way,
            rounds=tuple(rounds),
            scores=np.stack(scores),
            lengths=np.stack(lengths),
            included=included,
            middle=middle(self.plan.relation),
            blank={"rows": np.stack(blanks)},
            size=self.model.width,
        )

    def _exchange(self, kind: str, layer: int, rows: Floats) -> Exchange:
        sent: Tensor = torch.from_numpy(rows).to(self.model.dtype)
        return Exchange("return" if kind == "return" else "upload", layer, sent)

    @property
    def _clip(self) -> float:
        return present(self.plan.upload, _OFF).clip

    @property
    def _client(self) -> Client:
        return Client(self._cohort, self.model, self.plan, RunSeeds(self.seed))

    @cached_property
    def _coins(self) -> Mask:
        """Coins, (people, canary slots); one slot for the relation ``replace``."""
        slots = min(_DAY.slots - _BLANK_SLOTS, self.plan.releases.person)
        slots = 1 if self.plan.relation == "replace" else slots
        return coins(self.seed, "visits", (math.ceil(self.visits / slots), slots))

    @cached_property
    def _cohort(self) -> Cohort:
        """Cohort in which everybody claims one true or pseudo region at every slot."""
        there = self._coins | (self.plan.relation == "replace")
        there = np.pad(there, ((0, 0), (_BLANK_SLOTS, 0))).T
        true = np.where(there, 0, -1).astype(np.int32)
        return cohort_of(true, np.where(there, -1, 0).astype(np.int32))

    def _rows(self, people: int) -> Floats:
        """Draw a random unit row for each person, (people, width)."""
        rng = Streams(self.seed).numpy("canary rows")
        rows = rng.standard_normal((people, self.model.width))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def cohort_of(true: RegionIds, pseudo: RegionIds | None = None) -> Cohort:
    """Return untested people with these true and pseudo regions, (slots, people)."""
    given = [true] if pseudo is None else [true, pseudo]
    count = 1 + max(0, *(int(one.max()) for one in given))
    regions = Regions(kind="area", centre_km=np.zeros((count, 2)))
    made = []
    for one in given:
        by_slot = np.full((_DAY.slots, one.shape[1]), -1, np.int32)
        by_slot[: len(one)] = one
        made.append(Incidence.of(Traces(by_slot, _DAY, regions)))
    people = np.arange(true.shape[1], dtype=np.int64)
    status = np.full(len(people), -1, np.int8)
    return Cohort(people, made[0], status, None, tuple(made[1:]))


@dataclass(frozen=True, eq=False)
class CanaryPeople:
    """Artificial people, each a cohort of its own, whose gradients are the canaries.

    Gradients of all linear maps have equal norms, so that clipping maps separately or
    omitting the noise of one parameter is detected. With ``together`` of 2 or more,
    each is in a cohort with others whose gradient is zero, as in the fast engine: the
    sum must carry the noise of everybody in it.
    """

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    people: int = 2000
    """Number of canary people, not counting blanks."""
    together: int = 1
    """Number of people in each cohort."""

    def gradients(self, rounds: Sequence[int]) -> ChannelObservations:
        """Observe the gradients of every device, or cohort, in each round."""
        relation, clip = self.plan.relation, self._clip
        included = coins(self.seed, "people", (self.people,))
        strength = factors(included, relation).tolist()
        scores, lengths = (np.empty((len(rounds), self.people)) for _ in range(2))
        blank = []
        for turn, (number, sign) in enumerate(signs(rounds)):
            for person, factor in enumerate(strength):
                came = self._sent(person, factor * sign, number)
                along = float(came @ self._direction(person))
                scores[turn, person] = sign * along / clip
                lengths[turn, person] = float(np.linalg.norm(came)) / clip
            rest = range(self.people, self.people + BLANKS)
            blank.append([self._sent(person, 0.0, number) for person in rest])
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        noise = np.array(blank)[:, :, None] / math.sqrt(self.together)
        parts = np.split(noise, np.cumsum(sizes)[:-1], axis=-1)
        return ChannelObservations(
            channel="gradient",
            unit="person",
            way="each upload" if self.together == 1 else "fast engine",
            rounds=tuple(rounds),
            scores=scores,
            lengths=lengths,
            included=included,
            middle=middle(relation),
            blank=dict(zip(self._shapes, parts, strict=True)),
            size=sum(sizes),
            noises=self.together,
        )

    def _sent(self, person: int, factor: float, number: int) -> Floats:
        """Return the released gradient of one canary as one vector."""
        uses = []
        for use in self._uses:
            out = use.outputs[person] * factor
            outputs = torch.zeros((self.together, len(out)), dtype=out.dtype)
            # Not the first person, whose number keys the cohort's noise.
            outputs[-1] = out
            inputs = use.inputs[person].expand(self.together, -1)
            uses.append(LinearActivations(use.weight, use.bias, inputs, outputs))
        cohort, seeds = self._cohorts[person], RunSeeds(self.seed)
        client = Client(cohort, self.model, self.plan, seeds)
        sent = client.gradient_upload(uses, 1.0, number).gradients
        whole = torch.cat([sent[name].flatten() for name in self._shapes])
        return whole.double().numpy()

    def _direction(self, person: int) -> Floats:
        """Return the whole gradient of one canary as a unit vector."""
        made: dict[str, Tensor] = {}
        for use in self._uses:
            into, out = use.inputs[person].double(), use.outputs[person].double()
            made[use.weight] = torch.outer(out, into).flatten()
            if use.bias is not None:
                made[use.bias] = out
        row = torch.cat([made[name] for name in self._shapes]).numpy()
        return np.asarray(row / np.linalg.norm(row))

    @property
    def _clip(self) -> float:
        return present(self.plan.gradient, _OFF).clip

    @cached_property
    def _cohorts(self) -> list[Cohort]:
        nowhere = cohort_of(np.full((1, self.together), -1, np.int32))
        people = np.arange((self.people + BLANKS) * self.together)
        each = people.reshape(-1, self.together)
        return [Cohort(one, nowhere.incidence, nowhere.status) for one in each]

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        made = initial_parameters(self.model, 0, np.random.default_rng(0))
        return {name: tuple(one.shape) for name, one in made.items()}

    @cached_property
    def _uses(self) -> tuple[LinearActivations, ...]:
        """Inputs and output gradients of all linear maps; all maps have equal norms."""
        rng = Streams(self.seed).numpy("canary gradients")
        people = self.people + BLANKS
        maps = [name for name in self._shapes if name.endswith(_WEIGHT)]
        length = row_lengths(self.seed, "people", people) * self._clip
        uses = []
        for name in maps:
            outputs, inputs = self._shapes[name]
            bias = name.removesuffix(_WEIGHT) + _BIAS
            into = rng.standard_normal((people, inputs))
            out = rng.standard_normal((people, outputs))
            squares = (into**2).sum(axis=1) + (bias in self._shapes)
            size = np.sqrt(squares * (out**2).sum(axis=1) * len(maps))
            out *= (length / size)[:, None]
            named = bias if bias in self._shapes else None
            sent = (torch.from_numpy(one).to(self.model.dtype) for one in (into, out))
            uses.append(LinearActivations(name, named, *sent))
        return tuple(uses)
