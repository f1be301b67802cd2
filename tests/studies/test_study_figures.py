"""Pictures of studies hold what they are given, and the paper's beside it."""

import pytest

from epifalcon.studies import figures, study_figures
from epifalcon.studies.study_figures import (
    Panel,
    Point,
    dots,
    epidemic,
    lines,
    points,
    tradeoff,
)


def row(title="A", mean=0.7, half=0.05, paper=None, **facts):
    held = {"mean": mean, "low": mean - half, "high": mean + half}
    return {
        "cell": "cell", "title": title, "seeds": [0, 1], "facts": facts,
        "metrics": {"auc": held}, "figures": {"epsilon": {**held, "mean": 3.0}},
        "published": None if paper is None else {"auc": paper},
        "protocol": "reported",
    }  # fmt: skip


def test_points_stand_in_order_and_by_title():
    rows = [row(x=2), row(x=1), row("B", x=1), {**row("C", x=1), "seeds": []}]
    found = points(rows, ("facts", "x"), ("metrics", "auc"))
    assert [one.x for one in found["A"]] == [1, 2]
    assert found["B"] == [Point(1, 0.7, pytest.approx(0.65), pytest.approx(0.75))]
    assert set(found) == {"A", "B"}
    assert points(rows, ("figures", "epsilon"), ("metrics", "auc"))["B"][0].x == 3.0
    assert points([row()], ("facts", "x"), ("metrics", "auc")) == {}


def panel(**more):
    series = {"ours": [Point(1, 0.5, 0.4, 0.6), Point(2, 0.6)], "theirs": [Point(1, 1)]}
    words = {"title": "T", "xlabel": "x", "ylabel": "y", "series": series}
    return Panel(**{**words, **more})


def test_lines_have_intervals_and_the_papers_none():
    figure = lines([panel(dashed=frozenset({"theirs"}), log_x=True), panel()])
    first, second = figure.axes
    assert (first.get_xscale(), second.get_xscale()) == ("log", "linear")
    # One line with error bars, one without; on the right both have them.
    assert (len(first.containers), len(second.containers)) == (1, 2)
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {"ours", "theirs"}
    assert lines([panel(series={})]) is None


def test_dots_show_the_papers_figure():
    figure = dots([row(paper=0.8), row("B")], {"auc": "AUC"}, "Title")
    axes = figure.axes[0]
    drawn = [
        tuple(line.get_data()[0]) for line in axes.lines if line.get_marker() == "D"
    ]
    assert (0.8,) in drawn
    assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B"]
    assert dots([{**row(), "seeds": []}], {"auc": "AUC"}, "T") is None


def interval(mean, half):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def test_a_tradeoff_has_a_line_a_kind_and_its_numbers_of_copies():
    series = {
        name: [
            {"copies": n, "moves": interval(n / 10, 0.9), "auc": interval(level, 0.02)}
            for n in (1, 5)
        ]
        for name, level in (("walk", 0.6), ("recurring", 0.7))
    }
    figure = tradeoff(series, ("moves", "error"), {"auc": "AUC"}, "town")
    (axes,) = figure.axes
    named = [one.get_text() for one in figure.legends[0].get_texts()]
    assert named == list(series)
    assert [one.get_text() for one in axes.texts] == ["1", "5"] * 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("error", "AUC")
    assert list(axes.lines[0].get_xdata()) == [0.1, 0.5]
    # From .1 an interval of .9 to each side reaches from 0 to 1, not from -.8.
    across = axes.containers[0].lines[2][0].get_segments()
    assert across[0][:, 0].tolist() == [0, 1]
    assert across[1][:, 0].tolist() == [0, 1]


def test_intervals_end_where_no_value_can_be():
    wide = row(mean=0.7, half=0.8, x=1)
    (point,) = points([wide], ("facts", "x"), ("metrics", "auc"))["A"]
    assert (point.low, point.high) == (0, 1)
    (cost,) = points([wide], ("facts", "x"), ("figures", "epsilon"))["A"]
    assert (cost.low, cost.high) == (0, 1.5)
    figure = dots([wide, row("B", mean=0.6)], {"auc": "AUC"}, "T")
    (axes,) = figure.axes
    ends = [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert [0, 1] in ends
    # Means stay readable: the picture does not follow the interval to its ends.
    low, high = axes.get_xlim()
    assert 0.4 < low < 0.6
    assert 0.7 < high < 0.9


def test_lines_stand_beside_each_other_where_intervals_would_hide_them():
    first, second = (
        line.lines[0].get_xdata() for line in lines([panel()]).axes[0].containers
    )
    assert 0 < second[0] - first[0] < 0.05
    first, second = (
        line.lines[0].get_xdata()
        for line in lines([panel(log_x=True)]).axes[0].containers
    )
    assert second[0] == first[0]


def test_a_logarithmic_axis_has_numbers_as_people_write_them():
    series = {"ours": [Point(500, 3.0), Point(1000, 5.0), Point(2000, 40.0)]}
    (axes,) = lines([panel(series=series, log_x=True, log_y=True)]).axes
    axes.figure.draw_without_rendering()
    across = [one.get_text() for one in axes.get_xticklabels()]
    assert across == ["500", "1,000", "2,000"]
    upwards = {one.get_text() for one in axes.get_yticklabels()}
    assert {"5", "10", "20"} <= upwards
    assert not any("10^" in text for text in upwards)
    # Epsilons lie where they lie: round numbers stand below them.
    series = {"ours": [Point(5.103, 0.5), Point(8, 0.6), Point(45209.4, 0.7)]}
    (axes,) = lines([panel(series=series, log_x=True)]).axes
    axes.figure.draw_without_rendering()
    across = {one.get_text() for one in axes.get_xticklabels()}
    assert {"10", "1,000"} <= across
    assert not across & {"5.103", "8"}


def test_what_comes_in_whole_numbers_has_no_halves_below():
    series = {"ours": [Point(1, 0.5), Point(3, 0.6)]}
    (axes,) = lines([panel(series=series)]).axes
    axes.figure.draw_without_rendering()
    assert all(float(place).is_integer() for place in axes.get_xticks())


def test_long_names_stay_inside_the_picture():
    names = [f"a name of a line that is long, number {place}" for place in range(4)]
    figure = lines([panel(series={name: [Point(1, 0.5)] for name in names})])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_an_epidemic_is_drawn_day_by_day():
    days = {
        name: [[9, 8, 7], [9, 7, 5]]
        for name in ("susceptible", "infectious", "recovered", "new")
    }
    above, below = epidemic(days, "Course").axes
    assert [line.get_label() for line in above.lines] == [
        "susceptible", "infectious", "recovered",
    ]  # fmt: skip
    assert [patch.get_height() for patch in below.patches] == [9, 7.5, 6]


def test_both_files_are_the_same_each_time(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        figures.save(study_figures.lines([panel()]), tmp_path / folder / "lines.png")
    for kind in ("png", "svg"):
        one, two = (
            (tmp_path / folder / f"lines.{kind}").read_bytes()
            for folder in ("one", "two")
        )
        assert one == two
    assert (tmp_path / "one" / "lines.svg").read_text().startswith("<?xml")
    assert (tmp_path / "one" / "lines.png").read_bytes().startswith(b"\x89PNG")
