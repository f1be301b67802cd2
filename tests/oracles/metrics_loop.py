"""The metrics as plain loops over thresholds, pairs and orders of people."""

import itertools
import math

import numpy as np


def thresholds(scores):
    return sorted(set(scores), reverse=True)


def counts(scores, truth, threshold):
    """True and false positives and negatives when ``threshold`` or more is called."""
    made = {"tp": 0, "fp": 0, "fn": 0, "tn": 0}
    for score, infected in zip(scores, truth, strict=True):
        called = score >= threshold
        made[("t" if called == bool(infected) else "f") + ("p" if called else "n")] += 1
    return made


def precision_at_recall(scores, truth, wanted):
    """Lower the threshold until the recall is reached."""
    for threshold in thresholds(scores):
        at = counts(scores, truth, threshold)
        if at["tp"] / (at["tp"] + at["fn"]) >= wanted - 1e-12:
            return at["tp"] / (at["tp"] + at["fp"])
    raise AssertionError("calling everybody finds everybody")


def best_precision_from_recall(scores, truth, wanted):
    return max(
        at["tp"] / (at["tp"] + at["fp"])
        for at in (counts(scores, truth, line) for line in thresholds(scores))
        if at["tp"] / (at["tp"] + at["fn"]) >= wanted - 1e-12
    )


def best_f1(scores, truth):
    """The best F1 and the highest threshold that has it."""
    best, chosen = -1.0, math.nan
    for threshold in thresholds(scores):
        at = counts(scores, truth, threshold)
        f1 = 2 * at["tp"] / (2 * at["tp"] + at["fp"] + at["fn"])
        if f1 > best:
            best, chosen = f1, threshold
    return best, chosen


def accuracy(scores, truth, threshold):
    at = counts(scores, truth, threshold)
    return (at["tp"] + at["tn"]) / len(scores)


def best_accuracy(scores, truth):
    lines = [math.inf, *thresholds(scores)]
    if math.inf in scores:
        raise AssertionError("nobody cannot be called above infinity")
    return max(accuracy(scores, truth, line) for line in lines)


def found_at_random(scores, truth, tested):
    """Mean number of infected among the first, over all orders of equal scores."""
    made = []
    for order in itertools.permutations(range(len(scores))):
        ranked = [scores[person] for person in order]
        if ranked == sorted(scores, reverse=True):
            made.append(sum(bool(truth[person]) for person in order[:tested]))
    return float(np.mean(made))


def calibration_error(risks, truth, bin_of):
    """``bin_of`` gives the bin of a person by its position."""
    people = {}
    for person in range(len(risks)):
        people.setdefault(bin_of(person), []).append(person)
    total = 0.0
    for members in people.values():
        risk = sum(risks[person] for person in members) / len(members)
        share = sum(bool(truth[person]) for person in members) / len(members)
        total += len(members) / len(risks) * abs(risk - share)
    return total


def width_bin(risk, bins):
    for number in range(bins):
        if risk < (number + 1) / bins:
            return number
    return bins - 1


def mass_bin(risks, person, bins):
    """The bin of the middle of the person's group in the ranking from below."""
    below = sum(other < risks[person] for other in risks)
    equal = sum(other == risks[person] for other in risks)
    return min(int((below + equal / 2) / len(risks) * bins), bins - 1)


def sign_flip_p(gaps):
    seen = abs(sum(gaps))
    sums = [
        abs(sum(sign * gap for sign, gap in zip(signs, gaps, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(gaps))
    ]
    return sum(each >= seen - 1e-12 for each in sums) / len(sums)


def delong_variance(scores, truth):
    """The definition: variances of the placements of each kind among the other."""
    mine = [s for s, y in zip(scores, truth, strict=True) if y]
    theirs = [s for s, y in zip(scores, truth, strict=True) if not y]

    def psi(one, other):
        return 1.0 if one > other else 0.5 if one == other else 0.0

    of_mine = [np.mean([psi(x, y) for y in theirs]) for x in mine]
    of_theirs = [np.mean([psi(x, y) for x in mine]) for y in theirs]
    return np.var(of_mine, ddof=1) / len(mine) + np.var(of_theirs, ddof=1) / len(theirs)
