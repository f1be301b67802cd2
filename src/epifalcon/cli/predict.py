"""``epifalcon predict``, ``update`` and ``explain``: risks of a finished run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option
from epifalcon.errors import SettingsError, StoppedError, WriteError

if TYPE_CHECKING:
    from epifalcon.experiments.explanation import Explanation
    from epifalcon.experiments.prediction import Scored
    from epifalcon.experiments.risk_table import Risks
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.progress import Progress

_SHOWN = 10
"""Highest risks that are printed."""


def predict(
    run: options.FinishedRun,
    out: Annotated[Path, option("File to write, .csv or .parquet.")],
    method: options.MethodOfRun = None,
    city: Annotated[
        Path | None,
        option(
            "A folder with a city in the run's regions: score its people instead. "
            "Needs a run with model.input=status, or one of falcon-field."
        ),
    ] = None,
    known: Annotated[
        Path | None, option("Folder of these people's test results. Needs --city.")
    ] = None,
    traces: Annotated[
        Path | None, option("File of new people: person, day, hour, region.")
    ] = None,
    tests: Annotated[
        Path | None, option("Tests of --traces: person, day, result.")
    ] = None,
    own: options.Own = None,
    overwrite: Annotated[
        bool, option("Replace the file if it exists.", "--overwrite")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write each person's risk, rank and percentile, the highest risk first.

    People with equal risks share the best of their ranks. The percentile tells
    of 100 people how many have no higher risk; known is the person's own test.
    With privacy, scoring new people is a release that is added to the run's
    ledger, and refused where the budget does not hold it.

    Example: epifalcon predict demo --out risks.csv
    """
    from epifalcon.experiments.risk_table import require_writable
    from epifalcon.experiments.run_folder import FinishedRun

    del own  # Loaded as the option was read.
    if known is not None and city is None:
        raise SettingsError(
            f"--known needs --city: for new tests of the run's own people, --city {run}"
        )
    if tests is not None and traces is None:
        raise SettingsError("--tests needs --traces, a file of the same people")
    if traces is not None and city is not None:
        raise SettingsError("give new people by --city or by --traces, not by both")
    require_writable(out, overwrite=overwrite)
    screen = Console(json=json, quiet=quiet)
    finished = FinishedRun.open(run, method)
    if city is None and traces is None:
        risks, spent = finished.risks(), None
    else:
        with screen.progress() as progress:
            scored = _score(finished, city, known, traces, tests, progress)
        risks, spent = scored.risks, scored.spent
    _write(
        risks, out, overwrite, "; what this scoring cost stays spent" if spent else ""
    )
    highest = risks.highest(_SHOWN)
    screen.figures(
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
            "out": out,
        }
    )
    columns = ["rank", "person", "risk", "percentile", "known"]
    columns += [] if risks.now is None else ["risk_now"]
    _show_highest(screen, f"The highest of {len(risks):,} risks", columns, highest)
    if city is not None and known is None and (city / "known").is_dir():
        screen.note(
            f"{city} holds test results that were not used; to use them, add --known "
            f"{city}"
        )
    if spent is not None:
        epsilon = spent["epsilon"]["person"]
        shown = "infinite" if epsilon is None else f"{epsilon:,.4g}"
        screen.say(
            "This scoring is in the run's ledger: with it and the training, epsilon of "
            f"one person is {shown} at delta {spent['delta']:g}."
        )
    screen.say(f"Written to {out}.")


def _score(
    run: "FinishedRun",
    city: Path | None,
    known: Path | None,
    traces: Path | None,
    tests: Path | None,
    progress: "Progress",
) -> "Scored":
    """Score new people; imports torch."""
    from epifalcon.experiments.prediction import NewPeople, require_inductive, score

    require_inductive(run)
    if city is not None:
        people = NewPeople.read(city, known, run.traces)
    elif traces is not None:
        people = NewPeople.from_files(traces, tests, run.traces)
    try:
        return score(run, people, progress)
    except KeyboardInterrupt:
        if run.settings.privacy.mode == "off":
            raise
        raise StoppedError(
            "interrupted; no risks were written, but what the run's ledger holds "
            "of this scoring stays spent"
        ) from None


def _write(risks: "Risks", out: Path, overwrite: bool, remark: str = "") -> None:
    """Write the list; an error ends with ``remark``."""
    try:
        risks.write(out, overwrite=overwrite)
    except WriteError as error:
        raise WriteError(f"{error}{remark}") from None


def _show_highest(
    screen: Console, title: str, columns: list[str], highest: list[dict[str, Any]]
) -> None:
    formats = {"rank": ",", "risk": ".4f", "risk_now": ".4f", "percentile": ".2f"}
    rows = [
        [
            "" if one[name] is None else format(one[name], formats.get(name, ""))
            for name in columns
        ]
        for one in highest
    ]
    screen.table(title, [name.replace("_", " ") for name in columns], rows)


def update(
    state: Annotated[
        Path, typer.Argument(help="Folder that is kept between days; see --from.")
    ],
    traces: Annotated[
        Path | None, option("The next day's visits: person, day, hour, region.")
    ] = None,
    tests: Annotated[
        Path | None, option("New tests of any day so far: person, day, result.")
    ] = None,
    out: Annotated[
        Path | None, option("Write everybody's risk to this file, .csv or .parquet.")
    ] = None,
    run: Annotated[
        Path | None, option("Finished run of falcon-field to begin from.", "--from")
    ] = None,
    days: Annotated[
        int | None, option("Days that are inferred again (default: 14).")
    ] = None,
    sweeps: Annotated[
        int | None, option("Exchanges after each day (default: 8). With --from.")
    ] = None,
    overwrite: Annotated[
        bool, option("Replace the list if it exists.", "--overwrite")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Move a field on by one day, and write everybody's risk, now and ever.

    The state is begun from a finished run of falcon-field and takes one day after
    the other; whoever is not known yet enters as a newcomer. It is replaced whole
    or not at all, so that a stopped update can be given again.

    Example: epifalcon update state --traces day-15.csv --tests new.csv --out risks.csv
    """
    from epifalcon.belief_propagation.settings import WindowSettings
    from epifalcon.experiments import daily_update
    from epifalcon.experiments.risk_table import require_writable
    from epifalcon.locks import alone

    if tests is not None and traces is None:
        raise SettingsError("--tests needs --traces: tests come in with a day")
    given = {"days": days, "sweeps": sweeps}
    sizes = {name: value for name, value in given.items() if value is not None}
    if run is None and sizes:
        raise SettingsError(
            "--days and --sweeps are chosen when a state is begun, with --from"
        )
    if out is not None:
        require_writable(out, overwrite=overwrite)
    screen = Console(json=json, quiet=quiet)
    with alone(state):
        if run is None:
            found = daily_update.Updated(daily_update.load_state(state))
        else:
            found = daily_update.begin_state(state, run, WindowSettings(**sizes))
        if traces is not None:
            found = daily_update.take_day(found.window, traces, tests)
        if run is not None or traces is not None:
            source = None if run is None else str(run)
            made_by = {"from": source, "day": found.window.last_day}
            daily_update.save_state(state, found.window, made_by, again=run is None)
    window, risks = found.window, daily_update.risks_of(found.window)
    if out is not None:
        remark = "; the state has taken the day: for the list alone, epifalcon update "
        _write(risks, out, overwrite, f"{remark}{state} --out FILE")
    highest = risks.highest(_SHOWN + int((risks.status == 1).sum()))
    highest = [one for one in highest if one["known"] != "positive"][:_SHOWN]
    ever, now = float(risks.probability.mean()), None
    if risks.now is not None:
        now = float(risks.now.mean())
    screen.figures(
        {
            "state": state,
            "day": window.last_day,
            "first_day": window.first_day,
            "people": window.traces.people,
            "newcomers": list(found.newcomers),
            "seen": found.seen,
            "tests": found.tests,
            "mean_risk": ever,
            "mean_risk_now": now,
            "highest": highest,
            "out": out,
        }
    )
    new = f", {len(found.newcomers):,} of them new" if found.newcomers else ""
    screen.say(
        f"Day {window.last_day}, of {window.traces.people:,} people{new}. The window "
        f"begins with day {window.first_day}. Of 100 people {100 * ever:.1f} have been "
        f"infected, and {100 * (now or 0):.1f} still are."
    )
    title = "The highest risks without a positive test"
    columns = ["rank", "person", "risk", "risk_now", "known"]
    _show_highest(screen, title, columns, highest)
    if out is not None:
        screen.say(f"Written to {out}.")


def explain(
    run: Annotated[
        Path, typer.Argument(help="Finished run, or a state of epifalcon update.")
    ],
    person: Annotated[
        str, typer.Argument(help="The person's name in the data, or number from 0.")
    ],
    method: options.MethodOfRun = None,
    with_tests: Annotated[
        bool, option("Count the person's own tests, as a state does.", "--with-tests")
    ] = False,
    top: Annotated[int, typer.Option(help="How many exposures are shown.", min=1)] = 10,
    out: Annotated[
        Path | None, option("Folder to write page, picture and numbers into.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tell by day, hour and region where a person's risk comes from.

    For the person itself: it reads the own trace and messages, and what the places
    of a run of falcon-field told everybody. Nobody else is named.

    Example: epifalcon explain field 17
    """
    from epifalcon import store
    from epifalcon.experiments import explanation as page

    if out is not None:
        store.refuse_occupied(out, overwrite=False)
    screen = Console(json=json, quiet=quiet)
    found, listed = _explained(run, method, person, with_tests)
    if out is not None:
        words = f"{' --with-tests' if with_tests else ''} --out {out}"
        page.write_page(out, found, f"epifalcon explain {run} {person}{words}", top)
    screen.figures({**found.as_plain(), "listed_risk": listed, "run": run, "out": out})
    screen.say("\n".join([*page.sentences(found), *page.day_lines(found)]))
    screen.tables([page.exposure_table(found, top)])
    screen.say(page.CAUTION)
    if out is not None:
        screen.say(f"Written to {out}.")


def _explained(
    folder: Path, method: str | None, person: str, tests: bool
) -> tuple["Explanation", float]:
    """Return the explanation, and the person's risk in the list."""
    from epifalcon import store
    from epifalcon.experiments import daily_update, explanation
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.federation.field.sliding_window import KIND

    if store.read_manifest(folder)["kind"] == KIND:
        if method is not None:
            raise SettingsError(f"{folder}: is a state of falcon-field; no --method")
        window = daily_update.load_state(folder)
        # The daily list counts own tests, so an explanation of it does.
        found = daily_update.explain_in(window, person, tests=True)
        traces, risks = window.traces, daily_update.risks_of(window)
    else:
        run = FinishedRun.open(folder, method)
        found = explanation.explain(run, person, tests=tests)
        traces, risks = run.traces, run.risks()
    at = explanation.find_person(traces, person)
    return found, float(risks.probability[at])
