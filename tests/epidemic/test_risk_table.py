import errno
import os

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.epidemic.read_tests import read_more_tests
from epifalcon.epidemic.risk_table import Risks, require_writable
from epifalcon.epidemic.test_kinds import EVER
from epifalcon.errors import DataError, SettingsError, WriteError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.coverage import TraceCoverage
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.types import UNKNOWN


def risks_of(probability, status=None, names=None):
    known = [-1] * len(probability) if status is None else status
    people = len(probability)
    coverage = TraceCoverage(np.full(people, 0.5), np.ones(people, bool))
    risk, status = np.array(probability, float), np.array(known, np.int8)
    return Risks(risk, status, names, now=risk / 2, coverage=coverage)


def test_a_table_worked_by_hand():
    risks = risks_of([0.2, 0.9, 0.2, 0.5], [-1, 1, 0, -1], ("d", "c", "b", "a"))
    columns = ("person", "risk", "rank", "percentile", "known")
    assert risks.table.select(columns).rows() == [
        ("a", 0.5, 2, 75.0, None),
        ("d", 0.2, 3, 50.0, None),
        ("c", 0.9, 1, 100.0, "positive"),
        ("b", 0.2, 3, 50.0, "negative"),
    ]
    assert risks.table["tested"].to_list() == [False, False, True, True]


def test_a_risk_without_contacts_or_observations_is_marked():
    # Ten slots of one day; the second day has no visits at all.
    by_slot = np.full((20, 5), UNKNOWN, np.int32)
    by_slot[:10, 0] = 0  # Always observed, with 1 in slot 3 only.
    by_slot[3, 1] = 0
    by_slot[:10, 2] = 1  # Always alone.
    by_slot[:9, 3] = 0  # Together with 0.
    clock = Clock(2.4, 2)
    city = Traces(by_slot, clock, Regions("poi", np.zeros((2, 2))))
    coverage = TraceCoverage.of(city)
    status = np.full(5, -1, np.int8)
    risks = Risks(np.linspace(0.9, 0.5, 5), status, coverage=coverage).table
    assert risks["observed"].to_list() == [1.0, 0.1, 1.0, 0.9, 0.0]
    assert risks["evidence"].to_list() == [
        *("ok", "ok", "no contacts observed", "ok", "not observed")
    ]
    assert risks["risk_now"].null_count() == 5
    # At 9 of 100 slots, observations are few.
    shown = TraceCoverage(np.array([0.09]), np.array([True])).evidence
    assert shown.tolist() == ["few observations"]


def test_the_highest_risks_are_those_of_people_to_test_next():
    risks = risks_of([0.2, 0.9, 0.3, 0.5], [-1, 1, 0, -1])

    def people(count, *known):
        return [row["person"] for row in risks.highest(count, *known)]

    assert people(10) == [3, 0]
    assert people(1) == [3]
    assert people(10, (None, "negative")) == [3, 2, 0]
    assert people(3, (None, "negative", "positive")) == [1, 3, 2]


def test_names_that_are_numbers_stand_by_size():
    for names, order in (
        (("10", "9", "100"), ["9", "10", "100"]),
        (("10", "9", "x"), ["10", "9", "x"]),
    ):
        assert risks_of([0.5] * 3, names=names).table["person"].to_list() == order
    many = risks_of(np.linspace(0, 1, 40))
    assert [one["person"] for one in many.highest(3)] == [39, 38, 37]
    assert len(risks_of([0.5]).highest(10)) == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0]), min_size=1))
def test_rank_and_percentile_by_counting(probability):
    table = risks_of(probability).table
    people = len(probability)
    assert sorted(table["person"].to_list()) == list(range(people))
    shown = table.select("person", "risk", "rank", "percentile")
    for person, risk, rank, percentile in shown.iter_rows():
        assert risk == probability[person]
        assert rank == 1 + sum(other > risk for other in probability)
        not_higher = sum(other <= risk for other in probability)
        assert percentile == pytest.approx(100 * not_higher / people)
    rows = table.select("rank", "person").rows()
    assert rows == sorted(rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    names = ('quote"d', "comma, semi; tab\t", "ünï", " spaced ")
    risks = risks_of([0.1, 1 / 3, 1e-12, 1.0], [1, 0, -1, -1], names)
    path = tmp_path / "new" / f"risks{suffix}"
    risks.write(path)
    read = pl.read_parquet if suffix == ".parquet" else pl.read_csv
    assert read(path).equals(risks.table)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "risks.csv"
    risks_of([0.5]).write(path)
    before = path.read_text()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        risks_of([0.75]).write(path, overwrite=True)
    with pytest.raises(WriteError, match="No space left"):
        risks_of([0.75]).write(tmp_path / "deep" / "er" / "risks.csv")
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path):
    for name in ("risks", "risks.txt", "risks.csv.gz"):
        with pytest.raises(SettingsError, match=r"must end in \.csv or \.parquet"):
            require_writable(tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(WriteError, match="is a folder"):
        require_writable(tmp_path / "folder.csv", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        risks_of([0.5]).write(tmp_path / "file" / "risks.csv")


def test_risks_are_probabilities_of_these_people():
    for wrong in (1.5, -0.1, np.nan):
        with pytest.raises(DataError, match="expected a number from 0 to 1"):
            risks_of([0.5, wrong])
    with pytest.raises(DataError, match="lengths must agree"):
        risks_of([0.5], [1, 0])
    with pytest.raises(DataError, match="2 names for 1 people"):
        risks_of([0.5], names=("a", "b"))


def test_an_interval_stands_beside_its_risk():
    risk, low, high = np.array([0.2, 0.9]), np.array([0.1, 0.7]), np.array([0.4, 1.0])
    status = np.array([-1, -1], np.int8)
    table = Risks(risk, status, low=low, high=high).table
    assert table.select("risk_low", "risk_high").rows() == [(0.7, 1.0), (0.1, 0.4)]
    with pytest.raises(DataError, match="risk_low"):
        Risks(risk, status, low=low[:1], high=high)


FORMULAS = ("=1+1", "'=1+1", "@sum", "+1+1", "-2+3", "\t=1", "-5", "plain")


def test_formulas_are_written_as_text_and_read_back_as_names(tmp_path):
    risks, path = risks_of(np.linspace(0, 1, 8), names=FORMULAS), tmp_path / "r.csv"
    risks.write(path)
    found = pl.read_csv(path)["person"]
    runs = found.filter(found.str.contains(r"^[=+@\t-]"))
    assert runs.to_list() == ["-5"]
    clock = Clock(1, 120, start="2020-03-01")
    table = pl.read_csv(path).select("person", day=1, result=pl.lit("positive"))
    table.write_csv(tmp_path / "tests.csv")
    tests = read_more_tests(tmp_path / "tests.csv", clock, None, EVER)
    assert tests.names == tuple(risks.table["person"])
    risks.write(path, overwrite=True, formulas=True)
    assert pl.read_csv(path).equals(risks.table)


def test_a_link_stays_and_its_own_name_sets_the_format(tmp_path):
    link, target = tmp_path / "r.csv", tmp_path / "deep" / "data.parquet"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    with pytest.raises(WriteError, match="exists"):
        risks_of([0.5]).write(link)
    assert target.read_text() == "old"
    risks_of([0.5]).write(link, overwrite=True)
    assert link.is_symlink()
    assert target.read_text().startswith("person,risk")
    assert sorted(tmp_path.rglob("*")) == [target.parent, target, link]
