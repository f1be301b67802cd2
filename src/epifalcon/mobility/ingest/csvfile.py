"""CSV files in blocks of lines, so that one broken row costs only itself.

Lines without quotes are split by polars, many at a time. A line with quotes
goes through Python's ``csv``; a quoted field may go on over the next lines. A
quote that is never closed, or that closes into a row of the wrong width, is
taken to be a slip in its own line only.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError

BLOCK_BYTES = 16 << 20
LONGEST_LINE = 64 << 20
MOST_JOINED_LINES = 50
DELIMITERS = ",;\t|"
OPEN_QUOTE = -1
_BEYOND = -1


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of the file."""

    line: NDArray[np.int64]
    """Number of the line on which each row begins; the header is line 1."""
    count: NDArray[np.int64]
    """Fields in each row; -1 where a quote was left open."""
    fields: pl.DataFrame
    """The wanted columns as text."""
    done: int
    """Bytes of the file read so far."""


class CsvFile:
    """A CSV file with a header; ``.gz`` files are unpacked on the way."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self._path = path
        with _opened(path) as file:
            header = _header_text(path, file)
        self._delimiter = _delimiter(header) if delimiter == "auto" else delimiter
        self.names = _header_names(path, header, self._delimiter)

    def blocks(self, positions: Sequence[int]) -> Iterator[Block]:
        """The columns at ``positions``, block by block; blank lines are left out."""
        with self._path.open("rb") as raw, _unpacked(self._path, raw) as file:
            file.readline()
            line, rest, last = 2, b"", False
            while not last:
                data = file.read(BLOCK_BYTES)
                last = not data
                text, rest = _cut(self._path, rest + data, line, last)
                lines = _lines(text)
                splitter = _Splitter(lines, line, len(self.names), self._delimiter)
                kept = splitter.run(last)
                line += kept
                # An open quote near the end of a block waits for the next block.
                waiting = "".join(f"{text}\n" for text in lines[kept:].to_list())
                rest = waiting.encode() + rest
                if kept:
                    yield splitter.block(positions, raw.tell())


class _Splitter:
    """Splits the lines of one block into rows of fields."""

    def __init__(
        self, lines: pl.Series, first_line: int, width: int, delimiter: str
    ) -> None:
        self._lines = lines
        self._first = first_line
        self._width = width
        self._delimiter = delimiter
        self._used: list[int] = []
        self._begins: list[int] = []
        self._rows: list[list[str]] = []
        self._counts: list[int] = []

    def run(self, last: bool) -> int:
        """Parse the quoted rows; returns how many lines can be used now."""
        quoted = self._lines.str.contains('"', literal=True)
        if not quoted.any():
            return len(self._lines)
        texts = self._lines.to_list()
        free = 0
        begins: list[int] = quoted.arg_true().to_list()
        for begin in begins:
            if begin < free:
                continue
            row, end = self._row(texts[begin]), begin
            if row is None:
                end = _closing(texts, begin)
                if end == _BEYOND and not last:
                    self._lines = self._lines[:begin]
                    return begin
                row = self._row("\n".join(texts[begin : end + 1]))
            free = self._take(begin, end, row)
        return len(texts)

    def block(self, positions: Sequence[int], done: int) -> Block:
        """The rows of all lines taken by ``run``."""
        plain = np.ones(len(self._lines), dtype=np.bool_)
        plain[self._used] = False
        plain &= (self._lines != "").to_numpy()
        begins = np.flatnonzero(plain)
        lines = self._lines.gather(begins)
        parts = lines.str.split_exact(self._delimiter, self._width)
        seps = lines.str.count_matches(self._delimiter, literal=True).to_numpy()
        # One delimiter too many, at the very end, is how some programs end a line.
        spare = lines.str.ends_with(self._delimiter).to_numpy()
        count = seps.astype(np.int64) + 1
        count -= spare & (count == self._width + 1)
        frame = pl.DataFrame(
            [parts.struct.field(f"field_{at}").alias(f"c{k}")
             for k, at in enumerate(positions)]
        )  # fmt: skip
        if self._begins:
            frame = pl.concat([frame, self._quoted_frame(positions)])
            begins = np.concatenate([begins, np.array(self._begins, dtype=np.int64)])
            count = np.concatenate([count, np.array(self._counts, dtype=np.int64)])
            order = np.argsort(begins, kind="stable")
            frame, begins, count = frame[order], begins[order], count[order]
        return Block(begins + self._first, count, frame, done)

    def _row(self, text: str) -> list[str] | None:
        """The fields of one whole row, or None where the quotes are at odds."""
        row = _fields(text, self._delimiter)
        if row is not None and len(row) == self._width + 1 and not row[-1]:
            return row[:-1]
        return row

    def _take(self, begin: int, end: int, row: list[str] | None) -> int:
        """Note one row; returns the line after it."""
        if end != begin and (row is None or len(row) != self._width):
            row, end = None, begin
        self._used.extend(range(begin, end + 1))
        self._begins.append(begin)
        self._counts.append(OPEN_QUOTE if row is None else len(row))
        self._rows.append(row or [])
        return end + 1

    def _quoted_frame(self, positions: Sequence[int]) -> pl.DataFrame:
        columns = {
            f"c{k}": [row[at] if at < len(row) else None for row in self._rows]
            for k, at in enumerate(positions)
        }
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def _closing(texts: list[str], begin: int) -> int:
    """The line on which the quotes opened on line ``begin`` are all closed.

    ``begin`` itself if that is not soon, ``_BEYOND`` if the block ends first.
    """
    quotes = 0
    for index in range(begin, begin + MOST_JOINED_LINES):
        if index == len(texts):
            return _BEYOND
        quotes += texts[index].count('"')
        if quotes % 2 == 0:
            return index
    return begin


def _fields(text: str, delimiter: str) -> list[str] | None:
    try:
        rows = list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None


def _cut(path: Path, data: bytes, line: int, last: bool) -> tuple[str, bytes]:
    end = len(data) if last else data.rfind(b"\n") + 1
    if not last and len(data) - end > LONGEST_LINE:
        raise DataError(
            f"{path}: a line after row {line} is longer than "
            f"{LONGEST_LINE >> 20} MB, expected CSV"
        )
    # What is no UTF-8 becomes U+FFFD, by which the row is refused later.
    return data[:end].decode("utf-8", "replace"), data[end:]


def _lines(text: str) -> pl.Series:
    if not text:
        return pl.Series([], dtype=pl.String)
    lines = pl.Series([text.removesuffix("\n")]).str.split("\n").explode()
    return lines.str.strip_suffix("\r") if "\r" in text else lines


def _opened(path: Path) -> BinaryIO:
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    return raw


def _header_text(path: Path, file: BinaryIO) -> str:
    data = file.readline(LONGEST_LINE)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data:
        raise DataError(f"{path}: row 1: expected UTF-8 text, found UTF-16 or binary")
    try:
        return data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{path}: row 1: expected column names in UTF-8") from None


def _delimiter(header: str) -> str:
    return max(DELIMITERS, key=header.count)


def _header_names(path: Path, header: str, delimiter: str) -> tuple[str, ...]:
    fields = _fields(header, delimiter) if header else None
    if not fields:
        raise DataError(f"{path}: row 1: expected a line of column names")
    names = [name.strip() for name in fields]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise DataError(f"{path}: row 1: expected a line of column names")
    return tuple(names)
