"""Pictures of studies hold what they are given, and the paper's beside it."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from epifalcon import store
from epifalcon.epidemic.outbreak import Outbreak
from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.epidemic.rules import OutbreakSettings
from epifalcon.mobility.clock import Clock
from epifalcon.studies import figures, study_figures
from epifalcon.studies.study_figures import (
    Panel,
    Point,
    dots,
    epidemic,
    lines,
    points,
    together,
    tradeoff,
)
from epifalcon.studies.study_list import find_study
from epifalcon.studies.study_rows import study_result
from tests.studies.study_results import made_up


def row(title="A", mean=0.7, half=0.05, paper=None, protocol="reported", **facts):
    held = {"mean": mean, "low": mean - half, "high": mean + half}
    return {
        "cell": "cell", "title": title, "seeds": [0, 1], "facts": facts,
        "metrics": {"auc": held}, "figures": {"epsilon": {**held, "mean": 3.0}},
        "published": None if paper is None else {"auc": paper},
        "protocol": protocol,
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


def legend(figure):
    """Each name of the legend with its mark and colour."""
    (one,) = figure.legends
    handles = zip(one.get_texts(), one.legend_handles, strict=True)
    return {
        text.get_text(): (mark.get_marker(), to_hex(mark.get_color()))
        for text, mark in handles
    }


def test_what_a_row_was_shown_is_told_in_the_picture():
    shown = ("reported", "all cases", "truth of others")
    rows = [row(one, 0.6, protocol=one) for one in shown]
    figure = dots(rows, {"auc": "AUC"}, "T")
    told = legend(figure)
    drawn = {
        int(line.get_ydata()[0]): (line.get_marker(), to_hex(line.get_color()))
        for line in figure.axes[0].lines
        if len(line.get_xdata()) == 1
    }
    assert list(told.values()) == [drawn[place] for place in range(3)]
    assert len({mark for mark, _ in told.values()}) == 3
    assert "everybody's cases" in list(told)[1]
    assert "ceiling" in list(told)[2]
    assert not dots([row(), row("B")], {"auc": "AUC"}, "T").legends
    assert list(legend(dots([row(paper=0.8)], {"auc": "AUC"}, "T"))) == ["the paper's"]


def test_numbers_below_dots_do_not_touch():
    names = {"auc": "AUC", "dep": "DEP", "f1": "F1"}
    title = "without pseudo traces, everybody's cases"
    rows = [row(title, 0.235 + n / 55, 0.012, paper=0.427) for n in range(6)]
    for one in rows:
        one["published"] |= {"dep": 0.427, "f1": 0.427}
    for one in rows:
        one["metrics"] |= {"dep": one["metrics"]["auc"], "f1": one["metrics"]["auc"]}
    figure = dots(rows, names, "T")
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        boxes = [
            text.get_window_extent()
            for place, text in zip(
                axes.get_xticks(), axes.get_xticklabels(), strict=True
            )
            if low <= place <= high
        ]
        assert len(boxes) > 2
        space = boxes[0].height / 2
        assert all(after.x0 - before.x1 > space for before, after in pairwise(boxes))


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


def test_without_any_interval_lines_stand_where_they_are():
    series = {"ours": [Point(0, 0.5), Point(2, 0.6)], "theirs": [Point(0, 0.7)]}
    for line in lines([panel(series=series)]).axes[0].containers:
        assert line.lines[0].get_xdata()[0] == 0
    # An interval of no length hides nothing either.
    series["ours"][0] = Point(0, 0.5, 0.5, 0.5)
    for line in lines([panel(series=series)]).axes[0].containers:
        assert line.lines[0].get_xdata()[0] == 0


def test_the_papers_line_looks_like_ours_but_dashed():
    series = {
        "other": [Point(1, 0.2)],
        "norm": [Point(1, 0.5)],
        "norm, the paper's": [Point(1, 0.6)],
    }
    dashed = frozenset({"norm, the paper's"})
    (axes,) = lines([panel(series=series, dashed=dashed)]).axes
    ours = axes.containers[1].lines[0]
    (theirs,) = (one for one in axes.lines if one.get_linestyle() == "--")
    assert theirs.get_color() == ours.get_color()
    assert theirs.get_marker() == ours.get_marker()
    assert axes.containers[0].lines[0].get_color() != ours.get_color()


def test_lines_of_the_same_points_are_one_that_names_them_all():
    same, other = (Point(1, 0.0), Point(2, 0.0)), (Point(1, 0.5),)
    found = together({"a": list(same), "b": other, "c": list(same)})
    assert found == {"a, c": same, "b": other}


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


def outbreak_days(*names, seeds=2):
    kept = ("susceptible", "infectious", "recovered", "new", *names)
    return {name: [[9, 8, 7], [9, 7, 5]][:seeds] for name in kept}


def test_an_epidemic_is_drawn_day_by_day():
    above, below = epidemic(outbreak_days(), "Course", {}).axes
    assert [line.get_label() for line in above.lines] == [
        "susceptible", "infectious", "recovered",
    ]  # fmt: skip
    assert [patch.get_height() for patch in below.patches] == [9, 7.5, 6]
    # A bar stands under its day.
    assert above.get_xlim() == below.get_xlim()
    middles = [one.get_x() + one.get_width() / 2 for one in below.patches]
    assert middles == pytest.approx(list(above.lines[0].get_xdata()))


def test_exposed_people_are_drawn_where_they_were_kept():
    above, _ = epidemic(outbreak_days("exposed"), "Course", {}).axes
    assert [line.get_label() for line in above.lines][1] == "exposed"


def test_new_infections_have_the_least_and_the_most_of_several_seeds():
    _, below = epidemic(outbreak_days(), "Course", {}).axes
    (arms,) = below.containers[1].lines[2]
    ends = [one[:, 1].tolist() for one in arms.get_segments()]
    assert ends == [[9, 9], [7, 8], [5, 7]]
    _, below = epidemic(outbreak_days(seeds=1), "Course", {}).axes
    assert len(below.containers) == 1


def test_marked_days_have_a_line_in_both_panels_and_a_word():
    above, below = epidemic(outbreak_days(), "Course", {2: "before"}).axes
    for axes in (above, below):
        assert [2, 2] in [list(line.get_xdata()) for line in axes.lines]
    assert [text.get_text() for text in above.texts] == ["day 2:\nbefore"]


def test_the_stages_keep_exposed_people_and_say_where_they_are_missing(tmp_path):
    study = find_study("stages")
    ran = made_up(study, tmp_path)
    people, clock = 5, Clock(slot_hours=2, days=14)
    never = np.full(people, -1, np.int32)
    infected = np.where(np.arange(people) < 2, 0, -1).astype(np.int32)
    outbreak = Outbreak(
        infected, never, never, never, never, never, infected == 0, clock,
        SARS_COV_2, OutbreakSettings(), 1.0,
    )  # fmt: skip
    folder = ran.planned.plans["after"].run_folder(0) / "outbreak"
    outbreak.save(folder, store.Origin())
    found = study.more(ran, [])["epidemic"]
    states = ("susceptible", "exposed", "infectious", "recovered")
    assert found["exposed"] == [[2] * 14]
    assert [sum(found[one][0][day] for one in states) for day in (0, 13)] == [
        people
    ] * 2
    result = study_result(ran) | {"epidemic": found}
    told = study.draw(result)["epidemic"]
    assert "susceptible, exposed, infectious" in told.caption.lower()
    assert "one seed" in told.caption
    words = [text.get_text() for text in told.figure.axes[0].texts]
    assert words == ["day 10:\nbefore", "day 14:\nafter"]
    kept = {name: held * 2 for name, held in found.items() if name != "exposed"}
    caption = study.draw(result | {"epidemic": kept})["epidemic"].caption
    assert "xposed people are not drawn" in caption
    assert "the least and the most" in caption


def test_the_noise_study_draws_the_attacks_that_decide(tmp_path):
    study = find_study("noise")
    result = study_result(made_up(study, tmp_path, seeds=1))
    for one in result["rows"]:
        for attack, wrong in (("everything", 0.0), ("moves and recurrence", 0.05)):
            one["figures"][attack] = {"mean": wrong, "low": None, "high": None}
    drawn = study.draw(result)["noise"]
    (box,) = drawn.figure.legends
    named = ", ".join(text.get_text() for text in box.get_texts()).split(", ")
    assert {"everything", "moves and recurrence", "norm", "consistency"} <= set(named)
    assert {"moves", "result from rows"} <= set(named)
    places = {
        one
        for line in drawn.figure.axes[1].containers
        for one in line.lines[0].get_xdata()
    }
    assert 0 in places
    assert min(places) == 0
    assert "one seed" in drawn.caption.lower()


def smallest(figure):
    """CSS pixels of the smallest letters on a phone, where wide pictures scroll."""
    width = figure.get_figwidth()
    shown = 608 if width > 8 else 350
    sizes = [one.get_fontsize() for one in figure.findobj(Text) if one.get_text()]
    return min(sizes) / 72 * shown / width


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_letters_can_be_read_on_a_phone(number):
    names = dict(list({"auc": "AUC", "dep": "DEP", "f1": "F1"}.items())[:number])
    one = row(paper=0.8)
    one["metrics"] = dict.fromkeys(names, one["metrics"]["auc"])
    held = {"copies": 1, "x": interval(0.1, 0.1), "auc": interval(0.6, 0.1)}
    for figure in (
        lines([panel()] * number),
        dots([one], names, "T"),
        tradeoff({"walk": [held]}, ("x", "error"), {"auc": "AUC"}, "town"),
        epidemic(outbreak_days(), "Course", {2: "before"}),
    ):
        figure.draw_without_rendering()
        assert smallest(figure) >= 7
        assert figure.get_figwidth() <= 9.2


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
