"""A comparison as a study with one cell: what only its result and files have."""

from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.experiments.run_folder import RECALLS, MethodFailure
from epifalcon.reports import plot_style
from epifalcon.studies.compare import Comparison, compare, plan_of
from epifalcon.studies.scheduler import StudyRun
from epifalcon.studies.study_report import write_comparison
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.study_tables import recalibration_tables, terminal_tables
from tests.studies.method_results import found, method_result, plan


def compared(folder, given, preset="hamlet"):
    seeds = list(next(iter(given.values())))
    study_plan = plan_of(plan(folder, given, seeds, preset))
    result = study_result(StudyRun(study_plan, {preset: given}))
    return study_plan, result, {row["method"]: row for row in result["rows"]}


def test_the_best_comes_first_and_references_are_subtracted(tmp_path):
    skills = {"gcn": 0.9, "hgnn": 1.0, "hbp": 1.2, "dct": 0.1}
    study_plan, result, rows = compared(tmp_path, found(skills))
    assert [row["method"] for row in result["rows"]] == ["hbp", "hgnn", "gcn", "dct"]
    assert result["references"] == ["hgnn", "hbp"]
    assert set(rows["gcn"]["differences"]) == {"hgnn", "hbp"}
    assert set(rows["hgnn"]["differences"]) == {"hbp"}
    assert rows["gcn"]["differences"]["hbp"]["auc"]["compared"] == 3
    (table,) = terminal_tables(study_plan.study, result)
    assert list(table.columns) == [
        "method", "protocol", "AUC", "DEP", "F1", "BEP", "log loss",
    ]  # fmt: skip
    assert "Methods on hamlet: 300 hidden people" in table.caption


def test_nothing_at_all_is_still_a_result(tmp_path):
    _, result, rows = compared(tmp_path, {"gcn": {0: MethodFailure("gone")}})
    assert result["prevalence"] is result["hidden_people"] is None
    assert rows["gcn"]["recalibrated"]["platt"]["brier"]["mean"] is None
    assert rows["gcn"]["seconds"] is rows["gcn"]["peak_rss_mb"] is None
    assert result["notes"] == ["GCN: seed 0: gone"]
    assert result["curves"][""]["methods"] == {}


def test_a_method_above_the_ceiling_is_noted(tmp_path):
    skills = {"oracle": 0.8, "gcn": 2.0, "gat": 0.5}
    _, result, _ = compared(tmp_path, found(skills, seeds=range(5)))
    (note,) = result["notes"]
    assert note.startswith("GCN is above the ceiling ORACLE: check for a leak")


def test_the_paper_stands_beside_ours_for_its_presets(tmp_path):
    given = found({"graph-wavenet": 1.0, "hbp": 1.0, "dct": 1.0})
    _, _, rows = compared(tmp_path, given, "larger-sars")
    assert rows["graph-wavenet"]["published"]["auc"] == 0.7254
    assert rows["dct"]["published"] == {"f1": 0.3949, "accuracy": 0.3311}
    assert rows["hbp"]["published"] is None
    assert compared(tmp_path, given)[2]["graph-wavenet"]["published"] is None


def test_recalibration_has_every_scaling_and_what_was_left(tmp_path):
    given = found({"gcn": 1.0, "dct": 1.0})
    given["dct"][1] = method_result(1, left_raw="nobody is masked")
    study_plan, result, rows = compared(tmp_path, given)
    for name in ("brier", "log_loss", "ece"):
        scaled = rows["gcn"]["recalibrated"]
        raw = rows["gcn"]["metrics"][name]["mean"]
        assert scaled["raw"][name]["mean"] == pytest.approx(raw)
        assert scaled["platt"][name]["mean"] < raw
    (table,) = recalibration_tables(study_plan.study, result)
    assert {row[0]: row[-1] for row in table.rows}["DCT"] == "nobody is masked"


def test_curves_are_means_and_sums_over_seeds_that_have_one(tmp_path):
    given = found({"gcn": 1.0})
    given["gcn"][2] = replace(given["gcn"][2], precision=np.full(len(RECALLS), np.nan))
    drawn = compared(tmp_path, given)[1]["curves"][""]["methods"]["gcn"]
    held = [given["gcn"][0], given["gcn"][1]]
    np.testing.assert_allclose(
        drawn["precision"], np.mean([one.precision for one in held], axis=0)
    )
    np.testing.assert_allclose(
        drawn["reliability"], held[0].reliability + held[1].reliability
    )


def test_files_are_written_once(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(
        plot_style,
        "save",
        lambda _figure, path: (saved.append(path.name), path.write_bytes(b"\x89PNG")),
    )
    given = found({"gcn": 0.9, "hgnn": 1.0})
    given["gcn"][1] = MethodFailure("boom | bang")
    study_plan, result, _ = compared(tmp_path, given)
    page = write_comparison(study_plan, result)
    write_comparison(study_plan, result)
    assert sorted(saved) == [
        "differences.png", "precision-recall.png", "reliability.png",
    ]  # fmt: skip
    assert page.read_text().count("<figure") == 3
    text = (tmp_path / "table.md").read_text()
    assert "boom \\| bang" in text
    assert "## Recalibration on masked people" in text
    write_comparison(study_plan, {**result, "notes": ["another"]})
    assert len(saved) == 6


INTERVAL = {"mean": 0.7, "low": 0.6, "high": 0.8}
NOTHING = dict.fromkeys(INTERVAL)


def result_row(method, over, seeds):
    return {
        "method": method,
        "title": method.upper(),
        "kind": "paper",
        "seeds": seeds,
        "metrics": {"auc": over},
        "seconds": 1.5 if seeds else None,
    }


def test_a_row_per_method_also_for_one_that_failed(tmp_path):
    rows = [result_row("hbp", INTERVAL, [0, 1]), result_row("gcn", NOTHING, [])]
    table = Comparison(tmp_path, {"metrics": ["auc"], "rows": rows}).table
    assert table.rows() == [
        ("hbp", "HBP", "paper", 2, 0.7, 0.6, 0.8, 1.5),
        ("gcn", "GCN", "paper", 0, None, None, None, None),
    ]
    assert table.columns[4:7] == ["auc", "auc_low", "auc_high"]


def test_wrong_requests_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(SettingsError, match=r"unknown method 'gnc'.*'gcn'"):
        compare(tmp_path / "out", methods=["gnc"])
    with pytest.raises(SettingsError, match="seeds=0"):
        compare(tmp_path / "out", methods=["hbp"], seeds=0)
    with pytest.raises(SettingsError, match="no such file"):
        compare(tmp_path / "out", sources=[tmp_path / "own.py"])
    assert not list(tmp_path.iterdir())
