"""Options that several commands share, so that one word means one thing everywhere."""

from pathlib import Path
from typing import Annotated, Any

import typer


def option(text: str, *flags: str) -> Any:  # noqa: ANN401
    """Return a Typer option with ``text`` as help."""
    return typer.Option(*flags, help=text)


def _load_own(files: list[Path] | None) -> list[Path]:
    for file in files or ():
        from epifalcon.methods.registry import load_file

        load_file(file)
    return files or []


Preset = Annotated[
    str | None,
    option("Preset or TOML file; layers are added as in hamlet+safer.", "--preset"),
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
    str | None, option("One of the run's methods (default: its own).", "--method")
]
Seed = Annotated[int, option("Equal seeds give equal results.", "--seed")]
Json = Annotated[bool, option("Print figures as one JSON document.", "--json")]
Quiet = Annotated[bool, option("No progress and no tables.", "--quiet", "-q")]
Out = Annotated[Path | None, option("Folder to write into.", "--out")]
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
Retry = Annotated[bool, option("Try again what failed before.", "--retry")]
Overwrite = Annotated[bool, option("Replace a folder of epifalcon.", "--overwrite")]
City = Annotated[
    Path | None, option("Folder made by epifalcon city, import or run.", "--city")
]
