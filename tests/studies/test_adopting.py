"""Kept results in place of runs: equal tables, no process, and what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.errors import CorruptFileError, DataError
from epifalcon.progress import silent
from epifalcon.settings import json_text
from epifalcon.studies import adopting
from epifalcon.studies.adopting import plan_adoption
from epifalcon.studies.comparing import Crew, compare
from epifalcon.studies.comparison import comparison, curves
from epifalcon.studies.comparison_tables import keep_comparison
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.follow_ups import FOUND
from epifalcon.studies.kept_runs import read_kept
from epifalcon.studies.measurements import Measured, Training
from epifalcon.studies.study import Against, Asked, Cell
from epifalcon.studies.study_curves import curves_by_group
from epifalcon.studies.study_keeping import keep_study
from epifalcon.studies.study_plan import plan_study
from epifalcon.studies.study_rows import study_result
from epifalcon.studies.study_running import run_study
from tests.studies import forked, town
from tests.studies.study_results import tiny_study

HALF = "reporting.trace_share=0.5"
CREW = Crew(jobs=2)


def study_of(preset, then="sizes", override=HALF):
    cells = [
        Cell(
            label="whole",
            preset=preset,
            methods=("soft-dct-ratio", "dct"),
            group="towns",
            against=(Against("dct", "whole", "dct"),),
        ),
        Cell(
            label="half",
            preset=preset,
            methods=("falcon",),
            overrides=("privacy.mode=local", override),
            group="towns",
            titles={"falcon": "Ours"},
            then=then,
        ),
    ]
    return tiny_study(
        preset, cells=lambda _scale: cells, ranked=True, more=curves_by_group
    )


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    path = tmp_path_factory.mktemp("preset") / "town.toml"
    path.write_text(town.experiment().to_toml())
    return str(path)


@pytest.fixture(scope="module")
def kept(preset, tmp_path_factory):
    """A study that was run, and its folder; the runs are gone."""
    home = tmp_path_factory.mktemp("kept")
    planned = planned_in(home / "work", study_of(preset))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epifalcon.studies.processes._started", forked.started)
        ran = run_study(planned, CREW, silent)
        result = study_result(ran)
    assert not any(row["failed"] for row in result["rows"])
    keep_study(home / "tiny", planned, result)
    shutil.rmtree(home / "work")
    return home / "tiny"


@pytest.fixture(scope="module")
def compared(preset, tmp_path_factory):
    """The first cell as a comparison of two seeds; its runs and manifest are gone."""
    home = tmp_path_factory.mktemp("compared")
    plan = planned_in(home / "work", study_of(preset)).plans["whole"]
    plan = replace(plan, folder=home / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epifalcon.studies.processes._started", forked.started)
        patch.setattr(
            "epifalcon.studies.comparison_tables.figures.save", lambda *_: None
        )
        patch.setattr("epifalcon.studies.comparison_tables._page", lambda *_: Blank)
        found = compare(plan, CREW, silent)
        keep_comparison(plan, comparison(plan, found), curves(found))
    for place in plan.folder.glob("seed-*"):
        shutil.rmtree(place)
    (plan.folder / "manifest.json").unlink()
    return plan.folder


class Blank:
    @staticmethod
    def to_html():
        return "a page"


@pytest.fixture
def nothing_runs(monkeypatch):
    def refused(job, *_words):
        raise AssertionError(f"{job.name} was run")

    monkeypatch.setattr("epifalcon.studies.processes._started", refused)


@pytest.fixture
def started(monkeypatch):
    """The names of all processes that are run."""
    names = []

    def noted(job, *words):
        names.append(job.name)
        return forked.started(job, *words)

    monkeypatch.setattr("epifalcon.studies.processes._started", noted)
    return names


def planned_in(work, study, seeds=2, **more):
    return plan_study(study, Asked(scale="hamlet", seeds=seeds, **more), work)


def adopted(planned, *folders):
    ran = run_study(planned, CREW, silent, plan_adoption(planned, folders))
    return study_result(ran)


def table(folder):
    return json.loads((folder / "table.json").read_text())


def as_kept(result):
    return json.loads(json_text(result))


def without_source(rows):
    """The rows, and from where the figures of each seed are told to be."""
    told = [one.pop("adopted", None) for row in rows for one in row["by_seed"]]
    return rows, told


@pytest.mark.usefixtures("nothing_runs")
def test_all_that_was_kept_is_adopted_and_nothing_runs(kept, preset, tmp_path):
    planned = planned_in(tmp_path / "work", study_of(preset))
    result = as_kept(adopted(planned, kept))
    before = table(kept)
    command = before["made_by"]
    assert result["adopted"] == [
        f"6 of 6 runs are not new but adopted from {kept}, made by: {command}"
    ]
    rows, told = without_source(result["rows"])
    assert rows == before["rows"]
    assert told == [{"folder": str(kept), "made_by": command}] * 6
    assert result["cpu_hours"] == pytest.approx(before["cpu_hours"], rel=1e-12)
    falcon = next(row for row in rows if row["method"] == "falcon")
    assert falcon["title"] == "Ours"
    assert {"rounds", "epsilon_person", "meetings"} <= set(falcon["figures"])
    drawn, were = result["curves"]["towns"], before["curves"]["towns"]
    assert drawn["extinction_recall"] == pytest.approx(were["extinction_recall"])
    assert drawn["methods"].keys() == were["methods"].keys()
    for method, one in were["methods"].items():
        found = drawn["methods"][method]["precision"]
        np.testing.assert_allclose(found, one["precision"], rtol=1e-12)
    # Again, and from what was adopted: the first source stays the source.
    assert as_kept(adopted(planned, kept))["rows"] == as_kept(adopted(planned))["rows"]
    second = tmp_path / "second"
    keep_study(second, planned, adopted(planned))
    again = adopted(planned_in(tmp_path / "other", study_of(preset)), second)
    assert without_source(as_kept(again)["rows"]) == (rows, told)


def test_only_what_is_missing_runs(kept, preset, tmp_path, started):
    planned = planned_in(tmp_path / "work", study_of(preset), seeds=3)
    result = adopted(planned, kept)
    assert sorted(started) == [
        "dct, whole (seed 2)",
        "falcon, half (seed 2)",
        "sizes of falcon, half (seed 2)",
        "soft-dct-ratio, whole (seed 2)",
    ]
    for row in result["rows"]:
        assert row["seeds"] == [0, 1, 2]
        assert ["adopted" in one for one in row["by_seed"]] == [True, True, False]
    assert result["adopted"][0].startswith("6 of 9 runs are not new but adopted from ")
    # The mean of two kept seeds and a new one is that of three runs.
    fresh = Measured.load(planned.plans["whole"].place(2, "dct"))
    before = table(kept)["curves"]["towns"]["methods"]["dct"]["precision"]
    found = result["curves"]["towns"]["methods"]["dct"]["precision"]
    np.testing.assert_allclose(found, (2 * np.array(before) + fresh.precision) / 3)


@pytest.mark.usefixtures("nothing_runs")
def test_a_mean_curve_is_not_taken_for_that_of_fewer_seeds(kept, preset, tmp_path):
    planned = planned_in(tmp_path / "work", study_of(preset), seeds=1)
    result = adopted(planned, kept)
    assert result["curves"]["towns"]["methods"] == {}
    rows = {(row["cell"], row["method"]): row for row in table(kept)["rows"]}
    for row in result["rows"]:
        one = row["by_seed"][0]
        del one["adopted"]
        assert one == rows[row["cell"], row["method"]]["by_seed"][0]


@pytest.mark.usefixtures("nothing_runs")
def test_a_comparison_is_adopted_too(kept, compared, preset, tmp_path):
    planned = planned_in(tmp_path / "work", study_of(preset), cells=("whole",))
    result = as_kept(adopted(planned, compared))
    rows = {row["method"]: row for row in table(kept)["rows"]}
    for row in result["rows"]:
        before = rows[row["method"]]
        assert row["metrics"] == before["metrics"]
        assert row["title"] == before["title"]
        assert row["figures"]["prevalence"] == before["figures"]["prevalence"]
        assert row["differences"] == before["differences"]
        told = row["by_seed"][0]["adopted"]
        assert told["made_by"].startswith("epifalcon compare --preset ")
    drawn = result["curves"]["towns"]["methods"]
    were = table(kept)["curves"]["towns"]["methods"]
    for method in ("dct", "soft-dct-ratio"):
        np.testing.assert_allclose(
            drawn[method]["precision"], were[method]["precision"]
        )


def test_training_of_a_comparison_is_read(compared, tmp_path):
    folder = tmp_path / "with-training"
    shutil.copytree(compared, folder)
    result = json.loads((folder / "comparison.json").read_text())
    row = result["rows"][0]
    row["by_seed"][1] |= {"learning_rate": 0.01, "steps": 300, "at_limit": True}
    (folder / "comparison.json").write_text(json.dumps(result))
    kept_row = read_kept(folder).rows[0]
    assert kept_row.runs[1].training == Training(
        learning_rate=0.01, steps=300, at_limit=True
    )
    assert kept_row.runs[0].training == Training()


def test_other_settings_are_not_adopted(kept, preset, tmp_path, started):
    other = study_of(preset, override="reporting.trace_share=0.75")
    planned = planned_in(tmp_path / "work", other, seeds=1)
    adoption = plan_adoption(planned, [kept])
    assert adoption.told == (
        f"{kept}: not adopted: half: reporting.trace_share was 0.5 and is 0.75 here",
    )
    run_study(planned, CREW, silent, adoption)
    assert started == ["falcon, half (seed 0)", "sizes of falcon, half (seed 0)"]
    alone = planned_in(tmp_path / "work", other, cells=("half",))
    with pytest.raises(
        DataError, match=f"{kept}: has nothing for study tiny: half: re"
    ):
        plan_adoption(alone, [kept])


@pytest.mark.usefixtures("nothing_runs")
def test_settings_that_a_method_cannot_see_do_not_matter(kept, preset, tmp_path):
    study = study_of(preset)
    cells = [
        replace(cell, overrides=(*cell.overrides, "field.sweeps=9"))
        for cell in study.cells("full")
    ]
    other = replace(study, cells=lambda _scale: cells)
    result = adopted(planned_in(tmp_path / "work", other), kept)
    assert not any(row["failed"] for row in result["rows"])


def test_falcon_field_sees_its_own_settings_and_nobody_else_does():
    plain, swept = (Experiment.load("hamlet", ["field.sweeps=9"][:n]) for n in (0, 1))
    for method in ("falcon", "hgnn", "hbp", "gcn"):
        assert plain.seen_by(method) == swept.seen_by(method)
    assert plain.seen_by("falcon-field") != swept.seen_by("falcon-field")
    half = Experiment.load("hamlet", [HALF])
    assert plain.seen_by("hbp") != half.seen_by("hbp")


def test_what_was_kept_without_its_attacks_is_run(kept, preset, tmp_path, started):
    work = tmp_path / "work"
    # Adopted where nothing was to follow; another study then asks for more.
    adopted(planned_in(work, study_of(preset, then=None), seeds=1), kept)
    assert started == []
    planned = planned_in(work, study_of(preset, then="places"), seeds=1)
    adoption = plan_adoption(planned, [kept])
    assert adoption.told == (f"{kept}: not adopted: falcon, half: kept without places",)
    run_study(planned, CREW, silent, adoption)
    assert started == ["falcon, half (seed 0)", "places of falcon, half (seed 0)"]


@pytest.mark.usefixtures("nothing_runs")
def test_a_table_from_before_follow_ups_were_named(kept, preset, tmp_path):
    older = tmp_path / "tiny"
    result = table(kept)
    for row in result["rows"]:
        del row["then"], row["method_title"]
        for one in row["by_seed"]:
            one.pop("follow_up_cpu_seconds", None)
    planned = planned_in(tmp_path / "work", study_of(preset))
    keep_study(older, planned, result)
    falcon = next(
        row for row in adopted(planned, older)["rows"] if row["method"] == "falcon"
    )
    assert falcon["figures"]["meetings"]["mean"] > 0
    place = planned.plans["half"].place(0, "falcon") / "sizes" / FOUND
    assert json.loads(place.read_text())["cpu_seconds"] == 0


def test_another_version_is_not_adopted(kept, preset, tmp_path, monkeypatch):
    planned = planned_in(tmp_path / "work", study_of(preset))
    monkeypatch.setattr(adopting.importlib.metadata, "version", lambda _name: "9.9")
    with pytest.raises(DataError, match=r"made by epifalcon 0\S+, this is 9\.9"):
        plan_adoption(planned, [kept])


def test_figures_of_other_people_are_refused(kept, compared, preset, tmp_path):
    for source, name in ((kept, "table.json"), (compared, "comparison.json")):
        changed = tmp_path / name / "tiny"
        shutil.copytree(source, changed)
        result = json.loads((changed / name).read_text())
        planned = planned_in(tmp_path / name / "work", study_of(preset), seeds=2)
        if source is compared:
            result["prevalence"] += 0.01
            (changed / name).write_text(json_text(result))
        else:
            result["rows"][0]["by_seed"][1]["prevalence"] += 0.01
            keep_study(changed, planned, result)
        with pytest.raises(DataError, match=rf"{changed}: .*of other people"):
            adopted(planned, changed)


def test_what_is_damaged_or_strange_is_refused_by_its_name(
    kept, compared, preset, tmp_path
):
    planned = planned_in(tmp_path / "work", study_of(preset))
    damaged = tmp_path / "damaged"
    shutil.copytree(kept, damaged)
    text = (damaged / "table.json").read_text()
    (damaged / "table.json").write_text(text.replace('"auc"', '"auk"', 1))
    with pytest.raises(CorruptFileError, match=r"damaged/table\.json"):
        plan_adoption(planned, [damaged])
    changed = tmp_path / "changed"
    shutil.copytree(compared, changed)
    result = json.loads((changed / "comparison.json").read_text())
    result["rows"][0]["by_seed"][0]["auc"] += 0.1
    (changed / "comparison.json").write_text(json.dumps(result))
    with pytest.raises(CorruptFileError, match=r"changed/comparison.*the mean auc is"):
        plan_adoption(planned, [changed])
    (changed / "comparison.json").write_text("{")
    with pytest.raises(CorruptFileError, match="changed: its tables cannot be read"):
        plan_adoption(planned, [changed])
    (changed / "settings.toml").unlink()
    with pytest.raises(DataError, match="changed: nothing can be adopted from it; a"):
        plan_adoption(planned, [changed])
    with pytest.raises(DataError, match="nowhere: no such folder"):
        plan_adoption(planned, [tmp_path / "nowhere"])
    assert not (tmp_path / "work").exists()
