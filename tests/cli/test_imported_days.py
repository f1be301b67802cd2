"""Days and people of an imported city, in files like those of the import."""

import datetime as dt
import json

import numpy as np
import polars as pl
import pytest

from epifalcon.experiments.daily_update import load_state
from epifalcon.experiments.import_format import ImportFormat
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.mobility.traces import Traces

PEOPLE, DAYS = 24, 4
FIRST = dt.datetime(2020, 3, 6)
RUN = ("run", "--city", "city", "--pathogen", "sars-cov-2", "--out", "run")
ZONE = ("--timezone", "Europe/Berlin", "--slot-hours", "6")
TOWERS = "tower,lat,lon\n" + "".join(f"t{k},48.{k},11.5\n" for k in range(4))


def squares():
    """Areas from 11 to 12 degrees east, each with one place, as GeoJSON."""
    areas = []
    for number in range(5):
        south, north = 47.95 + number / 10, 48.05 + number / 10
        corners = [[11, south], [12, south], [12, north], [11, north], [11, south]]
        shape = {"type": "Polygon", "coordinates": [corners]}
        one = {"type": "Feature", "id": f"area {number}", "geometry": shape}
        areas.append({**one, "properties": {}})
    return json.dumps({"type": "FeatureCollection", "features": areas})


def observations(seed=0):
    """Person, day, hour and place: from 0 to 3, but 4 (never before) on day 4."""
    rng = np.random.default_rng(seed)
    rows = []
    for person in range(PEOPLE):
        for day in range(DAYS):
            for hour in (1, 8, 13, 23)[: rng.integers(2, 5)]:
                place = int(rng.integers(4))
                if day == 3 and (person, hour) == (5, 8):
                    place = 4
                rows.append((f"p{person}", day, hour, place))
    return rows


def rows_of(kind, chosen):
    """Lines of a file of ``kind``, with the date of day and hour as %d.%m.%Y."""
    headers = {
        "pings": "who,when,lat,lon",
        "stays": "who,begin,end,place",
        "checkins": "who,when,venue",
        "cells": "who,when,cell",
    }
    lines = [headers[kind]]
    for person, day, hour, place in chosen:
        moment = FIRST + dt.timedelta(days=day, hours=hour)
        when = moment.strftime("%d.%m.%Y %H:%M")
        end = (moment + dt.timedelta(minutes=50)).strftime("%d.%m.%Y %H:%M")
        lines.append(
            {
                "pings": f"{person},{when},48.{place}1,11.5",
                "stays": f"{person},{when},{end},place {place}",
                "checkins": f"{person},{when},place {place}",
                "cells": f"{person},{when},t{place}",
            }[kind]
        )
    return "\n".join(lines) + "\n"


OPTIONS = {
    "grid": ("pings", "--cell-km", "3"),
    "h3": ("pings", "--regions", "h3", "--h3-resolution", "6"),
    "towers": ("pings", "--regions", "towers", "--towers", "towers.csv"),
    "polygons": ("pings", "--regions", "polygons", "--polygons", "areas.json"),
    "stays": ("stays",),
    "checkins": ("checkins",),
    "cells": ("cells", "--towers", "towers.csv"),
}


@pytest.fixture
def imported(epifalcon, tmp_path, monkeypatch):
    """Import the days before day ``until`` into the folder ``out``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "towers.csv").write_text(TOWERS)
    (tmp_path / "areas.json").write_text(squares())

    def run(case, out, until, *more, tests=""):
        kind, *words = OPTIONS[case]
        chosen = [row for row in observations() if row[1] < until]
        (tmp_path / "visits.csv").write_text(rows_of(kind, chosen))
        columns = {"stays": "person=who,start=begin"}.get(kind, "person=who,time=when")
        (tmp_path / "tests.csv").write_text(f"person,time,result,kind\n{tests}")
        words += ["--tests", "tests.csv"] if tests else []
        made = epifalcon(
            *("import", "--visits", "visits.csv", "--kind", kind, "--columns", columns),
            *("--date-format", "%d.%m.%Y %H:%M", "--date-format", "%Y-%m-%d"),
            *("--fill-gap-hours", "12", "--out", out, "--quiet", *ZONE, *words, *more),
        )
        assert made.code == 0, made.err
        return Traces.load(tmp_path / out / "city")

    return run


def day_file(tmp_path, case, *days):
    path = tmp_path / "day.csv"
    chosen = [row for row in observations() if row[1] in days]
    path.write_text(rows_of(OPTIONS[case][0], chosen))
    return path


@pytest.mark.parametrize("case", OPTIONS)
def test_a_day_is_read_as_the_import_would_read_it(tmp_path, imported, case):
    """The same regions and gaps as in an import of all days, but for a new place."""
    if case in ("h3", "polygons"):
        pytest.importorskip("shapely")
    if case == "h3":
        pytest.importorskip("h3ronpy")
    whole, part = imported(case, "whole", DAYS), imported(case, "part", DAYS - 1)
    files = ImportFormat.of_city(tmp_path / "part")
    clock = whole.clock.last(1)
    (tmp_path / "elsewhere").mkdir()
    # The command is run in any folder.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "elsewhere")
        found = files.read_visits(day_file(tmp_path, case, 3), clock, part.regions)
    assert found.traces.names == whole.names
    names = np.array([*part.regions.names, ""])
    expected = np.array([*whole.regions.names, ""])[
        whole.by_slot[-whole.clock.slots // 4 :]
    ]
    read = names[found.traces.by_slot]
    strange = ~np.isin(expected, names)
    assert (read[strange] == "").all()
    # The import of all days fills gaps across midnight, too.
    within = (read == expected) | strange | (read == "")
    assert within.all()
    assert (read == expected).mean() > 0.7
    new = set(expected[strange])
    title = {
        name: whole.regions.title(at) for at, name in enumerate(whole.regions.names)
    }
    assert set(found.unknown_places) == {title[name] for name in new}
    if case in ("grid", "h3"):
        assert all(name.startswith("48.4") for name in found.unknown_places)
    # Everybody is near a tower, and a cell must be in the table.
    assert len(new) == (0 if case in ("towers", "cells") else 1)


TESTS = "".join(
    f"p{k},2020-03-0{6 + k % 3},{'pos' if k % 3 == 0 else 'neg'},pcr\n"
    for k in range(12)
)


@pytest.fixture
def state(epifalcon, tmp_path, imported):
    imported("grid", "city", DAYS - 1, "--test-kind", "antigen", tests=TESTS)
    for words in (
        (*RUN, "--set", "field.sweeps=4"),
        ("update", "state", "--from", "run"),
    ):
        made = epifalcon(*words, "--quiet")
        assert made.code == 0, made.err
    return tmp_path / "state"


def test_an_update_takes_files_of_the_import(epifalcon, tmp_path, imported, state):
    day = day_file(tmp_path, "grid", 2, 3)
    with day.open("a") as file:
        file.write("zoe,09.03.2020 08:00,48.01,11.5\np1,soon,48.1,11.5\n")
    tests = tmp_path / "new.csv"
    rows = "p1,2020-03-09,pos,symptoms,2020-03-07\np2,2020-03-08,neg,,\n"
    tests.write_text("person,time,result,reason,onset\n" + rows)
    found = epifalcon("update", state, "--visits", day, "--tests", tests, "--json").json
    assert (found["day"], found["date"]) == (4, "2020-03-09")
    assert (found["newcomers"], found["tests"]) == (["zoe"], 2)
    assert any("1 x time is not readable" in note for note in found["notes"])
    assert any("of other days (2020-03-08)" in n for n in found["notes"])
    assert any("count as not observed: " in note for note in found["notes"])
    window = load_state(state)
    whole = imported("grid", "whole", DAYS)
    region = np.array([*window.traces.regions.names, ""])[window.traces.by_slot]
    region = region[:, :PEOPLE]
    expected = np.array([*whole.regions.names, ""])[whole.by_slot]
    expected[~np.isin(expected, [*window.traces.regions.names])] = ""
    # Also gaps across midnight are filled as in an import of all days.
    strange = (expected == "") & (region != "")
    assert (region == expected)[~strange].all()
    assert strange.sum() <= 2
    known, p1 = window.known, window.traces.names.index("p1")
    last = np.flatnonzero(known.person == p1)[-1]
    assert known.kinds[known.kind[last]].name == "antigen"
    assert (known.reason[last], known.slot[last], known.onset[last]) == (2, 12, 4)


@pytest.mark.parametrize(
    ("days", "message"),
    [
        ((2,), "expected visits of 2020-03-09, found those of 2020-03-08"),
        ((2, 1), "found those of 2020-03-07, 2020-03-08"),
    ],
)
def test_the_wrong_day_is_named(epifalcon, tmp_path, state, days, message):
    before = (state / "manifest.json").read_bytes()
    said = epifalcon("update", state, "--visits", day_file(tmp_path, "grid", *days))
    said.require_error(3, message, alone=True)
    assert (state / "manifest.json").read_bytes() == before


def test_mostly_later_days_are_refused(epifalcon, tmp_path, state):
    path = day_file(tmp_path, "grid", 3)
    rows = path.read_text().splitlines()
    late = [row.replace("09.03", "10.03") for row in rows[1:]]
    path.write_text("\n".join([*rows[:5], *late]) + "\n")
    said = epifalcon("update", state, "--visits", path)
    said.require_error(3, "but most are later, such as on 2020-03-10", alone=True)


def test_visits_of_a_day_that_tests_added(epifalcon, tmp_path, imported):
    """A test on the fifth day: the fourth is in the city, but without visits."""
    late = "p3,2020-03-10,pos,pcr\n"
    imported("grid", "city", DAYS - 1, tests=TESTS + late)
    for words in (
        (*RUN, "--set", "field.sweeps=4"),
        ("update", "state", "--from", "run"),
    ):
        assert epifalcon(*words, "--quiet").code == 0
    state = tmp_path / "state"
    assert load_state(state).traces.clock.days == 5
    path = day_file(tmp_path, "grid", 3)
    found = epifalcon("update", state, "--visits", path, "--json").json
    assert (found["day"], found["date"]) == (4, "2020-03-09")
    window = load_state(state)
    assert (window.traces.clock.days, window.traces.observed_days) == (5, 4)
    path.write_text(path.read_text().replace("09.03", "10.03"))
    assert epifalcon("update", state, "--visits", path, "--json").json["day"] == 5
    path.write_text(path.read_text().replace("10.03", "11.03"))
    assert epifalcon("update", state, "--visits", path, "--json").json["day"] == 6


@pytest.mark.usefixtures("state")
def test_predict_takes_files_of_the_import(epifalcon, tmp_path):
    """People of the run in their own file have the same traces."""
    run, path = FinishedRun.open(tmp_path / "run"), tmp_path / "visits.csv"
    (tmp_path / "their.csv").write_text("person,time,result\np3,2020-03-08,neg\n")
    words = ("--traces", path, "--tests", tmp_path / "their.csv", "--out", "risks.csv")
    said = epifalcon("predict", run.folder, *words)
    assert (said.code, said.err) == (0, "")
    table = pl.read_csv(tmp_path / "risks.csv")
    assert set(table["person"]) == set(run.traces.names)
    assert table.filter(person="p3")["known"].item() == "negative"
    path.write_text(path.read_text().replace(".03.2020", ".04.2020"))
    said = epifalcon("predict", run.folder, *words, "--overwrite")
    message = "expected visits of 2020-03-06 to 2020-03-08, found those of 2020-04-06"
    said.require_error(3, message, alone=True)


def test_a_missing_file_of_regions_is_named(epifalcon, tmp_path, imported):
    imported("towers", "city", DAYS - 1, tests=TESTS)
    for words in (
        (*RUN, "--set", "field.sweeps=4"),
        ("update", "state", "--from", "run"),
    ):
        assert epifalcon(*words, "--quiet").code == 0
    (tmp_path / "towers.csv").unlink()
    day = day_file(tmp_path, "towers", 3)
    said = epifalcon("update", "state", "--visits", day)
    said.require_error(3, "towers.csv: no such file; the import took", alone=True)
