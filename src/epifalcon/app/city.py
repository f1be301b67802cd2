"""``epifalcon city``: build a synthetic city and keep it."""

from pathlib import Path
from typing import Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen


def city(
    out: Annotated[Path, typer.Option("--out", help="Folder to write the city into.")],
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
    from epifalcon.app.loading import choose

    screen = Screen(json=json, quiet=quiet)
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
        "out": str(out),
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
