"""Canary visits: made-up rows and places sent through ``federation.client``.

The rows pass through clip, noise and keys just as those of people do, on the way of
single uploads and on that of the fast engine. ``seen`` says what a canary is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from epifalcon.checks import whole
from epifalcon.errors import SettingsError
from epifalcon.evaluation.audit.seen import (
    BLANKS,
    Seen,
    Way,
    coins,
    factors,
    middle,
    row_lengths,
    signs,
)
from epifalcon.federation import client
from epifalcon.federation.client import Cohort
from epifalcon.federation.plan import PrivacyPlan, RunSeeds
from epifalcon.federation.vectorised import Passage
from epifalcon.hypergraph.incidence import HypergraphSettings, Incidence
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.models.micro import Exchange
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.gaussian import NoiseKey
from epifalcon.streams import Streams
from epifalcon.types import Floats, Mask, RegionIds

_DAY = Clock(slot_hours=2, days=1)
_BLANK_SLOTS = 2


@dataclass(frozen=True, eq=False)
class CanaryVisits:
    """Made-up people whose visits are the canaries.

    ``plan`` is what is audited, ``model`` tells width and precision of rows. All
    draws come from ``seed``.
    """

    plan: PrivacyPlan
    model: FalconSettings
    seed: int
    visits: int = 4000
    """Put in or left out; rounded up to whole people."""

    def __post_init__(self) -> None:
        whole(2, visits=self.visits)
        if self.plan.upload is None:
            raise SettingsError(
                "mode='off' promises nothing: there is nothing to audit"
            )

    def uploads(self, kind: str, layer: int, rounds: Sequence[int]) -> Seen:
        """Rows at places, one upload for each claim; ``kind`` as in channel names."""
        channel, rows = f"{kind}/{layer}", self._rows(self._people)
        length = row_lengths(self.seed, "visits", self._people) * self._clip
        found = _Found(kind, layer)
        for number, sign in signs(rounds):
            facing = self._facing * sign * length
            exchange = self._exchange(kind, layer, rows * facing[:, None])
            key = NoiseKey(self._seeds.noise, self.plan.terms(channel, number))
            upload = client.location_upload(
                self._cohort, exchange, self.plan, key, each_upload=True
            )
            came = np.empty((self._people, self._slots, rows.shape[1]))
            came[upload.person, upload.keys] = upload.rows.double().numpy()
            canaries = came[:, _BLANK_SLOTS:]
            along = np.einsum("psw,pw->ps", canaries, rows)
            found.scores.append(sign * along.ravel() / self._clip)
            found.lengths.append(_norms(canaries).ravel() / self._clip)
            found.blank.append(came[:, :_BLANK_SLOTS])
        return self._seen(found, "each upload", self._coins.ravel(), rounds)

    def fast(self, kind: str, layer: int, rounds: Sequence[int]) -> Seen:
        """What the fast engine hands back to people who are alone at their place.

        Blanks are alone or two at a place, which the engine draws apart.
        """
        part = self.plan.way.returned if kind == "return" else self.plan.way.upload
        included = coins(self.seed, "fast engine", (self.visits,))
        strength = factors(included, self.plan.relation) * self._clip
        strength *= row_lengths(self.seed, "fast engine", self.visits)
        strength = np.append(strength, np.zeros(3 * BLANKS))
        passage = Passage.of(self._lonely, None, self.plan)
        rows, found = self._rows(len(strength)), _Found(kind, layer)
        for number, sign in signs(rounds):
            exchange = self._exchange(kind, layer, rows * (strength * sign)[:, None])
            exchange = Exchange(exchange.kind, layer, part.send(exchange.rows))
            came = passage.carry(exchange, self._seeds.noise, (kind, number))
            passed = came.double().numpy()
            canaries, rest = passed[: self.visits], passed[self.visits :]
            along = (canaries * rows[: self.visits]).sum(axis=1)
            found.scores.append(sign * along / self._clip)
            found.lengths.append(_norms(canaries) / self._clip)
            # Two at a place receive the same mean of two uploads: one is enough.
            pair = rest[BLANKS::2] * math.sqrt(2)
            found.blank.append(np.stack([rest[:BLANKS], pair], axis=1))
        return self._seen(found, "fast engine", included, rounds)

    def counts(self) -> Seen:
        """Presence at places: 1 at a true place, 0 at a pseudo one; sent once.

        For ``replace`` too, whose claim is for two such steps: the bound then stays
        under half of the claimed mu.
        """
        if self._opposed:
            steps = replace(self.plan, relation="zero-out")
            return replace(self, plan=steps).counts()
        came = np.empty((self._people, self._slots))
        for person in range(self._people):
            cohort = self._cohort.restrict([person])
            told = client.announce(cohort, self.plan, self._seeds)
            came[person, told.keys] = told.counts
        blank, scores = came[:, :_BLANK_SLOTS, None], came[:, _BLANK_SLOTS:].ravel()
        return Seen(
            channel="counts",
            unit="visit",
            way="each upload",
            rounds=(0,),
            scores=scores[None],
            lengths=np.abs(scores[None]),
            included=self._coins.ravel(),
            middle=0.5,
            blank={"presence": blank[None]},
            size=1,
        )

    def _seen(
        self, found: "_Found", way: Way, included: Mask, rounds: Sequence[int]
    ) -> Seen:
        return Seen(
            channel=f"{found.kind}/{found.layer}",
            unit="visit",
            way=way,
            rounds=tuple(rounds),
            scores=np.stack(found.scores),
            lengths=np.stack(found.lengths),
            included=included,
            middle=middle(self.plan.relation),
            blank={"rows": np.stack(found.blank)},
            size=self.model.width,
        )

    def _exchange(self, kind: str, layer: int, rows: Floats) -> Exchange:
        sent: Tensor = torch.from_numpy(rows).to(self.model.dtype)
        return Exchange("return" if kind == "return" else "upload", layer, sent)

    @property
    def _clip(self) -> float:
        return 0.0 if self.plan.upload is None else self.plan.upload.clip

    @property
    def _opposed(self) -> bool:
        """Whether a canary that is out sends the opposite row."""
        return self.plan.relation == "replace"

    @cached_property
    def _seeds(self) -> RunSeeds:
        return RunSeeds(self.seed)

    @cached_property
    def _coins(self) -> Mask:
        """(people, canary slots); with opposite rows one coin for a person's row."""
        slots = min(_DAY.slots - _BLANK_SLOTS, self.plan.releases.person)
        slots = 1 if self._opposed else slots
        return coins(self.seed, "visits", (math.ceil(self.visits / slots), slots))

    @property
    def _people(self) -> int:
        return len(self._coins)

    @property
    def _slots(self) -> int:
        return int(self._coins.shape[1]) + _BLANK_SLOTS

    @property
    def _true(self) -> Mask:
        """(people, slots) where people really are; nowhere in the blank slots."""
        there = np.ones_like(self._coins) if self._opposed else self._coins
        return np.pad(there, ((0, 0), (_BLANK_SLOTS, 0)))

    @property
    def _facing(self) -> Floats:
        """(people,) 1, or -1 for opposite rows."""
        if self._opposed:
            return factors(self._coins[:, 0], self.plan.relation)
        return np.ones(self._people)

    @cached_property
    def _cohort(self) -> Cohort:
        """Everybody claims one region at every slot, truly or not."""
        there = self._true.T
        true = np.where(there, 0, -1).astype(np.int32)
        return cohort_of(true, np.where(there, -1, 0).astype(np.int32))

    @cached_property
    def _lonely(self) -> Cohort:
        """Everybody alone at a region, but the last 2 x ``BLANKS`` two by two."""
        alone = np.arange(self.visits + BLANKS, dtype=np.int32)
        both = len(alone) + np.repeat(np.arange(BLANKS, dtype=np.int32), 2)
        return cohort_of(np.append(alone, both)[None])

    def _rows(self, people: int) -> Floats:
        """(people, width) of length 1."""
        rng = Streams(self.seed).numpy("canary rows")
        rows = rng.standard_normal((people, self.model.width))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class _Found:
    """What came of rows at places, round by round."""

    kind: str
    layer: int
    scores: list[Floats] = field(default_factory=list)
    lengths: list[Floats] = field(default_factory=list)
    blank: list[Floats] = field(default_factory=list)


def _norms(rows: Floats) -> Floats:
    return np.asarray(np.linalg.norm(rows, axis=-1))


def cohort_of(true: RegionIds, pseudo: RegionIds | None = None) -> Cohort:
    """People at regions, (slots of one day, people), nobody of whom is tested.

    Slots that are not given are gaps.
    """
    given = [true] if pseudo is None else [true, pseudo]
    count = 1 + max(0, *(int(one.max()) for one in given))
    regions = Regions(kind="area", centre_km=np.zeros((count, 2)))
    settings = HypergraphSettings(window_slots=1)
    made = []
    for one in given:
        by_slot = np.full((_DAY.slots, one.shape[1]), -1, np.int32)
        by_slot[: len(one)] = one
        made.append(Incidence.of(Traces(by_slot, _DAY, regions), settings))
    people = np.arange(true.shape[1], dtype=np.int64)
    status = np.full(len(people), -1, np.int8)
    return Cohort(people, made[0], status, None, tuple(made[1:]))
