"""What people see: tables on standard output, progress on standard error.

Progress bars appear only on a terminal; ``--json`` prints one document on
standard output and nothing else there; ``--quiet`` prints only errors.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from epifalcon.progress import Progress, silent
from epifalcon.settings import json_text


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

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """Print a table for people; columns after the first are set to the right."""
        if self.json or self.quiet:
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left", title_style="bold")
        for index, column in enumerate(columns):
            # What has no room goes on in the next line: half a number is none.
            table.add_column(
                column, justify="right" if index else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*row)
        # Piped output keeps whole rows instead of folding them at 80 columns.
        width = None if sys.stdout.isatty() else 120
        # No markup: a cell may hold "[/b]" or ":smile:" from somebody's file.
        console = Console(width=width, highlight=False, markup=False, emoji=False)
        console.print(table)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress bar per piece of work, on a terminal only."""
        if self.quiet or not sys.stderr.isatty():
            yield silent
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import (
            Progress as Bars,
        )

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
        )
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            known: dict[str, Any] = {}

            def show(name: str, done: int, total: int, told: str = "") -> None:
                if name not in known:
                    known[name] = bars.add_task(name, total=total, told=told)
                bars.update(known[name], completed=done, total=total, told=told)

            yield show
