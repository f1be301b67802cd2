"""Denoising at the server: estimate the messages of hyperedges from noised sums.

This module only uses sums. The excess of a region's people is their expected additional
infectiousness over untested people, in units of a person known to be positive. For N
people with the noised sum Y of excess in a region, the mean is estimated as

    Y0 / N0 + r (Y - N Y0 / N0) / N      r = (v N) / (v N + sigma^2)

with Y0 and N0 of the whole city; v N is the true variance of the sums of N people,
and v is estimated by maximum likelihood: r is 1 without noise, and nearly 0 if noise
explains all differences. Cells in time are then estimated relative to their region.

Both messages of an edge follow from the excess and from how a person known to be
positive differs from an untested one (``ExpectedProfile``).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epifalcon.belief_propagation.inference import ChainCohort, MessageExchange
from epifalcon.belief_propagation.seir_chain import (
    EdgeMessages,
    Rates,
    Sums,
    SweepOptions,
)
from epifalcon.epidemic.test_results import TestResults
from epifalcon.federation.field.privacy_plan import (
    INFECTIOUS,
    PRESENCE,
    TESTS,
    FieldPlan,
)
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN, Floats

LEAST_CROWD = 0.5
_LEAST_EXCESS = 1e-9
_LEAST_ILL = 1e-5
_SPREADS = np.geomspace(1e-4, 1e1, 81)
"""Candidate values of v, in squared units of a person known to be positive."""
_PENALTY = (np.log(_SPREADS / 0.1) / np.log(3.0)) ** 2
"""Penalty of each candidate v: a prior around 0.1, which corresponds to 10 % known
positives, mixed at random. It matters if there are few regions."""
_CROWDS_APART = 2.0
"""Upper bound on the standard deviation of people per region, relative to the mean."""
_CITY_APART = 0.05
"""Prior standard deviation of a city's mean excess."""
_USUAL_SHARE, _SHARE_APART = 0.15, 0.1
"""Prior mean and standard deviation of the share of positives."""


class NoisySums(NamedTuple):
    """Noised sums and their standard errors, each (cells in time, regions)."""

    total: Floats
    sigma: Floats
    """Standard error of each sum; 0 for cells without senders."""


@dataclass(frozen=True, eq=False)
class ExpectedProfile:
    """Public expectation of a person's messages, before any data are exchanged."""

    usual: Floats
    """Probability that an untested person is infectious, (slots,)."""
    excess: Floats
    """Excess of this probability for a person positive in the last slot, (slots,)."""
    news: Floats
    """Evidence message of a person positive in the last slot, (slots,)."""

    @classmethod
    def of(
        cls, received: EdgeMessages, rates: Rates, clock: Clock, bound: float
    ) -> "ExpectedProfile":
        """Compute the profile by one sweep for an untested and a positive person."""
        nowhere = np.full((clock.slots, 2), UNKNOWN, np.int32)
        traces = Traces(nowhere, clock, Regions("area", np.zeros((1, 2))))
        tests = TestResults.from_tests(
            2, np.array([1]), np.array([True]), np.array([clock.slots - 1])
        )
        pair = ChainCohort.of(traces, tests, rates)
        received = received._replace(edges=np.zeros((clock.slots, 2, 4)))
        pair.sweep(received, SweepOptions(1.0, np.ones(clock.slots), bound))
        usual, ill = pair.state.infectious.T.astype(np.float64)
        news = pair.state.evidence[:, 1].astype(np.float64)
        return cls(usual, np.maximum(ill - usual, _LEAST_EXCESS), news)

    def by_cell(self, length: int) -> Floats:
        """Sum the excess over the slots of each cell, (cells in time,)."""
        found: Floats = self.excess.reshape(-1, length).sum(axis=1)
        return found


class DenoisingExchange:
    """Message exchange of a private run, which estimates the messages from sums."""

    def __init__(
        self,
        inner: MessageExchange,
        plan: FieldPlan,
        rates: Rates,
        crowd: Floats,
        noises: Floats,
        people: int,
    ) -> None:
        """Estimate people per region; ``noises`` counts the noise terms per cell."""
        self._inner, self._plan, self._rates = inner, plan, rates
        self._noises, self._people = noises[:, 1:], people
        self._profile: ExpectedProfile | None = None
        self._received: list[NoisySums] = []
        self._local = plan.settings.mode == "local"
        if self._local:
            # Regions are sent without protection, so presence is known exactly.
            total = self._noises.sum(axis=0, keepdims=True)
            presence = NoisySums(total, np.zeros_like(total))
        else:
            presence = self._noisy(crowd, PRESENCE, 0, plan.presence_reach)
        self.crowd = estimate_crowd(presence, people)

    @property
    def share_of_others(self) -> float:
        """Mean share of other people among those present at a person's place."""
        return float(np.maximum(self.crowd - 1, 0).sum() / self.crowd.sum())

    def _noisy(
        self, total: Floats, channel: str, number: int, reach: float
    ) -> NoisySums:
        """Return the received sums of a channel with their standard errors."""
        scale = reach * self._plan.receipt(channel, number).sigma
        noises = self._noises if channel == INFECTIOUS else self._noises[:1]
        return NoisySums(total[:, 1:], scale * np.sqrt(noises))

    def positive(self, tested: float, positive: float) -> float:
        """Estimate the number of positives among ``tested`` from both noised counts."""
        return tested * estimate_share(tested, positive, self.tests_error)

    @property
    def tests_error(self) -> float:
        """Standard error of the noised numbers of tested and of positive people."""
        count = self._people if self._local else self._noises.max()
        return self._plan.receipt(TESTS, 0).sigma * float(np.sqrt(count))

    def sweep(self, received: EdgeMessages, options: SweepOptions) -> Sums:
        """Send the messages of all edges; return estimates of the noised sums."""
        plan, number = self._plan, 1 + len(self._received)
        if self._profile is None:
            rates, bound = self._rates, options.bound
            self._profile = ExpectedProfile.of(received, rates, plan.clock, bound)
        sums = self._inner.sweep(received, options)
        most = unit_of(plan, self._profile) * float(self._profile.excess.max())
        reach = plan.reach(number, most)
        came = self._noisy(sums.infectious, INFECTIOUS, number, reach)
        self._received.append(came)
        found = edge_sums(self._received, self._profile, self.crowd, options.bound)
        return sums._replace(infectious=found[0], evidence=found[1])

    def end(self, received: EdgeMessages) -> None:
        """Send the last messages; there is no reply."""
        self._inner.end(received)


def unit_of(plan: FieldPlan, profile: ExpectedProfile) -> float:
    """Return the factor that scales a positive person's message to norm 1."""
    return 1 / float(np.linalg.norm(profile.by_cell(plan.length)))


def edge_sums(
    received: list[NoisySums], profile: ExpectedProfile, crowd: Floats, bound: float
) -> tuple[Floats, Floats]:
    """Estimate the sums of infectiousness and evidence at all edges."""
    slots = len(profile.usual)
    by_cell = profile.by_cell(slots // len(received[0].total))
    pooled = _pooled(received)
    excess = estimate_excess(pooled, crowd, by_cell / np.linalg.norm(by_cell))
    excess, others = by_slot(excess, slots), by_slot(crowd[None], slots)
    ill = profile.usual[:, None] + profile.excess[:, None] * excess
    news = profile.news[:, None] * excess
    return np.clip(ill, _LEAST_ILL, 1) * others, np.clip(news, -1, bound) * others


def by_slot(cells: Floats, slots: int) -> Floats:
    """Expand (cells in time, regions) to (slots, 1 + regions); column 0 is zero."""
    found = np.repeat(cells, slots // len(cells), axis=0)
    return np.pad(found, ((0, 0), (1, 0)))


def _pooled(received: list[NoisySums]) -> NoisySums:
    """Average the sums of all sweeps, weighted by precision."""
    weights = [1 / max(float(one.sigma.max()), _LEAST_ILL) ** 2 for one in received]
    pairs = list(zip(weights, received, strict=True))
    total = sum(weight * one.total for weight, one in pairs)
    squared = sum((weight * one.sigma) ** 2 for weight, one in pairs)
    whole = sum(weights)
    return NoisySums(np.asarray(total / whole), np.asarray(np.sqrt(squared) / whole))


def estimate_crowd(presence: NoisySums, people: int) -> Floats:
    """Estimate people per region, (regions,), shrunk towards their mean."""
    total, sigma = presence.total[0], presence.sigma[0]
    scale = people / max(float(total.sum()), 1.0)
    mean = people / total.size
    apart, noise = scale * total - mean, (scale * sigma) ** 2
    truly = min(max(float((apart**2 - noise).mean()), 0.0), (_CROWDS_APART * mean) ** 2)
    found = mean + truly / np.maximum(truly + noise, _LEAST_EXCESS) * apart
    return np.asarray(np.maximum(found, LEAST_CROWD))


def estimate_share(tested: float, positive: float, sigma: float) -> float:
    """Estimate the share of positives from two noised counts and a prior."""
    tested = max(tested, 1.0)
    share = min(max(positive / tested, 0.0), 1.0)
    noise = (1 + share**2) * (sigma / tested) ** 2
    weight = _SHARE_APART**2 / (_SHARE_APART**2 + noise)
    return _USUAL_SHARE + weight * (share - _USUAL_SHARE)


def estimate_excess(sums: NoisySums, crowd: Floats, profile: Floats) -> Floats:
    """Estimate the mean excess, (cells in time, regions); ``profile`` has L2 norm 1."""
    # Noise is isotropic: along the profile it is that of one cell.
    weight = profile[:, None] * (sums.sigma > 0)
    there = (weight * profile[:, None]).sum(axis=0)
    along = (weight * sums.total).sum(axis=0)
    noise = np.sqrt(((weight * sums.sigma) ** 2).sum(axis=0))
    people = crowd * there
    city = _city(along, people, noise)
    apart = _shrunk(along - city * people, people, noise)
    whole = city + apart / np.maximum(people, LEAST_CROWD)
    found = np.tile(whole, (len(profile), 1))
    if len(profile) == 1:
        return found
    size = profile[:, None] * crowd
    left = sums.total - found * size
    return found + _shrunk(left, size, sums.sigma) / np.maximum(size, _LEAST_EXCESS)


def _city(along: Floats, people: Floats, sigma: Floats) -> float:
    """Estimate the mean excess of the whole city with a Gaussian prior around 0."""
    count = max(float(people.sum()), LEAST_CROWD)
    truly, noise = _CITY_APART**2, float((sigma**2).sum()) / count**2
    return truly / (truly + noise) * float(along.sum()) / count


def _shrunk(apart: Floats, people: Floats, sigma: Floats) -> Floats:
    """Shrink differences from the mean to 0; sums over N people have variance v N."""
    known = sigma > 0
    if not known.any():
        return np.zeros_like(apart)
    seen, size, noise = apart[known], people[known], sigma[known] ** 2
    lost = []
    for spread, penalty in zip(_SPREADS, _PENALTY, strict=True):
        # -2 log likelihood, up to a constant, with the prior.
        variance = spread * size + noise
        lost.append(penalty + float(np.sum(np.log(variance) + seen**2 / variance)))
    truly = _SPREADS[int(np.argmin(lost))] * people
    return np.asarray(np.where(known, truly / (truly + sigma**2 + ~known), 0.0) * apart)
