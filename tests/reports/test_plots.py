"""Plots draw what they are given, and the paper's figures beside it."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from epifalcon.experiments.run_plots import risk_maps
from epifalcon.methods.registry import entry, names
from epifalcon.mobility.regions import Regions
from epifalcon.reports import plot_style, study_plots
from epifalcon.reports.study_plots import (
    Panel,
    Point,
    dots,
    epidemic_curve,
    lines,
    merge_equal,
    method_styles,
    points,
)


def interval(mean, half):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def row(title="A", mean=0.7, half=0.05, paper=None, protocol="reported", **facts):
    held = interval(mean, half)
    return {
        "cell": "cell", "title": title, "seeds": [0, 1], "facts": facts,
        "metrics": {"auc": held}, "figures": {"epsilon": {**held, "mean": 3.0}},
        "published": None if paper is None else {"auc": paper},
        "protocol": protocol,
    }  # fmt: skip


def test_points_stand_in_order_and_intervals_end_where_no_value_can_be():
    rows = [row(x=2), row(x=1), row("B", half=0.8, x=1), {**row("C"), "seeds": []}]
    found = points(rows, ("facts", "x"), ("metrics", "auc"))
    assert [one.x for one in found["A"]] == [1, 2]
    assert found["B"] == [Point(1, 0.7, 0, 1)]
    assert set(found) == {"A", "B"}
    assert points(rows, ("figures", "epsilon"), ("metrics", "auc"))["B"][0].x == 3.0
    (cost,) = points(rows[2:3], ("facts", "x"), ("figures", "epsilon"))["B"]
    assert (cost.low, cost.high) == (0, 1.5)
    same, other = (Point(1, 0.0), Point(2, 0.0)), (Point(1, 0.5),)
    merged = merge_equal({"a": list(same), "b": other, "c": list(same)})
    assert merged == {"a, c": same, "b": other}


def panel(**more):
    series = {
        "ours": [Point(1, 0.5, 0.4, 0.6), Point(2, 0.6)],
        "ours, the paper's": [Point(1, 1)],
    }
    words = {"title": "T", "xlabel": "x", "ylabel": "y", "series": series}
    return Panel(**{**words, **more})


def test_lines_have_intervals_and_the_papers_none():
    alone = panel(series={"ours": panel().series["ours"]})
    figure = lines([panel(log_x=True), alone])
    first, second = figure.axes
    assert (first.get_xscale(), second.get_xscale()) == ("log", "linear")
    # The paper's line has no error bars.
    assert len(first.containers) == len(second.containers) == 1
    ours = first.containers[0].lines[0]
    (theirs,) = (one for one in first.lines if one.get_linestyle() == "--")
    assert theirs.get_color() == ours.get_color()
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == set(panel().series)
    assert lines([panel(series={})]) is None


def test_dots_show_the_papers_figure_and_the_protocol():
    rows = [
        row("A", half=0.8, paper=0.8),
        row("B", 0.6, protocol="all cases"),
        row("C", 0.65, protocol="truth of others"),
    ]
    figure = dots(rows, ("auc",), "Title")
    (axes,) = figure.axes
    spans = [list(one.get_xdata()) for one in axes.lines if len(one.get_xdata()) == 2]
    assert (len(spans), spans[0]) == (3, [0, 1])
    single = [one for one in axes.lines if len(one.get_xdata()) == 1]
    assert [one.get_xdata()[0] for one in single if one.get_marker() == "D"] == [0.8]
    marks = [one.get_marker() for one in single if one.get_marker() != "D"]
    named = [one.get_marker() for one in figure.legends[0].legend_handles]
    assert named == [*marks, "D"]
    # Means stay readable: the plot does not follow an interval from 0 to 1.
    assert axes.get_xlim()[0] > 0.3
    assert not dots([row(), row("B")], ("auc",), "T").legends
    assert dots([{**row(), "seeds": []}], ("auc",), "T") is None


def test_labelled_points_have_intervals_both_ways_and_keep_their_order():
    rows = [row(x=n, mean=0.5 + n / 50) for n in (5, 1)]
    for one, error in zip(rows, (0.3, 0.6), strict=True):
        one["figures"]["moves"] = interval(error, 0.9)
    found = points(rows, ("figures", "moves"), ("metrics", "auc"), label="x")
    assert [(one.x, one.label) for one in found["A"]] == [(0.3, "5"), (0.6, "1")]
    (axes,) = lines([panel(series=found)]).axes
    assert [one.get_text() for one in axes.texts] == ["5", "1"]
    # From .3 an interval of .9 to each side reaches from 0 to 1.
    across = axes.containers[0].lines[2][0].get_segments()
    assert across[0][:, 0].tolist() == pytest.approx([0, 1])


def test_an_epidemic_is_drawn_day_by_day(tmp_path):
    counts = np.random.default_rng(1).multinomial(100, [0.2] * 5, size=(3, 6))
    states = {name: counts[:, :, n] for n, name in enumerate("abcd", start=1)}

    def drawn(runs=3):
        some = {name: one[:runs] for name, one in states.items()}
        return epidemic_curve(some, counts[:runs, :, 1], r"$\frac$", {4: "stage"})

    above, below = drawn().axes
    curves = above.get_lines()[:4]
    np.testing.assert_array_equal(
        curves[2].get_ydata(), np.median(counts[:, :, 3], axis=0)
    )
    assert len(below.patches) == 6
    assert "stage" in above.texts[0].get_text()
    assert not drawn(1).axes[0].collections, "one run has no band"
    found = []
    for _ in range(2):
        plot_style.save(drawn(), tmp_path / "f.png")
        found.append((tmp_path / "f.png").read_bytes())
        found.append((tmp_path / "f.svg").read_bytes())
    assert found[:2] == found[2:]
    assert b"<svg" in found[1]


def regions(outlines):
    centre = np.array([[0.0, 0], [1, 0], [0, 1]])
    triangle = np.array([[0, 0], [0.3, 0], [0, 0.3]])
    corners = np.concatenate([point + triangle for point in centre])
    return Regions(
        "area",
        centre,
        outline_km=corners if outlines else None,
        outline_ends=np.array([3, 6, 9]) if outlines else None,
    )


@pytest.mark.parametrize("outlines", [True, False])
@pytest.mark.parametrize("people", [[0, 0, 0], [4, 6, 0]])
def test_maps_share_one_scale_and_leave_empty_regions_out(outlines, people, tmp_path):
    rates = {"risk": np.array([0.1, 0.3, 0.9]), "true": np.array([0.2, 0.5, 0.0])}
    where, residents = regions(outlines), np.array(people, float)
    figure = risk_maps(where, rates, residents, "risk")
    plot_style.save(figure, tmp_path / "map.png")
    first, second, bar = figure.axes
    shown = [axes.collections[-1] for axes in (first, second)]
    assert bar.get_ylabel() == "risk"
    if not residents.any():
        return
    assert shown[0].norm is shown[1].norm
    # The region without people, 0.9 and 0, widens the scale in neither map.
    assert 0.1 <= shown[0].norm.vmin < shown[0].norm.vmax <= 0.5
    assert sorted(shown[0].get_array()) == [0.1, 0.3]
    if outlines:
        assert first.collections[0].get_hatch()
        assert len(first.collections[0].get_paths()) == 1


def method_row(name, auc, place, **more):
    gaps = {"hgnn": {"auc": interval(auc - 0.6, 0.05)}}
    return {
        "method": name,
        "title": name,
        "kind": entry(name.partition(":")[0]).kind,
        "metrics": {"auc": {"mean": auc}},
        "differences": {} if name == "hgnn" else gaps,
        "by_seed": [1],
        "cell": "",
        **more,
    } | {"precision": [0.9 - place / 100, 0.3]}


def curves_of(rows):
    methods = {one["method"]: {"precision": one["precision"]} for one in rows}
    return {"recalls": [0.1, 1.0], "methods": methods}


STRONG = {"oracle", "hbp-true-factors", "falcon-field", "hbp", "hgnn", "falcon"}


def test_few_methods_have_colours_whatever_their_rank_and_others_are_grey():
    ours = [name for name in names() if not entry(name).is_own]
    rows = [method_row(name, 0.5 + n / 100, n) for n, name in enumerate(ours)]
    found = []
    for order in (rows, rows[::-1]):
        figure = study_plots.precision_recall(order, curves_of(order), "T", 0.2, 0.8)
        style = {
            one["method"]: (style["color"], str(style.get("linestyle")))
            for one, style in zip(order, method_styles(order), strict=True)
        }
        found.append(style)
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert len(labels) == len(STRONG) + 1
        assert labels[-1].endswith(f"{len(ours) - len(STRONG)} other methods")
    assert found[0] == found[1]
    assert len({found[0][name] for name in STRONG}) == len(STRONG)
    assert {found[0][name][0] for name in set(found[0]) - STRONG} == {plot_style.GREY}
    forest = study_plots.differences(rows, "note").axes[0]
    dots_drawn = [one for one in forest.get_lines() if len(one.get_xdata()) == 1]
    colours = [to_hex(one.get_color()) for one in dots_drawn]
    falcon = [one["method"] for one in rows if one["method"] != "hgnn"].index("falcon")
    assert colours[falcon] == found[0]["falcon"][0]


def test_reliability_leaves_out_what_was_not_fitted():
    sums = np.array([[10.0, 30.0], [12.0, 25.0], [50.0, 50.0]])
    scalings = dict.fromkeys(("raw", "platt", "isotonic"), sums)
    rows = [{"method": name, "title": name, "left_raw": None} for name in "AB"]
    rows[1]["left_raw"] = "too few"
    figure = study_plots.reliability(rows, {"A": scalings, "B": scalings})
    first, second = figure.axes
    assert len(first.get_lines()) == 4
    assert len(second.get_lines()) == 2
    np.testing.assert_allclose(first.get_lines()[1].get_xdata(), [0.2, 0.6])
    np.testing.assert_allclose(first.get_lines()[1].get_ydata(), [0.24, 0.5])
    assert "not recalibrated" in second.texts[0].get_text()
    assert study_plots.reliability([], {}) is None
