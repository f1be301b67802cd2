import numpy as np
import pytest
from scipy.special import expit

from epifalcon.baselines.field_telling import AtHome, Held, Ways, find_telling
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import CorruptFileError
from epifalcon.federation.field.settings import TuningSettings
from epifalcon.federation.field.tuning import Tuner, TuningPlan
from epifalcon.models.field.at_home import NUMBERS
from epifalcon.models.field.choosing import losses
from epifalcon.models.field.correction import Correction
from epifalcon.models.field.settings import FieldSettings
from epifalcon.privacy.ledger import Ledger

WAYS = Ways(TestErrors())
PEOPLE, TESTED = 3000, 1200


def told_too_low(seed=0):
    """Risks, and tests of people whose odds are higher by 1."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1.5, 0.7, PEOPLE)
    infected = rng.random(PEOPLE) < expit(odds + 1)
    person = np.arange(TESTED, dtype=np.int32)
    known = Known(PEOPLE, person, infected[:TESTED], np.zeros(TESTED, np.int32))
    return expit(odds), infected, known


def at_home(risk, numbers=None):
    return AtHome(risk, 1, 0.0, numbers=numbers)


def test_what_held_out_people_show_is_put_on_everybody():
    risk, infected, known = told_too_low()
    end = at_home(risk)
    telling = find_telling(end, [Held(end, known.tested)], known, WAYS)
    assert telling(end)[TESTED:].mean() == pytest.approx(
        infected[TESTED:].mean(), abs=0.03
    )
    assert telling.as_plain()["offset"] == pytest.approx(1, abs=0.15)
    assert telling.unsure[1, 1] == pytest.approx(1 / (TESTED * 0.22), rel=0.2)


def test_a_run_that_is_shyer_as_a_whole_gets_the_mean_of_those_held_out():
    risk, _, known = told_too_low()
    end = at_home(risk)
    held = [Held(end, known.tested)]
    alike = find_telling(end, held, known, WAYS)
    shy = at_home(expit(np.log(risk / (1 - risk)) - 0.6))
    found = find_telling(shy, held, known, WAYS)
    assert found(shy)[TESTED:].mean() == pytest.approx(alike(end)[TESTED:].mean())


def test_nobody_held_out_changes_nothing():
    risk, _, known = told_too_low()
    end = at_home(risk)
    nobody = [Held(end, np.zeros(PEOPLE, np.bool_))]
    for held in ([], nobody):
        telling = find_telling(end, held, known, WAYS)
        np.testing.assert_array_equal(telling(end), risk)


def one_number(weight):
    """A correction that adds ``weight`` times the first number, nearly."""
    numbers = len(NUMBERS)
    arrays = {"mean": np.zeros(numbers), "spread": np.ones(numbers)}
    first = np.zeros((1, numbers))
    first[0, 0] = 0.1
    arrays |= {"weight0": first, "bias0": np.zeros(1)}
    arrays |= {"weight1": np.ones((1, 1)), "bias1": np.zeros(1)}
    arrays |= {"weight2": np.array([[0.0], [5.0 * weight]]), "bias2": np.zeros(2)}
    return Correction(arrays, {})


@pytest.mark.parametrize(("weight", "helps"), [(1.0, True), (0.0, False), (-1, False)])
def test_a_correction_is_used_where_it_tells_held_out_people_better(weight, helps):
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(PEOPLE, len(NUMBERS))).astype(np.float32)
    odds = rng.normal(-1.0, 0.7, PEOPLE)
    infected = rng.random(PEOPLE) < expit(odds + numbers[:, 0])
    person = np.arange(TESTED, dtype=np.int32)
    known = Known(PEOPLE, person, infected[:TESTED], np.zeros(TESTED, np.int32))
    end = at_home(expit(odds), numbers)
    held = [Held(end, known.tested)]
    ways = Ways(TestErrors(), one_number(weight))
    telling = find_telling(end, held, known, ways)
    assert telling.as_plain()["corrected"] is helps
    always = Ways(TestErrors(), one_number(weight), always=True)
    assert find_telling(end, held, known, always).correction is not None


@pytest.mark.parametrize(
    ("wish", "taken"),
    [
        ({"sigma": 0.0}, True),
        ({"epsilon": 8.0}, True),
        ({"epsilon": 0.01, "noise": "local"}, False),
        ({"epsilon": 0.01, "noise": "local", "taken": "always"}, True),
    ],
)
def test_a_tuned_correction_is_used_where_it_tells_held_out_people_better(wish, taken):
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(PEOPLE, len(NUMBERS))).astype(np.float32)
    odds = rng.normal(-1.0, 0.7, PEOPLE)
    infected = rng.random(PEOPLE) < expit(odds + numbers[:, 0])
    person = np.arange(TESTED, dtype=np.int32)
    known = Known(PEOPLE, person, infected[:TESTED], np.zeros(TESTED, np.int32))
    end = at_home(expit(odds), numbers)
    plan = TuningPlan(
        settings=TuningSettings(steps=40, learning_rate=3.0, clip=1.0, **wish)
    )
    tuner = Tuner(plan, Ledger(plan.budget), seed=3)
    tuner.begin()
    ways = Ways(TestErrors(), one_number(0.0))
    held = [Held(end, known.tested)]
    telling = find_telling(end, held, known, ways, tuner)
    assert telling.tuned is taken
    if taken and "taken" not in wish:
        told = telling(end)[TESTED:]
        truth = infected[TESTED:]
        assert losses(told, truth).mean() < losses(end.risk[TESTED:], truth).mean()


def test_ways_follow_the_settings(tmp_path):
    right = TestErrors()
    assert Ways.of(FieldSettings(correction="none", calibration="none"), right).none
    auto = Ways.of(FieldSettings(), right)
    assert auto.correction is not None
    assert not auto.always
    assert Ways.of(FieldSettings(correction="shipped"), right).always
    own = tmp_path / "own.safetensors"
    Correction.shipped().save(own)
    assert Ways.of(FieldSettings(correction=str(own)), right).always
    with pytest.raises(CorruptFileError, match="train-correction"):
        Ways.of(FieldSettings(correction="nowhere"), right)
