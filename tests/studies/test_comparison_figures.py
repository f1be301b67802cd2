from pathlib import Path

import numpy as np
import pytest

from epifalcon.baselines.catalogue import names
from epifalcon.studies import comparison_figures, figures
from epifalcon.studies.comparison import comparison, curves
from epifalcon.studies.measurements import Failed
from tests.studies.measured_figures import found, measured, plan


def result_of(given, tmp_path):
    seeds = list(next(iter(given.values())))
    return comparison(plan(tmp_path, given, seeds), given), curves(given)


@pytest.fixture(scope="module")
def many():
    """Every method there is, of rising skill."""
    skills = {name: 0.5 + 0.05 * place for place, name in enumerate(names())}
    return result_of(found(skills), Path("nowhere"))


def test_every_method_has_its_curve_and_the_line_of_extinction(many):
    result, drawn = many
    axes = comparison_figures.precision_recall(result, drawn).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert len([label for label in lines if label[:1] == "0"]) == len(names())
    best = result["rows"][0]
    label = f"{best['metrics']['auc']['mean']:.3f}  {best['title']}"
    np.testing.assert_allclose(
        lines[label].get_ydata(), drawn["methods"][best["method"]]["precision"]
    )
    upright = [line for line in axes.get_lines() if list(line.get_xdata()) == [0.8] * 2]
    assert len(upright) == 1


def test_the_forest_has_each_difference_with_its_interval(many):
    result, _ = many
    figure = comparison_figures.differences(result)
    for axes, reference in zip(figure.axes, ("hgnn", "hbp"), strict=True):
        assert reference.upper() in axes.get_title(loc="left")
        bars = {
            int(line.get_ydata()[0]): tuple(line.get_xdata())
            for line in axes.get_lines()
            if len(line.get_xdata()) == 2 and line.get_xdata()[0] != line.get_xdata()[1]
        }
        for place, row in enumerate(result["rows"]):
            held = row["differences"][reference]
            if held is None:
                assert place not in bars
            else:
                assert bars[place] == (held["auc"]["low"], held["auc"]["high"])
    first = figure.axes[0]
    shown = [label.get_text() for label in first.get_yticklabels()]
    assert shown == [row["title"] for row in result["rows"]]


def test_reliability_shows_the_references_first_and_no_ceiling(many):
    figure = comparison_figures.reliability(*many)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert set(titles[:3]) == {"FALCON", "HGNN", "HBP"}
    assert len(titles) == 6
    assert "ORACLE" not in titles
    assert all(len(axes.get_lines()) == 4 for axes in figure.axes)


def test_what_was_not_recalibrated_is_told_in_its_panel(tmp_path):
    given = {"gcn": {0: measured(0, left_raw="nobody is masked")}}
    figure = comparison_figures.reliability(*result_of(given, tmp_path))
    axes = figure.axes[0]
    assert len(axes.get_lines()) == 2
    assert "not recalibrated" in axes.texts[0].get_text()


@pytest.mark.parametrize(
    ("skills", "seeds"), [({"gcn": 1.0}, [0]), ({"hgnn": 1.0, "dct": 0.1}, [0, 1])]
)
def test_few_methods_and_seeds_can_be_drawn(tmp_path, skills, seeds):
    result, drawn = result_of(found(skills, seeds), tmp_path)
    made = [
        comparison_figures.precision_recall(result, drawn),
        comparison_figures.reliability(result, drawn),
        comparison_figures.differences(result),
    ]
    assert (made[2] is None) == ("hgnn" not in skills)
    for figure in made:
        if figure is not None:
            figures.save(figure, tmp_path / "f.png")
            assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_without_any_result_nothing_is_drawn(tmp_path):
    result, drawn = result_of({"gcn": {0: Failed("gone")}}, tmp_path)
    assert comparison_figures.precision_recall(result, drawn) is None
    assert comparison_figures.reliability(result, drawn) is None
    assert comparison_figures.differences(result) is None
