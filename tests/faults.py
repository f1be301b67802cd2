"""A disk that fails at a chosen moment, for tests of what is left behind."""

import builtins
import contextlib
import errno
import io
import os

_NAMED = ("mkdir", "rename", "unlink", "rmdir")
_BY_HANDLE = ("write", "fsync", "ftruncate")


class Killed(BaseException):
    """The process ends here: no clean-up may touch the disk any more."""


def stop_at(number):
    """A progress callback that ends the process at step ``number``."""

    def progress(_name, done, _total, _message=""):
        if done == number:
            raise Killed

    return progress


class Disk:
    """Counts what changes the disk below ``root``; ``fail`` may end it.

    ``fail(name, number)`` is called before each change and may raise.
    """

    def __init__(self, root, fail):
        self.root, self.changes = str(root), 0
        self._fail = fail
        self._real = {name: getattr(os, name) for name in (*_NAMED, *_BY_HANDLE)}
        self._open = io.open

    def change(self, name):
        self.changes += 1
        self._fail(name, self.changes)

    def named(self, name):
        def call(path, *more, **others):
            if os.fspath(path).startswith(self.root) or "dir_fd" in others:
                self.change(name)
            return self._real[name](path, *more, **others)

        return call

    def by_handle(self, name):
        def call(handle, *more):
            try:
                self.change(name)
            except Killed:
                if name == "write":
                    # The worst moment: half of it has reached the disk.
                    self._real[name](handle, more[0][: len(more[0]) // 2])
                raise
            return self._real[name](handle, *more)

        return call

    def open(self, file, mode="r", *more, **others):
        ours = isinstance(file, str | os.PathLike) and set(mode) & set("wax+")
        if ours and os.fspath(file).startswith(self.root):
            try:
                self.change("open")
            except Killed:
                # The worst moment: the file is there, and empty if it was to be new.
                self._open(file, mode, *more, **others).close()
                raise
        return self._open(file, mode, *more, **others)


@contextlib.contextmanager
def disk(root, fail=lambda _name, _number: None):
    """Every change of files below ``root`` goes by way of a ``Disk``."""
    watched = Disk(root, fail)
    patched = {name: watched.named(name) for name in _NAMED}
    patched |= {name: watched.by_handle(name) for name in _BY_HANDLE}
    try:
        for name, call in patched.items():
            setattr(os, name, call)
        io.open = builtins.open = watched.open
        yield watched
    finally:
        for name, real in watched._real.items():
            setattr(os, name, real)
        io.open = builtins.open = watched._open


def killed_at(number):
    """The process is killed at change ``number`` and does nothing afterwards."""

    def fail(_name, now):
        if now >= number:
            raise Killed

    return fail


def full_from(number):
    """From change ``number`` on the disk takes nothing more; deleting still works."""

    def fail(name, now):
        if now >= number and name in {"open", "write", "mkdir", "fsync"}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return fail
