import pytest

from epifalcon.epidemic.test_errors import TestErrors
from epifalcon.errors import SettingsError


def test_by_default_every_result_is_right():
    assert TestErrors().none
    assert not TestErrors(false_negative=0.1).none


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        ({"false_positive": -0.1}, "false_positive"),
        ({"false_negative": 1.1}, "false_negative"),
        ({"false_positive": 0.5, "false_negative": 0.5}, "add up to less than 1"),
    ],
)
def test_impossible_rates_are_refused_by_name(errors, named):
    with pytest.raises(SettingsError, match=named):
        TestErrors(**errors)
