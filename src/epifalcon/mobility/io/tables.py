"""Read tables from disk batch by batch: CSV (also gzipped) and Parquet.

A broken row of a CSV file affects no other row, and every row has its line number.
Polars splits lines without quotes; lines with quotes are parsed by Python's ``csv``
and may continue on the next lines. A quote that is never closed, or that results in
a row of the wrong width, invalidates its own line only.
"""

import contextlib
import csv
import difflib
import gzip
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import polars as pl

from epifalcon.errors import DataError, SettingsError
from epifalcon.settings import unknown_name

BATCH_ROWS = 262_144
BLOCK_BYTES = 16 << 20
LONGEST_LINE = 64 << 20
MOST_JOINED_LINES = 50
OPEN_QUOTE = -1
_CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")
TABLE_PLACE = "table place"
"""Internal name of the place column of a table, also called cell or tower."""
_USUAL = {
    "person": (
        "person_id", "user", "user_id", "userid", "uid", "device", "device_id",
        "deviceid", "participant", "participant_id", "patient", "patient_id",
        "subject", "subject_id", "pid", "agent", "agent_id", "person1", "person_1",
        "user1", "user_1", "id1", "device1",
    ),
    "other": (
        "other_id", "other_person", "contact", "contact_id", "peer", "peer_id",
        "person2", "person_2", "user2", "user_2", "id2", "device2",
    ),
    "duration": ("duration_min", "duration_minutes", "minutes"),
    "time": (
        "timestamp", "datetime", "date_time", "ts", "date", "time_stamp",
        "utc_timestamp", "utctimestamp", "event_time", "recorded_at", "tracked_at",
        "checkin_time", "check_in_time", "sample_date", "test_date", "tested_at",
    ),
    "start": (
        "start_time", "started_at", "begin", "arrival", "start_date", "starttime",
        "start_datetime", "start_timestamp", "begin_time", "arrival_time",
        "arrived_at", "check_in", "checkin", "entry_time", "entered_at",
    ),
    "end": (
        "end_time", "ended_at", "finish", "departure", "end_date", "endtime",
        "end_datetime", "end_timestamp", "finished_at", "departure_time", "left_at",
        "check_out", "checkout", "exit_time", "exited_at",
    ),
    "day": ("date", "day_number"),
    "hour": ("hour_of_day",),
    "region": ("region_id", "place", "place_id", "area", "area_id"),
    "lat": ("latitude", "lat_deg", "gps_lat", "gps_latitude", "location_lat"),
    "lon": (
        "lng", "long", "longitude", "lon_deg", "gps_lon", "gps_lng", "gps_longitude",
        "location_lon", "location_long", "location_lng",
    ),
    "place": (
        "place_id", "poi", "poi_id", "venue", "venue_id", "region", "region_id",
        "venueid", "placeid", "location", "location_id", "site", "site_id", "room",
        "room_id",
    ),
    "cell": (
        "cell_id", "cellid", "tower", "tower_id", "antenna", "antenna_id", "cgi",
        "ecgi", "bts", "bts_id",
    ),
    "kind": ("test_kind", "test_type"),
    "reason": ("test_reason", "reason_for_test", "tested_because"),
    "onset": (
        "onset_date", "symptom_onset", "symptom_onset_date", "symptoms_since",
        "date_of_onset",
    ),
    "result": (
        "test_result", "outcome", "test", "testresult", "pcr_result", "lab_result"
    ),
}  # fmt: skip
_USUAL[TABLE_PLACE] = (
    "place", *_USUAL["place"], "cell", *_USUAL["cell"], "id", "name"
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Batch of consecutive rows of a table, in the order of the file."""

    frame: pl.DataFrame
    """Requested columns under internal names; ``row``, the row number in the file; for
    CSV also ``fields``, the number of fields found, -1 where a quote was not closed."""
    done: int
    total: int
    """Size of the file in bytes or rows; ``done`` is the part read so far."""


def open_table(path: Path, delimiter: str = "auto") -> "InputTable":
    """Open the table in ``path``; the file extension determines the format."""
    with readable(path):
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not a regular file"
            raise DataError(f"{path}: {what}, expected a file")
        if path.stat().st_size == 0:
            raise DataError(f"{path}: is empty")
        name = path.name.lower()
        if name.endswith(_PARQUET_ENDINGS):
            return ParquetTable(path)
        if name.endswith(_CSV_ENDINGS):
            return CsvTable(path, delimiter)
    endings = ", ".join(_CSV_ENDINGS + _PARQUET_ENDINGS)
    raise DataError(f"{path}: expected a file ending in one of {endings}")


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert any exception of a reader to ``DataError``."""
    try:
        yield
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the compressed data is corrupt: {error}") from None
    # A panic of polars is not an Exception; the file cannot be parsed.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = getattr(error, "strerror", None) or str(error).strip() or repr(error)
        first = reason.splitlines()[0][:200]
        raise DataError(f"{path}: cannot be read: {first}") from None
    except (MemoryError, OverflowError) as error:
        raise DataError(f"{path}: contains invalid sizes: {error}") from None


class CsvTable:
    """A CSV file with a header; ``.gz`` files are unpacked while reading."""

    def __init__(self, path: Path, delimiter: str = "auto") -> None:
        self.path = path
        with readable(path), path.open("rb") as raw, _unpacked(path, raw) as file:
            data = file.readline(LONGEST_LINE)
        if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data:
            raise DataError(
                f"{path}: row 1: expected UTF-8 text, found UTF-16 or binary"
            )
        try:
            header = data.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{path}: row 1: expected column names in UTF-8") from None
        if delimiter == "auto":
            delimiter = max(",;\t|", key=header.count)
        self._delimiter = delimiter
        names = [name.strip() for name in self._split(header) or []]
        while names and not names[-1]:
            names.pop()
        if not names:
            raise DataError(f"{path}: row 1: expected a line of column names")
        self.names = tuple(names)

    def batches(self, wanted: Mapping[str, str]) -> Iterator[RowBatch]:
        """Yield the columns ``{internal name: name in the file}`` as text.

        Blank lines are skipped.
        """
        at = {ours: self.names.index(theirs) for ours, theirs in wanted.items()}
        total = self.path.stat().st_size
        with (
            readable(self.path),
            self.path.open("rb") as raw,
            _unpacked(self.path, raw) as file,
        ):
            file.readline()
            line, rest, last = 2, b"", False
            while not last:
                data = file.read(BLOCK_BYTES)
                last, data = not data, rest + data
                end = len(data) if last else data.rfind(b"\n") + 1
                if len(data) - end > LONGEST_LINE:
                    raise DataError(
                        f"{self.path}: a line after row {line} is longer than "
                        f"{LONGEST_LINE >> 20} MB, expected CSV"
                    )
                # Invalid UTF-8 becomes U+FFFD; such rows are rejected later.
                text = data[:end].decode("utf-8", "replace")
                lines = pl.Series([text.removesuffix("\n")]).str.split("\n").explode()
                lines = lines.str.strip_suffix("\r") if text else lines.clear()
                frame, used = self._rows(lines, at, last)
                # An open quote near the end of a block waits for the next block.
                waiting = "".join(f"{text}\n" for text in lines[used:].to_list())
                rest = waiting.encode() + data[end:]
                frame = frame.with_columns(row=pl.col("row") + line)
                line += used
                if used:
                    yield RowBatch(frame, raw.tell(), total)

    def _rows(
        self, lines: pl.Series, at: Mapping[str, int], last: bool
    ) -> tuple[pl.DataFrame, int]:
        """Split lines into rows; return the table and the number of lines used."""
        width = len(self.names)
        records, inside, used = self._quoted_rows(lines, last)
        plain = pl.DataFrame({"text": lines[:used]}).with_row_index("row")
        plain = plain.filter((lines[:used] != "") & ~pl.col("row").is_in(list(inside)))
        parts = pl.col("text").str.split_exact(self._delimiter, width)
        found = pl.col("text").str.count_matches(self._delimiter, literal=True) + 1
        # Some programs end each line with a delimiter.
        spare = pl.col("text").str.ends_with(self._delimiter) & (found == width + 1)
        counted = plain.select(
            pl.col("row").cast(pl.Int64),
            (found.cast(pl.Int64) - spare.cast(pl.Int64)).alias("fields"),
            "text",
        )
        # Short rows under a header of many names would fill the memory with columns.
        frame = counted.filter(pl.col("fields") == width).select(
            "row",
            "fields",
            *(parts.struct.field(f"field_{k}").alias(ours) for ours, k in at.items()),
        )
        if len(frame) < len(counted):
            others = counted.filter(pl.col("fields") != width).drop("text")
            frame = pl.concat([frame, others], how="diagonal").sort("row")
        if not records:
            return frame, used
        quoted = []
        for begin, row in records.items():
            count = OPEN_QUOTE if row is None else len(row)
            fields = (row[k] if row and k < count else None for k in at.values())
            quoted.append((begin, count, *fields))
        made = pl.DataFrame(quoted, schema=frame.schema, orient="row")
        return pl.concat([frame, made]).sort("row"), used

    def _quoted_rows(
        self, lines: pl.Series, last: bool
    ) -> tuple[dict[int, list[str] | None], set[int], int]:
        """Parse rows with quotes into {first line: fields, or None if invalid}.

        Also returns all lines of these rows, and the number of lines used.
        """
        records: dict[int, list[str] | None] = {}
        inside: set[int] = set()
        begins: list[int] = lines.str.contains('"', literal=True).arg_true().to_list()
        texts = lines.to_list() if begins else []
        for begin in begins:
            if begin in inside:
                continue
            row, end = self._split(texts[begin]), begin
            if row is None:
                quotes = texts[begin].count('"')
                limit = min(begin + MOST_JOINED_LINES, len(texts))
                while quotes % 2 and end + 1 < limit:
                    end += 1
                    quotes += texts[end].count('"')
                if quotes % 2 and limit == len(texts) and not last:
                    return records, inside, begin
                row = self._split("\n".join(texts[begin : end + 1]))
                if end > begin and (row is None or len(row) != len(self.names)):
                    row, end = None, begin
            records[begin] = row
            inside.update(range(begin, end + 1))
        return records, inside, len(lines)

    def _split(self, text: str) -> list[str] | None:
        """Split one row into fields; return None if its quotes do not match."""
        try:
            rows = list(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error:
            return None
        if len(rows) != 1:
            return None
        row, names = rows[0], getattr(self, "names", ())
        return row[:-1] if len(row) == len(names) + 1 and not row[-1] else row


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    return raw


class ParquetTable:
    """A Parquet file, verified before it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._total = count_rows(path)
        self._lazy = pl.scan_parquet(path, glob=False)
        self.names = tuple(self._lazy.collect_schema().names())

    def batches(self, wanted: Mapping[str, str]) -> Iterator[RowBatch]:
        """Yield the columns ``{internal name: name in the file}``."""
        at = {ours: self.names.index(theirs) for ours, theirs in wanted.items()}
        chosen = [pl.nth(index).alias(ours) for ours, index in at.items()]
        done = 0
        with readable(self.path):
            for frame in self._lazy.select(chosen).collect_batches(
                chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming"
            ):
                row = np.arange(done + 1, done + len(frame) + 1, dtype=np.int64)
                done += len(frame)
                yield RowBatch(frame.with_columns(row=row), done, self._total)


InputTable = CsvTable | ParquetTable
"""A file with named columns."""

_PLAUSIBLE_ROWS, _ROWS_PER_BYTE = 10_000_000, 2
_PROBE = """
import sys
import polars as pl
lazy = pl.scan_parquet(sys.argv[1], glob=False)
total = lazy.select(pl.len()).collect().item()
if total > int(sys.argv[2]):
    sys.exit(f"exceptions.: has {total} rows, more than its size explains")
batches = lazy.collect_batches(chunk_size=262144, engine="streaming")
print(sum(map(len, batches)), total)
"""


def count_rows(path: Path) -> int:
    """Count the rows of a Parquet file; raise ``DataError`` if it is damaged.

    Reads it in another process: one flipped bit can make polars request 2^61 bytes,
    which aborts the process, or lose the rows that follow without an error.
    """
    # Polars decodes a group of rows as a whole: equal rows would fill the memory.
    most = max(_PLAUSIBLE_ROWS, _ROWS_PER_BYTE * path.stat().st_size)
    command = [sys.executable, "-c", _PROBE, str(path.absolute()), str(most)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if "exceptions." in line), "")
        reason = reason.partition(": ")[2][:200] or "its pages cannot be decoded"
        raise DataError(f"{path}: is damaged: {reason}")
    found, total = map(int, done.stdout.split())
    if found != total:
        raise DataError(f"{path}: is damaged: {found} of {total} rows can be read")
    return total


def renamed(entries: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Parse ``("person=user_id", ...)`` into a dict; names must be in ``known``."""
    chosen: dict[str, str] = {}
    for entry in entries:
        ours, _, theirs = (part.strip() for part in entry.partition("="))
        if ours not in known:
            raise SettingsError(unknown_name("column", ours, known))
        if ours in chosen:
            raise SettingsError(f"columns sets {ours!r} more than once")
        chosen[ours] = theirs
    return chosen


def find_column(table: InputTable, ours: str, chosen: Mapping[str, str]) -> str | None:
    """Find the column of the file for internal name ``ours``; None if there is none.

    A column chosen by name must exist. Otherwise the column with the internal name is
    used, or else the only column with a common synonym; case is ignored, and spaces
    and hyphens count as underscores.
    """
    names = table.names
    if ours in chosen and chosen[ours] not in names:
        raise DataError(_missing(table, chosen[ours]))
    exact = chosen.get(ours, ours)
    if exact in names:
        if names.count(exact) > 1:
            raise DataError(
                f"{table.path}: row 1: column {exact!r} appears more than once"
            )
        return exact
    usual = {ours, *_USUAL[ours]}
    plain = [re.sub(r"[\s-]+", "_", name.strip().lower()) for name in names]
    found = [name for name, one in zip(names, plain, strict=True) if one in usual]
    if len(found) > 1:
        both = " and ".join(repr(name) for name in found)
        raise DataError(
            f"{table.path}: columns {both} could each be {ours!r}: "
            f"choose one with columns, e.g. {ours}={found[0]}"
        )
    return found[0] if found else None


def need_column(table: InputTable, ours: str, chosen: Mapping[str, str]) -> str:
    """Find the column for internal name ``ours``; raise ``DataError`` if none."""
    found = find_column(table, ours, chosen)
    if found is None:
        name = ours.rsplit(" ")[-1]
        raise DataError(
            f"{_missing(table, name)}; name one with --columns, --test-columns or "
            f"--place-columns, as in {name}={table.names[0]}"
        )
    return found


def _missing(table: InputTable, name: str) -> str:
    names = table.names
    shown = ", ".join(repr(column) for column in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; nearest: {near[0]!r}" if near else ""
    return f"{table.path}: no column {name!r}: the columns are {shown}{more}{hint}"
