import numpy as np
import pytest

from epifalcon.errors import CorruptFileError, DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.privacy.pseudo.domains import DomainSettings
from epifalcon.privacy.pseudo.record import PseudoSettings, PseudoTraces
from epifalcon.settings import as_plain, build
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


def test_a_copy_reads_as_traces():
    made = beside([[1, 2], [3, -1]])
    copy = made.copy(0)
    np.testing.assert_array_equal(copy.by_slot, [[1, 2], [3, -1]])
    assert copy.names == ("ann", "bob")
    assert copy.regions is TRUE.regions
    with pytest.raises(DataError, match="copy 1"):
        made.copy(1)


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


def test_no_copies_are_possible():
    none = PseudoTraces(TRUE, np.empty((0, 2, 2), dtype=np.int32))
    assert (none.copies, none.missing) == (0, 0)


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


def test_a_changed_file_is_noticed(tmp_path):
    beside([[1, 2], [3, -1]]).save(tmp_path / "pseudo", Origin())
    path = tmp_path / "pseudo" / "pseudo.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        PseudoTraces.load(tmp_path / "pseudo", TRUE)


def test_settings_go_through_plain_values_and_back():
    chosen = PseudoSettings(
        method="recurring", pseudo_copies=5, domains=DomainSettings(gamma=0.5)
    )
    assert build(PseudoSettings, as_plain(chosen)) == chosen
    assert PseudoSettings().pseudo_copies == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "plausibel"},
        {"pseudo_copies": -1},
        {"pseudo_copies": 1.5},
        {"people_share": 0.0},
        {"people_share": -0.5},
        {"people_share": 1.01},
        {"people_share": float("nan")},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        PseudoSettings(**wrong)


def test_domains_must_hold_more_regions_than_there_are_copies():
    with pytest.raises(SettingsError, match="least_regions=3"):
        PseudoSettings(pseudo_copies=3, domains=DomainSettings(least_regions=3))
