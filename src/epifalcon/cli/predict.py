"""``epifalcon predict``, ``update`` and ``explain``: risks of a finished run."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError, StoppedError, WriteError

if TYPE_CHECKING:
    from epifalcon.epidemic.risk_table import Risks
    from epifalcon.experiments.explanation import Explanation
    from epifalcon.experiments.prediction import Scored
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.progress import Progress

_SHOWN = 10
"""Number of risks that are printed."""
_ANY_TEST = (None, "negative", "positive")


def predict(
    run: options.FinishedRun,
    out: Annotated[Path, option("File to write, .csv or .parquet.")],
    method: options.MethodOfRun = None,
    city: Annotated[
        Path | None,
        option(
            "Predict for the people of this city instead, which must have the "
            "regions of the run. Needs a run of falcon-field, or one with "
            "model.input=status."
        ),
    ] = None,
    known: options.Known = None,
    traces: Annotated[
        Path | None,
        option(
            "Predict for the people of this file of visits, like that of the import, "
            "or with the columns person, day, hour, region.",
            "--traces",
            "--visits",
        ),
    ] = None,
    tests: Annotated[
        Path | None,
        option("Test results of these people: person, time (or day), result."),
    ] = None,
    own: options.Own = None,
    tested: Annotated[
        bool, option("Also print people who have a test result.", "--tested")
    ] = False,
    overwrite: Annotated[
        bool, option("Replace the file if it exists.", "--overwrite")
    ] = False,
    keep_formulas: options.KeepFormulas = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Write the risk of each person, and print whom to test next.

    The file lists people without a test first, then tested people, each by
    falling risk. rank: 1 for the highest risk of all people; equal risks share
    the best rank. percentile: percentage of people without a higher risk.
    known: the person's own test result. observed: share of the person's slots
    with an observation. evidence: ok, or why a risk rests on too little. In a
    private run, predicting for new people is a release: it is added to the
    ledger, and refused if the privacy budget does not suffice.

    Examples:
      epifalcon predict runs/demo --out risks.csv
      epifalcon predict runs/demo --method hbp --tested --out risks.parquet
    """
    from epifalcon.epidemic.risk_table import require_writable
    from epifalcon.experiments.run_folder import FinishedRun, resume_command
    from epifalcon.experiments.simulation import (
        KNOWN,
        SIMULATED,
        find_folder,
        guarded_as,
    )

    del own  # Loaded when the option was parsed.
    if known is not None and city is None:
        raise SettingsError(
            "--known needs --city; for new tests of the people of the run, add "
            f"--city {run}"
        )
    if tests is not None and traces is None:
        raise SettingsError("--tests needs --traces of the same people")
    if traces is not None and city is not None:
        raise SettingsError("give either --city or --traces, not both")
    require_writable(out, overwrite=overwrite)
    console = Console(json=json, quiet=quiet)
    with console.progress() as progress:
        progress("run", 0, 1, "reading")
        finished = FinishedRun.open(run, method)
        progress("run", 1, 1)
        notes: tuple[str, ...] = ()
        if city is None and traces is None:
            risks, spent = finished.risks(), None
        else:
            scored, notes = _score(finished, city, known, traces, tests, progress)
            risks, spent = scored.risks, scored.spent
    for note in notes:
        console.note(note)
    remark = "; the privacy budget of this prediction stays spent" if spent else ""
    with finished.guarded(), guarded_as(city, known, traces, tests):
        _write(risks, out, overwrite, keep_formulas, remark)
    untested = int((risks.status < 0).sum())
    tested = tested or not untested
    highest = risks.highest(_SHOWN, _ANY_TEST if tested else (None,))
    console.figures(
        {
            "run": run,
            "method": finished.method,
            "city": city,
            "traces": traces,
            "people": len(risks),
            "tested": int((risks.status >= 0).sum()),
            "positive": int((risks.status == 1).sum()),
            "mean_risk": float(risks.probability.mean()),
            "highest": highest,
            "privacy": spent,
            "insecure_seed": spent is not None and finished.insecure_seed,
            "simulated_on_real_people": risks.simulated_on_real_people,
            "notes": list(notes),
            "out": out,
        }
    )
    columns = ["person", "risk", "percentile"]
    columns += ["known"] if tested else []
    columns += [] if risks.now is None else ["risk_now"]
    columns += ["evidence"] if any(one["evidence"] != "ok" for one in highest) else []
    title = f"Highest risks of {_people(len(risks))}"
    if risks.simulated_on_real_people:
        console.note(SIMULATED)
    if not tested:
        shown = f"{_people(untested)} without a test"
        title = f"Whom to test next: highest risks of {shown}"
    _show_risks(console, title, columns, highest)
    if city is not None and known is None and find_folder(city, KNOWN) != city:
        console.note(
            f"{city} contains test results that were not used; to use them, add "
            f"--known {city}"
        )
    if spent is not None and finished.insecure_seed:
        console.note("NOT PRIVATE: the noise comes from a fixed seed")
    if spent is not None:
        epsilon = spent["epsilon"]["person"]
        shown = "infinite" if epsilon is None else f"{epsilon:,.4g}"
        console.say(
            "The ledger of the run contains this prediction. Together with the "
            f"training, epsilon of one person is {shown} at delta {spent['delta']:g}."
        )
        if finished.is_private:
            console.say(
                "The shareable report states the epsilon before this prediction until "
                f"you run: {resume_command(run)}"
            )
    console.say(f"Written to {out}.")
    if finished.is_private:
        console.say(
            "Risks are raw data: handing them on is a release that no epsilon covers."
        )


def _score(
    run: "FinishedRun",
    city: Path | None,
    known: Path | None,
    traces: Path | None,
    tests: Path | None,
    progress: "Progress",
) -> tuple["Scored", tuple[str, ...]]:
    """Predict for new people, with notes on their files; imports torch."""
    from epifalcon.experiments.daily_update import format_of
    from epifalcon.experiments.prediction import NewPeople, require_inductive, score

    require_inductive(run)
    if city is not None:
        people = NewPeople.read(city, known, run.traces)
    elif traces is not None:
        files, kind = format_of(run.folder), run.tests.kinds[0]
        people = NewPeople.from_files(traces, tests, run.traces, files, kind)
    try:
        return score(run, people, progress), people.notes
    except KeyboardInterrupt:
        if run.settings.privacy.mode == "off":
            raise
        raise StoppedError(
            "interrupted; no risks were written, but the privacy budget that the "
            "ledger recorded for this prediction stays spent"
        ) from None


def _write(
    risks: "Risks", out: Path, overwrite: bool, formulas: bool, remark: str = ""
) -> None:
    """Write the risks; append ``remark`` to the message of an error."""
    try:
        risks.write(out, overwrite=overwrite, formulas=formulas)
    except WriteError as error:
        raise WriteError(f"{error}{remark}") from None


def _people(count: int) -> str:
    return "1 person" if count == 1 else f"{count:,} people"


def _show_risks(
    console: Console, title: str, columns: list[str], highest: list[dict[str, Any]]
) -> None:
    """Print the rows of ``highest``, numbered from 1."""
    if not highest:
        return
    formats = {"risk": ".4f", "risk_now": ".4f", "percentile": ".2f"}
    rows = [
        [
            str(number),
            *(
                "" if one[name] is None else format(one[name], formats.get(name, ""))
                for name in columns
            ),
        ]
        for number, one in enumerate(highest, 1)
    ]
    console.table(title, ["#", *(name.replace("_", " ") for name in columns)], rows)


def update(
    state: Annotated[
        Path, typer.Argument(help="Folder of the state; created with --from.")
    ],
    traces: Annotated[
        Path | None,
        option(
            "Visits of the next day, in a file like that of the import, or with the "
            "columns person, day, hour, region.",
            "--traces",
            "--visits",
        ),
    ] = None,
    tests: Annotated[
        Path | None,
        option("New test results of any day: person, time (or day), result."),
    ] = None,
    out: Annotated[
        Path | None, option("File to write all risks to, .csv or .parquet.")
    ] = None,
    run: Annotated[
        Path | None,
        option("Create the state from this finished run of falcon-field.", "--from"),
    ] = None,
    days: Annotated[
        int | None,
        option("Days inferred again after each day (default: 14). With --from."),
    ] = None,
    sweeps: Annotated[
        int | None, option("Iterations after each day (default: 8). With --from.")
    ] = None,
    overwrite: Annotated[
        bool, option("Replace the file of --out if it exists.", "--overwrite")
    ] = False,
    keep_formulas: options.KeepFormulas = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Add one day of visits and tests to a state, and update all risks.

    The state is created once from a finished run of falcon-field and then takes
    one day after the other. People who are not in it yet are added. A stopped
    update leaves the state unchanged and can be repeated.

    Examples:
      epifalcon update state --from runs/mycity
      epifalcon update state --traces day-15.csv --tests new.csv --out risks.csv
    """
    from epifalcon import store
    from epifalcon.belief_propagation.settings import WindowSettings
    from epifalcon.epidemic.risk_table import require_writable
    from epifalcon.experiments import daily_update
    from epifalcon.experiments.run_folder import data_folder
    from epifalcon.experiments.simulation import SIMULATED, guarded_as
    from epifalcon.locks import lock_folder

    if tests is not None and traces is None:
        raise SettingsError("--tests needs --traces of a new day")
    given = {"days": days, "sweeps": sweeps}
    sizes = {name: value for name, value in given.items() if value is not None}
    if run is None and sizes:
        raise SettingsError(
            "--days and --sweeps need --from: they are set when a state is created"
        )
    if out is not None:
        require_writable(out, overwrite=overwrite)
    console = Console(json=json, quiet=quiet)
    with console.progress() as progress, lock_folder(state):
        progress("update", 0, 4, "reading")
        if run is None:
            found = daily_update.Updated(daily_update.load_state(state))
        else:
            found = daily_update.create_state(state, run, WindowSettings(**sizes))
        source_folder = state if run is None else data_folder(run)
        mark = daily_update.is_simulated(source_folder)
        files = daily_update.format_of(source_folder)
        progress("update", 1, 4, "inference")
        if traces is not None:
            found = daily_update.update_window(found.window, traces, tests, files)
        progress("update", 2, 4, "writing the state")
        if run is not None or traces is not None:
            source = None if run is None else str(run)
            made_by = {
                "from": source,
                "day": found.day or found.window.last_day,
                "simulated_on_real_people": mark,
                **files.as_plain(),
            }
            with (
                store.as_private_as(source_folder),
                guarded_as(traces, tests),
                store.new_directory(state, overwrite=run is None) as scratch,
            ):
                found.window.save(scratch, store.Origin.now(made_by, None))
        progress("update", 3, 4, "risks")
        window, risks = found.window, daily_update.risks_of(found.window)
        risks = replace(risks, simulated_on_real_people=mark)
        progress("update", 4, 4)
    for note in (*([SIMULATED] if mark else ()), *found.notes):
        console.note(note)
    if out is not None:
        remark = "; the state contains the day; write the risks with epifalcon update "
        remark += f"{state} --out FILE"
        with store.as_private_as(state):
            _write(risks, out, overwrite, keep_formulas, remark)
    highest = risks.highest(_SHOWN, (None, "negative"))
    day, clock = found.day or window.last_day, window.traces.clock
    at = day - window.first_day
    date = None if clock.start is None else clock.date(at)
    ever = float(risks.probability.mean())
    now = None if risks.now is None else float(risks.now.mean())
    console.figures(
        {
            "state": state,
            "day": day,
            "date": date,
            "first_day": window.first_day,
            "people": window.traces.people,
            "newcomers": list(found.new_people),
            "seen": found.seen,
            "tests": found.tests,
            "notes": list(found.notes),
            "mean_risk": ever,
            "mean_risk_now": now,
            "highest": highest,
            "simulated_on_real_people": mark,
            "out": out,
        }
    )
    added = len(found.new_people)
    new = f", {added:,} of them new" if added else ""
    console.say(
        f"{clock.title(at, window.first_day).capitalize()}: "
        f"{_people(window.traces.people)}{new}. The window of inference starts at "
        f"{clock.title(0, window.first_day)}. Expected: {ever:.1%} of people have been "
        f"infected until the end of {clock.title(clock.days - 1, window.first_day)}, "
        f"{now or 0:.1%} are infected then."
    )
    title = "Highest risks of people without a positive test"
    columns = ["person", "risk", "risk_now", "known"]
    _show_risks(console, title, columns, highest)
    if out is not None:
        console.say(f"Written to {out}.")


def explain(
    run: Annotated[
        Path, typer.Argument(help="Finished run, or state of epifalcon update.")
    ],
    person: Annotated[
        str, typer.Argument(help="Name of the person in the data, or number from 0.")
    ],
    method: options.MethodOfRun = None,
    with_tests: Annotated[
        bool,
        option("Use the person's own tests, as epifalcon update does.", "--with-tests"),
    ] = False,
    top: Annotated[int, typer.Option(help="Number of exposures to show.", min=1)] = 10,
    out: Annotated[
        Path | None, option("Folder to write a page, a figure and the numbers to.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Explain by day, hour and region where the risk of a person comes from.

    Meant for the person: it reads their own trace and messages, and the
    messages of regions in a run of falcon-field. It identifies nobody else.

    Examples:
      epifalcon explain runs/mycity 17
      epifalcon explain state 17 --out explained
    """
    from epifalcon import store
    from epifalcon.experiments import explanation as page

    if out is not None:
        store.refuse_occupied(out, overwrite=False)
    console = Console(json=json, quiet=quiet)
    with console.progress() as progress:
        progress("explanation", 0, 2, "reading and inference")
        found, listed, guard = _explained(run, method, person, with_tests)
        progress("explanation", 1, 2, "writing")
        if out is not None:
            words = f"{' --with-tests' if with_tests else ''} --out {out}"
            made_by = f"epifalcon explain {run} {person}{words}"
            with guard:
                page.write_page(out, found, made_by, top)
        progress("explanation", 2, 2)
    console.figures({**found.as_plain(), "listed_risk": listed, "run": run, "out": out})
    console.say("\n".join([*page.sentences(found), *page.day_lines(found)]))
    console.tables([page.exposure_table(found, top)])
    console.say(page.CAUTION)
    if out is not None:
        console.say(f"Written to {out}.")


def _explained(
    folder: Path, method: str | None, person: str, tests: bool
) -> tuple["Explanation", float, contextlib.AbstractContextManager[None]]:
    """Return the explanation, the risk of the person, and a guard for files of it."""
    from epifalcon import store
    from epifalcon.experiments import daily_update, explanation
    from epifalcon.experiments.run_folder import FinishedRun

    guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if daily_update.is_state(folder):
        daily_update.refuse_method(folder, method)
        window, guard = daily_update.load_state(folder), store.as_private_as(folder)
        # The risks of a state use own tests, so the explanation does, too.
        found = daily_update.explain_in_window(window, person, tests=True)
        mark = daily_update.is_simulated(folder)
        found = replace(found, simulated_on_real_people=mark)
        traces, risks = window.traces, daily_update.risks_of(window)
    else:
        run = FinishedRun.open(folder, method)
        found = explanation.explain(run, person, tests=tests)
        traces, risks, guard = run.traces, run.risks(), run.guarded()
    at = explanation.find_person(traces, person)
    return found, float(risks.probability[at]), guard
