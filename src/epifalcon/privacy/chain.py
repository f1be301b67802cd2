"""A file of JSON lines in which each line holds the SHA-256 of the line before.

The chain knows nothing of privacy: it keeps plain mappings in order, shows any
edit, deletion or swap, and waits for the disk.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from epifalcon.errors import CorruptFileError, DataError, WriteError
from epifalcon.types import Plain

FORMAT = "epifalcon-ledger"
VERSION = 1


def sha256(text: str) -> str:
    """Hex digest of a line."""
    return hashlib.sha256(text.encode()).hexdigest()


def first_line(budget: Plain) -> str:
    """The line that begins a chain; the budget is part of what is hashed."""
    return _canonical({"format": FORMAT, "version": VERSION, "budget": budget})


def next_line(index: int, previous: str, content: Plain) -> tuple[str, str]:
    """The hash of entry ``index`` and its line."""
    values = {"index": index, "previous": previous, **content}
    digest = sha256(_canonical(values))
    return digest, _canonical({**values, "sha256": digest})


def split_lines(text: str) -> list[str]:
    """The lines of a chain; a last line without its end is refused."""
    lines = text.split("\n")
    if lines.pop() or not lines:
        raise CorruptFileError("ledger: is empty or its last line is cut off")
    return lines


def read_first(line: str) -> dict[str, Any]:
    """The budget of a chain, as plain values."""
    values = _parse(line, "ledger line 1")
    if values.get("format") != FORMAT:
        raise DataError("not a ledger of epifalcon")
    if values.get("version") != VERSION:
        raise DataError(
            f"ledger: version {values.get('version')}, this program reads {VERSION}"
        )
    budget = values.get("budget")
    if not isinstance(budget, dict) or line != first_line(budget):
        raise CorruptFileError("ledger line 1: differs from what was written")
    return budget


def read_next(line: str, index: int, previous: str) -> tuple[dict[str, Any], str]:
    """The content of entry ``index`` and its hash, both checked."""
    where = f"ledger line {index + 2}"
    values = _parse(line, where)
    content = {
        name: value
        for name, value in values.items()
        if name not in {"index", "previous", "sha256"}
    }
    digest, expected = next_line(index, previous, content)
    if line != expected:
        raise CorruptFileError(
            f"{where}: differs from its SHA-256 or does not follow the line before: "
            "edited, removed or out of order"
        )
    return content, digest


class Journal:
    """One file that only grows, and only by us."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0

    def read(self) -> str:
        """All whole lines, none if there is no file; a torn last line is cut off."""
        if not self._path.exists():
            return ""
        try:
            content = self._path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(self._path, len(whole))
        except OSError as error:
            raise CorruptFileError(
                f"{self._path}: cannot be read: {error.strerror}"
            ) from None
        self._size = len(whole)
        try:
            return whole.decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptFileError(f"{self._path}: is not UTF-8 text") from None

    def append(self, lines: Iterable[str]) -> None:
        """Write whole lines and wait for the disk; on trouble the file is as it was."""
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            with self._path.open("ab", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self._size:
                    raise CorruptFileError(
                        f"{self._path}: was changed by another process"
                    )
                self._write(file.fileno(), data)
            if not self._size:
                _sync_name(self._path)
        except OSError as error:
            raise WriteError(
                f"{self._path}: cannot be written: {error.strerror}"
            ) from None
        self._size += len(data)

    def _write(self, handle: int, data: bytes) -> None:
        try:
            if os.write(handle, data) != len(data):
                raise OSError(0, "the disk took only a part")
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, self._size)
            raise


def _sync_name(path: Path) -> None:
    """Wait until the disk knows that the new file is there at all."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _canonical(values: Plain) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise CorruptFileError(f"{where}: is not JSON") from None
    if not isinstance(values, dict):
        raise CorruptFileError(f"{where}: is not a record")
    return values
