"""What a run leaves on disk: summary, settings, pictures, the HTML report."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.mobility.homes import home_regions
from epifalcon.mobility.statistics import MobilityStatistics, measure
from epifalcon.mobility.traces import Traces
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text
from epifalcon.studies import figures
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import CITY, REPORTED, Epidemic, Prepared
from epifalcon.studies.report import Page, Picture, Table
from epifalcon.studies.summaries import (
    outbreak_figures,
    outbreak_table,
    shrunk_attack_rate,
)

_MAP_CAPTION = (
    "Attack rate of each region: the share of its residents (by where they spend "
    "the night) who were infected, drawn towards the city's mean where few live."
)


@dataclass(frozen=True)
class Kept:
    """What ``write_run`` wrote, in the form a screen shows."""

    figures: dict[str, Any]
    validity: Table


def validity_table(statistics: MobilityStatistics) -> Table:
    """Each statistic of the city beside its band."""
    words = {True: "yes", False: "NO", None: "-"}
    rows = [
        [
            item.name,
            _number(item.value),
            f"{_number(item.low)} to {_number(item.high)}",
            item.unit,
            words[item.holds],
        ]
        for item in statistics.statistics
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
    text = json_text(summary, indent=2)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    (folder / "settings.toml").write_text(experiment.to_toml(), encoding="utf-8")


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
        drawn = figures.attack_map(traces.regions, rate, residents, title)
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


def write_run(
    folder: Path, prepared: Prepared, epidemic: Epidemic, progress: Progress = silent
) -> Kept:
    """Write every record, picture and table of one run, and ``report.html``."""
    traces, name = prepared.traces, prepared.name
    origin = prepared.origin(epidemic.seed)
    traces.save(folder / CITY, prepared.city_origin)
    epidemic.save(folder, origin)
    reported = prepared.reported(epidemic.seed, progress)
    prepared.save_reported(folder / REPORTED, reported, epidemic.seed)
    statistics = measure(traces, progress)
    summary = outbreak_figures(prepared.experiment, traces, [epidemic], name)
    summary["tested"] = int(epidemic.labels.known.tested.sum())
    summary["share_reported"] = reported.observed_share
    summary["statistics"] = plain_statistics(statistics)
    write_summary(folder, prepared.experiment, summary)
    pictures = write_figures(folder / "figures", traces, [epidemic], name)
    pictures.append(write_mobility_figure(folder / "figures", statistics, name))
    validity = validity_table(statistics)
    page = _page(prepared, epidemic, summary, pictures, validity)
    (folder / "report.html").write_text(page.to_html(), encoding="utf-8")
    store.write_manifest(folder, "run", meta={"name": name}, origin=origin)
    return Kept(summary, validity)


def _page(
    prepared: Prepared,
    epidemic: Epidemic,
    summary: dict[str, Any],
    pictures: list[Picture],
    validity: Table,
) -> Page:
    source = "A synthetic city" if prepared.city_folder is None else "A city"
    city = "" if prepared.city_folder is None else f"--city {prepared.city_folder} "
    return Page(
        title=f"epifalcon run: {prepared.name}",
        lead=f"{source}, an outbreak driven by who was where, and the labels "
        "that a method may see. No prediction yet.",
        headline=_headline(prepared.traces, summary),
        pictures=pictures,
        tables=[outbreak_table(summary), validity],
        settings_toml=prepared.experiment.to_toml(),
        made_by=f"epifalcon run {city}--preset settings.toml "
        f"--seed {epidemic.seed} --out again",
    )


def _headline(traces: Traces, summary: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (f"{traces.people:,}", "people"),
        (f"{len(traces.regions):,}", "regions"),
        (f"{traces.clock.days}", "days"),
        (f"{summary['infected_share'][0]:.1%}", "infected by the end"),
        (f"{summary['hazard_r0']:.2f}", "hazard R0"),
        (f"{summary['tested']:,}", "people tested"),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.3g}"
