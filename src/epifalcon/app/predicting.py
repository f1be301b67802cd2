"""``epifalcon predict``: everybody's risk, out of a finished run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import SettingsError, StoppedError, WriteError

if TYPE_CHECKING:
    from epifalcon.progress import Progress
    from epifalcon.studies.risks import Scored

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
    from epifalcon.studies.risks import require_writable

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
        chosen = _Chosen(run, method, (city, known), (traces, tests))
        scored = chosen.score(progress)
    try:
        scored.risks.write(out, overwrite=overwrite)
    except WriteError as error:
        if scored.spent is None:
            raise
        raise WriteError(f"{error}; what this scoring cost stays spent") from None
    screen.figures({**chosen.figures(scored), "out": str(out)})
    rows = [_row(one) for one in scored.risks.highest(_SHOWN)]
    title = f"The highest of {len(scored.risks):,} risks"
    columns = ["rank", "person", "risk", "percentile", "known"]
    if scored.risks.now is not None:
        columns.append("risk now")
    screen.table(title, columns, rows)
    if (warning := chosen.warning()) is not None:
        screen.note(warning)
    if scored.spent is not None:
        screen.say(_spent(scored.spent))
    screen.say(f"Written to {out}.")


@dataclass(frozen=True)
class _Chosen:
    """What the user asked for."""

    run: Path
    method: str | None
    folders: tuple[Path | None, Path | None]
    """Of a city and of tests."""
    files: tuple[Path | None, Path | None]
    """Of visits and of tests."""

    @property
    def city(self) -> Path | None:
        """The folder whose people are asked for, if any is."""
        return self.folders[0]

    @property
    def known(self) -> Path | None:
        """The folder of their tests."""
        return self.folders[1]

    def score(self, progress: "Progress") -> "Scored":
        """Read the scores of the run's people, or score those of the city."""
        from epifalcon.studies.finished_run import FinishedRun
        from epifalcon.studies.risks import Scored

        run = FinishedRun.open(self.run, self.method)
        visits, tests = self.files
        if self.city is None and visits is None:
            return Scored(run.method, run.risks(), None)
        from epifalcon.studies.newcomers import Newcomers
        from epifalcon.studies.predicting import require_inductive, score

        require_inductive(run)
        if visits is not None:
            people = Newcomers.from_files(visits, tests, run.traces)
        else:
            assert self.city is not None
            people = Newcomers.read(self.city, self.known, run.traces)
        try:
            return score(run, people, progress)
        except KeyboardInterrupt:
            if run.settings.privacy.mode == "off":
                raise
            raise StoppedError(
                "interrupted; no risks were written, but what the run's ledger holds "
                "of this scoring stays spent"
            ) from None

    def warning(self) -> str | None:
        """A word on tests that are there and were not asked for."""
        if self.city is None or self.known is not None:
            return None
        if not (self.city / "known").is_dir():
            return None
        return (
            f"{self.city} holds test results that were not used; to use them, "
            f"add --known {self.city}"
        )

    def figures(self, scored: "Scored") -> dict[str, Any]:
        """For JSON."""
        risks = scored.risks
        figures: dict[str, Any] = {
            "run": str(self.run),
            "method": scored.method,
            "city": _named(self.city),
            "traces": _named(self.files[0]),
            "people": len(risks),
            "tested": int((risks.status >= 0).sum()),
            "positive": int((risks.status == 1).sum()),
            "mean_risk": float(risks.probability.mean()),
            "highest": risks.highest(_SHOWN),
            "privacy": scored.spent,
        }
        return figures


def _named(path: Path | None) -> str | None:
    return None if path is None else str(path)


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
