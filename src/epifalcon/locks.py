"""File locks: one process at a time works on a folder or a file.

Uses ``flock``, so the system releases a lock when its process ends for any
reason.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

from epifalcon import store
from epifalcon.errors import WriteError


class FileLock(contextlib.AbstractContextManager["FileLock"]):
    """An exclusive lock on ``path``; if busy, wait or raise ``WriteError(busy)``."""

    def __init__(self, path: Path, *, wait: bool = False, busy: str = "") -> None:
        self._path = path
        self._handle: int | None = None
        # A link that others planted under this name is not followed.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with store.writing(path):
            handle = os.open(path, flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # The former owner may have removed the file between open and lock.
            ours = os.stat(path).st_ino == os.fstat(handle).st_ino
        except OSError:
            ours = False
        if not ours:
            os.close(handle)
            raise WriteError(busy or f"{path}: another process holds this lock")
        self._handle = handle

    @classmethod
    def inside(cls, folder: Path) -> "FileLock":
        """Lock ``folder`` by a file in it."""
        busy = f"{folder}: another process is at work on it"
        return cls(folder / ".lock", busy=busy)

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and remove its file with ``remove``; idempotent."""
        if self._handle is not None:
            if remove:
                self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


@contextlib.contextmanager
def lock_folder(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock ``folder``, which need not exist yet, by a file beside it.

    If another process holds the lock, wait up to ``patience`` seconds. On entry,
    remove scratch folders that a killed process left beside the folder; on exit, the
    parents created here, if they are still empty.
    """
    folder = Path(os.path.realpath(folder))
    path = folder.parent / f".{folder.name}.lock"
    busy = (
        f"{folder}: another process is working on this run; wait for it or choose "
        "another folder"
    )
    with store.parents_of(folder):
        end, lock = monotonic() + patience, None
        while lock is None:
            try:
                with store.writing(folder, path):
                    lock = FileLock(path, busy=busy)
            except WriteError:
                if monotonic() >= end:
                    raise
                sleep(0.2)
        try:
            with store.writing(folder):
                store.clear_scratch(folder.parent)
            yield
        finally:
            lock.release(remove=True)
