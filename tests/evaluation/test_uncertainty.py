import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from epifalcon.errors import DataError
from epifalcon.evaluation.metrics import curve
from epifalcon.evaluation.uncertainty import (
    EXACT_FLIPS,
    auc_difference,
    auc_interval,
    holm,
    over_seeds,
    paired,
)
from tests.evaluation.rankings import rankings
from tests.oracles import metrics_loop

CASES = settings(max_examples=60, deadline=None, derandomize=True)
GAPS = st.lists(st.integers(-5, 5).map(lambda k: k / 100), min_size=1, max_size=9)


def test_undefined_seeds_are_left_out_and_counted():
    made = over_seeds([0.5, None, 0.7, math.nan])
    assert made.mean == pytest.approx(0.6)
    assert made.count == 2
    one = over_seeds([0.5, None])
    assert (one.mean, one.low, one.high, one.count) == (0.5, None, None, 1)
    assert over_seeds([]).mean is None


def test_impossible_input_is_refused():
    with pytest.raises(DataError, match="infinite"):
        over_seeds([math.inf])
    with pytest.raises(DataError, match="ours has 2, theirs 1"):
        paired([0.1, 0.2], [0.1])


@CASES
@given(GAPS)
def test_sign_flips_are_counted_as_the_loop_counts_them(gaps):
    made = paired(gaps, [0.0] * len(gaps))
    assert made.p_flip == pytest.approx(metrics_loop.sign_flip_p(gaps))
    other_way = paired([0.0] * len(gaps), gaps)
    assert other_way.p_flip == made.p_flip
    assert (other_way.wins, other_way.losses) == (made.losses, made.wins)


def test_sign_flips_agree_with_the_t_test_for_many_pairs():
    gaps = np.random.default_rng(1).normal(0.2, 1, EXACT_FLIPS)
    made = paired(list(gaps), [0.0] * EXACT_FLIPS)
    assert made.p_flip == pytest.approx(made.p_t, abs=0.01)
    assert paired([*gaps, 0.1], [0.0] * (EXACT_FLIPS + 1)).p_flip is None


def test_pairs_without_spread_have_no_t_test():
    # In floating point .3 - .2 and .4 - .3 are not quite equal.
    same_gap = paired([0.3, 0.4, 0.5], [0.2, 0.3, 0.4])
    assert (same_gap.p_t, same_gap.wins) == (None, 3)
    assert same_gap.p_flip == 2 / 8
    equal = paired([0.3, 0.1 + 0.2], [0.3, 0.3])
    assert (equal.wins, equal.losses, equal.p_t, equal.p_flip) == (0, 0, None, 1)


def test_pairs_with_an_undefined_value_are_left_out():
    made = paired([0.3, None, 0.5, 0.6], [0.2, 0.3, math.nan, 0.3])
    assert made.difference.count == 2
    assert made.wins == 2
    none = paired([None], [0.2])
    assert (none.difference.mean, none.p_t, none.p_flip) == (None, None, None)


def test_holm_by_hand():
    # Sorted .01 .02 .04: times 3, 2, 1, and never falling.
    made = holm({"b": 0.04, "a": 0.01, "c": 0.02, "d": None})
    assert made == {"b": pytest.approx(0.04), "a": 0.03, "c": 0.04, "d": None}
    assert holm({"a": 0.5, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert holm({"a": 0.02, "b": 0.03})["b"] == 0.04
    assert holm({}) == {}


def test_delong_gives_no_interval_without_a_variance():
    for truth in ([0, 0, 0], [1, 1, 1]):
        assert auc_interval(curve([0.1, 0.2, 0.3], truth)).estimate is None
    perfect = auc_interval(curve([4, 3, 2, 1], [1, 1, 0, 0]))
    assert dataclasses.astuple(perfect)[:3] == (1, None, None)
    single = auc_interval(curve([4, 3, 2, 1], [0, 1, 0, 0]))
    assert single.estimate == pytest.approx(2 / 3)
    assert single.low is None
    equal = auc_interval(curve([1, 1, 1, 1], [1, 1, 0, 0]))
    assert dataclasses.astuple(equal)[:3] == (0.5, None, None)


@CASES
@given(rankings())
def test_delong_is_the_definition(case):
    made = auc_interval(curve(case.scores, case.truth))
    infected = sum(case.truth)
    assert made.estimate == pytest.approx(roc_auc_score(case.truth, case.scores))
    if min(infected, len(case.truth) - infected) < 2 or made.low is None:
        return
    variance = metrics_loop.delong_variance(case.scores, case.truth)
    area = made.estimate
    half = stats.norm.ppf(0.975) * math.sqrt(variance) / (area * (1 - area))
    ends = [math.log(end / (1 - end)) for end in (made.low, made.high)]
    middle = math.log(area / (1 - area))
    assert ends == pytest.approx([middle - half, middle + half])


@pytest.mark.parametrize("seed", range(3))
def test_the_difference_of_two_aucs_and_its_interval(seed):
    rng = np.random.default_rng(seed)
    truth = rng.random(120) < 0.3
    shared = rng.normal(size=120) + truth
    ours = np.round(shared + 0.5 * rng.normal(size=120), 1)
    theirs = np.round(shared + 0.7 * rng.normal(size=120), 1)
    found = auc_difference(ours, theirs, truth)
    areas = [roc_auc_score(truth, one) for one in (ours, theirs)]
    assert found.estimate == pytest.approx(areas[0] - areas[1])
    sick, well = np.flatnonzero(truth), np.flatnonzero(~truth)
    drawn = []
    for _ in range(300):
        people = np.concatenate([rng.choice(kind, len(kind)) for kind in (sick, well)])
        drawn.append(auc_difference(ours[people], theirs[people], truth[people]))
    spread = np.std([one.estimate for one in drawn])
    half = (found.high - found.low) / 2
    assert half == pytest.approx(1.96 * spread, rel=0.2)
    turned = auc_difference(theirs, ours, truth)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


def test_two_equal_rankings_do_not_differ_and_have_no_interval():
    truth = np.array([True, False, True, False])
    scores = np.array([0.4, 0.1, 0.9, 0.5])
    same = auc_difference(scores, 2 * scores, truth)
    assert (same.estimate, same.low, same.high) == (0, None, None)
    assert auc_difference(scores, scores, truth | True).estimate is None
    with pytest.raises(DataError):
        auc_difference(scores, scores[:3], truth)
