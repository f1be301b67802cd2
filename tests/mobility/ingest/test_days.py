"""Visits and tests of a city that is known: days by number or date, regions by name."""

import numpy as np
import pytest

from epifalcon.epidemic.results import read_day_tests
from epifalcon.errors import DataError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.ingest.visits import read_day_visits
from epifalcon.mobility.regions import Regions

REGIONS = Regions("poi", np.zeros((3, 2)), names=("home", "work", "bar"))
CLOCK = Clock(slot_hours=6, days=2, start="2020-03-01")


def visits(tmp_path, *rows, header="person,day,hour,region"):
    path = tmp_path / "visits.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_each_slot_gets_the_region_of_most_rows_then_the_first(tmp_path):
    path = visits(
        tmp_path,
        "b,1,0,home",
        "b,1,1,bar",
        "b,1,2.5,bar",
        "a,2,23.9,work",
        "b,2,6,work",
        "b,2,7,home",
    )
    found = read_day_visits(path, CLOCK, REGIONS)
    assert found.names == ("a", "b")
    assert found.by_slot.T.tolist() == [
        [-1, -1, -1, -1, -1, -1, -1, 1],
        [2, -1, -1, -1, -1, 1, -1, -1],
    ]


def test_days_are_numbers_or_dates(tmp_path):
    rows = ("a,2020-03-01,0,home", "a,2,0,bar", "a,2020-03-02,6,work")
    found = read_day_visits(visits(tmp_path, *rows), CLOCK, REGIONS)
    assert found.by_slot[:, 0].tolist() == [0, -1, -1, -1, 2, 1, -1, -1]
    one = Clock(slot_hours=6, days=1, start="2020-03-02")
    rows = ("a,2020-03-02,0,home", "a,2,18,bar")
    found = read_day_visits(visits(tmp_path, *rows), one, REGIONS, first_day=2)
    assert found.by_slot[:, 0].tolist() == [0, -1, -1, 2]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("a,3,0,home", "found '3', expected 1 to 2, or 2020-03-01 to 2020-03-02"),
        ("a,1.5,0,home", "another day: found '1.5'"),
        ("a,2020-03-03,0,home", "another day"),
        ("a,first,0,home", "another day: found 'first'"),
        ("a,1,-1,home", "no hour of a day: found '-1'"),
        ("a,1,x,home", "hour is not a number"),
        ("a,1,0,pub", "unknown region: found 'pub', expected one of the 3 regions"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, row, told):
    path = visits(tmp_path, "a,1,0,home", row)
    with pytest.raises(DataError, match="row 3") as error:
        read_day_visits(path, CLOCK, REGIONS)
    assert told in str(error.value)


def test_tests_without_an_hour_count_for_the_first_slot(tmp_path):
    path = tmp_path / "tests.csv"
    path.write_text("person,day,result\na,1,pos\nb,2020-03-02,0\n")
    found = read_day_tests(path, CLOCK)
    assert found.name == ("a", "b")
    assert found.slot.tolist() == [0, 4]
    assert found.positive.tolist() == [True, False]
    path.write_text("person,day,hour,result\na,2,13,negative\n")
    assert read_day_tests(path, CLOCK).slot.tolist() == [6]
    path.write_text("person,day,result\n")
    assert len(read_day_tests(path, CLOCK)) == 0
    path.write_text("person,day,result\na,1,maybe\n")
    with pytest.raises(DataError, match="row 2, column 'result'"):
        read_day_tests(path, CLOCK)
