"""Send canaries through every private release of a plan and compare with its claims.

Each channel is audited at three strengths:

- ``run``, the run's own noise: bounds are weak if the noise is strong, or if the
  canaries are too few to refute so large a claim;
- ``test``, noise for a small claimed epsilon over the few audited rounds: faults of
  the same code are detected (less noise than claimed, a round or a parameter without
  noise, noise used twice, a value without a receipt);
- ``bare``, negligible noise: no released vector may be longer than the clip.

Rounds are the first, the last, and some drawn at random between them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Literal

import numpy as np

from epifalcon.attacks.audit.bounds import (
    CONFIDENCE,
    guess_extremes,
    one_run_epsilon,
    rates_mu,
    shared_confidence,
)
from epifalcon.attacks.audit.canaries import (
    CanaryPeople,
    CanaryVisits,
    ChannelObservations,
    Way,
)
from epifalcon.attacks.audit.noise_checks import (
    NOTHING_FOUND,
    TOO_FAR,
    NoiseStatistics,
    check_noise,
    shared_noise,
    worst,
)
from epifalcon.federation.privacy_plan import PrivacyPlan
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import epsilon_of, sigma_for
from epifalcon.privacy.events import GaussianRelease, Terms, Unit
from epifalcon.privacy.gaussian import GaussianMechanism
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams

Strength = Literal["run", "test", "bare"]

ALL = "all cells"
"""Channel name of the row that combines all channels."""
ROUNDING = 1e-4
"""Tolerance for rounding in single precision, relative to the clip."""
_BARE = 1e-6
"""Noise of the bare strength relative to the clip: negligible, but not zero."""
_BARE_CANARIES, _BARE_ROUNDS = 400, 2
"""Canaries and rounds at the bare strength; few, as a wrong clip affects every row."""
_GUESS_SHARE = 0.25
"""Share of canaries to guess for the one-run bound, by most extreme scores."""
_COHORTS, _COHORT = 60, 8
"""Number of cohorts that send one sum of gradients, and people in each."""


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """Result for one channel at one strength: claim, bounds and noise statistics."""

    channel: str
    unit: Unit
    way: Way
    strength: Strength
    sigma: float
    """Noise scale that the plan claims."""
    rounds: tuple[int, ...]
    """Numbers of the rounds that were audited."""
    delta: float
    claimed: float
    """Epsilon claimed by the receipts of these rounds, for this channel and unit."""
    lower_bound: float
    """Smallest epsilon that a correct ledger could have claimed (``rates_mu``);
    infinite if noise is used twice."""
    one_run_bound: float
    """Lower bound on epsilon without assuming Gaussian noise."""
    confidence: float
    """Joint confidence of the bounds in all rows."""
    canaries: int
    noise: NoiseStatistics
    without_receipt: int
    """Number of rounds with a release that is not in the ledger."""
    longest: float
    """Largest norm of a canary's release relative to the clip, noise included."""
    allowed: float
    """Largest norm that clip and noise permit, relative to the clip."""

    @property
    def findings(self) -> tuple[str, ...]:
        """Descriptions of all faults; empty if the claim is not refuted."""
        found, noise = [], self.noise
        where = f" in {', '.join(noise.parts)}" if noise.parts else ""
        if noise.repeated:
            found.append(
                f"noise repeats{where}: {noise.repeats} equal vectors, correlation "
                f"between {noise.along} {noise.correlation:.1f} standard errors"
            )
        if noise.short:
            found.append(f"noise of {noise.sigma:.3g}{where}, claimed {self.sigma:.3g}")
        if self.longest > self.allowed:
            found.append(
                f"a released value is {self.longest:.4g} clips long, allowed is 1"
            )
        if self.without_receipt:
            found.append(f"{self.without_receipt} rounds have no receipt")
        if self.lower_bound > self.claimed:
            least = f"epsilon is at least {self.lower_bound:.3g}"
            found.append(f"{least}, claimed {self.claimed:.3g}")
        return tuple(found)

    @property
    def passed(self) -> bool:
        """True if the claim is not refuted."""
        return not self.findings


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Size of a canary audit."""

    canaries: int = 4000
    """Number of canary visits."""
    canary_people: int = 2000
    """Number of canary people, for gradients."""
    around: int = 60
    """Number of other people at the canaries' site; unused in mode ``local``."""
    rounds: int = 6
    """Maximum number of audited rounds; even, so that reused noise cancels."""
    test_epsilon: float = 2.0
    """Epsilon that the ledger claims for the audited rounds at strength ``test``."""
    strengths: tuple[Strength, ...] = ("run", "test", "bare")
    """Noise strengths at which to audit."""


DEFAULT = AuditSettings()


def audit_releases(
    plan: PrivacyPlan,
    model: FalconSettings,
    seed: int,
    settings: AuditSettings = DEFAULT,
    progress: Progress = silent,
) -> tuple[AuditRow, ...]:
    """Audit every noised channel of ``plan`` at each strength.

    Returns a row for each channel, strength and way: uploads as the server receives
    them, or the fast engine. Empty for mode ``off``, which claims nothing. Counts of
    the fast engine and channels without noise are not audited. With probability
    ``CONFIDENCE`` a plan whose claims are true passes.
    """
    if plan.upload is None or plan.gradient is None:
        return ()
    channels = 2 + 2 * plan.layers * len(_kinds(plan)) + (plan.presence is not None)
    total = len(settings.strengths) * channels
    rows: list[AuditRow] = []
    for strength in settings.strengths:
        mine = settings
        if strength == "bare":
            mine = replace(
                settings,
                rounds=min(settings.rounds, _BARE_ROUNDS),
                canaries=min(settings.canaries, _BARE_CANARIES),
                canary_people=min(settings.canary_people, _COHORTS),
            )
        rounds = audited_rounds(model.rounds, mine.rounds, seed)
        audited = _with_noise(plan, strength, settings, len(rounds))
        run = _AuditRun(audited, strength, mine, rounds, total)
        seen = []
        for one in run.send(model, seed):
            seen.append(one)
            progress("audit", len(rows) + len(seen), total, one.channel)
        rows += run.evaluate(seen)
    return tuple(rows)


def audited_rounds(planned: int, count: int, seed: int) -> tuple[int, ...]:
    """Choose ``count`` of a run's rounds, ascending: both ends, others at random.

    Returns all rounds if there are fewer. Two consecutive rounds at each end detect
    noise that is reused in the next round.
    """
    if planned <= count:
        return tuple(range(planned))
    chosen = list(dict.fromkeys((0, planned - 1, planned - 2, 1)))[:count]
    rest = np.setdiff1d(np.arange(planned), chosen)
    rng = Streams(seed).numpy("audited rounds")
    drawn = rng.choice(rest, count - len(chosen), replace=False)
    return tuple(sorted([*chosen, *drawn.tolist()]))


def _with_noise(
    plan: PrivacyPlan, strength: Strength, settings: AuditSettings, rounds: int
) -> PrivacyPlan:
    """Return a copy of ``plan`` with the noise of the given audit strength.

    At ``test`` the ledger claims about ``test_epsilon`` for each channel over all
    rounds.
    """

    def changed(
        mechanism: GaussianMechanism | None, terms: Terms, times: int
    ) -> GaussianMechanism | None:
        if mechanism is None or strength == "run":
            return mechanism
        clip, sigma = mechanism.clip, _BARE * mechanism.clip
        if strength == "test":
            reach = GaussianRelease(terms=terms, clip=clip, sigma=1.0).sensitivity
            sigma = sigma_for(settings.test_epsilon, plan.budget.delta, reach, times)
        return GaussianMechanism(clip, sigma)

    return replace(
        plan,
        budget=Budget(delta=plan.budget.delta),
        upload=changed(plan.upload, plan.terms("upload/0", 0), rounds),
        gradient=changed(plan.gradient, plan.gradient_terms(0), rounds),
        presence=changed(plan.presence, plan.terms("counts", 0), 1),
    )


@dataclass(frozen=True)
class _AuditRun:
    """Audit of all channels at one strength, with a separate ledger."""

    plan: PrivacyPlan
    strength: Strength
    settings: AuditSettings
    rounds: tuple[int, ...]
    rows: int
    """Number of rows of the whole audit, over which the confidence is divided."""

    def send(self, model: FalconSettings, seed: int) -> Iterator[ChannelObservations]:
        """Yield the observations of all channels over all rounds."""
        plan, rounds, count = self.plan, self.rounds, self.settings.canary_people
        visits = CanaryVisits(plan, model, seed, self.settings.canaries)
        if plan.presence is not None:
            yield visits.counts()
        for kind, layer in product(_kinds(plan), range(plan.layers)):
            yield visits.uploads(kind, layer, rounds)
            yield visits.fast(kind, layer, rounds)
        yield CanaryPeople(plan, model, seed, count).gradients(rounds)
        cohorts = min(count, _COHORTS)
        yield CanaryPeople(plan, model, seed, cohorts, _COHORT).gradients(rounds)

    def evaluate(self, seen: list[ChannelObservations]) -> list[AuditRow]:
        """Compare observations with the ledger of a run of these rounds."""
        ledger = Ledger(self.plan.budget)
        ledger.record(*self.plan.opening())
        for number in self.rounds:
            ledger.record(*self.plan.round_receipts(number))
            ledger.record(*self.plan.scoring_receipts(number))
        found, rows = self._noise(seen), []
        for one in seen:
            allowed = math.inf
            if self.strength == "bare":
                spread = math.sqrt(one.noises) * (math.sqrt(one.size) + TOO_FAR)
                allowed = 1 + _BARE * spread + ROUNDING
            rows.append(
                audit_row(
                    one,
                    ledger,
                    self.strength,
                    sigma=self._sigma(one.channel),
                    noise=found[one.way, one.channel],
                    allowed=allowed,
                    tests=self.rows,
                )
            )
        return rows

    def _noise(
        self, seen: list[ChannelObservations]
    ) -> dict[tuple[Way, str], NoiseStatistics]:
        """Check the noise of each channel, and whether two channels share noise.

        Too little noise is a fault of one channel; shared noise is a fault of both.
        """
        found = {}
        for one in seen:
            found[one.way, one.channel] = noise_of(one, self._sigma(one.channel))
        for one, other in combinations(seen, 2):
            if one.way != other.way or not self._sigma(one.channel):
                continue
            mine, theirs = one.blank, other.blank
            both = [name for name in mine if name in theirs]
            common = [n for n in both if mine[n].shape == theirs[n].shape]
            shared = [shared_noise(mine[name], theirs[name]) for name in common]
            if not any(each.repeated for each in shared):
                continue
            for key in ((one.way, one.channel), (other.way, other.channel)):
                if not found[key].repeated:
                    found[key] = worst([found[key], *shared], ["", *common])
        return found

    def _sigma(self, channel: str) -> float:
        made = {"counts": self.plan.presence, "gradient": self.plan.gradient}
        mechanism = made.get(channel, self.plan.upload)
        return 0.0 if mechanism is None else mechanism.sigma


def noise_of(seen: ChannelObservations, sigma: float) -> NoiseStatistics:
    """Return noise statistics of all blanks of a channel."""
    parts = [check_noise(blank, sigma) for blank in seen.blank.values()]
    return worst(parts, list(seen.blank)) if parts else NOTHING_FOUND


def audit_row(
    seen: ChannelObservations,
    ledger: Ledger,
    strength: Strength,
    *,
    sigma: float,
    noise: NoiseStatistics,
    allowed: float,
    tests: int,
) -> AuditRow:
    """Compare the observations of one channel with the receipts in ``ledger``.

    ``tests`` rows share the confidence. The bound on mu is the largest over the sum of
    rounds and each single round, to detect a round without noise. Thresholds are
    the midpoints of the expected scores of "in" and "out", fixed in advance. All
    channels together (``ALL``) have no receipts of their own.
    """
    spent, delta = ledger.spent(), ledger.budget.delta
    claimed = spent.total if seen.channel == ALL else spent.channels.get(seen.channel)
    received = {
        one.terms.round
        for one in ledger.releases
        if isinstance(one, GaussianRelease) and seen.channel in (one.terms.channel, ALL)
    }
    rounds, total = len(seen.scores), seen.scores.sum(axis=0)
    scored = [(total, rounds * seen.middle)]
    scored += [(score, seen.middle) for score in seen.scores] if rounds > 1 else []
    level = shared_confidence(tests * len(scored))
    mu = max(rates_mu(score > least, seen.included, level) for score, least in scored)
    guesses = guess_extremes(total, seen.included, _GUESS_SHARE)
    level = shared_confidence(tests)
    return AuditRow(
        channel=seen.channel,
        unit=seen.unit,
        way=seen.way,
        strength=strength,
        sigma=sigma,
        rounds=seen.rounds,
        delta=delta,
        claimed=0.0 if claimed is None else claimed[seen.unit].epsilon,
        lower_bound=epsilon_of(math.inf if noise.repeated else mu, delta),
        one_run_bound=one_run_epsilon(guesses, delta, level),
        confidence=CONFIDENCE,
        canaries=guesses.canaries,
        noise=noise,
        without_receipt=len(set(seen.rounds) - received),
        longest=float(seen.lengths.max()),
        allowed=allowed,
    )


def _kinds(plan: PrivacyPlan) -> tuple[str, ...]:
    """Return the channel prefixes of rows that are uploaded at places."""
    exchanged = ("return",) if plan.exchange_rules.exchanged else ()
    return "upload", *exchanged, "scoring"
