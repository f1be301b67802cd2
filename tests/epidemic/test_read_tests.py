from datetime import datetime

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.read_tests import read_results
from epifalcon.epidemic.test_kinds import ANTIGEN, REASONS
from epifalcon.errors import DataError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.io import ReadSettings
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces

ALL = ReadSettings(max_refused_share=1)


def traces(names=("007", "7", "Zoë"), start="2020-03-28", zone="Europe/Berlin"):
    people = 3 if names is None else len(names)
    ids = np.zeros((36, people), dtype=np.int32)
    clock = Clock(2, 3, start, zone)
    return Traces(ids, clock, Regions("poi", np.zeros((1, 2))), names)


def read(tmp_path, rows, city=None, settings=ALL, header="person,time,result"):
    path = tmp_path / "tests.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    found = read_results(path, city or traces(), settings)
    return found.tests, found.rows


def test_words_for_results(tmp_path):
    words = ("positive", " POS ", "1", "TRUE", "+", "1.0")
    words += ("negative", "Neg", "0", "False", "-", "0.0")
    for word, positive in zip(words, [True] * 6 + [False] * 6, strict=True):
        assert read(tmp_path, [f"7,2020-03-28,{word}"])[0].positive[0] == positive


def test_one_entry_per_test_in_order(tmp_path):
    known, rows = read(
        tmp_path,
        [
            "Zoë,2020-03-29T12:00,pos",
            "007,2020-03-30T23:59:59,neg",
            "Zoë,2020-03-28,neg",
            "Zoë,2020-03-28T00:30:00+01:00,neg",
            "Zoë,2020-03-28,pos",
        ],
    )
    assert known.people == 3
    assert known.person.tolist() == [0, 2, 2, 2]
    assert known.slot.tolist() == [35, 0, 0, 18]
    assert known.positive.tolist() == [False, False, True, True]
    assert (rows.refused, rows.accepted) == ({}, 5)
    assert [kind.name for kind in known.kinds] == ["ever"]


def test_tests_have_the_kind_of_their_row_or_the_default(tmp_path):
    rows = ["7,2020-03-28,neg,", "7,2020-03-28,neg, PCR", "7,2020-03-28,neg,pcr"]
    rows += ["Zoë,2020-03-29,pos,Serology", "Zoë,2020-03-29,pos,blood"]
    path = tmp_path / "tests.csv"
    path.write_text("\n".join(["person,time,result,kind", *rows]), encoding="utf-8")
    found = read_results(path, traces(), ALL, ANTIGEN)
    known, count = found.tests, found.rows
    names = [known.kinds[kind].name for kind in known.kind]
    assert sorted(names) == ["antigen", "pcr", "serology"]
    assert count.refused == {"unknown kind of test": 1}
    assert count.examples[0].row == 6


def test_reason_and_onset_of_each_test(tmp_path):
    """The traces are of 28 to 30 March with slots of 2 hours."""
    rows = [
        "7,2020-03-30T10:00,neg,pcr,Contact,",
        "7,2020-03-29,pos,pcr,symptoms,2020-03-28T05:00",
        "Zoë,2020-03-28T10:00,neg,pcr,,2020-03-20",
        "007,2020-03-29,neg,pcr,unknown,2020-03-29T08:00",
        "007,2020-03-28,neg,pcr,symptoms,2020-03-29",
        "007,2020-03-28,neg,pcr,bored,",
        "007,2020-03-28,neg,pcr,random,soon",
    ]
    path = tmp_path / "tests.csv"
    header = "person,time,result,kind,reason,symptom_onset"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    found = read_results(path, traces(), ALL)
    tests = found.tests
    names = [REASONS[at] if at >= 0 else "" for at in tests.reason]
    assert tests.person.tolist() == [0, 1, 1, 2]
    assert names == ["unknown", "symptoms", "contact", ""]
    assert tests.onset.tolist() == [12, 2, -1, 0]
    assert found.rows.refused == {
        "onset after the test": 1,
        "onset is not readable": 1,
        "unknown reason of a test": 1,
    }
    assert found.rows.examples[0].value == "'2020-03-29'"
    figures = found.as_plain()
    assert figures["reasons"] == {
        "not given": 1, "contact": 1, "symptoms": 1, "unknown": 1,
    }  # fmt: skip
    assert (figures["onsets"], figures["onsets_before_first_day"]) == (3, 1)


def test_repeated_rows_are_one_test_with_all_that_is_given(tmp_path):
    header = "person,time,result,reason,onset"
    rows = ["7,2020-03-29,pos,,", "7,2020-03-29,pos,symptoms,2020-03-28"]
    known, _ = read(tmp_path, rows, header=header)
    assert (known.reason.tolist(), known.onset.tolist()) == ([2], [0])


def test_tests_after_the_last_day_say_how_many_days_to_add(tmp_path):
    """The traces end on 30 March; at most five more days are allowed."""
    path = tmp_path / "tests.csv"
    rows = ["7,2020-03-30T23:00,pos", "7,2020-04-02T10:00,neg", "7,2020-04-05,neg"]
    path.write_text("\n".join(["person,time,result", *rows]), encoding="utf-8")
    found = read_results(path, traces(), ALL, most_later_days=5)
    assert found.tests.slot.tolist() == [35, 36 + 24 + 5]
    assert (found.later_tests, found.later_days) == (1, 3)
    assert found.rows.refused == {"outside the days of the traces": 1}
    assert "at most 5 days after them" in found.rows.examples[0].expected
    longer = traces().with_days(6)
    found.tests.require_people_of(longer)
    assert (longer.by_slot[36:] == -1).all()
    found = read_results(path, traces(), ALL)
    assert (len(found.tests.person), found.later_days) == (1, 0)


def test_slots_follow_the_wall_clock_of_the_city(tmp_path):
    """06:00 of the 29th is slot 3 of day 1, though clocks jumped at 02:00."""
    known, _ = read(tmp_path, ["7,2020-03-29T06:00,1", "7,2020-03-29T04:00:00Z,0"])
    assert known.slot.tolist() == [15, 15]


def test_every_refused_test_is_explained(tmp_path):
    known, rows = read(
        tmp_path,
        [
            "7,2020-03-28,pos",
            "8,2020-03-28,pos",
            "7,2020-03-27,pos",
            "7,2020-03-31,pos",
            "7,2020-03-28,maybe",
            "7,2020-03-28,",
            ",2020-03-28,pos",
            "7,soon,pos",
        ],
    )
    assert rows.refused == {
        "outside the days of the traces": 2,
        "result is neither positive nor negative": 2,
        "empty person": 1,
        "person is not in the traces": 1,
        "time is not readable": 1,
    }
    assert len(known.person) == rows.accepted == 1
    assert rows.read == 8
    first = {row.reason: row for row in reversed(rows.examples)}
    assert first["person is not in the traces"].row == 3
    assert first["person is not in the traces"].value == "'8'"


def test_people_without_names_are_identified_by_number(tmp_path):
    known, rows = read(
        tmp_path, ["2,2020-03-28,1", "3,2020-03-28,1", "02,2020-03-28,1"], traces(None)
    )
    assert known.person.tolist() == [2]
    assert rows.refused == {"person is not in the traces": 2}


def test_parquet_with_types(tmp_path):
    path = tmp_path / "tests.parquet"
    frame = pl.DataFrame(
        {
            "uid": [7, 7],
            "date": [datetime(2020, 3, 28, 3), datetime(2020, 3, 28, 5)],
            "outcome": [True, False],
        }
    )
    frame.write_parquet(path)
    known = read_results(path, traces()).tests
    assert known.positive.tolist() == [True, False]
    assert known.slot.tolist() == [1, 2]
    frame.with_columns(outcome=pl.lit(b"x")).write_parquet(path)
    with pytest.raises(DataError, match="column 'outcome' holds Binary"):
        read_results(path, traces())


def test_files_that_cannot_be_used(tmp_path):
    rows = ["7,2020-03-28,pos", "7,2020-03-28,maybe"]
    with pytest.raises(SettingsError, match="set start"):
        read(tmp_path, rows, traces(start=None))
    with pytest.raises(DataError, match=r"row 3, column 'result'.*'maybe'"):
        read(tmp_path, rows, settings=ReadSettings(strict=True))
    with pytest.raises(DataError, match="no column 'result'"):
        read(tmp_path, rows, header="person,time,verdict")
    renamed = ReadSettings(columns=("result=verdict",))
    assert read(tmp_path, rows, None, renamed, "person,time,verdict")[1].accepted == 1
    with pytest.raises(DataError, match="2 of 3 rows were refused"):
        read(tmp_path, [*rows, "8,2020-03-28,pos"], settings=ReadSettings())
