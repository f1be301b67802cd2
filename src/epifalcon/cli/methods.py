"""``epifalcon methods`` and ``epifalcon presets``: lists with all settings."""

from typing import Annotated, Any

import typer

from epifalcon.cli import completion, options
from epifalcon.cli.console import Console
from epifalcon.errors import SettingsError


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show every setting of this method.", autocompletion=completion.methods
        ),
    ] = None,
    own: options.Own = None,
    as_json: options.Json = False,
    _verbose: options.Verbose = 0,
) -> None:
    """List the methods, or show the settings of one.

    Kinds: of the paper, our references, ceilings (which see the truth, to show
    what is possible), and your own.

    Examples:
      epifalcon methods
      epifalcon methods gcn
    """
    from epifalcon.methods.registry import entry, names

    console = Console(json=as_json)
    del own  # Loaded when the option was parsed.
    chosen = names() if name is None else [entry(name).name]
    if as_json:
        console.figures({"methods": [_describe(one) for one in chosen]})
    elif name is None:
        listed = [entry(one) for one in chosen]
        rows = [[one.name, one.title, one.kind, one.summary] for one in listed]
        console.table("Methods", ["name", "title", "kind", "what it does"], rows)
    else:
        method = _describe(name)
        console.say(f"{method['title']} ({method['kind']}): {method['what']}")
        if method["unavailable"] is not None:
            console.say(f"It cannot be loaded: {method['unavailable']}")
        elif rows := _flat(method["settings"], method["prefix"]):
            console.table("Settings, for --set", ["setting", "default"], rows)
        else:
            console.say("It has no settings.")


def _describe(name: str) -> dict[str, Any]:
    """Return the JSON of a method; ``prefix`` precedes its settings in --set."""
    from epifalcon.methods.registry import entry, settings_of
    from epifalcon.settings import as_plain

    listed, settings, unavailable = entry(name), None, None
    try:
        settings = as_plain(settings_of(name, {}))
    except (ImportError, SettingsError) as error:
        # A missing extra must not hide the other methods.
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
        str | None,
        typer.Argument(
            help="Show every setting of this preset.", autocompletion=completion.presets
        ),
    ] = None,
    overrides: options.Overrides = None,
    json: options.Json = False,
    _verbose: options.Verbose = 0,
) -> None:
    """List the presets and layers, or print all settings of one preset as TOML.

    Examples:
      epifalcon presets
      epifalcon presets hamlet+safer > mine.toml
    """
    from epifalcon.experiments import experiment as sources
    from epifalcon.settings import as_plain

    console = Console(json=json)
    if name is None and overrides:
        raise SettingsError("--set needs the name of a preset")
    if name is not None:
        experiment = sources.Experiment.load(name, overrides or [])
        console.figures(as_plain(experiment))
        console.say(experiment.to_toml().removesuffix("\n"))
        return
    load = sources.Experiment.load
    found = {known: load(known) for known in sources.preset_names()}
    console.figures({known: as_plain(item) for known, item in found.items()})
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
    console.table("Presets", columns, rows)
    layers = sources.layer_descriptions()
    title = f"Layers, added to a preset as in hamlet+{min(layers)}"
    console.table(title, ["layer", "what it changes"], [*map(list, layers.items())])
