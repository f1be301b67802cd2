"""Pictures of a comparison: curves, differences, reliability. Draws, nothing else.

Every function takes the result and the curves of ``studies.comparison`` and
returns a figure of its own, or None where there is nothing to draw. A method has
one colour and one kind of dashes in all of them, whatever its rank.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from textwrap import fill
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from epifalcon.studies.figures import BLUE, GREEN, INK, ORANGE, PINK, SKY, YELLOW
from epifalcon.studies.measurements import SCALINGS
from epifalcon.types import Plain

_TITLE: Final[dict[str, Any]] = {"loc": "left", "fontweight": "bold", "color": INK}
_FIRST = ("falcon", "hgnn", "hbp")
"""Whose reliability comes first: every other is held against them."""
_SMALL = 10
"""Points of the smallest letters."""
_DASHES: Final[tuple[Any, ...]] = (
    *((0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5))),
    *((0, (2, 1)), (0, (8, 2))),
)
_LOOKS: Final[dict[str, tuple[str, Any]]] = {
    "falcon-field": (BLUE, "-"),
    "hbp": (GREEN, _DASHES[0]),
    "hgnn": (YELLOW, _DASHES[2]),
    "falcon": (ORANGE, "-"),
    "falcon, off": (PINK, _DASHES[1]),
    "falcon, all cases": (SKY, _DASHES[3]),
    "oracle": ("black", _DASHES[4]),
    "ceiling": ("black", _DASHES[1]),
    "own": (INK, _DASHES[2]),
}
"""Colour and dashes, by ``_role``."""
_QUIET, _QUIET_DOT = "#b7bfc6", "#7b868f"
_NAMED = 4
"""Other methods up to which each has its name; more are drawn as one."""
_OTHERS = "other methods"
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
    figure = Figure(figsize=(6.8, 6.4), layout="constrained")
    axes = _dress(figure.add_subplot())
    for row, look in zip(rows, _line_looks(rows), strict=True):
        precision = curves["methods"][row["method"]]["precision"]
        axes.plot(curves["recalls"], precision, **look)
    if result["prevalence"] is not None:
        axes.axhline(result["prevalence"], color=INK, linewidth=0.8, alpha=0.5)
        place = result["prevalence"] - 0.008
        axes.text(0.06, place, "by chance", va="top", color=INK, fontsize=_SMALL)
    if result["extinction_recall"] is not None:
        _extinction_line(axes, result["extinction_recall"])
    top = max(max(one["precision"]) for one in curves["methods"].values())
    axes.set(xlim=(0.05, 1), ylim=(0, min(1.0, 1.06 * top)))
    axes.set(xlabel="recall", ylabel="precision")
    title = _in_group(result, "Precision and recall on hidden people")
    axes.set_title(f"{fill(title, 50)},\n{_seeds_note(result)}", **_TITLE)
    handles, names = axes.get_legend_handles_labels()
    # By rank, and last those that stand for many.
    order = sorted(range(len(names)), key=lambda one: names[one].endswith(_OTHERS))
    figure.legend(
        *([handles[one] for one in order], [names[one] for one in order]),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=_SMALL,
        title="AUC and method",
        alignment="left",
        handlelength=3,
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
        figsize=(2.6 + 3.2 * len(references), 1.5 + 0.3 * len(rows)),
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
    figure.supxlabel(_in_group(result, note), fontsize=_SMALL, color=INK)
    return figure


def reliability(result: Plain, curves: Plain) -> Figure | None:
    """Infected share against risk, raw and recalibrated, for a few methods.

    Falcon, HGNN and HBP first, then the best of the others; all seeds together.
    """
    rows = [row for row in _with_curves(result, curves) if row["kind"] != "ceiling"]
    rows.sort(key=lambda row: row["method"] not in _FIRST)
    rows = rows[:_PANELS]
    if not rows:
        return None
    columns = 2 if len(rows) == 4 else min(3, len(rows))
    lines = -(-len(rows) // columns)
    # One alone needs room for the legend.
    side = 4 if columns == 1 else 3
    figure = Figure(
        figsize=(side * columns, (side + 0.2) * lines + 0.5),
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
        fontsize=_SMALL,
    )
    return figure


def _role(row: Plain) -> str | None:
    """What a row's look goes by; None for one of the many."""
    # A study adds the cell where a method comes again.
    method = str(row["method"]).partition(":")[0]
    title = str(row.get("method_title") or row["title"])
    if method == "falcon" and "ALL CASES" in title:
        return "falcon, all cases"
    if method == "falcon" and title.endswith(", off"):
        return "falcon, off"
    if method in _LOOKS:
        return method
    return row["kind"] if row["kind"] in ("ceiling", "own") else None


def _line_looks(rows: Sequence[Plain]) -> Iterator[dict[str, Any]]:
    """How each row's curve looks and is called: few strong ones, the others quiet."""
    others = [row for row in rows if _role(row) is None]
    aucs = [row["metrics"]["auc"]["mean"] for row in others]
    by_name = sorted(str(row["method"]) for row in others)
    dashes = dict(zip(by_name, cycle(_DASHES), strict=False))
    for row in rows:
        role = _role(row)
        label = f"{row['metrics']['auc']['mean']:.3f}  {row['title']}"
        if role is not None:
            colour, line = _LOOKS[role]
            # Dashes in front: one sees through them.
            order = 3 if line == "-" else 4
            look: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 2}
            yield look | {"label": label, "zorder": order}
        elif len(others) <= _NAMED:
            look = {"color": _QUIET_DOT, "linestyle": dashes[row["method"]]}
            yield look | {"label": label, "linewidth": 1.3}
        else:
            label = f"{min(aucs):.3f} to {max(aucs):.3f}  {len(others)} {_OTHERS}"
            look = {"color": _QUIET, "linestyle": "-", "linewidth": 0.9}
            yield look | ({"label": label} if row is others[0] else {})


def _extinction_line(axes: Axes, recall: float) -> None:
    axes.axvline(recall, color=INK, linewidth=0.9, linestyle=":")
    axes.text(
        recall - 0.008,
        0.03,
        f"recall {recall:.2f} ends the epidemic: DEP",
        ha="right",
        color=INK,
        fontsize=_SMALL,
        transform=axes.get_xaxis_transform(),
    )


def _forest(axes: Axes, rows: Sequence[Plain], reference: str) -> None:
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, row in enumerate(rows):
        gap = _gap(row, reference)
        if gap is None:
            continue
        role = _role(row)
        colour = _QUIET_DOT if role is None else _LOOKS[role][0]
        if gap["low"] is not None:
            axes.plot([gap["low"], gap["high"]], [place] * 2, color=colour, lw=1.8)
        hollow = "white" if row["kind"] == "ceiling" else colour
        axes.plot(gap["mean"], place, "o", color=colour, mfc=hollow, markersize=6)
        axes.annotate(
            f"{gap['mean']:+.3f}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=_SMALL,
            color=INK,
        )
    low, high = axes.get_xlim()
    # Room for the numbers at the right.
    axes.set_xlim(low, high + 0.3 * (high - low))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))
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
    axes.set_title(fill(row["title"], 24), fontsize=_SMALL, **_TITLE)
    if row["left_raw"] is not None:
        axes.text(
            *(0.02, 0.98),
            fill(f"not recalibrated: {row['left_raw']}", 26),
            transform=axes.transAxes,
            va="top",
            fontsize=_SMALL - 1,
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
    axes.tick_params(colors=INK, labelsize=_SMALL)
    return axes


def _seeds_note(result: Plain) -> str:
    seeds = len(result["seeds"])
    return f"mean of {seeds} seeds" if seeds > 1 else "one seed"


def _in_group(result: Plain, words: str) -> str:
    """With the name of the group where a study has several."""
    group = result.get("group")
    return f"{group}: {words}" if group else words
