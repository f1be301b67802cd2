"""Compile functions with numba, cache the machine code on disk, share out work.

Numba's own cache compares the modification time of one file, so a cached function
does not notice that a function it calls in another file has changed. Here the cache is
keyed by the contents of the file and of every project file that it imports.
"""

import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, overload

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Join equal operations on neighbouring values to vector instructions, as C compilers
# do; the hypergraph product takes three quarters of the time with it.
numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]

_WORTH_THREADS = 300_000
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)"
    r"|import[ \t]+([\w.]+))",
    re.MULTILINE,
)


@overload
def njit(function: F) -> F: ...


@overload
def njit(**options: Any) -> Callable[[F], F]: ...  # noqa: ANN401


def njit(function: Any = None, **options: Any) -> Any:
    """Compile a function at its first call, with options of ``numba.njit``."""
    if function is None:
        return lambda given: njit(given, **options)
    dispatcher = numba.njit(cache=True, **options)(function)
    path = Path(function.__code__.co_filename)
    if path.exists():
        stamp = _source_hash(path, function.__module__)
        dispatcher._cache._cache_file._source_stamp = stamp
    return dispatcher


def compiled(function: F) -> F:
    """Compile a kernel that releases the interpreter's lock.

    As in NumPy, ``x / 0`` is inf or nan; a check would prevent vectorisation.
    """
    return njit(nogil=True, error_model="numpy")(function)


def inner(function: F) -> F:
    """Compile a function that only compiled code calls, without slow wrappers."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def each_part(work: Callable[[int], object], parts: int, steps: int) -> None:
    """Call ``work(part)`` for every part, on as many threads as numba may use.

    Kernels release the interpreter's lock. Little work, by its ``steps``, stays on the
    calling thread. Numba's own threads are not used: they end the process when two
    callers use them at once, or after a fork.
    """
    if _threads() < 2 or steps < _WORTH_THREADS:
        for part in range(parts):
            work(part)
        return
    # The caller takes part: it does what no thread of the pool has begun. So it never
    # waits for a busy pool, nor for itself if a part calls this function.
    futures = [_pool().submit(work, part) for part in range(parts)]
    for part, future in enumerate(futures):
        if future.cancel():
            work(part)
    for future in futures:
        if not future.cancelled():
            future.result()


def _threads() -> int:
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@cache
def _pool() -> ThreadPoolExecutor:
    """Return threads that stay: starting them takes as long as a short kernel runs."""
    return ThreadPoolExecutor(_threads() - 1, "kernels")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _source_hash(path: Path, module: str) -> str:
    """Hash a file together with the files of its package that it imports."""
    package = module.partition(".")[0]
    root = path.parents[module.count(".") - (path.name == "__init__.py")]
    files = {path}
    waiting = [path]
    while waiting:
        for found in _imported_files(waiting.pop(), root, package):
            if found not in files:
                files.add(found)
                waiting.append(found)
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(file.relative_to(root).as_posix().encode() + b"\0")
        whole.update(_contents(file))
    return whole.hexdigest()


@cache
def _contents(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _imported_files(path: Path, root: Path, package: str) -> list[Path]:
    names = set()
    for source, imported, direct in _IMPORT.findall(_contents(path).decode()):
        base = source or direct
        if base.partition(".")[0] == package:
            names.add(base)
            names |= {f"{base}.{name}" for name in re.findall(r"\w+", imported)}
    places = [root.joinpath(*name.split(".")) for name in sorted(names)]
    candidates = [place.with_suffix(".py") for place in places]
    candidates += [place / "__init__.py" for place in places]
    return [file for file in candidates if file.is_file()]
