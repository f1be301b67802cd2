"""The table type: caption, column heads and cells, as CSV, Markdown or HTML.

Cells of a ``Table`` are formatted text. ``write_csv`` writes raw values with all
digits.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epifalcon import store
from epifalcon.text import spreadsheet_cell

_FEW_WORDS = 3
"""Maximum number of words of a numeric cell; longer cells are text."""


@dataclass(frozen=True)
class Table:
    """A table with a caption; cells are plain text."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    kind = "table"

    def to_markdown(self) -> str:
        """Return a Markdown table under its caption as heading."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        body = "\n".join(f"| {' | '.join(map(_markdown_cell, one))} |" for one in lines)
        return f"## {self.caption}\n\n{body}"

    @property
    def column_classes(self) -> list[str]:
        """CSS class of each column: text to the left, numbers to the right."""
        places = range(len(self.columns))
        return [_css_class([row[place] for row in self.rows]) for place in places]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return columns and rows as CSV, without formulas of spreadsheets."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows([spreadsheet_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write a CSV file atomically."""
    store.replace_text(path, csv_text(columns, rows))


def _markdown_cell(text: str) -> str:
    """Escape characters that would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _css_class(cells: Sequence[str]) -> str:
    if any(len(cell.split()) > _FEW_WORDS for cell in cells):
        return "words long"
    numeric = any(cell.lstrip("+-−.[")[:1].isdigit() for cell in cells)
    return "" if numeric else "words"
