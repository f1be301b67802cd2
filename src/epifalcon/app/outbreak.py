"""``epifalcon outbreak``: one or many outbreaks on one city."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen

if TYPE_CHECKING:
    from epifalcon.studies.pipeline import Epidemic, Prepared


def outbreak(
    preset: options.Preset = None,
    city: options.City = None,
    overrides: options.Overrides = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="How many outbreaks on the city.")
    ] = 1,
    seed: options.Seed = 0,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run outbreaks on a city and print how many people each infected.

    The city comes from --seed; outbreak k draws from --seed + k. With --out,
    each outbreak, its labels and the pictures are kept.

    Example: epifalcon outbreak --preset larger-sars --seeds 10 --json
    """
    from time import perf_counter

    from epifalcon import store
    from epifalcon.app.loading import choose
    from epifalcon.studies.pipeline import REPORTED, run_epidemics
    from epifalcon.studies.summaries import outbreak_figures, outbreak_table

    screen = Screen(json=json, quiet=quiet)
    epidemics = []
    with screen.progress() as progress:
        chosen = choose(preset, city, overrides, seed, progress)
        start = perf_counter()
        for epidemic in run_epidemics(chosen.experiment, chosen.traces, seed, seeds):
            epidemics.append(epidemic)
            progress("outbreaks", len(epidemics), seeds)
    figures = outbreak_figures(chosen.experiment, chosen.traces, epidemics, chosen.name)
    figures["seconds"] = perf_counter() - start
    figures["seconds_city"] = chosen.seconds
    reported = chosen.reported(seed)
    figures["share_reported"] = reported.observed_share
    if out is not None:
        with store.new_directory(out, overwrite=overwrite, inputs=[city]) as folder:
            chosen.save_reported(folder / REPORTED, reported, seed)
            _keep(folder, chosen, epidemics, figures, seed)
        figures["out"] = str(out)
    screen.figures(figures)
    table = outbreak_table(figures)
    screen.table(f"{table.caption} on {chosen.name}", table.columns, table.rows)
    screen.say(
        f"R0: {figures['hazard_r0']:.2f} by hazard, {figures['counted_r0']:.2f} by "
        "counting the people one case infects (the same people are met again)"
    )


def _keep(
    folder: Path,
    chosen: "Prepared",
    epidemics: "list[Epidemic]",
    figures: dict[str, Any],
    seed: int,
) -> None:
    from epifalcon import store
    from epifalcon.studies.keeping import write_figures, write_summary

    origin = chosen.origin(seed)
    for epidemic in epidemics:
        epidemic.save(folder / f"seed-{epidemic.seed}", origin)
    write_summary(folder, chosen.experiment, figures)
    write_figures(folder / "figures", chosen.traces, epidemics, chosen.name)
    store.write_manifest(folder, "outbreaks", meta={"name": chosen.name}, origin=origin)
