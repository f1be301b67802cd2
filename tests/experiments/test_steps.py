"""Data, tests and evaluation as functions."""

import logging

import numpy as np
import pytest

from epifalcon.epidemic.labels import LabelSettings
from epifalcon.epidemic.pathogen import OMICRON, SARS_COV_2
from epifalcon.epidemic.seir import simulate
from epifalcon.epidemic.settings import OutbreakSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.evaluation.metrics import evaluate as metrics_of
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.simulation import make_city, run_epidemics
from epifalcon.experiments.steps import (
    draw_tests,
    evaluate,
    read_tests,
    read_visits,
    synthetic_city,
)
from epifalcon.mobility.synthetic import CitySettings

TOWN = CitySettings(people=60, regions=16, days=3)
STAYS = """person,start,end,place
a,2024-03-04T00:00,2024-03-04T12:00,home
b,2024-03-04T00:00,2024-03-04T12:00,home
b,2024-03-05T06:00,2024-03-05T10:00,work
"""


@pytest.fixture(scope="module")
def outbreak():
    rule = OutbreakSettings(seed_share=0.2)
    return simulate(synthetic_city(TOWN, seed=3), SARS_COV_2, rule, seed=3)


def test_a_preset_gives_its_city(tmp_path):
    path = tmp_path / "town.toml"
    path.write_text("[city]\npeople = 60\nregions = 16\ndays = 3\n")
    one, other = synthetic_city(str(path), seed=3), synthetic_city(TOWN, seed=3)
    np.testing.assert_array_equal(one.by_slot, other.by_slot)
    assert (synthetic_city(TOWN, seed=4).by_slot != one.by_slot).any()


@pytest.mark.parametrize(
    "rule",
    [
        OutbreakSettings(seed_count=9),
        OutbreakSettings(seed_count=9, regional_sigma=0.5, dispersion=0.3),
    ],
)
def test_outbreak_and_tests_are_those_of_a_run(rule):
    traces = synthetic_city(TOWN, seed=3)
    labels = LabelSettings(label_share=0.25, false_negative=0.2, test_days=(0, 2))
    experiment = Experiment(city=TOWN, outbreak=rule, labels=labels, pathogen=OMICRON)
    np.testing.assert_array_equal(traces.by_slot, make_city(experiment, 3).by_slot)
    expected = next(run_epidemics(experiment, traces, 5))
    outbreak = simulate(traces, OMICRON, rule, seed=5)
    tests, truth = draw_tests(outbreak, 0.25, seed=5, settings=labels)
    same = np.testing.assert_array_equal
    same(outbreak.infection_slot, expected.outbreak.infection_slot)
    same(outbreak.source_person, expected.outbreak.source_person)
    for name in ("person", "positive", "slot"):
        same(getattr(tests, name), getattr(expected.labels.known, name))
    held = truth.open("a test")
    same(held.infected, expected.labels.hidden.open("a test").infected)


def test_two_percent_are_infected_at_the_start_by_default():
    city = synthetic_city(CitySettings(people=150, regions=16, days=1), seed=1)
    assert simulate(city, SARS_COV_2, seed=1).seeds.sum() == 3


def test_only_held_out_people_are_evaluated(outbreak):
    tests, truth = draw_tests(outbreak, share=0.5, seed=1)
    risks = np.random.default_rng(1).random(60)
    held = truth.open("a test")
    recall = SARS_COV_2.extinction_recall
    expected = metrics_of(risks[held.person], held.infected, recall)
    assert evaluate(risks, truth) == expected
    other = risks.copy()
    other[tests.person] = 1 - other[tests.person]
    assert evaluate(other, truth) == expected
    assert evaluate(risks, truth, pathogen=OMICRON).extinction_recall > recall
    for wrong in (risks[held.person], risks[:, None]):
        with pytest.raises(DataError, match="one number per person"):
            evaluate(wrong, truth)
    with pytest.raises(DataError, match="not GroundTruth and ndarray"):
        evaluate(truth, risks)


def test_a_pathogen_is_no_name():
    with pytest.raises(SettingsError, match="such as SARS_COV_2, not Traces and str"):
        simulate(synthetic_city(TOWN), "flu")


def test_files_are_read_as_the_command_reads_them(tmp_path, caplog):
    (tmp_path / "stays.csv").write_text(STAYS.replace("person", "who"))
    (tmp_path / "tests.csv").write_text(
        "person,time,outcome\nb,2024-03-05,pos\na,2024-03-05,neg\nx,2024-03-05,neg\n"
    )
    traces = read_visits(
        tmp_path / "stays.csv", columns={"person": "who"}, timezone="Europe/Berlin"
    )
    assert (traces.names, traces.clock.start) == (("a", "b"), "2024-03-04")
    assert traces.clock.timezone == "Europe/Berlin"
    assert traces.regions.name(int(traces.by_slot[15, 1])) == "work"
    with caplog.at_level(logging.WARNING):
        tests = read_tests(
            tmp_path / "tests.csv", traces, columns={"result": "outcome"}
        )
    assert tests.status.tolist() == [0, 1]
    assert "1 of 3 rows refused (person is not in the traces: 1)" in caplog.text
    assert "2 tests have no kind: a positive result is taken as proof" in caplog.text
    caplog.clear()
    read_tests(
        tmp_path / "tests.csv", traces, kind="pcr", columns={"result": "outcome"}
    )
    assert "no kind" not in caplog.text
    one_day = read_visits(tmp_path / "stays.csv", columns={"person": "who"}, days=1)
    assert one_day.clock.days == 1


@pytest.mark.parametrize("form", ["%d.%m.%Y %H:%M", ["%d.%m.%Y", "%d.%m.%Y %H:%M"]])
def test_a_date_format_and_a_warning(form, tmp_path, caplog):
    path, tests = tmp_path / "stays.csv", tmp_path / "tests.csv"
    path.write_text(
        "person,start,end,place\na,04.03.2024 00:00,04.03.2024 12:00,home\n"
        "a,04.03.2024 08:00,04.03.2024 12:00,work\n"
    )
    tests.write_text("person,time,result\na,04.03.2024 10:00,pos\n")
    with caplog.at_level(logging.WARNING):
        traces = read_visits(path, date_format=form)
    assert "at least 1 of 2 stays begin before" in caplog.text
    assert read_tests(tests, traces, date_format=form).slot.tolist() == [5]


def test_bad_files_are_refused(tmp_path):
    path, tests = tmp_path / "stays.csv", tmp_path / "tests.csv"
    path.write_text(STAYS)
    with pytest.raises(SettingsError, match=r"kind='stay'.*did you mean 'stays'"):
        read_visits(path, kind="stay")
    tests.write_text("person,time,result\nx,2024-03-05,pos\na,2024-03-05,neg\n")
    with pytest.raises(DataError, match="not in the traces"):
        read_tests(tests, read_visits(path), strict=True)
