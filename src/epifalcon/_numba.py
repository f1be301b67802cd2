"""Compile functions with numba, cache machine code on disk, run work on threads.

Numba's own cache compares the modification time of one file, so it misses changes of
functions that are called from another file. Here the cache is
keyed by the contents of the file and of every project file that it imports.
"""

import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Numba reads settings, such as the folder of cached code, from a file in the working
# directory, which others may have written. Environment variables remain in effect.
numba.core.config._config_fname = os.devnull
numba.core.config.reload_config()  # type: ignore[no-untyped-call]
# Combine equal operations on adjacent values into vector instructions, as C compilers
# do; this reduces the time of the hypergraph product by a quarter.
numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]

_WORTH_THREADS = 300_000
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)"
    r"|import[ \t]+([\w.]+))",
    re.MULTILINE,
)


def njit(**options: Any) -> Callable[[F], F]:  # noqa: ANN401
    """Compile a function at its first call, with options of ``numba.njit``."""
    options |= {"cache": True, "no_cfunc_wrapper": True}

    def decorate(function: F) -> F:
        dispatcher: Any = numba.njit(**options)(function)
        path = Path(function.__code__.co_filename)
        if path.exists():
            stamp = _source_hash(path, function.__module__)
            file = dispatcher._cache._cache_file
            # Numba unpickles an index of its own version before it compares stamps,
            # which fails if a class was renamed. So the version contains the stamp.
            file._source_stamp = stamp
            file._version = f"{numba.__version__} {stamp}"
        return cast(F, dispatcher)

    return decorate


def compiled(function: F) -> F:
    """Compile a kernel that releases the GIL.

    As in NumPy, ``x / 0`` is inf or nan; a check would prevent vectorisation.
    """
    return njit(nogil=True, error_model="numpy")(function)


def inner(function: F) -> F:
    """Compile a function that only kernels call: no wrappers, no separate cache."""
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, numba.njit(**options)(function))


def each_part(work: Callable[[int], object], parts: int, steps: int) -> None:
    """Call ``work(part)`` for every part, on as many threads as numba may use.

    Kernels must release the GIL. Work of few ``steps`` in total runs on the
    calling thread. Numba's own threads are not used: they end the process when two
    callers use them at once, or after a fork.
    """
    if _threads() < 2 or steps < _WORTH_THREADS:
        for part in range(parts):
            work(part)
        return
    # The caller runs the parts that no pool thread has started. So it never waits for
    # a busy pool, nor for itself if a part calls this function.
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
    """Return a persistent pool: starting threads takes as long as a short kernel."""
    return ThreadPoolExecutor(_threads() - 1, "kernels")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _source_hash(path: Path, module: str) -> str:
    """Hash a file together with the files of its package that it imports."""
    package = module.partition(".")[0]
    root = path.parents[module.count(".") - (path.name == "__init__.py")]
    files = {path}
    pending = [path]
    while pending:
        for imported in _imported_files(pending.pop(), root, package):
            if imported not in files:
                files.add(imported)
                pending.append(imported)
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        digest.update(_contents(file))
    return digest.hexdigest()


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
