"""``epifalcon update``: yesterday's data in, today's list of risks out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import SettingsError, WriteError

if TYPE_CHECKING:
    from epifalcon.experiments.daily import Updated
    from epifalcon.experiments.risks import Risks

_SHOWN = 10


def update(
    state: Annotated[
        Path, typer.Argument(help="Folder that is kept between days; see --from.")
    ],
    traces: Annotated[
        Path | None,
        typer.Option(
            "--traces",
            help="The next day's visits: person, day, hour, region. Without it the "
            "list is written again.",
            show_default=False,
        ),
    ] = None,
    tests: Annotated[
        Path | None,
        typer.Option(
            "--tests",
            help="Tests that came in: person, day, result; of any day so far. Needs "
            "--traces.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write everybody's risk to this file, .csv or .parquet.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Begin the state from this finished run of falcon-field.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            "--days",
            help="Days that can be thought of anew, 14 unless told. With --from.",
            show_default=False,
        ),
    ] = None,
    sweeps: Annotated[
        int | None,
        typer.Option(
            "--sweeps",
            help="Exchanges after each day, 8 unless told. With --from.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the list if it exists.")
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
    from epifalcon.experiments import daily
    from epifalcon.experiments.risks import require_writable
    from epifalcon.locks import alone

    if tests is not None and traces is None:
        raise SettingsError("--tests needs --traces: tests come in with a day")
    given = (("days", days), ("sweeps", sweeps))
    sizes = {name: value for name, value in given if value is not None}
    if run is None and sizes:
        raise SettingsError(
            "--days and --sweeps are chosen when a state is begun, with --from"
        )
    if out is not None:
        require_writable(out, overwrite=overwrite)
    screen = Screen(json=json, quiet=quiet)
    with alone(state):
        if run is None:
            found = daily.Updated(daily.load_state(state))
        else:
            found = daily.begin_state(state, run, WindowSettings(**sizes))
        if traces is not None:
            found = daily.take_day(found.window, traces, tests)
        if run is not None or traces is not None:
            made_by = {
                "from": None if run is None else str(run),
                "day": found.window.last_day,
            }
            daily.save_state(state, found.window, made_by, again=run is None)
    risks = daily.risks_of(found.window)
    if out is not None:
        _write(risks, out, state, overwrite)
    _show(screen, state, found, risks, out)


def _write(risks: "Risks", out: Path, state: Path, overwrite: bool) -> None:
    try:
        risks.write(out, overwrite=overwrite)
    except WriteError as error:
        raise WriteError(
            f"{error}; the state has taken the day: for the list alone, epifalcon "
            f"update {state} --out FILE"
        ) from None


def _not_positive(risks: "Risks") -> list[dict[str, Any]]:
    """The highest risks of those who did not test positive."""
    positive = int((risks.status == 1).sum())
    rows = risks.highest(_SHOWN + positive)
    return [one for one in rows if one["known"] != "positive"][:_SHOWN]


def _show(
    screen: Screen, state: Path, found: "Updated", risks: "Risks", out: Path | None
) -> None:
    window = found.window
    figures: dict[str, Any] = {
        "state": str(state),
        "day": window.last_day,
        "first_day": window.first_day,
        "people": window.traces.people,
        "newcomers": list(found.newcomers),
        "seen": found.seen,
        "tests": found.tests,
        "mean_risk": float(risks.probability.mean()),
        "mean_risk_now": None if risks.now is None else float(risks.now.mean()),
        "highest": _not_positive(risks),
        "out": None if out is None else str(out),
    }
    screen.figures(figures)
    told = f"Day {window.last_day}, of {window.traces.people:,} people"
    if found.newcomers:
        told += f", {len(found.newcomers):,} of them new"
    screen.say(
        f"{told}. The window begins with day {window.first_day}. Of 100 people "
        f"{100 * figures['mean_risk']:.1f} have been infected, and "
        f"{100 * figures['mean_risk_now']:.1f} still are."
    )
    rows = [
        [
            f"{one['rank']:,}",
            str(one["person"]),
            f"{one['risk']:.4f}",
            f"{one['risk_now']:.4f}",
            one["known"] or "",
        ]
        for one in _not_positive(risks)
    ]
    columns = ["rank", "person", "risk", "risk now", "known"]
    screen.table("The highest risks without a positive test", columns, rows)
    if out is not None:
        screen.say(f"Written to {out}.")
