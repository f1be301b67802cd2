"""Canaries: made-up visits and people sent through ``federation.client``.

A canary is a visit (or, for gradients, a person) with a made-up row longer than the
clip, sent or left out by a fair coin of its own. "Left out" is what the ledger's
relation calls neighbouring: the row is zero, or (``replace``) points the other way.
Canaries pass through clip, noise and keys as the values of people do.

The auditor knows every row but not the coins, and scores each canary by the matched
filter: the released vector along the canary's row, in units of the clip. Rows change
sign from round to round, so noise that is used in two rounds cancels in their sum.
Blanks, places and people whose value is always zero, show the noise alone.
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
from epifalcon.models.person_model import Exchange, LinearUse, initial_parameters
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.events import Relation, Unit
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, RegionIds

Way = Literal["each upload", "fast engine", "sums of a site"]
"""Uploads one by one, as a server sees them; what the fast engine makes; or sums over
the people of a site."""

BLANKS = 64
"""People whose value is always zero, where blanks are people."""
_OFF = "mode='off' promises nothing: there is nothing to audit"
_DAY = Clock(slot_hours=2, days=1)
_BLANK_SLOTS = 2
_WEIGHT, _BIAS = ".weight", ".bias"
_SHORTEST, _LONGEST = 1.05, 1000.0
"""Of a canary's row, in clips: a clip that spares rows a little too long shows too."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelObservations:
    """What the auditor saw of one channel over all rounds."""

    channel: str
    unit: Unit
    way: Way
    rounds: tuple[int, ...]
    """Numbers of the rounds."""
    scores: Floats
    """(rounds, canaries) along the canary's own row: 1 where one clip's worth came,
    0 where nothing did, -1 for the opposite row."""
    lengths: Floats
    """(rounds, canaries) L2 norm of what came for each canary, in clips."""
    included: Mask
    """(canaries,) the coins; for judging only."""
    middle: float
    """Halfway between what "in" and "out" should score in one round."""
    blank: dict[str, Floats]
    """By part of the value, such as a parameter's name, each (rounds, owners, places,
    width): what was sent where nothing was to tell."""
    size: int = 1
    """Numbers in what leaves for one canary."""
    noises: int = 1
    """Uploads whose noise is in one value; ``blank`` is divided by its root."""


def coins(seed: int, name: str, shape: tuple[int, ...]) -> Mask:
    """Draw fair coins, one stream for each name."""
    return Streams(seed).numpy(f"canary coins of {name}").random(shape) < 0.5


def row_lengths(seed: int, name: str, count: int) -> Floats:
    """Draw lengths in clips, from hardly too long to far too long."""
    rng = Streams(seed).numpy(f"canary lengths of {name}")
    low, high = math.log(_SHORTEST), math.log(_LONGEST)
    return np.exp(rng.uniform(low, high, count))


def factors(included: Mask, relation: Relation) -> Floats:
    """Return the factor of each canary's row: 1, or 0 or -1 if it is out."""
    return np.where(included, 1.0, -1.0 if relation == "replace" else 0.0)


def middle(relation: Relation) -> float:
    """Halfway between the two factors."""
    return 0.0 if relation == "replace" else 0.5


def signs(rounds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return each round's number and the sign of its rows, 1 or -1 in turn."""
    return tuple((number, 1 - 2 * (turn % 2)) for turn, number in enumerate(rounds))


@dataclass(frozen=True, eq=False)
class CanaryVisits:
    """Made-up people whose visits are the canaries."""

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    visits: int = 4000
    """Put in or left out; rounded up to whole people."""

    def __post_init__(self) -> None:
        whole(2, visits=self.visits)
        if self.plan.upload is None:
            raise SettingsError(_OFF)

    def uploads(
        self, kind: str, layer: int, rounds: Sequence[int]
    ) -> ChannelObservations:
        """Send rows at places, one upload for each claim; ``kind`` as in channels."""
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
        """Return what the fast engine gives people who are alone at their place."""
        part = self.plan.way.returned if kind == "return" else self.plan.way.upload
        included = coins(self.seed, "fast engine", (self.visits,))
        strength = factors(included, self.plan.relation) * self._clip
        strength *= row_lengths(self.seed, "fast engine", self.visits)
        strength = np.append(strength, np.zeros(3 * BLANKS))
        # Everybody alone at a region, but the last 2 x ``BLANKS`` two by two.
        alone = np.arange(self.visits + BLANKS, dtype=np.int32)
        both = len(alone) + np.repeat(np.arange(BLANKS, dtype=np.int32), 2)
        cohort = cohort_of(np.append(alone, both)[None])
        passage = EdgeExchange.of(cohort, None, self.plan)
        rows = self._rows(len(strength))

        def send(number: int, sign: int) -> tuple[Floats, Floats]:
            exchange = self._exchange(kind, layer, rows * (strength * sign)[:, None])
            exchange = Exchange(exchange.kind, layer, part.send(exchange.rows))
            came = passage.carry(exchange, RunSeeds(self.seed).noise, kind, number)
            canaries, rest = np.split(came.double().numpy(), [self.visits])
            # Two at a place receive the same mean of two uploads: one is enough.
            pair = rest[BLANKS::2] * math.sqrt(2)
            return canaries, np.stack([rest[:BLANKS], pair], axis=1)

        facing, channel = rows[: self.visits], f"{kind}/{layer}"
        return self._seen(channel, "fast engine", rounds, included, facing, send)

    def counts(self) -> ChannelObservations:
        """Presence at places: 1 at a true place, 0 at a pseudo one; sent once.

        For ``replace`` too, whose claim is for two such steps: the bound then stays
        under half of the claimed mu.
        """
        if self.plan.relation == "replace":
            steps = replace(self.plan, relation="zero-out")
            return replace(self, plan=steps).counts()
        people, slots = self._coins.shape
        came = np.empty((people, slots + _BLANK_SLOTS))
        for person in range(people):
            cohort = self._cohort.restrict([person])
            sent = replace(self._client, cohort=cohort).announce()
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
        """(people, canary slots); with opposite rows one coin for a person's row."""
        slots = min(_DAY.slots - _BLANK_SLOTS, self.plan.releases.person)
        slots = 1 if self.plan.relation == "replace" else slots
        return coins(self.seed, "visits", (math.ceil(self.visits / slots), slots))

    @cached_property
    def _cohort(self) -> Cohort:
        """Everybody claims one region at every slot, truly or not."""
        there = self._coins | (self.plan.relation == "replace")
        there = np.pad(there, ((0, 0), (_BLANK_SLOTS, 0))).T
        true = np.where(there, 0, -1).astype(np.int32)
        return cohort_of(true, np.where(there, -1, 0).astype(np.int32))

    def _rows(self, people: int) -> Floats:
        """(people, width) of length 1."""
        rng = Streams(self.seed).numpy("canary rows")
        rows = rng.standard_normal((people, self.model.width))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def cohort_of(true: RegionIds, pseudo: RegionIds | None = None) -> Cohort:
    """Untested people at regions, (slots of a day, people); other slots are gaps."""
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
    """Made-up people, each a cohort of its own, whose gradients are the canaries.

    Gradients of all maps are alike long, so that neither a clip of each map by itself
    nor noise that leaves one parameter out would do. With ``together`` of 2 or more
    each stands in a cohort with others whose gradient is zero, as in the fast engine:
    the sum must carry the noise of everybody in it.
    """

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    people: int = 2000
    """Put in or left out; blanks come on top."""
    together: int = 1
    """People in each cohort."""

    def __post_init__(self) -> None:
        whole(2, people=self.people)
        whole(1, together=self.together)
        if self.plan.gradient is None:
            raise SettingsError(_OFF)

    def gradients(self, rounds: Sequence[int]) -> ChannelObservations:
        """Return what every device, or cohort, sends in each round."""
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
        """Send the gradient of one canary and return what leaves, as one vector."""
        uses = []
        for use in self._uses:
            out = use.outputs[person] * factor
            outputs = torch.zeros((self.together, len(out)), dtype=out.dtype)
            # Not the first, after whom the cohort's noise is named.
            outputs[-1] = out
            inputs = use.inputs[person].expand(self.together, -1)
            uses.append(LinearUse(use.weight, use.bias, inputs, outputs))
        cohort, seeds = self._cohorts[person], RunSeeds(self.seed)
        client = Client(cohort, self.model, self.plan, seeds)
        sent = client.gradient_upload(uses, 1.0, number).gradients
        return (
            torch.cat([sent[name].flatten() for name in self._shapes]).double().numpy()
        )

    def _direction(self, person: int) -> Floats:
        """Return the whole gradient of one canary, as a vector of length 1."""
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
    def _uses(self) -> tuple[LinearUse, ...]:
        """Gradients of all maps, of one length each; together as long as drawn."""
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
            uses.append(LinearUse(name, named, *sent))
        return tuple(uses)
