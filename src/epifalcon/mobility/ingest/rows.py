"""Rows kept and refused: every refused row is counted, by reason, with examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.types import Mask

EXAMPLES_PER_REASON = 3
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class RefusedRow:
    """One refused row: where it stands, what was found, what was expected."""

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
    """How many rows were read, kept, and refused for which reason."""

    read: int
    kept: int
    refused: Mapping[str, int]
    examples: tuple[RefusedRow, ...]

    def as_plain(self) -> dict[str, Any]:
        """For JSON: rows_read, rows_kept, rows_refused, refused, examples."""
        return {
            "rows_read": self.read,
            "rows_kept": self.kept,
            "rows_refused": self.read - self.kept,
            "refused": dict(self.refused),
            "examples": [vars(example) for example in self.examples],
        }


class Tally:
    """Counts the rows of one file while it is read."""

    def __init__(self, path: Path, *, strict: bool, max_refused_share: float) -> None:
        self.path = path
        self._strict = strict
        self._max_share = max_refused_share
        self._read = 0
        self._refused: dict[str, int] = {}
        self._examples: list[RefusedRow] = []
        self._expected: set[str] = set()

    def add_read(self, rows: int) -> None:
        """Count ``rows`` rows as read."""
        self._read += rows

    def expect(self, reason: str) -> None:
        """Hold rows refused for ``reason`` against nobody: they were asked out."""
        self._expected.add(reason)

    def add_refused(self, reason: str, count: int) -> int:
        """Count ``count`` rows as refused; returns how many examples are wanted."""
        before = self._refused.get(reason, 0)
        self._refused[reason] = before + count
        return max(0, min(count, EXAMPLES_PER_REASON - before))

    def add_example(self, example: RefusedRow) -> None:
        """Keep one example for the report."""
        self._examples.append(example)

    def check_strict(self) -> None:
        """In strict mode, raise on the first row refused so far."""
        wrong = [row for row in self._examples if row.reason not in self._expected]
        if self._strict and wrong:
            first = min(wrong, key=lambda example: example.row)
            raise DataError(f"{self.path}: {first}")

    def finish(self) -> RowCount:
        """The count, or ``DataError`` if too few rows are left to trust."""
        refused = sum(self._refused.values())
        order = sorted(self._refused, key=lambda name: (-self._refused[name], name))
        examples = sorted(
            self._examples, key=lambda row: (order.index(row.reason), row.row)
        )
        count = RowCount(
            self._read,
            self._read - refused,
            {reason: self._refused[reason] for reason in order},
            tuple(examples),
        )
        if self._read == 0:
            raise DataError(f"{self.path}: holds no rows")
        if count.kept == 0:
            raise DataError(
                f"{self.path}: all {refused} rows were refused: {_told(count)}"
            )
        left_out = sum(self._refused.get(reason, 0) for reason in self._expected)
        wrong, judged = refused - left_out, self._read - left_out
        if wrong > self._max_share * judged:
            raise DataError(
                f"{self.path}: {wrong} of {judged} rows were refused, more "
                f"than max_refused_share={self._max_share:g} allows: {_told(count)}"
            )
        return count


class Sieve:
    """Which rows of one batch are still in; each refused row has one reason."""

    def __init__(self, tally: Tally, row: NDArray[np.int64]) -> None:
        self._tally = tally
        self._row = row
        self.path = tally.path
        self.alive: Mask = np.ones(len(row), dtype=np.bool_)
        tally.add_read(len(row))

    def refuse(
        self,
        bad: Mask,
        reason: str,
        column: str,
        values: Any,  # noqa: ANN401
        expected: str,
    ) -> None:
        """Take the ``bad`` rows out; ``values[i]`` is what stood in row i."""
        hit = np.flatnonzero(bad & self.alive)
        if hit.size == 0:
            return
        self.alive[hit] = False
        wanted = self._tally.add_refused(reason, int(hit.size))
        for index in hit[:wanted].tolist():
            found = show(values[index])
            row = int(self._row[index])
            self._tally.add_example(RefusedRow(reason, row, column, found, expected))


class Told(str):
    """Words of ours about a value, shown without quotes."""

    __slots__ = ()


def show(value: object) -> str:
    """A value as it is shown in messages: text in quotes, and cut if it is long."""
    if value is None:
        return "nothing"
    quoted = isinstance(value, str) and not isinstance(value, Told)
    text = repr(value) if quoted else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _told(count: RowCount, most: int = 3) -> str:
    parts = []
    for reason, number in list(count.refused.items())[:most]:
        example = next(row for row in count.examples if row.reason == reason)
        parts.append(
            f"{number} x {reason} (row {example.row}, column {example.column!r}: "
            f"found {example.value}, expected {example.expected})"
        )
    return "; ".join(parts)
