"""One run of canaries through every private release of a plan, beside its claims.

Each channel is audited twice: with the run's own noise, and at a test strength with
just so much noise that the ledger claims a small epsilon for the few rounds sent.
The first says what the guesses show of the run as it is: next to nothing where the
noise is strong or where the claim is larger than any number of canaries can reach.
The second goes through the same code and shows its faults: a clip that does not
hold, less noise than claimed, a round without noise, noise used twice, a value that
left without a receipt.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Literal, get_args

import numpy as np

from epifalcon.checks import one_of, positive, unit_interval, whole
from epifalcon.errors import SettingsError
from epifalcon.evaluation.audit.bounds import (
    CONFIDENCE,
    Guesses,
    Rates,
    guess_extremes,
    one_run_epsilon,
    rates_mu,
    shared_confidence,
)
from epifalcon.evaluation.audit.canaries import CanaryVisits
from epifalcon.evaluation.audit.gradient_canaries import CanaryPeople
from epifalcon.evaluation.audit.repeats import NoiseFound, look_at_noise
from epifalcon.evaluation.audit.seen import Seen, Way
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import epsilon_of, sigma_for
from epifalcon.privacy.dpsgd import GradientMechanism
from epifalcon.privacy.events import GaussianRelease, Terms, Unit
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.privacy.perturb import UploadMechanism
from epifalcon.progress import Progress, silent

Strength = Literal["run", "test"]


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How many canaries, how many rounds, how sure."""

    canaries: int = 4000
    """Visits, each in or out by a fair coin."""
    canary_people: int = 2000
    """The same for gradients, of which a person sends one."""
    rounds: int = 4
    """An even number lets noise that is used in two rounds cancel."""
    confidence: float = CONFIDENCE
    """That no bound of the whole audit is too high; each test has its share."""
    test_epsilon: float = 2.0
    """What the ledger shall claim for the rounds of the test strength."""
    guess_share: float = 0.25
    """Canaries guessed for the one-run bound: the most extreme scores."""
    strengths: tuple[Strength, ...] = ("run", "test")
    """The run's own noise, noise of the test strength, or both."""

    def __post_init__(self) -> None:
        whole(2, canaries=self.canaries, canary_people=self.canary_people)
        whole(1, rounds=self.rounds)
        positive(test_epsilon=self.test_epsilon, guess_share=self.guess_share)
        unit_interval(confidence=self.confidence, guess_share=self.guess_share)
        if not self.strengths or len(set(self.strengths)) < len(self.strengths):
            raise SettingsError("strengths must name 'run', 'test', or each once")
        for strength in self.strengths:
            one_of(get_args(Strength), strength=strength)
        if self.confidence in (0, 1):
            raise SettingsError(f"confidence={self.confidence} must be between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One channel at one strength: what is claimed, and what guesses show."""

    channel: str
    unit: Unit
    way: Way
    strength: Strength
    sigma: float
    """Of the noise, as the plan has it."""
    rounds: int
    delta: float
    claimed: float
    """Epsilon by the ledger's receipts for these rounds."""
    lower_bound: float
    """The least epsilon that an honest ledger could have claimed (``rates_mu``);
    infinite where noise is used twice."""
    one_run_bound: float
    """Lower bound on epsilon without taking anything for Gaussian."""
    confidence: float
    """Of all rows together."""
    canaries: int
    guesses: int
    correct: int
    noise: NoiseFound
    without_receipt: int
    """Rounds in which something left that the ledger does not know."""

    @property
    def repeats(self) -> int:
        """Vectors of noise that came more than once."""
        return self.noise.repeats

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; nothing if the claim stands."""
        found = []
        if self.noise.repeated:
            found.append(
                f"noise repeats: {self.noise.repeats} equal vectors, correlation "
                f"between {self.noise.along} {self.noise.correlation:.1f} standard "
                "errors"
            )
        if self.noise.short:
            found.append(f"noise of {self.noise.sigma:.3g}, claimed {self.sigma:.3g}")
        if self.without_receipt:
            found.append(f"{self.without_receipt} rounds left without a receipt")
        if self.lower_bound > self.claimed:
            found.append(
                f"epsilon is {self.lower_bound:.3g} or more, claimed {self.claimed:.3g}"
            )
        return tuple(found)

    @property
    def passed(self) -> bool:
        """Whether the claim stands."""
        return not self.findings


def audit_releases(
    plan: PrivacyPlan,
    model: FalconSettings,
    seed: int,
    settings: AuditSettings | None = None,
    progress: Progress = silent,
) -> tuple[AuditRow, ...]:
    """Audit every noised channel of ``plan``, at the run's own and at test strength.

    A row for each channel and strength, for rows at places two: each upload as the
    server sees it, and the fast engine. Empty for mode ``off``, which claims nothing.
    Counts of the fast engine, drawn as sums, and channels without noise are not
    audited. With probability ``settings.confidence`` a plan that keeps its claims
    passes; ``AuditRow.findings`` tells what does not.
    """
    settings = AuditSettings() if settings is None else settings
    if plan.upload is None or plan.gradient is None:
        return ()
    channels = 1 + 2 * plan.layers * len(_kinds(plan)) + (plan.presence is not None)
    total = len(settings.strengths) * channels
    rows: list[AuditRow] = []
    for strength in settings.strengths:
        audited = replace(plan, budget=Budget(delta=plan.budget.delta))
        if strength == "test":
            audited = at_test_strength(audited, settings)
        run = _AuditRun(audited, strength, settings, total)
        sent = _told(run.send(model, seed), progress, len(rows), total)
        rows += run.judged(list(sent))
    return tuple(rows)


def at_test_strength(plan: PrivacyPlan, settings: AuditSettings) -> PrivacyPlan:
    """The same plan with noise for which a ledger claims about ``test_epsilon``.

    For each channel by itself, over the rounds of the audit; counts leave once.
    """
    delta, rounds = plan.budget.delta, settings.rounds

    def sigma(clip: float, terms: Terms, times: int) -> float:
        reach = GaussianRelease(terms=terms, clip=clip, sigma=1.0).sensitivity
        return sigma_for(settings.test_epsilon, delta, reach, times)

    def upload(made: UploadMechanism | None, name: str, times: int) -> UploadMechanism:
        clip = 1.0 if made is None else made.clip
        return UploadMechanism(clip, sigma(clip, plan.terms(name, 0), times))

    gradient = plan.gradient
    if gradient is not None:
        noise = sigma(gradient.clip, plan.gradient_terms(0), rounds)
        gradient = GradientMechanism(gradient.clip, noise)
    return replace(
        plan,
        upload=None if plan.upload is None else upload(plan.upload, "upload/0", rounds),
        gradient=gradient,
        presence=None if plan.presence is None else upload(plan.presence, "counts", 1),
    )


@dataclass(frozen=True)
class _AuditRun:
    """All channels at one strength, with a ledger of their own."""

    plan: PrivacyPlan
    strength: Strength
    settings: AuditSettings
    rows: int
    """Of the whole audit, which share the confidence."""

    def send(self, model: FalconSettings, seed: int) -> Iterator[Seen]:
        """All canaries through all rounds, a channel at a time."""
        plan, rounds = self.plan, range(self.settings.rounds)
        visits = CanaryVisits(plan, model, seed, self.settings.canaries)
        if plan.presence is not None:
            yield visits.counts()
        for kind, layer in product(_kinds(plan), range(plan.layers)):
            yield visits.uploads(kind, layer, rounds)
            yield visits.fast(kind, layer, rounds)
        people = CanaryPeople(plan, model, seed, self.settings.canary_people)
        yield people.gradients(rounds)

    def judged(self, seen: list[Seen]) -> list[AuditRow]:
        ledger = self._receipts()
        found = self._noise(seen)
        return [self._row(one, found[one.way, one.channel], ledger) for one in seen]

    def _receipts(self) -> Ledger:
        """What a run of these rounds would enter, as the engines do."""
        ledger = Ledger(self.plan.budget)
        for number in range(self.settings.rounds):
            opening = () if number else self.plan.opening()
            ledger.record(*opening, *self.plan.round_receipts(number))
            ledger.record(*self.plan.scoring_receipts(number))
        return ledger

    def _noise(self, seen: list[Seen]) -> dict[tuple[Way, str], NoiseFound]:
        """Noise is compared among all channels that have one shape and sigma."""

        def alike(one: Seen) -> tuple[str, bool, bool]:
            return one.way, one.channel == "gradient", one.channel == "counts"

        found: dict[tuple[Way, str], NoiseFound] = {}
        for _, group in groupby(sorted(seen, key=alike), key=alike):
            members = list(group)
            blank = np.stack([one.blank for one in members])
            judged = look_at_noise(blank, self._sigma(members[0].channel))
            found |= {(one.way, one.channel): judged for one in members}
        return found

    def _sigma(self, channel: str) -> float:
        made = {"counts": self.plan.presence, "gradient": self.plan.gradient}
        mechanism = made.get(channel, self.plan.upload)
        return 0.0 if mechanism is None else mechanism.sigma

    def _row(self, seen: Seen, noise: NoiseFound, ledger: Ledger) -> AuditRow:
        settings, delta = self.settings, self.plan.budget.delta
        spent = ledger.spent().channels.get(seen.channel)
        receipts = {
            one.terms.round
            for one in ledger.releases
            if isinstance(one, GaussianRelease) and one.terms.channel == seen.channel
        }
        guesses = self._guesses(seen)
        mu = math.inf if noise.repeated else self._mu(seen)
        level = shared_confidence(settings.confidence, self.rows)
        return AuditRow(
            channel=seen.channel,
            unit=seen.unit,
            way=seen.way,
            strength=self.strength,
            sigma=self._sigma(seen.channel),
            rounds=len(seen.scores),
            delta=delta,
            claimed=0.0 if spent is None else spent[seen.unit].epsilon,
            lower_bound=epsilon_of(mu, delta),
            one_run_bound=one_run_epsilon(guesses, delta, level),
            confidence=settings.confidence,
            canaries=guesses.canaries,
            guesses=guesses.made,
            correct=guesses.correct,
            noise=noise,
            without_receipt=len(set(range(len(seen.scores))) - receipts),
        )

    def _mu(self, seen: Seen) -> float:
        """The best of the sum over rounds and of each round alone.

        Thresholds are halfway between what "in" and "out" should score, fixed
        before anything is seen; a round alone shows one that left without noise.
        """
        rounds = len(seen.scores)
        level = shared_confidence(self.settings.confidence, self.rows * (rounds + 1))
        tests = [(seen.scores.sum(axis=0), rounds * seen.middle)]
        tests += [(score, seen.middle) for score in seen.scores] if rounds > 1 else []
        return max(
            rates_mu(Rates.of(score > threshold, seen.included), level)
            for score, threshold in tests
        )

    def _guesses(self, seen: Seen) -> Guesses:
        total = len(seen.included)
        made = min(total, max(1, round(self.settings.guess_share * total)))
        called, guessed = guess_extremes(seen.scores.sum(axis=0), made)
        right = int(np.count_nonzero((called == seen.included) & guessed))
        return Guesses(total, made, right)


def _kinds(plan: PrivacyPlan) -> tuple[str, ...]:
    """Of rows at places, as channel names begin."""
    exchanged = ("return",) if plan.way.exchanged else ()
    return "upload", *exchanged, "scoring"


def _told(
    seen: Iterator[Seen], progress: Progress, done: int, total: int
) -> Iterator[Seen]:
    for number, one in enumerate(seen):
        progress("audit", done + number + 1, total, one.channel)
        yield one
