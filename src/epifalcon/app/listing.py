"""``epifalcon methods``: what can be compared, and the settings of each."""

from typing import Annotated, Any

import typer

from epifalcon.app import options
from epifalcon.app.screen import Screen
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
    from epifalcon.baselines.catalogue import entry, names

    # Puts Falcon and HGNN on the list.
    from epifalcon.studies import methods as _  # noqa: F401

    screen = Screen(json=as_json)
    del own  # Loaded as the option was read.
    chosen = names() if name is None else [entry(name).name]
    if as_json:
        screen.figures({"methods": [_told(one) for one in chosen]})
    elif name is None:
        listed = [entry(one) for one in chosen]
        rows = [[one.name, one.title, one.kind, one.what] for one in listed]
        screen.table("Methods", ["name", "title", "kind", "what it does"], rows)
    else:
        _show(screen, _told(name))


def _show(screen: Screen, told: dict[str, Any]) -> None:
    screen.say(f"{told['title']} ({told['kind']}): {told['what']}")
    if told["unavailable"] is not None:
        screen.say(f"It cannot be loaded: {told['unavailable']}")
    elif rows := _flat(told["settings"], told["prefix"]):
        screen.table("Settings, for --set", ["setting", "default"], rows)
    else:
        screen.say("It has no settings.")


def _told(name: str) -> dict[str, Any]:
    """What JSON tells of a method; ``prefix`` stands before a setting in --set."""
    from epifalcon.baselines.catalogue import entry, settings_of
    from epifalcon.settings import as_plain
    from epifalcon.studies.methods import FALCONS

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
        "what": listed.what,
        "prefix": "" if name in FALCONS else f"rivals.{name}.",
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
