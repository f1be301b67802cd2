"""Membership inference: was a person's test used for training, with which result?

The likelihood-ratio attack (LiRA; Carlini et al. 2022, "Membership inference
attacks from first principles", the online variant): the attacker trains shadow runs,
each on the tests of another half of the people, and compares the target's score of a
person with those of runs with and without the person's test.

Adapted: one score per person, so there are no augmented queries; below 64 shadow runs
the variances are pooled over people, as in the original; scores are standardised in
each run, since the scores of all people are published. A second attack guesses the
results of people whose tests were used, from the results of others. Only ``infer``
reads the truth.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit
from scipy.stats import norm

from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import RankingCurve, auc, curve
from epifalcon.evaluation.uncertainty import Summary, over_seeds
from epifalcon.types import Floats, Mask, Probabilities

OWN_VARIANCE_RUNS = 64
"""Minimum number of shadow runs to estimate a separate variance for each person."""
MOST_FALSE = 0.01
"""False-positive rate at which the true-positive rate is reported."""

_EDGE = 1e-6
_PARTS = 10
_LEAST_VARIANCE = 1e-12
_LEAST_SPREAD = 1e-9


@dataclass(frozen=True, eq=False)
class Shadows:
    """Scores of the shadow runs, and whose tests each of them used."""

    score: Probabilities
    """Published scores, in [0, 1], (runs, people)."""
    included: Mask
    """True if the person's test was used, (runs, people)."""

    def without(self, run: int) -> "Shadows":
        """Return all runs but one."""
        others = np.arange(len(self.score)) != run
        return Shadows(self.score[others], self.included[others])


@dataclass(frozen=True)
class MembershipResult:
    """Accuracy of an attack's rankings of people over all target runs."""

    auc: Summary
    """Area under the ROC curve; .5 for a random ranking."""
    tpr: Summary
    """True-positive rate at ``MOST_FALSE`` false positives."""

    @classmethod
    def of(cls, rankings: Iterable[RankingCurve]) -> "MembershipResult":
        """Compute both for the ranking of each target run."""
        areas, rates = [], []
        for ranked in rankings:
            if not (ranked.infected and ranked.healthy):
                raise DataError(f"all {ranked.people} people attacked are of one kind")
            allowed = ranked.false_positives <= (MOST_FALSE + 1e-12) * ranked.healthy
            areas.append(auc(ranked))
            rates.append(float(ranked.recall[allowed].max(initial=0.0)))
        return cls(over_seeds(areas), over_seeds(rates))


@dataclass(frozen=True)
class Inference:
    """Results of the attacks on published scores, with each run as the target once.

    Target runs share their shadow runs, so the intervals are somewhat too narrow.
    """

    membership: MembershipResult
    """Accuracy of inferring whether a person's test was used."""
    result: MembershipResult
    """Accuracy of inferring the results of people whose tests were used."""
    result_without: MembershipResult
    """``result`` for runs without the person's own test, from others' tests alone;
    the leak is ``result`` minus this."""


def levelled(score: Probabilities) -> Floats:
    """Standardise the logits of each run by its median and spread: (..., people).

    Runs stopped at different rounds differ in level and scale of all scores. A run with
    equal scores gives zeros.
    """
    logits = logit(np.clip(score, _EDGE, 1 - _EDGE))
    centred = logits - np.median(logits, axis=-1, keepdims=True)
    spread = centred.std(axis=-1, keepdims=True)
    return np.asarray(centred / np.where(spread > _LEAST_SPREAD, spread, np.inf))


def membership_ratio(
    target: Probabilities, shadows: Shadows, own_variance_runs: int = OWN_VARIANCE_RUNS
) -> Floats:
    """Compute the log-likelihood ratio of "test used" to "not used": (people,).

    ``target`` (people,) are the scores of the attacked run. The ratio is 0 for people
    whose tests were used in all shadow runs, or in none.
    """
    seen, shown = levelled(target), levelled(shadows.score)
    sides = []
    for side in (shadows.included, ~shadows.included):
        mean, count = _mean(shown, side), side.sum(axis=0)
        squares = np.where(side, (shown - mean) ** 2, 0.0).sum(axis=0)
        if len(shown) < own_variance_runs:
            free = np.maximum(count - 1, 0).sum()
            variance = np.full(len(mean), squares.sum() / max(int(free), 1))
        else:
            variance = np.where(count < 2, np.nan, squares / np.maximum(count - 1, 1))
        scale = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
        sides.append(norm.logpdf(seen, mean, scale))
    return np.nan_to_num(sides[0] - sides[1], nan=0.0)


def result_ratio(
    target: Probabilities,
    shadows: Shadows,
    results: NDArray[np.int8],
    *,
    own_test: bool = True,
) -> Floats:
    """Compute the log-likelihood ratio of "positive" to "negative": (people,).

    ``results`` (people,) are 1, 0, or -1 for people whose result the attacker does
    not know; rank only those. The ratio uses two values: the person's mean score
    over shadow models trained without the person's test, and the difference between
    the target's score and this mean. Their distributions are fitted to people with
    known results. Without ``own_test`` the difference is not used.
    """
    shown = levelled(shadows.score)
    base = _mean(shown, ~shadows.included)
    ratio = _class_ratio(base, base[None], np.ones((1, len(base)), bool), results)
    if own_test:
        moved = levelled(target) - base
        ratio = ratio + _class_ratio(moved, shown - base, shadows.included, results)
    return np.nan_to_num(ratio, nan=0.0)


def infer(runs: Shadows, infected: Mask) -> Inference:
    """Attack every run with all others as shadow runs.

    ``infected`` (people,) are the results of the tests. Results are guessed for
    a tenth of the people at a time, with those of all others known.
    """
    if len(runs.score) < 4:
        raise DataError(f"{len(runs.score)} runs, expected 4 or more")
    found = []
    for number, inside in enumerate(runs.included):
        score, others = runs.score[number], runs.without(number)
        rankings = [curve(membership_ratio(score, others), inside)]
        for own_test in (True, False):
            guessed = _guess_results(score, others, infected, own_test)
            rankings.append(curve(guessed[inside], infected[inside]))
        found.append(rankings)
    return Inference(*map(MembershipResult.of, zip(*found, strict=True)))


def _guess_results(
    target: Probabilities, shadows: Shadows, infected: Mask, own_test: bool
) -> Floats:
    """Compute ``result_ratio`` (people,), a tenth of the results unknown at a time."""
    guessed = np.zeros(len(target))
    # Distribute each class over all parts, so that both stay known.
    rank = np.empty(len(target), np.int64)
    rank[np.argsort(infected, kind="stable")] = np.arange(len(target))
    for part in range(_PARTS):
        unknown = rank % _PARTS == part
        results = np.where(unknown, -1, infected).astype(np.int8)
        ratio = result_ratio(target, shadows, results, own_test=own_test)
        guessed[unknown] = ratio[unknown]
    return guessed


def _class_ratio(
    value: Floats, shown: Floats, counted: Mask, results: NDArray[np.int8]
) -> Floats:
    """Compute the log-likelihood ratio of ``value`` (people,), positive to negative.

    Fits two Gaussians of equal variance to ``shown`` (runs, people) where ``counted``,
    for people with known results. A positive test is assumed to raise scores, so a
    difference in the other direction counts as zero.
    """
    means, squares, free = [], 0.0, 0
    for result in (1, 0):
        taken = shown[counted & (results == result) & np.isfinite(shown)]
        if len(taken) < 2:
            raise DataError("the attacker must know two or more people of each result")
        means.append(float(taken.mean()))
        squares += float(((taken - means[-1]) ** 2).sum())
        free += len(taken) - 1
    gap = max(0.0, means[0] - means[1])
    variance = max(squares / free, _LEAST_VARIANCE)
    return np.asarray(gap / variance * (value - (means[0] + means[1]) / 2))


def _mean(shown: Floats, side: Mask) -> Floats:
    """Return each person's mean over the runs in ``side``, NaN if none: (people,)."""
    count = side.sum(axis=0)
    total = np.where(side, shown, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
