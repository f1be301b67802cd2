"""Expected infections by place and time, against explanations of single people."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from epifalcon.belief_propagation.settings import FieldSettings, WindowSettings
from epifalcon.errors import DataError, SettingsError
from epifalcon.experiments import daily_update, places
from epifalcon.experiments.explanation import explain
from epifalcon.experiments.run_folder import FinishedRun
from epifalcon.experiments.run_report import write_results
from epifalcon.methods.falcon_field import FalconField
from epifalcon.methods.hbp import Hbp
from tests.experiments.field_runs import made
from tests.studies import town


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    inputs, outcomes = made(tmp_path_factory.mktemp("places") / "run")
    write_results(inputs, outcomes)
    return FinishedRun.open(inputs.folder)


def test_infections_of_a_place_are_the_sum_over_people(run, monkeypatch):
    # Seven people at a time.
    monkeypatch.setattr(places, "_BLOCK", 7 * run.traces.slots)
    found = places.places_of_run(run)
    listed, expected, before = run.risks(), defaultdict(float), 0.0
    for person in range(run.traces.people):
        one = explain(run, str(person), tests=True)
        tested = listed.status[person] >= 0
        risk = one.risk if tested else listed.probability[person]
        before += risk * one.before
        for stay in one.exposures:
            expected[stay.region, stay.day] += risk * stay.share
    whole = found.table(10_000, "place-day")
    here = {(row["place"], row["day"]): row for row in whole.to_dicts()}
    for (place, day), value in expected.items():
        if place is not None and value > 1e-12:
            got = here[place, day]["expected_infections"]
            assert got == pytest.approx(value, rel=1e-6)
    assert found.before == pytest.approx(before, rel=1e-6)
    assert found.by_day.sum() == pytest.approx(sum(expected.values()), rel=1e-6)
    assert found.total == pytest.approx(found.by_day.sum())
    column = whole["expected_infections"]
    assert column.is_sorted(descending=True)
    by_place = found.table(10_000)
    summed = whole.group_by("place").agg(pl.col("expected_infections").sum())
    both = by_place.join(summed, on="place")
    assert len(both) == len(by_place)
    left, right = both["expected_infections"], both["expected_infections_right"]
    np.testing.assert_allclose(left, right)
    assert by_place["share"].sum() == pytest.approx(1 - found.unobserved / found.total)


def test_infections_of_a_state_are_those_of_its_window(run, monkeypatch):
    window = daily_update.window_of(run, WindowSettings(days=3, sweeps=2))
    monkeypatch.setattr(places, "_BLOCK", 7 * window.traces.slots)
    found = places.places_of_window(window)
    assert window.first_day == run.traces.clock.days - 2
    risks = daily_update.risks_of(window)
    total = found.total + found.before
    assert total == pytest.approx(risks.probability.sum(), rel=1e-9)
    expected, before = defaultdict(float), 0.0
    for person in range(run.traces.people):
        one = daily_update.explain_in_window(window, str(person), tests=True)
        before += one.risk * one.before
        for stay in one.exposures:
            expected[stay.region, stay.day] += one.risk * stay.share
    assert found.before == pytest.approx(before, rel=1e-9)
    # Earlier days left the window, but not the infections on them.
    assert before > 1
    for row in found.table(50, "place-day").to_dicts():
        value = expected[row["place"], row["day"]]
        assert row["expected_infections"] == pytest.approx(value, rel=1e-6)
    assert "before day 3." in places.summary_sentence(found)


def test_people_days_and_hours_of_a_place(run):
    found = places.places_of_run(run)
    clock, by_slot = run.traces.clock, run.traces.by_slot
    [row] = found.table(1, "place-day").to_dicts()
    region = next(
        number
        for number in range(len(run.traces.regions))
        if run.traces.regions.name(number) == row["place"]
    )
    slots = clock.slots_of_day(row["day"] - 1)
    assert row["people"] == (by_slot[slots] == region).any(axis=0).sum()
    [place] = found.table(1).to_dicts()
    assert place["people"] >= row["people"]
    infections = np.zeros_like(found.by_slot)
    infections[slots, 1 + region] = np.arange(clock.slots_per_day) == 2
    dated = replace(run.traces, clock=replace(clock, start="2024-02-01"))
    one = places.PlaceInfections(infections, 0.0, dated)
    [shown] = one.table().to_dicts()
    hour = clock.slot_hours
    assert shown["hours"] == f"{round(2 * hour):02d}:00-{round(3 * hour):02d}:00"
    assert shown["date"] == f"2024-02-{row['day']:02d}"
    weekdays = ["Thursday", "Friday", "Saturday", "Sunday", "Monday"]
    assert shown["weekday"] == weekdays[row["day"] - 1]
    assert (shown["expected_infections"], shown["share"]) == (1, 1)


def test_only_a_fit_with_messages_has_places():
    traces, tests = town.traces(), town.known()
    model = FalconField(field=FieldSettings(sweeps=3, folds=2)).fit(traces, tests)
    table = model.places(3, by="place-day")
    assert table.columns[:3] == ["place", "day", "date"]
    assert len(table) == 3
    with pytest.raises(SettingsError, match="by='day' must be one of"):
        model.places(by="day")
    with pytest.raises(SettingsError, match="top=0"):
        model.places(0)
    model.state = None
    with pytest.raises(DataError, match="save_messages=False"):
        model.places()
    with pytest.raises(SettingsError, match="hbp has no risks by place"):
        Hbp().fit(traces, tests).places()
