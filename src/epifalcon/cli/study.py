"""``epifalcon compare`` and ``epifalcon study``: many runs and their tables."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console, resumable
from epifalcon.cli.options import option
from epifalcon.errors import EpifalconError

if TYPE_CHECKING:
    from epifalcon.studies.study import StudyPlan

app = typer.Typer(
    help="The paper's tables and figures, and ours: one command each, resumable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_WORK = Path("runs/studies")
_RESULTS = Path("results")


def compare(
    out: Annotated[Path, option("Folder of the comparison, new or begun.")],
    preset: options.Preset = None,
    methods: Annotated[
        str, option("all, or names between commas (see: epifalcon methods).")
    ] = "all",
    seeds: Annotated[int, option("How many cities and outbreaks.")] = 5,
    first_seed: Annotated[int, option("Of the seeds.")] = 0,
    jobs: options.Jobs = None,
    retry: options.Retry = False,
    overrides: options.Overrides = None,
    own: options.Own = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run methods on the same cities, outbreaks and tests; compare them over seeds.

    Each method of each seed runs in a process of its own; one that fails is told
    of and the others go on. Called again, with more methods or seeds or after a
    stop, it only does what is not done yet.

    Example: epifalcon compare --preset hamlet --methods hgnn,hbp --seeds 3 --out demo
    """
    from epifalcon.store import MANIFEST
    from epifalcon.studies.compare import plan_of
    from epifalcon.studies.scheduler import run_study
    from epifalcon.studies.study import plan_comparison
    from epifalcon.studies.study_report import keep_comparison
    from epifalcon.studies.study_rows import study_result
    from epifalcon.studies.worker_pool import WorkerOptions

    screen = Console(json=as_json, quiet=quiet)
    workers = WorkerOptions(jobs=jobs, retry=retry)
    plan = plan_comparison(
        out,
        preset=preset,
        overrides=tuple(overrides or ()),
        methods=methods,
        seeds=seeds,
        first_seed=first_seed,
        sources=tuple(own or ()),
    )
    planned, begun = plan_of(plan), out / MANIFEST
    with resumable(planned.command, begun.is_file), screen.progress() as progress:
        ran = run_study(planned, workers, progress, raise_errors=True)
    result = study_result(ran)
    keep_comparison(planned, result)
    _show(screen, planned, result, out)


def _show(
    screen: Console, planned: "StudyPlan", result: dict[str, Any], place: Path
) -> None:
    """Print tables, findings and notes of a study; raise if it has no result."""
    from epifalcon.studies.study_tables import findings, screen_tables

    said = findings(result)
    screen.figures({**result, "reading": said, "out": place})
    screen.tables(screen_tables(planned.study, result))
    for sentence in said:
        screen.say(f"- {sentence}")
    for note in result["notes"]:
        screen.note(note)
    if failed := sum(bool(row["failed"]) for row in result["rows"]):
        rows = "one row" if failed == 1 else f"{failed} rows"
        screen.warn(f"runs of {rows} failed; try them again with --retry")
    if not any(row["seeds"] for row in result["rows"]):
        raise EpifalconError("no method has a result")
    screen.say(f"Report: {place / 'report.html'}")


@app.command("list")
def list_(as_json: options.Json = False) -> None:
    """List the studies: what each shows, and about what it costs.

    Example: epifalcon study list
    """
    from epifalcon.studies.catalogue import told_studies

    screen = Console(json=as_json)
    told = told_studies()
    screen.figures({"studies": told})
    rows = [
        [
            one["name"],
            one["what"],
            one["paper"],
            *(f"{scale['cpu_hours'] or 0:.1f}" for scale in one["scales"].values()),
        ]
        for one in told
    ]
    columns = ["study", "what", "in the paper", "CPU-h, hamlet", "CPU-h, full"]
    screen.table("Studies", columns, rows)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="One of: epifalcon study list.")],
    scale: Annotated[
        str, option("hamlet (2,000 people, minutes) or full (the paper's sizes).")
    ] = "full",
    seeds: Annotated[
        int | None, option("How many cities and outbreaks (default: the study's).")
    ] = None,
    methods: Annotated[
        str | None, option("Only these of the study's methods, names between commas.")
    ] = None,
    cell: Annotated[
        list[str] | None, option("Only the cell of this label. May be repeated.")
    ] = None,
    jobs: options.Jobs = None,
    work: Annotated[
        Path, option("Folder that keeps the runs, for all studies.")
    ] = _WORK,
    out: Annotated[
        Path | None, option("Folder of tables and figures (default: results/NAME).")
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
    from epifalcon.studies.catalogue import find_study
    from epifalcon.studies.scheduler import run_study
    from epifalcon.studies.study import StudyRequest, method_names, plan_study
    from epifalcon.studies.study_report import keep_study, require_free
    from epifalcon.studies.study_rows import study_result
    from epifalcon.studies.worker_pool import WorkerOptions

    screen = Console(json=as_json, quiet=quiet)
    study = find_study(name)
    chosen = () if methods is None else method_names(methods)
    asked = StudyRequest(
        scale=scale,  # type: ignore[arg-type]
        seeds=seeds,
        methods=chosen,
        cells=tuple(cell or ()),
    )
    workers = WorkerOptions(jobs=jobs, retry=retry)
    planned = plan_study(study, asked, work)
    # Small or partial runs do not replace stored results.
    place = out or work / f"{study.name}-{scale}{'-part' if planned.partial else ''}"
    if out is None and scale == "full" and not planned.partial:
        place = _RESULTS / study.name
    require_free(place, planned)
    again = planned.command
    if work != _WORK:
        again += f" --work {shlex.quote(str(work))}"
    if out is not None:
        again += f" --out {shlex.quote(str(out))}"
    with resumable(again), screen.progress() as progress:
        ran = run_study(planned, workers, progress)
    result = study_result(ran)
    result["made_by"] = again
    if any(row["seeds"] for row in result["rows"]) or not place.exists():
        # Tables without a figure do not replace others.
        keep_study(place, planned, result)
    _show(screen, planned, result, place)


@app.command()
def report(
    results: Annotated[Path, option("Folder that holds finished studies.")] = _RESULTS,
    out: Annotated[
        Path | None,
        option("HTML file to write; studies.html in that folder unless told."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Gather all finished studies of a folder into one page with links to them.

    Example: epifalcon study report --results runs/studies
    """
    from epifalcon.studies.study_report import write_report

    screen = Console(json=as_json, quiet=quiet)
    place = out or results / "studies.html"
    told = write_report(results, place)
    screen.figures({"studies": told, "out": place})
    rows = [
        [one["study"], one["scale"], str(one["rows"]), one["report"]] for one in told
    ]
    screen.table("Studies", ["study", "scale", "rows", "page"], rows)
    screen.say(f"Report: {place}")
