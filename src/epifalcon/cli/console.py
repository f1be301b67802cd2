"""Print tables on standard output, progress and log messages on standard error.

Progress bars appear only on a terminal. ``--json`` prints one document on standard
output and nothing else there; ``--quiet`` prints only errors.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from epifalcon.errors import StoppedError
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text
from epifalcon.text import printable, shortened

if TYPE_CHECKING:
    from epifalcon.reports.tables import Table

_PIPED = 120
"""Width of output that is not on a terminal."""
_FRAME = 3
"""Width of the frame of a cell."""
_BESIDE = "paper's"
"""A column that belongs to the one before it."""
_FEW = 6
"""A table of at most this many columns is folded rather than divided."""


@contextlib.contextmanager
def resumable(
    command: str, has_started: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Print the command that resumes the work if it is stopped after its start."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if not has_started():
            raise
        hint = f"resume with: {command}"
        if isinstance(stop, SystemExit):
            sys.stderr.write(printable(f"epifalcon: stopped; {hint}\n"))
            raise
        raise StoppedError(f"interrupted; {hint}") from None


class _StandardError(logging.Handler):
    """Write log messages to standard error, above progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Looked up each time: progress bars replace it while they are shown.
            sys.stderr.write(printable(self.format(record)) + "\n")
        except Exception:
            self.handleError(record)


def show_log(verbosity: int) -> None:
    """Print log messages: INFO with ``verbosity`` 1, DEBUG with 2 or more."""
    logger = logging.getLogger("epifalcon")
    for handler in logger.handlers[:]:
        if isinstance(handler, _StandardError):
            logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    if verbosity:
        handler = _StandardError()
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(form, datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)


@dataclass(frozen=True)
class Console:
    """Output of a command, as controlled by ``--json`` and ``--quiet``."""

    json: bool = False
    quiet: bool = False

    def figures(self, values: dict[str, Any]) -> None:
        """Print the result as JSON with --json; NaN and infinity become null."""
        if self.json:
            plain = {
                name: str(value) if isinstance(value, Path) else value
                for name, value in values.items()
            }
            sys.stdout.write(printable(json_text(plain)) + "\n")

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not (self.json or self.quiet):
            sys.stdout.write(printable(text) + "\n")

    def note(self, text: str) -> None:
        """Print a line on standard error, which stays out of piped output."""
        if not self.quiet:
            sys.stderr.write(printable(shortened(text)) + "\n")

    def warn(self, text: str) -> None:
        """Print a failure on standard error, even with --quiet."""
        sys.stderr.write(f"epifalcon: {printable(shortened(text))}\n")

    def tables(self, tables: Iterable["Table"]) -> None:
        """Print tables that have rows, then the meaning of their columns."""
        shown = [table for table in tables if table.rows]
        for table in shown:
            self.table(table.caption, table.columns, table.rows)
        if not (self.json or self.quiet):
            self.explain(column for table in shown for column in table.columns)

    def explain(self, terms: Iterable[str]) -> None:
        """Print the meaning of those of ``terms`` that the glossary contains."""
        from epifalcon.reports.metric_registry import glossary

        for term, meaning in glossary(terms).items():
            self.say(f"{term}: {meaning}")

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """Print a table for people, in parts below each other if it is too wide."""
        if self.json or self.quiet:
            return
        from rich.console import Console
        from rich.table import Table

        from epifalcon.reports import tables

        title, columns = printable(title), [*map(printable, columns)]
        rows = [[*map(printable, row)] for row in rows]
        # Piped output keeps whole rows instead of folding them at 80 columns.
        width = None if sys.stdout.isatty() else _PIPED
        # No markup: a cell may hold "[/b]" or ":smile:" from somebody's file.
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        classes = tables.Table(title, columns, rows).column_classes
        for part in _parts(columns, rows, console.width):
            # As a line of its own: a title of a narrow table would be folded.
            console.print(title, style="bold", soft_wrap=True)
            table = Table()
            for index in part:
                is_text = index == 0 or "words" in classes[index]
                side: Literal["left", "right"] = "left" if is_text else "right"
                table.add_column(columns[index], justify=side, overflow="fold")
            for row in rows:
                table.add_row(*(row[index] for index in part))
            console.print(table)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show a progress bar per piece of work, on a terminal only."""
        if self.quiet or not sys.stderr.isatty():
            yield silent
            return
        from rich import progress as rich
        from rich.console import Console
        from rich.table import Column

        whole, cut = Column(no_wrap=True), Column(no_wrap=True, ratio=1)
        with rich.Progress(
            rich.SpinnerColumn(),
            rich.TextColumn("{task.description}", markup=False, table_column=whole),
            rich.BarColumn(bar_width=16),
            rich.MofNCompleteColumn(table_column=whole),
            rich.TimeElapsedColumn(table_column=whole),
            rich.TimeRemainingColumn(table_column=whole),
            rich.TextColumn("{task.fields[message]}", markup=False, table_column=cut),
            console=Console(stderr=True),
            transient=True,
            expand=True,
            # Jobs of a study take minutes each.
            speed_estimate_period=3600,
        ) as bars:
            known: dict[str, Any] = {}

            def show(name: str, done: int, total: int, message: str = "") -> None:
                name, message = printable(name), printable(message)
                if name not in known:
                    known[name] = bars.add_task(name, total=total, message=message)
                bars.update(known[name], completed=done, total=total, message=message)

            yield show


def _parts(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[list[int]]:
    """Split the columns of a wide table into parts that each fit into ``width``.

    Each part repeats the first column, and also the second if the first is not unique.
    A table with text cells and few columns is not split, because text can be wrapped.
    """
    needed = [
        _FRAME + max(len(name), *(len(row[index]) for row in rows), 0)
        for index, name in enumerate(columns)
    ]
    words = any(" " in cell for row in rows for cell in row[1:])
    if not rows or sum(needed) + 1 <= width or (words and len(columns) <= _FEW):
        return [list(range(len(columns)))]
    named = 1 if len({row[0] for row in rows}) == len(rows) else 2
    parts = [list(range(named))]
    for index in range(named, len(columns)):
        # A figure and the paper's beside it stay together.
        some = (
            [index, index + 1] if _BESIDE in columns[index + 1 : index + 2] else [index]
        )
        used = 1 + sum(needed[one] for one in (*parts[-1], *some))
        if columns[index] != _BESIDE and used > width and len(parts[-1]) > named:
            parts.append(list(range(named)))
        parts[-1].append(index)
    return parts
