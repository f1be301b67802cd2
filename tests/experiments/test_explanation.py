"""Explanations of a finished run of the field, and what newcomers are told there."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from epifalcon import store
from epifalcon.belief_propagation.settings import WindowSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments import daily_update, explanation, run_tables
from epifalcon.experiments.explanation import explain
from epifalcon.experiments.prediction import NewPeople, score
from epifalcon.experiments.run_folder import FinishedRun, begin, finish
from epifalcon.experiments.run_methods import run_method
from epifalcon.experiments.run_report import keep_results
from tests.experiments.field_runs import LISTENERS, made, write_tests, write_visits
from tests.experiments.finished_runs import chosen_people
from tests.studies import town


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A run of the field, nothing reported."""
    return made(tmp_path_factory.mktemp("field") / "run", ("soft-dct-ratio",))


def copied(begun, name):
    folder = begun.folder.parent / name
    shutil.copytree(begun.folder, folder)
    return replace(begun, folder=folder)


@pytest.fixture(scope="module")
def reported(computed):
    begun = copied(computed[0], "reported")
    keep_results(begun, computed[1])
    return begun.folder


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
    assert "rule it out" in explanation.sentences(healthy)[1]


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


def test_the_report_takes_one_risk_of_somebody_not_tested_apart(reported):
    text = (reported / "report.html").read_text()
    assert "One risk explained" in text
    assert "points at the other one" in text
    assert "still are at the end of the last day" in text
    assert "Falcon Field; Soft DCT, ratio: nothing is protected" in text
    assert (reported / "figures" / "explanation.svg").is_file()
    rows = pl.read_csv(reported / "figures" / "explanation.csv")
    assert rows["share"].sum() == pytest.approx(1)


def imported(begun):
    """The same people as if their traces had been read from a file."""
    origin = store.Origin({"import": {}}, None, {})
    return replace(begun, prepared=replace(begun.prepared, city_origin=origin))


@pytest.mark.parametrize("real", ["tests", "traces"])
def test_the_report_of_real_people_shows_nobody_s_days(computed, real):
    begun, outcomes = copied(computed[0], f"real-{real}"), computed[1]
    if real == "tests":
        begun = replace(begun, epidemic=None)
        outcomes = [replace(one, evaluation=None) for one in outcomes]
    else:
        begun = imported(begun)
    keep_results(begun, outcomes)
    page = (begun.folder / "report.html").read_text()
    assert "Largest exposures" not in page
    assert "of one person not tested" not in page
    assert "Left out: the people are real" in page
    assert list((begun.folder / "figures").glob("explanation*")) == []


def test_a_page_says_it_and_needs_nothing_else(run, tmp_path, stored_page):
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


def test_newcomers_are_told_alike_alone_or_together_and_in_any_order(run):
    one = NewPeople(*chosen_people(run.traces, run.known, [5]))
    more = NewPeople(*chosen_people(run.traces, run.known, [30, 5, 61]))
    alone, several = score(run, one).risks, score(run, more).risks
    assert several.probability[1] == alone.probability[0]
    assert several.now[1] == pytest.approx(alone.now[0], abs=1e-12)
    assert score(run, more).spent is None
    # One who stays elsewhere all the time has another risk.
    assert several.probability[0] != alone.probability[0]


def test_newcomers_by_file_are_those_of_the_folder(run, tmp_path):
    write_visits(run, tmp_path / "new.csv", [5, 30], 1, run.traces.clock.days)
    tests = write_tests(run, tmp_path / "tests.csv", [5, 30])
    paths = tmp_path / "new.csv", tmp_path / "tests.csv"
    files = NewPeople.from_files(*paths, run.traces)
    folder = NewPeople(*chosen_people(run.traces, run.known, [5, 30]))
    np.testing.assert_array_equal(files.traces.by_slot, folder.traces.by_slot)
    assert files.known.tested.sum() == len({person for person, _, _ in tests})
    ours, theirs = score(run, files).risks, score(run, folder).risks
    np.testing.assert_array_equal(ours.probability, theirs.probability)
    (tmp_path / "tests.csv").write_text("person,day,result\nzoe,1,positive\n")
    with pytest.raises(DataError, match="person 'zoe' has no visit"):
        NewPeople.from_files(*paths, run.traces)


def test_other_days_are_refused_with_a_remedy(run):
    traces, known = chosen_people(run.traces, run.known, [5])
    clock = replace(traces.clock, days=1)
    short = replace(traces, by_slot=traces.by_slot[:12].copy(), clock=clock)
    people = NewPeople(short, known.of_people(np.zeros(1, np.bool_)))
    with pytest.raises(DataError, match="epifalcon update"):
        score(run, people)


def test_a_run_behind_noise_keeps_no_messages_and_can_be_read(tmp_path):
    begun, outcomes = made(tmp_path / "run", mode="sums", epsilon=50.0)
    finish(begun)
    guarantee = run_tables.guarantee(outcomes[0])
    assert guarantee.epsilon == pytest.approx(50, rel=0.01)
    assert not guarantee.trained
    run = FinishedRun.open(begun.folder)
    assert not (run.place / "prediction" / "messages").exists()
    listed, found = run.risks(), explain(run, "3")
    assert found.risk == pytest.approx(listed.probability[3], abs=1e-6)
    some = NewPeople(*chosen_people(run.traces, run.known, [3]))
    told = score(run, some).risks
    assert told.probability[0] == pytest.approx(listed.probability[3], abs=1e-6)
    with pytest.raises(SettingsError, match="behind noise"):
        daily_update.window_of(run, WindowSettings())


def test_a_run_may_store_nothing(tmp_path):
    field = town.experiment().field
    law = replace(field.region, law="one")
    field = replace(field, kept=False, folds=0, sweeps=2, region=law)
    begun = town.begun(tmp_path / "run", method="falcon-field", field=field)
    begin(begun)
    run_method(begun, "falcon-field", LISTENERS)
    finish(begun)
    with pytest.raises(DataError, match=r"field\.kept"):
        explain(FinishedRun.open(begun.folder), "3")
