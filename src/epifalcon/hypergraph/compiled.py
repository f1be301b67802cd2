"""Compiling with numba: one decorator with types, and work shared by threads.

Kernels let go of the interpreter's lock and are called for one part of the work
at a time. Which part holds what never depends on the number of threads, so the
result does not either. Plain threads are used, not numba's own pool: that one
ends the process when two of our callers use it at once, or after a fork.
"""

from _thread import LockType, start_new_thread
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_WORTH_THREADS = 300_000


def compiled(function: F) -> F:
    """The function, compiled at its first call and kept on disk after it.

    As in NumPy, x / 0 is inf or nan: a check would keep loops from vectors.
    """
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def each_part(work: Callable[[int], object], parts: int, steps: int) -> None:
    """Call ``work(part)`` for every part, on as many threads as torch may use.

    ``steps`` says how much there is to do in all: little work stays on the
    calling thread, because starting another one takes some 20 microseconds. The
    first error is raised when no part is at work any more.
    """
    threads = min(parts, torch.get_num_threads()) if steps >= _WORTH_THREADS else 1
    todo = iter(range(parts))
    failed: list[BaseException] = []
    at_work = [Lock() for _ in range(threads - 1)]

    def run() -> None:
        try:
            for part in todo:
                if failed:
                    break
                work(part)
        except BaseException as error:
            failed.append(error)

    def help_out(mine: LockType) -> None:
        with mine:
            run()

    # Not threading.Thread: its start waits until the new thread runs, which on a
    # busy machine takes longer than the work.
    for one in at_work:
        start_new_thread(help_out, (one,))
    run()
    # Whoever is at work holds its lock. A thread that begins only now finds
    # nothing left to do, so it is not waited for.
    for one in at_work:
        with one:
            pass
    if failed:
        raise failed[0]
