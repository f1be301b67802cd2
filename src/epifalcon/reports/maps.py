"""Maps of regions: outlines filled, or points where regions have no outline."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from epifalcon.mobility.regions import Regions
from epifalcon.reports.plot_style import PERCENT, TITLE, style_axes
from epifalcon.types import Floats

_EMPTY = "#8b969f"
_PRIOR_PEOPLE = 20


def shrunk_rate(total: Floats, people: Floats) -> Floats:
    """Return ``total`` per person of each region, shrunk to the city's mean.

    Both (regions,). A region's rate is averaged with the city's as if 20 average
    people lived there too; otherwise a map would show little but regions of two
    residents.
    """
    mean = total.sum() / max(people.sum(), 1)
    return np.asarray((total + _PRIOR_PEOPLE * mean) / (people + _PRIOR_PEOPLE))


def risk_maps(
    regions: Regions, rates: Mapping[str, Floats], people: Floats, label: str
) -> Figure:
    """Draw one map per rate, by title, on one scale: dark low, bright high.

    Each rate (regions,) is of the ``people`` (regions,) of a region; ``label`` names
    what the colours mean.
    """
    room = ConstrainedLayoutEngine(h_pad=0.12)
    figure = Figure(figsize=(4.6 * len(rates) + 1, 5), layout=room)
    panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
    lived_in = people > 0
    shown = np.concatenate([rate[lived_in] for rate in rates.values()])
    ends = np.quantile(shown, [0.01, 0.99]) if shown.size else np.zeros(2)
    norm = Normalize(float(ends[0]), float(max(ends[1], ends[0] + 1e-3)))
    for axes, (title, rate) in zip(panels, rates.items(), strict=True):
        drawn = _draw(axes, title, regions, rate, people, norm)
    panels[0].set_ylabel("km")
    bar = figure.colorbar(drawn, ax=list(panels), shrink=0.75, extend="both", pad=0.02)
    bar.set_label(label)
    bar.ax.yaxis.set_major_formatter(PERCENT)
    bar.outline.set_visible(False)
    return figure


def empty_region_style(regions: Regions) -> str:
    """Describe how a map shows a region without people."""
    return "white with stripes" if regions.outline_km is not None else "a small cross"


def _draw(
    axes: Axes,
    title: str,
    regions: Regions,
    rate: Floats,
    people: Floats,
    norm: Normalize,
) -> PolyCollection:
    """Draw one map; return what holds the colours."""
    style_axes(axes).set_title(title, **TITLE)
    axes.set_aspect("equal")
    axes.set_xlabel("km")
    empty = people <= 0
    if regions.outline_km is not None:
        outlines = [regions.outline(region) for region in range(len(regions))]
        shapes = [np.zeros((0, 2)) if one is None else one for one in outlines]
        # Stripes: the middle of cividis is grey already.
        without = PolyCollection(
            [shapes[region] for region in np.flatnonzero(empty)],
            facecolors="white",
            edgecolors=_EMPTY,
            hatch="/////",
            linewidths=0.3,
        )
        filled = PolyCollection(
            [shapes[region] for region in np.flatnonzero(~empty)],
            array=rate[~empty],
            norm=norm,
            cmap="cividis",
            edgecolors="white",
            linewidths=0.15,
        )
        axes.add_collection(without)
        axes.add_collection(filled)
        axes.autoscale_view()
        return filled
    x, y = regions.centre_km[empty].T
    axes.scatter(x, y, s=6, marker="x", color=_EMPTY, lw=0.6)
    # The highest rates in front.
    order = np.flatnonzero(~empty)[np.argsort(rate[~empty], kind="stable")]
    size = 4 + 60 * np.sqrt(people / max(float(people.max()), 1.0))
    x, y = regions.centre_km[order].T
    return axes.scatter(  # type: ignore[return-value]
        x, y, c=rate[order], s=size[order], norm=norm, cmap="cividis", lw=0, alpha=0.9
    )
