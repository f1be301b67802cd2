"""Pictures that a person would put on a slide. The only file that draws.

Every function returns a figure of its own (no global state of matplotlib);
``save`` writes it as PNG and as SVG. Colours are those of Okabe and Ito, which
people who do not see red or green tell apart; maps are dark for low and bright for
high in one direction (cividis).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from epifalcon.evaluation import curves as evaluation_curves
from epifalcon.evaluation.curves import Curve
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.statistics import MobilityStatistics
from epifalcon.studies.looks import Look
from epifalcon.types import Floats

INK = "#22303c"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PINK, YELLOW, SKY = "#b8558f", "#e69f00", "#56b4e9"
STATE_COLOURS = {
    "exposed": YELLOW,
    "infectious, no symptoms": SKY,
    "infectious, symptoms": ORANGE,
    "recovered": GREEN,
}
_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontweight": "bold", "color": INK}
_HEAT = colormaps["RdYlBu_r"]
_RISK = colormaps["cividis"]
_QUIET = "#8b969f"
_MARKERS = ("o", "s", "^", "D")
"""Of the states in the epidemic curve, beside colours and dashes."""
_MARKED_DAYS = 14
"""About as many days of a curve carry a mark."""
_LINES = (ORANGE, BLUE, GREEN, PINK, YELLOW, SKY, INK)
_DASHES = (
    *("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (9, 1.5))),
    *((0, (5, 1, 1, 1, 1, 1)), (0, (1, 2.5))),
)
"""Beside the colours, for print without any."""
_CALLED = 10
"""People from whom on a precision is drawn: that of one or two says nothing."""
_PLAIN_NUMBERS = FuncFormatter(lambda value, _: f"{value:g}")
DRAWN_CURVES = (
    "radius_of_gyration",
    "distinct",
    "zipf",
    "entropy",
    "jumps",
    "stays",
    "occupancy",
    "at_home",
)

_WIDE = 8.0
"""Inches."""


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, and as SVG beside it; equal figures, equal bytes."""
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        nobody = {"Date": None, "Creator": None}
        figure.savefig(path.with_suffix(".svg"), metadata=nobody)


def is_wide(figure: Figure) -> bool:
    """Whether the figure has several panels and takes the whole width of a page."""
    return bool(figure.get_figwidth() > _WIDE)


def epidemic_curve(
    counts: NDArray[np.int64], new_cases: NDArray[np.int64], title: str
) -> Figure:
    """People in each state by day, and new infections below.

    ``counts`` (runs, days, 5) in the order of the states, ``new_cases`` (runs,
    days). The median run is drawn, with the band of the middle 80 % of runs
    where there are several. People not infected yet are not drawn: beside so
    many the others could not be told apart.
    """
    figure = Figure(figsize=(6.8, 5.4), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(3, 1.3))
    above = _dress(figure.add_subplot(grid[0]))
    below = _dress(figure.add_subplot(grid[1]))
    days = np.arange(1, counts.shape[1] + 1)
    for index, (name, look) in enumerate(_state_looks(len(days)), start=1):
        _band(above, days, counts[:, :, index], label=name, **look)
    people = counts[0, 0].sum()
    ever = 1 - np.median(counts[:, -1, 0]) / people
    above.set_title(f"{title}: {ever:.1%} infected by day {days[-1]}", **_TITLE)
    above.set_ylabel("people at the end of the day")
    # Dashes shorter than the handle would look like a whole line.
    above.legend(frameon=False, loc="upper left", handlelength=4)
    below.bar(days, np.median(new_cases, axis=0), color=INK, alpha=0.75, width=0.8)
    if len(new_cases) > 1:
        low, high = np.quantile(new_cases, [0.1, 0.9], axis=0)
        below.vlines(days, low, high, color=STATE_COLOURS["infectious, symptoms"])
    below.set_ylabel("new infections")
    below.set_xlabel("day" + _runs_note(len(counts)))
    for axes in (above, below):
        axes.set_xlim(0.4, days[-1] + 0.6)
        axes.set_ylim(bottom=0)
        _thousands(axes)
    return figure


def attack_map(regions: Regions, rate: Floats, residents: Floats, title: str) -> Figure:
    """Regions coloured by ``rate`` (regions,), the share of their people infected.

    Yellow is the city's mean, red above, blue below. Points are sized by
    ``residents`` (regions,); areas with outlines are filled. Regions without
    people look as ``empty_look`` says.
    """
    figure = Figure(figsize=(8.2, 7.4), layout="constrained")
    axes = _dress(figure.add_subplot())
    lived_in = residents > 0
    mean = float(np.average(rate, weights=residents)) if lived_in.any() else 0.0
    spread = np.abs(rate[lived_in] - mean)
    half = float(np.quantile(spread, 0.98)) if spread.size else 0.0
    norm = CenteredNorm(mean, max(half, 1e-3))
    held = np.where(lived_in, rate, np.nan)
    drawn = _shade(axes, regions, held, residents, norm)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.7, extend="both", pad=0.02)
    bar.set_label("attack rate (share of residents infected, shrunk to the mean)")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)
    axes.set_title(title, **_TITLE)
    axes.set_aspect("equal")
    axes.set_xlabel("km")
    axes.set_ylabel("km")
    return figure


def risk_maps(
    regions: Regions, rates: Mapping[str, Floats], people: Floats, label: str
) -> Figure:
    """One map a rate, by its title, side by side on one scale: dark low, bright high.

    Each rate (regions,) is of the ``people`` (regions,) of a region; one without
    any looks as ``empty_look`` says. ``label`` names what the colours mean.
    """
    room = ConstrainedLayoutEngine(h_pad=0.12)
    figure = Figure(figsize=(4.6 * len(rates) + 1, 5), layout=room)
    panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
    lived_in = people > 0
    shown = np.concatenate([rate[lived_in] for rate in rates.values()])
    ends = np.quantile(shown, [0.01, 0.99]) if shown.size else np.zeros(2)
    norm = Normalize(float(ends[0]), float(max(ends[1], ends[0] + 1e-3)))
    for axes, (title, rate) in zip(panels, rates.items(), strict=True):
        held = np.where(lived_in, rate, np.nan)
        drawn = _shade(_dress(axes), regions, held, people, norm)
        drawn.set_cmap(_RISK)
        axes.set_title(title, **_TITLE)
        axes.set_aspect("equal")
        axes.set_xlabel("km")
    panels[0].set_ylabel("km")
    bar = figure.colorbar(drawn, ax=list(panels), shrink=0.75, extend="both", pad=0.02)
    bar.set_label(label)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    bar.outline.set_visible(False)
    return figure


def empty_look(regions: Regions) -> str:
    """How a map shows a region in which nobody is, in words."""
    return "white with stripes" if regions.outline_km is not None else "a small cross"


def precision_recall(curves: Mapping[str, Curve], extinction_recall: float) -> Figure:
    """Precision against recall of each method, from ``evaluation.curves``."""
    figure = Figure(figsize=(6.4, 5), layout="constrained")
    axes = _dress(figure.add_subplot())
    top = 0.0
    for place, ((name, ranked), look) in enumerate(
        zip(curves.items(), _looks(), strict=False)
    ):
        found = evaluation_curves.precision_recall(ranked)
        held = ranked.called >= min(_CALLED, int(ranked.people))
        top = max(top, float(found.precision[held].max()))
        # The first is the run's own and lies on top of lines that go the same way.
        axes.step(
            *(found.recall[held], found.precision[held]),
            **{"where": "pre", "label": name, "zorder": 3 - place / 10, **look},
        )
    first = next(iter(curves.values()))
    prevalence = float(first.infected / first.people)
    axes.axhline(prevalence, color=INK, linewidth=0.8, alpha=0.5)
    axes.text(0.01, prevalence - 0.01, "by chance", va="top", color=INK)
    axes.axvline(extinction_recall, color=INK, linewidth=1, linestyle=":")
    axes.text(
        extinction_recall - 0.008,
        0.02,
        f"recall {extinction_recall:.2f}\nends the epidemic: DEP",
        ha="right",
        color=INK,
    )
    axes.set(xlim=(0, 1), ylim=(0, min(1.02, 1.08 * top)))
    axes.set_xlabel("recall: share of the infected who are found")
    axes.set_ylabel("precision: infected among those called")
    axes.set_title("Precision and recall on hidden people", **_TITLE)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def training(looks: Mapping[str, Sequence[Look]]) -> Figure:
    """Loss and validation AUC by round of each trained method."""
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    loss, auc = (_dress(axes) for axes in figure.subplots(1, 2))
    for (name, seen), line in zip(looks.items(), _looks(), strict=False):
        rounds = [look.round for look in seen]
        loss.plot(rounds, [look.loss for look in seen], label=name, **line)
        auc.plot(rounds, [look.auc for look in seen], **line)
        best = max(seen, key=lambda look: look.auc)
        auc.plot(best.round, best.auc, "o", color=line["color"])
    auc.axhline(0.5, color=INK, linewidth=0.8, alpha=0.5)
    loss.set(xlabel="round", ylabel="loss")
    auc.set(xlabel="round", ylabel="AUC")
    loss.set_title("Loss on tested people", **_TITLE)
    auc.set_title("Validation AUC", **_TITLE)
    loss.legend(frameon=False)
    return figure


def mobility(statistics: MobilityStatistics, title: str) -> Figure:
    """The curves of a city's mobility, and every statistic against its band."""
    figure = Figure(figsize=(13, 9.5), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    grid = figure.add_gridspec(4, 3, width_ratios=(1, 1, 1.5))
    for index, name in enumerate(DRAWN_CURVES):
        curve = statistics.curve(name)
        axes = _dress(figure.add_subplot(grid[index // 2, index % 2]))
        axes.plot(curve.x, curve.y, color=STATE_COLOURS["recovered"], lw=2)
        axes.set_xlabel(curve.x_label, fontsize=9)
        axes.set_ylabel(curve.y_label, fontsize=9)
        if curve.log_x and curve.x.size:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(_PLAIN_NUMBERS)
        if curve.log_y and curve.y.size:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_formatter(_PLAIN_NUMBERS)
    _bands(_dress(figure.add_subplot(grid[:, 2])), statistics)
    return figure


def _bands(axes: Axes, statistics: MobilityStatistics) -> None:
    """One row a statistic: its band as a bar, its value as a dot."""
    shown = [item for item in statistics.statistics if np.isfinite(item.value)]
    for row, item in enumerate(shown):
        place = (item.value - item.low) / (item.high - item.low)
        colour = STATE_COLOURS["recovered" if item.holds else "infectious, symptoms"]
        axes.barh(row, 1, height=0.5, color="#dfe5e2", zorder=1)
        axes.scatter(np.clip(place, -0.45, 1.45), row, color=colour, s=46, zorder=3)
        axes.text(1.55, row, f"{item.value:.3g} {item.unit}", va="center", fontsize=9)
        ends = ((-0.04, "right", item.low), (1.04, "left", item.high))
        for x, side, end in ends:
            note = axes.text(x, row - 0.36, f"{end:.3g}", ha=side, va="center")
            note.set(fontsize=7.5, color="#5d6b76")
    names = [item.name.replace("_", " ") for item in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.set_ylim(len(shown) - 0.4, -0.8)
    axes.set_xlim(-0.55, 2.3)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    inside = sum(bool(item.holds) for item in shown)
    axes.set_title(f"{inside} of {len(shown)} statistics in their band", **_TITLE)


def _looks() -> Iterator[dict[str, Any]]:
    """Colour and dashes of one line after the other."""
    for colour, dashes in zip(cycle(_LINES), cycle(_DASHES), strict=False):
        yield {"color": colour, "linestyle": dashes, "linewidth": 1.8}


def _dress(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    return axes


def _state_looks(days: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each state that is drawn, with its colour, dashes and marks."""
    for (name, colour), dashes, marker in zip(
        STATE_COLOURS.items(), _DASHES, _MARKERS, strict=False
    ):
        every = max(1, days // _MARKED_DAYS)
        look = {"linestyle": dashes, "marker": marker, "markevery": every}
        yield name, {"color": colour, "markersize": 5, "lw": 2, **look}


def _band(
    axes: Axes,
    days: NDArray[np.int64],
    values: NDArray[np.int64],
    **look: Any,  # noqa: ANN401
) -> None:
    axes.plot(days, np.median(values, axis=0), **look)
    if len(values) > 1:
        low, high = np.quantile(values, [0.1, 0.9], axis=0)
        axes.fill_between(days, low, high, color=look["color"], alpha=0.18, lw=0)


def _runs_note(runs: int) -> str:
    return "" if runs == 1 else f"   (median of {runs} outbreaks, middle 80 % shaded)"


def _thousands(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _shade(
    axes: Axes, regions: Regions, rate: Floats, residents: Floats, norm: Normalize
) -> PolyCollection:
    """Draw ``rate`` (regions,), NaN where nobody is; what holds the colours."""
    shade = _scatter_points if regions.outline_km is None else _fill_areas
    return shade(axes, regions, rate, residents, norm)


def _fill_areas(
    axes: Axes, regions: Regions, rate: Floats, residents: Floats, norm: Normalize
) -> PolyCollection:
    del residents
    outlines = [regions.outline(region) for region in range(len(regions))]
    shapes = [np.zeros((0, 2)) if one is None else one for one in outlines]
    # Stripes: the middle of cividis is grey already.
    nobody = PolyCollection(
        [shapes[region] for region in np.flatnonzero(np.isnan(rate))],
        facecolors="white",
        edgecolors=_QUIET,
        hatch="/////",
        linewidths=0.3,
    )
    lived_in = np.flatnonzero(~np.isnan(rate))
    filled = PolyCollection(
        [shapes[region] for region in lived_in],
        array=rate[lived_in],
        norm=norm,
        cmap=_HEAT,
        edgecolors="white",
        linewidths=0.15,
    )
    for one in (nobody, filled):
        axes.add_collection(one)
    axes.autoscale_view()
    return filled


def _scatter_points(
    axes: Axes, regions: Regions, rate: Floats, residents: Floats, norm: Normalize
) -> PolyCollection:
    order = np.argsort(np.nan_to_num(rate, nan=-1.0), kind="stable")
    size = 4 + 60 * np.sqrt(residents / max(float(residents.max()), 1.0))
    x, y = regions.centre_km[order].T
    empty = np.isnan(rate[order])
    axes.scatter(x[empty], y[empty], s=6, marker="x", color=_QUIET, lw=0.6)
    x, y, shown = x[~empty], y[~empty], order[~empty]
    return axes.scatter(  # type: ignore[return-value]
        x, y, c=rate[shown], s=size[shown], norm=norm, cmap=_HEAT, lw=0, alpha=0.9
    )
