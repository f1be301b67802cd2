"""Compiling with numba: one decorator with types, and work shared by threads.

Kernels let go of the interpreter's lock and are called for one part of the work
at a time. Which part holds what never depends on the number of threads, so the
result does not either. Plain threads are used, not numba's own pool: that one
ends the process when two of our callers use it at once, or after a fork.
"""

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar, cast

import torch
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_WORTH_THREADS = 1_000_000


def compiled(function: F) -> F:
    """The function, compiled at its first call and kept on disk after it.

    As in NumPy, x / 0 is inf or nan: a check would keep loops from vectors.
    """
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def each_part(work: Callable[[int], object], parts: int, steps: int) -> None:
    """Call ``work(part)`` for every part, on as many threads as torch may use.

    ``steps`` says how much there is to do in all: little work stays on the
    calling thread, because starting another one takes some 50 microseconds. The
    first error is raised when all threads have ended.
    """
    threads = min(parts, torch.get_num_threads()) if steps >= _WORTH_THREADS else 1
    todo = iter(range(parts))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for part in todo:
                work(part)
        except BaseException as error:
            failed.append(error)

    others = [Thread(target=run, daemon=True) for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]
