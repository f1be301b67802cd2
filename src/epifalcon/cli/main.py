"""The command ``epifalcon``: its commands and the handling of errors.

Exit codes: 0 done; 1 an error of our own; 2 usage or settings; 3 bad data;
4 privacy budget; 5 corrupt file; 6 cannot write; 7 too few sites.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from epifalcon.cli import (
    audit,
    city,
    federate,
    import_data,
    methods,
    predict,
    privacy,
    run,
    study,
)
from epifalcon.errors import EpifalconError

app = typer.Typer(
    name="epifalcon",
    help="Who is probably infected, from where people have been, while traces and "
    "test results stay on people's own devices.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 2 usage or settings, 3 bad data, 4 privacy budget, "
    "5 corrupt file, 6 cannot write, 7 too few sites.",
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "predict": predict.predict,
    "explain": predict.explain,
    "update": predict.update,
    "compare": study.compare,
    "methods": methods.methods,
    "audit": audit.audit,
    "privacy": privacy.privacy,
    "city": city.city,
    "outbreak": city.outbreak,
    "import": import_data.import_,
    "inspect": city.inspect,
    "presets": methods.presets,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(federate.app, name="federate")
app.add_typer(study.app, name="study")

_INTERRUPTED = 130
_STOP_AGAIN_AFTER = 0.05
"""Seconds: long enough for a callback to end."""
_stopping = threading.Event()
"""Set once somebody wants the program to end."""


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
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # A background job of a shell ignores interrupts: it goes on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _stop_again
    try:
        # Typer's own way of failing is a box of five lines; of helping, fine.
        code = app(standalone_mode=len(sys.argv) < 2)
        sys.stdout.flush()
    except EpifalconError as error:
        _fail(str(error), error.exit_code)
    except TyperException as error:
        _fail(error.format_message(), error.exit_code)
    except MemoryError as error:
        told = str(error) or "the work is too large for this machine"
        _fail(f"not enough memory: {told}", 1)
    except OSError as error:
        # Files that epifalcon reads and writes have errors of their own: only
        # standard output, which has no name, is left.
        if error.filename is not None or error.errno is None:
            raise
        sys.stdout = None
        _fail(f"standard output cannot be written: {error.strerror}", 6)
    if code == _INTERRUPTED:
        _fail("interrupted; nothing was written", code)
    if code:
        sys.exit(code)


def _leave(number: int, _frame: object) -> None:
    """End by way of every ``finally``, so that nothing half-written stays."""
    _stopping.set()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _stop_again(lost: "sys.UnraisableHookArgs") -> None:
    """Repeat a stop that reached Python inside a callback, as of compiling.

    Objects that a stop left half-made then fail to end: that is not printed.
    """
    stop = lost.exc_value
    if isinstance(stop, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(stop, SystemExit) and isinstance(stop.code, int):
        number = stop.code - 128
    else:
        if not _stopping.is_set():
            sys.__unraisablehook__(lost)
        return
    threading.Timer(_STOP_AGAIN_AFTER, os.kill, (os.getpid(), number)).start()


def _fail(told: str, code: int) -> NoReturn:
    # A group of commands without one of them has shown its help, and says no more.
    if told:
        sys.stderr.write(f"epifalcon: {told}\n")
    sys.exit(code)
