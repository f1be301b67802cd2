"""``epifalcon compare``: methods side by side, over several seeds."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
from epifalcon.errors import EpifalconError, StoppedError

if TYPE_CHECKING:
    from epifalcon.studies.comparing import Crew, Found
    from epifalcon.studies.comparison_plan import Plan


def compare(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the comparison, new or begun.")
    ],
    preset: options.Preset = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="all, or names between commas (see: epifalcon methods).",
        ),
    ] = "all",
    seeds: Annotated[
        int, typer.Option("--seeds", help="How many cities and outbreaks.")
    ] = 5,
    first_seed: Annotated[int, typer.Option("--first-seed", help="Of the seeds.")] = 0,
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
    from epifalcon.studies.comparing import Crew
    from epifalcon.studies.comparison import comparison, curves
    from epifalcon.studies.comparison_plan import Wanted, plan_comparison
    from epifalcon.studies.comparison_tables import keep_comparison, short_table

    screen = Screen(json=as_json, quiet=quiet)
    wanted = Wanted(
        preset=preset,
        overrides=tuple(overrides or ()),
        methods=methods,
        seeds=seeds,
        first_seed=first_seed,
        sources=tuple(own or ()),
    )
    crew = Crew(jobs=jobs, retry=retry)
    plan = plan_comparison(out, wanted)
    found = _found(plan, crew, screen)
    result = comparison(plan, found)
    keep_comparison(plan, result, curves(found))
    screen.figures({**result, "out": str(out)})
    table = short_table(result)
    screen.table(table.caption, table.columns, table.rows)
    for note in result["notes"]:
        screen.note(note)
    if any(row["failed"] for row in result["rows"]):
        screen.note("Try again what failed with --retry.")
    screen.say(f"Report: {out / 'comparison.html'}")
    if not any(row["seeds"] for row in result["rows"]):
        raise EpifalconError("no method has a result")


def _found(plan: "Plan", crew: "Crew", screen: Screen) -> "Found":
    from epifalcon.store import MANIFEST
    from epifalcon.studies.comparing import compare as do

    try:
        with screen.progress() as progress:
            return do(plan, crew, progress)
    except (KeyboardInterrupt, SystemExit) as stop:
        if not (plan.folder / MANIFEST).is_file():
            raise
        way = f"go on with: {plan.command}"
        if isinstance(stop, SystemExit):
            sys.stderr.write(f"epifalcon: stopped; {way}\n")
            raise
        raise StoppedError(f"interrupted; {way}") from None
