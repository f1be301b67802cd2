import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.epidemic.ground_truth import GroundTruth, HeldOutLabels
from epifalcon.epidemic.test_results import (
    TestResults,
    data_warnings,
    draw_validation_people,
    random_folds,
)
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.store import Origin
from tests.epidemic.worlds import known_of, traces_of

CASES = settings(max_examples=60, deadline=None, derandomize=True)
TEST = st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans())
TESTS = st.lists(TEST, max_size=12)


@CASES
@given(TESTS)
def test_status_and_first_positive_against_the_list(tests):
    known = known_of(6, tests)
    for person in range(6):
        results = [positive for who, _, positive in tests if who == person]
        status = -1 if not results else int(any(results))
        assert known.status[person] == status
        assert known.tested[person] == bool(results)
        slots = [slot for who, slot, positive in tests if who == person and positive]
        assert known.first_positive_slot[person] == min(slots, default=-1)
    arrays = (known.person, known.slot, known.positive, known.status)
    assert not any(array.flags.writeable for array in arrays)
    rows = zip(*arrays[:3], strict=True)
    assert [tuple(row) for row in rows] == sorted(tests)


@pytest.mark.parametrize(
    ("person", "positive", "slot", "message"),
    [
        ([0, 6], [True, True], [0, 0], "tested person 6"),
        ([-1, 0], [True, True], [0, 0], "tested person -1"),
        ([1, 0], [True, True], [0, 0], "sorted by person"),
        ([1, 1], [True, True], [3, 2], "sorted by person"),
        ([0, 1], [True, True], [0, -1], "a test is in slot -1"),
        ([0, 1], [True], [0, 1], "lengths must agree"),
    ],
)
def test_impossible_tests_are_refused(person, positive, slot, message):
    with pytest.raises(DataError, match=message):
        TestResults(
            6,
            np.array(person, np.int32),
            np.array(positive, np.bool_),
            np.array(slot, np.int32),
        )


@CASES
@given(TESTS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_tests_of_some_people(tests, wanted):
    selected = known_of(6, tests).of_people(np.array(wanted))
    alone = known_of(6, [test for test in tests if wanted[test[0]]])
    for name in ("person", "positive", "slot"):
        np.testing.assert_array_equal(getattr(selected, name), getattr(alone, name))


def test_tests_on_a_later_clock_keep_person_and_result():
    known = known_of(5, [(1, 2, 0), (1, 9, 1), (3, 12, 0)])
    later = known.since(6)
    assert later.slot.tolist() == [0, 3, 6]
    np.testing.assert_array_equal(later.person, known.person)
    np.testing.assert_array_equal(later.status, known.status)


def test_reason_and_onset_stay_with_their_test(tmp_path):
    """Selected, sorted, shifted and stored like the slot of the test."""
    known = TestResults.from_tests(
        4,
        np.array([3, 1, 1]),
        np.array([True, False, True]),
        np.array([9, 8, 4]),
        reason=np.array([2, -1, 0]),
        onset=np.array([7, -1, 3]),
    )
    assert known.reason.tolist() == [0, -1, 2]
    assert known.onset.tolist() == [3, -1, 7]
    later = known.since(5)
    assert (later.slot.tolist(), later.onset.tolist()) == ([0, 3, 4], [0, -1, 2])
    of_three = known.of_range(3, 4)
    assert (of_three.reason.tolist(), of_three.onset.tolist()) == ([2], [7])
    known.save(tmp_path / "known", Origin())
    stored = TestResults.load(tmp_path / "known")
    assert (stored.reason.tolist(), stored.onset.tolist()) == ([0, -1, 2], [3, -1, 7])
    for values, message in (
        ({"reason": np.array([0, 4, 1], np.int8)}, "reason 4 of a test"),
        ({"onset": np.array([5, -1, 7], np.int32)}, "slot 4 has symptoms from slot 5"),
    ):
        with pytest.raises(DataError, match=message):
            dataclasses.replace(known, **values)


def test_records_without_reason_and_onset_are_loaded(tmp_path):
    arrays = {
        "person": np.array([1], np.int32),
        "positive": np.array([True]),
        "slot": np.array([2], np.int32),
    }
    store.write(tmp_path / "old", "known", arrays, meta={"people": 3}, origin=Origin())
    known = TestResults.load(tmp_path / "old")
    assert [known.kind[0], known.reason[0], known.onset[0]] == [0, -1, -1]
    assert [kind.name for kind in known.kinds] == ["ever"]


def named_city(people=6, slots=12, names=None):
    regions = Regions(kind="poi", centre_km=np.zeros((1, 2)))
    by_slot = np.zeros((slots, people), np.int32)
    return Traces(by_slot, Clock(days=slots // 12), regions, names)


def test_tests_belong_to_the_people_of_their_names(tmp_path):
    names = ("ann", "bob", "cid", "dan", "eve", "fay")
    ours = known_of(6, [(1, 3, True), (4, 2, False)])
    ours = dataclasses.replace(ours, names_sha256=named_city(names=names).names_sha256)
    ours.save(tmp_path / "known", Origin())
    everybody = np.ones(6, np.bool_)
    for known in (ours, TestResults.load(tmp_path / "known"), ours.since(1)):
        known.of_people(everybody).require_people_of(named_city(names=names))
        known.require_people_of(named_city())
        for others in (names[::-1], ("annb", "ob", *names[2:])):
            with pytest.raises(DataError, match="other names, or in another order"):
                known.require_people_of(named_city(names=others))
    with pytest.raises(DataError, match="of 6 people, but the traces have 5"):
        ours.require_people_of(named_city(people=5))
    late = known_of(6, [(1, 12, True)])
    with pytest.raises(DataError, match="slot 12, but the last slot of the traces"):
        late.require_people_of(named_city())


def two_kinds(positives=17, negatives=43, people=100):
    person = np.arange(positives + negatives, dtype=np.int32)
    slot = np.zeros(len(person), np.int32)
    return TestResults(people, person, person < positives, slot)


def rng(seed=1):
    return np.random.default_rng(seed)


def test_validation_people_are_the_same_share_of_both_results():
    tests = two_kinds(positives=40, negatives=60)
    people = draw_validation_people(tests, 0.1, rng())
    assert (np.diff(people) > 0).all()
    np.testing.assert_array_equal(np.bincount(tests.status[people]), [6, 4])
    assert not np.array_equal(people, draw_validation_people(tests, 0.1, rng(2)))


@pytest.mark.parametrize(
    ("positives", "negatives", "word"), [(1, 9, "positive"), (9, 1, "negative")]
)
def test_one_person_of_a_kind_cannot_be_split(positives, negatives, word):
    with pytest.raises(DataError, match=f"1 people tested {word}: at least 2"):
        draw_validation_people(two_kinds(positives, negatives), 0.1, rng())


def test_somebody_must_be_left_for_training():
    with pytest.raises(SettingsError, match=r"validation_share=0\.9 takes all 2"):
        draw_validation_people(two_kinds(2, 50), 0.9, rng())


def test_folds_split_the_tested_people_evenly():
    tests = two_kinds()
    fold = random_folds(tests, 4, rng())
    np.testing.assert_array_equal(fold >= 0, tests.tested)
    np.testing.assert_array_equal(np.bincount(fold[tests.tested]), [15, 15, 15, 15])


def test_random_folds_do_not_depend_on_results():
    tests = two_kinds()
    turned = TestResults(tests.people, tests.person, ~tests.positive, tests.slot)
    folds = (random_folds(one, 4, rng()) for one in (tests, turned))
    np.testing.assert_array_equal(*folds)


PLACES = traces_of([[0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    "tests", [[(0, 2, 1), (1, 2, 0)], [(0, 1, 0), (0, 2, 1), (1, 2, 0)]]
)
def test_ordinary_tests_cause_no_warning(tests):
    assert data_warnings(known_of(4, tests), PLACES) == ()


@pytest.mark.parametrize(
    ("tests", "word"),
    [
        ([(0, 2, 0), (1, 2, 0)], "nobody is positive"),
        ([(0, 2, 1), (1, 2, 1)], "nobody is negative only"),
        ([(0, 1, 1), (1, 1, 0), (2, 1, 0), (3, 1, 0)], "Everybody"),
        ([(0, 1, 1), (0, 2, 0), (1, 2, 0)], "1 person tested negative"),
        ([(0, 1, 1), (0, 1, 0), (1, 2, 0)], "1 person tested negative"),
    ],
)
def test_odd_tests_cause_warnings(tests, word):
    (result,) = data_warnings(known_of(4, tests), PLACES)
    assert word in result


def test_no_tests_and_people_without_trace_cause_warnings():
    unseen = traces_of([[0, -1, 1, 1], [0, -1, 1, 0], [1, -1, 0, 0]])
    nothing, absent = data_warnings(known_of(4, []), unseen)
    assert "Nobody was tested" in nothing
    assert "1 person has no trace" in absent


def hidden_of(person=(1, 4, 7), infected=(True, False, True)):
    person, infected = np.array(person, np.int32), np.array(infected, np.bool_)
    return GroundTruth(HeldOutLabels(person, infected))


def test_labels_are_not_accessible_before_opening():
    hidden = hidden_of()
    assert repr(hidden) == str(hidden) == "GroundTruth(3 people)"
    public = [name for name in dir(hidden) if not name.startswith("_")]
    assert public == ["load", "open", "save"]
    assert not hasattr(hidden, "__dict__")


def test_opening_is_logged_with_its_purpose(caplog):
    with caplog.at_level(logging.INFO):
        truth = hidden_of().open("the table of scores")
    assert truth.infected.tolist() == [True, False, True]
    assert "3 people opened for the table of scores" in caplog.text
    with pytest.raises(SettingsError, match="purpose"):
        hidden_of().open(" ")


def test_saved_and_loaded_closed(tmp_path):
    hidden_of().save(tmp_path / "h", Origin())
    again = GroundTruth.load(tmp_path / "h")
    assert repr(again) == "GroundTruth(3 people)"
    assert again.open("a test").person.tolist() == [1, 4, 7]


@pytest.mark.parametrize("person", [(4, 1, 7), (1, 1, 7), (-1, 4, 7)])
def test_people_out_of_order_are_refused(person):
    with pytest.raises(DataError, match="once each, in ascending order"):
        hidden_of(person)
