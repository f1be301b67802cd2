"""Canaries: artificial visits and people sent through ``federation.client``.

A canary is a visit (or, for gradients, a person) with an artificial row longer than the
clip, included or excluded by an independent fair coin. An excluded canary is a
neighbour by the ledger's relation: its row is zero, or (``replace``) reversed. Canaries
are clipped and noised like the values of people.

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

from epifalcon.checks import whole
from epifalcon.errors import SettingsError
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
"""Uploads per person, as a server receives them; results of the fast engine; or sums
over the people of a site."""

BLANKS = 64
"""Number of people whose value is always zero."""
_OFF = "mode='off' has no guarantee to audit"
_DAY = Clock(slot_hours=2, days=1)
_BLANK_SLOTS = 2
_WEIGHT, _BIAS = ".weight", ".bias"
_SHORTEST, _LONGEST = 1.05, 1000.0
"""Length of a canary's row in clips; rows near the clip show a clip that is too lax."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelObservations:
    """Observations of the auditor in one channel over all rounds."""

    channel: str
    unit: Unit
    way: Way
    rounds: tuple[int, ...]
    """Numbers of the rounds."""
    scores: Floats
    """(rounds, canaries) along the canary's own row: 1 for a row of one clip, 0 for
    none, -1 for the reversed row."""
    lengths: Floats
    """(rounds, canaries) L2 norm of the observed vector of each canary, in clips."""
    included: Mask
    """(canaries,) the coins; for evaluation only."""
    middle: float
    """Midpoint of the expected scores of "in" and "out" in one round."""
    blank: dict[str, Floats]
    """By part of the value, such as a parameter's name, each (rounds, owners, places,
    width): released values of blanks."""
    size: int = 1
    """Number of values in the release of one canary."""
    noises: int = 1
    """Number of noise terms in one value; ``blank`` is divided by its square root."""


def coins(seed: int, name: str, shape: tuple[int, ...]) -> Mask:
    """Draw fair coins of ``shape``, with one random stream per name."""
    return Streams(seed).numpy(f"canary coins of {name}").random(shape) < 0.5


def row_lengths(seed: int, name: str, count: int) -> Floats:
    """Draw ``count`` lengths in clips, log-uniform, slightly to far above 1."""
    rng = Streams(seed).numpy(f"canary lengths of {name}")
    low, high = math.log(_SHORTEST), math.log(_LONGEST)
    return np.exp(rng.uniform(low, high, count))


def factors(included: Mask, relation: Relation) -> Floats:
    """Return the factor of each canary's row: 1, or 0 or -1 if it is out."""
    return np.where(included, 1.0, -1.0 if relation == "replace" else 0.0)


def middle(relation: Relation) -> float:
    """Return the midpoint of the two factors."""
    return 0.0 if relation == "replace" else 0.5


def signs(rounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return each round's number and the sign of its rows, alternating 1 and -1."""
    return tuple((number, 1 - 2 * (turn % 2)) for turn, number in enumerate(rounds))


@dataclass(frozen=True, eq=False)
class CanaryVisits:
    """Artificial people whose visits are the canaries."""

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    visits: int = 4000
    """Number of canaries, rounded up to whole people."""

    def __post_init__(self) -> None:
        whole(2, visits=self.visits)
        if self.plan.upload is None:
            raise SettingsError(_OFF)

    def uploads(
        self, kind: str, layer: int, rounds: Sequence[int]
    ) -> ChannelObservations:
        """Observe rows at places, one upload per claim; ``kind`` as in channels."""
        people, slots = self._coins.shape
        rows = self._rows(people)
        length = row_lengths(self.seed, "visits", people) * self._clip
        if self.plan.relation == "replace":
            length *= factors(self._coins[:, 0], self.plan.relation)

        def send(number: int, sign: int) -> tuple[Floats, Floats]:
            exchange = self._exchange(kind, layer, rows * (sign * length)[:, None])
            upload = self._client.location_upload(
                exchange, f"{kind}/{layer}", number, each_upload=True
            )
            came = np.empty((people, slots + _BLANK_SLOTS, rows.shape[1]))
            came[upload.person, upload.keys] = upload.rows.double().numpy()
            canaries = came[:, _BLANK_SLOTS:].reshape(-1, rows.shape[1])
            return canaries, came[:, :_BLANK_SLOTS]

        facing, coin = np.repeat(rows, slots, axis=0), self._coins.ravel()
        return self._seen(f"{kind}/{layer}", "each upload", rounds, coin, facing, send)

    def fast(self, kind: str, layer: int, rounds: Sequence[int]) -> ChannelObservations:
        """Observe the fast engine's results for people who are alone at their place."""
        part = (
            self.plan.exchange_rules.returned
            if kind == "return"
            else self.plan.exchange_rules.upload
        )
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
            came = edge_exchange.carry(
                exchange, RunSeeds(self.seed).noise, kind, number
            )
            canaries, rest = np.split(came.double().numpy(), [self.visits])
            # Two at a place receive the same mean of two uploads: one is enough.
            pair = rest[BLANKS::2] * math.sqrt(2)
            return canaries, np.stack([rest[:BLANKS], pair], axis=1)

        facing, channel = rows[: self.visits], f"{kind}/{layer}"
        return self._seen(channel, "fast engine", rounds, included, facing, send)

    def counts(self) -> ChannelObservations:
        """Observe presence at places: 1 at a true place, 0 at a pseudo one; sent once.

        Also for ``replace``, whose claim covers two such steps: the bound is then at
        most half of the claimed mu.
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
        """Score what ``send(round, sign)`` returns: canaries and blanks."""
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
        return 0.0 if self.plan.upload is None else self.plan.upload.clip

    @property
    def _client(self) -> Client:
        return Client(self._cohort, self.model, self.plan, RunSeeds(self.seed))

    @cached_property
    def _coins(self) -> Mask:
        """(people, canary slots); with reversed rows one coin per person."""
        slots = min(_DAY.slots - _BLANK_SLOTS, self.plan.releases.person)
        slots = 1 if self.plan.relation == "replace" else slots
        return coins(self.seed, "visits", (math.ceil(self.visits / slots), slots))

    @cached_property
    def _cohort(self) -> Cohort:
        """Everybody claims one region at every slot, as true or pseudo place."""
        there = self._coins | (self.plan.relation == "replace")
        there = np.pad(there, ((0, 0), (_BLANK_SLOTS, 0))).T
        true = np.where(there, 0, -1).astype(np.int32)
        return cohort_of(true, np.where(there, -1, 0).astype(np.int32))

    def _rows(self, people: int) -> Floats:
        """Return unit rows, (people, width)."""
        rng = Streams(self.seed).numpy("canary rows")
        rows = rng.standard_normal((people, self.model.width))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def cohort_of(true: RegionIds, pseudo: RegionIds | None = None) -> Cohort:
    """Return untested people at regions, (slots of a day, people); -1 is a gap."""
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

    Gradients of all maps have equal norms, so that clipping each map separately or
    omitting the noise of one parameter is detected. With ``together`` of 2 or more,
    each is in a cohort with others whose gradient is zero, as in the fast engine: the
    sum must carry the noise of everybody in it.
    """

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    people: int = 2000
    """Number of canaries, without blanks."""
    together: int = 1
    """People in each cohort."""

    def __post_init__(self) -> None:
        whole(2, people=self.people)
        whole(1, together=self.together)
        if self.plan.gradient is None:
            raise SettingsError(_OFF)

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
        return (
            torch.cat([sent[name].flatten() for name in self._shapes]).double().numpy()
        )

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
        return 0.0 if self.plan.gradient is None else self.plan.gradient.clip

    @cached_property
    def _cohorts(self) -> list[Cohort]:
        nowhere = cohort_of(np.full((1, self.together), -1, np.int32))
        people = np.arange((self.people + BLANKS) * self.together)
        return [
            Cohort(one, nowhere.incidence, nowhere.status)
            for one in people.reshape(-1, self.together)
        ]

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        rng = np.random.default_rng(0)
        made = initial_parameters(self.model, 0, rng)
        return {name: tuple(one.shape) for name, one in made.items()}

    @cached_property
    def _uses(self) -> tuple[LinearActivations, ...]:
        """Gradients of all maps with equal norms, and the drawn total norm."""
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
