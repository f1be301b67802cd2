import csv
import io

import pytest

from epifalcon.studies.comparison import METRICS, comparison, curves
from epifalcon.studies.comparison_tables import (
    as_csv,
    as_markdown,
    full_tables,
    keep_comparison,
    short_table,
)
from epifalcon.studies.measurements import Failed
from tests.studies.measured_figures import found, plan, trained

SKILLS = {"gcn": 0.9, "hgnn": 1.0, "hbp": 1.2}


@pytest.fixture
def made(tmp_path):
    given = found(SKILLS)
    given["gcn"][1] = Failed("boom | bang")
    mine = plan(tmp_path, given, name="larger-sars")
    return mine, comparison(mine, given), curves(given)


def test_the_short_table_has_ours_the_papers_and_differences(made):
    _, result, _ = made
    table = short_table(result)
    assert list(table.columns[:3]) == ["method", "AUC", "paper's"]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    hbp = result["rows"][0]
    auc = hbp["metrics"]["auc"]
    half = auc["high"] - auc["mean"]
    assert rows["HBP"]["AUC"] == f"{auc['mean']:.3f} ± {half:.3f}"
    assert rows["HGNN"]["paper's"] == "0.751"
    assert rows["HBP"]["paper's"] == "-"
    gap = hbp["differences"]["hgnn"]["auc"]["mean"]
    assert rows["HBP"]["- HGNN"] == f"{gap:+.3f}"
    assert rows["HGNN"]["- HGNN"] == "-"
    assert "GCN (in part)" in rows
    assert "mean of 3 seeds" in table.caption


def test_a_preset_with_layers_is_named(made):
    _, result, _ = made
    assert " of " not in short_table(result).caption.partition(",")[0]
    world = {**result, "preset": "hamlet+regional-1.5"}
    for table in (short_table(world), full_tables(world)[0]):
        assert "hidden people of hamlet+regional-1.5, " in table.caption


def test_the_csv_has_every_figure(made):
    _, result, _ = made
    lines = list(csv.DictReader(io.StringIO(as_csv(result))))
    assert [line["method"] for line in lines] == [
        row["method"] for row in result["rows"]
    ]
    for line, row in zip(lines, result["rows"], strict=True):
        for name in METRICS:
            for end in ("mean", "low", "high"):
                told = row["metrics"][name][end]
                assert float(line[f"{name}_{end}"]) == told
        assert line["failed"] == (row["failed"] or "")


def test_training_stands_in_the_csv_and_the_limit_in_markdown_and_page(tmp_path):
    values = {0: (0.01, 85, False), 1: (0.003, 300, True), 2: (0.01, 120, False)}
    given = trained(found(SKILLS), "gcn", values)
    mine = plan(tmp_path, given)
    result = comparison(mine, given)
    lines = {
        line["method"]: line for line in csv.DictReader(io.StringIO(as_csv(result)))
    }
    told = [lines["gcn"][name] for name in ("learning_rate", "steps", "at_limit")]
    assert told == ["0.01 0.003 0.01", "85 300 120", "true"]
    assert lines["hbp"]["learning_rate"] == lines["hbp"]["at_limit"] == ""
    keep_comparison(mine, result, curves(given))
    for suffix in (".md", ".html"):
        page = (tmp_path / f"comparison{suffix}").read_text()
        assert "limit of training steps: GCN (1 of 3 runs)" in page


def test_markdown_keeps_cells_in_their_columns(made):
    _, result, _ = made
    text = as_markdown(result)
    for table in full_tables(result):
        assert f"## {table.caption}" in text
    for line in text.splitlines():
        if line.startswith("| GCN"):
            assert "boom | bang" not in line
    assert "boom \\| bang" in text
    assert "## Notes" in text
    assert "| Falcon" not in text


def test_all_tables_are_whole(made):
    _, result, _ = made
    tables = full_tables(result)
    captions = [table.caption for table in tables]
    assert "Minus HGNN" in captions
    assert "Minus HBP" in captions
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_files_are_written_once(made, monkeypatch):
    mine, result, drawn = made
    saved = []
    monkeypatch.setattr(
        "epifalcon.studies.figures.save",
        lambda _figure, path: (saved.append(path.name), path.write_bytes(b"\x89PNG")),
    )
    keep_comparison(mine, result, drawn)
    keep_comparison(mine, result, drawn)
    assert sorted(saved) == [
        "differences.png", "precision-recall.png", "reliability.png",
    ]  # fmt: skip
    assert sorted(path.suffix for path in mine.folder.glob("comparison.*")) == [
        ".csv", ".html", ".json", ".md",
    ]  # fmt: skip
    page = (mine.folder / "comparison.html").read_text()
    assert page.count("<figure") == 3
    keep_comparison(mine, {**result, "notes": ["another"]}, drawn)
    assert len(saved) == 6
