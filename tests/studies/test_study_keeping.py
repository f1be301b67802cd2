"""The folder of a study: what stands in it, and what it may replace."""

import csv
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, WriteError
from epifalcon.studies import study_list
from epifalcon.studies.study import Drawn
from epifalcon.studies.study_keeping import finished_studies, keep_study, require_free
from epifalcon.studies.study_list import find_study
from epifalcon.studies.study_report import write_report
from epifalcon.studies.study_rows import study_result
from tests.studies.study_results import failed, made_up, tiny_study


def square(_result):
    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([0, 1])
    return {"square": Drawn(figure, "A line & <more>.")}


@pytest.fixture
def ran(tmp_path):
    study = tiny_study("hamlet", ("hbp", "dct"), square, metrics=("auc", "dep"))
    return made_up(study, tmp_path / "work", seeds=3)


@pytest.fixture
def kept(ran, tmp_path):
    out = tmp_path / "results" / "tiny"
    keep_study(out, ran.planned, study_result(ran))
    return out


def test_every_file_is_there(kept, ran):
    there = {path.relative_to(kept).as_posix() for path in kept.rglob("*")}
    assert there == {
        "table.csv", "table.json", "table.md", "command.txt", "report.html",
        "manifest.json", "figures", "figures/square.png", "figures/square.svg",
    }  # fmt: skip
    result = json.loads((kept / "table.json").read_text())
    assert len(result["rows"]) == 4
    command, _, hours, versions = (kept / "command.txt").read_text().splitlines()
    assert command == "epifalcon study run tiny --scale hamlet --seeds 3"
    assert float(hours.removeprefix("CPU-hours ")) == pytest.approx(
        ran.cpu_hours, abs=0.01
    )
    assert "epifalcon " in versions
    page = (kept / "report.html").read_text()
    assert "A line &amp; &lt;more&gt;." in page
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_csv_has_the_figures_of_the_json(kept):
    rows = json.loads((kept / "table.json").read_text())["rows"]
    with (kept / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    for row, line in zip(rows, lines, strict=True):
        assert (line["cell"], line["method"]) == (row["cell"], row["method"])
        assert float(line["auc_mean"]) == row["metrics"]["auc"]["mean"]
        assert float(line["dep_low"]) == row["metrics"]["dep"]["low"]
        assert float(line["seconds_mean"]) == row["figures"]["seconds"]["mean"]
        assert line["scale"] == "hamlet"


def test_the_same_again_gives_the_same_bytes(kept, ran):
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    keep_study(kept, ran.planned, study_result(ran))
    after = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    assert after == before


def test_a_failure_is_told_on_the_page(ran, tmp_path):
    out = tmp_path / "out"
    broken = failed(ran, "whole", "dct", 1, "no memory | left")
    keep_study(out, broken.planned, study_result(broken))
    text = (out / "table.md").read_text()
    assert "(in part)" in text
    assert "seed 1: no memory \\| left" in text
    assert "no memory | left" in (out / "report.html").read_text()


def test_another_scale_or_study_is_not_replaced(kept, ran, tmp_path):
    require_free(kept, ran.planned)
    full = made_up(ran.planned.study, tmp_path / "w", scale="full")
    with pytest.raises(
        WriteError, match="holds study tiny at scale hamlet, not tiny a"
    ):
        require_free(kept, full.planned)
    with pytest.raises(WriteError, match="at scale hamlet, not tiny at full"):
        keep_study(kept, full.planned, study_result(full))
    (kept / "mine.txt").write_text("notes")
    with pytest.raises(WriteError, match=r"mine\.txt"):
        require_free(kept, ran.planned)


def test_many_seeds_at_full_size_are_not_replaced_by_few(ran, tmp_path):
    out = tmp_path / "many"
    study = ran.planned.study
    many = made_up(study, tmp_path / "w", scale="full", seeds=3)
    few = made_up(study, tmp_path / "w", scale="full", seeds=2)
    keep_study(out, many.planned, study_result(many))
    with pytest.raises(WriteError, match="holds 3 seeds, 2 are asked for"):
        require_free(out, few.planned)
    require_free(out, many.planned)
    town = made_up(study, tmp_path / "w", seeds=3)
    keep_study(tmp_path / "town", town.planned, study_result(town))
    require_free(tmp_path / "town", made_up(study, tmp_path / "w").planned)


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(ran, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="cannot be written: Not a directory"):
        require_free(tmp_path / "file" / "results", ran.planned)
    with pytest.raises(WriteError, match="cannot be written"):
        require_free(Path("/proc/nothing/here"), ran.planned)
    before = sorted(tmp_path.iterdir())
    require_free(tmp_path / "new" / "deep" / "results", ran.planned)
    # The trial leaves nothing behind.
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_not_a_study_is_left_alone(ran, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").write_text("x")
    with pytest.raises(WriteError, match="not made by epifalcon"):
        require_free(other, ran.planned)
    (other / "mine").unlink()
    store.write_manifest(other, "city", meta={}, origin=store.Origin())
    with pytest.raises(WriteError, match="holds 'city', not a study"):
        require_free(other, ran.planned)


@pytest.fixture
def known(monkeypatch, ran):
    studies = {**study_list._STUDIES, "tiny": ran.planned.study}
    monkeypatch.setattr(study_list, "_STUDIES", studies)


@pytest.mark.usefixtures("known")
def test_the_report_gathers_all_that_is_finished(kept, tmp_path):
    results = kept.parent
    stages = made_up(find_study("stages"), tmp_path / "w", methods=("hbp",))
    keep_study(results / "stages", stages.planned, study_result(stages))
    (results / "notes").mkdir()
    (results / "notes" / "table.json").write_text("{}")
    out = tmp_path / "pages" / "all.html"
    told = write_report(results, out)
    assert [one["study"] for one in told] == ["stages", "tiny"]
    page = out.read_text()
    assert '<a href="../results/stages/report.html">' in page
    assert '<a href="#tiny">' in page
    assert page.count("data:image/png") == 1 + len(
        list((results / "stages" / "figures").glob("*.png"))
    )
    write_report(results, out)
    out.write_text("my own page")
    with pytest.raises(WriteError, match="no page of studies"):
        write_report(results, out)
    with pytest.raises(WriteError, match="is a folder, expected a file"):
        write_report(results, tmp_path / "pages")
    with pytest.raises(WriteError, match="cannot be written"):
        write_report(results, Path("/proc/all.html"))
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["all.html"]


@pytest.mark.usefixtures("known")
def test_a_changed_study_is_not_reported(kept, tmp_path):
    (kept / "table.csv").write_text("changed")
    with pytest.raises(CorruptFileError, match=r"table\.csv"):
        finished_studies(kept.parent)
    with pytest.raises(DataError, match="holds no finished study"):
        write_report(tmp_path / "nowhere", tmp_path / "x.html")
