"""``epifalcon compare`` and ``epifalcon study``: many runs and their tables."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.cli import completion, options
from epifalcon.cli.console import Console, resumable
from epifalcon.cli.options import option
from epifalcon.errors import EpifalconError

if TYPE_CHECKING:
    from epifalcon.studies.study import StudyPlan

app = typer.Typer(
    help="Reproduce the tables and figures of the paper, and our own studies.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_WORK = Path("runs/studies")
_RESULTS = Path("results")


def compare(
    out: Annotated[
        Path, option("Folder of the comparison; an existing one is continued.")
    ],
    preset: options.Preset = None,
    methods: Annotated[
        str,
        option(
            "Names separated by commas, or all; see epifalcon methods.",
            complete=completion.methods,
        ),
    ] = "all",
    seeds: Annotated[int, option("Number of cities and outbreaks.")] = 5,
    first_seed: Annotated[int, option("First seed; the others follow it.")] = 0,
    jobs: options.Jobs = None,
    retry: options.Retry = False,
    overrides: options.Overrides = None,
    own: options.Own = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Compare methods on the same cities, outbreaks and tests over several seeds.

    Each method and seed runs in its own process; if one fails it is reported
    and the others continue. The same command again, with more methods or seeds
    or after a stop, runs only what is missing.

    Examples:
      epifalcon compare --methods hgnn,hbp --seeds 3 --out runs/compared
      epifalcon compare --preset larger-sars --methods all --out runs/larger
    """
    from epifalcon.store import MANIFEST
    from epifalcon.studies.compare import plan_of, run_comparison
    from epifalcon.studies.study import plan_comparison
    from epifalcon.studies.worker_pool import WorkerOptions

    console = Console(json=as_json, quiet=quiet)
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
    study_plan = plan_of(plan)
    resuming = resumable(study_plan.command, (out / MANIFEST).is_file)
    with resuming, console.progress() as progress:
        result = run_comparison(study_plan, workers, progress)
    _show(console, study_plan, result, out)


def _show(
    console: Console, study_plan: "StudyPlan", result: dict[str, Any], place: Path
) -> None:
    """Print tables, findings and notes of a study; raise if it has no result."""
    from epifalcon.studies.study_tables import findings, terminal_tables

    sentences = findings(result)
    console.figures({**result, "reading": sentences, "out": place})
    console.tables(terminal_tables(study_plan.study, result))
    for sentence in sentences:
        console.say(f"- {sentence}")
    for note in result["notes"]:
        console.note(note)
    if failed := sum(bool(row["failed"]) for row in result["rows"]):
        rows = "one row" if failed == 1 else f"{failed} rows"
        console.warn(f"runs of {rows} failed; repeat them with --retry")
    if not any(row["seeds"] for row in result["rows"]):
        raise EpifalconError("no method has a result")
    console.say(f"Report: {place / 'report.html'}")


@app.command("list")
def list_(as_json: options.Json = False, _verbose: options.Verbose = 0) -> None:
    """List the studies with their purpose and approximate cost in CPU hours.

    Examples:
      epifalcon study list
    """
    from epifalcon.studies.catalogue import study_entries

    console = Console(json=as_json)
    studies = study_entries()
    console.figures({"studies": studies})
    rows = [
        [
            one["name"],
            one["what"],
            one["paper"],
            *(f"{scale['cpu_hours'] or 0:.1f}" for scale in one["scales"].values()),
        ]
        for one in studies
    ]
    columns = ["study", "what it shows", "in the paper"]
    columns += ["CPU hours, hamlet", "CPU hours, full"]
    console.table("Studies", columns, rows)


@app.command()
def run(
    name: Annotated[
        str, typer.Argument(help="Name of a study (see: epifalcon study list).")
    ],
    scale: Annotated[
        str, option("hamlet: 2,000 people, minutes; full: sizes of the paper.")
    ] = "full",
    seeds: Annotated[
        int | None,
        option("Number of cities and outbreaks (default: that of the study)."),
    ] = None,
    methods: Annotated[
        str | None,
        option(
            "Run only these methods, names separated by commas.",
            complete=completion.methods,
        ),
    ] = None,
    cell: Annotated[
        list[str] | None, option("Run only the cell with this label. May be repeated.")
    ] = None,
    jobs: options.Jobs = None,
    work: Annotated[Path, option("Folder of the runs, shared by all studies.")] = _WORK,
    out: Annotated[
        Path | None,
        option(
            "Folder for tables and figures (default: results/NAME at full scale, else "
            "below --work)."
        ),
    ] = None,
    retry: options.Retry = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Run a study and write its tables, figures and page.

    Each run has its own process and is stored by its settings, so the same
    command resumes a stopped study. A failed run is reported in its row; the
    others continue.

    Examples:
      epifalcon study run overall --scale hamlet --seeds 2
    """
    from epifalcon.studies.catalogue import find_study
    from epifalcon.studies.scheduler import run_study
    from epifalcon.studies.study import StudyRequest, method_names, plan_study
    from epifalcon.studies.study_report import require_free, write_study
    from epifalcon.studies.study_rows import study_result
    from epifalcon.studies.worker_pool import WorkerOptions

    console = Console(json=as_json, quiet=quiet)
    study = find_study(name)
    chosen = () if methods is None else method_names(methods)
    request = StudyRequest(
        scale=scale,  # type: ignore[arg-type]
        seeds=seeds,
        methods=chosen,
        cells=tuple(cell or ()),
    )
    workers = WorkerOptions(jobs=jobs, retry=retry)
    study_plan = plan_study(study, request, work)
    # Small or partial runs do not replace stored results.
    place = out or work / f"{study.name}-{scale}{'-part' if study_plan.partial else ''}"
    if out is None and scale == "full" and not study_plan.partial:
        place = _RESULTS / study.name
    require_free(place, study_plan)
    command = study_plan.command
    if work != _WORK:
        command += f" --work {shlex.quote(str(work))}"
    if out is not None:
        command += f" --out {shlex.quote(str(out))}"
    with resumable(command), console.progress() as progress:
        ran = run_study(study_plan, workers, progress)
    result = study_result(ran)
    result["made_by"] = command
    if any(row["seeds"] for row in result["rows"]) or not place.exists():
        # Empty tables do not replace earlier ones.
        write_study(place, study_plan, result)
    _show(console, study_plan, result, place)


@app.command()
def report(
    results: Annotated[Path, option("Folder of finished studies.")] = _RESULTS,
    out: Annotated[
        Path | None, option("HTML file to write (default: studies.html in --results).")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Write one page that summarises all finished studies of a folder.

    Examples:
      epifalcon study report --results runs/studies
    """
    from epifalcon.studies.catalogue import write_report

    console = Console(json=as_json, quiet=quiet)
    place = out or results / "studies.html"
    studies = write_report(results, place)
    console.figures({"studies": studies, "out": place})
    rows = [
        [one["study"], one["scale"], str(one["rows"]), one["report"]] for one in studies
    ]
    console.table("Studies", ["study", "scale", "rows", "page"], rows)
    console.say(f"Report: {place}")
