"""Run jobs in worker processes, as many at a time as cores and memory allow.

Workers are forked by the fork server of ``multiprocessing``, which has loaded the
libraries once. A worker that fails, is killed or runs out of memory is reported and
the others continue. No worker outlives its parent.
"""

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import NoReturn

from epifalcon.checks import whole
from epifalcon.machine import cores, free_mb, rss_mb
from epifalcon.progress import Progress

STOPPED = 128 + int(signal.SIGTERM)
"""Exit code of a worker that received SIGTERM."""
PRELOAD = ["epifalcon.studies.worker"]
"""Modules that the fork server loads before it forks."""
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_REPORT_SECONDS = 0.3
_TAIL = 4000
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Job:
    """A function to be called in a worker of its own."""

    name: str
    """Shown with progress."""
    function: str
    """``module:name``; called with ``arguments`` and a ``Progress``, returns the exit
    code."""
    arguments: tuple[str | tuple[str, ...], ...]
    """Paths must be absolute: workers start in another folder."""
    threads: int = 1


@dataclass(frozen=True)
class Ended:
    """How a worker ended."""

    job: Job
    code: int
    """Exit code; negative for a signal."""
    output: str
    """The last characters that it printed."""
    seconds: float

    @property
    def last_line(self) -> str:
        """The last line of the output that is not empty."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def reason(self) -> str:
        """Describe the end of a worker that left no result."""
        if self.code >= 0:
            return self.last_line or f"ended with code {self.code} and no result"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        why = ", as happens where memory runs out" if name == "SIGKILL" else ""
        return f"killed by {name}{why}"


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many workers run at the same time, and whether failures are retried."""

    jobs: int | None = None
    """None for one per core."""
    retry: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None:
            whole(1, jobs=self.jobs)

    @property
    def at_once(self) -> int:
        """The largest number of workers, if memory allows."""
        return self.jobs or cores()

    @property
    def threads(self) -> int:
        """Threads of each worker when all cores are shared evenly."""
        return max(1, cores() // self.at_once)


def run_jobs(
    batches: Iterable[Sequence[Job]],
    at_once: int,
    needed_mb: Callable[[Job], float],
    watch: Callable[[Sequence["Worker"]], None],
    priority: Callable[[Job], tuple[float, ...]] = lambda _job: (),
) -> Iterator[Ended]:
    """Run all jobs and yield each that ends; leaving the iterator ends all workers.

    A job starts beside others only if ``needed_mb`` of memory is free; one alone always
    starts. The smallest ``priority`` starts first. ``watch`` is called with the workers
    under way. The next batch is requested only when all workers are busy.
    """
    coming = iter(batches)
    waiting = list(next(coming, ()))
    running: list[Worker] = []
    batch: Sequence[Job] | None = ()
    try:
        while waiting or running or batch is not None:
            for worker in [one for one in running if not one.process.is_alive()]:
                running.remove(worker)
                yield worker.result()
            waiting.sort(key=priority)
            while len(running) < at_once:
                job = _next(waiting, running, needed_mb)
                if job is None:
                    break
                waiting.remove(job)
                running.append(Worker(job))
            for worker in running:
                worker.listen()
            watch(running)
            batch = None if batch is None else next(coming, None)
            if batch is None:
                sleep(_POLL_SECONDS)
            waiting += batch or ()
    finally:
        for worker in running:
            worker.process.terminate()
        end = monotonic() + _GRACE_SECONDS
        for worker in running:
            worker.kill(max(0.0, end - monotonic()))


def _next(
    waiting: list[Job], running: list["Worker"], needed_mb: Callable[[Job], float]
) -> Job | None:
    """Return the first job whose memory is free; any job where nothing runs."""
    if not running:
        return waiting[0] if waiting else None
    # Workers hold a part of what they will need already.
    claimed = (needed_mb(one.job) - rss_mb(one.process.pid) for one in running)
    room = free_mb() - sum(max(0.0, one) for one in claimed)
    return next((job for job in waiting if needed_mb(job) <= room), None)


class Worker:
    """One job under way, with its latest ``progress``."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.progress = ""
        self._start = monotonic()
        handle, output = tempfile.mkstemp()
        os.close(handle)
        self._output = Path(output)
        self._reports, theirs = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(
            target=_work, args=(job, output, theirs), daemon=True
        )
        _CONTEXT.set_forkserver_preload(PRELOAD)
        with without_main():
            self.process.start()
        theirs.close()

    def listen(self) -> None:
        """Read what the worker has reported since the last call."""
        with contextlib.suppress(EOFError, OSError):
            while self._reports.poll():
                self.progress = self._reports.recv_bytes().decode()

    def result(self) -> Ended:
        """Describe the end of a worker that has ended, and free what it held."""
        seconds, code = monotonic() - self._start, self.process.exitcode
        output = self._output.read_text(encoding="utf-8", errors="replace")
        self._close()
        return Ended(self.job, 0 if code is None else code, output[-_TAIL:], seconds)

    def kill(self, grace: float) -> None:
        """End the worker if it does not end within ``grace`` seconds."""
        self.process.join(grace)
        self.process.kill()
        self.process.join()
        self._close()

    def _close(self) -> None:
        self._reports.close()
        self.process.close()
        self._output.unlink(missing_ok=True)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module, which ``multiprocessing`` would import in each worker.

    A script without a guard would run again; one from standard input has no file.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(job: Job, output: str, reports: connection.Connection) -> NoReturn:
    """Do ``job`` in this process, which ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    handle = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    faulthandler.enable(2)
    with contextlib.suppress(OSError):
        # Where memory runs out, this process shall be killed and not its parent.
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    _limit_threads(job.threads)
    module, _, name = job.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    sys.exit(function(*job.arguments, _reporter(reports)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(128 + signal.SIGHUP)


def _limit_threads(number: int) -> None:
    """Let every library of this process compute with ``number`` threads."""
    import numba
    import threadpoolctl  # type: ignore[import-untyped]
    import torch

    # First: it starts its threads, which changes the number that torch has.
    numba.set_num_threads(min(number, numba.get_num_threads()))
    threadpoolctl.threadpool_limits(number)
    torch.set_num_threads(number)


def _reporter(reports: connection.Connection) -> Progress:
    """Return a ``Progress`` that sends its values to the parent, not too often."""
    last = 0.0

    def report(name: str, done: int, total: int, told: str = "") -> None:  # noqa: ARG001
        nonlocal last
        now = monotonic()
        if now - last >= _REPORT_SECONDS or done == total:
            last = now
            reports.send_bytes(f"{name} {done} of {total}".encode())

    return report
