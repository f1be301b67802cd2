"""The report on test results of real people: numbers to expect, words, map."""

import html
import json
from dataclasses import replace
from datetime import date

import numpy as np
import polars as pl
import pytest

from epifalcon.epidemic.test_kinds import PCR
from epifalcon.epidemic.test_results import TestResults
from epifalcon.evaluation.calibration import fit_platt
from epifalcon.evaluation.tested_people import accuracy_on_tested
from epifalcon.experiments import own_data_report, run_plots
from epifalcon.experiments.expected_found import expected_found
from epifalcon.experiments.explanation import load_state
from epifalcon.experiments.places import place_infections
from epifalcon.experiments.run_methods import Outcome
from epifalcon.experiments.run_report import write_results
from epifalcon.methods.base import Scores
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.traces import Traces
from epifalcon.reports import plot_style
from tests.experiments.field_runs import made
from tests.experiments.finished_runs import copied_run


def some_tests(people, tested):
    person = np.arange(tested, dtype=np.int32)
    return TestResults(people, person, person % 3 == 0, np.zeros(tested, np.int32))


def test_the_interval_contains_the_number_found():
    rng = np.random.default_rng(3)
    known, risk = some_tests(1000, 100), rng.beta(0.5, 4, 1000)
    now = risk * rng.uniform(0.3, 1, 1000)
    masked = np.arange(100, dtype=np.int32)
    scores = Scores(risk, masked, risk[:100], now=now)
    found = expected_found("falcon-field", scores, known)
    listed = 100 + np.argsort(-risk[100:])
    np.testing.assert_allclose(found.expected, np.cumsum(now[listed])[:270])
    assert found.at_random == pytest.approx(now[100:].mean())
    # True infections of people with these risks, whose level is as uncertain as the
    # number of positive results of the tested people.
    tested = risk[:100].sum()
    level_sd = np.sqrt((risk[:100] * (1 - risk[:100])).sum()) / tested
    inside = []
    for _ in range(2000):
        level = max(rng.normal(1, level_sd), 0)
        number = (rng.random(270) < np.minimum(level * now[listed[:270]], 1)).sum()
        inside.append(found.low[-1] <= number <= found.high[-1])
    assert 0.93 < np.mean(inside) < 0.975
    alone = expected_found("falcon-field", replace(scores, masked_risk=None), known)
    assert not alone.checked
    spread = np.sqrt((now[listed[:10]] * (1 - now[listed[:10]])).sum())
    assert alone.high[9] - alone.expected[9] == pytest.approx(1.96 * spread)


def test_scores_that_are_no_probabilities_are_recalibrated_or_have_no_number():
    rng = np.random.default_rng(5)
    known, score = some_tests(300, 120), rng.random(300) / 5
    masked = np.arange(120, dtype=np.int32)
    scores = Scores(score, masked, score[:120])
    found = expected_found("gcn", scores, known)
    line = fit_platt(score[:120], known.status[:120] == 1)
    highest = np.sort(score[120:])[::-1][:10]
    assert (found.recalibrated, found.what) == (True, "ever")
    assert found.expected[9] == pytest.approx(line(highest).sum())
    # A third of the tested people is positive; the scores are at most .2.
    assert found.at_random == pytest.approx(1 / 3, abs=0.05)
    assert expected_found("gcn", Scores(score), known) is None
    assert expected_found("gcn", scores, some_tests(300, 300)) is None
    assert expected_found("hbp", Scores(score), known).what == "ever"


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return made(tmp_path_factory.mktemp("own") / "run")


@pytest.fixture(scope="module")
def written(computed):
    """A run on real people, with dates and names of places."""
    inputs, outcomes = copied_run(computed[0], "own"), computed[1]
    traces = inputs.reported
    dated = replace(
        traces,
        clock=replace(traces.clock, start="2024-02-28"),
        regions=replace(
            traces.regions, names=tuple(f"ward {n}" for n in range(len(traces.regions)))
        ),
    )
    prepared = replace(inputs.prepared, traces=dated)
    inputs = replace(inputs, epidemic=None, reported=dated, prepared=prepared)
    masked = np.flatnonzero(inputs.known.tested).astype(np.int32)
    scores = replace(
        outcomes[0].scores, masked=masked, masked_risk=outcomes[0].scores.risk[masked]
    )
    tested = accuracy_on_tested(
        scores.masked_risk,
        inputs.known.status[masked] == 1,
        np.random.default_rng(0),
        selected=False,
    )
    outcome = replace(outcomes[0], scores=scores, evaluation=None, tested=tested)
    return inputs, outcome, write_results(inputs, [outcome])


def test_the_page_answers_whom_how_sure_where_and_when(written):
    inputs, outcome, summary = written
    page = html.unescape((inputs.folder / "report.html").read_text())
    days = inputs.reported.clock.days
    last = date(2024, 2, 27 + days) if days < 3 else date(2024, 3, days - 2)
    assert f"at the end of {last:%A} {last.isoformat()}" in page
    stored = json.loads((inputs.folder / "summary.json").read_text())
    first = stored["expected_found"][0]
    sentence = (
        f"Of the {first['tests']} untested people with the highest risk, about "
        f"{first['expected']:.1f} are expected to be infected at the end of"
    )
    assert sentence in page
    assert any(sentence in said for said in summary.sentences)
    table = pl.read_csv(inputs.folder / "risks.csv")
    listed = table["risk_now"][: first["tests"]].sum()
    assert first["expected"] == pytest.approx(listed)
    for person in table["person"][:10]:
        assert f"<td>{person}</td>" in page or f'">{person}</td>' in page
    auc = outcome.tested.auc.estimate
    assert f"puts the positive one first in {100 * auc:.0f}" in page
    tested = inputs.known.tested.sum()
    for said in (page, "\n".join(summary.sentences)):
        assert f"{tested} of {inputs.reported.people} people (" in said
        assert "tested because: random (assumed)" in said
        assert "If people were tested at random, as assumed" in said
        assert "A test of kind ever says without error" in said
    assert stored["accuracy_scope"] in page
    assert stored["warnings"] == []
    state = (outcome.scores.risk, inputs.method_folder("falcon-field") / "prediction")
    places = pl.read_csv(inputs.folder / "tables" / "places.csv")
    assert places["place"][0].startswith("ward ")
    assert str(places["place"][0]) in page
    curve = pl.read_csv(inputs.folder / "figures" / "infections.csv")
    assert curve["day"][0] == "2024-02-28"
    assert len(curve) == days
    found = place_infections(
        *load_state(state[1]), inputs.reported, inputs.tests, state[0]
    )
    np.testing.assert_allclose(curve["expected_infections"], found.by_day)
    coverage = pl.read_csv(inputs.folder / "tables" / "coverage.csv")
    assert coverage["people"].sum() == inputs.reported.people
    assert "Disease: sars-cov-2 (assumed:" in page


def test_accuracy_on_people_tested_for_reasons_is_not_that_of_everybody(written):
    inputs = written[0]
    reason = np.arange(len(inputs.known.person)) % 3 - 1
    known = replace(inputs.known, reason=reason.astype(np.int8), kinds=(PCR,))
    inputs = replace(inputs, known=known)
    scope = own_data_report.accuracy_scope(inputs)
    assert "no random sample (tested because: random, contact)" in scope
    assert "Where contacts were the reason" in scope
    assert "symptoms" not in scope
    said = own_data_report.describe_tests(inputs)
    assert (
        "Kind of test: pcr; tested because: random, contact (random where not given"
        in said
    )
    assert "ever" not in said
    labels = replace(inputs.prepared.experiment.labels, tested_because="unknown")
    experiment = replace(inputs.prepared.experiment, labels=labels)
    prepared = replace(inputs.prepared, experiment=experiment)
    scope = own_data_report.accuracy_scope(replace(inputs, prepared=prepared))
    assert "tested because: random, contact, unknown" in scope
    assert "infected people without symptoms" in scope


def test_the_page_has_nothing_of_a_synthetic_city(written):
    page = (written[0].folder / "report.html").read_text()
    for word in ("Mobility statistics", "plausible band", "synthetic", "hidden people"):
        assert word not in page
    _, settings = page.split('id="settings"')
    for table in ("model", "privacy", "pseudo", "region", "rivals", "field_privacy"):
        assert f"\n[{table}]" not in settings
    for table in ("field", "outbreak", "pathogen"):
        assert f"[{table}]" in settings
    assert written[2].values["statistics"] == []
    assert not list((written[0].folder / "figures").glob("mobility*"))


def test_the_map_is_cut_to_where_people_are(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plot_style, "save", lambda figure, _: figures.append(figure))
    centre = np.array([[0.0, 0.0], [2.0, 1.0], [500.0, 900.0], [-400.0, 0.0]])
    names = ("home", "pub", "far <away>", "never")
    by_slot = np.zeros((24, 400), np.int32)
    by_slot[10:12, ::2] = 1
    # One person was far away for one slot.
    by_slot[5, 7] = 2
    traces = Traces(by_slot, Clock(1, 1), Regions("poi", centre, names=names))
    outcome = Outcome("hbp", Scores(np.full(400, 0.1)))
    shown = run_plots.write_risk_map(tmp_path, traces, outcome, [1, 0])
    low, high = figures[0].axes[0].get_xlim()
    assert -1 < low < 0
    assert 2 < high < 3
    assert "1 pub, 2 home" in shown.caption
    assert "far" not in shown.caption
    texts = [one.get_text() for one in figures[0].axes[0].texts]
    assert sorted(texts) == ["1", "2"]
