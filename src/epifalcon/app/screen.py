"""What people see: tables on standard output, progress on standard error.

Progress bars appear only on a terminal; ``--json`` prints one document on
standard output and nothing else there; ``--quiet`` prints only errors.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epifalcon.errors import StoppedError
from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_PIPED = 120
"""Columns of what is not printed on a terminal."""
_FRAME = 3
"""What stands between two cells."""
_BESIDE = "paper's"
"""A column that belongs to the one before it."""
_FEW = 6
"""Columns of a table whose cells are folded rather than parted."""


@contextlib.contextmanager
def resumable(command: str, begun: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Name the command that resumes the work if it is stopped after it has begun."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if not begun():
            raise
        way = f"go on with: {command}"
        if isinstance(stop, SystemExit):
            sys.stderr.write(f"epifalcon: stopped; {way}\n")
            raise
        raise StoppedError(f"interrupted; {way}") from None


@dataclass(frozen=True)
class Screen:
    """Where a command's words go, by its ``--json`` and ``--quiet``."""

    json: bool = False
    quiet: bool = False

    def figures(self, values: dict[str, Any]) -> None:
        """Print the figures of a command as JSON, if JSON was asked for.

        A number that is not finite becomes null: JSON has no word for it.
        """
        if self.json:
            sys.stdout.write(json_text(values) + "\n")

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not (self.json or self.quiet):
            sys.stdout.write(text + "\n")

    def note(self, text: str) -> None:
        """Print a line on standard error, which stays out of piped output."""
        if not self.quiet:
            sys.stderr.write(text + "\n")

    def warn(self, text: str) -> None:
        """Print what went wrong on standard error, even where little is to be said."""
        sys.stderr.write(f"epifalcon: {text}\n")

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """Print a table for people; columns after the first are set to the right.

        What is wider than the terminal comes in parts below each other, each with the
        columns that name its rows.
        """
        if self.json or self.quiet:
            return
        from rich.console import Console
        from rich.table import Table

        # Piped output keeps whole rows instead of folding them at 80 columns.
        width = None if sys.stdout.isatty() else _PIPED
        # No markup: a cell may hold "[/b]" or ":smile:" from somebody's file.
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        for part in _parts(columns, rows, console.width):
            table = Table(title=title, title_justify="left", title_style="bold")
            for index in part:
                # Of a name that has no room the rest stands in the next line.
                table.add_column(
                    columns[index],
                    justify="right" if index else "left",
                    overflow="fold",
                )
            for row in rows:
                table.add_row(*(row[index] for index in part))
            console.print(table)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress bar per piece of work, on a terminal only."""
        if self.quiet or not sys.stderr.isatty():
            yield silent
            return
        from rich.console import Console
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        with Bars(*_bars(), console=console, transient=True, expand=True) as bars:
            known: dict[str, Any] = {}

            def show(name: str, done: int, total: int, told: str = "") -> None:
                if name not in known:
                    known[name] = bars.add_task(name, total=total, told=told)
                bars.update(known[name], completed=done, total=total, told=told)

            yield show


def _bars() -> Iterator["ProgressColumn"]:
    """What stands in a line of progress; words that have no room are cut."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class TimeLeft(TimeRemainingColumn):
        """Silent where the work itself tells how long is left."""

        def render(self, task: Task) -> Text:
            return Text() if " left" in task.fields["told"] else super().render(task)

    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    yield SpinnerColumn()
    yield TextColumn("{task.description}", table_column=Column(no_wrap=True))
    yield BarColumn(bar_width=16)
    yield MofNCompleteColumn(table_column=Column(no_wrap=True))
    yield TimeElapsedColumn(table_column=Column(no_wrap=True))
    yield TimeLeft(table_column=Column(no_wrap=True))
    yield TextColumn("{task.fields[told]}", table_column=cut)


def _parts(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[list[int]]:
    """Columns that fit beside each other, as often as needed.

    All parts have the first column, and the second where only both tell rows apart. A
    cell with words may be folded, so that a table of few words stays one.
    """
    needed = [
        _FRAME + max(len(name), *(len(row[index]) for row in rows), 0)
        for index, name in enumerate(columns)
    ]
    words = any(" " in row[index] for row in rows for index in range(1, len(columns)))
    if not rows or sum(needed) + 1 <= width or (words and len(columns) <= _FEW):
        return [list(range(len(columns)))]
    named = 1 if len({row[0] for row in rows}) == len(rows) else 2
    empty = width - 1 - sum(needed[:named])
    parts, room = [list(range(named))], empty
    for some in _bound(columns, named):
        wanted = sum(needed[index] for index in some)
        if wanted > room and len(parts[-1]) > named:
            parts.append(list(range(named)))
            room = empty
        parts[-1] += some
        room -= wanted
    return parts


def _bound(columns: Sequence[str], named: int) -> list[list[int]]:
    """Columns that must not be parted: a figure and the paper's beside it."""
    found: list[list[int]] = []
    for index in range(named, len(columns)):
        if columns[index] == _BESIDE and found:
            found[-1].append(index)
        else:
            found.append([index])
    return found
