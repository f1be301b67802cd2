"""Sentences about a run hold the numbers they are about."""

import numpy as np
import pytest

from epifalcon.evaluation.metrics import curve, evaluate
from epifalcon.experiments import run_plots
from epifalcon.experiments.run_methods import Evaluation
from epifalcon.experiments.run_tables import findings, top_count, who_is_found
from tests.cli.runs import undrawn

TRUTH = np.arange(600) < 150


def evaluation(risk, truth, method="hgnn", title="HGNN", left=None):
    return Evaluation(
        method=method,
        title=title,
        metrics=evaluate(risk, truth, 0.8),
        person=np.arange(len(truth), dtype=np.int32),
        risk=risk,
        infected=truth,
        ranked=dict.fromkeys(("raw", "platt", "isotonic"), curve(risk, truth)),
        left_raw=left,
        isotonic=None,
    )


def noisy(method="falcon", title="Falcon, paper", noise=0.3, left=None):
    rng = np.random.default_rng(len(title))
    risk = np.clip(0.2 + 0.3 * TRUTH + noise * rng.normal(size=len(TRUTH)), 0, 1)
    return evaluation(risk, TRUTH, method, title, left)


def said(*methods):
    return " ".join(findings(methods, "hamlet"))


def test_people_are_counted():
    own = noisy()
    order = np.argsort(-own.risk, kind="stable")
    found = TRUTH[order[:100]].sum()
    called = int(np.argmax(np.cumsum(TRUTH[order]) >= 0.8 * 150)) + 1
    text = said(own)
    assert (
        f"Among the 100 hidden people with the highest risk by Falcon (paper), {found} "
        "are infected; among 100 chosen at random, 25 would be."
    ) in text
    assert f"This takes {called} of 600 people" in text
    assert [top_count(n) for n in (3, 10, 499, 500, 9000)] == [3, 10, 10, 100, 100]


def test_the_best_is_no_ceiling_and_chance_is_named():
    weak, strong = noisy(noise=3), noisy("hgnn", "HGNN", noise=0.1)
    text = said(weak, strong, noisy("oracle", "Oracle (no method)", 0.01))
    assert "HGNN has the highest AUC here" in text
    assert "larger than chance" in text
    assert "--methods falcon,hgnn,oracle --seeds 5" in text
    assert "AUC of ceilings, which use part of the ground truth: Oracle" in text
    assert "can be chance" in said(weak, noisy("hgnn", "HGNN", noise=3))
    assert "`--beside oracle`" in said(weak)
    table = who_is_found([noisy(), noisy("hgnn", "HGNN", noise=3)])
    assert [row[0] for row in table.rows] == ["Falcon, paper", "HGNN", "by chance"]
    assert table.rows[1][-1].startswith("-0.")
    assert table.rows[2][1] == "25"


ROUGH, RANK = "rough probabilities", "use them for ranking"


@pytest.mark.parametrize(
    ("people", "change", "words"),
    [
        (200, lambda c: c, ROUGH),
        (20_000, lambda c: 0.3 + 0.8 * (c - 0.3), ROUGH),
        (2000, lambda c: 0.3 + 0.05 * (c - 0.3), RANK),
        (2000, lambda c: np.maximum(c - 0.15, 0.01), RANK),
        (2000, lambda c: 0.6 - 0.2 * c, "may not even rank people"),
    ],
)
def test_risks_are_compared_with_what_came_true(people, change, words):
    chance = np.clip(0.3 + 0.28 * np.linspace(-1, 1, people), 0.01, 0.99)
    truth = np.random.default_rng(3).random(people) < chance
    assert words in said(evaluation(change(chance), truth))
    assert "Not recalibrated: too few" in said(noisy(left="too few"))


@pytest.mark.parametrize(("people", "groups"), [(20, 1), (95, 3), (1200, 10)])
def test_equal_groups_show_what_one_bin_would_hide(
    tmp_path, monkeypatch, people, groups
):
    monkeypatch.setattr("epifalcon.reports.plot_style.save", undrawn)
    rng = np.random.default_rng(1)
    truth = rng.random(people) < np.linspace(0, 0.6, people)
    one = evaluation(np.linspace(0.27, 0.29, people), truth)
    picture = run_plots.write_reliability(tmp_path, [one])
    lines = (tmp_path / "reliability.csv").read_text().splitlines()[1:]
    raw = [line.split(",") for line in lines if ",raw," in line]
    assert len(raw) == groups
    if people == 1200:
        shares = [float(cells[3]) for cells in raw]
        np.testing.assert_allclose(shares, truth.reshape(10, 120).mean(axis=1))
        assert one.metrics.ece < 0.03 < 0.1 < one.metrics.ece_mass
    assert f"equal groups: HGNN {one.metrics.ece_mass:.3f}" in picture.caption
