import numpy as np
import pytest

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.splits import blind_folds, hold_back, without
from epifalcon.errors import DataError, SettingsError


def known(positives=17, negatives=43, people=100):
    person = np.arange(positives + negatives, dtype=np.int32)
    slot = np.zeros(len(person), np.int32)
    return Known(people, person, person < positives, slot)


def rng(seed=1):
    return np.random.default_rng(seed)


def test_both_kinds_are_held_back_by_the_same_share():
    tests = known(positives=40, negatives=60)
    people = hold_back(tests, 0.1, rng())
    assert (np.diff(people) > 0).all()
    np.testing.assert_array_equal(np.bincount(tests.status[people]), [6, 4])
    assert not np.array_equal(people, hold_back(tests, 0.1, rng(2)))


@pytest.mark.parametrize(
    ("positives", "negatives", "word"), [(1, 9, "positive"), (9, 1, "negative")]
)
def test_one_of_a_kind_cannot_be_shared_out(positives, negatives, word):
    with pytest.raises(DataError, match=f"1 people tested {word}: at least 2"):
        hold_back(known(positives, negatives), 0.1, rng())


def test_somebody_must_be_left_to_learn_from():
    with pytest.raises(SettingsError, match=r"validation_share=0\.9 holds back all 2"):
        hold_back(known(2, 50), 0.9, rng())


def test_without_leaves_the_other_tests():
    tests = known()
    people = np.array([0, 20, 21], np.int32)
    left = without(tests, people)
    np.testing.assert_array_equal(left.person, np.setdiff1d(tests.person, people))
    assert (left.status[people] == -1).all()


def test_folds_part_the_tested_people_evenly():
    tests = known()
    fold = blind_folds(tests, 4, rng())
    np.testing.assert_array_equal(fold >= 0, tests.tested)
    np.testing.assert_array_equal(np.bincount(fold[tests.tested]), [15, 15, 15, 15])


def test_no_result_moves_a_blind_fold():
    tests = known()
    turned = Known(tests.people, tests.person, ~tests.positive, tests.slot)
    np.testing.assert_array_equal(
        blind_folds(tests, 4, rng()), blind_folds(turned, 4, rng())
    )
