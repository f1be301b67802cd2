"""Parts that the reports of all runs share: methods, privacy, settings, commands."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epifalcon.epidemic.pathogen import PATHOGENS
from epifalcon.epidemic.settings import BeliefSettings
from epifalcon.experiments import run_folder, run_tables
from epifalcon.experiments.experiment import Experiment, without_none
from epifalcon.experiments.explanation import Explanation
from epifalcon.experiments.run_folder import RunInputs
from epifalcon.experiments.run_methods import Evaluation, Outcome
from epifalcon.experiments.simulation import SIMULATED
from epifalcon.methods.registry import entries, entry, source_file
from epifalcon.mobility.subsample import ReportingSettings
from epifalcon.reports.html_page import Part, Picture, Text
from epifalcon.reports.tables import Table
from epifalcon.settings import as_plain

_PROGRAM = (
    "Clipping and noise follow, at least in part, the authors' program: what uploads "
    "reveal about a person is not bounded, and no epsilon exists."
)


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """Content of the page of a run."""

    inputs: RunInputs
    outcomes: Sequence[Outcome]
    evaluations: Sequence[Evaluation]
    """Evaluation of each method on hidden people; empty if nobody is hidden."""
    pictures: Mapping[str, Picture]
    """By the stem of their files."""
    summary: Mapping[str, Any]
    explained: Explanation | None
    """Explanation for one person, if a method explains risks and people are
    simulated."""
    failed: Mapping[str, str]
    """Error messages of additional methods that failed, by method."""

    def plots(self, *names: str) -> list[Part]:
        """Return those of the named plots that exist."""
        return [self.pictures[name] for name in names if name in self.pictures]


def simulated_mark(inputs: RunInputs) -> str:
    """Return the words that precede a page on real people with simulated tests."""
    return f"{SIMULATED} " if inputs.simulated_on_real_people else ""


def settings_toml(inputs: RunInputs) -> str:
    """Return the settings of the parts that ran."""
    import tomli_w

    experiment = inputs.prepared.experiment
    tables = without_none(as_plain(experiment))
    if inputs.prepared.is_imported:
        del tables["city"]
    if inputs.epidemic is None:
        tables["labels"] = {"tested_because": experiment.labels.tested_because}
        for name in _unused_tables(experiment):
            tables.pop(name, None)
    return tomli_w.dumps(tables)


def _unused_tables(experiment: Experiment) -> list[str]:
    """Return tables of settings that no method of the run read."""
    methods = (experiment.method, *experiment.beside)
    used = {table for method in methods for table in entry(method).settings_tables}
    if not any(map(experiment.is_private, methods)):
        used -= {"privacy", "pseudo", "field_privacy", "view"}
    if any(entry(method).uses_pathogen for method in methods):
        used.add("outbreak")
    used |= {"rivals"} if set(experiment.rivals) & set(methods) else set()
    used |= {"reporting"} if experiment.reporting != ReportingSettings() else set()
    used |= {"beliefs"} if experiment.beliefs != BeliefSettings() else set()
    of_methods = {table for one in entries() for table in one.settings_tables}
    others = {"outbreak", "rivals", "reporting", "beliefs"}
    return sorted((of_methods | others) - used)


def repeat_command(inputs: RunInputs) -> str:
    """Return the command that repeats the run, with settings and tests in its folder.

    Paths are as the user gave them.
    """
    words = ["epifalcon", "run"]
    if (city := inputs.prepared.city_folder) is not None:
        words += ["--city", str(city)]
    if inputs.epidemic is None:
        words += ["--known", str(inputs.out)]
    elif inputs.simulated_on_real_people:
        words.append("--simulate")
    experiment = inputs.prepared.experiment
    if inputs.epidemic is None and experiment.pathogen in PATHOGENS.values():
        # The settings name it too; here, it is visible.
        words += ["--pathogen", experiment.pathogen.name]
    for method in (experiment.method, *experiment.beside):
        file = source_file(method)
        words += ["--with", file] if file is not None and file not in words else []
    words += ["--insecure-seed"] if inputs.insecure_seed else []
    words += ["--preset", str(inputs.out / run_folder.SETTINGS)]
    return shlex.join([*words, "--seed", str(inputs.seed), "--out", "again"])


def quoted_folder(inputs: RunInputs) -> str:
    """Return the folder of the run as the user gave it, for commands in a shell."""
    return shlex.quote(str(inputs.out))


def explaining(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the outcome of the method whose risks can be explained, if it was run."""
    return next((one for one in outcomes if entry(one.method).stores_state), None)


def explain_command(inputs: RunInputs, first: Outcome, outcome: Outcome) -> str:
    """Return the command that explains a risk; ``first`` is the run's own outcome."""
    command = f"epifalcon explain {quoted_folder(inputs)} PERSON"
    # Without --method the command takes the run's own method.
    if first.method != outcome.method:
        command += f" --method {outcome.method}"
    return command


def omitted_explanation(results: RunResults) -> Text:
    """Return a note instead of the explanation of a real person's risk."""
    outcome = explaining(results.outcomes) or results.outcomes[0]
    command = explain_command(results.inputs, results.outcomes[0], outcome)
    note = (
        "Omitted: the people are real, and an explanation, which shows where a person "
        f"was and when, is only for that person: `{command}`"
    )
    return Text([note], "note")


def authors_program(inputs: RunInputs) -> list[str]:
    """Return a sentence if mechanisms of the authors' program bound nothing."""
    privacy = inputs.prepared.experiment.privacy
    return [_PROGRAM] if privacy.is_private and not privacy.is_published else []


def _further_inputs(outcome: Outcome) -> str:
    """Return the inputs of a method besides tests and traces."""
    listed, known = entry(outcome.method), []
    if listed.uses_pathogen:
        known.append("the disease's rates")
    if listed.is_own:
        known.append("the disease's rates, if it reads them")
    if listed.is_ceiling:
        known.append("part of the ground truth: a ceiling, not a method")
    if outcome.diagnostics.get("macro_cases") == "all":
        known.append("the cases of all people, including hidden ones")
    if outcome.diagnostics.get("selected_on") == "test":
        known.append("its round was selected on the people it is evaluated on")
    return "; ".join(known) or "-"


def methods_used(results: RunResults) -> Table:
    """Return what each method does, its inputs and training rounds."""
    rows = []
    for outcome in results.outcomes:
        listed, rounds = entry(outcome.method), "-"
        if outcome.checks:
            last, best = (outcome.diagnostics[key] for key in ("rounds", "best_round"))
            rounds = f"{last:,}, the best {best:,}"
        rows.append([outcome.title, listed.summary, _further_inputs(outcome), rounds])
    for method, why in results.failed.items():
        listed = entry(method)
        rows.append([listed.title, listed.summary, "-", f"failed: {why}"])
    columns = ["method", "what it does", "further inputs", "training rounds"]
    return Table("Methods", columns, rows)


def privacy_parts(inputs: RunInputs, outcomes: Sequence[Outcome]) -> list[Part]:
    """Return each method's guarantee, and which methods have none."""
    run = quoted_folder(inputs)
    shown: list[Part] = []
    unprotected = []
    for outcome in outcomes:
        guarantee = run_tables.guarantee(outcome)
        if guarantee is None:
            unprotected.append(outcome.title)
            continue
        audit = f"`epifalcon audit {run} --method {outcome.method}`"
        if guarantee.trained:
            audit = f"`epifalcon run` with `--record-view 100`, then {audit}"
        shown += guarantee.parts(outcome.title, audit)
    if unprotected:
        note = (
            f"{'; '.join(unprotected)}: no protection. Whoever runs the method sees "
            "places, rows and test results."
        )
        shown.append(Text([note], "note"))
    return shown
