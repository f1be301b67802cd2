"""Colours, axes and files of all plots.

Colours are those of Okabe and Ito, which colour-blind people can distinguish; lines
differ by dashes or marks too, for print without colour.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from epifalcon.reports.html_page import Picture
from epifalcon.reports.tables import write_csv

INK: Final = "#22303c"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PINK, YELLOW, SKY = "#b8558f", "#e69f00", "#56b4e9"
GREY, DARK_GREY = "#b7bfc6", "#7b868f"
COLOURS: Final = (ORANGE, BLUE, GREEN, YELLOW, PINK, SKY, INK)
DASHES: Final[tuple[Any, ...]] = (
    *("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1))),
    *((0, (8, 2)), (0, (5, 1, 1, 1, 1, 1))),
)
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
TITLE: Final[dict[str, Any]] = {"loc": "left", "fontweight": "bold", "color": INK}
FIGURE_TITLE: Final = {"x": 0.01, "ha": "left", "fontweight": "bold", "color": INK}
SMALL: Final = 10
"""Smallest font size in points; plots are small on phones."""
TEXT: Final[dict[str, Any]] = {"color": INK, "fontsize": SMALL}
_LETTERS_PER_INCH, _LEGEND_MARK = 12.0, 6
_WIDE_INCHES = 8.0
_DPI = 150
THOUSANDS: Final = FuncFormatter(lambda value, _: f"{value:,.0f}")
PERCENT: Final = FuncFormatter(lambda value, _: f"{value:.0%}")


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG and SVG; equal figures give equal bytes."""
    FigureCanvasAgg(figure)
    for text in figure.findobj(Text):
        # Names may contain "$", which is not the start of a formula here.
        text.set_parse_math(False)
    # Compute the layout once. A layout engine costs each file an additional drawing.
    figure.set_dpi(_DPI)
    figure.draw_without_rendering()
    figure.set_layout_engine(None)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(
            path.with_suffix(".svg"), metadata={"Date": None, "Creator": None}
        )


def picture(
    figure: Figure,
    path: Path,
    caption: str,
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[Any]] = (),
) -> Picture:
    """Write the figure and, with ``columns``, its numbers as CSV beside it."""
    save(figure, path)
    if columns:
        write_csv(path.with_suffix(".csv"), columns, rows)
    return Picture(path, caption, wide=bool(figure.get_figwidth() > _WIDE_INCHES))


def style_axes(axes: Axes) -> Axes:
    """Remove the upper and right spine, set colour and size of the tick labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=SMALL)
    return axes


def few_ticks(axis: Axis) -> None:
    """Show about five ticks at round numbers."""
    axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 5, 10)))


def plain_ticks(axis: Axis) -> None:
    """Label a log axis with plain numbers, also 2 and 5 if it has few decades."""
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.set_minor_formatter(NullFormatter())
    low, high = axis.get_view_interval()
    if high < 300 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def handles_by_label(figure: Figure) -> dict[str, Any]:
    """Return the legend handles of all axes by label."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    return found


def legend_below(
    figure: Figure, handles: Mapping[str, Any], most: int = 4, title: str | None = None
) -> None:
    """Add a legend below the plot with as many columns as fit, if it has handles."""
    if not handles:
        return
    letters = figure.get_figwidth() * _LETTERS_PER_INCH
    fit = letters // (max(len(name) for name in handles) + _LEGEND_MARK)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=int(min(most, len(handles), max(1, fit))),
        frameon=False,
        fontsize=SMALL,
        title=title,
        alignment="left",
        handlelength=3,
    )
