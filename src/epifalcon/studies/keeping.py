"""What a run leaves on disk: summary, settings, pictures, the HTML report."""

import json
from collections.abc import Mapping, Sequence
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
from epifalcon.studies import figures, run_pictures
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.explaining import Explanation, explain_person
from epifalcon.studies.explanation_page import nobody_real, write_picture
from epifalcon.studies.judged import Judged, judge_all
from epifalcon.studies.method_folder import FIELD_FOLDER, PREDICTION
from epifalcon.studies.methods import FIELD
from epifalcon.studies.outcomes import Outcome
from epifalcon.studies.pipeline import Epidemic
from epifalcon.studies.reading import plain_table
from epifalcon.studies.report import Picture, Table
from epifalcon.studies.rivals import known_of
from epifalcon.studies.run_folder import (
    SETTINGS,
    SUMMARY,
    TABLES,
    Begun,
    finish,
    finished,
)
from epifalcon.studies.run_report import RunResults, run_page
from epifalcon.studies.summaries import outbreak_table, shrunk_attack_rate
from epifalcon.studies.tables import (
    FEW_METRICS,
    STATISTICS,
    forecast_table,
    methods_table,
    privacy_table,
    run_figures,
)

_MAP_CAPTION = (
    "Attack rate of each region: the share of its residents (by where they spend "
    "the night) who were infected, drawn towards the city's mean where few live."
)


@dataclass(frozen=True)
class Kept:
    """What ``keep_results`` wrote, in the form a screen shows."""

    figures: dict[str, Any]
    tables: Sequence[Table]
    """What a terminal shows; the report has more."""


def validity_table(
    statistics: Sequence[dict[str, Any]], *, explained: bool = False
) -> Table:
    """Each statistic of the city, from ``plain_statistics``, beside its band.

    ``explained`` says in plain words what each is; a terminal has no room for it.
    """
    words = {True: "yes", False: "NO", None: "-"}
    rows = [
        [
            item["name"],
            *([STATISTICS.get(item["name"], "")] if explained else []),
            _number(item["value"]),
            f"{_number(item['low'])} to {_number(item['high'])}",
            item["unit"],
            words[item["holds"]],
        ]
        for item in statistics
    ]
    named = ["statistic", *(["what it is"] if explained else [])]
    columns = [*named, "value", "band", "unit", "holds"]
    return Table("Mobility statistics", columns, rows)


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
    pictures = [run_pictures.write_curve(folder, epidemics, title)]
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
    """Write the picture of the mobility statistics against their bands.

    The points of its curves stand beside it as CSV.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mobility.png"
    figures.save(figures.mobility(statistics, title), path)
    rows = [
        [name, curve.x_label, x, curve.y_label, y]
        for name in figures.DRAWN_CURVES
        for curve in [statistics.curve(name)]
        for x, y in zip(curve.x.tolist(), curve.y.tolist(), strict=True)
    ]
    columns = ["curve", "x_is", "x", "y_is", "y"]
    run_pictures.write_rows(path.with_suffix(".csv"), columns, rows)
    inside = sum(bool(item.holds) for item in statistics.statistics)
    return Picture(
        path,
        "Mobility statistics; the grey bars are the bands a city should keep.",
        f"Curves of mobility, and {len(statistics.statistics)} statistics beside their "
        f"bands: {inside} inside.",
        wide=True,
    )


def keep_results(
    begun: Begun,
    outcomes: Sequence[Outcome],
    progress: Progress = silent,
    failed: Mapping[str, str] | None = None,
) -> Kept:
    """Write every picture and table of a run's end, and ``report.html``.

    ``failed`` are methods beside the run's own that have no outcome, and why. A run
    that is finished already is only read; what was spent since is told.
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
        if failed:
            summary["failed"] = dict(failed)
        write_summary(begun.folder, begun.prepared.experiment, summary)
        judged = judge_all(begun, outcomes)
        pictures = _pictures(begun, outcomes, judged, statistics)
        explained = _explained(begun, outcomes, pictures)
        results = RunResults(
            begun=begun,
            outcomes=outcomes,
            judged=judged,
            pictures=pictures,
            explained=explained,
            summary=summary,
            city_tables=_city_tables(summary),
            failed=failed or {},
        )
        _write_tables(begun.folder / TABLES, results)
        page = run_page(results).to_html()
        store.replace_text(begun.folder / "report.html", page)
        finish(begun)
    return Kept(summary, _tables(outcomes, FEW_METRICS))


def _pictures(
    begun: Begun,
    outcomes: Sequence[Outcome],
    judged: Sequence[Judged],
    statistics: MobilityStatistics,
) -> dict[str, Picture]:
    folder, name = begun.folder / "figures", begun.prepared.name
    folder.mkdir(parents=True, exist_ok=True)
    own = judged[0] if judged and judged[0].method == outcomes[0].method else None
    drawn = [
        run_pictures.write_precision_recall(folder, judged),
        run_pictures.write_reliability(folder, judged),
        run_pictures.write_risk_map(folder, begun, outcomes[0], own),
        run_pictures.write_training(folder, outcomes, begun.known),
        write_mobility_figure(folder, statistics, name),
    ]
    if begun.epidemic is not None:
        drawn.append(run_pictures.write_curve(folder, [begun.epidemic], name))
    return {one.path.stem: one for one in drawn if one is not None}


def _explained(
    begun: Begun, outcomes: Sequence[Outcome], pictures: dict[str, Picture]
) -> Explanation | None:
    """The highest risk of somebody not tested, taken apart and drawn.

    None where people are real: a report is read by others than the person.
    """
    if not nobody_real(begun):
        return None
    place = begun.method_folder(FIELD) / PREDICTION
    told = [one for one in outcomes if one.method == FIELD]
    if not told or not (place / FIELD_FOLDER).is_dir():
        return None
    known = known_of(begun)
    risk = np.where(known.tested & ~known.tested.all(), -1, told[0].probability)
    found = explain_person(place, begun.reported, known, int(np.argmax(risk)))
    pictures["explanation"] = write_picture(begun.folder / "figures", found)
    return found


def _write_tables(folder: Path, results: RunResults) -> None:
    """The tables of the report as CSV; that of methods with every digit."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [one.as_plain() for one in results.outcomes]
    names = sorted({name for row in rows for name in row["metrics"] or {}})
    columns = ["method", "title", "seconds", "epsilon_person", *names]
    cells = [
        [row["method"], one.title, row["seconds"], _person_epsilon(row)]
        + [(row["metrics"] or {}).get(name) for name in names]
        for one, row in zip(results.outcomes, rows, strict=True)
    ]
    run_pictures.write_rows(folder / "methods.csv", columns, cells)
    shown_as_told = {
        "in-plain-words": plain_table(results.judged),
        "privacy": privacy_table(results.outcomes),
        "forecast": forecast_table(results.outcomes),
        "city": validity_table(results.summary["statistics"], explained=True),
    }
    for name, table in shown_as_told.items():
        if table.rows:
            path = folder / f"{name}.csv"
            run_pictures.write_rows(path, table.columns, table.rows)


def _person_epsilon(row: Mapping[str, Any]) -> float | None:
    epsilon: float | None = row.get("epsilon", {}).get("person")
    return epsilon


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
    tables = [validity_table(summary["statistics"], explained=True)]
    if "outbreak" in summary:
        tables.insert(0, outbreak_table(summary["outbreak"]))
    return tables


def _number(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.3g}"
