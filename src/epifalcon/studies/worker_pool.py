"""Run jobs in worker processes, as many in parallel as cores and memory allow.

Workers are forked by the fork server of ``multiprocessing``, which has loaded the
libraries once. If a worker fails, is killed or runs out of memory, this is reported
and the others continue. Workers exit when their parent exits.
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
from epifalcon.errors import EpifalconError
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
    """A function call to be executed in a separate worker process."""

    name: str
    """Name in progress messages."""
    function: str
    """``module:name``; called with ``arguments`` and a ``Progress``, returns the exit
    code."""
    arguments: tuple[str | tuple[str, ...], ...]
    """Paths must be absolute: workers have another working directory."""
    threads: int = 1


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended."""

    job: Job
    code: int
    """Exit code; negative for a signal."""
    output: str
    """The end of its standard output and error."""
    seconds: float

    @property
    def last_line(self) -> str:
        """The last non-empty line of the output."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def reason(self) -> str:
        """Reason why a worker ended without a result."""
        if self.code >= 0:
            return self.last_line or f"ended with code {self.code} and no result"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        why = ", probably out of memory" if name == "SIGKILL" else ""
        return f"killed by {name}{why}"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Number of parallel workers, and whether failed jobs are retried."""

    jobs: int | None = None
    """None for one per core."""
    retry: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None:
            whole(1, jobs=self.jobs)

    @property
    def at_once(self) -> int:
        """Maximum number of parallel workers."""
        return self.jobs or cores()

    @property
    def threads(self) -> int:
        """Threads per worker if all cores are divided evenly."""
        return max(1, cores() // self.at_once)


def run_jobs(
    batches: Iterable[Sequence[Job]],
    at_once: int,
    needed_mb: Callable[[Job], float],
    watch: Callable[[Sequence["Worker"]], None],
    priority: Callable[[Job], tuple[float, ...]] = lambda _job: (),
) -> Iterator[WorkerExit]:
    """Run all jobs and yield each that ends; closing the iterator ends all workers.

    If other jobs run, a job starts only if ``needed_mb`` of memory is free. Jobs with
    the smallest ``priority`` start first. ``watch`` is called with the running workers.
    Jobs start before the next batch is requested, so preparing it overlaps with them.
    """
    coming = iter(batches)
    waiting = list(next(coming, ()))
    running: list[Worker] = []
    batch: Sequence[Job] | None = ()
    try:
        while waiting or running or batch is not None:
            for worker in [each for each in running if not each.process.is_alive()]:
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
                worker.read_progress()
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
    """Return the first job that fits into free memory; any job if none is running."""
    if not running:
        return waiting[0] if waiting else None
    # Running workers have already allocated a part of the memory they need.
    claimed = (needed_mb(one.job) - rss_mb(one.process.pid) for one in running)
    room = free_mb() - sum(max(0.0, one) for one in claimed)
    return next((job for job in waiting if needed_mb(job) <= room), None)


class Worker:
    """A running job with its latest ``progress`` message."""

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
        try:
            with without_main():
                self.process.start()
        except OSError as error:
            # Without a file name, it would count as an error of standard output.
            self._output.unlink(missing_ok=True)
            raise EpifalconError(
                f"no worker process can be started: {error.strerror}"
            ) from None
        theirs.close()

    def read_progress(self) -> None:
        """Read the progress messages since the last call."""
        with contextlib.suppress(EOFError, OSError):
            while self._reports.poll():
                self.progress = self._reports.recv_bytes().decode()

    def result(self) -> WorkerExit:
        """Return how a finished worker ended, and release its resources."""
        seconds, code = monotonic() - self._start, self.process.exitcode
        output = self._output.read_text(encoding="utf-8", errors="replace")
        self._close()
        return WorkerExit(
            self.job, 0 if code is None else code, output[-_TAIL:], seconds
        )

    def kill(self, grace: float) -> None:
        """Kill the worker if it does not exit within ``grace`` seconds."""
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

    A script without a main guard would run again; one from stdin has no file.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(job: Job, output: str, reports: connection.Connection) -> NoReturn:
    """Execute ``job`` in this process and exit; exit early if the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    handle = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    faulthandler.enable(2)
    with contextlib.suppress(OSError):
        # If memory runs out, the kernel should kill this process, not its parent.
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
    """Limit all numeric libraries of this process to ``number`` threads."""
    import numba
    import threadpoolctl  # type: ignore[import-untyped]
    import torch

    # numba first: starting its threads changes the thread count of torch.
    numba.set_num_threads(min(number, numba.get_num_threads()))
    threadpoolctl.threadpool_limits(number)
    torch.set_num_threads(number)


def _reporter(reports: connection.Connection) -> Progress:
    """Return a ``Progress`` that sends messages to the parent at a limited rate."""
    last = 0.0

    def report(name: str, done: int, total: int, message: str = "") -> None:  # noqa: ARG001
        nonlocal last
        now = monotonic()
        if now - last >= _REPORT_SECONDS or done == total:
            last = now
            reports.send_bytes(f"{name} {done} of {total}".encode())

    return report
