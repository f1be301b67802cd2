"""The figures of a run, each as PNG and SVG with its numbers as CSV beside it."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.epidemic.outbreak import STATES
from epifalcon.mobility.homes import home_regions
from epifalcon.studies import comparison_figures, figures
from epifalcon.studies.judged import Judged
from epifalcon.studies.measurements import (
    RECALLS,
    SCALINGS,
    precision_at_recalls,
    reliability_sums,
)
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.pipeline import Epidemic
from epifalcon.studies.report import Picture
from epifalcon.studies.run_folder import Begun
from epifalcon.studies.summaries import shrunk_rate
from epifalcon.types import Floats, RegionIds

_ALL_DRAWN = 6
"""Methods of which a reliability diagram is drawn at most."""
_IN_ROWS = (3, 5, 6)
"""Numbers of diagrams that are drawn three in a row."""


def write_rows(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write a CSV file, whole or not at all."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(rows)
    store.replace_text(path, text.getvalue())


def write_curve(folder: Path, epidemics: Sequence[Epidemic], title: str) -> Picture:
    """People in each state by day, the median of the outbreaks where there are many."""
    counts = np.stack([item.outbreak.counts_by_day() for item in epidemics])
    new_cases = np.stack([item.outbreak.new_cases_by_day() for item in epidemics])
    path = folder / "epidemic-curve.png"
    figures.save(figures.epidemic_curve(counts, new_cases, title), path)
    rows = [
        [day + 1, *np.median(counts[:, day], axis=0), np.median(new_cases[:, day])]
        for day in range(counts.shape[1])
    ]
    columns = ["day", *STATES, "new_infections"]
    write_rows(path.with_suffix(".csv"), columns, rows)
    busiest = int(np.median(new_cases, axis=0).argmax())
    ever = 1 - float(np.median(counts[:, -1, 0])) / counts[0, 0].sum()
    return Picture(
        path,
        "People in each state at the end of each day, and new infections below.",
        f"Epidemic curve: {ever:.0%} of people were infected by day "
        f"{counts.shape[1]}; most new infections, "
        f"{np.median(new_cases[:, busiest]):,.0f}, on day {busiest + 1}.",
    )


def write_precision_recall(folder: Path, judged: Sequence[Judged]) -> Picture | None:
    """Precision against recall; None where nobody judged is infected."""
    if not judged or not judged[0].metrics.infected:
        return None
    curves = {one.title: one.ranked["raw"] for one in judged}
    recall = judged[0].metrics.extinction_recall
    path = folder / "precision-recall.png"
    figures.save(figures.precision_recall(curves, recall), path)
    rows = [
        [one.method, recalled, precision]
        for one in judged
        for recalled, precision in zip(
            RECALLS, precision_at_recalls(one.ranked["raw"]), strict=True
        )
    ]
    write_rows(path.with_suffix(".csv"), ["method", "recall", "precision"], rows)
    reached = "; ".join(f"{one.title} {one.metrics.dep or 0:.0%}" for one in judged)
    return Picture(
        path,
        "Precision against recall on hidden people; higher is better. The dotted line "
        "is the recall that would end the epidemic; the precision there is DEP. The "
        "grey line is what chance gives.",
        f"Precision-recall curves. Precision at the recall of {recall:.2f} that would "
        f"end the epidemic: {reached}; by chance {judged[0].metrics.prevalence:.0%}.",
    )


def write_reliability(folder: Path, judged: Sequence[Judged]) -> Picture | None:
    """Infected share against told risk; None where no method tells probabilities."""
    held = [one for one in judged if one.metrics.mean_risk is not None][:_ALL_DRAWN]
    sums = {
        one.method: [reliability_sums(one.ranked[scaling]) for scaling in SCALINGS]
        for one in held
    }
    rows = [
        {"method": one.method, "title": one.title, "kind": "", "left_raw": one.left_raw}
        for one in held
    ]
    drawn = comparison_figures.reliability(
        {"rows": rows},
        {"methods": {name: {"reliability": found} for name, found in sums.items()}},
    )
    if drawn is None:
        return None
    path = folder / "reliability.png"
    figures.save(drawn, path)
    columns = ["method", "risk_is", "mean_risk", "infected_share", "people"]
    write_rows(path.with_suffix(".csv"), columns, _reliability_rows(sums))
    spoken = "; ".join(
        f"{one.title}: mean risk {one.metrics.mean_risk:.0%}, calibration error "
        f"{one.metrics.ece:.3f}"
        for one in held
    )
    return Picture(
        path,
        "Infected share of hidden people against the risk they were told: on the "
        "diagonal a risk of 20 % means that 20 of 100 such people are infected. As "
        "told, and after recalibration on masked people where there are enough. Each "
        "point is of 30 people or more.",
        f"Reliability diagrams. {spoken}; "
        f"{judged[0].metrics.prevalence:.0%} are infected.",
        wide=len(held) in _IN_ROWS,
    )


def write_training(folder: Path, outcomes: Sequence[Outcome]) -> Picture | None:
    """Loss and validation AUC by round; None where nothing was trained in rounds."""
    looks = {one.title: one.trained.looks for one in outcomes if one.trained}
    if not looks:
        return None
    path = folder / "training.png"
    figures.save(figures.training(looks), path)
    rows = [
        [one.method, look.round, look.loss, look.auc, _finite(look.epsilon)]
        for one in outcomes
        if one.trained
        for look in one.trained.looks
    ]
    columns = ["method", "round", "loss", "validation_auc", "epsilon"]
    write_rows(path.with_suffix(".csv"), columns, rows)
    best = "; ".join(
        f"{one.title} best at round {one.trained.best_round} with validation AUC "
        f"{one.trained.validation_auc:.3f}"
        for one in outcomes
        if one.trained
    )
    return Picture(
        path,
        "Loss on tested people and AUC on validation people, who were tested but held "
        "back. The dot is the round whose scores were taken.",
        f"Training curves. {best}.",
        wide=True,
    )


def write_risk_map(
    folder: Path, begun: Begun, outcome: Outcome, judged: Judged | None
) -> Picture | None:
    """Regions by predicted and by true risk; None where regions have no place.

    Of hidden people by where they spend the night; of everybody, and without the
    truth, where nobody is hidden.
    """
    traces = begun.prepared.traces
    if not traces.regions.placed:
        return None
    home = home_regions(traces)
    if judged is None:
        rates = {f"Predicted: {outcome.title}": outcome.probability}
    else:
        home = home[judged.person]
        told = f"Predicted: {outcome.title}"
        risk = judged.risk
        if judged.isotonic is not None:
            told, risk = f"{told}, recalibrated", judged.isotonic
        rates = {told: risk, "True": judged.infected.astype(float)}
    people = np.bincount(home[home >= 0], minlength=len(traces.regions)).astype(float)
    if not people.any():
        return None
    shown = {name: _by_region(one, home, people) for name, one in rates.items()}
    path = folder / "risk-map.png"
    figures.save(figures.risk_maps(traces.regions, shown, people, "risk"), path)
    rows = [
        [
            region,
            traces.regions.name(region),
            *traces.regions.centre_km[region],
            int(people[region]),
            *(rate[region] for rate in shown.values()),
        ]
        for region in np.flatnonzero(people).tolist()
    ]
    columns = ["region", "name", "x_km", "y_km", "people", "predicted"]
    columns += ["true"] if judged is not None else []
    write_rows(path.with_suffix(".csv"), columns, rows)
    return Picture(path, *_map_words(shown, people), wide=judged is not None)


def _by_region(values: Floats, home: RegionIds, people: Floats) -> Floats:
    held = home >= 0
    total = np.bincount(home[held], values[held], minlength=len(people))
    return shrunk_rate(total.astype(np.float64), people)


def _map_words(shown: Mapping[str, Floats], people: Floats) -> tuple[str, str]:
    """Caption of the map, and words in its place."""
    lived_in = people > 0
    drawn = "each region's mean is drawn towards the city's, as if 20 average people "
    drawn += "lived there too; grey: nobody."
    if len(shown) == 1:
        (rate,) = shown.values()
        return (
            "Mean predicted risk of the people who spend the night in a region; "
            + drawn,
            (
                f"Map of predicted risk: regions from {rate[lived_in].min():.0%} to "
                f"{rate[lived_in].max():.0%}."
            ),
        )
    told, true = (one[lived_in] for one in shown.values())
    alike = _correlation(told, true, people[lived_in])
    agree = "" if alike is None else f" Their correlation over regions is {alike:.2f}."
    return (
        (
            "Hidden people by the region where they spend the night: mean predicted "
            f"risk, and the share truly infected, on one scale; {drawn}{agree}"
        ),
        (
            f"Two maps of regions. Predicted: {told.min():.0%} to {told.max():.0%}. "
            f"True: {true.min():.0%} to {true.max():.0%}.{agree}"
        ),
    )


def _correlation(one: Floats, other: Floats, weight: Floats) -> float | None:
    """Pearson's correlation with weights; None where one of them is constant."""
    covariance = np.cov(np.stack([one, other]), aweights=weight, ddof=0)
    spread = float(covariance[0, 0] * covariance[1, 1])
    return float(covariance[0, 1] / spread**0.5) if spread > 1e-18 else None


def _reliability_rows(sums: Mapping[str, Sequence[Floats]]) -> Iterable[list[Any]]:
    for method, by_scaling in sums.items():
        for scaling, (risk, infected, people) in zip(SCALINGS, by_scaling, strict=True):
            for place in np.flatnonzero(people):
                count = people[place]
                shares = risk[place] / count, infected[place] / count
                yield [method, scaling, *shares, int(count)]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
