"""The figures of a run, each as PNG and SVG with its numbers as CSV beside it."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.epidemic.known import Known
from epifalcon.epidemic.outbreak import STATES
from epifalcon.evaluation.calibration import reliability
from epifalcon.evaluation.curves import Curve, curve
from epifalcon.evaluation.uncertainty import auc_interval
from epifalcon.mobility.homes import home_regions
from epifalcon.mobility.regions import Regions
from epifalcon.studies import comparison_figures, figures
from epifalcon.studies.judged import Judged
from epifalcon.studies.measurements import (
    RECALLS,
    SCALINGS,
    precision_at_recalls,
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
_GROUPS, _LEAST_IN_GROUP = 10, 30
"""Groups of a reliability diagram at most, and people of a group at least."""
_SAME_MEAN, _SAME_MOST = 0.005, 0.02
"""Precisions that differ by less, in the mean and anywhere, are one line to the eye:
a line of the figure is as thick as 0.005."""

_RECALIBRATED = (
    "Grey: as told. Platt and isotonic: recalibrated on masked people, who were tested "
    "but of whose tests the method was not told, where there are enough of them; Platt "
    "bends all risks by one S-shaped curve, isotonic by the rising staircase that fits "
    "masked people best."
)


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
    spared, people = float(np.median(counts[:, -1, 0])), counts[0, 0].sum()
    return Picture(
        path,
        "People in each state at the end of each day, and new infections below, "
        "without the people with whom the outbreak began. Everybody else is "
        f"susceptible, not infected yet: {spared:,.0f} of {people:,} at the end. "
        "They would dwarf the others and are not drawn; the CSV has them.",
        f"Epidemic curve: {1 - spared / people:.0%} of people were infected by day "
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
    found = {one: precision_at_recalls(one.ranked["raw"]) for one in judged}
    rows = [
        [one.method, *point]
        for one, precision in found.items()
        for point in zip(RECALLS, precision, strict=True)
    ]
    write_rows(path.with_suffix(".csv"), ["method", "recall", "precision"], rows)
    same = _same_lines({one.title: precision for one, precision in found.items()})
    reached = "; ".join(f"{one.title} {one.metrics.dep or 0:.0%}" for one in judged)
    return Picture(
        path,
        "Precision against recall on hidden people; higher is better. The dotted line "
        "is the recall that would end the epidemic; the precision there is DEP. The "
        f"grey line is what chance gives.{same}",
        f"Precision-recall curves. Precision at the recall of {recall:.2f} that would "
        f"end the epidemic: {reached}; by chance {judged[0].metrics.prevalence:.0%}."
        f"{same}",
    )


def _same_lines(precision: Mapping[str, Floats]) -> str:
    """Which lines, by title, hide each other, in words; each (recalls,)."""
    told = ""
    for one, other in combinations(precision, 2):
        apart = np.abs(precision[one] - precision[other])
        if apart.mean() < _SAME_MEAN and apart.max() < _SAME_MOST:
            told += f" The lines of {one} and {other} lie on each other: they differ "
            told += f"by {apart.max():.3f} at most."
    return told


def write_reliability(folder: Path, judged: Sequence[Judged]) -> Picture | None:
    """Infected share against told risk; None where no method tells probabilities."""
    held = [one for one in judged if one.metrics.mean_risk is not None][:_ALL_DRAWN]
    sums = {
        one.method: [_equal_groups(one.ranked[scaling]) for scaling in SCALINGS]
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
        f"{one.title}: mean risk {one.metrics.mean_risk:.0%}, calibration error in "
        f"equal groups {one.metrics.ece_mass:.3f}"
        for one in held
    )
    return Picture(
        path,
        "Infected share of hidden people against the risk they were told: on the "
        "diagonal a risk of 20 % means that 20 of 100 such people are infected. "
        "Points above each other are people who were told the same and fared "
        f"otherwise. Each point is one of {_GROUPS} groups of equally many people, "
        f"from the lowest risks to the highest; fewer groups where they would have "
        f"less than {_LEAST_IN_GROUP} people. {_RECALIBRATED}",
        f"Reliability diagrams. {spoken}; "
        f"{judged[0].metrics.prevalence:.0%} are infected.",
        wide=len(held) in _IN_ROWS,
    )


def _equal_groups(ranked: Curve) -> Floats:
    """Sum of risks, infected and people in groups of equally many: (3, groups).

    Not in bins of equal width: one such bin can hold everybody, and then hides who
    among them is infected.
    """
    groups = max(1, min(_GROUPS, int(ranked.people) // _LEAST_IN_GROUP))
    found = reliability(ranked, groups, "mass")
    shares = found.mean_risk, found.infected_share, np.ones(len(found.people))
    return np.stack(shares) * found.people


def write_training(
    folder: Path, outcomes: Sequence[Outcome], known: Known
) -> Picture | None:
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
    sure = "; ".join(_validated(one, known) for one in outcomes if one.trained)
    return Picture(
        path,
        "Loss on tested people and AUC on validation people, who were tested but held "
        "back; where the round was selected on test people, on these. The dot is the "
        f"round whose scores were taken. {sure}. An AUC of few people is uncertain: "
        "others might have put it anywhere in its interval." + _better_judges(outcomes),
        f"Training curves. {sure}.",
        wide=True,
    )


def _validated(outcome: Outcome, known: Known) -> str:
    """The validation AUC of a trained method, on how many people, and how sure."""
    assert outcome.trained is not None
    trained = outcome.trained
    told = f"{outcome.title}: best at round {trained.best_round} with "
    told += "validation " if outcome.masked is not None else ""
    told += f"AUC {trained.validation_auc:.3f}"
    if outcome.masked is None or outcome.masked_risk is None:
        return told
    positive = known.status[outcome.masked] == 1
    told += f" on {len(positive):,} people, {int(positive.sum()):,} of them positive"
    sure = auc_interval(curve(outcome.masked_risk, positive))
    if sure.low is None or sure.high is None:
        return told
    return f"{told} (95 % interval {sure.low:.2f} to {sure.high:.2f})"


def _better_judges(outcomes: Sequence[Outcome]) -> str:
    judged = outcomes[0].metrics
    if judged is None:
        return ""
    return (
        f" The AUC on the {judged.people:,} hidden people, under Results, is the one "
        "to go by."
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
    plain = {name: _by_region(one, home, people) for name, one in rates.items()}
    shown = {name: shrunk_rate(one * people, people) for name, one in plain.items()}
    path = folder / "risk-map.png"
    figures.save(figures.risk_maps(traces.regions, shown, people, "risk"), path)
    columns, values = ["predicted"], [*shown.values()]
    if judged is not None:
        # Without these nobody could compute the correlation again. Not of real people:
        # where one lives alone in a region, the mean is this person's risk.
        columns = ["predicted", "true", "predicted_mean", "true_mean"]
        values += plain.values()
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
    write_rows(path.with_suffix(".csv"), columns, rows)
    agree = "" if judged is None else _agreement(shown, plain, people)
    words = _map_words(shown, people, traces.regions, agree)
    return Picture(path, *words, wide=judged is not None)


def _by_region(values: Floats, home: RegionIds, people: Floats) -> Floats:
    """The mean of ``values`` (people,) in each region, 0 where nobody is."""
    held = home >= 0
    total = np.bincount(home[held], values[held], minlength=len(people))
    return np.asarray(total / np.maximum(people, 1))


def _map_words(
    shown: Mapping[str, Floats], people: Floats, regions: Regions, agree: str
) -> tuple[str, str]:
    """Caption of the map, and words in its place."""
    lived_in = people > 0
    drawn = "each region's mean is drawn towards the city's, as if 20 average people "
    drawn += "lived there too."
    nobody = ""
    if count := int((~lived_in).sum()):
        look = figures.empty_look(regions)
        drawn += f" {look.capitalize()}: none of these people."
        nobody = f" {count:,} of {len(people):,} regions, {look}, have none of them."
    ends = [
        f"{one[lived_in].min():.0%} to {one[lived_in].max():.0%}"
        for one in shown.values()
    ]
    if len(shown) == 1:
        return (
            "Mean predicted risk of the people who spend the night in a region; "
            + drawn,
            f"Map of predicted risk: regions from {ends[0]}.{nobody}",
        )
    return (
        (
            "Hidden people by the region where they spend the night: mean predicted "
            f"risk, and the share truly infected, on one scale; {drawn}{agree}"
        ),
        (f"Two maps of regions. Predicted: {ends[0]}. True: {ends[1]}.{nobody}{agree}"),
    )


def _agreement(
    shown: Mapping[str, Floats], plain: Mapping[str, Floats], people: Floats
) -> str:
    """How alike the two maps are, as drawn and as counted, in words."""
    lived_in = people > 0
    weight = people[lived_in]
    drawn = _correlation(np.stack([*shown.values()])[:, lived_in], weight)
    alike = np.ones_like(weight)
    counted = _correlation(np.stack([*plain.values()])[:, lived_in], alike)
    if drawn is None or counted is None:
        return ""
    return (
        f" Correlation of the two over the {len(weight):,} regions with hidden people: "
        f"{drawn:.2f} as drawn, each region weighted by its people; {counted:.2f} of "
        "the means before they are drawn towards the city's, every region weighted "
        "alike: there regions of one or two people count as much as others, and are "
        "mostly chance. The CSV has both: predicted and true, predicted_mean and "
        "true_mean."
    )


def _correlation(both: Floats, weight: Floats) -> float | None:
    """Pearson's correlation of two rows, weighted; None where one is constant."""
    covariance = np.cov(both, aweights=weight, ddof=0)
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
