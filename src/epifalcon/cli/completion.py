"""Values that the shell completes: names of methods, presets, modes and settings.

None of these functions imports torch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import typer


def methods(incomplete: str) -> list[str]:
    """Complete the name of a method; in a list with commas, the last one."""
    from epifalcon.methods.registry import names

    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in _matching(names(), last)]


def presets(incomplete: str) -> list[str]:
    """Complete the name of a preset and, after a plus sign, of a layer."""
    from epifalcon.experiments.experiment import layer_names, preset_names

    done, plus, last = incomplete.rpartition("+")
    names = layer_names() if plus else preset_names()
    return [f"{done}{plus}{name}" for name in _matching(names, last)]


def modes(incomplete: str) -> list[str]:
    """Complete a privacy mode of any method."""
    from epifalcon.federation.field.settings import FieldMode
    from epifalcon.federation.settings import Mode

    names = dict.fromkeys((*get_args(Mode), *get_args(FieldMode)))
    return _matching(names, incomplete)


def pathogens(incomplete: str) -> list[str]:
    """Complete the name of a pathogen."""
    from epifalcon.epidemic.pathogen import PATHOGENS

    return _matching(PATHOGENS, incomplete)


def kinds(incomplete: str) -> list[str]:
    """Complete a kind of visits."""
    from epifalcon.mobility.io.settings import Kind

    return _matching(get_args(Kind), incomplete)


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the key of a setting of an experiment or, for import, of an import."""
    from epifalcon.experiments.experiment import Experiment
    from epifalcon.mobility.io.settings import ImportSettings

    chosen = ImportSettings if ctx.info_name == "import" else Experiment
    return _matching(_keys(chosen), incomplete)


def _keys(table: type, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(table)
    for name in (one.name for one in fields(table)):
        if isinstance(hint := hints[name], type) and is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}="


def _matching(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]
