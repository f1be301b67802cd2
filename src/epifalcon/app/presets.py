"""``epifalcon presets``: what can be named after ``--preset``."""

import sys
from typing import Annotated

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen


def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show every setting of this preset.")
    ] = None,
    overrides: options.Overrides = None,
    json: options.Json = False,
) -> None:
    """List the presets, or print one in full as TOML to copy and change.

    Example: epifalcon presets hamlet > mine.toml
    """
    from epifalcon.errors import SettingsError
    from epifalcon.settings import as_plain
    from epifalcon.studies.experiment import (
        Experiment,
        layer_descriptions,
        preset_names,
    )

    screen = Screen(json=json)
    if name is None and overrides:
        raise SettingsError("--set goes with the name of a preset")
    if name is not None:
        experiment = Experiment.load(name, overrides or [])
        screen.figures(as_plain(experiment))
        if not json:
            sys.stdout.write(experiment.to_toml())
        return
    found = {known: Experiment.load(known) for known in preset_names()}
    screen.figures({known: as_plain(item) for known, item in found.items()})
    rows = [
        [
            known,
            f"{item.city.people:,}",
            f"{item.city.regions:,}",
            item.city.kind,
            str(item.city.days),
            item.pathogen.name,
            str(item.outbreak.seed_count),
        ]
        for known, item in found.items()
    ]
    columns = ["preset", "people", "regions", "kind", "days", "pathogen", "seeds"]
    screen.table("Presets", columns, rows)
    layers = layer_descriptions()
    title = f"Layers, put on a preset as in hamlet+{min(layers)}"
    screen.table(title, ["layer", "what it changes"], [*map(list, layers.items())])
