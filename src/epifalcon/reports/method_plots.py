"""Plots that compare methods: precision and recall, differences, reliability.

Functions return a figure, or None if there is nothing to draw. Rows are those of a
study's result. A method has the same colour and dashes in all plots, whatever its
rank: by its name in the registry of methods, or by its kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from textwrap import fill
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from epifalcon.reports.plot_style import (
    BLUE,
    DARK_GREY,
    DASHES,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    SKY,
    SMALL,
    TITLE,
    YELLOW,
    few_ticks,
    handles_by_label,
    legend_below,
    style_axes,
)
from epifalcon.types import Floats, Plain

REFERENCES: Final = ("hgnn", "hbp")
"""Methods whose AUC is subtracted in ``differences``."""
_LINES: Final[Mapping[str, Sequence[tuple[str, Any]]]] = {
    "falcon-field": [(BLUE, "-")],
    "hbp": [(GREEN, DASHES[1])],
    "hgnn": [(YELLOW, DASHES[3])],
    "falcon": [(ORANGE, "-"), (PINK, DASHES[2]), (SKY, DASHES[4])],
    "oracle": [("black", DASHES[5])],
    "ceiling": [("black", DASHES[2])],
    "own": [(INK, DASHES[3])],
}
"""Colour and dashes by method, else by kind; further ones if it has several rows."""
_MOST_NAMED = 4
"""Other methods up to which each has its name; more are drawn as one."""
_OTHERS = "other methods"
_SCALINGS: Final = {
    "raw": ("#6b7680", "o", "as predicted"),
    "platt": (ORANGE, "s", "Platt"),
    "isotonic": (BLUE, "^", "isotonic"),
}
_LEAST_PEOPLE = 30
"""Of a point in the reliability diagram."""
_MOST_PANELS = 6


@dataclass(frozen=True, eq=False)
class Line:
    """Precision against recall of one method."""

    recall: Floats
    precision: Floats
    style: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``Axes.plot``, the label too."""


@dataclass(frozen=True, eq=False)
class Diagram:
    """Reliability of one method."""

    title: str
    sums: Mapping[str, Floats]
    """(3, groups) by scaling: sum of risks, infected people, people."""
    not_recalibrated: str | None = None
    """Why there is only the raw one."""


def precision_recall(
    lines: Sequence[Line],
    title: str,
    prevalence: float | None,
    extinction_recall: float | None,
) -> Figure | None:
    """Draw precision against recall, with chance and the recall of DEP."""
    if not lines:
        return None
    figure = Figure(figsize=(6.8, 6.2), layout="constrained")
    axes = style_axes(figure.add_subplot())
    for line in lines:
        axes.plot(line.recall, line.precision, **line.style)
    if prevalence is not None:
        axes.axhline(prevalence, color=INK, linewidth=0.8, alpha=0.5)
        words: dict[str, Any] = {"va": "top", "color": INK, "fontsize": SMALL}
        axes.text(0.06, prevalence - 0.008, "by chance", **words)
    if extinction_recall is not None:
        axes.axvline(extinction_recall, color=INK, linewidth=0.9, linestyle=":")
        axes.text(
            extinction_recall - 0.008,
            0.03,
            f"recall {extinction_recall:.2f} ends the epidemic: DEP",
            ha="right",
            color=INK,
            fontsize=SMALL,
            transform=axes.get_xaxis_transform(),
        )
    top = max(float(np.max(line.precision)) for line in lines)
    axes.set(xlim=(0, 1), ylim=(0, min(1.02, 1.06 * top)))
    axes.set_xlabel("recall: share of the infected who are found")
    axes.set_ylabel("precision: infected among those called")
    axes.set_title(fill(title, 55), **TITLE)
    handles = handles_by_label(axes)
    # Last the one that stands for many.
    ordered = sorted(handles.items(), key=lambda one: one[0].endswith(_OTHERS))
    legend_below(figure, dict(ordered), 2, "AUC and method")
    return figure


def method_lines(rows: Sequence[Plain], curves: Plain) -> list[Line]:
    """Return the mean curve of each row: few strong ones, the others grey."""
    rows = [row for row in rows if row["method"] in curves["methods"]]
    special = _special_lines(rows)
    others = [row for row, line in zip(rows, special, strict=True) if line is None]
    aucs = [row["metrics"]["auc"]["mean"] for row in others]
    by_name = sorted(str(row["method"]) for row in others)
    dashes = dict(zip(by_name, cycle(DASHES[1:]), strict=False))
    lines = []
    for row, own in zip(rows, special, strict=True):
        label = f"{row['metrics']['auc']['mean']:.3f}  {row['title']}"
        style: dict[str, Any]
        if own is not None:
            # Dashes in front: one sees through them.
            order = 3 if own[1] == "-" else 4
            style = {"color": own[0], "linestyle": own[1], "linewidth": 2}
            style |= {"label": label, "zorder": order}
        elif len(others) <= _MOST_NAMED:
            style = {"color": DARK_GREY, "linestyle": dashes[row["method"]]}
            style |= {"label": label, "linewidth": 1.3}
        else:
            label = f"{min(aucs):.3f} to {max(aucs):.3f}  {len(others)} {_OTHERS}"
            style = {"color": GREY, "linewidth": 0.9}
            style |= {"label": label} if row is others[0] else {}
        precision = np.asarray(curves["methods"][row["method"]]["precision"])
        lines.append(Line(np.asarray(curves["recalls"]), precision, style))
    return lines


def differences(rows: Sequence[Plain], note: str) -> Figure | None:
    """Draw each method's AUC minus that of each reference, with intervals."""
    references = [
        one for one in REFERENCES if any(_gap(row, one) is not None for row in rows)
    ]
    rows = [row for row in rows if row["by_seed"]]
    if not references:
        return None
    size = (2.6 + 3.2 * len(references), 1.5 + 0.3 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(references), sharey=True))
    for axes, reference in zip(panels, references, strict=True):
        _forest(style_axes(axes), rows, reference)
        title = next(row["title"] for row in rows if row["method"] == reference)
        axes.set_title(f"AUC minus that of {title}", **TITLE)
    panels[0].set_yticks(range(len(rows)), [row["title"] for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.supxlabel(note, fontsize=SMALL, color=INK)
    return figure


def reliability(diagrams: Sequence[Diagram]) -> Figure | None:
    """Draw infected share against risk, raw and recalibrated, of up to six methods."""
    diagrams = diagrams[:_MOST_PANELS]
    if not diagrams:
        return None
    columns = 2 if len(diagrams) == 4 else min(3, len(diagrams))
    down = -(-len(diagrams) // columns)
    # One alone needs room for the legend.
    side = 4 if columns == 1 else 3
    figure = Figure(
        figsize=(side * columns, (side + 0.2) * down + 0.5),
        layout=ConstrainedLayoutEngine(h_pad=0.1),
    )
    panels = figure.subplots(down, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, diagram in zip(panels, diagrams, strict=False):
        _diagram(style_axes(axes), diagram)
        handles |= handles_by_label(axes)
    for axes in panels[len(diagrams) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("infected share")
    legend_below(figure, handles)
    return figure


def _special_lines(rows: Sequence[Plain]) -> list[tuple[str, Any] | None]:
    """Return colour and dashes of each row; None for one of the many.

    The rows of one method take theirs in the order of the cells' labels, so that a
    setting has the same ones in every group of a study.
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
    axes.axvline(0, color=INK, linewidth=0.9)
    for place, (row, own) in enumerate(zip(rows, _special_lines(rows), strict=True)):
        gap = _gap(row, reference)
        if gap is None:
            continue
        colour = DARK_GREY if own is None else own[0]
        if gap["low"] is not None:
            axes.plot([gap["low"], gap["high"]], [place] * 2, color=colour, lw=1.8)
        filling = "white" if row["kind"] == "ceiling" else colour
        axes.plot(gap["mean"], place, "o", color=colour, mfc=filling, markersize=6)
        axes.annotate(
            f"{gap['mean']:+.3f}",
            (1.0, place),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=SMALL,
            color=INK,
        )
    low, high = axes.get_xlim()
    # Room for the numbers at the right.
    axes.set_xlim(low, high + 0.3 * (high - low))
    few_ticks(axes.xaxis)
    axes.grid(axis="y", color="#e6e8ea", linewidth=0.6)
    axes.set_axisbelow(True)


def _diagram(axes: Axes, diagram: Diagram) -> None:
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, alpha=0.5)
    most = 0.05
    for scaling, (colour, marker, label) in _SCALINGS.items():
        if scaling != "raw" and diagram.not_recalibrated is not None:
            continue
        risk, infected, people = np.asarray(diagram.sums[scaling])
        enough = people >= min(_LEAST_PEOPLE, people.max())
        x, y = risk[enough] / people[enough], infected[enough] / people[enough]
        axes.plot(x, y, marker=marker, color=colour, ms=4, lw=1.2, label=label)
        most = max(most, float(x.max()), float(y.max()))
    ends = (0, min(1.0, 1.08 * most))
    axes.set(xlim=ends, ylim=ends, xlabel="risk")
    axes.set_box_aspect(1)
    axes.set_title(fill(diagram.title, 24), fontsize=SMALL, **TITLE)
    if diagram.not_recalibrated is not None:
        note = fill(f"not recalibrated: {diagram.not_recalibrated}", 26)
        words: dict[str, Any] = {"va": "top", "fontsize": SMALL - 1, "color": INK}
        axes.text(0.02, 0.98, note, transform=axes.transAxes, **words)


def _gap(row: Plain, reference: str) -> dict[str, Any] | None:
    found = row["differences"].get(reference)
    if found is None or found["auc"]["mean"] is None:
        return None
    gap: dict[str, Any] = found["auc"]
    return gap
