from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from epifalcon.studies.comparison import LEVEL, METRICS, comparison, curves
from epifalcon.studies.measurements import RECALLS, Failed
from tests.studies.measured_figures import found, measured, plan, trained

SKILLS = {"gcn": 0.9, "hgnn": 1.0, "hbp": 1.2, "oracle": 3.0}


def compared(tmp_path, given, name="hamlet"):
    seeds = list(next(iter(given.values())))
    result = comparison(plan(tmp_path, given, seeds, name), given)
    return result, {row["method"]: row for row in result["rows"]}


def test_rows_stand_by_auc_and_tell_what_is_no_method(tmp_path):
    given = found(SKILLS)
    result, rows = compared(tmp_path, given)
    assert [row["method"] for row in result["rows"]] == ["oracle", "hbp", "hgnn", "gcn"]
    assert [row["kind"] for row in result["rows"]] == [
        "ceiling", "reference", "paper", "paper",
    ]  # fmt: skip
    for name, row in rows.items():
        for metric in METRICS:
            values = [one.metrics[metric] for one in given[name].values()]
            half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3)
            low, high = np.mean(values) - half, np.mean(values) + half
            found_of = row["metrics"][metric]
            assert found_of["mean"] == pytest.approx(np.mean(values))
            assert found_of["low"] == pytest.approx(low)
            assert found_of["high"] == pytest.approx(high)
        assert row["seconds"] == 3
        assert row["peak_rss_mb"] == 302


def test_differences_are_paired_and_adjusted_among_methods_alone(tmp_path):
    given = found(SKILLS | {"gat": 0.5}, seeds=range(4))
    _, rows = compared(tmp_path, given)

    def aucs(name):
        return [one.metrics["auc"] for one in given[name].values()]

    raw = {}
    for name in ("gcn", "gat", "hbp", "oracle"):
        held = rows[name]["differences"]["hgnn"]["auc"]
        gap = np.subtract(aucs(name), aucs("hgnn"))
        test = stats.ttest_rel(aucs(name), aucs("hgnn"))
        low, high = test.confidence_interval(LEVEL)
        assert held["mean"] == pytest.approx(gap.mean())
        assert held["low"] == pytest.approx(low)
        assert held["high"] == pytest.approx(high)
        assert held["p"] == pytest.approx(test.pvalue)
        assert held["wins"] == (gap > 0).sum()
        raw[name] = held["p"]
    # Holm: the smallest of three times 3, then the next times 2; not the ceiling.
    judged = sorted((raw[name], name) for name in ("gcn", "gat", "hbp"))
    largest = 0.0
    for place, (p, name) in enumerate(judged):
        largest = max(largest, min(1.0, (3 - place) * p))
        held = rows[name]["differences"]["hgnn"]["auc"]
        assert held["p_holm"] == pytest.approx(largest)
    assert rows["oracle"]["differences"]["hgnn"]["auc"]["p_holm"] is None
    assert rows["hgnn"]["differences"]["hgnn"] is None


def test_learning_rates_and_steps_stand_by_seed(tmp_path):
    values = {0: (0.01, 85, False), 1: (0.003, 300, True), 2: (0.01, 120, False)}
    result, rows = compared(tmp_path, trained(found(SKILLS), "gcn", values))
    gcn = rows["gcn"]
    assert gcn["learning_rate"] == [0.01, 0.003, 0.01]
    assert gcn["steps"] == [85, 300, 120]
    assert gcn["at_limit"] is True
    assert [one["at_limit"] for one in gcn["by_seed"]] == [False, True, False]
    (note,) = result["notes"]
    assert note.endswith("limit of training steps: GCN (1 of 3 runs)")
    for name in ("learning_rate", "steps", "at_limit"):
        assert rows["hbp"][name] is None


def test_one_seed_has_no_interval(tmp_path):
    _, rows = compared(tmp_path, found(SKILLS, seeds=[4]))
    held = rows["gcn"]["differences"]["hbp"]["auc"]
    for one in (rows["gcn"]["metrics"]["auc"], held):
        assert one["mean"] is not None
        assert one["low"] is one["high"] is None
    assert held["p"] is held["p_holm"] is None


def test_a_failed_seed_is_left_out_and_told(tmp_path):
    given = found(SKILLS)
    given["gcn"][1] = Failed("first\nline")
    given["gcn"][2] = Failed("first line")
    given["hbp"] = dict.fromkeys(given["hbp"], Failed("gone"))
    result, rows = compared(tmp_path, given)
    assert rows["gcn"]["failed"] == "seeds 1, 2: first line"
    assert rows["gcn"]["seeds"] == [0]
    value = given["gcn"][0].metrics["auc"]
    assert rows["gcn"]["metrics"]["auc"]["mean"] == value
    assert rows["gcn"]["differences"]["hgnn"]["auc"]["seeds"] == 1
    assert rows["gcn"]["differences"]["hbp"]["auc"]["mean"] is None
    assert result["rows"][-1]["method"] == "hbp"
    assert rows["hbp"]["metrics"]["auc"]["mean"] is None
    assert "HBP: seeds 0, 1, 2: gone" in result["notes"]


def test_nothing_at_all_is_still_a_result(tmp_path):
    given = {"gcn": {0: Failed("gone")}}
    result, rows = compared(tmp_path, given)
    assert result["prevalence"] is result["hidden_people"] is None
    assert rows["gcn"]["recalibrated"]["platt"]["brier"]["mean"] is None
    assert curves(given)["methods"] == {}


def test_a_method_above_the_ceiling_is_told(tmp_path):
    skills = {"oracle": 0.8, "gcn": 2.0, "gat": 0.5}
    result, _ = compared(tmp_path, found(skills, seeds=range(5)))
    assert len(result["notes"]) == 1
    assert result["notes"][0].startswith("GCN is above the ceiling ORACLE")


def test_the_paper_stands_beside_ours_for_its_presets(tmp_path):
    given = found({"graph-wavenet": 1.0, "hbp": 1.0, "dct": 1.0})
    _, rows = compared(tmp_path, given, "larger-sars")
    assert rows["graph-wavenet"]["published"]["auc"] == 0.7254
    assert rows["dct"]["published"] == {"f1": 0.3949, "accuracy": 0.3311}
    assert rows["hbp"]["published"] is None
    assert compared(tmp_path, given)[1]["graph-wavenet"]["published"] is None


def test_recalibration_tells_every_scaling_and_what_was_left(tmp_path):
    given = found({"gcn": 1.0, "dct": 1.0})
    given["dct"][1] = measured(1, left_raw="nobody is masked")
    _, rows = compared(tmp_path, given)
    for name in ("brier", "log_loss", "ece"):
        mean = {
            scaling: rows["gcn"]["recalibrated"][scaling][name]["mean"]
            for scaling in ("raw", "platt", "isotonic")
        }
        assert mean["raw"] == pytest.approx(rows["gcn"]["metrics"][name]["mean"])
        assert mean["platt"] < mean["raw"]
    assert rows["dct"]["left_raw"] == "nobody is masked"
    assert rows["gcn"]["left_raw"] is None


def test_curves_are_means_and_sums_over_seeds_that_have_one():
    given = found({"gcn": 1.0})
    empty = replace(given["gcn"][2], precision=np.full(len(RECALLS), np.nan))
    given["gcn"][2] = empty
    drawn = curves(given)["methods"]["gcn"]
    held = [given["gcn"][0], given["gcn"][1]]
    np.testing.assert_allclose(
        drawn["precision"], np.mean([one.precision for one in held], axis=0)
    )
    np.testing.assert_allclose(
        drawn["reliability"], held[0].reliability + held[1].reliability
    )
