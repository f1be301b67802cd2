"""Pictures of studies: lines over a setting, points with intervals, an epidemic.

Colours are those of Okabe and Ito, which colour-blind people tell apart, and no
line is told by colour alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from epifalcon.studies.figures import INK
from epifalcon.types import Plain

COLOURS: Final = (
    *("#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000"),
)
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontweight": "bold", "color": INK}
_PAPER = "the paper's"
_ROOM = 0.03
"""Above and below all means at least, for intervals."""


@dataclass(frozen=True)
class Point:
    """A mean and its interval, at a place."""

    x: float
    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines by name over one setting."""

    title: str
    xlabel: str
    ylabel: str
    series: Mapping[str, Sequence[Point]]
    dashed: frozenset[str] = field(default_factory=frozenset)
    """Lines that are not ours."""
    log_x: bool = False
    log_y: bool = False


def points(
    rows: Iterable[Plain], x: Sequence[str], y: tuple[str, str]
) -> dict[str, list[Point]]:
    """Lines by the rows' titles: the figure ``y`` over the figure or fact ``x``.

    ``y`` is the part of a row and the name there, as ("metrics", "auc"); ``x`` the
    same. Rows without one of the two are left out.
    """
    found: dict[str, list[Point]] = {}
    for row in rows:
        place = _value(row, *x)
        held = row[y[0]].get(y[1]) if row["seeds"] else None
        if place is None or held is None or held["mean"] is None:
            continue
        point = Point(place, held["mean"], held["low"], held["high"])
        found.setdefault(row["title"], []).append(point)
    return {
        name: sorted(listed, key=lambda one: one.x) for name, listed in found.items()
    }


def lines(panels: Sequence[Panel]) -> Figure | None:
    """The panels side by side, one legend for all; None without a point."""
    if not any(panel.series for panel in panels):
        return None
    figure = Figure(figsize=(1.8 + 4.6 * len(panels), 4.8), layout="constrained")
    looks: dict[str, tuple[str, str]] = {}
    styles = zip(cycle(COLOURS), cycle(MARKS))
    for axes, panel in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True
    ):
        _dress(axes)
        for name, listed in panel.series.items():
            looks.setdefault(name, next(styles))
            _line(axes, name, listed, looks[name], name in panel.dashed)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
        else:
            _keep_means_readable(axes, panel)
        axes.set_title(panel.title, **_TITLE)
        axes.grid(alpha=0.25)
    marks = {
        name: mark
        for axes in figure.axes
        for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        marks.values(),
        marks.keys(),
        loc="outside lower center",
        ncols=min(4, len(marks)),
        frameon=False,
        fontsize=9,
    )
    return figure


def dots(
    rows: Sequence[Plain], metrics: Mapping[str, str], title: str
) -> Figure | None:
    """One line a row: mean and interval, the paper's figure as a hollow diamond.

    ``metrics`` names each panel's metric and what it is called.
    """
    rows = [row for row in rows if row["seeds"]]
    if not rows:
        return None
    figure = Figure(
        figsize=(4.2 + 3.2 * len(metrics), 1.6 + 0.32 * len(rows)),
        layout="constrained",
    )
    panels = np.atleast_1d(figure.subplots(1, len(metrics), sharey=True))
    for axes, (metric, name) in zip(panels, metrics.items(), strict=True):
        _dress(axes)
        for place, row in enumerate(rows):
            _dot(axes, place, row, metric)
        axes.set_xlabel(name)
        axes.grid(alpha=0.25)
    panels[0].set_yticks(range(len(rows)), [_label(rows, row) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    if any(row["published"] for row in rows):
        panels[0].plot([], [], "D", color=INK, mfc="none", label=_PAPER)
        figure.legend(loc="outside lower center", frameon=False, fontsize=9)
    return figure


def epidemic(counts: Plain, title: str) -> Figure:
    """Susceptible, infectious and recovered people by day, new cases below.

    ``counts`` has ``susceptible``, ``infectious``, ``recovered`` and ``new``, each
    (seeds, days). The mean over seeds is drawn, with the least and the most.
    """
    figure = Figure(figsize=(8.4, 5.8), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(3, 1.4))
    above = _dress(figure.add_subplot(grid[0]))
    below = _dress(figure.add_subplot(grid[1]))
    looks = zip(
        ("susceptible", "infectious", "recovered"), COLOURS[1::-1], strict=False
    )
    styles = dict(looks) | {"recovered": COLOURS[2]}
    for (name, colour), mark in zip(styles.items(), MARKS, strict=False):
        values = np.asarray(counts[name], float)
        days = np.arange(1, values.shape[1] + 1)
        above.plot(days, values.mean(axis=0), mark + "-", color=colour, label=name)
        low, high = values.min(axis=0), values.max(axis=0)
        above.fill_between(days, low, high, color=colour, alpha=0.18, lw=0)
    new = np.asarray(counts["new"], float)
    below.bar(np.arange(1, new.shape[1] + 1), new.mean(axis=0), color=INK, alpha=0.75)
    above.set_ylabel("people at the end of the day")
    below.set(xlabel="day", ylabel="new infections")
    above.set_title(title, **_TITLE)
    above.legend(frameon=False)
    for axes in (above, below):
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def _value(row: Plain, part: str, name: str) -> float | None:
    found = row[part].get(name)
    if isinstance(found, Mapping):
        found = found["mean"]
    return None if found is None else float(found)


def _line(
    axes: Axes, name: str, listed: Sequence[Point], look: tuple[str, str], dashed: bool
) -> None:
    colour, mark = look
    x, y = [one.x for one in listed], [one.mean for one in listed]
    style: dict[str, Any] = {"color": colour, "marker": mark, "markersize": 5}
    style["label"] = name
    if dashed:
        axes.plot(x, y, linestyle="--", mfc="none", linewidth=1.1, **style)
        return
    below = [0.0 if one.low is None else one.mean - one.low for one in listed]
    above = [0.0 if one.high is None else one.high - one.mean for one in listed]
    axes.errorbar(x, y, [below, above], capsize=2, linewidth=1.5, **style)


def _keep_means_readable(axes: Axes, panel: Panel) -> None:
    """Few seeds have intervals beyond all bounds: they end at the picture's edge."""
    means = [one.mean for listed in panel.series.values() for one in listed]
    if means:
        room = 0.6 * (max(means) - min(means)) + _ROOM
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, min(means) - room), min(high, max(means) + room))


def _dot(axes: Axes, place: int, row: Plain, metric: str) -> None:
    held = row["metrics"][metric]
    leaks = row["protocol"] != "reported"
    colour = COLOURS[0] if leaks else COLOURS[1]
    if held["mean"] is not None:
        if held["low"] is not None:
            axes.plot([held["low"], held["high"]], [place] * 2, color=colour, lw=1.8)
        axes.plot(held["mean"], place, "s" if leaks else "o", color=colour, ms=5)
    paper = (row["published"] or {}).get(metric)
    if paper is not None:
        axes.plot(paper, place, "D", color=INK, mfc="none", ms=5)


def _label(rows: Sequence[Plain], row: Plain) -> str:
    """The row's title, and its cell where titles come more than once."""
    same = sum(other["title"] == row["title"] for other in rows)
    return f"{row['title']}, {row['cell']}" if same > 1 else row["title"]


def _dress(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    return axes
