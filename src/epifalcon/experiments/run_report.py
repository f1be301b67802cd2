"""The report of a run: summary, settings, plots, tables and one HTML page.

The page starts with sentences on what was run and the main findings, and states what
is missing and why.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.epidemic.test_results import data_warnings
from epifalcon.experiments import (
    explanation,
    own_data_report,
    run_folder,
    run_plots,
    run_tables,
)
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.explanation import Explanation, explain_person
from epifalcon.experiments.own_data_report import OwnResults
from epifalcon.experiments.report_parts import (
    RunResults,
    authors_program,
    explain_command,
    explaining,
    methods_used,
    omitted_explanation,
    privacy_parts,
    quoted_folder,
    repeat_command,
    settings_toml,
    simulated_mark,
)
from epifalcon.experiments.run_folder import RunInputs, finished
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.methods.base import INTERVAL_WIDTH
from epifalcon.methods.registry import entry
from epifalcon.mobility.statistics import MobilityStatistics, measure
from epifalcon.progress import Progress, silent
from epifalcon.reports import formats
from epifalcon.reports.html_page import Page, Part, Picture, Section, Text
from epifalcon.reports.metric_registry import (
    METRICS,
    RUN_METRICS,
    TERMINAL_METRICS,
    glossary,
)
from epifalcon.reports.tables import Table, write_csv
from epifalcon.settings import json_text

_GLOSSARY = (
    *("hidden", "masked", *(METRICS[name].title for name in RUN_METRICS)),
    *("Platt, isotonic", "epsilon", "s"),
)


@dataclass(frozen=True)
class RunSummary:
    """Results written by ``write_results``, for a terminal."""

    values: dict[str, Any]
    tables: Sequence[Table]
    """Fewer than the report has."""
    shareable: dict[str, Any] | None = None
    """Values of a private run that may be shared, without exact ones."""
    notes: Sequence[str] = ()
    """Warnings about the results."""
    sentences: Sequence[str] = ()
    """What results on test results of real people mean."""


def write_results(
    inputs: RunInputs,
    outcomes: Sequence[Outcome],
    failed: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> RunSummary:
    """Write every plot and table of a finished run, and ``report.html``.

    ``failed`` are error messages of additional methods without outcome. A finished run
    is only read, with the privacy spent since then.
    """
    if finished(inputs.folder):
        summary = json.loads(
            (inputs.folder / run_folder.SUMMARY).read_text(encoding="utf-8")
        )
        summary |= outcomes[0].spent or {}
        return _run_summary(inputs, summary, outcomes)
    with store.writing(inputs.folder):
        summary = run_tables.run_summary(inputs, outcomes)
        statistics, own = None, None
        if inputs.epidemic is None:
            own = own_data_report.analyse(inputs, outcomes, progress)
            if own.found is not None:
                summary["expected_found"] = own.found.as_plain()
            summary["accuracy_scope"] = own_data_report.accuracy_scope(inputs)
            summary["warnings"] = run_tables.doubts(outcomes)
        else:
            statistics = measure(inputs.prepared.traces, progress)
        plain = [] if statistics is None else statistics.statistics
        summary["statistics"] = [asdict(item) for item in plain]
        if failed:
            summary["failed"] = dict(failed)
        write_summary(inputs.folder, inputs.prepared.experiment, summary)
        progress("report", 0, 2, "drawing plots")
        folder = inputs.folder / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        explained = _explained(inputs, outcomes)
        if own is not None:
            plots = own_data_report.draw(folder, inputs, outcomes, own)
        else:
            plots = _draw(folder, inputs, outcomes, statistics)
        if explained is not None:
            plots.append(explanation.write_plot(folder, explained))
        results = RunResults(
            inputs=inputs,
            outcomes=outcomes,
            evaluations=_evaluations(outcomes),
            pictures={plot.path.stem: plot for plot in plots if plot is not None},
            explained=explained,
            summary=summary,
            failed=failed or {},
        )
        progress("report", 1, 2, "writing tables and page")
        _write_tables(inputs.folder / run_folder.TABLES, results, own)
        if own is None:
            page = run_page(results)
        else:
            own.risks.write(inputs.folder / run_folder.RISKS, overwrite=True)
            page = own_data_report.page(results, own)
        store.replace_text(inputs.folder / run_folder.REPORT, page.to_html())
        run_folder.finish(inputs)
        progress("report", 2, 2)
    return _run_summary(inputs, summary, outcomes)


def _evaluations(outcomes: Sequence[Outcome]) -> list[Evaluation]:
    return [one.evaluation for one in outcomes if one.evaluation is not None]


def _draw(
    folder: Path,
    inputs: RunInputs,
    outcomes: Sequence[Outcome],
    statistics: MobilityStatistics | None,
) -> list[Picture | None]:
    """Draw the plots of a run on a simulated outbreak."""
    evaluations, name = _evaluations(outcomes), inputs.prepared.name
    plots = [
        run_plots.write_precision_recall(folder, evaluations),
        run_plots.write_reliability(folder, evaluations),
        run_plots.write_risk_map(folder, inputs.prepared.traces, outcomes[0]),
        run_plots.write_training(folder, outcomes),
    ]
    if statistics is not None:
        plots.append(run_plots.write_mobility(folder, statistics, name))
    if inputs.epidemic is not None:
        outbreak = inputs.epidemic.outbreak
        mark = " (SIMULATED)" if inputs.simulated_on_real_people else ""
        title = f"{name}{mark}"
        plots.append(run_plots.write_epidemic_curve(folder, [outbreak], title))
    return plots


def _run_summary(
    inputs: RunInputs, values: dict[str, Any], outcomes: Sequence[Outcome]
) -> RunSummary:
    tables, notes = _terminal_tables(outcomes), run_tables.doubts(outcomes)
    sentences: list[str] = []
    if inputs.epidemic is None:
        sentences = own_data_report.sentences(inputs, outcomes)
        # Without a mark of raw data, which tables of a private run have.
        sentences = sentences[:1] if inputs.shareable is not None else sentences
    return RunSummary(values, tables, notes=notes, sentences=sentences)


def write_summary(
    folder: Path, experiment: Experiment, summary: dict[str, Any]
) -> None:
    """Write ``summary.json``, and ``settings.toml`` for repeating the run."""
    store.replace_text(folder / run_folder.SUMMARY, json_text(summary, indent=2) + "\n")
    store.replace_text(folder / run_folder.SETTINGS, experiment.to_toml())


def _nobody_real(inputs: RunInputs) -> bool:
    """Return True if both traces and outbreak are simulated.

    Only then may a report show where a person was, and when.
    """
    return inputs.epidemic is not None and not inputs.prepared.is_imported


def run_page(results: RunResults) -> Page:
    """Return the whole report of a run."""
    inputs = results.inputs
    prepared = inputs.prepared
    table = run_tables.forecast_table(results.outcomes)
    forecast = [table] if table.rows else []
    where = results.plots("epidemic-curve", "risk-map")
    if "risk-map" not in results.pictures:
        where.append(Text(["There is no map: regions have no coordinates."]))
    return Page(
        title=f"epifalcon run: {prepared.name}",
        lead=simulated_mark(inputs)
        + "Who is probably infected, predicted from where people have been and from "
        "the tests of some of them, and evaluated on people "
        + ("not tested." if results.evaluations else "tested but held back."),
        headline=_headline(results),
        sections=[
            Section("What was run", _what(results)),
            Section("Results", _results(results)),
            Section("Where and when", where),
            Section("One risk explained", _explanation(results)),
            Section("Training", [*results.plots("training"), *forecast]),
            Section("Privacy card", privacy_parts(inputs, results.outcomes)),
            Section("The city", _city(results)),
        ],
        settings_toml=settings_toml(inputs),
        made_by=repeat_command(inputs),
        closing="This page is self-contained. In the same folder: figures/ (each plot "
        "as PNG and SVG, its data as CSV), tables/ (CSV), summary.json (all numbers), "
        "settings.toml.",
    )


def _explained(inputs: RunInputs, outcomes: Sequence[Outcome]) -> Explanation | None:
    """Explain the highest risk of somebody not tested; None if people are real."""
    if (outcome := explaining(outcomes)) is None or not _nobody_real(inputs):
        return None
    place = inputs.method_folder(outcome.method) / run_folder.PREDICTION
    if not (place / run_folder.FIELD_FOLDER).is_dir():
        return None
    known = inputs.tests
    eligible = ~known.tested | known.tested.all()
    risk = np.where(eligible, outcome.scores.risk, -1)
    state = explanation.load_state(place)
    return explain_person(*state, inputs.reported, known, int(np.argmax(risk)))


def _write_tables(folder: Path, results: RunResults, own: OwnResults | None) -> None:
    """Write the tables of the report as CSV; the table of methods with all digits."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [outcome.as_plain() for outcome in results.outcomes]
    names = sorted({name for values in plain for name in values["metrics"] or {}})
    cells = [
        [
            *(outcome.method, outcome.title, outcome.seconds),
            values.get("epsilon", {}).get("person"),
            *((values["metrics"] or {}).get(name) for name in names),
        ]
        for outcome, values in zip(results.outcomes, plain, strict=True)
    ]
    columns = ["method", "title", "seconds", "epsilon_person", *names]
    mark = {}
    if results.inputs.simulated_on_real_people:
        mark = {"simulated_on_real_people": "true"}

    def write(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        marked = [[*row, *mark.values()] for row in rows]
        write_csv(folder / f"{name}.csv", [*columns, *mark], marked)

    write("methods", columns, cells)
    statistics = results.summary["statistics"]
    for name, table in {
        "tested-people": run_tables.accuracy_table(results.outcomes),
        "in-plain-words": run_tables.who_is_found(results.evaluations),
        "privacy": run_tables.privacy_table(results.outcomes),
        "forecast": run_tables.forecast_table(results.outcomes),
        "city": run_tables.statistics_table(statistics, explained=True),
        **({} if own is None else own_data_report.tables(own)),
    }.items():
        if table.rows:
            write(name, table.columns, table.rows)


def _terminal_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    return [
        run_tables.methods_table(outcomes, TERMINAL_METRICS),
        run_tables.privacy_table(outcomes),
        run_tables.forecast_table(outcomes),
    ]


def _headline(results: RunResults) -> list[tuple[str, str]]:
    traces, summary = results.inputs.prepared.traces, results.summary
    cards = [
        (f"{traces.people:,}", "people"),
        (f"{len(traces.regions):,}", "regions"),
        (f"{traces.clock.days}", "days"),
        (f"{summary['tested']:,}", "people tested"),
    ]
    if "outbreak" in summary:
        share = summary["outbreak"]["infected_share"][0]
        cards.append((f"{share:.1%}", "infected by the end"))
    area = "AUC (area under the ROC curve)"
    auc, who = None, area
    if (tested := results.outcomes[0].tested) is not None:
        auc, who = tested.auc.estimate, f"{area} on tested people, out-of-fold"
        if tested.selected:
            who = f"{area}, chosen on {tested.people:,} people, {tested.positives:,} "
            who += "of them positive"
    elif summary["metrics"] is None:
        auc, who = summary.get("validation_auc"), f"{area} on validation people"
    if summary["metrics"] is not None:
        auc, who = summary["metrics"]["auc"], f"{area} on hidden people"
        if summary.get("selected_on") == "test":
            who += ", also used to select the round"
        if summary.get("macro_cases") == "all":
            who += ", whose cases were used"
    if auc is not None or summary["metrics"] is not None:
        cards.append((formats.number(auc), who))
    if (epsilon := summary["epsilon"]["person"]) is not None:
        cards.append((formats.epsilon(epsilon), "epsilon per person"))
    return cards


def _what(results: RunResults) -> list[Part]:
    inputs, prepared = results.inputs, results.inputs.prepared
    traces, known = prepared.traces, inputs.known
    city, preset = "A synthetic city", f" Preset {prepared.name}."
    if prepared.city_folder is not None:
        city, preset = f"The city of {prepared.city_folder}", ""
    city += (
        f": {traces.people:,} people, {len(traces.regions):,} regions, "
        f"{traces.clock.days} days in slots of {traces.clock.slot_hours:g} hours."
        f"{preset} Seed {inputs.seed}."
    )
    if inputs.reported.observed_share < traces.observed_share:
        city += (
            f" Methods see {inputs.reported.observed_share:.0%} of people's time; the "
            "outbreak was simulated on all of it."
        )
    tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
    tests = (
        f"{tested:,} people ({tested / max(traces.people, 1):.0%}) were tested, "
        f"{positive:,} of them positive. Methods use these results and the traces; "
        "the table lists further inputs."
    )
    sentences = [city, _disease(results), tests, *authors_program(inputs)]
    shown: list[Part] = [Text(sentences)]
    if inputs.shareable is not None:
        note = "This page holds raw data, which no epsilon covers. It is not to be "
        note += "shared; share report.html of the folder above instead."
        shown.insert(0, Text([note], "note"))
    if warnings := data_warnings(known, inputs.reported):
        shown.append(Text(warnings, "note"))
    return [*shown, methods_used(results)]


def _disease(results: RunResults) -> str:
    inputs, pathogen = results.inputs, results.inputs.prepared.experiment.pathogen
    if inputs.epidemic is None:
        raise AssertionError("test results of real people have another report")
    outbreak = inputs.epidemic.outbreak
    first, ever = int(outbreak.seeds.sum()), int(outbreak.ever_infected().sum())
    return (
        f"{simulated_mark(inputs)}An outbreak of {pathogen.name} (basic reproduction "
        f"number R0 {pathogen.r0:.1f}) was simulated: {ever:,} people "
        f"({outbreak.infected_share:.1%}) were infected by the end, {first:,} of them "
        f"initially and {ever - first:,} by others. The "
        f"{len(inputs.epidemic.labels.hidden):,} people not tested are hidden: methods "
        "are evaluated on their true state."
    )


def _results(results: RunResults) -> list[Part]:
    parts: list[Part] = []
    if results.failed:
        sentences = [
            f"{entry(method).title} has no result: {why}"
            for method, why in results.failed.items()
        ]
        parts.append(Text(sentences, "note"))
    table = run_tables.methods_table(results.outcomes)
    evaluations = results.evaluations
    prepared = results.inputs.prepared
    preset = prepared.name if prepared.city_folder is None else None
    sentences = [*run_tables.findings(evaluations, preset)]
    sentences += _diagnostics(results)
    if not evaluations:
        if warnings := run_tables.doubts(results.outcomes):
            parts.append(Text(warnings, "note"))
        parts += [_not_evaluated(results), *([table] if table.rows else [])]
        parts += [Text(sentences, "findings")] if sentences else []
        if table.rows:
            terms = [list(item) for item in glossary(table.columns).items()]
            parts.append(Table("Glossary", ["term", "meaning"], terms))
        return parts
    parts += [Text(sentences, "findings"), run_tables.who_is_found(evaluations), table]
    parts += results.plots("precision-recall", "reliability")
    terms = [list(item) for item in glossary(_GLOSSARY).items()]
    return [*parts, Table("Glossary", ["term", "meaning"], terms)]


def _diagnostics(results: RunResults) -> list[str]:
    """Return sentences on current infections and intervals, by methods with them."""
    sentences = []
    for one in results.outcomes:
        if (now := one.diagnostics.get("mean_risk_now")) is not None:
            sentences.append(
                f"{one.title} estimates that {one.scores.risk.mean():.1%} of people "
                f"have been infected and that {now:.1%} are exposed or infectious at "
                "the end of the last day (`risk_now` in the list of risks)."
            )
        if (
            results.evaluations
            and (width := one.diagnostics.get(INTERVAL_WIDTH)) is not None
        ):
            sentences.append(
                f"The 90 % interval of a risk of {one.title} is {100 * width:.1f} "
                "percentage points wide on average (`risk_low`, `risk_high`)."
            )
    return sentences


def _not_evaluated(results: RunResults) -> Text:
    predict = f"epifalcon predict {quoted_folder(results.inputs)} --out risks.csv"
    sentences = [
        (
            "No method is evaluated on untested people, because everybody was tested: "
            "nobody is hidden."
        )
    ]
    if any(one.tested is not None for one in results.outcomes):
        sentences.append(
            "The first table compares the risks of tested people, predicted without "
            "their own results, with these results. Where the same people also chose "
            "the model or its round, the accuracy is too high."
        )
    sentences.append(f"Everybody's risk: `{predict}`")
    return Text(sentences, "note")


def _explanation(results: RunResults) -> list[Part]:
    if (outcome := explaining(results.outcomes)) is None:
        return []
    if results.explained is None:
        return [] if _nobody_real(results.inputs) else [omitted_explanation(results)]
    command = explain_command(results.inputs, results.outcomes[0], outcome)
    tested = bool(results.inputs.known.tested.all())
    who = "any person" if tested else "an untested person"
    lead = f"The highest risk that {outcome.title} gives to {who}. For others: "
    shown = explanation.parts(
        results.explained,
        results.pictures.get("explanation"),
        explanation.SIMULATED,
        tested=tested,
    )
    return [Text([f"{lead}`{command}`"]), *shown]


def _city(results: RunResults) -> list[Part]:
    note = (
        "Infections are those by transmission; initially infected people count only in "
        "the infected share."
    )
    outbreaks = run_tables.outbreak_table(results.summary["outbreak"])
    statistics = results.summary["statistics"]
    table = run_tables.statistics_table(statistics, explained=True)
    return [Text([note]), outbreaks, table, *results.plots("mobility")]
