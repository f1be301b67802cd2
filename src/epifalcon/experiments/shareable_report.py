"""Shareable outputs of a private run: report, summary, and the source of every value.

They hold what is public (settings, the number of people, regions and days), values
released with noise, and functions of these. All else stays in the folder ``private``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from epifalcon import store
from epifalcon.experiments import run_folder, run_plots, run_tables
from epifalcon.experiments.explanation import load_field
from epifalcon.experiments.report_parts import (
    authors_program,
    privacy_parts,
    repeat_command,
    settings_toml,
    simulated_mark,
)
from epifalcon.experiments.run_folder import RunInputs
from epifalcon.experiments.run_methods import Outcome
from epifalcon.experiments.run_report import RunSummary
from epifalcon.methods.registry import entry
from epifalcon.privacy.events import UNITS
from epifalcon.reports import formats
from epifalcon.reports.html_page import Page, Part, Section, Text
from epifalcon.reports.tables import Table
from epifalcon.settings import json_text

_OPTIONAL = ("macro_cases", "selected_on", "released")
"""Diagnostics of a method that are settings or released values."""
_LEDGER = "settings and the number of rounds, by the ledger"
_SOURCES: Final = {
    **dict.fromkeys(
        ("preset", "seed", "insecure_seed", "method", "mode", "pathogen"),
        "public: settings",
    ),
    **dict.fromkeys(("macro_cases", "selected_on"), "public: settings"),
    "simulated_on_real_people": "public: settings",
    "people": "public: the declared size of the population",
    "regions": "public: the list that every device has",
    "slots": "public: the agreed days",
    "rounds": "public: settings",
    **dict.fromkeys(("epsilon", "delta", "channels"), _LEDGER),
    **dict.fromkeys(("relation", "adversary", "unprotected"), _LEDGER),
    "released": "channel tests, with noise",
    "beside": "as above, for further private methods",
}
"""Source of each value of the summary."""
_MAP = "channels presence, tests and infectious, with noise"
_SELECTED = "channel validation, without noise: results select the round"


def write(
    inputs: RunInputs, folder: Path, outcomes: Sequence[Outcome], full: RunSummary
) -> RunSummary:
    """Write the shareable files of a private run into ``folder``.

    They are left alone if they are complete and no privacy was spent since then.
    Returns ``full`` with the shareable values; its tables of exact values are marked.
    """
    chosen = inputs.prepared.experiment.private_methods
    private = [outcome for outcome in outcomes if outcome.method in chosen]
    values = summary(inputs, private)
    text = json_text(values, indent=2) + "\n"
    place = folder / run_folder.SUMMARY
    complete = run_folder.REPORT in store.read_manifest(folder)["files"]
    before = place.read_text(encoding="utf-8") if place.is_file() else ""
    if not complete or before != text:
        with store.writing(folder):
            store.replace_text(place, text)
            page = _page(inputs, folder, private, values).to_html()
            store.replace_text(folder / run_folder.REPORT, page)
            run_folder.write_shareable_manifest(inputs, folder)
    released = run_tables.privacy_table(private).caption
    tables = [
        table
        if table.caption == released
        else replace(table, caption=f"Raw data, not to be shared. {table.caption}")
        for table in full.tables
    ]
    notes = [f"Raw data, not to be shared. {note}" for note in full.notes]
    return replace(full, tables=tables, shareable=values, notes=notes)


def summary(inputs: RunInputs, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the values of ``summary.json``; ``outcomes`` are of private methods."""
    prepared, traces = inputs.prepared, inputs.prepared.traces
    methods = {outcome.method: _released(outcome) for outcome in outcomes}
    bare = {row["channel"] for one in methods.values() for row in one["unprotected"]}
    selected_on = {one.get("selected_on") for one in methods.values()}
    method = prepared.experiment.method
    own = methods.pop(method, {"epsilon": dict.fromkeys(UNITS)})
    values = {
        "preset": prepared.name,
        "seed": inputs.seed,
        "insecure_seed": inputs.insecure_seed,
        "simulated_on_real_people": inputs.simulated_on_real_people,
        "people": traces.people,
        "regions": len(traces.regions),
        "slots": traces.slots,
        "pathogen": prepared.experiment.pathogen.name,
        "method": method,
        **own,
        "beside": methods,
    }
    sources = {name: _SOURCES[name] for name in values}
    if "validation" in bare or "test" in selected_on:
        sources["rounds"] = _SELECTED
    return {**values, "sources": sources}


def _released(outcome: Outcome) -> dict[str, Any]:
    """Return the rounds, the privacy spent and the released values of a method."""
    stated = run_tables.guarantee(outcome)
    if stated is None:
        raise AssertionError(f"{outcome.method} has no ledger")
    found = outcome.diagnostics
    values = {name: found[name] for name in _OPTIONAL if name in found}
    return {"rounds": stated.rounds, **stated.spent, **values}


def _map(inputs: RunInputs, folder: Path, outcome: Outcome) -> Part | None:
    """Draw the estimates of regions if they are computed from noised sums only."""
    stated, regions = run_tables.guarantee(outcome), inputs.prepared.traces.regions
    place = inputs.method_folder(outcome.method) / run_folder.PREDICTION
    if stated is None or stated.unprotected or not regions.placed:
        return None
    if not (place / run_folder.FIELD_FOLDER).is_dir():
        return None
    (folder / "figures").mkdir(exist_ok=True)
    return run_plots.write_released_map(folder / "figures", regions, load_field(place))


def _page(
    inputs: RunInputs,
    folder: Path,
    outcomes: Sequence[Outcome],
    values: Mapping[str, Any],
) -> Page:
    """Return the report of the shareable values."""
    prepared, traces = inputs.prepared, inputs.prepared.traces
    clock, epsilon = traces.clock, values["epsilon"]["person"]
    columns = ["method", "what it does"]
    rows = [[one.title, entry(one.method).summary] for one in outcomes]
    city = (
        f"{prepared.name}: {traces.people:,} people, {len(traces.regions):,} regions, "
        f"{clock.days} days in slots of {clock.slot_hours:g} hours. Seed {inputs.seed}."
    )
    what = [city, *authors_program(inputs)]
    maps = [_map(inputs, folder, outcome) for outcome in outcomes]
    pictures = [part for part in maps if part is not None]
    sources = {**values["sources"], **({"map": _MAP} if pictures else {})}
    by_source: dict[str, list[str]] = {}
    for name, source in sources.items():
        by_source.setdefault(source, []).append(name)
    listed = [[", ".join(names), source] for source, names in by_source.items()]
    shown = [_released_table(outcome) for outcome in outcomes]
    return Page(
        title=f"epifalcon run: {prepared.name}",
        lead=simulated_mark(inputs)
        + "What may be shared of a private run: values released with noise, and "
        "what is public. Risks, exact counts and evaluation are raw data.",
        headline=[
            (f"{traces.people:,}", "people"),
            (f"{len(traces.regions):,}", "regions"),
            (f"{clock.days}", "days"),
            (formats.epsilon(epsilon), "epsilon per person"),
        ],
        sections=[
            Section("What was run", [Text(what), Table("Methods", columns, rows)]),
            Section("Released values", [*shown, *pictures]),
            Section("Privacy card", privacy_parts(inputs, outcomes)),
            Section(
                "Source of every value", [Table("", ["value", "computed from"], listed)]
            ),
        ],
        settings_toml=settings_toml(inputs),
        made_by=repeat_command(inputs),
        closing="This page is self-contained. In the same folder: summary.json, "
        "settings.toml. The folder private/ beside it holds raw data and must not be "
        "shared.",
    )


def _released_table(outcome: Outcome) -> Table:
    """Return the released numbers of tests with their standard errors."""
    released = outcome.diagnostics.get("released", {})
    error = released.get("standard_error", 0.0)
    rows = [
        [f"{name} people", f"{released[name]:,.0f}", f"± {error:,.0f}"]
        for name in ("tested", "positive")
        if name in released
    ]
    columns = ["value", "with noise", "standard error"]
    return Table(f"Numbers released by {outcome.title}", columns, rows)
