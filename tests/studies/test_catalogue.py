"""The catalogue: the names that are relied on, and plans that can be made."""

from pathlib import Path

import pytest

from epifalcon import store
from epifalcon.experiments.run_folder import PREDICTION
from epifalcon.methods.registry import entries, names
from epifalcon.reports.metric_registry import STUDY_METRICS
from epifalcon.studies import catalogue, study_rows
from epifalcon.studies.own.frontier import STUDY as FRONTIER
from epifalcon.studies.study import SCALES, StudyRequest, plan_study
from epifalcon.studies.study_rows import protocol, study_result
from epifalcon.studies.study_tables import as_csv, as_markdown, findings, result_tables
from tests.studies.method_results import plan
from tests.studies.study_results import made_up

NAMES = [
    "overall", "omicron", "stages", "noise", "pseudo-tradeoff", "ablation",
    "trace-share", "label-share", "authors", "frontier", "worlds", "foreign",
    "scale",
]  # fmt: skip
each_study = pytest.mark.parametrize("name", NAMES)


def study_plan(name, scale):
    return plan_study(catalogue.find_study(name), StudyRequest(scale=scale), Path("w"))


def test_the_names_are_those_that_are_relied_on():
    assert catalogue.study_names() == NAMES
    protocols = catalogue.study_entries()
    assert [one["name"] for one in protocols] == NAMES
    for one in protocols:
        hamlet, full = (one["scales"][scale]["cpu_hours"] for scale in SCALES)
        assert 0 < hamlet < full


@pytest.mark.parametrize("scale", SCALES)
@each_study
def test_every_plan_can_be_made(name, scale):
    made = study_plan(name, scale)
    labels = [cell.label for cell in made.cells]
    assert len(set(labels)) == len(labels)
    by_label = {cell.label: cell for cell in made.cells}
    largest = max(plan.experiment.city.people for plan in made.plans.values())
    assert (largest <= 2000) == (scale == "hamlet")
    for cell in made.cells:
        assert cell.methods
        assert set(cell.methods) <= set(names())
        assert set(cell.titles) | set(cell.published) <= set(names())
        for against in cell.against:
            other = by_label[against.cell or cell.label]
            assert {against.method or cell.methods[0]} <= set(other.methods)
    assert set(made.study.metrics) <= set(STUDY_METRICS)


@pytest.mark.parametrize("scale", SCALES)
def test_overall_has_every_method_once_and_no_ceiling_of_other_worlds(scale):
    ours = {one.name for one in entries() if not one.is_own}
    for name in ("overall", "omicron"):
        for group, cells in grouped(study_plan(name, scale).cells).items():
            found = [one for cell in cells for one in cell.methods]
            twice = [one for one in set(found) if found.count(one) > 1]
            assert set(found) == ours - {"hbp-true-factors"}, group
            assert twice == ["falcon"]


def grouped(cells):
    found = {}
    for cell in cells:
        found.setdefault(cell.group, []).append(cell)
    return found


@each_study
def test_every_study_has_tables_plots_and_findings(name, tmp_path):
    study = catalogue.find_study(name)
    result = study_result(made_up(study, tmp_path))
    for table in result_tables(study, result):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    lines = as_csv(study, result).splitlines()
    assert len(lines) == 1 + len(result["rows"])
    assert as_markdown(study, result).startswith(f"# {study.title} (hamlet)")
    drawn = [one for one in study.draw(result).values() if one.figure]
    # Made-up runs have no ledger, and so no epsilon to draw.
    assert drawn or name == "frontier"
    assert all(one.caption.endswith(".") for one in drawn)
    said = findings(result)
    assert len(said) > 1
    assert not any(word in " ".join(said) for word in ("None", "nan", "{", "  "))


def test_leaks_are_marked_in_the_protocol():
    made = study_plan("ablation", "hamlet")
    protocols = {
        cell.label: protocol(made, cell, cell.methods[0]) for cell in made.cells
    }
    leaking = {label for label, word in protocols.items() if word == "all cases"}
    assert leaking == {label for label in protocols if "everybody's cases" in label}
    assert len(leaking) == 6


def test_the_stages_end_on_the_papers_days():
    plans = study_plan("stages", "full").plans
    days = [plans[one].experiment.city.clock.days for one in ("before", "after")]
    assert days == [10, 14]


def test_worlds_begin_where_nothing_was_chosen_by():
    assert study_plan("worlds", "full").seeds[0] == 10
    # Settings were chosen on seeds 1 to 9 of clusters and towns.
    foreign = study_plan("foreign", "full")
    assert foreign.seeds[0] == 21
    assert "hybrid" in {cell.facts["world"] for cell in foreign.cells}


@pytest.mark.parametrize(
    "meta",
    [
        {"spent": {"epsilon": {"person": 8.0}}},
        {"told": {"spent": {"epsilon": {"person": 8.0}}}},
    ],
)
def test_spent_epsilon_is_read_from_diagnostics(meta, tmp_path):
    origin, mine = store.Origin.now({}, 1), plan(tmp_path / "out", ["hbp"], [0])
    place = mine.place(0, "hbp") / PREDICTION
    store.write(place, "prediction", {}, meta=meta, origin=origin)
    spent = study_rows._spent(mine, 0, "hbp")
    assert spent["epsilon_person"] == 8.0


def with_epsilons(result):
    """Rows as if each run had spent what it promised, for every unit alike."""
    for row in result["rows"]:
        promised = row["facts"].get("promised")
        if promised is not None:
            one = {"mean": promised, "low": promised, "high": promised}
            row["figures"] |= {f"epsilon_{unit}": one for unit in ("person", "day")}
    return result


def test_a_panel_shows_only_rows_of_its_unit(tmp_path):
    result = with_epsilons(study_result(made_up(FRONTIER, tmp_path)))
    figure = FRONTIER.draw(result)["frontier"].figure
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:3] == ["Per person", "Per day", "Per visit"]
    epsilons = sorted(
        {x for line in figure.axes[0].get_lines() for x in line.get_xdata()}
    )
    assert epsilons == [1, 8]
    rows = [row for row in result["rows"] if row["facts"].get("unit") == "person"]
    one_sweep = [row for row in rows if row["facts"].get("sweeps") == 1]
    drawn = sum(len(line.get_xdata()) for line in figure.axes[0].get_lines())
    assert drawn % len(one_sweep) == 0
    exchanges = {
        round(x) for line in figure.axes[3].get_lines() for x in line.get_xdata()
    }
    assert exchanges == {1, 3}
