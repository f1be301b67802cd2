"""Tables on disk, read batch by batch: CSV (also gzipped) and Parquet."""

import contextlib
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from epifalcon.errors import DataError
from epifalcon.mobility.ingest.csvfile import CsvFile
from epifalcon.mobility.ingest.rows import Sieve, Tally, Told
from epifalcon.types import Mask

BATCH_ROWS = 262_144
CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table, in the order of the file."""

    row: NDArray[np.int64]
    """Row numbers as in the file."""
    frame: pl.DataFrame
    """The wanted columns under our names."""
    fields: NDArray[np.int64]
    """Number of fields found in each row; only a CSV file can have a wrong one."""
    done: int
    total: int
    """How far the reading is, in bytes or rows."""

    def sieve(self, tally: Tally, width: int) -> Sieve:
        """A sieve over these rows from which the broken ones are taken out."""
        sieve = Sieve(tally, self.row)
        wrong: Mask = self.fields != width
        sieve.refuse(
            wrong,
            "wrong number of fields, or an open quote",
            "(whole row)",
            _Fields(self.fields),
            f"{width} fields",
        )
        return sieve


class Table(Protocol):
    """A file of named columns."""

    names: tuple[str, ...]
    width: int

    def batches(self, wanted: Mapping[str, str]) -> Iterator[Batch]:
        """The columns ``{ours: theirs}``, batch by batch."""


def open_table(path: Path, delimiter: str = "auto") -> Table:
    """The table in ``path``, its kind told by the file's ending.

    Raises ``DataError`` naming the file and what was expected.
    """
    _require_file(path)
    name = path.name.lower()
    if name.endswith(PARQUET_ENDINGS):
        return _ParquetTable(path)
    if name.endswith(CSV_ENDINGS):
        return _CsvTable(path, delimiter)
    endings = ", ".join(CSV_ENDINGS + PARQUET_ENDINGS)
    raise DataError(f"{path}: expected a file ending in one of {endings}")


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever a reader raises on a bad file into ``DataError``."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the compressed data is broken: {error}") from None
    # A panic of polars is no Exception, and means a file it cannot make sense of.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from None
    except (MemoryError, OverflowError) as error:
        raise DataError(f"{path}: sizes in it make no sense: {error}") from None


def _require_file(path: Path) -> None:
    with readable(path):
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is no ordinary file"
            raise DataError(f"{path}: {what}, expected a file")
        if path.stat().st_size == 0:
            raise DataError(f"{path}: is empty")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = str(error).strip().splitlines()
    return first[0][:200] if first else type(error).__name__


class _CsvTable:
    def __init__(self, path: Path, delimiter: str) -> None:
        self._path = path
        with readable(path):
            self._file = CsvFile(path, delimiter)
        self.names = self._file.names
        self.width = len(self.names)

    def batches(self, wanted: Mapping[str, str]) -> Iterator[Batch]:
        positions = [self.names.index(theirs) for theirs in wanted.values()]
        total = self._path.stat().st_size
        with readable(self._path):
            for block in self._file.blocks(positions):
                frame = block.fields.rename(dict(zip(
                    block.fields.columns, wanted, strict=True)))  # fmt: skip
                yield Batch(block.line, frame, block.count, block.done, total)


class _ParquetTable:
    def __init__(self, path: Path) -> None:
        self._path = path
        with readable(path), _no_panic_shown():
            self._lazy = pl.scan_parquet(path, glob=False)
            self.names = tuple(self._lazy.collect_schema().names())
            self._total = int(self._lazy.select(pl.len()).collect().item())
        self.width = len(self.names)

    def batches(self, wanted: Mapping[str, str]) -> Iterator[Batch]:
        at = {ours: self.names.index(theirs) for ours, theirs in wanted.items()}
        require_sound_pages(self._path, sorted(set(at.values())), self._total)
        chosen = [pl.nth(index).alias(ours) for ours, index in at.items()]
        done = 0
        with readable(self._path):
            for frame in self._lazy.select(chosen).collect_batches(
                chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming"
            ):
                row = np.arange(done + 1, done + len(frame) + 1, dtype=np.int64)
                done += len(frame)
                fields = np.full(len(frame), self.width, dtype=np.int64)
                yield Batch(row, frame, fields, done, self._total)
        _require_all(self._path, done, self._total)


_PROBE = """
import sys
import polars as pl
columns = [pl.nth(int(index)) for index in sys.argv[2].split(",")]
lazy = pl.scan_parquet(sys.argv[1], glob=False).select(columns)
batches = lazy.collect_batches(chunk_size=262144, engine="streaming")
sys.stdout.write(str(sum(len(batch) for batch in batches)))
"""


def require_sound_pages(path: Path, columns: Sequence[int], total: int) -> None:
    """Read these columns once in a process of its own; ``DataError`` if it fails.

    One wrong bit in a page can make polars ask for 2^61 bytes, and then the
    whole process is ended at once; or one of its threads gives up and the rest
    of the rows is silently missing. Reading twice costs little: decoding is
    the small part of an import.
    """
    if not sys.executable:
        return
    with readable(path):
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(path.absolute()),
             ",".join(map(str, columns))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )  # fmt: skip
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in told if "exceptions." in line), "")
        reason = reason.partition(": ")[2][:200] or "its pages cannot be decoded"
        raise DataError(f"{path}: is damaged: {reason}")
    _require_all(path, int(done.stdout), total)


def _require_all(path: Path, done: int, total: int) -> None:
    if done != total:
        raise DataError(f"{path}: is damaged: {done} of {total} rows can be read")


@contextlib.contextmanager
def _no_panic_shown() -> Iterator[None]:
    """Hold back what Rust prints on standard error when polars panics.

    The panic becomes a ``DataError``, whose one line says all; anything else
    that was printed meanwhile is printed in the end.
    """
    try:
        shown = os.dup(2)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as held, os.fdopen(shown, "wb") as stderr:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(shown, 2)
            held.seek(0)
            text = held.read()
            if b"panicked at" not in text:
                stderr.write(text)


@dataclass(frozen=True, eq=False)
class _Fields:
    count: NDArray[np.int64]

    def __getitem__(self, index: int) -> Told:
        number = int(self.count[index])
        # -1 marks a quote that is never closed, where fields cannot be counted.
        return Told(f"{number} fields" if number >= 0 else "an open quote")
