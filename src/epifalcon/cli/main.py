"""The command ``epifalcon``: its commands and the handling of errors.

Exit codes: 0 success; 1 internal error; 2 usage or settings; 3 invalid data;
4 privacy budget; 5 corrupt file; 6 cannot write; 7 too few sites; 8 server unreachable.
"""

import errno
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
    demo,
    federate,
    import_data,
    methods,
    places,
    predict,
    privacy,
    run,
    study,
)
from epifalcon.errors import EpifalconError
from epifalcon.text import printable, shortened

app = typer.Typer(
    name="epifalcon",
    help="Predict who is probably infected from where people have been, while traces "
    "and test results stay on people's own devices. Start with: epifalcon demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 2 usage or settings, 3 invalid data, 4 privacy budget, "
    "5 corrupt file, 6 cannot write, 7 too few sites, 8 server unreachable.",
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "run": run.run,
    "predict": predict.predict,
    "explain": predict.explain,
    "places": places.places,
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

_UNREADABLE = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)
"""Errors of a path as such, which every use of it raises."""
_INTERRUPTED = 130
_STOP_AGAIN_AFTER = 0.05
"""Seconds: long enough for a callback to end."""
_stopping = threading.Event()
"""Set when a signal stops the program."""


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        sys.stdout.write(f"epifalcon {version('epifalcon')}\n")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Define the options that precede a command."""


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # A background job of a shell ignores interrupts; keep that.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    sys.unraisablehook = _stop_again
    # Processes that this one starts import no module of the working directory, which
    # others may have written.
    os.environ["PYTHONSAFEPATH"] = "1"
    for name in ("stdin", "stdout", "stderr"):
        # A closed stream is None, and the next opened file would get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    try:
        # Errors are printed here as one line; Typer would draw a box.
        code = app(standalone_mode=len(sys.argv) < 2)
        sys.stdout.flush()
    except EpifalconError as error:
        _fail(str(error), error.exit_code)
    except TyperException as error:
        _fail(error.format_message(), error.exit_code)
    except MemoryError as error:
        reason = str(error) or "the data is too large for this machine"
        _fail(f"not enough memory: {reason}", 1)
    except OSError as error:
        if error.errno in _UNREADABLE and error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}", 3)
        # Files that epifalcon reads and writes raise EpifalconError: only standard
        # output, which has no name, remains.
        if error.filename is not None or error.errno is None:
            raise
        sys.stdout = None
        _fail(f"cannot write to standard output: {error.strerror}", 6)
    if code == _INTERRUPTED:
        _fail("interrupted; nothing was written", code)
    if code:
        sys.exit(code)


def _leave(number: int, _frame: object) -> None:
    """Stop through every ``finally``, so that no partial file remains."""
    _stopping.set()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _stop_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Repeat a stop that was raised, and lost, inside a callback such as compilation.

    Objects that a stop left incomplete may fail in their destructor: not printed.
    """
    stop = unraisable.exc_value
    if isinstance(stop, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(stop, SystemExit) and isinstance(stop.code, int):
        number = stop.code - 128
    else:
        if not _stopping.is_set():
            sys.__unraisablehook__(unraisable)
        return
    threading.Timer(_STOP_AGAIN_AFTER, os.kill, (os.getpid(), number)).start()


def _fail(message: str, code: int) -> NoReturn:
    # A group without a command has printed its help and has no message.
    if message:
        line = " ".join(printable(shortened(message)).splitlines())
        sys.stderr.write(f"epifalcon: {line}\n")
    sys.exit(code)
