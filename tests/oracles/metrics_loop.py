"""The metrics as plain loops over thresholds, pairs and orders of people."""

import itertools

import numpy as np


def points(scores, truth):
    """(threshold, people called, infected found), from the highest threshold down."""
    made = []
    for threshold in sorted(set(scores), reverse=True):
        pairs = zip(scores, truth, strict=True)
        called = [infected for score, infected in pairs if score >= threshold]
        made.append((threshold, len(called), sum(called)))
    return made


def found_at_random(scores, truth, tested):
    """Mean number of infected among the first, over all orders of equal scores."""
    made = []
    for order in itertools.permutations(range(len(scores))):
        ranked = [scores[person] for person in order]
        if ranked == sorted(scores, reverse=True):
            made.append(sum(bool(truth[person]) for person in order[:tested]))
    return float(np.mean(made))


def calibration_error(risks, truth, bin_of, bins):
    """``bin_of`` gives the bin of a person by its position."""
    people = {}
    for person in range(len(risks)):
        people.setdefault(bin_of(risks, person, bins), []).append(person)
    total = 0.0
    for members in people.values():
        risk = sum(risks[person] for person in members) / len(members)
        share = sum(bool(truth[person]) for person in members) / len(members)
        total += len(members) / len(risks) * abs(risk - share)
    return total


def width_bin(risks, person, bins):
    edges = [number / bins for number in range(1, bins)]
    return sum(edge <= risks[person] for edge in edges)


def mass_bin(risks, person, bins):
    """The bin of the middle of the person's group in the ranking from below."""
    below = sum(other < risks[person] for other in risks)
    equal = sum(other == risks[person] for other in risks)
    return min(int((below + equal / 2) / len(risks) * bins), bins - 1)


BINS = {"width": width_bin, "mass": mass_bin}


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
