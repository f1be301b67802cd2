from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

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


def curves_of(result, drawn):
    """Each method's line, by its method."""
    axes = comparison_figures.precision_recall(result, drawn).axes[0]
    found = {}
    for name, held in drawn["methods"].items():
        (found[name],) = (
            line
            for line in axes.get_lines()
            if np.array_equal(line.get_ydata(), held["precision"])
        )
    return found


def look_of(line):
    dashes = line.get_linestyle(), tuple(line._unscaled_dash_pattern[1] or ())
    return to_hex(line.get_color()), dashes, line.get_linewidth()


STRONG = {"oracle", "hbp-true-factors", "falcon-field", "hbp", "hgnn", "falcon"}


def test_every_method_has_its_curve_and_the_line_of_extinction(many):
    result, drawn = many
    figure = comparison_figures.precision_recall(result, drawn)
    axes = figure.axes[0]
    lines = curves_of(result, drawn)
    assert set(lines) == set(names())
    upright = [line for line in axes.get_lines() if list(line.get_xdata()) == [0.8] * 2]
    assert len(upright) == 1
    assert any("ends the epidemic" in text.get_text() for text in axes.texts)


def test_few_strong_lines_are_named_and_the_others_are_one_grey(many):
    result, drawn = many
    looks = {name: look_of(line) for name, line in curves_of(result, drawn).items()}
    grey = {looks[name] for name in set(looks) - STRONG}
    assert len(grey) == 1
    colour, _, width = grey.pop()
    shades = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    assert max(shades) - min(shades) < 20
    assert all(looks[name][2] > 1.5 * width for name in STRONG)
    assert len({looks[name][:2] for name in STRONG}) == len(STRONG)
    assert looks["oracle"][0] == "#000000"
    (box,) = comparison_figures.precision_recall(result, drawn).legends
    told = [text.get_text() for text in box.get_texts()]
    # By rank, with the AUC; the others together at the end.
    rows = [row for row in result["rows"] if row["method"] in STRONG]
    wanted = [f"{row['metrics']['auc']['mean']:.3f}  {row['title']}" for row in rows]
    assert told[:-1] == wanted
    assert told[-1].endswith(f"{len(names()) - len(STRONG)} other methods")


def test_a_method_looks_the_same_whatever_its_rank():
    skills = {name: 0.5 + 0.1 * place for place, name in enumerate(sorted(STRONG))}
    turned = dict(zip(skills, reversed(skills.values()), strict=True))
    seen, dots = [], []
    for one in (skills, turned):
        result, drawn = result_of(found(one), Path("nowhere"))
        lines = curves_of(result, drawn)
        seen.append({name: look_of(line) for name, line in lines.items()})
        axes = comparison_figures.differences(result).axes[0]
        by_place = {
            int(line.get_ydata()[0]): to_hex(line.get_color())
            for line in axes.get_lines()
            if len(line.get_xdata()) == 1
        }
        dots.append(
            {
                row["method"]: by_place[place]
                for place, row in enumerate(result["rows"])
                if place in by_place
            }
        )
    assert seen[0] == seen[1]
    assert dots[0] == dots[1]
    assert all(seen[0][name][0] == colour for name, colour in dots[0].items())


def test_every_falcon_has_a_look_of_its_own():
    result, drawn = result_of(found({"falcon": 1.0, "hgnn": 0.8}), Path("nowhere"))
    one = next(row for row in result["rows"] if row["method"] == "falcon")
    titles = ("Falcon, off", "Falcon, paper", "Falcon, paper (ALL CASES)")
    rows, precision = [], drawn["methods"]["falcon"]["precision"]
    for place, title in enumerate(titles):
        # As a study calls them: the first is the best, whichever that is.
        method = f"falcon: cell {place}" if place else "falcon"
        rows.append({**one, "method": method, "title": title})
        moved = [value + place / 100 for value in precision]
        drawn["methods"][method] = {"precision": moved}
    del drawn["methods"]["hgnn"]
    looks = {}
    for order in (rows, rows[::-1]):
        for name, line in curves_of({**result, "rows": order}, drawn).items():
            looks.setdefault(name, []).append(look_of(line))
    assert all(before == after for before, after in looks.values())
    assert len({before[:2] for before, _ in looks.values()}) == 3


def test_few_others_are_named_each(tmp_path):
    result, drawn = result_of(found({"gcn": 1.0, "gat": 0.5, "hbp": 1.2}), tmp_path)
    (box,) = comparison_figures.precision_recall(result, drawn).legends
    told = {text.get_text().split("  ")[1] for text in box.get_texts()}
    assert told == {"GCN", "GAT", "HBP"}
    lines = curves_of(result, drawn)
    assert len({look_of(line)[:2] for line in lines.values()}) == 3


def test_letters_can_be_read_on_a_phone(many):
    result, drawn = many
    named = {**result, "group": "Town of 2,000 people, Omicron"}
    for figure in (
        comparison_figures.precision_recall(named, drawn),
        comparison_figures.differences(named),
        comparison_figures.reliability(result, drawn),
    ):
        figure.draw_without_rendering()
        width = figure.get_figwidth()
        sizes = [one.get_fontsize() for one in figure.findobj(Text) if one.get_text()]
        # Wide pictures scroll there.
        assert min(sizes) / 72 * (608 if width > 8 else 350) / width >= 7
        for axes in figure.axes:
            title = axes.title if axes.get_title() else axes._left_title
            assert title.get_window_extent().x1 <= figure.bbox.x1


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


def test_the_reliability_of_one_method_has_room_for_its_legend(tmp_path):
    figure = comparison_figures.reliability(*result_of(found({"gcn": 1.0}), tmp_path))
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_what_was_not_recalibrated_is_told_in_its_panel(tmp_path):
    given = {"gcn": {0: measured(0, left_raw="nobody is masked")}}
    figure = comparison_figures.reliability(*result_of(given, tmp_path))
    axes = figure.axes[0]
    assert len(axes.get_lines()) == 2
    told = " ".join(axes.texts[0].get_text().split())
    assert told == "not recalibrated: nobody is masked"


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
