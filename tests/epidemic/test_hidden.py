import logging

import numpy as np
import pytest

from epifalcon.epidemic.hidden import Hidden, Truth
from epifalcon.errors import DataError, SettingsError
from epifalcon.store import Origin


def hidden_of(person=(1, 4, 7), infected=(True, False, True)):
    return Hidden(Truth(np.array(person, np.int32), np.array(infected, np.bool_)))


def test_nothing_shows_before_it_is_opened():
    hidden = hidden_of()
    assert repr(hidden) == str(hidden) == "Hidden(3 people)"
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
    again = Hidden.load(tmp_path / "h")
    assert repr(again) == "Hidden(3 people)"
    assert again.open("a test").person.tolist() == [1, 4, 7]


@pytest.mark.parametrize("person", [(4, 1, 7), (1, 1, 7), (-1, 4, 7)])
def test_people_out_of_order_are_refused(person):
    with pytest.raises(DataError, match="once each, in ascending order"):
        hidden_of(person)


def test_wrong_kinds_are_refused():
    with pytest.raises(DataError, match="expected int32 and bool"):
        Truth(np.zeros(2), np.zeros(2, bool))
    with pytest.raises(DataError, match="lengths must agree"):
        hidden_of((1, 2), (True,))
