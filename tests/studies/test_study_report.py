"""The folder of a study, its page and the page of all studies."""

import csv
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from epifalcon import store
from epifalcon.errors import CorruptFileError, DataError, WriteError
from epifalcon.studies import catalogue
from epifalcon.studies.catalogue import find_study, finished_studies, write_report
from epifalcon.studies.study import StudyPlot
from epifalcon.studies.study_report import require_free, write_study
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.study_tables import findings
from tests.browser import chromium, open_page
from tests.studies.study_results import made_up, tiny_study

PHONE, DESK = 390, 1280


def square(_result):
    figure = Figure(figsize=(4, 4))
    figure.add_subplot().plot([0, 1])
    return {
        "square": StudyPlot(figure, "A line & <more>, with a caption that is long.")
    }


@pytest.fixture
def ran(tmp_path):
    study = tiny_study("hamlet", ("hbp", "dct"), square, metrics=("auc", "dep"))
    return made_up(study, tmp_path / "work", seeds=3)


@pytest.fixture
def kept(ran, tmp_path):
    out = tmp_path / "results" / "tiny"
    write_study(out, ran.study_plan, study_result(ran))
    return out


@pytest.fixture
def known(monkeypatch, ran):
    studies = {**catalogue._STUDIES, "tiny": ran.study_plan.study}
    monkeypatch.setattr(catalogue, "_STUDIES", studies)


def test_every_file_is_there_and_the_page_as_stored(kept, ran, stored_page):
    there = {path.relative_to(kept).as_posix() for path in kept.rglob("*")}
    assert there == {
        *("table.csv", "table.json", "table.md", "command.txt", "report.html"),
        *("manifest.json", "figures", "figures/square.png", "figures/square.svg"),
    }
    command, _, hours, _ = (kept / "command.txt").read_text().splitlines()
    assert command == "epifalcon study run tiny --scale hamlet --seeds 3"
    assert float(hours.removeprefix("CPU-hours ")) == pytest.approx(
        ran.cpu_hours, abs=0.01
    )
    page = (kept / "report.html").read_text()
    assert "A line &amp; &lt;more&gt;" in page
    assert "http" not in page
    stored_page(page, "study")


def test_csv_and_json_have_the_same_figures_and_the_same_again_the_same_bytes(
    kept, ran
):
    rows = json.loads((kept / "table.json").read_text())["rows"]
    with (kept / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(rows) == 4
    for row, line in zip(rows, lines, strict=True):
        assert (line["cell"], line["method"]) == (row["cell"], row["method"])
        assert float(line["auc_mean"]) == row["metrics"]["auc"]["mean"]
        assert float(line["dep_low"]) == row["metrics"]["dep"]["low"]
        assert float(line["seconds_mean"]) == row["figures"]["seconds"]["mean"]
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    write_study(kept, ran.study_plan, study_result(ran))
    after = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    assert after == before


def test_another_scale_or_study_or_file_is_not_replaced(kept, ran, tmp_path):
    require_free(kept, ran.study_plan)
    full = made_up(ran.study_plan.study, tmp_path / "w", scale="full")
    for refuse in (
        lambda: require_free(kept, full.study_plan),
        lambda: write_study(kept, full.study_plan, study_result(full)),
    ):
        with pytest.raises(WriteError, match="at scale hamlet, not tiny at full"):
            refuse()
    (kept / "mine.txt").write_text("notes")
    with pytest.raises(WriteError, match=r"mine\.txt"):
        require_free(kept, ran.study_plan)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").write_text("x")
    with pytest.raises(WriteError, match="not made by epifalcon"):
        require_free(other, ran.study_plan)
    (other / "mine").unlink()
    store.write_manifest(other, "city", meta={}, origin=store.Origin())
    with pytest.raises(WriteError, match="holds 'city', not a study"):
        require_free(other, ran.study_plan)


def test_many_seeds_at_full_size_are_not_replaced_by_few(ran, tmp_path):
    study = ran.study_plan.study
    for scale in ("full", "hamlet"):
        many, few = (made_up(study, tmp_path / "w", scale, seeds) for seeds in (3, 2))
        write_study(tmp_path / scale, many.study_plan, study_result(many))
        require_free(tmp_path / scale, many.study_plan)
        if scale == "full":
            with pytest.raises(WriteError, match="holds 3 seeds, but 2 were requested"):
                require_free(tmp_path / scale, few.study_plan)
        else:
            require_free(tmp_path / scale, few.study_plan)


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(ran, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="cannot be written: Not a directory"):
        require_free(tmp_path / "file" / "results", ran.study_plan)
    with pytest.raises(WriteError, match="cannot be written"):
        require_free(Path("/proc/nothing/here"), ran.study_plan)
    before = sorted(tmp_path.iterdir())
    require_free(tmp_path / "new" / "deep" / "results", ran.study_plan)
    # The trial leaves nothing behind.
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("known")
def test_the_page_of_all_studies(kept, tmp_path):
    results, out = kept.parent, tmp_path / "pages" / "all.html"
    stages = made_up(find_study("stages"), tmp_path / "w", methods=("hbp", "hgnn"))
    write_study(results / "stages", stages.study_plan, study_result(stages))
    (results / "notes").mkdir()
    (results / "notes" / "table.json").write_text("{}")
    assert [one["study"] for one in write_report(results, out)] == ["stages", "tiny"]
    page = out.read_text()
    assert '<a href="../results/stages/report.html">' in page
    drawn = list(results.glob("*/figures/*.png"))
    with chromium() as browser:
        for place, width in (
            *((out, PHONE), (out, DESK)),
            *((results / "stages" / "report.html", one) for one in (PHONE, DESK)),
        ):
            seen = open_page(browser, place, width)
            assert seen.complaints == []
            assert seen.requests == [place.resolve().as_uri()]
            assert len(seen.images) == (len(drawn) if place == out else 1)
            assert all(image["shown"] > 300 for image in seen.images)
            assert all(len(image["alt"]) > 40 for image in seen.images)
            assert seen.width <= width
    write_report(results, out)
    out.write_text("my own page")
    for place, message in (
        (out, "not a page of studies"),
        (out.parent, "is a folder, expected a file"),
        (Path("/proc/all.html"), "cannot be written"),
    ):
        with pytest.raises(WriteError, match=message):
            write_report(results, place)
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["all.html"]


@pytest.mark.usefixtures("known")
def test_a_changed_study_is_not_reported(kept, tmp_path):
    (kept / "table.csv").write_text("changed")
    with pytest.raises(CorruptFileError, match=r"table\.csv"):
        finished_studies(kept.parent)
    with pytest.raises(DataError, match="holds no finished study"):
        write_report(tmp_path / "nowhere", tmp_path / "x.html")


CEILING = {"kind": "ceiling", "protocol": "truth of others"}


def spread(value):
    return {"mean": value, "low": value - 0.02, "high": value + 0.02}


def gap(value, p_holm):
    return {"hgnn": {"auc": {**spread(value), "p_holm": p_holm}}}


def row(title, auc, **more):
    held = {
        "cell": "town", "group": "", "facts": {}, "method": title.lower(),
        "title": title, "kind": "rival", "protocol": "reported", "figures": {},
        "metrics": {"auc": spread(auc)}, "published": None, "differences": {},
        "seeds": [0, 1, 2, 3, 4], "failed": None,
    }  # fmt: skip
    return {**held, **more}


def said(*rows):
    return findings({"rows": list(rows)})


def test_the_best_is_a_method_that_used_only_tested_people():
    rows = (row("HBP", 0.71), row("HGNN", 0.69), row("DCT", 0.54))
    leak, ceiling = row("Falcon", 0.74, protocol="all cases"), row("O", 0.75, **CEILING)
    first, *_ = said(*rows, leak, ceiling)
    assert first.startswith("Best by AUC: HBP, 0.710, then HGNN, 0.690; last DCT")
    assert "The ceiling, O, which uses the ground truth, has 0.750" in first


def test_only_significant_differences_are_listed():
    rows = [
        row("HGNN", 0.69),
        row("HBP", 0.71, differences=gap(0.02, 0.01)),
        row("DCT", 0.54, differences=gap(-0.15, 0.001)),
        row("GCN", 0.685, differences=gap(-0.005, 0.6)),
        row("GAT", 0.68, differences=gap(-0.01, None)),
    ]
    text = " ".join(said(*rows))
    assert "2 of 4 differ significantly from “HGNN” in AUC" in text
    assert "AUC: HBP +0.020, DCT -0.150." in text
    assert "0 of 2 differ" in " ".join(said(rows[0], *rows[3:]))
    few = [{**one, "seeds": [0, 1, 2]} for one in rows]
    assert "too few for a conclusion, 2 of 4 differ" in " ".join(said(*few))
    assert "too few" not in text
    unsure = [row(one, 0.6, differences=gap(0.1, None)) for one in "AB"]
    assert "chance" not in " ".join(said(rows[0], *unsure)), "of one seed nobody knows"


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "no conclusion about other outbreaks"),
        (2, "fewer than five"),
        (9, "over 9 cities"),
    ],
)
def test_uncertainty_is_stated_by_the_number_of_seeds(seeds, words):
    done = list(range(seeds))
    assert words in said(row("HBP", 0.7, seeds=done), row("DCT", 0.5, seeds=[0]))[-1]
    basic = row("HBP", 0.8, group="Basic", seeds=[0])
    assert said(row("HBP", 0.7, group="Larger"), basic)[-1] == "Basic has 1 seed only."
    nothing = {"metrics": {"auc": dict.fromkeys(("mean", "low", "high"))}}
    assert said(row("DCT", 0.5, seeds=[], failed="seed 0: no memory", **nothing)) == []
