"""A study's figures against those made by hand."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study import Cell, Reference
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.study_tables import as_csv, as_markdown
from tests.studies.method_results import trained
from tests.studies.study_results import earned, failed, made_up, tiny_study

METHODS = ("hgnn", "hbp", "dct", "oracle")


def study(**more):
    cells = [
        Cell(
            label="one",
            preset="hamlet",
            methods=METHODS,
            facts={"share": 0.5},
            against=(Reference("HBP", "one", "hbp"),),
            published={"dct": {"auc": 0.4}},
        ),
        Cell(
            label="two",
            preset="hamlet",
            overrides=("labels.label_share=0.3",),
            methods=("hbp",),
            titles={"hbp": "Ours"},
            against=(Reference("one", "one"),),
            then="sizes",
        ),
    ]
    return tiny_study("hamlet", cells=lambda _scale: cells, **more)


@pytest.fixture
def ran(tmp_path):
    return made_up(study(metrics=("auc", "dep")), tmp_path, seeds=3)


def row_of(result, cell, method):
    rows = result["rows"]
    return next(one for one in rows if (one["cell"], one["method"]) == (cell, method))


def skill(method):
    return 0.5 + len(method) % 5 / 2


def values(method, metric, seeds=(0, 1, 2)):
    return np.array([earned(seed, skill(method)).metrics[metric] for seed in seeds])


def assert_adjusted(gaps):
    """The smallest p is multiplied by the number of comparisons."""
    compared = [one for one in gaps if one["p"] is not None]
    wanted = min(1.0, len(compared) * min(one["p"] for one in compared))
    assert min(one["p_holm"] for one in compared) == pytest.approx(wanted)


def test_means_and_intervals_are_those_of_the_seeds(ran):
    row = row_of(study_result(ran), "one", "hgnn")
    auc = values("hgnn", "auc")
    half = stats.t.ppf(0.975, 2) * auc.std(ddof=1) / np.sqrt(3)
    interval = row["metrics"]["auc"]
    assert interval["mean"] == pytest.approx(auc.mean())
    assert interval["low"] == pytest.approx(auc.mean() - half)
    assert interval["high"] == pytest.approx(auc.mean() + half)
    assert row["seeds"] == [0, 1, 2]
    assert row["facts"] == {"share": 0.5}


def test_differences_are_paired_and_adjusted_without_the_ceiling(ran):
    result = study_result(ran)
    differences = {}
    for method in ("hgnn", "dct", "oracle"):
        gap = values(method, "auc") - values("hbp", "auc")
        found = row_of(result, "one", method)["differences"]["HBP"]["auc"]
        assert found["mean"] == pytest.approx(gap.mean())
        if gap.any():
            assert found["p"] == pytest.approx(stats.ttest_1samp(gap, 0).pvalue)
        differences[method] = found
    assert_adjusted([differences["hgnn"], differences["dct"]])
    assert differences["oracle"]["p_holm"] is None
    assert row_of(result, "one", "hbp")["differences"] == {}
    # The same method in another cell.
    assert row_of(result, "two", "hbp")["differences"]["one"]["auc"]["mean"] == 0


def test_rows_of_two_tables_held_against_one_reference_are_adjusted_together(tmp_path):
    first, _ = study().cells("hamlet")
    cells = [
        replace(first, label=label, methods=methods, group=label)
        for label, methods in (("one", ("hbp", "dct")), ("two", ("hgnn",)))
    ]
    both = tiny_study("hamlet", cells=lambda _scale: cells)
    result = study_result(made_up(both, tmp_path, seeds=3))
    gaps = [
        row_of(result, *place)["differences"]["HBP"]["auc"]
        for place in (("one", "dct"), ("two", "hgnn"))
    ]
    assert [one["compared"] for one in gaps] == [2, 2]
    assert_adjusted(gaps)


def test_follow_up_values_are_in_the_row_of_the_run(ran):
    row = row_of(study_result(ran), "two", "hbp")
    assert row["title"] == "Ours"
    assert row["figures"]["incidences"]["mean"] == pytest.approx(0.2)
    # Four methods of four CPU-seconds and one, thrice, and three follow-ups of 3.6 s.
    hours = (5 * 3 * 4.0 + 3 * 3.6) / 3600
    assert study_result(ran)["cpu_hours"] == pytest.approx(hours)


def test_learning_rates_and_steps_stand_by_seed(ran):
    values = {0: (0.01, 85, False), 1: (0.003, 500, True), 2: (0.01, 120, False)}
    found_ = {**ran.results, "one": trained(ran.results["one"], "hgnn", values)}
    result = study_result(StudyRun(ran.study_plan, found_))
    row = row_of(result, "one", "hgnn")
    assert row["learning_rate"] == [0.01, 0.003, 0.01]
    assert row["steps"] == [85, 500, 120]
    assert row["at_limit"] is True
    assert "learning_rate" not in row["figures"]
    assert row_of(result, "one", "hbp")["at_limit"] is None
    note = "limit of training steps: Method (1 of 12 runs)"
    assert any(one.endswith(note) for one in result["notes"])
    lines = csv.DictReader(io.StringIO(as_csv(ran.study_plan.study, result)))
    line = next(one for one in lines if one["method"] == "hgnn")
    cells = [line[name] for name in ("learning_rate", "steps", "at_limit")]
    assert cells == ["0.01 0.003 0.01", "85 500 120", "true"]
    assert note in as_markdown(ran.study_plan.study, result)


def test_a_failed_run_is_reported_only_in_its_row(ran):
    broken = failed(failed(ran, "one", "dct", 1), "one", "hgnn", 0, "no\nmemory")
    result = study_result(broken)
    row = row_of(result, "one", "dct")
    assert row["failed"] == "seed 1: it broke"
    assert row["seeds"] == [0, 2]
    assert row["metrics"]["auc"]["mean"] == pytest.approx(
        values("dct", "auc", (0, 2)).mean()
    )
    assert row["differences"]["HBP"]["auc"]["seeds"] == 2
    assert row_of(result, "one", "hbp")["failed"] is None
    assert any(note.endswith("(one): seed 0: no memory") for note in result["notes"])


def test_who_loses_less_has_won(tmp_path):
    ran = made_up(study(metrics=("auc", "log_loss")), tmp_path, seeds=3)
    gap = row_of(study_result(ran), "one", "hgnn")["differences"]["HBP"]
    assert values("hgnn", "log_loss").mean() != values("hbp", "log_loss").mean()
    for metric, sign in (("auc", 1), ("log_loss", -1)):
        better = sign * (values("hgnn", metric) - values("hbp", metric)) > 0
        assert gap[metric]["wins"] == better.sum()
