"""What a run leaves on disk: summary, settings, pictures, the HTML report."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.evaluation.curves import curve
from epifalcon.mobility.homes import home_regions
from epifalcon.mobility.statistics import MobilityStatistics, measure
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text
from epifalcon.studies import figures
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.pipeline import Epidemic
from epifalcon.studies.report import Page, Picture, Table, shown_epsilon
from epifalcon.studies.run_folder import SETTINGS, SUMMARY, Begun, finish, finished
from epifalcon.studies.summaries import outbreak_table, shrunk_attack_rate
from epifalcon.studies.tables import (
    FEW_METRICS,
    forecast_table,
    methods_table,
    privacy_table,
    run_figures,
    shown,
)

_MAP_CAPTION = (
    "Attack rate of each region: the share of its residents (by where they spend "
    "the night) who were infected, drawn towards the city's mean where few live."
)
_CURVES_CAPTION = (
    "Precision against recall on hidden people. The dotted line is the recall that "
    "would end the epidemic; the precision there is DEP."
)
_TRAINING_CAPTION = (
    "Loss on tested people and AUC on validation people, who were tested but held "
    "back. The dot is the round whose scores were taken."
)


@dataclass(frozen=True)
class Kept:
    """What ``keep_results`` wrote, in the form a screen shows."""

    figures: dict[str, Any]
    tables: Sequence[Table]
    """What a terminal shows; the report has more."""


def validity_table(statistics: Sequence[dict[str, Any]]) -> Table:
    """Each statistic of the city, from ``plain_statistics``, beside its band."""
    words = {True: "yes", False: "NO", None: "-"}
    rows = [
        [
            item["name"],
            _number(item["value"]),
            f"{_number(item['low'])} to {_number(item['high'])}",
            item["unit"],
            words[item["holds"]],
        ]
        for item in statistics
    ]
    return Table(
        "Mobility statistics", ["statistic", "value", "band", "unit", "holds"], rows
    )


def plain_statistics(statistics: MobilityStatistics) -> list[dict[str, Any]]:
    """Each statistic with its band, as JSON can hold it."""
    return [asdict(item) for item in statistics.statistics]


def write_summary(
    folder: Path, experiment: Experiment, summary: dict[str, Any]
) -> None:
    """Write ``summary.json`` and ``settings.toml``, which runs it again."""
    store.replace_text(folder / SUMMARY, json_text(summary, indent=2) + "\n")
    store.replace_text(folder / SETTINGS, experiment.to_toml())


def write_figures(
    folder: Path, traces: Traces, epidemics: Sequence[Epidemic], title: str
) -> list[Picture]:
    """Write the epidemic curve and the map into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = np.stack([item.outbreak.counts_by_day() for item in epidemics])
    new_cases = np.stack([item.outbreak.new_cases_by_day() for item in epidemics])
    curve = folder / "epidemic-curve.png"
    figures.save(figures.epidemic_curve(counts, new_cases, title), curve)
    pictures = [Picture(curve, "People in each state at the end of each day.")]
    if traces.regions.placed:
        regions = len(traces.regions)
        home = home_regions(traces)
        residents = np.bincount(home[home >= 0], minlength=regions).astype(float)
        rate = shrunk_attack_rate(epidemics[0].outbreak, home, residents)
        place = folder / "attack-map.png"
        headed = f"{title}: attack rate by home region"
        drawn = figures.attack_map(traces.regions, rate, residents, headed)
        figures.save(drawn, place)
        pictures.append(Picture(place, _MAP_CAPTION))
    return pictures


def write_mobility_figure(
    folder: Path, statistics: MobilityStatistics, title: str
) -> Picture:
    """Write the picture of the mobility statistics against their bands."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mobility.png"
    figures.save(figures.mobility(statistics, title), path)
    return Picture(
        path, "Mobility statistics; the grey bars are the bands a city should keep."
    )


def keep_results(
    begun: Begun, outcomes: Sequence[Outcome], progress: Progress = silent
) -> Kept:
    """Write every picture and table of a run's end, and ``report.html``.

    A run that is finished already is only read; what was spent since is told.
    """
    if finished(begun.folder):
        text = (begun.folder / SUMMARY).read_text(encoding="utf-8")
        summary = json.loads(text)
        if outcomes[0].trained is not None:
            summary |= outcomes[0].trained.spent
        return Kept(summary, _tables(outcomes, FEW_METRICS))
    with store.writing(begun.folder):
        statistics = measure(begun.prepared.traces, progress)
        summary = run_figures(begun, outcomes)
        summary["statistics"] = plain_statistics(statistics)
        write_summary(begun.folder, begun.prepared.experiment, summary)
        pictures = _pictures(begun, outcomes, statistics)
        tables = [*_tables(outcomes), *_city_tables(summary)]
        page = _page(begun, summary, pictures, tables)
        store.replace_text(begun.folder / "report.html", page.to_html())
        finish(begun)
    return Kept(summary, _tables(outcomes, FEW_METRICS))


def _pictures(
    begun: Begun, outcomes: Sequence[Outcome], statistics: MobilityStatistics
) -> list[Picture]:
    folder, name = begun.folder / "figures", begun.prepared.name
    pictures = write_prediction_figures(folder, begun, outcomes)
    if begun.epidemic is not None:
        pictures += write_figures(folder, begun.prepared.traces, [begun.epidemic], name)
    return [*pictures, write_mobility_figure(folder, statistics, name)]


def _tables(
    outcomes: Sequence[Outcome], metrics: Sequence[str] | None = None
) -> list[Table]:
    tables = (
        methods_table(outcomes, metrics),
        privacy_table(outcomes),
        forecast_table(outcomes),
    )
    return [table for table in tables if table.rows]


def _city_tables(summary: dict[str, Any]) -> list[Table]:
    tables = [validity_table(summary["statistics"])]
    if "outbreak" in summary:
        tables.insert(0, outbreak_table(summary["outbreak"]))
    return tables


def write_prediction_figures(
    folder: Path, begun: Begun, outcomes: Sequence[Outcome]
) -> list[Picture]:
    """Write the curves of precision and recall and those of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    judged = outcomes[0].metrics
    # Without an infected person there is no recall to draw.
    if judged is not None and judged.infected and begun.epidemic is not None:
        truth = begun.epidemic.labels.hidden.open("drawing precision and recall")
        curves = {
            item.title: curve(item.probability[truth.person], truth.infected)
            for item in outcomes
        }
        recall = judged.extinction_recall
        path = folder / "precision-recall.png"
        figures.save(figures.precision_recall(curves, recall), path)
        pictures.append(Picture(path, _CURVES_CAPTION))
    trained = {item.title: item.trained.looks for item in outcomes if item.trained}
    if trained:
        path = folder / "training.png"
        figures.save(figures.training(trained), path)
        pictures.append(Picture(path, _TRAINING_CAPTION))
    return pictures


def _page(
    begun: Begun,
    summary: dict[str, Any],
    pictures: list[Picture],
    tables: list[Table],
) -> Page:
    prepared = begun.prepared
    city = "" if prepared.city_folder is None else f"--city {prepared.city_folder} "
    return Page(
        title=f"epifalcon run: {prepared.name}",
        lead="Who is probably infected, told from where people have been and from "
        "the tests of some of them, and judged by people "
        + ("tested but held back." if summary["metrics"] is None else "not tested."),
        headline=_headline(prepared.traces, summary),
        pictures=pictures,
        tables=tables,
        settings_toml=prepared.experiment.to_toml(),
        made_by=f"epifalcon run {city}--preset settings.toml "
        f"--seed {begun.seed} --out again",
    )


def _headline(traces: Traces, summary: dict[str, Any]) -> list[tuple[str, str]]:
    cards = [
        (f"{traces.people:,}", "people"),
        (f"{len(traces.regions):,}", "regions"),
        (f"{traces.clock.days}", "days"),
        (f"{summary['tested']:,}", "people tested"),
    ]
    if "outbreak" in summary:
        share = summary["outbreak"]["infected_share"][0]
        cards.append((f"{share:.1%}", "infected by the end"))
    if summary["metrics"] is not None:
        cards.append((shown(summary["metrics"]["auc"]), "AUC on hidden people"))
    elif summary.get("validation_auc") is not None:
        cards.append((shown(summary["validation_auc"]), "AUC on validation people"))
    if summary.get("epsilon") and summary["epsilon"]["person"] is not None:
        cards.append(
            (shown_epsilon(summary["epsilon"]["person"]), "epsilon of a person")
        )
    return cards


def _number(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.3g}"
