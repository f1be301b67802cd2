"""``epifalcon predict``: everybody's risk, out of a finished run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import SettingsError, StoppedError, WriteError

if TYPE_CHECKING:
    from epifalcon.experiments.predicting import Scored
    from epifalcon.progress import Progress

_SHOWN = 10


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[
        Path, typer.Option("--out", help="File to write, .csv or .parquet.")
    ],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="One of the run's methods; its own unless told.",
            show_default=False,
        ),
    ] = None,
    city: Annotated[
        Path | None,
        typer.Option(
            "--city",
            help="A folder made by epifalcon city, import or run: score its people, "
            "new people or new days in the run's regions, instead of the run's own. "
            "Needs a run with model.input=status, or one of falcon-field.",
            show_default=False,
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            "--known",
            help="Folder of these people's test results. Needs --city.",
            show_default=False,
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(
            "--traces",
            help="A file of new people: person, day, hour, region. Instead of --city.",
            show_default=False,
        ),
    ] = None,
    tests: Annotated[
        Path | None,
        typer.Option(
            "--tests",
            help="A file of their tests: person, day, result. Needs --traces.",
            show_default=False,
        ),
    ] = None,
    own: options.Own = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
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
    from epifalcon.experiments.risks import require_writable

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
    screen = Screen(json=json, quiet=quiet)
    with screen.progress() as progress:
        scored = _score(run, method, city, known, traces, tests, progress)
    try:
        scored.risks.write(out, overwrite=overwrite)
    except WriteError as error:
        if scored.spent is None:
            raise
        raise WriteError(f"{error}; what this scoring cost stays spent") from None
    risks = scored.risks
    screen.figures(
        {
            "run": str(run),
            "method": scored.method,
            "city": None if city is None else str(city),
            "traces": None if traces is None else str(traces),
            "people": len(risks),
            "tested": int((risks.status >= 0).sum()),
            "positive": int((risks.status == 1).sum()),
            "mean_risk": float(risks.probability.mean()),
            "highest": risks.highest(_SHOWN),
            "privacy": scored.spent,
            "out": str(out),
        }
    )
    rows = [_row(one) for one in risks.highest(_SHOWN)]
    title = f"The highest of {len(risks):,} risks"
    columns = ["rank", "person", "risk", "percentile", "known"]
    if risks.now is not None:
        columns.append("risk now")
    screen.table(title, columns, rows)
    if city is not None and known is None and (city / "known").is_dir():
        screen.note(
            f"{city} holds test results that were not used; to use them, add --known "
            f"{city}"
        )
    if scored.spent is not None:
        screen.say(_spent(scored.spent))
    screen.say(f"Written to {out}.")


def _score(
    folder: Path,
    method: str | None,
    city: Path | None,
    known: Path | None,
    traces: Path | None,
    tests: Path | None,
    progress: "Progress",
) -> "Scored":
    """Read the risks of the run's people, or score new ones."""
    from epifalcon.experiments.predicting import Scored
    from epifalcon.experiments.run_folder import FinishedRun

    run = FinishedRun.open(folder, method)
    if city is None and traces is None:
        return Scored(run.method, run.risks(), None)
    from epifalcon.experiments.predicting import Newcomers, require_inductive, score

    require_inductive(run)
    if city is not None:
        people = Newcomers.read(city, known, run.traces)
    elif traces is not None:
        people = Newcomers.from_files(traces, tests, run.traces)
    try:
        return score(run, people, progress)
    except KeyboardInterrupt:
        if run.settings.privacy.mode == "off":
            raise
        raise StoppedError(
            "interrupted; no risks were written, but what the run's ledger holds "
            "of this scoring stays spent"
        ) from None


def _row(one: dict[str, Any]) -> list[str]:
    now = [f"{one['risk_now']:.4f}"] if "risk_now" in one else []
    return [
        f"{one['rank']:,}",
        str(one["person"]),
        f"{one['risk']:.4f}",
        f"{one['percentile']:.2f}",
        one["known"] or "",
        *now,
    ]


def _spent(spent: dict[str, Any]) -> str:
    epsilon = spent["epsilon"]["person"]
    told = "infinite" if epsilon is None else f"{epsilon:,.4g}"
    return (
        f"This scoring is in the run's ledger: with it and the training, epsilon of "
        f"one person is {told} at delta {spent['delta']:g}."
    )
