"""Where a study's runs are kept: by their settings, and shared."""

from pathlib import Path

import pytest

from epifalcon.errors import SettingsError
from epifalcon.studies import study as studies
from epifalcon.studies.catalogue import find_study
from epifalcon.studies.study import Cell, StudyRequest, plan_study
from tests.studies.study_results import tiny_study

WORK = Path("work")


def plan(study, **request):
    return plan_study(study, StudyRequest(**{"scale": "hamlet", **request}), WORK)


def with_cells(*cells):
    return tiny_study("hamlet", cells=lambda _scale: cells)


def cell(label, *overrides, methods=("hbp",)):
    return Cell(label=label, preset="hamlet", methods=methods, overrides=overrides)


def test_equal_settings_share_their_runs():
    one = plan(
        with_cells(
            cell("a"),
            cell("b", "labels.label_share=0.4", methods=("dct", "hbp")),
            cell("c", "labels.label_share=0.3"),
        )
    )
    folders = {label: made.folder for label, made in one.plans.items()}
    # 0.4 is what the preset has anyway.
    assert folders["a"] == folders["b"] != folders["c"]
    assert one.plans["a"].methods == ("hbp", "dct")
    assert len(one.comparisons) == 2
    assert folders["a"].name.startswith("hamlet-")


def test_costly_cells_have_fewer_seeds():
    costly = Cell(label="b", preset="basic-sars", methods=("hbp",), most_seeds=2)
    made = plan(with_cells(cell("a"), costly), seeds=5)
    assert made.plans["a"].seeds == (0, 1, 2, 3, 4)
    assert made.plans["b"].seeds == (0, 1)
    assert len(made.runs) == 7
    assert [seed for one, _, seed in made.runs if one.label == "b"] == [0, 1]
    assert made.seeds == (0, 1, 2, 3, 4)
    assert plan(with_cells(costly), seeds=5).seeds == (0, 1)
    # Where two cells share runs, the one with more seeds decides.
    shared = Cell(label="c", preset="hamlet", methods=("dct",), most_seeds=1)
    assert plan(with_cells(shared, cell("a")), seeds=3).plans["c"].seeds == (0, 1, 2)


def test_another_version_has_runs_of_its_own(monkeypatch):
    before = plan(with_cells(cell("a"))).plans["a"].folder
    monkeypatch.setattr(studies.importlib.metadata, "version", lambda _name: "99")
    assert plan(with_cells(cell("a"))).plans["a"].folder != before


def test_studies_share_what_they_have_in_common():
    overall = plan(find_study("overall")).plans["town"].folder
    assert plan(find_study("ablation")).plans["HGNN"].folder == overall


def test_some_methods_can_be_requested():
    made = plan(find_study("stages"), methods=("hbp", "dct"), seeds=3)
    assert {cell.methods for cell in made.cells} == {("dct", "hbp")}
    assert [cell.label for cell in made.cells] == ["before", "after"]
    assert made.command == (
        "epifalcon study run stages --scale hamlet --seeds 3 --methods hbp,dct"
    )
    with pytest.raises(SettingsError, match="study noise has no method dct, only "):
        plan(find_study("noise"), methods=("dct",))
    with pytest.raises(SettingsError, match="did you mean 'hbp'"):
        plan(find_study("noise"), methods=("hpb",))


def test_some_cells_can_be_requested():
    made = plan(find_study("stages"), cells=("after",), methods=("hbp",), seeds=2)
    assert [cell.label for cell in made.cells] == ["after"]
    assert made.command.endswith("--seeds 2 --methods hbp --cell after")
    assert made.partial
    with pytest.raises(SettingsError, match=r"cell 'afta'.*after"):
        plan(find_study("stages"), cells=("afta",))
