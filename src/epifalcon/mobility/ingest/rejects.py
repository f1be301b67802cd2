"""Reject rows by rules, and count them by reason with examples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from epifalcon.errors import DataError
from epifalcon.mobility.ingest.settings import ReadSettings
from epifalcon.mobility.ingest.tables import Batch, Table

EXAMPLES_PER_REASON = 3
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class RefusedRow:
    """One rejected row: its number, the value found, what was expected."""

    reason: str
    row: int
    """As in the file: the header of a CSV file is row 1."""
    column: str
    value: str
    expected: str

    def __str__(self) -> str:
        return (
            f"row {self.row}, column {self.column!r}: {self.reason}: "
            f"found {self.value}, expected {self.expected}"
        )


@dataclass(frozen=True)
class RowCount:
    """How many rows were read, kept, and rejected for which reason."""

    read: int
    kept: int
    refused: Mapping[str, int]
    examples: tuple[RefusedRow, ...]

    def as_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows_read": self.read,
            "rows_kept": self.kept,
            "rows_refused": self.read - self.kept,
            "refused": dict(self.refused),
            "examples": [vars(example) for example in self.examples],
        }


class Rule(NamedTuple):
    """A reason to reject a row."""

    reason: str
    column: str
    """Our name of the column that is to blame."""
    expected: str
    bad: pl.Expr
    """True for the rows to reject; null counts as False."""
    shown: Callable[[Mapping[str, Any]], str] | None = None
    """Formats the value found; the column's own value unless given."""


class RowFilter:
    """Applies rules to the rows of one file, batch by batch.

    ``ignored`` are reasons that count neither for ``strict`` nor for the largest
    share of rejected rows, because the user asked to leave such rows out.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        read: ReadSettings,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.columns = columns
        self._settings = read
        self._ignored = ignored
        self._read = 0
        self._refused: dict[str, int] = {}
        self._examples: list[RefusedRow] = []

    def batches(self, table: Table) -> Iterator[Batch]:
        """Yield the rows of ``table`` that have the right number of fields."""
        width = len(table.names)
        for batch in table.batches(self.columns):
            self.count(len(batch.frame))
            fields = Rule(
                "wrong number of fields, or an open quote",
                "(whole row)",
                f"{width} fields",
                pl.col("fields") != width,
                lambda row: _show_fields(row["fields"]),
            )
            if "fields" in batch.frame.columns:
                batch = replace(batch, frame=self.keep(batch.frame, fields))
            yield batch
            self.check_strict()

    def count(self, rows: int) -> None:
        """Count ``rows`` rows as read."""
        self._read += rows

    def keep(self, frame: pl.DataFrame, *rules: Rule) -> pl.DataFrame:
        """Return the rows that no rule rejects; the first rule that does is counted."""
        number = pl.coalesce(
            *(pl.when(rule.bad).then(at) for at, rule in enumerate(rules))
        )
        found = frame.select(number.alias("rule"))["rule"]
        if found.null_count() == len(found):
            return frame
        for at, rule in enumerate(rules):
            self._refuse(rule, frame.filter(found == at))
        return frame.filter(found.is_null())

    def _refuse(self, rule: Rule, rows: pl.DataFrame) -> None:
        if rows.is_empty():
            return
        before = self._refused.get(rule.reason, 0)
        self._refused[rule.reason] = before + len(rows)
        called = self.columns.get(rule.column, rule.column)
        # Times as numbers: Python has no datetime for the year 300,000.
        numbers = pl.selectors.datetime().to_physical()
        few = rows.head(max(0, EXAMPLES_PER_REASON - before)).with_columns(numbers)
        for row in few.iter_rows(named=True):
            value = rule.shown(row) if rule.shown else show(row[rule.column])
            example = RefusedRow(rule.reason, row["row"], called, value, rule.expected)
            self._examples.append(example)

    def check_strict(self) -> None:
        """In strict mode, raise on the first row rejected so far."""
        wrong = [row for row in self._examples if row.reason not in self._ignored]
        if self._settings.strict and wrong:
            first = min(wrong, key=lambda example: example.row)
            raise DataError(f"{self.path}: {first}")

    def finish(self) -> RowCount:
        """Return the count, or raise ``DataError`` if too many rows were rejected."""
        refused = sum(self._refused.values())
        order = sorted(self._refused, key=lambda name: (-self._refused[name], name))
        examples = sorted(
            self._examples, key=lambda row: (order.index(row.reason), row.row)
        )
        counts = {reason: self._refused[reason] for reason in order}
        found = RowCount(self._read, self._read - refused, counts, tuple(examples))
        if self._read == 0:
            raise DataError(f"{self.path}: holds no rows")
        if found.kept == 0:
            raise DataError(
                f"{self.path}: all {refused} rows were refused: {_summary(found)}"
            )
        ignored = sum(self._refused.get(reason, 0) for reason in self._ignored)
        wrong, judged = refused - ignored, self._read - ignored
        share = self._settings.max_refused_share
        if wrong > share * judged:
            raise DataError(
                f"{self.path}: {wrong} of {judged} rows were refused, more "
                f"than max_refused_share={share:g} allows: {_summary(found)}"
            )
        return found


def show(value: object) -> str:
    """Format a value for messages: text in quotes, and cut if it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = "nothing" if value is None else text
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _show_fields(count: int) -> str:
    # -1 marks a quote that is never closed, where fields cannot be counted.
    return f"{count} fields" if count >= 0 else "an open quote"


def _summary(count: RowCount, most: int = 3) -> str:
    parts = []
    for reason, number in list(count.refused.items())[:most]:
        example = next(row for row in count.examples if row.reason == reason)
        parts.append(
            f"{number} x {reason} (row {example.row}, column {example.column!r}: "
            f"found {example.value}, expected {example.expected})"
        )
    return "; ".join(parts)
