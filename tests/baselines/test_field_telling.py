import numpy as np
import pytest
from scipy.special import expit

from epifalcon.baselines.field_telling import Held, find_telling
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.models.field.calibrating import AS_IT_IS

PEOPLE, TESTED = 3000, 1200


def told_too_low(seed=0):
    """Risks, and tests of people whose odds are higher by 1."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1.5, 0.7, PEOPLE)
    infected = rng.random(PEOPLE) < expit(odds + 1)
    person = np.arange(TESTED, dtype=np.int32)
    known = Known(PEOPLE, person, infected[:TESTED], np.zeros(TESTED, np.int32))
    return expit(odds), infected, known


def test_what_held_out_people_show_is_put_on_everybody():
    risk, infected, known = told_too_low()
    telling = find_telling(risk, [Held(risk, known.tested)], known, TestErrors())
    assert telling(risk)[TESTED:].mean() == pytest.approx(
        infected[TESTED:].mean(), abs=0.03
    )
    assert telling.as_plain()["offset"] == pytest.approx(1, abs=0.15)


def test_a_run_that_is_shyer_as_a_whole_gets_the_mean_of_those_held_out():
    risk, _, known = told_too_low()
    held = [Held(risk, known.tested)]
    alike = find_telling(risk, held, known, TestErrors())
    shy = expit(np.log(risk / (1 - risk)) - 0.6)
    found = find_telling(shy, held, known, TestErrors())
    assert found(shy)[TESTED:].mean() == pytest.approx(alike(risk)[TESTED:].mean())


def test_nobody_held_out_changes_nothing():
    risk, _, known = told_too_low()
    assert find_telling(risk, [], known, TestErrors()).bend == AS_IT_IS
    nobody = [Held(risk, np.zeros(PEOPLE, np.bool_))]
    assert find_telling(risk, nobody, known, TestErrors()).bend == AS_IT_IS
