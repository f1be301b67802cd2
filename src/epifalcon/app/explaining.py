"""``epifalcon explain``: where one person's risk comes from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import SettingsError

if TYPE_CHECKING:
    from epifalcon.experiments.explaining import Explanation


def explain(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a finished run, or a state of epifalcon update."
        ),
    ],
    person: Annotated[
        str, typer.Argument(help="The person's name in the data, or number from 0.")
    ],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="One of the run's methods, if the run's own is not falcon-field.",
            show_default=False,
        ),
    ] = None,
    with_tests: Annotated[
        bool,
        typer.Option(
            "--with-tests",
            help="Count the person's own tests; else they are left aside, as in the "
            "list of a run. Those of a state always count, as in its list.",
        ),
    ] = False,
    top: Annotated[
        int, typer.Option("--top", help="How many exposures are shown.", min=1)
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder to write page, picture and numbers into.",
            show_default=False,
        ),
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

    if out is not None:
        store.refuse_occupied(out, overwrite=False)
    screen = Screen(json=json, quiet=quiet)
    found, listed = _explained(run, method, person, with_tests)
    from epifalcon.experiments import explaining as page

    if out is not None:
        words = f"{' --with-tests' if with_tests else ''} --out {out}"
        page.write_page(out, found, f"epifalcon explain {run} {person}{words}", top)
    figures = {**found.as_plain(), "listed_risk": listed, "run": str(run)}
    screen.figures({**figures, "out": None if out is None else str(out)})
    for sentence in page.sentences(found):
        screen.say(sentence)
    for line in page.day_lines(found):
        screen.say(line)
    table = page.exposure_table(found, top)
    if table.rows:
        screen.table(table.caption, table.columns, table.rows)
    screen.say(page.CAUTION)
    if out is not None:
        screen.say(f"Written to {out}.")


def _explained(
    folder: Path, method: str | None, person: str, tests: bool
) -> tuple["Explanation", float]:
    """The explanation, and the risk that stands in the list."""
    from epifalcon import store
    from epifalcon.experiments import daily, explaining
    from epifalcon.experiments.run_folder import FinishedRun
    from epifalcon.federation.field.window import KIND

    if store.read_manifest(folder)["kind"] == KIND:
        if method is not None:
            raise SettingsError(f"{folder}: is a state of falcon-field; no --method")
        window = daily.load_state(folder)
        # The daily list counts own tests, so an explanation of it does.
        found = daily.explain_in(window, person, tests=True)
        traces, risks = window.traces, daily.risks_of(window)
    else:
        run = FinishedRun.open(folder, method)
        found = explaining.explain(run, person, tests=tests)
        traces, risks = run.traces, run.risks()
    at = explaining.find_person(traces, person)
    return found, float(risks.probability[at])
