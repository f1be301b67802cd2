"""One process at a time: on a run's folder, and on a site's list of promises.

Locks are those of the system (``flock``): one whose process has gone is free.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epifalcon.errors import WriteError

_LOCK = ".lock"


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Wait until no other process holds ``path``, and hold it."""
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class FolderLock:
    """Held from its making to ``release``, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        handle = _open(folder / _LOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise WriteError(f"{folder}: another process is at work on it") from None
        self._handle = handle

    def release(self) -> None:
        """Let others at it; more than once does no harm."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
