"""Work in processes of its own, as many at once as cores and memory allow.

A process that fails, is killed or runs out of memory is told of; the others go
on. None outlives its starter: each ends when the pipe to it closes.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import IO

from epifalcon.machine import free_mb, rss_mb
from epifalcon.studies.nursery import Child, Nursery

_POLL_SECONDS = 0.05
_MERCY_SECONDS = 5.0
_TAIL = 4000


@dataclass(frozen=True)
class Job:
    """One process to be run."""

    name: str
    """As progress calls it."""
    module: str
    """Whose ``main(words)`` is called."""
    words: tuple[str, ...]
    threads: int | None = None
    """Of the process; None for as many as all get."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    job: Job
    code: int
    """Negative for a signal."""
    said: str
    """The last of what it wrote on standard error."""
    seconds: float


@dataclass(frozen=True)
class Running:
    """What a process that is under way told last."""

    job: Job
    seconds: float
    told: str


Watch = Callable[[Sequence[Running]], None]
Needs = Callable[[Job], float]
"""Memory in MB that a job will probably take at most; asked whenever one may start."""
Turn = Callable[[Job], tuple[float, ...]]
"""The job with the least has its turn; asked whenever one may start."""


def _as_they_stand(_job: Job) -> tuple[float, ...]:
    return ()


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    threads: int,
    needs: Needs,
    watch: Watch,
    turn: Turn = _as_they_stand,
) -> Iterator[Ended]:
    """Run all ``jobs`` by ``turn`` and tell of each that ends.

    Of equal turns, those first that stand first. At most ``at_once``, and no job
    beside others unless its memory is there; one alone is always tried. ``watch``
    is called again and again with those under way. Leaving the iterator, however
    that happens, ends every process.
    """
    return run_batches([jobs], at_once, threads, needs, watch, turn)


def run_batches(
    batches: Iterable[Sequence[Job]],
    at_once: int,
    threads: int,
    needs: Needs,
    watch: Watch,
    turn: Turn = _as_they_stand,
) -> Iterator[Ended]:
    """``run_jobs`` of jobs that become possible one batch after the other.

    The next batch is asked for once of those before it as many run as can; what
    making it takes passes while they run.
    """
    coming = iter(batches)
    waiting = list(next(coming, ()))
    running: list[_Process] = []
    more: Sequence[Job] | None = ()
    nurseries = _Nurseries()
    try:
        while waiting or running or more is not None:
            for process in [one for one in running if one.ended]:
                running.remove(process)
                yield process.result()
            # Stable, and what was learnt meanwhile counts.
            waiting.sort(key=turn)
            while len(running) < at_once and (job := _next(waiting, running, needs)):
                waiting.remove(job)
                running.append(_Process(job, nurseries[job.threads or threads]))
            watch([process.now() for process in running])
            more = None if more is None else next(coming, None)
            if more is None:
                sleep(_POLL_SECONDS)
            waiting += more or ()
    finally:
        _end(running)
        for nursery in nurseries.values():
            nursery.close()


def _next(waiting: list[Job], running: list["_Process"], needs: Needs) -> Job | None:
    """The first job that fits beside what runs; any where nothing runs."""
    if not running:
        return waiting[0] if waiting else None
    # What runs has taken a part of what it will need.
    still = sum(max(0.0, needs(one.job) - one.rss_mb) for one in running)
    room = free_mb() - still
    return next((job for job in waiting if needs(job) <= room), None)


def _end(running: Sequence["_Process"]) -> None:
    for process in running:
        process.terminate()
    end = monotonic() + _MERCY_SECONDS
    for process in running:
        process.kill(max(0.0, end - monotonic()))


class _Process:
    """One job under way."""

    def __init__(self, job: Job, nursery: Nursery) -> None:
        self.job = job
        self._told = ""
        self._rest = b""
        self._start = monotonic()
        # Kept by the process, closed in ``result`` or ``kill``.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = _started(job, self._errors, nursery)
        os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        return monotonic() - self._start

    @property
    def rss_mb(self) -> float:
        """Memory that it holds now; 0 where that cannot be told."""
        return rss_mb(self._process.pid)

    def now(self) -> Running:
        """What it told last."""
        self._read()
        return Running(self.job, self.seconds, self._told)

    def result(self) -> Ended:
        """How it ended; to be called once."""
        seconds, code = self.seconds, self._process.wait()
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        said = self._errors.read().decode("utf-8", errors="replace")
        self._close()
        return Ended(self.job, code, said, seconds)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self, mercy: float) -> None:
        """Wait for ``mercy`` seconds, then kill."""
        try:
            self._process.wait(mercy)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _read(self) -> None:
        """Take in the newest line of progress."""
        while found := self._process.stdout.read(65536):
            *lines, self._rest = (self._rest + found).split(b"\n")
            if lines:
                self._told = _words(lines[-1]) or self._told

    def _close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


def _started(job: Job, errors: IO[bytes], nursery: Nursery) -> Child:
    return nursery.start(job.module, job.words, errors)


class _Nurseries(dict[int, Nursery]):
    """One for each number of threads that jobs are to have."""

    def __missing__(self, threads: int) -> Nursery:
        self[threads] = made = Nursery(_environment(threads))
        return made


def _words(line: bytes) -> str:
    with contextlib.suppress(ValueError):
        name, done, total, _told = json.loads(line)
        return f"{name} {done} of {total}"
    return ""


def _environment(threads: int) -> dict[str, str]:
    libraries = ("OMP", "NUMBA", "OPENBLAS", "MKL")
    wanted = {f"{name}_NUM_THREADS": str(threads) for name in libraries}
    return {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **wanted}
