"""The plots of a run, each as PNG and SVG with its numbers as CSV beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from epifalcon.epidemic.known import Known
from epifalcon.epidemic.outbreak import STATES, Outbreak
from epifalcon.evaluation.calibration import reliability
from epifalcon.evaluation.curves import Curve, curve
from epifalcon.evaluation.curves import precision_recall as full_curve
from epifalcon.evaluation.uncertainty import auc_interval
from epifalcon.experiments.judged import Judged
from epifalcon.experiments.measurements import RECALLS, SCALINGS, precision_at_recalls
from epifalcon.experiments.run_methods import Outcome
from epifalcon.mobility.statistics import MobilityStatistics, home_regions
from epifalcon.mobility.traces import Traces
from epifalcon.reports import formats, maps, method_plots, plot_style
from epifalcon.reports.method_plots import Diagram, Line
from epifalcon.reports.page import Picture
from epifalcon.reports.plot_style import (
    FIGURE_TITLE,
    GREEN,
    INK,
    ORANGE,
    SMALL,
    TITLE,
    is_wide,
    line_styles,
    style_axes,
)
from epifalcon.reports.study_plots import epidemic_curve
from epifalcon.reports.tables import write_csv
from epifalcon.types import Floats, RegionIds

_DRAWN_STATES = (
    *("exposed", "infectious, no symptoms", "infectious, symptoms", "recovered"),
)
_DRAWN_CURVES = (
    *("radius_of_gyration", "distinct", "zipf", "entropy", "jumps", "stays"),
    *("occupancy", "at_home"),
)
_MOST_DIAGRAMS = 6
_GROUPS, _LEAST_IN_GROUP = 10, 30
"""Most groups of a reliability diagram, and fewest people of a group."""
_LEAST_CALLED = 10
"""People from whom on a precision is drawn: that of one or two says nothing."""
_PLAIN_NUMBERS = FuncFormatter(lambda value, _: f"{value:g}")


def write_epidemic_curve(
    folder: Path, outbreaks: Sequence[Outbreak], title: str
) -> Picture:
    """Draw people in each state by day, the median of several outbreaks."""
    counts = np.stack([one.counts_by_day() for one in outbreaks])
    new_cases = np.stack([one.new_cases_by_day() for one in outbreaks])
    days, people = counts.shape[1], counts[0, 0].sum()
    spared = float(np.median(counts[:, -1, 0]))
    drawn = {
        name: counts[:, :, state] for state, name in enumerate(_DRAWN_STATES, start=1)
    }
    headed = f"{title}: {1 - spared / people:.1%} infected by day {days}"
    path = folder / "epidemic-curve.png"
    plot_style.save(epidemic_curve(drawn, new_cases, headed), path)
    rows = [
        [day + 1, *np.median(counts[:, day], axis=0), np.median(new_cases[:, day])]
        for day in range(days)
    ]
    columns = ["day", *STATES, "new_infections"]
    write_csv(path.with_suffix(".csv"), columns, rows)
    busiest = int(np.median(new_cases, axis=0).argmax())
    return Picture(
        path,
        "People in each state at the end of each day, and new infections below, "
        "without the people with whom the outbreak began. Susceptible people "
        f"({spared:,.0f} of {people:,} at the end) are in the CSV only.",
        f"Epidemic curve: {1 - spared / people:.0%} of people were infected by day "
        f"{days}; most new infections, {np.median(new_cases[:, busiest]):,.0f}, on "
        f"day {busiest + 1}.",
    )


def write_precision_recall(folder: Path, judged: Sequence[Judged]) -> Picture | None:
    """Draw precision against recall; None if no hidden person is infected."""
    if not judged or not judged[0].metrics.infected:
        return None
    metrics = judged[0].metrics
    lines = []
    for place, (one, style) in enumerate(zip(judged, line_styles(), strict=False)):
        ranked = one.ranked["raw"]
        found = full_curve(ranked)
        enough = ranked.called >= min(_LEAST_CALLED, int(ranked.people))
        # The first is the run's own and lies in front.
        label = f"{one.metrics.auc or 0:.3f}  {one.title}"
        style |= {"label": label, "zorder": 3 - place / 10, "drawstyle": "steps-pre"}
        lines.append(Line(found.recall[enough], found.precision[enough], style))
    recall = metrics.extinction_recall
    path = folder / "precision-recall.png"
    title = "Precision and recall on hidden people"
    drawn = method_plots.precision_recall(lines, title, metrics.prevalence, recall)
    assert drawn is not None
    plot_style.save(drawn, path)
    rows = [
        [one.method, *point]
        for one in judged
        for point in zip(RECALLS, precision_at_recalls(one.ranked["raw"]), strict=True)
    ]
    write_csv(path.with_suffix(".csv"), ["method", "recall", "precision"], rows)
    reached = "; ".join(f"{one.title} {one.metrics.dep or 0:.0%}" for one in judged)
    return Picture(
        path,
        "Precision against recall on hidden people; higher is better. The dotted line "
        "is the recall that would end the epidemic; the precision there is DEP. The "
        "grey line is chance.",
        f"Precision-recall curves. Precision at the recall of {recall:.2f} that would "
        f"end the epidemic: {reached}; by chance {metrics.prevalence:.0%}.",
    )


def write_reliability(folder: Path, judged: Sequence[Judged]) -> Picture | None:
    """Draw infected share against risk; None if no method predicts probabilities."""
    drawn = [one for one in judged if one.metrics.mean_risk is not None]
    drawn = drawn[:_MOST_DIAGRAMS]
    sums = {
        one.method: {scaling: _group_sums(one.ranked[scaling]) for scaling in SCALINGS}
        for one in drawn
    }
    figure = method_plots.reliability(
        [Diagram(one.title, sums[one.method], one.left_raw) for one in drawn]
    )
    if figure is None:
        return None
    path = folder / "reliability.png"
    plot_style.save(figure, path)
    columns = ["method", "risk_is", "mean_risk", "infected_share", "people"]
    rows = [
        [method, scaling, risk / people, infected / people, int(people)]
        for method, by_scaling in sums.items()
        for scaling, found in by_scaling.items()
        for risk, infected, people in found.T
        if people
    ]
    write_csv(path.with_suffix(".csv"), columns, rows)
    listed = "; ".join(
        f"{one.title}: mean risk {one.metrics.mean_risk:.0%}, calibration error in "
        f"equal groups {one.metrics.ece_mass:.3f}"
        for one in drawn
    )
    return Picture(
        path,
        "Infected share of hidden people against predicted risk: on the diagonal, 20 "
        f"of 100 people with a risk of 20 % are infected. Each point is one of "
        f"{_GROUPS} groups of equally many people, or fewer groups if they would have "
        f"fewer than {_LEAST_IN_GROUP} people. Grey: as predicted. Platt (one S-shaped "
        "curve) and isotonic (a rising step function): recalibrated on masked people, "
        "who were tested but whose results were withheld, if there are enough.",
        f"Reliability diagrams. {listed}; {judged[0].metrics.prevalence:.0%} are "
        "infected.",
        wide=is_wide(figure),
    )


def _group_sums(ranked: Curve) -> Floats:
    """Return sum of risks, infected and people in equal groups: (3, groups).

    Bins of equal width would not do: one can hold everybody, and then hides who among
    them is infected.
    """
    groups = max(1, min(_GROUPS, int(ranked.people) // _LEAST_IN_GROUP))
    found = reliability(ranked, groups, "mass")
    shares = found.mean_risk, found.infected_share, np.ones(len(found.people))
    return np.stack(shares) * found.people


def write_training(
    folder: Path, outcomes: Sequence[Outcome], known: Known
) -> Picture | None:
    """Draw loss and validation AUC by round; None if nothing was trained in rounds."""
    trained = [one for one in outcomes if one.trained]
    if not trained:
        return None
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    loss, auc = (style_axes(axes) for axes in figure.subplots(1, 2))
    rows: list[list[Any]] = []
    for one, line in zip(trained, line_styles(), strict=False):
        assert one.trained is not None
        looks = one.trained.looks
        rounds = [look.round for look in looks]
        loss.plot(rounds, [look.loss for look in looks], label=one.title, **line)
        auc.plot(rounds, [look.auc for look in looks], **line)
        best = max(looks, key=lambda look: look.auc)
        auc.plot(best.round, best.auc, "o", color=line["color"])
        for look in looks:
            epsilon = look.epsilon if np.isfinite(look.epsilon) else None
            rows.append([one.method, look.round, look.loss, look.auc, epsilon])
    auc.axhline(0.5, color=INK, linewidth=0.8, alpha=0.5)
    loss.set(xlabel="round", ylabel="loss")
    auc.set(xlabel="round", ylabel="AUC")
    loss.set_title("Loss on tested people", **TITLE)
    auc.set_title("Validation AUC", **TITLE)
    loss.legend(frameon=False)
    path = folder / "training.png"
    plot_style.save(figure, path)
    columns = ["method", "round", "loss", "validation_auc", "epsilon"]
    write_csv(path.with_suffix(".csv"), columns, rows)
    best_rounds = "; ".join(_best_round(one, known) for one in trained)
    metrics = outcomes[0].metrics
    rather = (
        ""
        if metrics is None
        else f" Use the AUC on the {metrics.people:,} hidden people, under Results."
    )
    return Picture(
        path,
        "Loss on tested people and AUC on validation people, who were tested but held "
        "back; if the round was selected on test people, on these. The dot is the "
        f"selected round. {best_rounds}. The AUC of few people is uncertain.{rather}",
        f"Training curves. {best_rounds}.",
        wide=True,
    )


def _best_round(outcome: Outcome, known: Known) -> str:
    """Say which round was best, by which AUC on how many people."""
    assert outcome.trained is not None
    said = f"{outcome.title}: round {outcome.trained.best_round} with "
    if outcome.masked is None or outcome.masked_risk is None:
        return f"{said}AUC {outcome.trained.validation_auc:.3f}"
    positive = known.status[outcome.masked] == 1
    sure = auc_interval(curve(outcome.masked_risk, positive))
    return (
        f"{said}validation AUC {outcome.trained.validation_auc:.3f} on "
        f"{len(positive):,} people, {int(positive.sum()):,} of them positive (95 % "
        f"interval {formats.number(sure.low, 2)} to {formats.number(sure.high, 2)})"
    )


def write_attack_map(
    folder: Path, traces: Traces, outbreak: Outbreak, title: str
) -> Picture:
    """Draw the share of each region's residents who were infected."""
    home = home_regions(traces)
    residents = _residents(home, len(traces.regions))
    raw = np.nan_to_num(outbreak.attack_rate_by_region(home, len(residents)))
    rate = maps.shrunk_rate(raw * residents, residents)
    path = folder / "attack-map.png"
    rates = {f"{title}: attack rate by home region": rate}
    label = "share of residents infected"
    plot_style.save(maps.risk_maps(traces.regions, rates, residents, label), path)
    return Picture(
        path,
        "Attack rate of each region: the share of its residents (by where they spend "
        "the night) who were infected, shrunk to the city's mean where few live.",
    )


def write_risk_map(
    folder: Path, traces: Traces, outcome: Outcome, judged: Judged | None
) -> Picture | None:
    """Draw regions by predicted and by true risk; None if they have no coordinates.

    Of hidden people by where they spend the night; of everybody, and without the
    truth, if nobody is hidden.
    """
    if not traces.regions.placed:
        return None
    home = home_regions(traces)
    title = f"Predicted: {outcome.title}"
    rates = {title: outcome.probability}
    if judged is not None:
        home = home[judged.person]
        rates = {title: judged.risk}
        if judged.isotonic is not None:
            rates = {f"{title}, recalibrated": judged.isotonic}
        rates["True"] = judged.infected.astype(float)
    people = _residents(home, len(traces.regions))
    if not people.any():
        return None
    total = {
        name: np.bincount(home[home >= 0], rate[home >= 0], len(people)).astype(float)
        for name, rate in rates.items()
    }
    means = {name: one / np.maximum(people, 1) for name, one in total.items()}
    shown = {name: maps.shrunk_rate(one, people) for name, one in total.items()}
    path = folder / "risk-map.png"
    plot_style.save(maps.risk_maps(traces.regions, shown, people, "risk"), path)
    columns, values = ["predicted"], [*shown.values()]
    if judged is not None:
        # Not of real people: a region's mean is the risk of the only one living there.
        columns = ["predicted", "true", "predicted_mean", "true_mean"]
        values += means.values()
    rows = [
        [
            region,
            traces.regions.name(region),
            *traces.regions.centre_km[region],
            int(people[region]),
            *(value[region] for value in values),
        ]
        for region in np.flatnonzero(people).tolist()
    ]
    columns = ["region", "name", "x_km", "y_km", "people", *columns]
    write_csv(path.with_suffix(".csv"), columns, rows)
    lived_in = people > 0
    note = "each region's mean is shrunk to the city's, as if 20 average people lived "
    note += "there too."
    if empty := int((~lived_in).sum()):
        look = maps.empty_region_style(traces.regions)
        note += f" {look.capitalize()}: the {empty:,} regions without any of them."
    ends = [
        f"{one[lived_in].min():.0%} to {one[lived_in].max():.0%}"
        for one in shown.values()
    ]
    if judged is None:
        caption = "Mean predicted risk of the people who spend the night in a region; "
        return Picture(path, caption + note, f"Map of predicted risk: {ends[0]}.")
    drawn = _correlation([one[lived_in] for one in shown.values()], people[lived_in])
    equal = np.ones(int(lived_in.sum()))
    plain = _correlation([one[lived_in] for one in means.values()], equal)
    agreement = (
        f" Correlation of the two: {drawn} as drawn, weighted by people; {plain} "
        "before shrinking, unweighted."
    )
    return Picture(
        path,
        "Hidden people by the region where they spend the night: mean predicted risk, "
        f"and the share truly infected, on one scale; {note}{agreement}",
        f"Two maps of regions. Predicted: {ends[0]}. True: {ends[1]}.{agreement}",
        wide=True,
    )


def _residents(home: RegionIds, regions: int) -> Floats:
    return np.bincount(home[home >= 0], minlength=regions).astype(float)


def _correlation(both: Sequence[Floats], weight: Floats) -> str:
    """Return Pearson's weighted correlation; "undefined" if one is constant."""
    covariance = np.cov(np.stack(both), aweights=weight, ddof=0)
    spread = float(covariance[0, 0] * covariance[1, 1])
    return f"{covariance[0, 1] / spread**0.5:.2f}" if spread > 1e-18 else "undefined"


def write_mobility(folder: Path, statistics: MobilityStatistics, title: str) -> Picture:
    """Draw the curves of a city's mobility, and every statistic against its band."""
    path = folder / "mobility.png"
    plot_style.save(mobility_figure(statistics, title), path)
    rows = []
    for name in _DRAWN_CURVES:
        line = statistics.curve(name)
        points = zip(line.x.tolist(), line.y.tolist(), strict=True)
        rows += [[name, line.x_label, x, line.y_label, y] for x, y in points]
    write_csv(path.with_suffix(".csv"), ["curve", "x_is", "x", "y_is", "y"], rows)
    inside = sum(bool(item.holds) for item in statistics.statistics)
    return Picture(
        path,
        "Mobility statistics; the grey bars are the bands a city should keep.",
        f"Curves of mobility, and {len(statistics.statistics)} statistics beside their "
        f"bands: {inside} inside.",
        wide=True,
    )


def mobility_figure(statistics: MobilityStatistics, title: str) -> Figure:
    """Draw what ``write_mobility`` writes."""
    figure = Figure(figsize=(13, 9.5), layout="constrained")
    figure.suptitle(title, **FIGURE_TITLE)
    grid = figure.add_gridspec(4, 3, width_ratios=(1, 1, 1.5))
    for index, name in enumerate(_DRAWN_CURVES):
        line = statistics.curve(name)
        axes = style_axes(figure.add_subplot(grid[index // 2, index % 2]))
        axes.plot(line.x, line.y, color=GREEN, lw=2)
        axes.set_xlabel(line.x_label, fontsize=SMALL)
        axes.set_ylabel(line.y_label, fontsize=SMALL)
        if line.log_x and line.x.size:
            axes.set_xscale("log")
            _plain_log(axes.xaxis)
        if line.log_y and line.y.size:
            axes.set_yscale("log")
            _plain_log(axes.yaxis)
    _bands(style_axes(figure.add_subplot(grid[:, 2])), statistics)
    return figure


def _plain_log(axis: Axis) -> None:
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(_PLAIN_NUMBERS)


def _bands(axes: Axes, statistics: MobilityStatistics) -> None:
    """Draw one row per statistic: its band as a bar, its value as a dot."""
    shown = [item for item in statistics.statistics if np.isfinite(item.value)]
    for row, item in enumerate(shown):
        place = (item.value - item.low) / (item.high - item.low)
        colour = GREEN if item.holds else ORANGE
        axes.barh(row, 1, height=0.5, color="#dfe5e2", zorder=1)
        axes.scatter(np.clip(place, -0.45, 1.45), row, color=colour, s=46, zorder=3)
        axes.text(1.55, row, f"{item.value:.3g} {item.unit}", va="center", fontsize=9)
        for x, side, end in ((-0.04, "right", item.low), (1.04, "left", item.high)):
            note = axes.text(x, row - 0.36, f"{end:.3g}", ha=side, va="center")
            note.set(fontsize=7.5, color="#5d6b76")
    axes.set_yticks(range(len(shown)), [item.name.replace("_", " ") for item in shown])
    axes.set_ylim(len(shown) - 0.4, -0.8)
    axes.set_xlim(-0.55, 2.3)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    inside = sum(bool(item.holds) for item in shown)
    axes.set_title(f"{inside} of {len(shown)} statistics in their band", **TITLE)
