"""Early stopping: which round is chosen, when training ends, and what is stored."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.evaluation.metrics import auc, curve
from epifalcon.federation.early_stopping import (
    EarlyStopping,
    ValidationCheck,
    area_under_curve,
    running_log_odds,
)
from epifalcon.federation.settings import PrivacySettings, StoppingSettings

INFECTED = np.array([True, False])
GOOD, BAD, TIED = [0.9, 0.1], [0.1, 0.9], [0.5, 0.5]
SURE, RIGHT = [0.999, 0.998], [0.6, 0.5]


def checks_of(*scores):
    return [
        ValidationCheck.at(number + 1, 0.5, np.array(one), INFECTED[: len(one)])
        for number, one in enumerate(scores)
    ]


def stopped(*scores, mode="off", **stopping):
    made = EarlyStopping(StoppingSettings(**stopping), PrivacySettings(mode=mode))
    return made, [made.add(check) for check in checks_of(*scores)]


def test_the_best_look_is_the_first_of_equals():
    made, best = stopped(TIED, GOOD, BAD, GOOD)
    assert best == [True, True, False, False]
    assert [check.auc for check in made.checks] == [0.5, 1.0, 0.0, 1.0]
    assert made.best == made.checks[1]


@pytest.mark.parametrize(("selected_on", "best"), [("validation", 1), ("test", 0)])
def test_validation_people_choose_by_log_loss_and_test_people_by_auc(selected_on, best):
    made, _ = stopped(SURE, RIGHT, selected_on=selected_on)
    assert made.best == made.checks[best]
    expected = -(math.log(0.6) + math.log(0.5)) / 2
    assert made.checks[1].log_loss == pytest.approx(expected)


def test_it_ends_after_looks_without_a_better_one():
    assert not stopped(GOOD, BAD, GOOD, patience=3)[0].ended
    assert stopped(GOOD, BAD, GOOD, TIED, patience=3)[0].ended


def test_results_that_must_not_leave_choose_nothing():
    for scores, mode in (((GOOD, BAD, BAD), "local"), (([], [], []), "off")):
        made, best = stopped(*scores, mode=mode, patience=1)
        assert best == [True] * 3
        assert made.best == made.checks[-1]
        assert not made.ended


@pytest.mark.parametrize(
    ("every", "rounds", "due"), [(2, 5, [2, 4, 5]), (9, 3, [3]), (1, 2, [1, 2])]
)
def test_it_looks_now_and_then_and_at_the_end(every, rounds, due):
    made, _ = stopped(check_every=every)
    assert [n for n in range(1, rounds + 1) if made.due(n, rounds)] == due


@pytest.mark.parametrize("scores", [(), (GOOD, BAD, TIED)])
def test_it_continues_from_a_checkpoint(scores):
    made, _ = stopped(*scores)
    other, _ = stopped()
    plain = made.as_plain()
    for check in plain["looks"]:  # JSON has no infinity.
        assert check["epsilon"] == math.inf
        check["epsilon"] = None
    other.restore(plain)
    assert (other.best, other.checks) == (made.best, made.checks)
    assert [one.add(made.best or checks_of(GOOD)[0]) for one in (made, other)]
    assert other.as_plain() == made.as_plain()


def test_people_average_the_log_odds_that_they_received():
    held = running_log_odds(None, np.array(GOOD), 0.75)
    held = running_log_odds(held, np.array(BAD), 0.75)
    assert held[0] == pytest.approx(0.75 * math.log(9) - 0.25 * math.log(9))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_the_area_under_the_curve_is_that_of_the_metrics(people):
    scores = np.array([score / 5 for score, _ in people])
    infected = np.array([result for _, result in people], np.bool_)
    found = area_under_curve(scores, infected)
    if infected.all() or not infected.any():
        assert math.isnan(found)
    else:
        assert found == pytest.approx(float(auc(curve(scores, infected))))
