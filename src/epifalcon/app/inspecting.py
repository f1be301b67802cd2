"""``epifalcon inspect``: what a folder holds, and how believable its city is."""

from pathlib import Path
from typing import Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen


def inspect(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder that epifalcon made.")
    ] = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the picture into this folder.")
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check every file of a folder, and measure its city against stated bands.

    With --preset instead of a folder, the preset's city is built and measured.

    Example: epifalcon inspect larger --json
    """
    from epifalcon.errors import SettingsError

    screen = Screen(json=json, quiet=quiet)
    if folder is None:
        figures = _measure(None, preset, overrides, seed, screen)
    elif preset is not None or overrides:
        raise SettingsError("give a folder, or --preset and --set, not both")
    else:
        figures = _describe(folder, screen)
        if _city_inside(folder, figures["kind"]):
            figures |= _measure(folder, None, None, seed, screen)
    statistics = figures.pop("measured", None)
    if out is not None:
        if statistics is None:
            raise SettingsError(f"{folder} holds no city: --out has nothing to draw")
        figures["picture"] = _draw(out, folder, statistics, figures, overwrite)
    screen.figures(figures)


def _describe(folder: Path, screen: Screen) -> dict[str, Any]:
    from epifalcon import store

    manifest = store.verify(folder)
    figures = {
        "kind": manifest["kind"],
        "seed": manifest["seed"],
        "versions": manifest["versions"],
        "settings_sha256": manifest["settings_sha256"],
        "files_checked": len(manifest["files"]),
    }
    rows = [
        ["kind", manifest["kind"]],
        ["seed", str(manifest["seed"])],
        ["files checked", str(len(manifest["files"]))],
        *([f"version of {name}", text] for name, text in manifest["versions"].items()),
    ]
    screen.table(f"{folder}: every file is as it was written", ["folder", ""], rows)
    return figures


def _city_inside(folder: Path, kind: str) -> bool:
    from epifalcon.experiments.simulation import CITY

    return kind == CITY or (folder / CITY).is_dir()


def _measure(
    folder: Path | None,
    preset: str | None,
    overrides: list[str] | None,
    seed: int,
    screen: Screen,
) -> dict[str, Any]:
    from epifalcon.experiments.run_tables import plain_statistics, statistics_table
    from epifalcon.experiments.simulation import choose
    from epifalcon.mobility.statistics import measure

    with screen.progress() as progress:
        chosen = choose(preset, folder, overrides, seed, progress)
        traces = chosen.traces
        statistics = measure(traces, progress)
    name = chosen.name if folder is None else str(folder)
    table = statistics_table(plain_statistics(statistics))
    screen.table(f"{table.caption} of {name}", table.columns, table.rows)
    return {
        "name": name,
        "people": traces.people,
        "regions": len(traces.regions),
        "region_kind": traces.regions.kind,
        "slots": traces.slots,
        "share_observed": traces.observed_share,
        "statistics": plain_statistics(statistics),
        "measured": statistics,
    }


def _draw(
    out: Path,
    source: Path | None,
    statistics: Any,  # noqa: ANN401
    figures: dict[str, Any],
    overwrite: bool,
) -> str:
    from epifalcon import store
    from epifalcon.experiments.run_plots import write_mobility

    with store.new_directory(out, overwrite=overwrite, inputs=[source]) as scratch:
        picture = write_mobility(scratch, statistics, figures["name"])
        origin = store.Origin.now({"of": figures["name"]}, figures.get("seed"))
        store.write_manifest(scratch, "picture", meta={}, origin=origin)
    return str(out / picture.path.name)
