"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from epifalcon.cli import completion
from epifalcon.cli.console import show_log


def option(
    text: str, *flags: str, complete: Callable[..., list[str]] | None = None
) -> Any:  # noqa: ANN401
    """Return a Typer option with ``text`` as help, completed by ``complete``."""
    return typer.Option(*flags, help=text, autocompletion=complete)


def _load_own(files: list[Path] | None) -> list[Path]:
    for file in files or ():
        from epifalcon.methods.registry import load_file

        load_file(file)
    return files or []


Preset = Annotated[
    str | None,
    option(
        "Name of a preset, with layers as in hamlet+safer, or a TOML file "
        "(default: hamlet).",
        "--preset",
        complete=completion.presets,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, e.g. --set city.people=5000. May be repeated.",
        autocompletion=completion.settings,
    ),
]
FinishedRun = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
MethodOfRun = Annotated[
    str | None,
    option(
        "One of the methods of the run (default: its main method).",
        "--method",
        complete=completion.methods,
    ),
]
Seed = Annotated[int, option("Seed of all random numbers.", "--seed")]
Json = Annotated[bool, option("Print the result as one JSON document.", "--json")]
Quiet = Annotated[bool, option("Print only errors.", "--quiet", "-q")]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        metavar="",
        help="Print log messages; -vv prints more of them.",
        callback=show_log,
    ),
]
Out = Annotated[Path | None, option("Folder to write to.", "--out")]
Own = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="FILE.py",
        help="Python file that registers your own methods. May be repeated.",
        callback=_load_own,
        is_eager=True,
    ),
]
Jobs = Annotated[
    int | None,
    option("Maximum number of parallel processes (default: one per core).", "--jobs"),
]
Retry = Annotated[bool, option("Run failed jobs again.", "--retry")]
Overwrite = Annotated[
    bool, option("Replace the folder if epifalcon wrote it.", "--overwrite")
]
Known = Annotated[
    Path | None, option("Folder with test results of the people in --city.", "--known")
]
KeepFormulas = Annotated[
    bool,
    option(
        "Write names that begin with =, +, - or @ to CSV as they are; a spreadsheet "
        "would run them as formulas.",
        "--keep-formulas",
    ),
]
City = Annotated[
    Path | None, option("Folder written by epifalcon city, import or run.", "--city")
]
