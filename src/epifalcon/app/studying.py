"""``epifalcon study``: tables and figures, the paper's and ours, one command each."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import EpifalconError, StoppedError

if TYPE_CHECKING:
    from epifalcon.studies.adopting import Adoption
    from epifalcon.studies.comparing import Crew
    from epifalcon.studies.study_plan import Planned
    from epifalcon.studies.study_running import Ran

_WORK = Path("runs/studies")
_RESULTS = Path("results")


def list_(as_json: options.Json = False) -> None:
    """List the studies: what each shows, and about what it costs.

    Example: epifalcon study list
    """
    from epifalcon.studies.study_list import told_studies

    screen = Screen(json=as_json)
    told = told_studies()
    screen.figures({"studies": told})
    rows = [
        [
            one["name"],
            one["what"],
            one["paper"],
            *(f"{one['scales'][scale]['cpu_hours']:.1f}" for scale in one["scales"]),
        ]
        for one in told
    ]
    columns = ["study", "what", "in the paper", "CPU-h, hamlet", "CPU-h, full"]
    screen.table("Studies", columns, rows)


def run(
    name: Annotated[str, typer.Argument(help="One of: epifalcon study list.")],
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            help="hamlet (2,000 people, minutes) or full (the paper's sizes).",
        ),
    ] = "full",
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            help="How many cities and outbreaks; the study's own number unless told.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Only these of the study's methods, names between commas.",
            show_default=False,
        ),
    ] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(
            "--cell",
            help="Only this setting of the study, by its label; more than one is fine.",
            show_default=False,
        ),
    ] = None,
    adopt: Annotated[
        list[Path] | None,
        typer.Option(
            "--adopt",
            help="Take what this folder of kept results measured by equal settings, "
            "and do not run it; a finished study or a comparison, more than one is "
            "fine.",
            show_default=False,
        ),
    ] = None,
    jobs: options.Jobs = None,
    work: Annotated[
        Path,
        typer.Option("--work", help="Folder that keeps the runs, for all studies."),
    ] = _WORK,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of tables and figures: results/NAME unless told; in the work "
            "folder at scale hamlet, or with --methods or --cell.",
            show_default=False,
        ),
    ] = None,
    retry: options.Retry = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a study and write its tables, figures and page.

    Every run has a process of its own and is kept by its settings, so a study that
    was stopped goes on and a finished one is only read. What fails is told in its
    row; the others go on.

    Example: epifalcon study run overall --scale hamlet --seeds 2
    """
    from epifalcon.studies.adopting import plan_adoption
    from epifalcon.studies.comparing import Crew
    from epifalcon.studies.study import Asked
    from epifalcon.studies.study_keeping import keep_study, require_free
    from epifalcon.studies.study_list import find_study
    from epifalcon.studies.study_plan import plan_study
    from epifalcon.studies.study_reading import reading
    from epifalcon.studies.study_rows import study_result
    from epifalcon.studies.study_tables import screen_tables

    screen = Screen(json=as_json, quiet=quiet)
    study = find_study(name)
    chosen = () if methods is None else _names(methods)
    asked = Asked(
        scale=scale,  # type: ignore[arg-type]
        seeds=seeds,
        methods=chosen,
        cells=tuple(cell or ()),
    )
    crew = Crew(jobs=jobs, retry=retry)
    planned = plan_study(study, asked, work)
    place = out or _default_out(planned, work)
    require_free(place, planned)
    folders = tuple(dict.fromkeys(adopt or ()))
    adoption = plan_adoption(planned, folders)
    for line in adoption.told:
        screen.note(line)
    again = _again(planned, (work, out), folders)
    ran = _ran(planned, crew, screen, again, adoption)
    result = study_result(ran)
    result["made_by"] = again
    some = any(row["seeds"] for row in result["rows"])
    if some or not place.exists():
        # Tables without a figure are told, but not put in place of others.
        keep_study(place, planned, result)
    said = reading(study, result)
    screen.figures({**result, "reading": said, "out": str(place)})
    for table in screen_tables(study, result):
        screen.table(table.caption, table.columns, table.rows)
    for sentence in said:
        screen.say(f"- {sentence}")
    for note in (*result["notes"], *result["adopted"]):
        screen.note(note)
    if failed := sum(bool(row["failed"]) for row in result["rows"]):
        rows = "one row" if failed == 1 else f"{failed} rows"
        screen.warn(f"runs of {rows} failed; try them again with --retry")
    if not some:
        raise EpifalconError("no method has a result")
    screen.say(f"Report: {place / 'report.html'}")


def report(
    results: Annotated[
        Path, typer.Option("--results", help="Folder that holds finished studies.")
    ] = _RESULTS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="HTML file to write; studies.html in that folder unless told.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Gather all finished studies of a folder into one page with links to them.

    Example: epifalcon study report --results runs/studies
    """
    from epifalcon.studies.study_report import write_report

    screen = Screen(json=as_json, quiet=quiet)
    place = out or results / "studies.html"
    told = write_report(results, place)
    screen.figures({"studies": told, "out": str(place)})
    rows = [
        [one["study"], one["scale"], str(one["rows"]), one["report"]] for one in told
    ]
    screen.table("Studies", ["study", "scale", "rows", "page"], rows)
    screen.say(f"Report: {place}")


def _names(text: str) -> tuple[str, ...]:
    from epifalcon.errors import SettingsError

    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise SettingsError("--methods names no method: names between commas")
    return tuple(dict.fromkeys(found))


def _default_out(planned: "Planned", work: Path) -> Path:
    """Kept results are not overwritten by a small or partial run."""
    name = planned.study.name
    if planned.partial:
        return work / f"{name}-{planned.scale}-part"
    return _RESULTS / name if planned.scale == "full" else work / f"{name}-hamlet"


def _again(
    planned: "Planned", given: tuple[Path, Path | None], adopted: tuple[Path, ...]
) -> str:
    import shlex

    words = [planned.command]
    words += [f"--adopt {shlex.quote(str(one))}" for one in adopted]
    for option, value, usual in zip(
        ("--work", "--out"), given, (_WORK, None), strict=True
    ):
        if value not in (None, usual):
            words.append(f"{option} {shlex.quote(str(value))}")
    return " ".join(words)


def _ran(
    planned: "Planned", crew: "Crew", screen: Screen, again: str, adoption: "Adoption"
) -> "Ran":
    from epifalcon.studies.study_running import run_study

    try:
        with screen.progress() as progress:
            return run_study(planned, crew, progress, adoption)
    except (KeyboardInterrupt, SystemExit) as stop:
        way = f"go on with: {again}"
        if isinstance(stop, SystemExit):
            sys.stderr.write(f"epifalcon: stopped; {way}\n")
            raise
        raise StoppedError(f"interrupted; {way}") from None
