"""``epifalcon city``, ``outbreak`` and ``inspect``: data without training."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.cli.options import option


def city(
    out: Annotated[Path, option("Folder to write the city into.")],
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Build a synthetic city: people, regions, and who was where in every slot.

    Example: epifalcon city --preset larger-sars --out larger
    """
    from epifalcon import store
    from epifalcon.experiments.simulation import choose

    screen = Console(json=json, quiet=quiet)
    with store.new_directory(out, overwrite=overwrite) as folder:
        with screen.progress() as progress:
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
    screen.figures(figures)
    rows = [
        ["people", f"{traces.people:,}"],
        ["regions", f"{len(traces.regions):,} ({traces.regions.kind})"],
        ["days x slots a day", f"{traces.clock.days} x {traces.clock.slots_per_day}"],
        ["share observed", f"{traces.observed_share:.3f}"],
        ["seconds to build", f"{chosen.seconds:.1f}"],
    ]
    screen.table(f"City {chosen.name}, seed {seed}", ["city", ""], rows)
    screen.say(f"Written to {out}. Look at it with: epifalcon inspect {out}")


def outbreak(
    preset: options.Preset = None,
    city: options.City = None,
    overrides: options.Overrides = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many outbreaks on the city.")
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
    from epifalcon.experiments import run_plots
    from epifalcon.experiments.run_report import write_summary
    from epifalcon.experiments.run_tables import outbreak_figures, outbreak_table
    from epifalcon.experiments.simulation import REPORTED, choose, run_epidemics

    screen = Console(json=json, quiet=quiet)
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
    screen.figures(figures)
    table = outbreak_table(figures)
    screen.table(f"{table.caption} on {chosen.name}", table.columns, table.rows)
    screen.say(
        f"R0: {figures['hazard_r0']:.2f} by hazard, {figures['counted_r0']:.2f} by "
        "counting the people one case infects (the same people are met again)"
    )


def inspect(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder that epifalcon made.")
    ] = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    seed: options.Seed = 0,
    out: Annotated[Path | None, option("Write the picture into this folder.")] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check every file of a folder, and measure its city against stated bands.

    With --preset instead of a folder, the preset's city is built and measured.

    Example: epifalcon inspect larger --json
    """
    from epifalcon import store
    from epifalcon.errors import SettingsError
    from epifalcon.experiments.run_plots import write_mobility
    from epifalcon.experiments.run_tables import statistics_table
    from epifalcon.experiments.simulation import CITY, choose
    from epifalcon.mobility.statistics import measure

    screen = Console(json=json, quiet=quiet)
    figures: dict[str, Any] = {}
    if folder is not None:
        if preset is not None or overrides:
            raise SettingsError("give a folder, or --preset and --set, not both")
        figures = _describe(folder, screen)
        if figures["kind"] != CITY and not (folder / CITY).is_dir():
            if out is not None:
                raise SettingsError(
                    f"{folder} holds no city: --out has nothing to draw"
                )
            screen.figures(figures)
            return
    with screen.progress() as progress:
        chosen = choose(preset, folder, overrides, seed, progress)
        traces = chosen.traces
        statistics = measure(traces, progress)
    name = chosen.name if folder is None else str(folder)
    plain = [asdict(one) for one in statistics.statistics]
    table = statistics_table(plain)
    screen.table(f"{table.caption} of {name}", table.columns, table.rows)
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
        with store.new_directory(out, overwrite=overwrite, inputs=[folder]) as scratch:
            picture = write_mobility(scratch, statistics, name)
            origin = store.Origin.now({"of": name}, figures.get("seed"))
            store.write_manifest(scratch, "picture", meta={}, origin=origin)
        figures["picture"] = out / picture.path.name
    screen.figures(figures)


def _describe(folder: Path, screen: Console) -> dict[str, Any]:
    """Check every file of ``folder``; return what its manifest says."""
    from epifalcon import store

    manifest = store.verify(folder)
    files = len(manifest["files"])
    rows = [
        ["kind", manifest["kind"]],
        ["seed", str(manifest["seed"])],
        ["files checked", str(files)],
        *([f"version of {name}", text] for name, text in manifest["versions"].items()),
    ]
    screen.table(f"{folder}: every file is as it was written", ["folder", ""], rows)
    names = ("kind", "seed", "versions", "settings_sha256")
    return {**{name: manifest[name] for name in names}, "files_checked": files}
