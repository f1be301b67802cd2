"""How private a mechanism can at best be, from an auditor's right and wrong guesses.

Canaries are put in or left out by fair coins of their own; the auditor sees what
was released and guesses each coin, or abstains. Many right guesses refute a claim.
Every bound here is a lower confidence bound: with probability ``confidence`` the
true value is not below it. They differ in what they take for granted.

| function | takes for granted | speaks of |
| --- | --- | --- |
| ``one_run_epsilon`` | independent fair coins, nothing else | (epsilon, delta) |
| ``rates_mu`` | canaries judged independently of each other | mu of Gaussian privacy |

``rates_mu`` is the sharpest and fits our claims: a ledger of Gaussian releases
promises mu, and its epsilon is computed from that mu. The epsilon of a bound on mu
is therefore the least that an honest ledger could have named; of a mechanism that is
not Gaussian it says no more than that the Gaussian claim is false.

One test, one confidence: where the best of several tests is taken, each must be
given ``shared_confidence``, and a threshold must be fixed before the canaries that
it is tested on are looked at.

>>> told = Guesses(canaries=1000, made=100, correct=75)
>>> round(one_run_epsilon(told, delta=1e-4), 3)
0.673
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, expit, ndtri
from scipy.stats import binom

from epifalcon.checks import whole
from epifalcon.errors import DataError, SettingsError
from epifalcon.privacy.accounting import DELTA
from epifalcon.types import Floats, Mask

CONFIDENCE = 0.95
_FAR = 64.0


@dataclass(frozen=True)
class Guesses:
    """Right guesses among those made; the rest of the canaries were left open."""

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        whole(0, canaries=self.canaries, made=self.made, correct=self.correct)
        if not self.correct <= self.made <= self.canaries:
            raise DataError(
                f"{self.correct} right of {self.made} guesses about {self.canaries} "
                "canaries: expected no more guesses than canaries, and right ones "
                "among them"
            )


@dataclass(frozen=True)
class Rates:
    """Canaries called "in", of those that were in and of those that were out."""

    inside: int
    called_inside: int
    outside: int
    called_outside: int

    def __post_init__(self) -> None:
        whole(0, **vars(self))
        if self.called_inside > self.inside or self.called_outside > self.outside:
            raise DataError(f"more canaries called than there are: {self}")

    @classmethod
    def of(cls, called: Mask, included: Mask) -> "Rates":
        """Counted from what was called "in" and what was: (canaries,) each."""
        if called.shape != included.shape:
            raise DataError(f"{called.shape} calls about {included.shape} canaries")
        inside = int(np.count_nonzero(included))
        return cls(
            inside,
            int(np.count_nonzero(called & included)),
            included.size - inside,
            int(np.count_nonzero(called & ~included)),
        )


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """How likely that many right guesses are at most, under (epsilon, delta).

    Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run",
    theorem 5.2: with delta = 0 right guesses are no more than a binomial with chance
    e^epsilon / (1 + e^epsilon); delta adds at most 2 m delta max over i of
    P[v - i <= binomial < v] / i, m canaries and v right guesses. How guesses were
    made, and which were left open, is free, as long as only the release was looked
    at; their number must not be chosen by how many came out right.
    """
    _check(epsilon=epsilon, delta=delta)
    made, right = guesses.made, guesses.correct
    chance = float(expit(epsilon))
    tail = float(binom.sf(right - 1, made, chance))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), made, chance))
    worst = float(np.max(below / np.arange(1, right + 1)))
    return min(1.0, tail + 2 * guesses.canaries * delta * worst)


def one_run_epsilon(
    guesses: Guesses, delta: float = DELTA, confidence: float = CONFIDENCE
) -> float:
    """The largest epsilon that the guesses refute at ``delta``; 0 if none.

    All of r guesses right refute no more than about log(r / 3): a large epsilon
    cannot be shown by few canaries, whatever leaks.
    """
    allowed = 1 - _checked_level(confidence)

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, epsilon, delta) - allowed

    return _last_refuted(excess)


def clopper_pearson(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Exact limits of a binomial chance, each wrong with probability ``error`` at most.

    (0, 1) without trials.
    """
    whole(0, successes=successes, trials=trials)
    if successes > trials:
        raise DataError(f"{successes} successes of {trials} trials")
    low = (
        0.0 if successes == 0 else betaincinv(successes, trials - successes + 1, error)
    )
    high = (
        1.0
        if successes == trials
        else betaincinv(successes + 1, trials - successes, 1 - error)
    )
    return float(low), float(high)


def rates_mu(rates: Rates, confidence: float = CONFIDENCE) -> float:
    """Lower bound on mu of Gaussian privacy from both error rates.

    Nasr et al. 2023, "Tight auditing of differentially private machine learning":
    mu-Gaussian privacy needs Phi^-1(TPR) - Phi^-1(FPR) <= mu at every threshold.
    ``privacy.accounting.epsilon_of`` makes an epsilon of it.
    """
    hit, false_alarm = _limits(rates, confidence)
    if hit == 0 or false_alarm == 1:
        return 0.0
    return max(0.0, float(ndtri(hit) - ndtri(false_alarm)))


def shared_confidence(confidence: float, tests: int) -> float:
    """The confidence of each of ``tests`` tests that hold all at once (Bonferroni)."""
    whole(1, tests=tests)
    return 1 - (1 - _checked_level(confidence)) / tests


def guess_extremes(scores: Floats, included: Mask, share: float) -> Guesses:
    """Guess a ``share`` of the canaries, at least one, and count right guesses.

    The highest half of them is called "in", the lowest "out", the rest is left open;
    ``scores`` and ``included`` are (canaries,).
    """
    if scores.shape != included.shape:
        raise DataError(f"{scores.shape} scores of {included.shape} canaries")
    total = len(scores)
    made = min(total, max(1, round(share * total)))
    order = np.argsort(scores, kind="stable")
    highest, lowest = order[total - made // 2 :], order[: made - made // 2]
    right = np.count_nonzero(included[highest]) + np.count_nonzero(~included[lowest])
    return Guesses(total, made, int(right))


def _limits(rates: Rates, confidence: float) -> tuple[float, float]:
    """The least true-positive rate and the most false alarms that may be true."""
    error = (1 - _checked_level(confidence)) / 2
    hit, _ = clopper_pearson(rates.called_inside, rates.inside, error)
    _, false_alarm = clopper_pearson(rates.called_outside, rates.outside, error)
    return hit, false_alarm


def _last_refuted(excess: Callable[[float], float]) -> float:
    """Where a p-value that rises with epsilon passes the error allowed."""
    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > _FAR:
            return _FAR
    found = float(brentq(excess, 0.0, high, xtol=1e-12))
    # On the refuted side of the crossing.
    return max(0.0, found - 1e-9)


def _checked_level(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise SettingsError(f"confidence={confidence} must lie between 0 and 1")
    return confidence


def _check(epsilon: float = 0.0, delta: float = 0.0) -> None:
    if not epsilon >= 0:
        raise SettingsError(f"epsilon={epsilon} must be 0 or more")
    if not 0 <= delta < 1:
        raise SettingsError(f"delta={delta} must be at least 0 and less than 1")
