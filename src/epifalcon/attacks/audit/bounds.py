"""Lower bounds on the privacy loss from an auditor's guesses about canaries.

Each canary is included or excluded by an independent fair coin; the auditor sees the
releases and guesses each coin, or abstains. Many correct guesses refute a claim. Every
bound is a lower confidence bound: with probability ``confidence`` the true value is at
least the bound.

| function | assumes | bounds |
| --- | --- | --- |
| ``one_run_epsilon`` | independent fair coins, nothing else | (epsilon, delta) |
| ``rates_mu`` | independent decisions for all canaries | mu of Gaussian privacy |

``rates_mu`` is the tightest and fits our claims: a ledger of Gaussian releases claims
mu, and its epsilon is computed from that mu. The epsilon of a bound on mu is therefore
the smallest that a correct ledger could have claimed; for a mechanism that is not
Gaussian it only shows that the Gaussian claim is false.

If the best of several tests is used, each needs ``shared_confidence``, and a threshold
must be fixed before its canaries are observed.

>>> guesses = Guesses(canaries=1000, made=100, correct=75)
>>> round(one_run_epsilon(guesses, delta=1e-4), 3)
0.673
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtri
from scipy.stats import binom, binomtest

from epifalcon.privacy.accounting import DELTA
from epifalcon.types import Floats, Mask

CONFIDENCE = 0.95
_FAR = 64.0


@dataclass(frozen=True)
class Guesses:
    """Numbers of canaries, of guesses about them, and of correct guesses."""

    canaries: int
    made: int
    correct: int


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound the probability of so many correct guesses if (epsilon, delta) holds.

    Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run",
    theorem 5.2: with delta = 0, correct guesses are dominated by a binomial with
    probability e^epsilon / (1 + e^epsilon); delta adds at most 2 m delta max over i of
    P[v - i <= binomial < v] / i for m canaries and v correct guesses. Guesses and
    abstentions may depend on the release in any way; their number must not depend on
    how many are correct.
    """
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
    """Return the largest epsilon that the guesses refute at ``delta``; 0 if none.

    With r correct of r guesses the bound is about log(r / 3): few canaries cannot show
    a large epsilon.
    """

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    if excess(_FAR) < 0:
        return _FAR
    # On the refuted side of the crossing.
    return max(0.0, float(brentq(excess, 0.0, _FAR, xtol=1e-12)) - 1e-9)


def rates_mu(called: Mask, included: Mask, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on mu of Gaussian privacy from both error rates.

    ``called`` marks canaries guessed as included, ``included`` those that are, both
    (canaries,). Nasr et al. 2023, "Tight auditing of differentially private machine
    learning": mu-Gaussian privacy needs Phi^-1(TPR) - Phi^-1(FPR) <= mu at every
    threshold. Both rates have Clopper-Pearson bounds; ``epsilon_of`` converts mu.
    """
    inside, outside = called[included], called[~included]
    if not (len(inside) and len(outside)):
        return 0.0
    hits, alarms = (
        binomtest(int(np.count_nonzero(one)), len(one)).proportion_ci(confidence)
        for one in (inside, outside)
    )
    if hits.low == 0 or alarms.high == 1:
        return 0.0
    return max(0.0, float(ndtri(hits.low) - ndtri(alarms.high)))


def shared_confidence(tests: int) -> float:
    """Return the confidence needed by each of ``tests`` joint tests (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / tests


def guess_extremes(scores: Floats, included: Mask, share: float) -> Guesses:
    """Guess a ``share`` of the canaries, at least one, and count correct guesses.

    Half of the guesses are "in", for the highest scores, the others "out", for the
    lowest; ``scores`` and ``included`` are (canaries,).
    """
    total = len(scores)
    made = min(total, max(1, round(share * total)))
    order = np.argsort(scores, kind="stable")
    highest, lowest = order[total - made // 2 :], order[: made - made // 2]
    right = np.count_nonzero(included[highest]) + np.count_nonzero(~included[lowest])
    return Guesses(total, made, int(right))
