"""Pictures of studies: lines over a setting, points with intervals, an epidemic.

Colours are those of Okabe and Ito, which colour-blind people tell apart, and no
line is told by colour alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter

from epifalcon.studies.figures import BLUE, GREEN, INK, ORANGE, PINK, SKY, YELLOW
from epifalcon.types import Plain

COLOURS: Final = (ORANGE, BLUE, GREEN, YELLOW, PINK, SKY, INK)
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontweight": "bold", "color": INK}
_PAPER = "the paper's"
UNBOUNDED: Final = ("log_loss",)
"""Metrics that may be more than 1."""
_FEW_TICKS = 6
_DECADES = 300
"""Ends of a logarithmic axis as a ratio, below which 2 and 5 are written too."""
_LETTERS, _MARK = 13.0, 6
"""Letters to an inch of a legend, and those that a mark takes."""
_ROOM = 0.1
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
    rows: Iterable[Plain],
    x: Sequence[str],
    y: tuple[str, str],
    *,
    share: bool = False,
) -> dict[str, list[Point]]:
    """Lines by the rows' titles: the figure ``y`` over the figure or fact ``x``.

    ``y`` is the part of a row and the name there, as ("metrics", "auc"); ``x`` the
    same. Rows without one of the two are left out. Intervals end at 0, and at 1
    where ``y`` is a metric or ``share`` says that it cannot be more.
    """
    share = share or (y[0] == "metrics" and y[1] not in UNBOUNDED)
    found: dict[str, list[Point]] = {}
    for row in rows:
        place = _value(row, *x)
        held = row[y[0]].get(y[1]) if row["seeds"] else None
        if place is None or held is None or held["mean"] is None:
            continue
        point = Point(place, held["mean"], *possible(held, share))
        found.setdefault(row["title"], []).append(point)
    return {
        name: sorted(listed, key=lambda one: one.x) for name, listed in found.items()
    }


def possible(interval: Plain, share: bool = True) -> tuple[float | None, float | None]:
    """The ends of an interval, no lower than 0 and, of a share, no higher than 1.

    Of two or three seeds a t interval may pass both; a picture need not.
    """
    low, high = interval["low"], interval["high"]
    if low is None or high is None:
        return None, None
    return max(low, 0.0), min(high, 1.0) if share else high


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
        aside = _aside(panel)
        for name, listed in panel.series.items():
            looks.setdefault(name, next(styles))
            moved = [replace(one, x=one.x + aside[name]) for one in listed]
            _line(axes, name, moved, looks[name], name in panel.dashed)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        places = {one.x for line in panel.series.values() for one in line}
        if panel.log_x:
            axes.set_xscale("log")
            _plain_ticks(axes.xaxis, places)
        elif all(one == int(one) for one in places):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if panel.log_y:
            axes.set_yscale("log")
            _plain_ticks(axes.yaxis)
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
        ncols=_columns(figure, marks),
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
        printed = [(row["published"] or {}).get(metric) for row in rows]
        drawn = [*(row["metrics"][metric]["mean"] for row in rows), *printed]
        axes.set_xlim(
            _readable([one for one in drawn if one is not None], axes.get_xlim())
        )
    panels[0].set_yticks(range(len(rows)), [_label(rows, row) for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    if any(row["published"] for row in rows):
        panels[0].plot([], [], "D", color=INK, mfc="none", label=_PAPER)
        figure.legend(loc="outside lower center", frameon=False, fontsize=9)
    return figure


def tradeoff(
    series: Mapping[str, Sequence[Plain]],
    error: tuple[str, str],
    measures: Mapping[str, str],
    title: str,
) -> Figure:
    """One panel a measure, one line a kind: what an attack gets wrong against it.

    A point has ``copies`` and, under the name of ``error`` (name, label) and of
    each of ``measures`` (label by name), a share with its interval.
    """
    figure = Figure(figsize=(5.6 * len(measures), 5), layout="constrained")
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for axes, (measure, label) in zip(panels, measures.items(), strict=True):
        _dress(axes)
        for (name, listed), colour, mark in zip(
            series.items(), cycle(COLOURS), cycle(MARKS), strict=False
        ):
            across, up = (
                [point[one] for point in listed] for one in (error[0], measure)
            )
            x, y = ([one["mean"] for one in held] for held in (across, up))
            look: dict[str, Any] = {"color": colour, "marker": mark, "label": name}
            look |= _faint(colour)
            axes.errorbar(x, y, _arms(up), _arms(across), capsize=2, **look)
            for point, *place in zip(listed, x, y, strict=True):
                words = {"xytext": (5, 5), "textcoords": "offset points"}
                axes.annotate(str(point["copies"]), place, color=colour, **words)
        for name, ends, limit in (
            (error[0], axes.get_xlim(), axes.set_xlim),
            (measure, axes.get_ylim(), axes.set_ylim),
        ):
            means = [one[name]["mean"] for listed in series.values() for one in listed]
            limit(_readable(means, ends))
        axes.set(xlabel=error[1], ylabel=label)
        axes.grid(alpha=0.25)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(series),
        frameon=False,
        fontsize=9,
    )
    return figure


def _faint(colour: str) -> dict[str, Any]:
    """How intervals look, so that means stay in front."""
    return {"ecolor": to_rgba(colour, 0.45), "elinewidth": 1.2}


def _arms(held: Sequence[Plain]) -> list[list[float]]:
    """How far each interval reaches below and above its mean."""
    ends = [possible(one) for one in held]
    below = [
        0.0 if low is None else one["mean"] - low
        for one, (low, _) in zip(held, ends, strict=True)
    ]
    above = [
        0.0 if high is None else high - one["mean"]
        for one, (_, high) in zip(held, ends, strict=True)
    ]
    return [below, above]


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


def _plain_ticks(axis: Axis, places: Collection[float] = ()) -> None:
    """Numbers as people write them; at ``places`` alone where these are few sizes."""
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.set_minor_formatter(NullFormatter())
    low, high = axis.get_view_interval()
    held = sorted(places)
    apart = all(after > 1.3 * before for before, after in pairwise(held))
    if 1 < len(held) <= _FEW_TICKS and apart and all(one == int(one) for one in held):
        axis.set_major_locator(FixedLocator(held))
    elif high < _DECADES * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _columns(figure: Figure, names: Iterable[str]) -> int:
    """How many names stand in a line of the legend without leaving the picture."""
    listed = list(names)
    letters = figure.get_figwidth() * _LETTERS
    longest = max(len(name) for name in listed) + _MARK
    return int(min(4, len(listed), max(1, letters // longest)))


def _aside(panel: Panel) -> dict[str, float]:
    """How far each line stands to the side, so that intervals do not hide others."""
    places = [one.x for listed in panel.series.values() for one in listed]
    count = len(panel.series)
    if panel.log_x or not places:
        return dict.fromkeys(panel.series, 0.0)
    step = min(0.012, 0.06 / count) * (max(places) - min(places))
    return {
        name: (place - (count - 1) / 2) * step
        for place, name in enumerate(panel.series)
    }


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
    style |= _faint(colour)
    axes.errorbar(x, y, [below, above], capsize=2, linewidth=1.5, **style)


def _keep_means_readable(axes: Axes, panel: Panel) -> None:
    means = [one.mean for listed in panel.series.values() for one in listed]
    axes.set_ylim(_readable(means, axes.get_ylim()))


def _readable(means: Sequence[float], ends: tuple[float, float]) -> tuple[float, float]:
    """Few seeds have intervals beyond all bounds: they end at the picture's edge."""
    if not means:
        return ends
    room = 0.6 * (max(means) - min(means)) + _ROOM
    return max(ends[0], min(means) - room), min(ends[1], max(means) + room)


def _dot(axes: Axes, place: int, row: Plain, metric: str) -> None:
    held = row["metrics"][metric]
    leaks = row["protocol"] != "reported"
    colour = COLOURS[0] if leaks else COLOURS[1]
    if held["mean"] is not None:
        ends = possible(held, metric not in UNBOUNDED)
        if ends[0] is not None and ends[1] is not None:
            axes.plot([ends[0], ends[1]], [place] * 2, color=colour, lw=1.8)
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
