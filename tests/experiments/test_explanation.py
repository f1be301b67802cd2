"""Explanations of a finished run of Falcon Field, and predictions for new people."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from epifalcon import store
from epifalcon.belief_propagation.settings import WindowSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments import daily_update, explanation, run_tables
from epifalcon.experiments.explanation import explain
from epifalcon.experiments.import_format import ImportFormat
from epifalcon.experiments.prediction import NewPeople, score
from epifalcon.experiments.run_folder import FinishedRun, create_run_folder, finish
from epifalcon.experiments.run_methods import run_method
from epifalcon.experiments.run_report import write_results
from epifalcon.mobility.regions import Regions
from tests.experiments.field_runs import OPTIONS, made, write_tests, write_visits
from tests.experiments.finished_runs import chosen_people, copied_run
from tests.studies import town


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A run of the field, nothing reported."""
    return made(tmp_path_factory.mktemp("field") / "run", ("soft-dct-ratio",))


@pytest.fixture(scope="module")
def reported(computed):
    inputs = copied_run(computed[0], "reported")
    write_results(inputs, computed[1])
    return inputs.folder


@pytest.fixture(scope="module")
def run(reported):
    return FinishedRun.open(reported)


def test_shares_add_up_and_the_risk_is_the_listed_one(run):
    listed = run.risks()
    for person in range(0, 80, 7):
        found = explain(run, str(person))
        whole = found.before + found.by_day.sum()
        assert whole == pytest.approx(1, abs=1e-9)
        stays = found.before + sum(one.share for one in found.exposures)
        assert stays == pytest.approx(1, abs=1e-9)
        shares = [one.share for one in found.exposures]
        assert shares == sorted(shares, reverse=True)
        if listed.status[person] < 0:
            assert found.risk == pytest.approx(listed.probability[person], abs=1e-6)
            assert found.now == pytest.approx(listed.now[person], abs=1e-6)
    tested = explain(run, str(np.flatnonzero(listed.status == 1)[0]), tests=True)
    assert tested.risk == pytest.approx(1)
    negative = np.flatnonzero(run.known.status == 0)[0]
    healthy = explain(run, str(negative), tests=True)
    assert healthy.risk == 0
    assert "exclude an infection" in explanation.sentences(healthy)[1]


def test_exposures_are_stays_of_the_person_s_own_trace(run):
    found, person = explain(run, "11"), 11
    clock, here = run.traces.clock, run.traces.by_slot[:, person]
    assert any(one.end - one.begin > clock.slot_hours for one in found.exposures)
    for one in found.exposures:
        first = (one.day - 1) * clock.slots_per_day + one.begin / clock.slot_hours
        last = (one.day - 1) * clock.slots_per_day + one.end / clock.slot_hours
        stay = here[round(first) : round(last)]
        assert len(set(stay.tolist())) == 1
        assert one.region == (None if stay[0] < 0 else run.traces.regions.name(stay[0]))


def test_days_and_cells_are_named_as_the_user_knows_them(run):
    regions, number = run.traces.regions, len(run.traces.regions)
    lonlat = np.column_stack([np.full(number, -11.575), np.full(number, 48.137)])
    corners = np.repeat(regions.centre_km, 3, axis=0)
    cells = Regions(
        "area",
        regions.centre_km,
        lonlat,
        tuple(f"{number}/7" for number in range(number)),
        corners,
        3 * (1 + np.arange(number)),
    )
    clock = replace(run.traces.clock, start="2020-03-01")
    traces = replace(run.traces, clock=clock, regions=cells)
    state = explanation.load_state(run.place / "prediction")
    found = explanation.explain_person(*state, traces, run.tests, 11)
    plain = explain(run, "11")
    days = [line.split()[:2] for line in explanation.day_lines(found)]
    assert days[:3] == [days[0], ["Sun", "2020-03-01"], ["Mon", "2020-03-02"]]
    first, before = (explanation.exposure_table(one).rows[0] for one in (found, plain))
    day = plain.exposures[0].day
    assert first[0].endswith(f"2020-03-{day:02d}")
    assert first[2] == "48.1370 N 11.5750 W"
    assert (before[0], found.exposures[0].date) == (str(day), f"2020-03-{day:02d}")
    assert f", on {found.title(1 + int(np.argmax(found.by_day)))}." in str(found)
    # Other names are those of the user.
    named = replace(cells, names=tuple(f"room {one}" for one in range(number)))
    assert named.title(2) == "room 2"


def test_the_report_takes_one_risk_of_somebody_not_tested_apart(reported):
    text = (reported / "report.html").read_text()
    assert "One risk explained" in text
    assert "risk that Falcon Field gives to an untested person" in text
    assert f"epifalcon explain {reported} PERSON" in text
    assert "Falcon Field; Soft DCT, ratio: no protection" in text
    assert (reported / "figures" / "explanation.svg").is_file()
    rows = pl.read_csv(reported / "figures" / "explanation.csv")
    assert rows["share"].sum() == pytest.approx(1)


def imported(inputs):
    """The same people as if their traces had been read from a file."""
    origin = store.Origin({"import": {}}, None, {})
    return replace(inputs, prepared=replace(inputs.prepared, city_origin=origin))


@pytest.mark.parametrize("real", ["tests", "traces"])
def test_the_report_of_real_people_shows_nobody_s_days(computed, real):
    inputs, outcomes = copied_run(computed[0], f"real-{real}"), computed[1]
    if real == "tests":
        inputs = replace(inputs, epidemic=None)
        outcomes = [replace(one, evaluation=None) for one in outcomes]
    else:
        inputs = imported(inputs)
    write_results(inputs, outcomes)
    page = (inputs.folder / "report.html").read_text()
    assert "Largest exposures" not in page
    assert "of one person not tested" not in page
    assert "Omitted: the people are real" in page
    assert list((inputs.folder / "figures").glob("explanation*")) == []


def test_a_page_is_self_contained(run, tmp_path, stored_page):
    found = explain(run, "11")
    explanation.write_page(tmp_path / "page", found, "epifalcon explain run 11")
    page = (tmp_path / "page" / "explanation.html").read_text()
    assert f"{found.risk:.1%}" in page
    assert "http" not in page
    few = page.replace(explanation.exposure_table(found).rows[0][2], "REGION")
    plain = json.loads((tmp_path / "page" / "explanation.json").read_text())
    assert plain["before"] + sum(plain["by_day"]) == pytest.approx(1)
    assert len(explanation.day_lines(found)) == 1 + run.traces.clock.days
    untested = explanation.sentences(found, tested=False)
    assert "tests" not in untested[0]
    stored_page(few.partition("<tbody>")[0], "explanation")


def test_a_method_without_a_field_is_refused(run):
    with pytest.raises(SettingsError, match="soft-dct-ratio has no risks by place"):
        explain(FinishedRun.open(run.folder, "soft-dct-ratio"), "1")


def test_risks_of_new_people_do_not_depend_on_each_other_or_on_order(run):
    one = NewPeople(*chosen_people(run.traces, run.known, [5]))
    more = NewPeople(*chosen_people(run.traces, run.known, [30, 5, 61]))
    alone, several = score(run, one).risks, score(run, more).risks
    assert several.probability[1] == alone.probability[0]
    assert several.now[1] == pytest.approx(alone.now[0], abs=1e-12)
    assert score(run, more).spent is None
    # One who stays elsewhere all the time has another risk.
    assert several.probability[0] != alone.probability[0]


def test_new_people_from_files_equal_those_of_the_folder(run, tmp_path):
    write_visits(run, tmp_path / "new.csv", [5, 30], 1, run.traces.clock.days)
    tests = write_tests(run, tmp_path / "tests.csv", [5, 30])
    paths = tmp_path / "new.csv", tmp_path / "tests.csv"
    files = NewPeople.from_files(*paths, run.traces, ImportFormat())
    folder = NewPeople(*chosen_people(run.traces, run.known, [5, 30]))
    np.testing.assert_array_equal(files.traces.by_slot, folder.traces.by_slot)
    assert files.known.tested.sum() == len({person for person, _, _ in tests})
    ours, theirs = score(run, files).risks, score(run, folder).risks
    np.testing.assert_array_equal(ours.probability, theirs.probability)
    (tmp_path / "tests.csv").write_text("person,day,result\nzoe,1,positive\n")
    with pytest.raises(DataError, match="person 'zoe' has no visit"):
        NewPeople.from_files(*paths, run.traces, ImportFormat())


def test_other_days_are_refused_with_a_remedy(run):
    traces, known = chosen_people(run.traces, run.known, [5])
    clock = replace(traces.clock, days=1)
    short = replace(traces, by_slot=traces.by_slot[:12].copy(), clock=clock)
    people = NewPeople(short, known.of_people(np.zeros(1, np.bool_)))
    with pytest.raises(DataError, match="epifalcon update"):
        score(run, people)


def test_a_run_with_noise_stores_no_messages_and_can_be_read(tmp_path):
    inputs, outcomes = made(tmp_path / "run", mode="sums", epsilon=50.0)
    finish(inputs)
    guarantee = run_tables.guarantee(outcomes[0])
    assert guarantee.epsilon == pytest.approx(50, rel=0.01)
    assert not guarantee.trained
    run = FinishedRun.open(inputs.folder)
    assert not (run.place / "prediction" / "messages").exists()
    listed, found = run.risks(), explain(run, "3")
    assert found.risk == pytest.approx(listed.probability[3], abs=1e-6)
    some = NewPeople(*chosen_people(run.traces, run.known, [3]))
    scored = score(run, some).risks
    assert scored.probability[0] == pytest.approx(listed.probability[3], abs=1e-6)
    with pytest.raises(SettingsError, match="with noise"):
        daily_update.window_of(run, WindowSettings())


def test_a_run_may_store_nothing(tmp_path):
    field = town.experiment().field
    transmission = replace(field.region, transmission="fixed")
    field = replace(field, save_messages=False, folds=0, sweeps=2, region=transmission)
    inputs = town.inputs(tmp_path / "run", method="falcon-field", field=field)
    create_run_folder(inputs)
    run_method(inputs, "falcon-field", OPTIONS)
    finish(inputs)
    with pytest.raises(DataError, match=r"field\.save_messages"):
        explain(FinishedRun.open(inputs.folder), "3")
