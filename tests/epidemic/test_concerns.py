import numpy as np
import pytest

from epifalcon.epidemic.concerns import concerns
from epifalcon.epidemic.known import Known
from tests.epidemic.worlds import traces_of

CITY = traces_of([[0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]])


def known(*tests: tuple[int, bool, int]) -> Known:
    person, positive, slot = (np.array(part) for part in zip(*tests, strict=True))
    return Known.from_tests(4, person, positive, slot)


def test_ordinary_tests_are_of_no_concern():
    assert concerns(known((0, True, 2), (1, False, 2)), CITY) == ()
    assert concerns(known((0, False, 1), (0, True, 2), (1, False, 2)), CITY) == ()


@pytest.mark.parametrize(
    ("tests", "word"),
    [
        ([(0, False, 2), (1, False, 2)], "nobody is positive"),
        ([(0, True, 2), (1, True, 2)], "nobody is negative only"),
        ([(0, True, 1), (1, False, 1), (2, False, 1), (3, False, 1)], "Everybody"),
        ([(0, True, 1), (0, False, 2), (1, False, 2)], "1 person tested negative"),
        ([(0, True, 1), (0, False, 1), (1, False, 2)], "1 person tested negative"),
    ],
)
def test_what_is_odd_about_tests_is_told(tests, word):
    (told,) = concerns(known(*tests), CITY)
    assert word in told


def test_no_tests_and_people_without_trace_are_told():
    nobody = Known(4, *(np.empty(0, kind) for kind in (np.int32, np.bool_, np.int32)))
    unseen = traces_of([[0, -1, 1, 1], [0, -1, 1, 0], [1, -1, 0, 0]])
    nothing, absent = concerns(nobody, unseen)
    assert "Nobody was tested" in nothing
    assert "1 person has no trace" in absent
