"""Options that several commands share, so that one word means one thing everywhere."""

from pathlib import Path
from typing import Annotated, Any

import typer


def option(text: str, *flags: str) -> Any:  # noqa: ANN401
    """Return a Typer option with ``text`` as help."""
    return typer.Option(*flags, help=text)


def _load_own(files: list[Path] | None) -> list[Path]:
    if files:
        from epifalcon.methods.registry import load_file

        for file in files:
            load_file(file)
    return files or []


Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="A preset by name (see: epifalcon presets) or a TOML file of settings; "
        "a layer may be put on it, as in hamlet+safer.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, e.g. --set city.people=5000. May be repeated.",
    ),
]
FinishedRun = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
MethodOfRun = Annotated[
    str | None,
    typer.Option("--method", help="One of the run's methods (default: its own)."),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Equal seeds and settings give equal results.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print figures as one JSON document.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no tables.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write into.")]
Own = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FILE.py",
        help="A Python file that registers methods of your own. May be repeated.",
        callback=_load_own,
        is_eager=True,
    ),
]
Jobs = Annotated[
    int | None,
    option("Processes at once, if memory allows (default: one per core).", "--jobs"),
]
Retry = Annotated[bool, typer.Option("--retry", help="Try again what failed before.")]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace a folder that epifalcon made before."),
]
City = Annotated[
    Path | None,
    typer.Option(
        "--city",
        help="A folder made by epifalcon city, import or run, instead of a new city.",
    ),
]
