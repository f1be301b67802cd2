"""The command ``epifalcon``: every command, and what happens to its errors.

Exit codes: 0 done; 1 an error of our own; 2 usage or settings; 3 bad data;
4 privacy budget; 5 corrupt file; 6 cannot write.
"""

import sys
from typing import Annotated

import typer

from epifalcon.app import city, importing, inspecting, outbreak, presets, run
from epifalcon.errors import EpifalconError

app = typer.Typer(
    name="epifalcon",
    help="Who is probably infected, from where people have been, while traces and "
    "test results stay on people's own devices.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 2 usage or settings, 3 bad data, 4 privacy budget, "
    "5 corrupt file, 6 cannot write.",
)
app.command("run")(run.run)
app.command("city")(city.city)
app.command("outbreak")(outbreak.outbreak)
app.command("import")(importing.import_)
app.command("inspect")(inspecting.inspect)
app.command("presets")(presets.presets)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"epifalcon {version('epifalcon')}\n")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and leave.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Hold the options that stand before a command."""


def main() -> None:
    """Run the command line; a user's mistake ends in one line and an exit code."""
    try:
        app()
    except EpifalconError as error:
        sys.stderr.write(f"epifalcon: {error}\n")
        sys.exit(error.exit_code)
    except MemoryError as error:
        told = str(error) or "the work is too large for this machine"
        sys.stderr.write(f"epifalcon: not enough memory: {told}\n")
        sys.exit(1)
