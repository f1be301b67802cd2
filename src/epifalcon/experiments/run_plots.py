"""The plots of a run, each as PNG and SVG, and its numbers as CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from epifalcon.belief_propagation.saved_state import SavedField
from epifalcon.epidemic.outbreak import STATES, Outbreak
from epifalcon.evaluation.metrics import sums_by_bin
from epifalcon.experiments.expected_found import ExpectedFound
from epifalcon.experiments.run_folder import RECALLS, SCALINGS, precision_at_recalls
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.methods.registry import entry
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.statistics import MobilityStatistics, home_regions
from epifalcon.mobility.traces import Traces
from epifalcon.reports import plot_style, study_plots
from epifalcon.reports.html_page import Picture
from epifalcon.reports.plot_style import TITLE, picture, style_axes
from epifalcon.reports.study_plots import Panel, Point, epidemic_curve
from epifalcon.types import Floats, RegionIds

_PLOTTED_STATES = (
    *("exposed", "infectious, no symptoms", "infectious, symptoms", "recovered"),
)
_PLOTTED_CURVES = (
    *("radius_of_gyration", "distinct", "zipf", "entropy", "jumps", "stays"),
    *("occupancy", "at_home"),
)
_GROUPS, _LEAST_IN_GROUP = 10, 30
"""Maximum number of groups of a reliability diagram; minimum people per group."""
_EMPTY = "#8b969f"
_PRIOR_PEOPLE = 20
_CROPPED, _MARGIN, _LEAST_MARGIN_KM = 0.005, 0.08, 0.2
"""Share of people's time outside of a map on each side, and the margin around it."""
_MOST_DATES = 8


def write_epidemic_curve(
    folder: Path, outbreaks: Sequence[Outbreak], title: str
) -> Picture:
    """Draw people in each state by day, the median of several outbreaks."""
    counts = np.stack([one.counts_by_day() for one in outbreaks])
    new_cases = np.stack([one.new_cases_by_day() for one in outbreaks])
    days, people = counts.shape[1], counts[0, 0].sum()
    spared = float(np.median(counts[:, -1, 0]))
    by_state = {
        name: counts[:, :, state] for state, name in enumerate(_PLOTTED_STATES, start=1)
    }
    title += f": {1 - spared / people:.1%} infected by day {days}"
    figure = epidemic_curve(by_state, new_cases, title)
    rows = [
        [day + 1, *np.median(counts[:, day], axis=0), np.median(new_cases[:, day])]
        for day in range(days)
    ]
    columns = ["day", *STATES, "new_infections"]
    caption = (
        "People in each state at the end of each day, and new infections below, "
        "without those initially infected. Susceptible people "
        f"({spared:,.0f} of {people:,} at the end) are only in the CSV file."
    )
    path = folder / "epidemic-curve.png"
    return picture(figure, path, caption, columns, rows)


def _row(one: Evaluation) -> dict[str, Any]:
    """Return the row of a method for plots, as those of a study."""
    return {
        "method": one.method,
        "title": one.title,
        "kind": entry(one.method).kind,
        "metrics": {"auc": {"mean": one.metrics.auc or 0}},
        "left_raw": one.left_raw,
    }


def write_precision_recall(
    folder: Path, evaluations: Sequence[Evaluation]
) -> Picture | None:
    """Draw precision against recall; None if no hidden person is infected."""
    if not evaluations or not evaluations[0].metrics.infected:
        return None
    metrics, title = evaluations[0].metrics, "Precision and recall on hidden people"
    precision = {
        one.method: {"precision": precision_at_recalls(one.ranked["raw"])}
        for one in evaluations
    }
    figure = study_plots.precision_recall(
        [_row(one) for one in evaluations],
        {"recalls": RECALLS, "methods": precision},
        title,
        metrics.prevalence,
        metrics.extinction_recall,
    )
    assert figure is not None
    rows = [
        [method, *point]
        for method, values in precision.items()
        for point in zip(RECALLS, values["precision"], strict=True)
    ]
    columns = ["method", "recall", "precision"]
    reached = "; ".join(
        f"{one.title} {one.metrics.dep or 0:.0%}" for one in evaluations
    )
    caption = (
        "Precision against recall on hidden people; higher is better. The dotted line "
        "is the recall that would end the epidemic; the precision there is the disease "
        f"extinction precision (DEP): {reached}. The grey line is chance."
    )
    path = folder / "precision-recall.png"
    return picture(figure, path, caption, columns, rows)


def write_reliability(
    folder: Path, evaluations: Sequence[Evaluation]
) -> Picture | None:
    """Draw infected share against risk; None if no method predicts probabilities."""
    shown = [one for one in evaluations if one.metrics.mean_risk is not None]
    sums: dict[str, dict[str, Floats]] = {}
    for one in shown:
        groups = max(1, min(_GROUPS, len(one.risk) // _LEAST_IN_GROUP))
        binned = {
            name: sums_by_bin(one.ranked[name], groups, "mass") for name in SCALINGS
        }
        sums[one.method] = {
            name: found[:, found[2] > 0] for name, found in binned.items()
        }
    figure = study_plots.reliability([_row(one) for one in shown], sums)
    if figure is None:
        return None
    columns = ["method", "risk_is", "mean_risk", "infected_share", "people"]
    rows = [
        [method, scaling, risk / people, infected / people, int(people)]
        for method, by_scaling in sums.items()
        for scaling, group_sums in by_scaling.items()
        for risk, infected, people in group_sums.T
    ]
    listed = "; ".join(f"{one.title} {one.metrics.ece_mass:.3f}" for one in shown)
    caption = (
        "Infected share of hidden people against predicted risk: on the diagonal, 20 "
        f"of 100 people with a risk of 20 % are infected. Each point is one of "
        f"{_GROUPS} groups of equally many people, or fewer groups if they would have "
        f"fewer than {_LEAST_IN_GROUP} people. Platt and isotonic: recalibrated on "
        "masked people, who were tested but whose results were withheld. Calibration "
        f"error in equal groups: {listed}."
    )
    path = folder / "reliability.png"
    return picture(figure, path, caption, columns, rows)


def write_training(folder: Path, outcomes: Sequence[Outcome]) -> Picture | None:
    """Draw loss and validation AUC by round; None if nothing was trained in rounds."""
    trained = [one for one in outcomes if one.checks]
    if not trained:
        return None
    losses, aucs, rows = {}, {}, []
    for one in trained:
        best = one.diagnostics["best_round"]
        losses[one.title] = [Point(check.round, check.loss) for check in one.checks]
        aucs[one.title] = [
            Point(check.round, check.auc, label="best" if check.round == best else "")
            for check in one.checks
        ]
        for check in one.checks:
            epsilon = check.epsilon if np.isfinite(check.epsilon) else None
            rows.append([one.method, check.round, check.loss, check.auc, epsilon])
    figure = study_plots.lines(
        [
            Panel("Loss on tested people", "round", "loss", losses),
            Panel("Validation AUC", "round", "AUC", aucs),
        ]
    )
    assert figure is not None
    columns = ["method", "round", "loss", "validation_auc", "epsilon"]
    best_rounds = "; ".join(
        f"{one.title}: round {one.diagnostics['best_round']} with AUC "
        f"{one.diagnostics['validation_auc']:.3f}"
        for one in trained
    )
    caption = (
        "Loss on tested people, and AUC on validation people, who were tested but held "
        "back, or on test people if these selected the round; the best is the selected "
        f"round. {best_rounds}. The AUC of few people is uncertain."
    )
    path = folder / "training.png"
    return picture(figure, path, caption, columns, rows)


def write_attack_map(
    folder: Path, traces: Traces, outbreak: Outbreak, title: str
) -> None:
    """Draw the share of each region's residents who were infected."""
    home, regions = home_regions(traces), len(traces.regions)
    residents = _sum_by_home(home, regions)
    infected = _sum_by_home(home, regions, outbreak.ever_infected())
    rates = {f"{title}: attack rate by home region": shrunk_rate(infected, residents)}
    label = "share of residents infected"
    figure = risk_maps(traces.regions, rates, residents, label)
    plot_style.save(figure, folder / "attack-map.png")


def write_expected_found(folder: Path, found: ExpectedFound) -> Picture:
    """Draw the expected number of infected people by the number of people tested."""
    count = np.arange(1, len(found.expected) + 1)
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes = style_axes(figure.add_subplot())
    axes.fill_between(count, found.low, found.high, color=plot_style.SKY, alpha=0.35)
    axes.plot(count, found.expected, color=plot_style.BLUE, lw=2, label="highest risks")
    axes.plot(
        count,
        count * found.at_random,
        color=plot_style.DARK_GREY,
        lw=1.5,
        ls=(0, (5, 1.5)),
        label="at random",
    )
    axes.set(xlabel="people tested", ylabel="expected infected")
    axes.set_xlim(0, len(count))
    axes.set_ylim(0, None)
    axes.legend(frameon=False, loc="upper left")
    caption = (
        "Expected number of infected people among the untested people with the highest "
        "risk, by how many of them are tested; the band is the 95 % interval."
    )
    rows = zip(count.tolist(), found.expected, found.low, found.high, strict=True)
    columns = ["people_tested", "expected_infected", "low", "high"]
    return picture(figure, folder / "expected-found.png", caption, columns, rows)


def write_infections(folder: Path, days: Sequence[str], by_day: Floats) -> Picture:
    """Draw the expected number of infections on each day."""
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes = style_axes(figure.add_subplot())
    axes.bar(np.arange(len(days)), by_day, color=plot_style.BLUE, width=0.8)
    step = max(1, -(-len(days) // _MOST_DATES))
    axes.set_xticks(np.arange(0, len(days), step), list(days)[::step], rotation=35)
    axes.set(ylabel="expected infections")
    caption = (
        f"Expected number of new infections by day, {days[0]} to {days[-1]}, given "
        "all test results. Infections of the last days are the least certain: few "
        "tests follow them."
    )
    rows = zip(days, by_day.tolist(), strict=True)
    columns = ["day", "expected_infections"]
    return picture(figure, folder / "infections.png", caption, columns, rows)


def write_risk_map(
    folder: Path, traces: Traces, outcome: Outcome, numbered: Sequence[int] = ()
) -> Picture | None:
    """Draw regions by predicted and true risk; None if they have no coordinates.

    The map shows where people spend their time. ``numbered`` regions get numbers from
    1, with their names in the caption.
    """
    if not traces.regions.placed:
        return None
    home, evaluation = home_regions(traces), outcome.evaluation
    title = f"Predicted: {outcome.title}"
    rates = {title: outcome.scores.risk}
    if evaluation is not None:
        home = home[evaluation.person]
        rates = {title: evaluation.risk}
        if evaluation.isotonic is not None:
            rates = {f"{title}, recalibrated": evaluation.isotonic}
        rates["True"] = evaluation.infected.astype(float)
    regions = len(traces.regions)
    people = _sum_by_home(home, regions)
    lived_in = people > 0
    if not lived_in.any():
        return None
    total = {name: _sum_by_home(home, regions, rate) for name, rate in rates.items()}
    shown = {name: shrunk_rate(one, people) for name, one in total.items()}
    columns, values = ["predicted"], [*shown.values()]
    if evaluation is not None:
        # Not for real people: the mean of a single resident is that person's risk.
        columns = ["predicted", "true", "predicted_mean", "true_mean"]
        values += [one / np.maximum(people, 1) for one in total.values()]
    rows = [
        [
            region,
            traces.regions.name(region),
            *traces.regions.centre_km[region],
            int(people[region]),
            *(value[region] for value in values),
        ]
        for region in np.flatnonzero(lived_in).tolist()
    ]
    columns = ["region", "name", "x_km", "y_km", "people", *columns]
    figure = risk_maps(traces.regions, shown, people, "risk")
    if evaluation is None:
        _crop(figure, traces)
    _number(figure, traces.regions, numbered)
    what = "Mean predicted risk of the people who spend the night in a region"
    agreement = ""
    if evaluation is not None:
        what = (
            "Hidden people by the region where they spend the night: mean predicted "
            "risk, and the share truly infected, on one scale"
        )
        both = [one[lived_in] for one in shown.values()]
        agreement = f" Correlation of the two: {_correlation(both, people[lived_in])}."
    empty = "striped" if traces.regions.outline_km is not None else "a small cross"
    caption = (
        f"{what}. Each region's mean is shrunk to the mean of the city, as if "
        f"{_PRIOR_PEOPLE} more people of mean risk lived there; a region without "
        f"residents is {empty}.{agreement}"
    )
    if numbered:
        names = (
            f"{number} {traces.regions.title(region)}"
            for number, region in enumerate(numbered, 1)
        )
        caption += f" Places with the most expected infections: {', '.join(names)}."
    path = folder / "risk-map.png"
    return picture(figure, path, caption, columns, rows)


def _crop(figure: Figure, traces: Traces) -> None:
    """Limit maps to the regions in which people spend nearly all of their time."""
    centre = traces.regions.centre_km
    time = np.zeros(len(centre))
    for slot in range(traces.slots):
        time += traces.occupancy(slot)
    limits = []
    for axis in (0, 1):
        order = np.argsort(centre[:, axis])
        share = np.cumsum(time[order]) / max(time.sum(), 1)
        ends = np.searchsorted(share, [_CROPPED, 1 - _CROPPED])
        low, high = centre[order[np.minimum(ends, len(order) - 1)], axis]
        pad = max(_MARGIN * (high - low), _LEAST_MARGIN_KM)
        limits.append((float(low - pad), float(high + pad)))
    for axes in figure.axes:
        # The last of the axes is the colour bar.
        if axes.get_title(loc="left"):
            axes.set_xlim(*limits[0])
            axes.set_ylim(*limits[1])


def _number(figure: Figure, regions: Regions, numbered: Sequence[int]) -> None:
    """Write numbers from 1 on the centres of regions."""
    outline = [withStroke(linewidth=2.5, foreground="white")]
    # The first in front.
    for number, region in reversed([*enumerate(numbered, 1)]):
        figure.axes[0].annotate(
            str(number),
            regions.centre_km[region].tolist(),
            color=plot_style.INK,
            fontsize=plot_style.SMALL,
            fontweight="bold",
            xytext=(4, 4),
            textcoords="offset points",
            path_effects=outline,
            annotation_clip=True,
        )


def write_released_map(folder: Path, regions: Regions, field: SavedField) -> Picture:
    """Draw regions by the share of infectious people estimated from noised sums."""
    crowd = np.maximum(field.graph.present[-1, 1:] - 1, 0)
    share = field.sums.infectious[-1, 1:] / np.maximum(crowd, 1e-9)
    title, columns = "Estimated from noised sums", ["region", "name", "x_km", "y_km"]
    rows = [
        [region, regions.name(region), *regions.centre_km[region], crowd[region], value]
        for region, value in enumerate(share.tolist())
    ]
    figure = risk_maps(regions, {title: share}, crowd, "share infectious")
    caption = (
        "Share of people in a region who are infectious at the end of the last day, "
        "estimated from released sums only. Differences that noise explains are "
        "shrunk to zero."
    )
    columns += ["estimated_people", "estimated_share"]
    return picture(figure, folder / "released-map.png", caption, columns, rows)


def _sum_by_home(
    home: RegionIds, regions: int, values: NDArray[Any] | None = None
) -> Floats:
    """Return the sum of ``values`` over the residents of each region, or their number.

    ``home`` and ``values`` are (people,); people without a home region are left out.
    """
    has_home = home >= 0
    weights = None if values is None else values[has_home]
    return np.bincount(home[has_home], weights, regions).astype(float)


def _correlation(both: Sequence[Floats], weight: Floats) -> str:
    """Return Pearson's correlation weighted by people; "undefined" if constant."""
    covariance = np.cov(np.stack(both), aweights=weight, ddof=0)
    spread = float(covariance[0, 0] * covariance[1, 1])
    return f"{covariance[0, 1] / spread**0.5:.2f}" if spread > 1e-18 else "undefined"


def write_mobility(folder: Path, statistics: MobilityStatistics, title: str) -> Picture:
    """Draw the mobility curves of a city."""
    rows = []
    for name in _PLOTTED_CURVES:
        line = statistics.curve(name)
        points = zip(line.x.tolist(), line.y.tolist(), strict=True)
        rows += [[name, line.x_label, x, line.y_label, y] for x, y in points]
    columns = ["curve", "x_is", "x", "y_is", "y"]
    inside = sum(bool(item.holds) for item in statistics.statistics)
    caption = (
        f"Mobility curves; {inside} of {len(statistics.statistics)} statistics are in "
        "their plausible band."
    )
    figure, path = mobility_plot(statistics, title), folder / "mobility.png"
    return picture(figure, path, caption, columns, rows)


def mobility_plot(statistics: MobilityStatistics, title: str) -> Figure:
    """Draw what ``write_mobility`` writes."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    figure.suptitle(title, **plot_style.FIGURE_TITLE)
    for axes, name in zip(figure.subplots(2, 4).ravel(), _PLOTTED_CURVES, strict=True):
        line = statistics.curve(name)
        style_axes(axes).plot(line.x, line.y, color=plot_style.GREEN, lw=2)
        axes.set_xlabel(line.x_label, fontsize=plot_style.SMALL)
        axes.set_ylabel(line.y_label, fontsize=plot_style.SMALL)
        if line.log_x and line.x.size:
            axes.set_xscale("log")
            plot_style.plain_ticks(axes.xaxis)
        if line.log_y and line.y.size:
            axes.set_yscale("log")
            plot_style.plain_ticks(axes.yaxis)
    return figure


def shrunk_rate(total: Floats, people: Floats) -> Floats:
    """Return ``total`` per person of each region (regions,), shrunk to the city's mean.

    Without this, a map would mainly show regions with few residents.
    """
    mean = total.sum() / max(people.sum(), 1)
    return np.asarray((total + _PRIOR_PEOPLE * mean) / (people + _PRIOR_PEOPLE))


def risk_maps(
    regions: Regions, rates: Mapping[str, Floats], people: Floats, label: str
) -> Figure:
    """Draw one map for each title in ``rates``, all with the same colour scale."""
    room = ConstrainedLayoutEngine(h_pad=0.12)
    figure = Figure(figsize=(4.6 * len(rates) + 1, 5), layout=room)
    panels = figure.subplots(1, len(rates), sharex=True, sharey=True, squeeze=False)[0]
    lived_in = people > 0
    shown = np.concatenate([rate[lived_in] for rate in rates.values()])
    ends = np.quantile(shown, [0.01, 0.99]) if shown.size else np.zeros(2)
    norm = Normalize(float(ends[0]), float(max(ends[1], ends[0] + 1e-3)))
    for axes, (title, rate) in zip(panels, rates.items(), strict=True):
        collection = _draw(axes, title, regions, rate, people, norm)
    panels[0].set_ylabel("km")
    bar = figure.colorbar(
        collection, ax=list(panels), shrink=0.75, extend="both", pad=0.02
    )
    bar.set_label(label)
    bar.ax.yaxis.set_major_formatter(plot_style.PERCENT)
    bar.outline.set_visible(False)
    return figure


def _draw(
    axes: Axes,
    title: str,
    regions: Regions,
    rate: Floats,
    people: Floats,
    norm: Normalize,
) -> PolyCollection:
    """Draw one map; return the coloured collection, for the colour bar."""
    style_axes(axes).set_title(title, **TITLE)
    axes.set_aspect("equal")
    axes.set_xlabel("km")
    empty = people <= 0
    if regions.outline_km is not None:
        outlines = [regions.outline(region) for region in range(len(regions))]
        shapes = [np.zeros((0, 2)) if one is None else one for one in outlines]
        without, lived_in = (
            [shapes[region] for region in np.flatnonzero(chosen)]
            for chosen in (empty, ~empty)
        )
        # Stripes: the middle of cividis is grey already.
        stripes: Any = {"facecolors": "white", "edgecolors": _EMPTY, "hatch": "/////"}
        axes.add_collection(PolyCollection(without, linewidths=0.3, **stripes))
        filled = PolyCollection(lived_in, array=rate[~empty], norm=norm, cmap="cividis")
        filled.set(edgecolors="white", linewidths=0.15)
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
