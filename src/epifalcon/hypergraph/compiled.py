"""Compiling with numba: one decorator with types, and work shared by threads.

Kernels let go of the interpreter's lock and are called for one part of the work
at a time. Which part holds what never depends on the number of threads, so the
result does not either. Plain threads are used, not numba's own pool: that one
ends the process when two of our callers use it at once, or after a fork.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import torch
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_WORTH_THREADS = 100_000


def compiled(function: F) -> F:
    """The function, compiled at its first call and kept on disk after it.

    As in NumPy, x / 0 is inf or nan: a check would keep loops from vectors.
    """
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def each_part(work: Callable[[int], object], parts: int, steps: int) -> None:
    """Call ``work(part)`` for every part, on as many threads as torch may use.

    ``steps`` says how much there is to do in all: little work stays on the
    calling thread, because starting another one takes some 50 microseconds.
    """
    threads = min(parts, torch.get_num_threads())
    if threads == 1 or steps < _WORTH_THREADS:
        for part in range(parts):
            work(part)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(parts)))
