"""``epifalcon run``: the whole way of the data, from a city to a report."""

from pathlib import Path
from typing import Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen


def run(
    out: Annotated[Path, typer.Option("--out", help="Folder to write the run into.")],
    preset: options.Preset = None,
    city: options.City = None,
    overrides: options.Overrides = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Build a city, run an outbreak, draw labels; write pictures and a report.

    Example: epifalcon run --preset hamlet --out demo
    """
    from epifalcon import store
    from epifalcon.app.loading import choose
    from epifalcon.studies.keeping import write_run
    from epifalcon.studies.pipeline import run_epidemics
    from epifalcon.studies.summaries import outbreak_table

    screen = Screen(json=json, quiet=quiet)
    with (
        store.new_directory(out, overwrite=overwrite, inputs=[city]) as folder,
        screen.progress() as progress,
    ):
        chosen = choose(preset, city, overrides, seed, progress)
        epidemic = next(run_epidemics(chosen.experiment, chosen.traces, seed))
        kept = write_run(folder, chosen, epidemic, progress)
    screen.figures({**kept.figures, "out": str(out)})
    table = outbreak_table(kept.figures)
    screen.table(table.caption, table.columns, table.rows)
    screen.table(kept.validity.caption, kept.validity.columns, kept.validity.rows)
    screen.say(f"Report: {out / 'report.html'}")
