"""Tables of the PETs Prize: traces, tests, held-out week, against plain loops."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import epifalcon as ef
from epifalcon.errors import DataError
from epifalcon.studies.own.foreign_worlds import known_tests
from epifalcon.studies.own.pets import read_pets
from scripts.pets_example import DAYS, write_tables

CUTOFF = DAYS - 1 - 7


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pets")
    return folder, *write_tables(folder)


@pytest.mark.parametrize("slot_hours", [1, 4])
def test_each_slot_has_the_place_of_most_time(tables, slot_hours):
    folder, pid, where, _ = tables
    traces = read_pets(folder, slot_hours=slot_hours).traces
    assert traces.names == tuple(map(str, pid))
    assert traces.clock.days == DAYS
    compared = 0
    for slot in range(traces.slots):
        begin = slot * slot_hours % (7 * 24)
        for person in range(0, len(pid), 7):
            hours = Counter(where[person, begin : begin + slot_hours]).most_common()
            if len(hours) == 1 or hours[0][1] > hours[1][1]:
                region = traces.by_slot[slot, person]
                assert traces.regions.name(region) == hours[0][0]
                compared += 1
    assert compared > 5000


def test_tests_are_the_ends_of_each_state_and_the_last_week_is_held_out(tables):
    folder, pid, _, outcome = tables
    data = read_pets(folder)
    state = {(who, day): state for day, who, state in outcome}
    expected, infected = set(), {}
    for person, who in enumerate(pid):
        course = [state[who, day] for day in range(DAYS)]
        if course[CUTOFF] == "S":
            infected[person] = course[-1] != "S"
        seen = ["", *course[: CUTOFF + 1], ""]
        for day, (before, after) in enumerate(pairwise(seen)):
            if before != after and before:
                expected.add((person, day - 1, before))
            if before != after and after and after != "S":
                expected.add((person, day, after))
    columns = data.tests.select("person", "day", "result", "kind").iter_rows()
    state_of = {(False, "pcr"): "S", (True, "pcr"): "I", (True, "serology"): "R"}
    assert {(p, day, state_of[pos, kind]) for p, day, pos, kind in columns} == expected
    held_out = data.truth.open("test")
    assert dict(zip(held_out.person, held_out.infected, strict=True)) == infected
    assert sum(infected.values()) >= 10
    assert np.isfinite(data.age).all()


def test_a_method_ranks_those_infected_in_the_last_week(tmp_path):
    found = []
    for seed in range(1, 5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        write_tables(folder, seed=seed)
        data = read_pets(folder)
        known = known_tests(data.traces, data.tests)
        risk = ef.HBP().fit(data.traces, known).predict_proba()
        metrics = ef.evaluate(risk, data.truth)
        found.append((metrics.average_precision, metrics.prevalence))
    auprc, base_rate = np.mean(found, axis=0)
    assert auprc > 1.5 * base_rate


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "va_household.csv",
            "hid,rlid",
            "id,rlid",
            r"va_household.csv: no column 'hid'",
        ),
        (
            "va_activity_location_assignment.csv",
            "duration",
            "length",
            r"assignment.csv: no column 'duration': the columns are 'hid', 'pid'",
        ),
        (
            "va_activity_location_assignment.csv",
            "start_time",
            "began",
            r"no column 'start'",
        ),
        (
            "va_household.csv",
            r"^7,7",
            "99999,7",
            r"person.csv.gz: row 2, .*unknown hid",
        ),
        (
            "va_disease_outcome_training.csv",
            ",S",
            ",E",
            r"training.csv: row \d+, column 'state': .*found 'E', expected S, I or R",
        ),
        (
            "va_disease_outcome_training.csv",
            r"^(\d+),\d+,S",
            r"\1,5,S",
            r"row \d+, column 'pid': unknown pid: found '5'",
        ),
        (
            "va_disease_outcome_training.csv",
            r"^(\d+,\d+,S)",
            r"\1\n\1",
            r"training.csv: rows \d+ and \d+ have the same person and day",
        ),
        (
            "va_disease_outcome_training.csv",
            r"^\d+,(\d+),S",
            r"1.5,\1,S",
            r"column 'day': not a whole day: found '1.5'",
        ),
    ],
)
def test_a_wrong_table_is_named(tmp_path, name, old, new, expected):
    write_tables(tmp_path, people=9)
    path = tmp_path / name
    changed, count = re.subn(old, new, path.read_text(), count=1, flags=re.MULTILINE)
    assert count
    path.write_text(changed)
    with pytest.raises(DataError, match=expected):
        read_pets(tmp_path)


def test_a_missing_table_is_named(tmp_path):
    write_tables(tmp_path, people=9)
    (tmp_path / "va_household.csv").unlink()
    with pytest.raises(DataError, match=r"like va_household\.csv, found va_act"):
        read_pets(tmp_path)
