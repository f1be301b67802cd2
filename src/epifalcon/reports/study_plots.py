"""Plots of methods and studies; lines differ by more than colour.

Functions return a figure, or None if there is nothing to draw. Rows are those of a
study's result. A method has the same colour and dashes in all plots, by its name in
the registry of methods or by its kind.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from textwrap import fill
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from epifalcon.reports import plot_style as theme
from epifalcon.reports.metric_registry import METRICS
from epifalcon.types import Floats, Plain

REFERENCES: Final = ("hgnn", "hbp")
"""Methods whose AUC is subtracted in ``differences``."""
_LINES: Final[Mapping[str, Sequence[tuple[str, Any]]]] = {
    "falcon-field": [(theme.BLUE, "-")],
    "hbp": [(theme.GREEN, theme.DASHES[1])],
    "hgnn": [(theme.YELLOW, theme.DASHES[3])],
    "falcon": [
        (theme.ORANGE, "-"),
        (theme.PINK, theme.DASHES[2]),
        (theme.SKY, theme.DASHES[4]),
    ],
    "oracle": [("black", theme.DASHES[5])],
    "ceiling": [("black", theme.DASHES[2])],
    "own": [(theme.INK, theme.DASHES[3])],
}
"""Colour and dashes by method, else by kind; one entry per row of the method."""
_MOST_NAMED = 4
"""Maximum number of other methods with their own label."""
_OTHERS = "other methods"
_SCALINGS: Final = {
    "raw": ("#6b7680", "o", "as predicted"),
    "platt": (theme.ORANGE, "s", "Platt"),
    "isotonic": (theme.BLUE, "^", "isotonic"),
}
_LEAST_PEOPLE = 30
"""Minimum number of people of a point in the reliability diagram."""
_MOST_PANELS = 6
_PAPER = "the paper's"
_WIDTHS = {1: 6.4, 2: 9.0}
"""Width in inches by the number of panels in a row."""
_PROTOCOLS = {
    "reported": (theme.BLUE, "o", "used reported cases"),
    "all cases": (theme.ORANGE, "s", "used all cases"),
    "reported, selected on test people": (
        theme.BLUE,
        "X",
        "round selected on test people",
    ),
    "all cases, selected on test people": (
        theme.ORANGE,
        "X",
        "used all cases, round selected on test people",
    ),
    "truth of others": (theme.INK, "^", "a ceiling, not a method"),
}
"""Colour, mark and label by protocol."""
_STATE_COLOURS = (theme.YELLOW, theme.SKY, theme.ORANGE, theme.GREEN, theme.BLUE)
"""Colours in the order of states; susceptible people last."""
_LABEL = 30
"""Characters per line of a row label."""
_ROOM = 0.1
"""Minimum margin above and below all means, for intervals."""


@dataclass(frozen=True)
class Point:
    """A mean with its interval at ``x``."""

    x: float
    mean: float
    low: float | None = None
    high: float | None = None
    x_low: float | None = None
    x_high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """One plot panel with lines by name."""

    title: str
    xlabel: str
    ylabel: str
    series: Mapping[str, Sequence[Point]]
    """A name that ends in "the paper's" has a dashed line, in the colour of ours."""
    log_x: bool = False
    log_y: bool = False


def points(
    rows: Iterable[Plain],
    x: Sequence[str],
    y: tuple[str, str],
    *,
    share: bool = False,
    label: str = "",
) -> dict[str, list[Point]]:
    """Return lines by row title: the value ``y`` over the value or fact ``x``.

    ``y`` and ``x`` name a part of a row and a key in it, such as ("metrics", "auc").
    Rows without one of the two are omitted. Intervals are clipped at 0, and at 1 if
    ``y`` is a bounded metric or ``share`` is True. With ``label``, each point is
    labelled by that fact, also has an interval in ``x``, and rows stay in order.
    """
    share = share or (y[0] == "metrics" and METRICS[y[1]].bounded)
    found: dict[str, list[Point]] = {}
    for row in rows:
        place = row[x[0]].get(x[1])
        ends = _clipped(place) if label and place is not None else (None, None)
        place = place["mean"] if isinstance(place, Mapping) else place
        value = row[y[0]].get(y[1]) if row["seeds"] else None
        if place is not None and value is not None and value["mean"] is not None:
            text = str(row["facts"][label]) if label else ""
            middle = float(place), value["mean"]
            point = Point(*middle, *_clipped(value, share), *ends, text)
            found.setdefault(row["title"], []).append(point)
    for listed in found.values() if not label else ():
        listed.sort(key=lambda one: one.x)
    return found


def merge_equal(series: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """Merge lines with equal points into one with all names."""
    found: dict[tuple[Point, ...], list[str]] = {}
    for name, listed in series.items():
        found.setdefault(tuple(listed), []).append(name)
    return {", ".join(names): listed for listed, names in found.items()}


def lines(panels: Sequence[Panel]) -> Figure | None:
    """Draw the panels, two per row, with one legend; None without any point."""
    if not any(panel.series for panel in panels):
        return None
    columns = min(2, len(panels))
    down = -(-len(panels) // columns)
    figure = Figure((_WIDTHS[columns], 1.0 + 3.4 * down), layout="constrained")
    grid = figure.add_gridspec(down, columns)
    styles = zip(cycle(theme.COLOURS), cycle(theme.MARKS))
    by_name: defaultdict[str, tuple[str, str]] = defaultdict(lambda: next(styles))
    for place, panel in enumerate(panels):
        axes = theme.style_axes(figure.add_subplot(grid[place]))
        for name, listed in panel.series.items():
            colour, mark = by_name[name.removesuffix(f", {_PAPER}")]
            dashed = name.endswith(_PAPER)
            _line(axes, listed, colour, dashed, marker=mark, label=name)
        _scale(axes, panel)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        axes.set_title(panel.title, **theme.TITLE)
        axes.grid(alpha=0.25)
    theme.legend_below(figure, theme.handles_by_label(figure))
    return figure


def dots(rows: Sequence[Plain], metrics: Sequence[str], title: str) -> Figure | None:
    """Draw mean and interval of each row, the paper's value as a hollow diamond.

    One panel per metric. Rows that used the cases of all people, and ceilings, have
    different marks.
    """
    rows = [row for row in rows if row["seeds"]]
    if not rows:
        return None
    titles = Counter(row["title"] for row in rows)
    names = []
    for row in rows:
        several = titles[row["title"]] > 1
        name = f"{row['title']}, {row['cell']}" if several else row["title"]
        names.append(fill(name, _LABEL))
    down = sum(0.36 + 0.1 * name.count("\n") for name in names)
    size = (2.2 + 2.27 * len(metrics), 1.5 + down)
    figure, panels = _row_panels(names, len(metrics), size)
    for axes, metric in zip(panels, metrics, strict=True):
        printed = [(row["published"] or {}).get(metric) for row in rows]
        for place, (row, paper) in enumerate(zip(rows, printed, strict=True)):
            colour, mark, _ = _PROTOCOLS[row["protocol"]]
            found = row["metrics"][metric]
            low, high = _clipped(found, METRICS[metric].bounded)
            if found["mean"] is not None:
                _dot(axes, place, found | {"low": low, "high": high}, colour, mark)
            if paper is not None:
                axes.plot(paper, place, "D", color=theme.INK, mfc="none", ms=6)
        axes.set_xlabel(METRICS[metric].title)
        axes.grid(alpha=0.25)
        shown = [*(row["metrics"][metric]["mean"] for row in rows), *printed]
        known = [one for one in shown if one is not None]
        axes.set_xlim(_around_means(known, axes.get_xlim()))
        theme.few_ticks(axes.xaxis)
    figure.suptitle(title, **theme.FIGURE_TITLE)
    theme.legend_below(figure, _protocol_handles(panels[0], rows))
    return figure


def epidemic_curve(
    counts: Mapping[str, NDArray[Any]],
    new_cases: NDArray[Any],
    title: str,
    marked: Mapping[int, str] | None = None,
) -> Figure:
    """Draw people in each state by day, and new infections below.

    ``counts`` by name of the state and ``new_cases`` are (runs, days). The median run
    is drawn, with the band of the middle 80 % of several runs. ``marked`` names days.
    """
    figure = Figure((6.8, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
    days = np.arange(1, new_cases.shape[1] + 1)
    several = len(new_cases) > 1
    style: dict[str, Any] = {"markersize": 5, "markevery": max(1, len(days) // 14)}
    for (name, values), colour, mark in zip(
        counts.items(), _STATE_COLOURS, theme.MARKS, strict=False
    ):
        low, median, high = np.quantile(values, [0.1, 0.5, 0.9], axis=0)
        above.plot(days, median, label=name, color=colour, marker=mark, lw=2, **style)
        if several:
            above.fill_between(days, low, high, color=colour, alpha=0.18, lw=0)
    low, median, high = np.quantile(new_cases, [0.1, 0.5, 0.9], axis=0)
    below.bar(days, median, color="#8b959d", width=0.8)
    if several:
        below.vlines(days, low, high, color=theme.INK, lw=1)
    above.set(ylabel="people at the end of the day", xlim=(0.4, days[-1] + 0.6))
    note = f"   (median of {len(new_cases)} outbreaks, middle 80 %)" if several else ""
    below.set(xlabel=f"day{note}", ylabel="new infections")
    above.set_title(title, **theme.TITLE)
    above.legend(frameon=False, loc="best", fontsize=theme.SMALL)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        theme.style_axes(axes).yaxis.set_major_formatter(theme.THOUSANDS)
        axes.set_ylim(bottom=0)
    for day, word in (marked or {}).items():
        for axes in (above, below):
            axes.axvline(day, color=theme.INK, lw=0.8, linestyle=":", zorder=0.5)
        note, place = f"day {day}:\n{word}", above.get_xaxis_transform()
        above.text(day - 0.12, 0.4, note, ha="right", transform=place, **theme.TEXT)
    return figure


def _clipped(interval: Plain, share: bool = True) -> tuple[float | None, float | None]:
    """Return the ends of an interval, clipped at 0 and, for a share, at 1."""
    low, high = interval["low"], interval["high"]
    if low is None or high is None:
        return None, None
    return max(low, 0.0), min(high, 1.0) if share else high


def _arms(points: Iterable[tuple[float, float | None, float | None]]) -> Floats:
    """Return the lengths of error bars for (middle, low, high): (2, points)."""
    reach = [
        (0.0, 0.0) if low is None or high is None else (middle - low, high - middle)
        for middle, low, high in points
    ]
    return np.transpose(reach)


def _line(
    axes: Axes,
    listed: Sequence[Point],
    colour: str,
    dashed: bool,
    **style: Any,  # noqa: ANN401
) -> None:
    x, y = [one.x for one in listed], [one.mean for one in listed]
    if dashed:
        dashes: dict[str, Any] = {"linestyle": "--", "mfc": "none", "linewidth": 1.1}
        axes.plot(x, y, color=colour, markersize=5, **dashes, **style)
        return
    style |= {"ecolor": to_rgba(colour, 0.45), "elinewidth": 1.2, "capsize": 2}
    up = across = None
    if any(one.low is not None for one in listed):
        up = _arms((one.mean, one.low, one.high) for one in listed)
    if any(one.x_low is not None for one in listed):
        across = _arms((one.x, one.x_low, one.x_high) for one in listed)
    axes.errorbar(x, y, up, across, color=colour, markersize=5, linewidth=1.5, **style)
    for one in (one for one in listed if one.label):
        place: dict[str, Any] = {"xytext": (5, 5), "textcoords": "offset points"}
        axes.annotate(one.label, (one.x, one.mean), color=colour, **place)


def _row_panels(
    names: Sequence[str], count: int, size: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels side by side with a line for each name."""
    figure = Figure(size, layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    return figure, [theme.style_axes(axes) for axes in panels]


def _dot(
    axes: Axes,
    place: int,
    interval: Plain,
    colour: str,
    mark: str = "o",
    filling: str | None = None,
) -> None:
    if interval["low"] is not None:
        ends = [interval["low"], interval["high"]]
        axes.plot(ends, [place] * 2, color=colour, lw=1.8)
    axes.plot(interval["mean"], place, mark, color=colour, mfc=filling or colour, ms=6)


def _protocol_handles(axes: Axes, rows: Sequence[Plain]) -> dict[str, Any]:
    """Return legend handles of the marks; none if all rows saw reported cases."""
    handles = {}
    used = {row["protocol"] for row in rows}
    for protocol, (colour, mark, label) in _PROTOCOLS.items():
        if protocol in used and used != {"reported"}:
            (handles[label],) = axes.plot([], [], mark, color=colour, ms=6)
    if any(row["published"] for row in rows):
        (handles[_PAPER],) = axes.plot([], [], "D", color=theme.INK, mfc="none")
    return handles


def _scale(axes: Axes, panel: Panel) -> None:
    shown = [one for line in panel.series.values() for one in line]
    if panel.log_x:
        axes.set_xscale("log")
        theme.plain_ticks(axes.xaxis)
    elif all(one.x == int(one.x) for one in shown):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        theme.few_ticks(axes.xaxis)
        if any(one.x_low is not None for one in shown):
            axes.set_xlim(_around_means([one.x for one in shown], axes.get_xlim()))
    if panel.log_y:
        axes.set_yscale("log")
        theme.plain_ticks(axes.yaxis)
    else:
        axes.set_ylim(_around_means([one.mean for one in shown], axes.get_ylim()))


def _around_means(
    means: Sequence[float], ends: tuple[float, float]
) -> tuple[float, float]:
    """Return axis limits that clip intervals far wider than the range of means."""
    if not means:
        return ends
    room = 0.6 * (max(means) - min(means)) + _ROOM
    return max(ends[0], min(means) - room), min(ends[1], max(means) + room)


def precision_recall(
    rows: Sequence[Plain],
    curves: Plain,
    title: str,
    prevalence: float | None,
    extinction_recall: float | None,
) -> Figure | None:
    """Draw precision against recall of each row, with chance and the recall of DEP.

    ``curves`` holds the recalls and, by method, the precision at each.
    """
    rows = [row for row in rows if row["method"] in curves["methods"]]
    if not rows:
        return None
    figure = Figure(figsize=(6.8, 6.2), layout="constrained")
    axes = theme.style_axes(figure.add_subplot())
    precision = [curves["methods"][row["method"]]["precision"] for row in rows]
    for values, style in zip(precision, method_styles(rows), strict=True):
        axes.plot(curves["recalls"], values, **style)
    if prevalence is not None:
        axes.axhline(prevalence, color=theme.INK, linewidth=0.8, alpha=0.5)
        axes.text(0.06, prevalence - 0.008, "by chance", va="top", **theme.TEXT)
    if extinction_recall is not None:
        axes.axvline(extinction_recall, color=theme.INK, linewidth=0.9, linestyle=":")
        x, place = extinction_recall - 0.008, axes.get_xaxis_transform()
        note = f"recall {extinction_recall:.2f} ends the epidemic: DEP"
        axes.text(x, 0.03, note, ha="right", transform=place, **theme.TEXT)
    axes.set(xlim=(0, 1), ylim=(0, min(1.02, 1.06 * np.max(precision))))
    axes.set_xlabel("recall: share of the infected who are found")
    axes.set_ylabel("precision: infected among those called")
    axes.set_title(fill(title, 55), **theme.TITLE)
    handles = theme.handles_by_label(figure).items()
    # The entry for many methods comes last.
    ordered = sorted(handles, key=lambda one: one[0].endswith(_OTHERS))
    theme.legend_below(figure, dict(ordered), 2, "AUC and method")
    return figure


def method_styles(rows: Sequence[Plain]) -> list[dict[str, Any]]:
    """Return the line style of each row: selected methods in colour, others grey."""
    special = _special_lines(rows)
    others = [row for row, line in zip(rows, special, strict=True) if line is None]
    aucs = [row["metrics"]["auc"]["mean"] for row in others]
    by_name = sorted(str(row["method"]) for row in others)
    dashes = dict(zip(by_name, cycle(theme.DASHES[1:]), strict=False))
    styles = []
    for row, own in zip(rows, special, strict=True):
        label = f"{row['metrics']['auc']['mean']:.3f}  {row['title']}"
        style: dict[str, Any]
        if own is not None:
            # Dashed lines in front, so that both lines stay visible.
            order = 3 if own[1] == "-" else 4
            style = {"color": own[0], "linestyle": own[1], "linewidth": 2}
            style |= {"label": label, "zorder": order}
        elif len(others) <= _MOST_NAMED:
            style = {"color": theme.DARK_GREY, "linestyle": dashes[row["method"]]}
            style |= {"label": label, "linewidth": 1.3}
        else:
            label = f"{min(aucs):.3f} to {max(aucs):.3f}  {len(others)} {_OTHERS}"
            style = {"color": theme.GREY, "linewidth": 0.9}
            style |= {"label": label} if row is others[0] else {}
        styles.append(style)
    return styles


def differences(rows: Sequence[Plain], note: str) -> Figure | None:
    """Draw each method's AUC minus that of each reference, with intervals."""
    references = [
        one for one in REFERENCES if any(_gap(row, one) is not None for row in rows)
    ]
    rows = [row for row in rows if row["by_seed"]]
    if not references:
        return None
    size = (2.6 + 3.2 * len(references), 1.5 + 0.3 * len(rows))
    names = [row["title"] for row in rows]
    figure, panels = _row_panels(names, len(references), size)
    for axes, reference in zip(panels, references, strict=True):
        _forest(axes, rows, reference)
        title = next(row["title"] for row in rows if row["method"] == reference)
        axes.set_title(f"AUC minus that of {title}", **theme.TITLE)
    figure.supxlabel(note, fontsize=theme.SMALL, color=theme.INK)
    return figure


def reliability(
    rows: Sequence[Plain], sums: Mapping[str, Mapping[str, Floats]]
) -> Figure | None:
    """Draw infected share against risk, raw and recalibrated, for up to six methods.

    ``sums`` holds, by method and scaling, the sum of risks, infected people and people
    of each group, (3, groups).
    """
    rows = rows[:_MOST_PANELS]
    if not rows:
        return None
    columns = 2 if len(rows) == 4 else min(3, len(rows))
    down = -(-len(rows) // columns)
    # A single panel needs space for the legend.
    side = 4 if columns == 1 else 3
    size = (side * columns, (side + 0.2) * down + 0.5)
    figure = Figure(size, layout=ConstrainedLayoutEngine(h_pad=0.1))
    panels = figure.subplots(down, columns, squeeze=False).ravel()
    for axes, row in zip(panels, rows, strict=False):
        _diagram(theme.style_axes(axes), row, sums[row["method"]])
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("infected share")
    theme.legend_below(figure, theme.handles_by_label(figure))
    return figure


def _special_lines(rows: Sequence[Plain]) -> list[tuple[str, Any] | None]:
    """Return colour and dashes of each row; None for other methods.

    Rows of one method are assigned in the order of cell labels, so that a setting
    looks the same in every group of a study.
    """
    found: list[tuple[str, Any] | None] = []
    for row in rows:
        method = str(row["method"]).partition(":")[0]
        listed = _LINES.get(method) or _LINES.get(row["kind"])
        same = sorted(
            str(other.get("cell", ""))
            for other in rows
            if str(other["method"]).partition(":")[0] == method
        )
        place = same.index(str(row.get("cell", "")))
        found.append(None if listed is None else listed[place % len(listed)])
    return found


def _forest(axes: Axes, rows: Sequence[Plain], reference: str) -> None:
    axes.axvline(0, color=theme.INK, linewidth=0.9)
    for place, (row, own) in enumerate(zip(rows, _special_lines(rows), strict=True)):
        gap = _gap(row, reference)
        if gap is None:
            continue
        colour = theme.DARK_GREY if own is None else own[0]
        filling = "white" if row["kind"] == "ceiling" else None
        _dot(axes, place, gap, colour, filling=filling)
        style = theme.TEXT | {"ha": "right", "va": "center"}
        at_right, text = axes.get_yaxis_transform(), f"{gap['mean']:+.3f}"
        axes.text(1.0, place, text, transform=at_right, **style)
    low, high = axes.get_xlim()
    # Space for the numbers at the right.
    axes.set_xlim(low, high + 0.3 * (high - low))
    theme.few_ticks(axes.xaxis)
    axes.grid(axis="y", color="#e6e8ea", linewidth=0.6)
    axes.set_axisbelow(True)


def _diagram(axes: Axes, row: Plain, sums: Mapping[str, Floats]) -> None:
    axes.plot([0, 1], [0, 1], color=theme.INK, linewidth=0.8, alpha=0.5)
    most, not_recalibrated = 0.05, row["left_raw"]
    for scaling, (colour, marker, label) in _SCALINGS.items():
        if scaling != "raw" and not_recalibrated is not None:
            continue
        risk, infected, people = np.asarray(sums[scaling])
        enough = people >= min(_LEAST_PEOPLE, people.max())
        x, y = risk[enough] / people[enough], infected[enough] / people[enough]
        axes.plot(x, y, marker=marker, color=colour, ms=4, lw=1.2, label=label)
        most = max(most, float(x.max()), float(y.max()))
    ends = (0, min(1.0, 1.08 * most))
    axes.set(xlim=ends, ylim=ends, xlabel="risk")
    axes.set_box_aspect(1)
    axes.set_title(fill(row["title"], 24), fontsize=theme.SMALL, **theme.TITLE)
    if not_recalibrated is not None:
        note = fill(f"not recalibrated: {not_recalibrated}", 26)
        style = theme.TEXT | {"fontsize": theme.SMALL - 1, "va": "top"}
        axes.text(0.02, 0.98, note, transform=axes.transAxes, **style)


def _gap(row: Plain, reference: str) -> dict[str, Any] | None:
    gap: dict[str, Any] | None = row["differences"].get(reference, {}).get("auc")
    return None if gap is None or gap["mean"] is None else gap
