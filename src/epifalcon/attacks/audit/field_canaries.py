"""Canary audit of Falcon Field's releases.

A canary is an artificial person who stays in one place for the whole window, each in a
different one, and tests positive in the first or last slot: its message exceeds the
bound. It is included by a fair coin; all other people and all messages of the server
are fixed. Each draw has independent noise and uses the code of sites,
``federation.field.site_people``: a site's sums with or without the canary, or in mode
``local`` the canary's own message or zero at the same places. The auditor scores the
release along the difference of both cases before noise.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from epifalcon.attacks.audit.canaries import ChannelObservations, coins
from epifalcon.attacks.audit.releases import (
    ALL,
    DEFAULT,
    ROUNDING,
    AuditRow,
    AuditSettings,
    Strength,
    audit_row,
    noise_of,
)
from epifalcon.attacks.field_messages import RecordedRun
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.field.privacy_plan import (
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
)
from epifalcon.federation.field.settings import FieldTask
from epifalcon.federation.field.site_people import FieldSite
from epifalcon.federation.preparation import SiteData
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.progress import Progress, silent
from epifalcon.types import Floats, Mask

_BARE_EPSILON = 1e12
_BARE_DRAWS, _LEAST_DRAWS = 2, 20
_MOST_PLACES = 200


def audit_field_releases(
    recorded: RecordedRun,
    seed: int,
    settings: AuditSettings = DEFAULT,
    progress: Progress = silent,
) -> tuple[AuditRow, ...]:
    """Return one row for each channel and one for all together, at each strength.

    The list is empty for mode ``off``, which has no guarantee. With probability
    ``CONFIDENCE`` a plan whose claims are true passes.
    """
    if not recorded.task.private:
        return ()
    rows: list[AuditRow] = []
    for number, strength in enumerate(settings.strengths):
        rows += _AuditRun(recorded, settings, strength, seed).rows()
        progress("canaries", number + 1, len(settings.strengths))
    return tuple(rows)


@dataclass(frozen=True, eq=False)
class _AuditRun:
    """Canary audit of one recorded run at one noise strength."""

    recorded: RecordedRun
    settings: AuditSettings
    strength: Strength
    seed: int

    @cached_property
    def task(self) -> FieldTask:
        """The task with the noise of this strength."""
        epsilon = {"test": self.settings.test_epsilon, "bare": _BARE_EPSILON}
        settings = self.recorded.task.settings
        privacy = settings.privacy
        strong = replace(privacy, epsilon=epsilon.get(self.strength, privacy.epsilon))
        return replace(self.recorded.task, settings=replace(settings, privacy=strong))

    @cached_property
    def plan(self) -> FieldPlan:
        """The plan with the noise of this strength."""
        return FieldPlan(self.task.settings.privacy, self.recorded.traces.clock)

    def rows(self) -> list[AuditRow]:
        """Draw and score canaries; return their comparison with the ledger's claims."""
        ledger = Ledger(Budget(delta=self.plan.budget.delta))
        ledger.record(*self.plan.opening())
        for number in range(1, 1 + self.plan.settings.sweeps):
            ledger.record(*self.plan.exchange(number))
        seen = (*self._cells(), self._tests())
        tests = len(self.settings.strengths) * len(seen)
        allowed = 1 + ROUNDING if self.strength == "bare" else math.inf
        return [
            audit_row(
                one,
                ledger,
                self.strength,
                sigma=1.0,
                noise=noise_of(one, 1.0),
                allowed=allowed,
                tests=tests,
            )
            for one in seen
        ]

    @property
    def _local(self) -> bool:
        return self.recorded.task.is_local

    @property
    def _channels(self) -> tuple[str, ...]:
        """Channels with noise at places; presence has none in mode ``local``."""
        return (INFECTIOUS,) if self._local else (PRESENCE, INFECTIOUS)

    @cached_property
    def _places(self) -> int:
        """Number of places in each draw, each with one possible canary."""
        return min(len(self.recorded.traces.regions), _MOST_PLACES)

    @property
    def _draws(self) -> int:
        if self.strength == "bare":
            return _BARE_DRAWS
        return max(_LEAST_DRAWS, -(-self.settings.canaries // self._places))

    def _cells(self) -> list[ChannelObservations]:
        """Return the observations of canaries by channel, and of all channels."""
        clear, everybody = self.recorded.clear, np.ones(self._places, np.bool_)
        inside = self._released(everybody, clear, 0)
        outside = self._released(~everybody, clear, 0)
        if self._local:
            outside = {name: np.zeros_like(one) for name, one in inside.items()}
        apart = {name: inside[name] - outside[name] for name in self._channels}
        tossed = coins(self.seed, f"field {self.strength}", (self._draws, self._places))
        scores: dict[str, list[Floats]] = {name: [] for name in self._channels}
        noise: dict[str, list[Floats]] = {name: [] for name in self._channels}
        for number, coin in enumerate(tossed):
            there = everybody if self._local else coin
            came = self._released(there, self.task, 1 + number)
            for name in self._channels:
                rest = came[name] - outside[name] - there * apart[name]
                noise[name].append(rest)
                along = (rest + coin * apart[name]) * apart[name] - apart[name] ** 2 / 2
                along /= self._scale(name)[:, None, None] ** 2
                scores[name].append(along.sum(axis=(0, 1)))
        found = {name: np.ravel(scores[name]) for name in self._channels}
        seen, coin = [], tossed.ravel()
        for name in self._channels:
            longest, rest = self._longest(name, apart[name]), np.stack(noise[name], 1)
            seen.append(self._seen(name, found[name], coin, longest, rest))
        together = np.sum(list(found.values()), axis=0)
        return [*seen, self._seen(ALL, together, coin)]

    def _tests(self) -> ChannelObservations:
        """Return observations of test counts with and without one positive person."""
        tossed = coins(self.seed, f"tests {self.strength}", (self._draws * 5,))
        true = np.array([1.0, 1.0])
        rest = np.empty((len(tossed), 2))
        for number, is_in in enumerate(tossed):
            site = self._site(np.array([is_in]), self.task, 1 + number, 0)
            rest[number] = site.count().tests[0] - is_in * true
        seen = rest + tossed[:, None] * true
        scores = ((seen - true / 2) * true).sum(axis=1) / self._scale(TESTS)[0] ** 2
        longest = float(np.linalg.norm(true)) / self.plan.receipt(TESTS, 0).clip
        return self._seen(TESTS, scores, tossed, longest, rest[None, :, None, :])

    def _seen(
        self,
        channel: str,
        scores: Floats,
        included: Mask,
        longest: float = 0.0,
        noise: Floats | None = None,
    ) -> ChannelObservations:
        """Build a record from scores (canaries,) and noise (exchanges, draws, ...)."""
        blank = {}
        if noise is not None and self.strength != "bare":
            blank[channel] = noise / self._scale(channel)[:, None, None, None]
        return ChannelObservations(
            channel=channel,
            unit="person",
            way="each upload" if self._local else "sums of a site",
            rounds=_rounds(channel, len(self.recorded.broadcasts)),
            scores=scores[None],
            lengths=np.array([[longest]]),
            included=included,
            middle=0.0,
            blank=blank,
        )

    def _scale(self, channel: str) -> Floats:
        """Return the noise scale of ``channel`` in each exchange, (exchanges,)."""
        if channel == TESTS:
            return np.array([self.plan.sigma(TESTS) * math.sqrt(self.plan.noises)])
        rounds = _rounds(channel, len(self.recorded.broadcasts))
        return np.array([self._scales[channel, number] for number in rounds])

    @cached_property
    def _scales(self) -> dict[tuple[str, int], float]:
        """Noise scale of a site, by channel and exchange."""
        site = self._site(np.ones(1, np.bool_), self.task, 0, 0)
        site.count()
        self.recorded.sent(site)
        return site.scale

    def _released(self, there: Mask, task: FieldTask, draw: int) -> dict[str, Floats]:
        """Return the releases at all places by channel: (exchanges, cells, places)."""
        around = 0 if self._local else self.settings.around
        site = self._site(there, task, draw, around)
        found = {PRESENCE: site.count().crowd[None]}
        site.begin(self.recorded.run)
        sums = [site.sweep(*one).infectious for one in self.recorded.broadcasts]
        found[INFECTIOUS] = np.stack(sums)
        places = slice(1, 1 + self._places)
        return {name: found[name][:, :, places] for name in self._channels}

    def _site(self, there: Mask, task: FieldTask, draw: int, around: int) -> FieldSite:
        """Return a site of ``around`` people, and a canary where ``there`` is True."""
        traces, known = self.recorded.traces, self.recorded.known
        count = min(around, traces.people)
        tests = known.of_people(np.arange(traces.people) < count)
        region = np.where(there, np.arange(len(there)), -1).astype(np.int32)
        stays = np.tile(region, (traces.slots, 1))
        by_slot = np.concatenate([traces.by_slot[:, :count], stays], axis=1)
        tested = np.flatnonzero(there)
        early = tested % 2 == 0
        listed = TestResults.from_tests(
            count + len(there),
            np.append(tests.person, count + tested).astype(np.int32),
            np.append(tests.positive, np.ones_like(early)).astype(np.bool_),
            np.append(tests.slot, (~early) * (traces.slots - 1)).astype(np.int32),
            kind=np.append(tests.kind, np.zeros(len(tested), np.int8)),
            kinds=tests.kinds,
            reason=np.pad(tests.reason, (0, len(tested)), constant_values=-1),
            onset=np.pad(tests.onset, (0, len(tested)), constant_values=-1),
        )
        city = Traces(np.ascontiguousarray(by_slot), traces.clock, traces.regions)
        key = (self.seed + 1) * 10**9 + draw
        data = SiteData(city, listed, 0)
        return FieldSite(data, task, self.recorded.seed, key, traces.people)

    def _longest(self, channel: str, apart: Floats) -> float:
        """Return the largest effect of a canary on a release, relative to the clip."""
        numbers = _rounds(channel, len(self.recorded.broadcasts))
        lengths = np.linalg.norm(apart, axis=1).max(axis=1)
        allowed = [
            self._scales[channel, number]
            / (self.plan.sigma(channel, number) * math.sqrt(self.plan.noises))
            * math.sqrt(self.plan.receipt(channel, number).terms.releases.person)
            for number in numbers
        ]
        return float((lengths / np.array(allowed)).max())


def _rounds(channel: str, exchanges: int) -> tuple[int, ...]:
    return (0,) if channel in (PRESENCE, TESTS) else tuple(range(1, 1 + exchanges))
