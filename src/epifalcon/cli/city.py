"""``epifalcon city``, ``outbreak`` and ``inspect``: simulate and check data."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option


def city(
    out: Annotated[Path, option("Folder to write the city to.")],
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Build a synthetic city: people, regions and where each person is in a slot.

    Examples:
      epifalcon city --preset larger-sars --out larger
      epifalcon city --set city.people=5000 --seed 3 --out town
    """
    from epifalcon import store
    from epifalcon.experiments.simulation import choose

    console = Console(json=json, quiet=quiet)
    with store.new_directory(out, overwrite=overwrite) as folder:
        with console.progress() as progress:
            chosen = choose(preset, None, overrides, seed, progress)
        traces = chosen.traces
        traces.save(folder, chosen.city_origin)
    figures = {
        "preset": chosen.name,
        "seed": seed,
        "people": traces.people,
        "regions": len(traces.regions),
        "kind": traces.regions.kind,
        "days": traces.clock.days,
        "slots": traces.slots,
        "share_observed": traces.observed_share,
        "seconds": chosen.seconds,
        "out": out,
    }
    console.figures(figures)
    rows = [
        ["people", f"{traces.people:,}"],
        ["regions", f"{len(traces.regions):,} ({traces.regions.kind})"],
        ["days x slots per day", f"{traces.clock.days} x {traces.clock.slots_per_day}"],
        ["share observed", f"{traces.observed_share:.3f}"],
        ["seconds to build", f"{chosen.seconds:.1f}"],
    ]
    console.table(f"City {chosen.name}, seed {seed}", ["city", ""], rows)
    console.say(f"Written to {out}. Inspect it with: epifalcon inspect {out}")


def outbreak(
    preset: options.Preset = None,
    city: options.City = None,
    overrides: options.Overrides = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of outbreaks to simulate.")
    ] = 1,
    seed: options.Seed = 0,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Simulate outbreaks in a city and print how many people each infects.

    --seed is the seed of the city; outbreak k has the seed --seed + k. With
    --out, each outbreak, its labels and the figures are written.

    Examples:
      epifalcon outbreak --preset larger-sars --seeds 10 --json
      epifalcon outbreak --city town --out outbreaks
    """
    from time import perf_counter

    from epifalcon import store
    from epifalcon.experiments.simulation import (
        REPORTED,
        SIMULATED,
        choose,
        guarded_as,
        run_epidemics,
    )

    console = Console(json=json, quiet=quiet)
    epidemics = []
    with console.progress() as progress:
        chosen = choose(preset, city, overrides, seed, progress)
        # Import torch.
        from epifalcon.experiments import run_plots
        from epifalcon.experiments.run_report import write_summary
        from epifalcon.experiments.run_tables import outbreak_summary, outbreak_table

        start = perf_counter()
        for epidemic in run_epidemics(chosen.experiment, chosen.traces, seed, seeds):
            epidemics.append(epidemic)
            progress("outbreaks", len(epidemics), seeds)
        progress("summary", 0, 2, "reproduction number")
        figures = outbreak_summary(
            chosen.experiment, chosen.traces, epidemics, chosen.name
        )
        figures["seconds"] = perf_counter() - start
        figures["seconds_city"] = chosen.seconds
        progress("summary", 1, 2, "reported traces")
        reported = chosen.reported(seed)
        progress("summary", 2, 2)
    figures["share_reported"] = reported.observed_share
    figures["simulated_on_real_people"] = chosen.is_imported
    if chosen.is_imported:
        console.note(SIMULATED)
    if out is not None:
        with (
            guarded_as(city),
            store.new_directory(out, overwrite=overwrite, inputs=[city]) as folder,
        ):
            if reported is not chosen.traces:
                reported.save(folder / REPORTED, chosen.origin(seed))
            origin = chosen.origin(seed)
            for epidemic in epidemics:
                epidemic.save(folder / f"seed-{epidemic.seed}", origin)
            write_summary(folder, chosen.experiment, figures)
            plots, outbreaks = folder / "figures", [one.outbreak for one in epidemics]
            plots.mkdir()
            run_plots.write_epidemic_curve(plots, outbreaks, chosen.name)
            if chosen.traces.regions.placed:
                name, first = chosen.name, outbreaks[0]
                run_plots.write_attack_map(plots, chosen.traces, first, name)
            meta = {"name": chosen.name}
            store.write_manifest(folder, "outbreaks", meta=meta, origin=origin)
        figures["out"] = out
    console.figures(figures)
    table = outbreak_table(figures)
    console.table(f"{table.caption} on {chosen.name}", table.columns, table.rows)
    console.say(
        "R0 (basic reproduction number, people infected by one case): "
        f"{figures['hazard_r0']:.2f} from the hazard, which counts people who are met "
        f"again each time; {figures['counted_r0']:.2f} counted in simulations, each "
        "person once."
    )


def inspect(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder written by epifalcon.")
    ] = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    seed: options.Seed = 0,
    out: Annotated[Path | None, option("Folder to write the figure to.")] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    _verbose: options.Verbose = 0,
) -> None:
    """Verify the files of a folder and compare its mobility with published ranges.

    With --preset instead of a folder, the city of the preset is built and
    measured.

    Examples:
      epifalcon inspect town
      epifalcon inspect --preset hamlet --out figures
    """
    from epifalcon import store
    from epifalcon.errors import SettingsError
    from epifalcon.experiments.simulation import CITY, choose, find_folder, guarded_as

    console = Console(json=json, quiet=quiet)
    figures: dict[str, Any] = {}
    if folder is not None:
        if preset is not None or overrides:
            raise SettingsError("give a folder, or --preset and --set, not both")
        figures = _describe(folder, console)
        if figures["kind"] != CITY and find_folder(folder, CITY) == folder:
            if out is not None:
                raise SettingsError(
                    f"{folder} contains no city, so --out has nothing to draw"
                )
            console.figures(figures)
            return
    with console.progress() as progress:
        chosen = choose(preset, folder, overrides, seed, progress)
        # Import torch.
        from epifalcon.experiments.run_plots import write_mobility
        from epifalcon.experiments.run_tables import statistics_table
        from epifalcon.mobility.statistics import measure

        traces = chosen.traces
        statistics = measure(traces, progress)
    name = chosen.name if folder is None else str(folder)
    plain = [asdict(one) for one in statistics.statistics]
    table = statistics_table(plain)
    console.table(f"{table.caption} of {name}", table.columns, table.rows)
    figures |= {
        "name": name,
        "people": traces.people,
        "regions": len(traces.regions),
        "region_kind": traces.regions.kind,
        "slots": traces.slots,
        "share_observed": traces.observed_share,
        "statistics": plain,
    }
    if out is not None:
        with (
            guarded_as(folder),
            store.new_directory(out, overwrite=overwrite, inputs=[folder]) as scratch,
        ):
            picture = write_mobility(scratch, statistics, name)
            origin = store.Origin.now({"of": name}, figures.get("seed"))
            store.write_manifest(scratch, "picture", meta={}, origin=origin)
        figures["picture"] = out / picture.path.name
    console.figures(figures)


def _describe(folder: Path, console: Console) -> dict[str, Any]:
    """Verify every file of ``folder``; return the main fields of its manifest."""
    from epifalcon import store
    from epifalcon.experiments.run_folder import data_folder

    manifest = store.verify(folder)
    files = len(manifest["files"])
    if (data := data_folder(folder)) != folder:
        files += len(store.verify(data)["files"])
    rows = [
        ["kind", manifest["kind"]],
        ["seed", str(manifest["seed"])],
        ["files checked", str(files)],
        *([f"version of {name}", text] for name, text in manifest["versions"].items()),
    ]
    console.table(f"{folder}: all files are unchanged", ["folder", ""], rows)
    names = ("kind", "seed", "versions", "settings_sha256")
    return {**{name: manifest[name] for name in names}, "files_checked": files}
