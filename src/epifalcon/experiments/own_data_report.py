"""The report of a run on test results of real people, whose true state is unknown.

It says whom to test first, how sure this is, and where and when infections happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epifalcon.epidemic.risk_table import Risks
from epifalcon.epidemic.test_kinds import EVER
from epifalcon.epidemic.test_results import data_warnings
from epifalcon.evaluation.tested_people import TestedAccuracy
from epifalcon.experiments import places as place_list
from epifalcon.experiments import run_folder, run_plots, run_tables
from epifalcon.experiments.expected_found import ExpectedFound, expected_found
from epifalcon.experiments.explanation import load_state
from epifalcon.experiments.places import PlaceInfections, date_of, place_infections
from epifalcon.experiments.report_parts import (
    RunResults,
    authors_program,
    explaining,
    methods_used,
    omitted_explanation,
    privacy_parts,
    quoted_folder,
    repeat_command,
    settings_toml,
)
from epifalcon.experiments.run_folder import RunInputs
from epifalcon.experiments.run_methods import Outcome
from epifalcon.methods.registry import entry
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.coverage import FEW, TraceCoverage
from epifalcon.progress import Progress
from epifalcon.reports import formats
from epifalcon.reports.html_page import Page, Part, Picture, Section, Text
from epifalcon.reports.metric_registry import glossary
from epifalcon.reports.tables import Table

_LISTED, _PLACES = 10, 10
"""People and places on the page; the files have more."""
_FEW_POSITIVES = 20
_PERSONAL = (
    "This page names people and places: it is for those who may see the traces and "
    "test results."
)


@dataclass(frozen=True, eq=False)
class OwnResults:
    """What is computed of real people, besides the outcomes of methods."""

    risks: Risks
    coverage: TraceCoverage
    found: ExpectedFound | None
    places: PlaceInfections | None
    """None if no method of the run stores infections by place."""


def analyse(
    inputs: RunInputs, outcomes: Sequence[Outcome], progress: Progress
) -> OwnResults:
    """Compute coverage, expected numbers and places of a run on real people."""
    own = outcomes[0]
    risks = own.scores.risks(inputs.reported, inputs.known)
    places = None
    if (outcome := explaining(outcomes)) is not None:
        folder = inputs.method_folder(outcome.method) / run_folder.PREDICTION
        if (folder / run_folder.FIELD_FOLDER).is_dir():
            places = place_infections(
                *load_state(folder),
                inputs.reported,
                inputs.tests,
                outcome.scores.risk,
                progress,
            )
    found = expected_found(own.method, own.scores, inputs.known)
    coverage = TraceCoverage.of(inputs.reported)
    return OwnResults(risks, coverage, found, places)


def draw(
    folder: Path, inputs: RunInputs, outcomes: Sequence[Outcome], own: OwnResults
) -> list[Picture | None]:
    """Draw the plots of the page."""
    traces = inputs.reported
    plots = [
        run_plots.write_risk_map(folder, traces, outcomes[0], _marked(own)),
        run_plots.write_training(folder, outcomes),
    ]
    if own.found is not None:
        plots.append(run_plots.write_expected_found(folder, own.found))
    if own.places is not None:
        days = [day_name(traces.clock, day) for day in range(traces.clock.days)]
        plots.append(run_plots.write_infections(folder, days, own.places.by_day))
    return plots


def tables(own: OwnResults) -> dict[str, Table]:
    """Return the tables of the page by the names of their files."""
    named = {"coverage": _coverage_table(own)}
    if own.found is not None:
        named["expected-found"] = _found_table(own.found)
    if own.places is not None:
        named["places"] = place_list.shown_table(own.places.table(_PLACES))
    return named


def sentences(inputs: RunInputs, outcomes: Sequence[Outcome]) -> list[str]:
    """Return what a terminal says about disease, tests and the people to test."""
    own = outcomes[0]
    said = [run_tables.disease(inputs, own), describe_tests(inputs)]
    found = expected_found(own.method, own.scores, inputs.known)
    if found is not None:
        said.append(_first(found, inputs))
    if any(one.tested for one in outcomes):
        said.append(accuracy_scope(inputs))
    return said


def describe_tests(inputs: RunInputs) -> str:
    """Say how many people were tested, by which kinds of tests and why."""
    known, people = inputs.known, inputs.reported.people
    tested, positive = int(known.tested.sum()), int((known.status == 1).sum())
    kinds = ", ".join(kind.name for kind in known.kinds)
    assumed = inputs.prepared.experiment.labels.tested_because
    said_by = "as given" if (known.reason >= 0).all() else "assumed"
    if said_by == "assumed" and (known.reason >= 0).any():
        said_by = f"{assumed} where not given"
    because = f"{', '.join(known.reasons(assumed))} ({said_by})"
    said = (
        f"{tested:,} of {people:,} people ({tested / people:.0%}) were tested, "
        f"{positive:,} of them positive. Kind of test: {kinds}; tested because: "
        f"{because}."
    )
    if EVER in known.kinds:
        said += (
            " A test of kind ever says without error whether the person was infected "
            "at any time before it; for PCR and antigen tests, import with --test-kind."
        )
    return said


def last_day(inputs: RunInputs) -> str:
    """Return the last day as a date with weekday, or its number."""
    clock = inputs.reported.clock
    when = date_of(clock, clock.days - 1)
    return f"day {clock.days}" if when is None else f"{when:%A} {when.isoformat()}"


def day_name(clock: Clock, day: int) -> str:
    """Return a day as a date, or its number from 1."""
    when = date_of(clock, day)
    return str(day + 1) if when is None else when.isoformat()


def page(results: RunResults, own: OwnResults) -> Page:
    """Return the whole report."""
    inputs = results.inputs
    end = last_day(inputs)
    has_messages = explaining(results.outcomes) is not None
    explained = [omitted_explanation(results)] if has_messages else []
    return Page(
        title=f"Whom to test: {inputs.prepared.name}",
        lead="Who is probably infected, predicted from where people have been and from "
        f"the tests of some of them. All risks are those at the end of {end}.",
        headline=_headline(results),
        sections=[
            Section("Whom to test first", _whom(results, own)),
            Section("How sure", _how_sure(results)),
            Section("Where and when", _where(results, own)),
            Section("What the risks rest on", _basis(results, own)),
            Section("One risk explained", explained),
            Section("Training", _training(results)),
            Section("Privacy card", privacy_parts(inputs, results.outcomes)),
        ],
        settings_toml=settings_toml(inputs),
        made_by=repeat_command(inputs),
        closing="This page is self-contained. In the same folder: risks.csv "
        "(everybody's risk), figures/ (each plot as PNG and SVG, its data as CSV), "
        "tables/ (CSV), summary.json (all numbers), settings.toml.",
    )


def _training(results: RunResults) -> list[Part]:
    forecast = run_tables.forecast_table(results.outcomes)
    return [*results.plots("training"), *([forecast] if forecast.rows else [])]


def _headline(results: RunResults) -> list[tuple[str, str]]:
    inputs, scores = results.inputs, results.outcomes[0].scores
    known, people = inputs.known, inputs.reported.people
    positive = int((known.status == 1).sum())
    cards = [
        (f"{people:,}", "people"),
        (f"{int(known.tested.sum()):,}", f"tested, {positive:,} of them positive"),
    ]
    if scores.now_tested is not None:
        now = f"{scores.now_tested.sum():,.0f}"
        cards.append((now, "expected to be infected on the last day"))
    cards.append((f"{inputs.reported.observed_share:.0%}", "of their time observed"))
    tested = results.outcomes[0].tested
    if tested is not None and tested.auc.estimate is not None:
        label = "AUC on tested people, out-of-fold"
        if tested.selected:
            label = "AUC on the tested people who chose the model"
        cards.append((formats.number(tested.auc.estimate), label))
    if (epsilon := results.summary["epsilon"]["person"]) is not None:
        cards.append((formats.epsilon(epsilon), "epsilon per person"))
    return cards


def _whom(results: RunResults, own: OwnResults) -> list[Part]:
    inputs = results.inputs
    predict = f"epifalcon predict {quoted_folder(inputs)} --out risks.csv"
    note = [_PERSONAL]
    if inputs.shareable is not None:
        note = [
            (
                "This page holds raw data, which no epsilon covers. It is not to be "
                "shared; share report.html of the folder above instead."
            )
        ]
    parts: list[Part] = [Text(note, "note")]
    if not (~inputs.known.tested).any():
        return [*parts, Text([f"Everybody was tested. Everybody's risk: `{predict}`"])]
    if own.found is None:
        reason = (
            f"The scores of {results.outcomes[0].title} are not probabilities, and too "
            "few tested people were held back to recalibrate them: no number of "
            "infected people can be expected."
        )
        parts.append(Text([reason], "findings"))
    else:
        parts.append(Text(_expected(own.found, inputs), "findings"))
        parts += [_found_table(own.found), *results.plots("expected-found")]
    return [
        *parts,
        _list(own.risks),
        Text([f"All people are in `risks.csv`; a new list: `{predict}`"]),
    ]


def _expected(found: ExpectedFound, inputs: RunInputs) -> list[str]:
    said = [_first(found, inputs)]
    why = "The interval covers chance"
    if found.checked:
        why += " and how closely the tests so far confirm the level of the risks"
    said.append(
        f"{why}. It holds if untested people do not differ from tested people in "
        "what the method does not see, such as contacts that no trace shows. A test "
        "does not find every infected person."
    )
    if found.recalibrated:
        said.append("Scores were recalibrated on tested people by Platt scaling.")
    return said


def _first(found: ExpectedFound, inputs: RunInputs) -> str:
    """Say how many infected people the first list of tests is expected to find."""
    count = found.counts[0]
    row = count - 1
    when = f"infected at the end of {last_day(inputs)}"
    if found.what == "ever":
        when = f"infected at any time until the end of {last_day(inputs)}"
    return (
        f"Of the {count:,} untested people with the highest risk, about "
        f"{found.expected[row]:,.1f} are expected to be {when} (95 % interval "
        f"{found.low[row]:,.1f} to {found.high[row]:,.1f}); of {count:,} chosen at "
        f"random, {count * found.at_random:,.1f}."
    )


def _found_table(found: ExpectedFound) -> Table:
    rows = [
        [
            f"{one['tests']:,}",
            f"{one['expected']:,.1f}",
            f"{one['low']:,.1f} to {one['high']:,.1f}",
            f"{one['at_random']:,.1f}",
        ]
        for one in found.as_plain()
    ]
    what = "at the end of the last day" if found.what == "now" else "at any time"
    columns = ["people tested", "expected infected", "95 % interval", "at random"]
    caption = f"Expected number infected {what} among the highest risks"
    return Table(caption, columns, rows)


def _list(risks: Risks) -> Table:
    highest = risks.highest(_LISTED)
    names = ["person", "risk", "risk_now", "observed", "evidence"]
    if risks.now is None:
        names.remove("risk_now")
    rows = [
        [
            formats.percent(one[name], 1)
            if isinstance(one[name], float)
            else str(one[name])
            for name in names
        ]
        for one in highest
    ]
    heads = [name.replace("_", " ") for name in names]
    return Table(f"The first {len(rows)} people to test", heads, rows)


def _how_sure(results: RunResults) -> list[Part]:
    inputs, own = results.inputs, results.outcomes[0]
    parts: list[Part] = []
    if results.failed:
        why = [
            f"{entry(method).title} has no result: {reason}"
            for method, reason in results.failed.items()
        ]
        parts.append(Text(why, "note"))
    if warnings := run_tables.doubts(results.outcomes):
        parts.append(Text(warnings, "note"))
    if own.tested is None:
        said = [
            (
                f"The accuracy of {own.title} is unknown: it has no risks of tested "
                "people that do not use their own results, and nobody knows the state "
                "of the others."
            )
        ]
    else:
        said = accuracy_in_words(own, own.tested, inputs)
    parts.append(Text(said, "findings"))
    table = run_tables.accuracy_table(results.outcomes)
    if table.rows:
        terms = [list(item) for item in glossary(table.columns).items()]
        parts += [Text([accuracy_scope(inputs)], "note"), table]
        parts.append(Table("Glossary", ["term", "meaning"], terms))
    return parts


def accuracy_in_words(
    outcome: Outcome, tested: TestedAccuracy, inputs: RunInputs
) -> list[str]:
    """Describe the accuracy on tested people for readers without statistics."""
    said = []
    if (auc := tested.auc).estimate is not None:
        within = ""
        if auc.low is not None and auc.high is not None:
            within = f" (95 % interval {100 * auc.low:.0f} to {100 * auc.high:.0f})"
        said.append(
            f"Of 100 pairs of a person with a positive and one with a negative "
            f"result, {outcome.title} puts the positive one first in "
            f"{100 * auc.estimate:.0f}{within}; by chance it would be 50."
        )
    scores = outcome.scores
    has_both = 0 < tested.positives < tested.people
    if has_both and scores.masked is not None and scores.masked_risk is not None:
        positive = inputs.known.status[scores.masked] == 1
        count = tested.positives
        top = np.argsort(-scores.masked_risk, kind="stable")[:count]
        chance = count * count / max(tested.people, 1)
        said.append(
            f"{count:,} of these {tested.people:,} people are positive. Among the "
            f"{count:,} of them with the highest risks, {int(positive[top].sum()):,} "
            f"are positive; by chance it would be about {chance:.1f}."
        )
    error, by_chance = tested.calibration_error, tested.calibration_by_chance
    verdict = "so nothing speaks against reading risks as probabilities"
    if error > by_chance:
        verdict = "so use the order of the list rather than the values of the risks"
    said.append(
        "In groups of people with similar risks, risk and share of positive results "
        f"differ by {100 * error:.1f} percentage points on average; true "
        f"probabilities would differ by up to {100 * by_chance:.1f} by chance, "
        f"{verdict}."
    )
    if tested.selected:
        said.append(
            "These people also chose the model or its round: the accuracy is too high."
        )
    else:
        said.append("All this is by risks that do not use the person's own result.")
    if tested.positives < _FEW_POSITIVES:
        said.append(
            f"With {tested.positives:,} positive results, all these numbers are rough."
        )
    return said


def accuracy_scope(inputs: RunInputs) -> str:
    """Say whose accuracy is measured, by the reasons for which people were tested."""
    assumed = inputs.prepared.experiment.labels.tested_because
    reasons = inputs.known.reasons(assumed)
    if reasons == ["random"]:
        return (
            "If people were tested at random, as assumed (--tested-because random), "
            "this accuracy also holds for the others. If symptoms were the reason, "
            "risks of untested people are too high."
        )
    said = (
        "This accuracy is that on tested people, who are no random sample (tested "
        f"because: {', '.join(reasons)}). Fewer untested people are infected, as a "
        "rule, so their average precision is lower."
    )
    if not {"symptoms", "unknown"}.isdisjoint(reasons):
        said += (
            " Where symptoms were the reason, nothing is measured on infected people "
            "without symptoms."
        )
    if not {"contact", "unknown"}.isdisjoint(reasons):
        said += (
            " Where contacts were the reason, people with a negative result had "
            "contacts, too, so the AUC is lower than among everybody."
        )
    return said


def _where(results: RunResults, own: OwnResults) -> list[Part]:
    parts: list[Part] = [*results.plots("infections", "risk-map")]
    if "risk-map" not in results.pictures:
        parts.append(Text(["There is no map: regions have no coordinates."]))
    if own.places is None:
        return [*parts, Text(["Places are only ranked by falcon-field."])]
    traces = own.places.traces
    said = place_list.summary_sentence(own.places)
    if later := traces.clock.days - traces.observed_days:
        days = "The last day has" if later == 1 else f"The last {later} days have"
        said += f" {days} no visits, so infections on them are not computed."
    run = quoted_folder(results.inputs)
    command = f"epifalcon places {run} --by place-day"
    return [
        *parts,
        Text([said]),
        place_list.shown_table(own.places.table(_PLACES)),
        Text([f"Each place on each day: `{command}`. {place_list.CAUTION}"]),
    ]


def _basis(results: RunResults, own: OwnResults) -> list[Part]:
    inputs = results.inputs
    traces, known, clock = inputs.reported, inputs.known, inputs.reported.clock
    first, end = day_name(clock, 0), last_day(inputs)
    said = [
        (
            f"{traces.people:,} people, {len(traces.regions):,} regions, {clock.days} "
            f"days from {first} to {end}, in slots of {clock.slot_hours:g} hours."
        ),
        f"People were observed in {traces.observed_share:.0%} of these slots.",
        describe_tests(inputs),
        run_tables.disease(inputs, results.outcomes[0]),
        _meaning(results),
        *authors_program(inputs),
    ]
    parts: list[Part] = [Text(said, "findings")]
    if warnings := data_warnings(known, traces):
        parts.append(Text(warnings, "note"))
    return [*parts, _coverage_table(own), methods_used(results)]


def _meaning(results: RunResults) -> str:
    end = last_day(results.inputs)
    ever = f"an infection at any time until the end of {end}"
    own = results.outcomes[0]
    if own.scores.now is not None:
        return (
            f"`risk` is the probability of {ever}, `risk_now` of being infected "
            "(exposed or infectious) at that time. Neither uses the person's own test."
        )
    what = "the probability" if entry(own.method).uses_pathogen else "a score"
    return f"`risk` is {what} of {ever}."


def _coverage_table(own: OwnResults) -> Table:
    """Count people by what their risk rests on."""
    meanings = {
        "ok": "observed often enough, and with other people",
        "few observations": f"observed in less than {FEW:.0%} of the slots",
        "no contacts observed": "never at a place and time with another person",
        "not observed": "no visit at all",
    }
    evidence = own.coverage.evidence
    rows = [
        [name, text, f"{count:,}", f"{count / len(evidence):.0%}"]
        for name, text in meanings.items()
        if (count := int((evidence == name).sum()))
    ]
    columns = ["evidence", "meaning", "people", "share"]
    return Table("People by what their risk rests on", columns, rows)


def _marked(own: OwnResults) -> list[int]:
    """Return the regions to number on the map: those with most infections."""
    if own.places is None:
        return []
    total = own.places.by_slot[:, 1:].sum(axis=0)
    order = np.argsort(-total, kind="stable")[:_PLACES]
    return [region for region in order.tolist() if total[region] > 0]
