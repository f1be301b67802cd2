"""Pictures of a comparison: curves, differences, reliability. Draws, nothing else.

Every function takes the result and the curves of ``studies.comparison`` and
returns a figure of its own, or None where there is nothing to draw.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from epifalcon.studies.figures import BLUE, GREEN, INK, ORANGE
from epifalcon.studies.measurements import SCALINGS
from epifalcon.types import Plain

_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontweight": "bold", "color": INK}
_STRONG = {"falcon": ORANGE, "hgnn": BLUE, "hbp": GREEN}
"""Of the methods that every other is held against."""
_DASHES = {"paper": "-", "reference": (0, (4, 1.5)), "own": (0, (1, 1))}
_SCALING_LOOKS = {
    "raw": ("#6b7680", "o", "as told"),
    "platt": (ORANGE, "s", "Platt"),
    "isotonic": (BLUE, "^", "isotonic"),
}
_LEAST_PEOPLE = 30
"""Of a point in the reliability diagram."""
_PANELS = 6


def precision_recall(result: Plain, curves: Plain) -> Figure | None:
    """Precision against recall of each method, the mean over seeds."""
    rows = _with_curves(result, curves)
    if not rows:
        return None
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    axes = _dress(figure.add_subplot())
    rest = iter(colormaps["tab20"](np.arange(20) % 20))
    for row in rows:
        axes.plot(
            curves["recalls"],
            curves["methods"][row["method"]]["precision"],
            label=f"{row['metrics']['auc']['mean']:.3f}  {row['title']}",
            **_line(row, rest),
        )
    if result["prevalence"] is not None:
        axes.axhline(result["prevalence"], color=INK, linewidth=0.8, alpha=0.5)
        place = result["prevalence"] - 0.008
        axes.text(0.06, place, "by chance", va="top", color=INK, fontsize=9)
    if result["extinction_recall"] is not None:
        _extinction_line(axes, result["extinction_recall"])
    top = max(max(one["precision"]) for one in curves["methods"].values())
    axes.set(xlim=(0.05, 1), ylim=(0, min(1.0, 1.06 * top)))
    axes.set(xlabel="recall", ylabel="precision")
    title = f"Precision and recall on hidden people{_seeds_note(result)}"
    axes.set_title(_in_group(result, title), **_TITLE)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside right center",
        frameon=False,
        fontsize=8.5,
        title="AUC",
        alignment="left",
    )
    return figure


def differences(result: Plain) -> Figure | None:
    """Each method's AUC minus that of each reference, with intervals over seeds."""
    references = [
        one
        for one in ("hgnn", "hbp")
        if any(_gap(row, one) is not None for row in result["rows"])
    ]
    rows = [row for row in result["rows"] if row["by_seed"]]
    if not references:
        return None
    figure = Figure(
        figsize=(3.2 + 3.6 * len(references), 1.5 + 0.3 * len(rows)),
        layout="constrained",
    )
    panels = np.atleast_1d(figure.subplots(1, len(references), sharey=True))
    for axes, reference in zip(panels, references, strict=True):
        _forest(_dress(axes), rows, reference)
        title = next(row["title"] for row in rows if row["method"] == reference)
        axes.set_title(f"AUC minus that of {title}", **_TITLE)
    first = panels[0]
    first.set_yticks(range(len(rows)), [row["title"] for row in rows])
    first.set_ylim(len(rows) - 0.4, -0.6)
    seeds = len(result["seeds"])
    note = (
        f"mean and 95 % interval over {seeds} paired seeds"
        if seeds > 1
        else "one seed: no interval, nothing may be claimed"
    )
    figure.supxlabel(_in_group(result, note), fontsize=9, color=INK)
    return figure


def reliability(result: Plain, curves: Plain) -> Figure | None:
    """Infected share against risk, raw and recalibrated, for a few methods.

    Falcon, HGNN and HBP first, then the best of the others; all seeds together.
    """
    rows = [row for row in _with_curves(result, curves) if row["kind"] != "ceiling"]
    rows.sort(key=lambda row: row["method"] not in _STRONG)
    rows = rows[:_PANELS]
    if not rows:
        return None
    columns = 2 if len(rows) == 4 else min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(
        figsize=(3.5 * columns, 3.7 * lines + 0.5),
        layout=ConstrainedLayoutEngine(h_pad=0.1),
    )
    panels = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).ravel()
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    for axes, row in zip(panels, rows, strict=False):
        _diagram(_dress(axes), row, curves["methods"][row["method"]]["reliability"])
    for axes in panels[::columns]:
        axes.set_ylabel("infected share")
    # A method that was not recalibrated has fewer marks than the others.
    marks = {
        name: handle
        for axes in panels[: len(rows)]
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        marks.values(),
        marks.keys(),
        loc="outside lower center",
        ncols=len(marks),
        frameon=False,
    )
    return figure


def _line(row: Plain, rest: Any) -> dict[str, Any]:  # noqa: ANN401
    """How a method's curve looks: few strong ones among many quiet ones."""
    if row["kind"] == "ceiling":
        return {"color": INK, "linestyle": (0, (1, 1.5)), "linewidth": 1.8}
    if row["method"] in _STRONG:
        return {"color": _STRONG[row["method"]], "linewidth": 2.4, "zorder": 3}
    dashes = _DASHES.get(row["kind"], "-")
    return {"color": next(rest, INK), "linestyle": dashes, "linewidth": 1.1}


def _extinction_line(axes: Axes, recall: float) -> None:
    axes.axvline(recall, color=INK, linewidth=0.9, linestyle=":")
    axes.text(
        recall - 0.008,
        0.03,
        f"recall {recall:.2f} ends the epidemic: DEP",
        ha="right",
        color=INK,
        fontsize=9,
        transform=axes.get_xaxis_transform(),
    )


def _forest(axes: Axes, rows: Sequence[Plain], reference: str) -> None:
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, row in enumerate(rows):
        gap = _gap(row, reference)
        if gap is None:
            continue
        colour = (
            INK if row["kind"] == "ceiling" else _STRONG.get(row["method"], "#5d6b76")
        )
        if gap["low"] is not None:
            axes.plot([gap["low"], gap["high"]], [place] * 2, color=colour, lw=1.8)
        hollow = "white" if row["kind"] == "ceiling" else colour
        axes.plot(gap["mean"], place, "o", color=colour, mfc=hollow, markersize=5)
        axes.annotate(
            f"{gap['mean']:+.3f}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=7.5,
            color=INK,
        )
    low, high = axes.get_xlim()
    # Room for the numbers at the right.
    axes.set_xlim(low, high + 0.22 * (high - low))
    axes.grid(axis="y", color="#e6e8ea", linewidth=0.6)
    axes.set_axisbelow(True)


def _diagram(axes: Axes, row: Plain, sums_by_scaling: Sequence[Any]) -> None:
    """The reliability diagram of one method."""
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, alpha=0.5)
    most = 0.05
    for scaling, sums in zip(SCALINGS, sums_by_scaling, strict=True):
        if scaling != "raw" and row["left_raw"] is not None:
            continue
        risk, infected, people = np.asarray(sums)
        held = people >= min(_LEAST_PEOPLE, people.max())
        x, y = risk[held] / people[held], infected[held] / people[held]
        colour, marker, label = _SCALING_LOOKS[scaling]
        axes.plot(x, y, marker=marker, color=colour, ms=4, lw=1.2, label=label)
        most = max(most, float(x.max()), float(y.max()))
    ends = (0, min(1.0, 1.08 * most))
    axes.set(xlim=ends, ylim=ends, xlabel="risk")
    axes.set_box_aspect(1)
    axes.set_title(row["title"], fontsize=10.5, **_TITLE)
    if row["left_raw"] is not None:
        axes.text(
            *(0.02, 0.98),
            "not recalibrated:\ntoo few masked people",
            transform=axes.transAxes,
            va="top",
            fontsize=7.5,
            color=INK,
        )


def _gap(row: Plain, reference: str) -> dict[str, Any] | None:
    found = row["differences"].get(reference)
    if found is None or found["auc"]["mean"] is None:
        return None
    gap: dict[str, Any] = found["auc"]
    return gap


def _with_curves(result: Plain, curves: Plain) -> list[Plain]:
    return [row for row in result["rows"] if row["method"] in curves["methods"]]


def _dress(axes: Axes) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    return axes


def _seeds_note(result: Plain) -> str:
    seeds = len(result["seeds"])
    return f", mean of {seeds} seeds" if seeds > 1 else ", one seed"


def _in_group(result: Plain, words: str) -> str:
    """With the name of the group where a study has several."""
    group = result.get("group")
    return f"{group}: {words}" if group else words
