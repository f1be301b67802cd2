"""Inference from scores: as the formulas say, blind where nothing leaks."""

import math

import numpy as np
import pytest

from epifalcon.attacks.membership import (
    MembershipResult,
    Shadows,
    infer,
    membership_ratio,
    result_ratio,
)
from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import curve

RUNS, PEOPLE = 12, 120


def runs_of(seed, shift, base=0.0):
    """Scores whose logits move by ``shift`` where a person's own test is in."""
    rng = np.random.default_rng(seed)
    infected = rng.random(PEOPLE) < 0.4
    included = rng.random((RUNS, PEOPLE)) < 0.5
    level = rng.standard_normal(PEOPLE) + base * infected
    noise = 0.5 * rng.standard_normal((RUNS, PEOPLE))
    moved = shift * np.where(infected, 1, -1) * included
    score = 1 / (1 + np.exp(-(level + noise + moved)))
    return Shadows(score, included), infected


def levelled_by_loop(score):
    """Logits of one run minus their median, over their standard deviation."""
    values = [math.log(one / (1 - one)) for one in score]
    ranked, count = sorted(values), len(values)
    middle = (ranked[(count - 1) // 2] + ranked[count // 2]) / 2
    mean = sum(values) / count
    spread = math.sqrt(sum((one - mean) ** 2 for one in values) / count)
    return [(one - middle) / spread for one in values]


def ratio_by_loop(target, score, included, own):
    """The ratio person by person, with plain sums."""
    target, score = levelled_by_loop(target), [levelled_by_loop(one) for one in score]

    def side(person, inside):
        both = zip(score, included, strict=True)
        return [one[person] for one, took in both if took[person] == inside]

    def variance(inside, person):
        people = [person] if own else range(len(target))
        squares = free = 0.0
        for one in people:
            values = side(one, inside)
            mean = sum(values) / len(values) if values else 0.0
            squares += sum((value - mean) ** 2 for value in values)
            free += max(len(values) - 1, 0)
        return squares / free

    found = []
    for person in range(len(target)):
        value = target[person]
        density = []
        for inside in (True, False):
            shown = side(person, inside)
            mean, spread = sum(shown) / len(shown), variance(inside, person)
            density.append(-((value - mean) ** 2) / (2 * spread) - math.log(spread) / 2)
        found.append(density[0] - density[1])
    return np.array(found)


@pytest.mark.parametrize("own", [False, True])
def test_ratios_are_those_of_the_formula(own):
    shadows, _ = runs_of(1, 1.0)
    chosen = np.flatnonzero((shadows.included[1:].sum(axis=0) % 11) > 1)[:20]
    part = Shadows(shadows.score[:, chosen], shadows.included[:, chosen])
    others = part.without(0)
    found = membership_ratio(part.score[0], others, 4 if own else 64)
    expected = ratio_by_loop(part.score[0], others.score, others.included, own)
    assert np.allclose(found, expected)


def test_scores_that_do_not_know_the_test_give_nothing_away():
    found = [infer(*runs_of(seed, 0.0)) for seed in range(5)]
    error = 3 / math.sqrt(5 * RUNS * PEOPLE / 4) / math.sqrt(3)
    assert abs(np.mean([one.membership.auc.mean for one in found]) - 0.5) < error
    assert np.mean([one.membership.tpr.mean for one in found]) < 0.03
    assert abs(np.mean([one.result.auc.mean for one in found]) - 0.5) < 0.03


def test_scores_that_remember_the_test_give_it_away():
    weak, strong = (infer(*runs_of(3, shift)) for shift in (0.5, 2.0))
    assert 0.6 < weak.membership.auc.mean < strong.membership.auc.mean
    assert strong.membership.auc.mean > 0.95
    assert strong.membership.tpr.mean > 0.5
    assert strong.result.auc.mean > 0.95
    # Without the own test nothing is known of the result: there is no base here.
    assert strong.result_without.auc.mean < 0.6


def test_what_others_tests_tell_is_not_counted_as_a_leak():
    found = infer(*runs_of(4, 0.0, base=1.5))
    assert found.result_without.auc.mean > 0.75
    assert abs(found.result.auc.mean - found.result_without.auc.mean) < 0.02
    assert abs(found.membership.auc.mean - 0.5) < 0.06


def test_the_attack_never_sees_the_result_it_guesses():
    shadows, infected = runs_of(5, 1.0)
    untold = np.arange(PEOPLE) % 3 == 0
    ratios = []
    for truth in (infected, infected ^ untold):
        results = np.where(untold, -1, truth).astype(np.int8)
        ratios.append(result_ratio(shadows.score[0], shadows.without(0), results))
    assert np.array_equal(ratios[0], ratios[1])


def test_the_level_and_scale_of_a_run_do_not_matter():
    shadows, infected = runs_of(3, 0.5)
    rng = np.random.default_rng(1)
    logit = np.log(shadows.score) - np.log1p(-shadows.score)
    moved = logit * rng.uniform(0.2, 2, (RUNS, 1)) + rng.normal(0, 2, (RUNS, 1))
    other = Shadows(1 / (1 + np.exp(-moved)), shadows.included)
    plain, found = infer(shadows, infected), infer(other, infected)
    assert found.membership.auc.mean == pytest.approx(plain.membership.auc.mean)
    assert found.result.auc.mean == pytest.approx(plain.result.auc.mean)


def test_people_shown_on_one_side_only_decide_nothing():
    shadows, infected = runs_of(6, 1.0)
    included = shadows.included.copy()
    included[:, 0], included[:, 1] = True, False
    lopsided = Shadows(shadows.score, included)
    found = membership_ratio(shadows.score[0], lopsided)
    assert found[:2].tolist() == [0, 0]
    assert np.count_nonzero(found[2:]) == PEOPLE - 2
    ratio = result_ratio(shadows.score[0], lopsided, infected.astype(np.int8))
    assert ratio[0] == 0
    assert np.isfinite(ratio).all()


def test_what_cannot_be_attacked_is_refused():
    shadows, infected = runs_of(9, 1.0)
    with pytest.raises(DataError, match="4 or more"):
        infer(Shadows(shadows.score[:3], shadows.included[:3]), infected)
    with pytest.raises(DataError, match="each result"):
        result_ratio(shadows.score[0], shadows, np.zeros(PEOPLE, np.int8))
    with pytest.raises(DataError, match="of one kind"):
        MembershipResult.of([curve(shadows.score[0], np.ones(PEOPLE, bool))])
