"""Pictures of studies: lines over a setting, points with intervals, an epidemic.

Colours are those of Okabe and Ito, which colour-blind people tell apart, and no
line is told by colour alone. Letters are large, since a phone shows pictures small.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from textwrap import fill
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
_WIDTHS, _SMALL = {1: 6.4, 2: 9.0}, 10
"""Inches by the panels in a line, and points of the smallest letters."""
_PROTOCOLS = {
    "reported": (BLUE, "o", "saw reported cases"),
    "all cases": (ORANGE, "s", "saw everybody's cases"),
    "reported, selected on test people": (BLUE, "X", "round chosen on test people"),
    "all cases, selected on test people": (
        ORANGE,
        "X",
        "saw everybody's cases, round chosen on test people",
    ),
    "truth of others": (INK, "^", "a ceiling, no method"),
}
"""Colour, mark and words, by whose results a row was shown."""
_STATES = ("susceptible", "exposed", "infectious", "recovered")
_STATE_COLOURS = (BLUE, YELLOW, ORANGE, GREEN)
_FEW_TICKS = 6
_DECADES = 300
"""Ends of a logarithmic axis as a ratio, below which 2 and 5 are written too."""
_LETTERS, _MARK, _LABEL = 12.0, 6, 30
"""Letters to an inch, to a legend's mark and to a line of a row's name."""
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
    rows: Iterable[Plain], x: Sequence[str], y: tuple[str, str], *, share: bool = False
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


def together(series: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """Lines of the same points as one, by all their names: it would hide the rest."""
    found: dict[tuple[Point, ...], list[str]] = {}
    for name, listed in series.items():
        found.setdefault(tuple(listed), []).append(name)
    return {", ".join(names): listed for listed, names in found.items()}


def lines(panels: Sequence[Panel]) -> Figure | None:
    """The panels, two in a line, one legend for all; None without a point.

    "X, the paper's" has the colour and the mark of X.
    """
    if not any(panel.series for panel in panels):
        return None
    columns = min(2, len(panels))
    down = -(-len(panels) // columns)
    figure = Figure((_WIDTHS[columns], 1.0 + 3.4 * down), layout="constrained")
    grid = figure.add_gridspec(down, columns)
    looks: dict[str, tuple[str, str]] = {}
    styles = zip(cycle(COLOURS), cycle(MARKS))
    marks: dict[str, Any] = {}
    for place, panel in enumerate(panels):
        axes = _dress(figure.add_subplot(grid[place]))
        aside = _aside(panel)
        for name, listed in panel.series.items():
            own = name.removesuffix(f", {_PAPER}")
            if own not in looks:
                looks[own] = next(styles)
            moved = [replace(one, x=one.x + aside[name]) for one in listed]
            _line(axes, name, moved, looks[own], name in panel.dashed)
        _scale(axes, panel)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        axes.set_title(panel.title, **_TITLE)
        axes.grid(alpha=0.25)
        named = _named(axes)
        marks |= {name: named[name] for name in panel.series}
    _legend(figure, marks)
    return figure


def dots(
    rows: Sequence[Plain], metrics: Mapping[str, str], title: str
) -> Figure | None:
    """One line a row: mean and interval, the paper's figure as a hollow diamond.

    ``metrics`` names each panel's metric and what it is called. Rows that saw
    everybody's cases, and ceilings, have marks of their own.
    """
    rows = [row for row in rows if row["seeds"]]
    if not rows:
        return None
    names = [fill(_label(rows, row), _LABEL) for row in rows]
    down = sum(0.36 + 0.1 * name.count("\n") for name in names)
    figure = Figure((2.2 + 2.27 * len(metrics), 1.5 + down), layout="constrained")
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
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
    panels[0].set_yticks(range(len(rows)), names)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    _legend(figure, _kinds(panels[0], rows))
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
    figure = Figure((_WIDTHS[min(2, len(measures))], 4.6), layout="constrained")
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    room = int(0.6 * _LETTERS * figure.get_figwidth() / len(measures))
    for axes, (measure, label) in zip(panels, measures.items(), strict=True):
        _dress(axes)
        for (name, listed), colour, mark in zip(
            series.items(), cycle(COLOURS), cycle(MARKS), strict=False
        ):
            across, up = (
                [Point(0, one[key]["mean"], *possible(one[key])) for one in listed]
                for key in (error[0], measure)
            )
            x, y = ([one.mean for one in held] for held in (across, up))
            look = _faint(colour) | {"marker": mark, "label": name}
            axes.errorbar(x, y, _arms(up), _arms(across), **look)
            for point, *place in zip(listed, x, y, strict=True):
                words = {"xytext": (5, 5), "textcoords": "offset points"}
                axes.annotate(str(point["copies"]), place, color=colour, **words)
        for name, ends, limit in (
            (error[0], axes.get_xlim(), axes.set_xlim),
            (measure, axes.get_ylim(), axes.set_ylim),
        ):
            means = [one[name]["mean"] for listed in series.values() for one in listed]
            limit(_readable(means, ends))
        axes.set(xlabel=fill(error[1], room), ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
        axes.grid(alpha=0.25)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    _legend(figure, _named(panels[0]), most=len(series))
    return figure


def _faint(colour: str) -> dict[str, Any]:
    """A line whose intervals are faint, so that means stay in front."""
    faint = to_rgba(colour, 0.45)
    return {"color": colour, "ecolor": faint, "elinewidth": 1.2, "capsize": 2}


def _arms(held: Sequence[Point]) -> list[list[float]]:
    """How far each interval reaches below and above its mean."""
    below = [0.0 if one.low is None else one.mean - one.low for one in held]
    above = [0.0 if one.high is None else one.high - one.mean for one in held]
    return [below, above]


def epidemic(counts: Plain, title: str, marked: Mapping[int, str]) -> Figure:
    """People in each state by day, and new infections below on the same days.

    ``counts`` has ``susceptible``, ``infectious``, ``recovered`` and ``new``, each
    (seeds, days), and ``exposed`` where that was kept. The mean over seeds is drawn,
    with the least and the most of several. ``marked`` names days by a word.
    """
    figure = Figure((6.8, 5.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    for name, colour, mark in zip(_STATES, _STATE_COLOURS, MARKS, strict=False):
        if name not in counts:
            continue
        values = np.asarray(counts[name], float)
        days = np.arange(1, values.shape[1] + 1)
        above.plot(days, values.mean(axis=0), mark + "-", color=colour, label=name)
        low, high = values.min(axis=0), values.max(axis=0)
        above.fill_between(days, low, high, color=colour, alpha=0.18, lw=0)
    new = np.asarray(counts["new"], float)
    days, mean = np.arange(1, new.shape[1] + 1), new.mean(axis=0)
    below.bar(days, mean, color="#8b959d")
    if len(new) > 1:
        arms = [mean - new.min(axis=0), new.max(axis=0) - mean]
        below.errorbar(days, mean, arms, fmt="none", ecolor=INK, elinewidth=1)
    above.set(ylabel="people at the end of the day", xlim=(0.4, days[-1] + 0.6))
    below.set(xlabel="day", ylabel="new infections")
    above.set_title(title, **_TITLE)
    above.legend(frameon=False, loc="center left", fontsize=_SMALL)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        _dress(axes).yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    words = {"ha": "right", "color": INK, "fontsize": _SMALL}
    for day, word in marked.items():
        for axes in (above, below):
            axes.axvline(day, color=INK, lw=0.8, linestyle=":", zorder=0.5)
        place = above.get_xaxis_transform()
        above.text(day - 0.12, 0.4, f"day {day}:\n{word}", transform=place, **words)
    return figure


def _legend(figure: Figure, marks: Mapping[str, Any], most: int = 4) -> None:
    """Names below the picture, as many in a line as fit; nothing for none."""
    if not marks:
        return
    letters = figure.get_figwidth() * _LETTERS
    fit = letters // (max(len(name) for name in marks) + _MARK)
    figure.legend(
        *(marks.values(), marks.keys()),
        loc="outside lower center",
        ncols=int(min(most, len(marks), max(1, fit))),
        frameon=False,
        fontsize=_SMALL,
    )


def _named(axes: Axes) -> dict[str, Any]:
    handles, names = axes.get_legend_handles_labels()
    return dict(zip(names, handles, strict=True))


def _kinds(axes: Axes, rows: Sequence[Plain]) -> dict[str, Any]:
    """Marks by what they mean; none where all rows are of one kind."""
    found = {}
    kinds = {row["protocol"] for row in rows}
    for protocol, (colour, mark, words) in _PROTOCOLS.items():
        if protocol in kinds and kinds != {"reported"}:
            (found[words],) = axes.plot([], [], mark, color=colour, ms=6)
    if any(row["published"] for row in rows):
        (found[_PAPER],) = axes.plot([], [], "D", color=INK, mfc="none")
    return found


def _scale(axes: Axes, panel: Panel) -> None:
    held = [one for line in panel.series.values() for one in line]
    places = {one.x for one in held}
    if panel.log_x:
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis, places)
    elif all(one == int(one) for one in places):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))
    if panel.log_y:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    else:
        axes.set_ylim(_readable([one.mean for one in held], axes.get_ylim()))


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


def _aside(panel: Panel) -> dict[str, float]:
    """How far each line stands to the side, so that intervals do not hide others."""
    held = [one for listed in panel.series.values() for one in listed]
    places, count = [one.x for one in held], len(panel.series)
    if panel.log_x or not any(one.low != one.high for one in held):
        return dict.fromkeys(panel.series, 0.0)
    step = min(0.012, 0.06 / count) * (max(places) - min(places))
    first = -step * (count - 1) / 2
    return {name: first + step * n for n, name in enumerate(panel.series)}


def _line(
    axes: Axes, name: str, listed: Sequence[Point], look: tuple[str, str], dashed: bool
) -> None:
    colour, mark = look
    x, y = [one.x for one in listed], [one.mean for one in listed]
    style: dict[str, Any] = {"marker": mark, "markersize": 5, "label": name}
    if dashed:
        style |= {"color": colour, "linestyle": "--", "mfc": "none"}
        axes.plot(x, y, linewidth=1.1, **style)
    else:
        style |= _faint(colour)
        axes.errorbar(x, y, _arms(listed), linewidth=1.5, **style)


def _readable(means: Sequence[float], ends: tuple[float, float]) -> tuple[float, float]:
    """Few seeds have intervals beyond all bounds: they end at the picture's edge."""
    if not means:
        return ends
    room = 0.6 * (max(means) - min(means)) + _ROOM
    return max(ends[0], min(means) - room), min(ends[1], max(means) + room)


def _dot(axes: Axes, place: int, row: Plain, metric: str) -> None:
    held = row["metrics"][metric]
    colour, mark, _ = _PROTOCOLS[row["protocol"]]
    if held["mean"] is not None:
        ends = possible(held, metric not in UNBOUNDED)
        if ends[0] is not None and ends[1] is not None:
            axes.plot([ends[0], ends[1]], [place] * 2, color=colour, lw=1.8)
        axes.plot(held["mean"], place, mark, color=colour, ms=6)
    paper = (row["published"] or {}).get(metric)
    if paper is not None:
        axes.plot(paper, place, "D", color=INK, mfc="none", ms=6)


def _label(rows: Sequence[Plain], row: Plain) -> str:
    """The row's title, and its cell where titles come more than once."""
    same = sum(other["title"] == row["title"] for other in rows)
    return f"{row['title']}, {row['cell']}" if same > 1 else row["title"]


def _dress(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=_SMALL)
    return axes
