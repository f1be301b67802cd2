"""One run of canaries through every private release of a plan, beside its claims.

Each channel is audited three times. With the run's own noise the guesses show what
can be shown of the run as it is: next to nothing where the noise is strong or where
the claim is larger than any number of canaries can reach. At a test strength, with
just so much noise that the ledger claims a small epsilon for the few rounds sent,
the same code shows its faults: less noise than claimed, a round or a parameter
without noise, noise used twice, a value that left without a receipt. With next to no
noise nothing may come out longer than the clip.

Rounds are the first, the last, and some drawn at random between them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import get_args

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
from epifalcon.evaluation.audit.repeats import (
    NOTHING_FOUND,
    TOO_FAR,
    NoiseFound,
    look_at_noise,
    shared_noise,
    worst,
)
from epifalcon.evaluation.audit.seen import Seen, Way
from epifalcon.evaluation.audit.verdicts import ROUNDING, AuditRow, Strength
from epifalcon.federation.plan import PrivacyPlan
from epifalcon.models.settings import FalconSettings
from epifalcon.privacy.accounting import epsilon_of, sigma_for
from epifalcon.privacy.dpsgd import GradientMechanism
from epifalcon.privacy.events import GaussianRelease, Terms
from epifalcon.privacy.ledger import Budget, Ledger
from epifalcon.privacy.perturb import UploadMechanism
from epifalcon.progress import Progress, silent
from epifalcon.streams import Streams
from epifalcon.types import Floats

_BARE = 1e-6
"""Noise of the bare strength, in clips: next to none, yet none is left out."""
_BARE_CANARIES, _BARE_ROUNDS = 400, 2
"""A clip that does not hold fails at every row: few will do."""
_COHORTS, _COHORT = 60, 8
"""Cohorts of people who send one sum of gradients, and how many are in each."""


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How many canaries, how many rounds, how sure."""

    canaries: int = 4000
    """Visits, each in or out by a fair coin."""
    canary_people: int = 2000
    """The same for gradients, of which a person sends one."""
    rounds: int = 6
    """Of the run's, at most; an even number lets noise used in two of them cancel."""
    confidence: float = CONFIDENCE
    """That no bound of the whole audit is too high; each test has its share."""
    test_epsilon: float = 2.0
    """What the ledger shall claim for the rounds of the test strength."""
    guess_share: float = 0.25
    """Canaries guessed for the one-run bound: the most extreme scores."""
    strengths: tuple[Strength, ...] = ("run", "test", "bare")
    """At which the audit is made."""

    def __post_init__(self) -> None:
        whole(2, canaries=self.canaries, canary_people=self.canary_people)
        whole(1, rounds=self.rounds)
        positive(test_epsilon=self.test_epsilon, guess_share=self.guess_share)
        unit_interval(confidence=self.confidence, guess_share=self.guess_share)
        if not self.strengths or len(set(self.strengths)) < len(self.strengths):
            raise SettingsError("strengths must name 'run', 'test', 'bare', each once")
        for strength in self.strengths:
            one_of(get_args(Strength), strength=strength)
        if self.confidence in (0, 1):
            raise SettingsError(f"confidence={self.confidence} must be between 0 and 1")


def audit_releases(
    plan: PrivacyPlan,
    model: FalconSettings,
    seed: int,
    settings: AuditSettings | None = None,
    progress: Progress = silent,
) -> tuple[AuditRow, ...]:
    """Audit every noised channel of ``plan``, at each of the strengths.

    A row for each channel and strength and two ways: each upload as the server sees
    it, and the fast engine. Empty for mode ``off``, which claims nothing. Rounds are
    chosen among ``model.rounds``. Counts of the fast engine, drawn as sums, and
    channels without noise are not audited. With probability ``settings.confidence``
    a plan that keeps its claims passes; ``AuditRow.findings`` tells what does not.
    """
    settings = AuditSettings() if settings is None else settings
    if plan.upload is None or plan.gradient is None:
        return ()
    channels = 2 + 2 * plan.layers * len(_kinds(plan)) + (plan.presence is not None)
    total = len(settings.strengths) * channels
    rows: list[AuditRow] = []
    for strength in settings.strengths:
        audited = replace(plan, budget=Budget(delta=plan.budget.delta))
        mine, count = settings, settings.rounds
        if strength == "bare":
            audited, mine = _at_bare_strength(audited), _few(settings)
            count = min(count, _BARE_ROUNDS)
        rounds = audited_rounds(model.rounds, count, seed)
        if strength == "test":
            audited = at_test_strength(audited, settings, len(rounds))
        run = _AuditRun(audited, strength, mine, rounds, total)
        sent = _told(run.send(model, seed), progress, len(rows), total)
        rows += run.judged(list(sent))
    return tuple(rows)


def audited_rounds(planned: int, count: int, seed: int) -> tuple[int, ...]:
    """``count`` of a run's rounds, ascending: both ends, and others at random.

    All of them if there are no more. Two neighbours stand at each end, since noise
    may be used again in the next round only.
    """
    whole(1, planned=planned, count=count)
    if planned <= count:
        return tuple(range(planned))
    chosen = list(dict.fromkeys((0, planned - 1, planned - 2, 1)))[:count]
    rest = np.setdiff1d(np.arange(planned), chosen)
    rng = Streams(seed).numpy("audited rounds")
    drawn = rng.choice(rest, count - len(chosen), replace=False)
    return tuple(sorted([*chosen, *drawn.tolist()]))


def at_test_strength(
    plan: PrivacyPlan, settings: AuditSettings, rounds: int
) -> PrivacyPlan:
    """The same plan with noise for which a ledger claims about ``test_epsilon``.

    For each channel by itself, over ``rounds`` rounds; counts leave once.
    """
    delta = plan.budget.delta

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


def _at_bare_strength(plan: PrivacyPlan) -> PrivacyPlan:
    """The same plan with next to no noise."""

    def upload(made: UploadMechanism | None) -> UploadMechanism | None:
        return None if made is None else UploadMechanism(made.clip, _BARE * made.clip)

    made = plan.gradient
    gradient = None if made is None else GradientMechanism(made.clip, _BARE * made.clip)
    return replace(
        plan,
        upload=upload(plan.upload),
        gradient=gradient,
        presence=upload(plan.presence),
    )


def _few(settings: AuditSettings) -> AuditSettings:
    return replace(
        settings,
        canaries=min(settings.canaries, _BARE_CANARIES),
        canary_people=min(settings.canary_people, _COHORTS),
    )


@dataclass(frozen=True)
class _AuditRun:
    """All channels at one strength, with a ledger of their own."""

    plan: PrivacyPlan
    strength: Strength
    settings: AuditSettings
    rounds: tuple[int, ...]
    rows: int
    """Of the whole audit, which share the confidence."""

    def send(self, model: FalconSettings, seed: int) -> Iterator[Seen]:
        """All canaries through all rounds, a channel at a time."""
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

    def judged(self, seen: list[Seen]) -> list[AuditRow]:
        ledger = self._receipts()
        found = self._noise(seen)
        return [self._row(one, found[one.way, one.channel], ledger) for one in seen]

    def _receipts(self) -> Ledger:
        """What a run of these rounds would enter, as the engines do."""
        ledger = Ledger(self.plan.budget)
        ledger.record(*self.plan.opening())
        for number in self.rounds:
            ledger.record(*self.plan.round_receipts(number))
            ledger.record(*self.plan.scoring_receipts(number))
        return ledger

    def _noise(self, seen: list[Seen]) -> dict[tuple[Way, str], NoiseFound]:
        """What is found in a channel itself, and together with another one.

        Noise of one channel that is too little is no fault of the others; noise that
        two of them share is a fault of both.
        """
        found = {}
        for one in seen:
            sigma = self._sigma(one.channel)
            parts = [
                look_at_noise(blank, sigma, name) for name, blank in one.blank.items()
            ]
            found[one.way, one.channel] = worst(parts, list(one.blank))
        for one, other in combinations(seen, 2):
            if one.way != other.way or not self._sigma(one.channel):
                continue
            shared = _shared(one.blank, other.blank)
            for pair in (one, other):
                mine = found[pair.way, pair.channel]
                if shared.repeated and not mine.repeated:
                    found[pair.way, pair.channel] = worst([mine, shared], ["", ""])
        return found

    def _sigma(self, channel: str) -> float:
        made = {"counts": self.plan.presence, "gradient": self.plan.gradient}
        mechanism = made.get(channel, self.plan.upload)
        return 0.0 if mechanism is None else mechanism.sigma

    def _allowed(self, seen: Seen) -> float:
        """The longest that clip and noise can make a value, in clips."""
        if self.strength != "bare":
            return math.inf
        noise = _BARE * math.sqrt(seen.noises) * (math.sqrt(seen.size) + TOO_FAR)
        return 1 + noise + ROUNDING

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
            rounds=seen.rounds,
            delta=delta,
            claimed=0.0 if spent is None else spent[seen.unit].epsilon,
            lower_bound=epsilon_of(mu, delta),
            one_run_bound=one_run_epsilon(guesses, delta, level),
            confidence=settings.confidence,
            canaries=guesses.canaries,
            guesses=guesses.made,
            correct=guesses.correct,
            noise=noise,
            without_receipt=len(set(seen.rounds) - receipts),
            longest=float(seen.lengths.max()),
            allowed=self._allowed(seen),
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


def _shared(one: dict[str, Floats], other: dict[str, Floats]) -> NoiseFound:
    """Noise that two channels have in common, in parts of one name and shape."""
    common = [
        name
        for name, blank in one.items()
        if name in other and other[name].shape == blank.shape
    ]
    if not common:
        return NOTHING_FOUND
    found = [shared_noise(one[name], other[name]) for name in common]
    return worst(found, common)


def _told(
    seen: Iterator[Seen], progress: Progress, done: int, total: int
) -> Iterator[Seen]:
    for number, one in enumerate(seen):
        progress("audit", done + number + 1, total, one.channel)
        yield one
