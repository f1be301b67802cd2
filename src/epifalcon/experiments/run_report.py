"""The report of a run: summary, settings, plots, tables and one HTML page.

The page starts with what was run and what came out in plain sentences, and says what
is missing and why.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epifalcon import store
from epifalcon.epidemic.test_results import concerns
from epifalcon.experiments import explanation, run_folder, run_plots, run_tables
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.explanation import Explanation, explain_person
from epifalcon.experiments.run_folder import RunInputs, finished
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.methods.base import INTERVAL_WIDTH
from epifalcon.methods.registry import entry
from epifalcon.mobility.statistics import measure
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

_PROGRAM = (
    "Clip and noise are, at least in part, those of the authors' program: nothing "
    "bounds what uploads reveal about a person, and no epsilon exists."
)
_GLOSSARY = (
    *("hidden", "masked", *(METRICS[name].title for name in RUN_METRICS)),
    *("Platt, isotonic", "epsilon", "s"),
)


@dataclass(frozen=True)
class RunSummary:
    """What ``keep_results`` wrote, as a terminal shows it."""

    figures: dict[str, Any]
    tables: Sequence[Table]
    """Fewer than the report has."""


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """Everything that the page of a run is made from."""

    begun: RunInputs
    outcomes: Sequence[Outcome]
    evaluations: Sequence[Evaluation]
    """How each method does on hidden people; empty if nobody is hidden."""
    pictures: Mapping[str, Picture]
    """By the stem of their files."""
    summary: Mapping[str, Any]
    explained: Explanation | None
    """Of one person, if a method can explain risks and nobody is real."""
    failed: Mapping[str, str]
    """Methods beside the run's own that ended with an error, and the error."""

    def drawn(self, *names: str) -> list[Part]:
        """Return those of the named plots that exist."""
        return [self.pictures[name] for name in names if name in self.pictures]


def keep_results(
    begun: RunInputs,
    outcomes: Sequence[Outcome],
    progress: Progress = silent,
    failed: Mapping[str, str] | None = None,
) -> RunSummary:
    """Write every plot and table of a finished run, and ``report.html``.

    ``failed`` are methods beside the run's own that have no outcome, and why. A run
    that is finished already is only read, with what was spent on privacy since.
    """
    if finished(begun.folder):
        summary = json.loads(
            (begun.folder / run_folder.SUMMARY).read_text(encoding="utf-8")
        )
        if entry(outcomes[0].method).trains_in_rounds:
            summary |= outcomes[0].spent or {}
        return RunSummary(summary, _terminal_tables(outcomes))
    with store.writing(begun.folder):
        statistics = measure(begun.prepared.traces, progress)
        summary = run_tables.run_figures(begun, outcomes)
        summary["statistics"] = [asdict(one) for one in statistics.statistics]
        if failed:
            summary["failed"] = dict(failed)
        write_summary(begun.folder, begun.prepared.experiment, summary)
        found = (one.evaluation for one in outcomes)
        evaluations = [one for one in found if one is not None]
        folder, name = begun.folder / "figures", begun.prepared.name
        folder.mkdir(parents=True, exist_ok=True)
        traces = begun.prepared.traces
        drawn = [
            run_plots.write_precision_recall(folder, evaluations),
            run_plots.write_reliability(folder, evaluations),
            run_plots.write_risk_map(folder, traces, outcomes[0]),
            run_plots.write_training(folder, outcomes),
            run_plots.write_mobility(folder, statistics, name),
        ]
        if begun.epidemic is not None:
            outbreak = begun.epidemic.outbreak
            drawn.append(run_plots.write_epidemic_curve(folder, [outbreak], name))
        if (explained := _explained(begun, outcomes)) is not None:
            drawn.append(explanation.write_plot(folder, explained))
        results = RunResults(
            begun=begun,
            outcomes=outcomes,
            evaluations=evaluations,
            pictures={one.path.stem: one for one in drawn if one is not None},
            explained=explained,
            summary=summary,
            failed=failed or {},
        )
        _write_tables(begun.folder / run_folder.TABLES, results)
        store.replace_text(begun.folder / "report.html", run_page(results).to_html())
        run_folder.finish(begun)
    return RunSummary(summary, _terminal_tables(outcomes))


def write_summary(
    folder: Path, experiment: Experiment, summary: dict[str, Any]
) -> None:
    """Write ``summary.json`` and ``settings.toml``, which runs it again."""
    store.replace_text(folder / run_folder.SUMMARY, json_text(summary, indent=2) + "\n")
    store.replace_text(folder / run_folder.SETTINGS, experiment.to_toml())


def nobody_real(begun: RunInputs) -> bool:
    """Return True if both the people's traces and their disease are simulated.

    Only then may a report show where one of them was, and when. An imported city has
    no settings of an outbreak.
    """
    settings = begun.prepared.city_origin.settings
    return begun.epidemic is not None and "outbreak" in settings


def run_page(results: RunResults) -> Page:
    """Return the whole report of a run."""
    begun = results.begun
    prepared = begun.prepared
    city = "" if prepared.city_folder is None else f"--city {prepared.city_folder} "
    table = run_tables.forecast_table(results.outcomes)
    forecast = [table] if table.rows else []
    return Page(
        title=f"epifalcon run: {prepared.name}",
        lead="Who is probably infected, predicted from where people have been and from "
        "the tests of some of them, and evaluated on people "
        + ("not tested." if results.evaluations else "tested but held back."),
        headline=_headline(results),
        sections=[
            Section("What was run", _what(results)),
            Section("Results", _results(results)),
            Section("Where and when", _where(results)),
            Section("One risk explained", _explanation(results)),
            Section("Training", [*results.drawn("training"), *forecast]),
            Section("Privacy card", _privacy(results)),
            Section("The city", _city(results)),
        ],
        settings_toml=prepared.experiment.to_toml(),
        made_by=f"epifalcon run {city}--preset settings.toml "
        f"--seed {begun.seed} --out again",
        closing="This file needs nothing else. Beside it: figures/ (each figure as PNG "
        "and SVG, its data as CSV), tables/ (CSV), summary.json (every number), "
        "settings.toml.",
    )


def _explained(begun: RunInputs, outcomes: Sequence[Outcome]) -> Explanation | None:
    """Explain the highest risk of somebody not tested; None if people are real."""
    if (outcome := _explaining(outcomes)) is None or not nobody_real(begun):
        return None
    place = begun.method_folder(outcome.method) / run_folder.PREDICTION
    if not (place / run_folder.FIELD_FOLDER).is_dir():
        return None
    known = begun.tests
    eligible = ~known.tested | known.tested.all()
    risk = np.where(eligible, outcome.probability, -1)
    return explain_person(place, begun.reported, known, int(np.argmax(risk)))


def _explaining(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the outcome of the method whose risks can be explained, if it was run."""
    return next((one for one in outcomes if entry(one.method).stores_state), None)


def _write_tables(folder: Path, results: RunResults) -> None:
    """Write the tables of the report as CSV; that of methods with every digit."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [one.as_plain() for one in results.outcomes]
    names = sorted({name for one in plain for name in one["metrics"] or {}})
    cells = [
        [
            *(one.method, one.title, one.seconds),
            figures.get("epsilon", {}).get("person"),
            *((figures["metrics"] or {}).get(name) for name in names),
        ]
        for one, figures in zip(results.outcomes, plain, strict=True)
    ]
    columns = ["method", "title", "seconds", "epsilon_person", *names]
    write_csv(folder / "methods.csv", columns, cells)
    statistics = results.summary["statistics"]
    for name, table in {
        "in-plain-words": run_tables.who_is_found(results.evaluations),
        "privacy": run_tables.privacy_table(results.outcomes),
        "forecast": run_tables.forecast_table(results.outcomes),
        "city": run_tables.statistics_table(statistics, explained=True),
    }.items():
        if table.rows:
            write_csv(folder / f"{name}.csv", table.columns, table.rows)


def _terminal_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    return [
        run_tables.methods_table(outcomes, TERMINAL_METRICS),
        run_tables.privacy_table(outcomes),
        run_tables.forecast_table(outcomes),
    ]


def _headline(results: RunResults) -> list[tuple[str, str]]:
    traces, summary = results.begun.prepared.traces, results.summary
    cards = [
        (f"{traces.people:,}", "people"),
        (f"{len(traces.regions):,}", "regions"),
        (f"{traces.clock.days}", "days"),
        (f"{summary['tested']:,}", "people tested"),
    ]
    if "outbreak" in summary:
        share = summary["outbreak"]["infected_share"][0]
        cards.append((f"{share:.1%}", "infected by the end"))
    auc, who = summary.get("validation_auc"), "AUC on validation people"
    if summary["metrics"] is not None:
        auc, who = summary["metrics"]["auc"], "AUC on hidden people"
        if summary.get("selected_on") == "test":
            who += ", who also chose the round"
        if summary.get("macro_cases") == "all":
            who += ", whose cases were seen"
    if auc is not None or summary["metrics"] is not None:
        cards.append((formats.number(auc), who))
    if (epsilon := summary["epsilon"]["person"]) is not None:
        cards.append((formats.epsilon(epsilon), "epsilon of a person"))
    return cards


def _what(results: RunResults) -> list[Part]:
    begun, prepared = results.begun, results.begun.prepared
    traces, known = prepared.traces, begun.known
    city, preset = "A synthetic city", f" Preset {prepared.name}."
    if prepared.city_folder is not None:
        city, preset = f"The city of {prepared.city_folder}", ""
    city += (
        f": {traces.people:,} people, {len(traces.regions):,} regions, "
        f"{traces.clock.days} days in slots of {traces.clock.slot_hours:g} hours."
        f"{preset} Seed {begun.seed}."
    )
    if begun.reported.observed_share < traces.observed_share:
        city += (
            f" Methods see {begun.reported.observed_share:.0%} of people's time; the "
            "disease spreads along all of it."
        )
    tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
    tests = (
        f"{tested:,} people ({tested / max(traces.people, 1):.0%}) were tested, "
        f"{positive:,} of them positive. Methods know these results and where people "
        "have been; what else they know is in the table."
    )
    said, privacy = [city, _disease(results), tests], prepared.experiment.privacy
    if privacy.mode != "off" and not privacy.is_published:
        said.append(_PROGRAM)
    shown: list[Part] = [Text(said)]
    if warnings := concerns(known, begun.reported):
        shown.append(Text(warnings, "note"))
    rows = []
    for one in results.outcomes:
        rounds = "-"
        if one.looks:
            rounds = f"{one.told['rounds']:,}, the best {one.told['best_round']:,}"
        rows.append([one.title, entry(one.method).summary, _also_knows(one), rounds])
    for method, why in results.failed.items():
        listed = entry(method)
        rows.append([listed.title, listed.summary, "-", f"failed: {why}"])
    columns = ["method", "what it does", "also knows", "rounds of training"]
    return [*shown, Table("Methods", columns, rows)]


def _also_knows(one: Outcome) -> str:
    """Say what a method knows besides tests and traces."""
    listed, known = entry(one.method), []
    if listed.uses_pathogen:
        known.append("the disease's rates")
    if listed.is_own:
        known.append("the disease's rates, if it reads them")
    if listed.is_ceiling:
        known.append("something of the truth, as a ceiling")
    if one.told.get("macro_cases") == "all":
        known.append("everybody's cases, which hold the answers")
    if one.told.get("selected_on") == "test":
        known.append("its round was chosen on the people it is evaluated on")
    return "; ".join(known) or "-"


def _disease(results: RunResults) -> str:
    begun, pathogen = results.begun, results.begun.prepared.experiment.pathogen
    if begun.epidemic is None:
        return (
            "The tests are of real people. Nothing was simulated, and it is not known "
            "who else is infected."
        )
    outbreak = begun.epidemic.outbreak
    first, ever = int(outbreak.seeds.sum()), int(outbreak.ever_infected().sum())
    return (
        f"An outbreak of {pathogen.name} (R0 {pathogen.r0:.1f}) was simulated in it: "
        f"{ever:,} people ({outbreak.infected_share:.1%}) were infected by the end, "
        f"the {first:,} with whom it began and {ever - first:,} by others. The "
        f"{len(begun.epidemic.labels.hidden):,} people not tested are hidden: methods "
        "are evaluated on their true state."
    )


def _results(results: RunResults) -> list[Part]:
    parts: list[Part] = []
    if results.failed:
        said = [
            f"{entry(method).title} has no result: {why}"
            for method, why in results.failed.items()
        ]
        parts.append(Text(said, "note"))
    table = run_tables.methods_table(results.outcomes)
    found = results.evaluations
    said = [*run_tables.findings(found, results.begun.prepared.name)]
    said += _diagnostics(results)
    if not found:
        parts += [_not_evaluated(results), table]
        return [*parts, *([Text(said, "findings")] if said else [])]
    parts += [Text(said, "findings"), run_tables.who_is_found(found), table]
    parts += results.drawn("precision-recall", "reliability")
    words = [list(one) for one in glossary(_GLOSSARY).items()]
    return [*parts, Table("What the words mean", ["word", "meaning"], words)]


def _diagnostics(results: RunResults) -> list[str]:
    """Say how many are still infected and how sure that is, by methods that know."""
    said = []
    for one in results.outcomes:
        if (now := one.told.get("mean_risk_now")) is not None:
            said.append(
                f"By {one.title}, {one.probability.mean():.1%} of people have been "
                f"infected, and {now:.1%} still are at the end of the last day, "
                "exposed or infectious (`risk_now` in the list of risks)."
            )
        if results.evaluations and (width := one.told.get(INTERVAL_WIDTH)) is not None:
            said.append(
                f"By {one.title}, the 90 % interval of a risk is {100 * width:.1f} "
                "percentage points wide on average (`risk_low`, `risk_high`)."
            )
    return said


def _not_evaluated(results: RunResults) -> Text:
    why = (
        "the tests are of real people, and the state of the others is not known"
        if results.begun.epidemic is None
        else "everybody was tested, so nobody is hidden"
    )
    predict = f"epifalcon predict {results.begun.folder.name} --out risks.csv"
    said = [
        f"No method is evaluated, because {why}.",
        (
            "The validation AUC says how well people are ranked who were tested but "
            "held back. It also selected the best round, so it is somewhat too high."
        ),
        f"Everybody's risk: `{predict}`",
    ]
    return Text(said, "note")


def _where(results: RunResults) -> list[Part]:
    parts = results.drawn("epidemic-curve", "risk-map")
    if "risk-map" not in results.pictures:
        parts.append(Text(["There is no map: regions have no coordinates."]))
    return parts


def _explanation(results: RunResults) -> list[Part]:
    if (outcome := _explaining(results.outcomes)) is None:
        return []
    method = outcome.method
    command = f"epifalcon explain {results.begun.folder.name} PERSON"
    # Without --method the command takes the run's own method.
    if results.outcomes[0].method != method:
        command += f" --method {method}"
    if results.explained is None:
        if nobody_real(results.begun):
            return []
        said = (
            "Left out: the people are real, and where somebody was, and when, is shown "
            f"to that person alone: `{command}`"
        )
        return [Text([said], "note")]
    tested = bool(results.begun.known.tested.all())
    who = "one person" if tested else "one person not tested"
    lead = f"By {entry(method).title}, {who}: the one with the highest risk. For "
    shown = explanation.parts(
        results.explained,
        results.pictures.get("explanation"),
        explanation.SIMULATED,
        tested=tested,
    )
    return [Text([f"{lead}anybody: `{command}`"]), *shown]


def _privacy(results: RunResults) -> list[Part]:
    """Return each method's guarantee, and which methods have none."""
    run = results.begun.folder.name
    shown: list[Part] = []
    bare = []
    for one in results.outcomes:
        guarantee = run_tables.guarantee(one)
        if guarantee is None:
            bare.append(one.title)
            continue
        audit = f"`epifalcon audit {run} --method {one.method}`"
        if guarantee.trained:
            audit = f"`epifalcon run` with `--record-view 100`, then {audit}"
        shown += guarantee.parts(one.title, audit)
    if bare:
        said = f"{'; '.join(bare)}: nothing is protected. Whoever runs it sees places, "
        shown.append(Text([said + "rows and test results as they are."], "note"))
    return shown


def _city(results: RunResults) -> list[Part]:
    parts: list[Part] = []
    if results.begun.epidemic is not None:
        said = (
            "Infections are those transmitted in the city: the people with whom the "
            "outbreak began count in the infected share only."
        )
        outbreaks = run_tables.outbreak_table(results.summary["outbreak"])
        parts += [Text([said]), outbreaks]
    statistics = results.summary["statistics"]
    parts.append(run_tables.statistics_table(statistics, explained=True))
    return [*parts, *results.drawn("mobility")]
