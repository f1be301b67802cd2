"""Measure time and memory: jobs in turn, best of several, in a new process."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 2


@dataclass(frozen=True)
class Times:
    """Wall and CPU seconds of a job, each the best of its repeats."""

    wall: float = float("inf")
    busy: float = float("inf")


def run_in_subprocess(module: str, *arguments: str) -> Any:  # noqa: ANN401
    """Return the JSON that ``python -m benchmarks.<module> <arguments>`` prints.

    The module's stderr is passed on.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    return json.loads(done.stdout)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds and result of ``work``."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def best(jobs: dict[str, tuple[Callable[[], object], int]]) -> dict[str, Times]:
    """Return the best times of each job over its repeats; jobs run in turn."""
    found = dict.fromkeys(jobs, Times())
    turns = min(repeats for _, repeats in jobs.values())
    for _ in range(turns):
        for name, (job, repeats) in jobs.items():
            for _ in range(repeats // turns):
                began = time.process_time()
                wall, _ = timed(job)
                busy = time.process_time() - began
                so_far = found[name]
                found[name] = Times(min(so_far.wall, wall), min(so_far.busy, busy))
    return found


def compared(name: str, preset: str, ours: Times, peer: Times) -> dict[str, Any]:
    """Return the common entries of all comparisons of rounds."""
    return {
        "name": name,
        "ours": 1e3 * ours.wall,
        "peer": 1e3 * peer.wall,
        "ratio": peer.wall / ours.wall,
        "unit": "ms",
        "preset": preset,
        "ours_cpu_ms": 1e3 * ours.busy,
        "peer_cpu_ms": 1e3 * peer.busy,
        "ratio_cpu": peer.busy / ours.busy,
    }


def peak_mb() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
