import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon import store
from epifalcon.epidemic.known import Known
from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.store import Origin

CASES = settings(max_examples=60, deadline=None, derandomize=True)
TESTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=12
)


def known_of(tests, people=6):
    person, slot, positive = zip(*tests, strict=True) if tests else ((), (), ())
    return Known.from_tests(
        people,
        np.array(person, np.int32),
        np.array(positive, np.bool_),
        np.array(slot, np.int32),
    )


@CASES
@given(TESTS)
def test_status_and_first_positive_against_the_list(tests):
    known = known_of(tests)
    for person in range(6):
        results = [positive for who, _, positive in tests if who == person]
        status = -1 if not results else int(any(results))
        assert known.status[person] == status
        assert known.tested[person] == bool(results)
        slots = [slot for who, slot, positive in tests if who == person and positive]
        assert known.first_positive_slot[person] == min(slots, default=-1)
    rows = zip(known.person, known.slot, known.positive, strict=True)
    assert [tuple(row) for row in rows] == sorted(tests)


def test_saved_and_loaded(tmp_path):
    known = known_of([(4, 1, True), (0, 3, False), (4, 0, False)])
    known.save(tmp_path / "k", Origin())
    again = Known.load(tmp_path / "k")
    assert again.people == 6
    for name in ("person", "positive", "slot", "status"):
        np.testing.assert_array_equal(getattr(known, name), getattr(again, name))
    store.write(tmp_path / "other", "hidden", {}, meta={}, origin=Origin())
    with pytest.raises(DataError, match="expected 'known'"):
        Known.load(tmp_path / "other")


def test_a_record_without_an_array_is_corrupt(tmp_path):
    store.write(tmp_path, "known", {}, meta={"people": 3}, origin=Origin())
    with pytest.raises(CorruptFileError, match="lacks 'person'"):
        Known.load(tmp_path)


@pytest.mark.parametrize(
    ("person", "positive", "slot", "message"),
    [
        ([0, 6], [True, True], [0, 0], "tested people run from 0 to 6"),
        ([-1, 0], [True, True], [0, 0], "tested people run from -1"),
        ([1, 0], [True, True], [0, 0], "order of person"),
        ([1, 1], [True, True], [3, 2], "order of person"),
        ([0, 1], [True, True], [0, -1], "a test in slot -1"),
        ([0, 1], [True], [0, 1], "lengths must agree"),
    ],
)
def test_impossible_tests_are_refused(person, positive, slot, message):
    with pytest.raises(DataError, match=message):
        Known(
            6,
            np.array(person, np.int32),
            np.array(positive, np.bool_),
            np.array(slot, np.int32),
        )


def test_wrong_kinds_are_refused():
    nothing = np.zeros(0, np.int32)
    with pytest.raises(DataError, match="positive is int32"):
        Known(6, nothing, nothing, nothing)
    with pytest.raises(SettingsError, match="people=0"):
        Known(0, nothing, nothing.astype(bool), nothing)


def test_nothing_can_be_changed():
    known = known_of([(0, 0, True)])
    for array in (known.person, known.positive, known.slot, known.status):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@CASES
@given(TESTS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_tests_of_some_people(tests, wanted):
    kept = known_of(tests).of_people(np.array(wanted))
    alone = known_of([test for test in tests if wanted[test[0]]])
    for name in ("person", "positive", "slot"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(alone, name))


def test_tests_on_a_later_clock_keep_person_and_result():
    known = Known(
        5,
        np.array([1, 1, 3], np.int32),
        np.array([False, True, False]),
        np.array([2, 9, 12], np.int32),
    )
    later = known.since(6)
    assert later.slot.tolist() == [0, 3, 6]
    np.testing.assert_array_equal(later.person, known.person)
    np.testing.assert_array_equal(later.status, known.status)


def city(people=6, slots=12, names=None):
    regions = Regions(kind="poi", centre_km=np.zeros((1, 2)))
    by_slot = np.zeros((slots, people), np.int32)
    return Traces(by_slot, Clock(days=slots // 12), regions, names)


def test_tests_belong_to_the_people_of_their_names(tmp_path):
    names = ("ann", "bob", "cid", "dan", "eve", "fay")
    ours = known_of([(1, 3, True), (4, 2, False)])
    ours = dataclasses.replace(ours, who=city(names=names).who)
    ours.save(tmp_path / "known", Origin())
    everybody = np.ones(6, np.bool_)
    for known in (ours, Known.load(tmp_path / "known"), ours.since(1)):
        known.of_people(everybody).require_people_of(city(names=names))
        known.require_people_of(city())
        for others in (names[::-1], ("annb", "ob", *names[2:])):
            with pytest.raises(DataError, match="other names, or in another order"):
                known.require_people_of(city(names=others))
    with pytest.raises(DataError, match="among 6 people, but traces of 5"):
        ours.require_people_of(city(people=5))
    late = known_of([(1, 12, True)])
    with pytest.raises(DataError, match="slot 12, but the traces end with slot 11"):
        late.require_people_of(city())
