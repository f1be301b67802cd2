import numpy as np
import pytest

from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.record import PseudoTraces
from epifalcon.store import Origin

TRUE = Traces(
    np.array([[0, 1], [2, -1]], dtype=np.int32),
    Clock(slot_hours=12, days=1),
    Regions("area", np.zeros((4, 2))),
    ("ann", "bob"),
)


def beside(*copies):
    return PseudoTraces(TRUE, np.array(copies, dtype=np.int32))


def test_a_good_record_is_read_only_and_counts_what_is_missing():
    made = beside([[1, 2], [3, -1]], [[2, -1], [-1, -1]])
    assert made.copies == 2
    assert made.missing == 2
    with pytest.raises(ValueError, match="read-only"):
        made.pseudo[0, 0, 0] = 3


@pytest.mark.parametrize(
    ("copies", "told"),
    [
        ([[[0, 2], [3, -1]]], "true place in slot 0"),
        ([[[1, 2], [3, 0]]], "slot 1: none is due"),
        ([[[1, 2], [4, -1]]], "-1 to 3"),
        ([[[1, -2], [3, -1]]], "-1 to 3"),
        ([[[1, 2], [3, -1]], [[2, 2], [0, -1]]], "two copies claim one place in"),
        ([[[1, 2, 3], [3, -1, -1]]], "shape"),
    ],
)
def test_a_record_that_breaks_its_promise_is_refused(copies, told):
    with pytest.raises(DataError, match=told):
        beside(*copies)


def test_wrong_kinds_of_arrays_are_refused():
    with pytest.raises(DataError, match="int32"):
        PseudoTraces(TRUE, np.zeros((1, 2, 2), dtype=np.int64))
    with pytest.raises(DataError, match="axes"):
        PseudoTraces(TRUE, np.full((2, 2), -1, dtype=np.int32))


def test_what_is_saved_is_read_back(tmp_path):
    made = beside([[1, 2], [3, -1]])
    made.save(tmp_path / "pseudo", Origin())
    again = PseudoTraces.load(tmp_path / "pseudo", TRUE)
    np.testing.assert_array_equal(again.pseudo, made.pseudo)


def test_pseudo_traces_of_other_people_are_refused(tmp_path):
    beside([[1, 2], [3, -1]]).save(tmp_path / "pseudo", Origin())
    other = Traces(np.array([[1, 1], [2, -1]], np.int32), TRUE.clock, TRUE.regions)
    with pytest.raises(DataError, match="true place"):
        PseudoTraces.load(tmp_path / "pseudo", other)
