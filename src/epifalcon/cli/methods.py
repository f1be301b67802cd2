"""``epifalcon methods`` and ``epifalcon presets``: what can be named, with settings."""

import sys
from typing import Annotated, Any

import typer

from epifalcon.cli import options
from epifalcon.cli.console import Console
from epifalcon.errors import SettingsError


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show every setting of this method.")
    ] = None,
    own: options.Own = None,
    as_json: options.Json = False,
) -> None:
    """List the methods: those of the paper, references, ceilings, your own.

    Example: epifalcon methods gcn
    """
    from epifalcon.methods.registry import entry, names

    screen = Console(json=as_json)
    del own  # Loaded as the option was read.
    chosen = names() if name is None else [entry(name).name]
    if as_json:
        screen.figures({"methods": [_told(one) for one in chosen]})
    elif name is None:
        listed = [entry(one) for one in chosen]
        rows = [[one.name, one.title, one.kind, one.summary] for one in listed]
        screen.table("Methods", ["name", "title", "kind", "what it does"], rows)
    else:
        told = _told(name)
        screen.say(f"{told['title']} ({told['kind']}): {told['what']}")
        if told["unavailable"] is not None:
            screen.say(f"It cannot be loaded: {told['unavailable']}")
        elif rows := _flat(told["settings"], told["prefix"]):
            screen.table("Settings, for --set", ["setting", "default"], rows)
        else:
            screen.say("It has no settings.")


def _told(name: str) -> dict[str, Any]:
    """What JSON tells of a method; ``prefix`` stands before a setting in --set."""
    from epifalcon.methods.registry import entry, settings_of
    from epifalcon.settings import as_plain

    listed, settings, unavailable = entry(name), None, None
    try:
        settings = as_plain(settings_of(name, {}))
    except (ImportError, SettingsError) as error:
        # An extra that is not installed shall not hide the other methods.
        unavailable = str(error)
    return {
        "name": listed.name,
        "title": listed.title,
        "kind": listed.kind,
        "what": listed.summary,
        "prefix": "" if listed.trains_in_rounds else f"rivals.{name}.",
        "settings": settings,
        "unavailable": unavailable,
    }


def _flat(settings: dict[str, Any], prefix: str = "") -> list[list[str]]:
    rows: list[list[str]] = []
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append([f"{prefix}{key}", str(value)])
    return rows


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
    from epifalcon.experiments import experiment as sources
    from epifalcon.settings import as_plain

    screen = Console(json=json)
    if name is None and overrides:
        raise SettingsError("--set goes with the name of a preset")
    if name is not None:
        experiment = sources.Experiment.load(name, overrides or [])
        screen.figures(as_plain(experiment))
        if not json:
            sys.stdout.write(experiment.to_toml())
        return
    load = sources.Experiment.load
    found = {known: load(known) for known in sources.preset_names()}
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
    layers = sources.layer_descriptions()
    title = f"Layers, put on a preset as in hamlet+{min(layers)}"
    screen.table(title, ["layer", "what it changes"], [*map(list, layers.items())])
